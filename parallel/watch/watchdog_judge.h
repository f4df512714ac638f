/* Who holds up the job? A pure function of what is known of every rank: no socket, no clock. */
#pragma once

#include "parallel/watch/watchdog_link.h"

typedef enum watchdog_cause {
    CAUSE_GONE,
    CAUSE_SILENT,
    CAUSE_STUCK,
    CAUSE_CIRCLE,
    CAUSE_LEFT,
    CAUSE_FAILED, /* it said so itself */
    WATCHDOG_CAUSES,
} watchdog_cause;

/* What is known of one rank. */
typedef struct watchdog_report {
    watchdog_frame last;
    double heard, moved; /* seconds: when its last frame came; when it last made progress */
    bool left;
} watchdog_report;

typedef struct watchdog_limits {
    double phase[INCIDENT_PHASES]; /* seconds without progress */
    double silent;                 /* seconds without a frame */
} watchdog_limits;

/* The longest limit of the phases that ranks are in who wait for nobody: others may be waiting for them. */
double watchdog_judge_patience(const watchdog_report *reports, int ranks, const watchdog_limits *limits);

/* True if a rank is over its limit; then *culprit is the rank that holds up the others, and *why says how. Ranks whose
 * own limit is shorter than the job's patience are excused: their time begins anew. `beat`: seconds between frames. */
bool watchdog_judge(int *culprit, watchdog_cause *why, watchdog_report *reports, int ranks, double time,
                    const watchdog_limits *limits, double beat);

/* "is gone: ..." */
const char *watchdog_judge_words(watchdog_cause why, const watchdog_frame *culprit);
incident_verdict watchdog_judge_verdict(watchdog_cause why, const watchdog_frame *culprit);
