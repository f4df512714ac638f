/* Determines why a job ended, and whether to restart it, from incidents in a run's folder: the advice is a function of
 * the last one and of those before.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "parallel/watch/incident.h"

typedef struct cause {
    bool known; /* a rank has reported the cause; else only `words` is set */
    incident_verdict verdict;
    int rank;     /* -1: unknown */
    int64_t step; /* -1: unknown */
    char host[INCIDENT_HOST];
    char words[INCIDENT_WORDS];
} cause;

/* Returns the end of the incidents so far, where the next job's begin. */
int64_t causes_position(const char *folder);
/* Returns the most informative of the incidents from `position` on that end the start `run`: a dead rank is often only
 * the outside view of another trouble. Unknown if there is none. Ignores incidents of other starts, since anyone may
 * write to the folder. `run` "": this start has no id yet, and any incident counts. */
cause causes_read(const char *folder, int64_t position, const char *run);

/* True if the start `run` has opened the run's files, according to events.jsonl. */
bool causes_began(const char *folder, const char *run);
/* True if it has saved the latest checkpoint. */
bool causes_saved(const char *folder, const char *run);

/* Returns the run's progress: the last step of its metrics, or, for a server of islands, its last merge; that of its
 * latest checkpoint if there is neither; 0: none. */
int64_t causes_progress(const char *folder);

/* Memory between jobs. All zero at first. */
typedef struct causes {
    cause last;
    int same;      /* the same cause in a row */
    int fruitless; /* jobs in a row without progress */
    int unbegun;   /* jobs in a row in which no rank began */
    int64_t best;
} causes;

typedef struct causes_advice {
    const char *give_up; /* why a restart would not help; NULL: restart */
    double wait;         /* seconds before the next start */
} causes_advice;

/* `began`: a rank of the job has begun. Otherwise the folder's progress is not this job's. */
causes_advice causes_weigh(causes *k, const cause *why, bool began, int64_t progress);
