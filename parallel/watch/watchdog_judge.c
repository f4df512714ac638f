#include "parallel/watch/watchdog_judge.h"

#include <stddef.h>

static const struct {
    const char *words;
    incident_verdict verdict;
} causes[WATCHDOG_CAUSES] = {
    [CAUSE_GONE] = {"is gone: it was killed, crashed, or exited", INCIDENT_DEAD},
    [CAUSE_SILENT] = {"does not answer: it is frozen, or its machine is gone", INCIDENT_FROZEN},
    [CAUSE_STUCK] = {"is stuck: it makes no progress, and is not known to wait for another rank", INCIDENT_FROZEN},
    [CAUSE_CIRCLE] = {"is part of a circle of ranks that wait for one another", INCIDENT_FROZEN},
    [CAUSE_LEFT] = {"is waited for, but has left the job", INCIDENT_DEAD},
    [CAUSE_FAILED] = {"fails", INCIDENT_DEAD},
};

const char *watchdog_judge_words(watchdog_cause why, const watchdog_frame *culprit)
{
    if (why == CAUSE_FAILED && culprit->verdict == INCIDENT_LINK)
        return "has lost touch with another rank, and none says why";
    if (why == CAUSE_STUCK && culprit->storage)
        return "waits for files: the storage does not answer";
    if (why == CAUSE_STUCK && culprit->phase == DURING_START)
        return "waits to join the job: another rank, or the launcher, does not answer";
    return causes[why].words;
}

incident_verdict watchdog_judge_verdict(watchdog_cause why, const watchdog_frame *culprit)
{
    if (why == CAUSE_FAILED)
        return (incident_verdict)culprit->verdict;
    if (why == CAUSE_STUCK && culprit->storage)
        return INCIDENT_STORAGE;
    return causes[why].verdict;
}

double watchdog_judge_patience(const watchdog_report *reports, int ranks, const watchdog_limits *limits)
{
    double most = 0, working = 0;
    for (int i = 0; i < ranks; i++) {
        double limit = limits->phase[reports[i].last.phase];
        if (reports[i].left)
            continue;
        most = limit > most ? limit : most;
        if (reports[i].last.waiting_for < 0 && limit > working)
            working = limit;
    }
    return working > 0 ? working : most;
}

/* From a rank without progress follow who waits for whom: to a rank that waits for nobody, or into a circle. */
static int find_culprit(const watchdog_report *reports, int ranks, int from, double time, double beat,
                        watchdog_cause *why)
{
    for (int i = 0; i < ranks; i++)
        if (!reports[i].left && time - reports[i].heard > 4 * beat) {
            *why = CAUSE_SILENT;
            return i;
        }
    int at = from;
    for (int steps = 0; steps <= ranks; steps++) {
        int next = reports[at].last.waiting_for;
        if (next < 0 || next >= ranks) {
            *why = CAUSE_STUCK;
            return at;
        }
        at = next;
        if (reports[at].left) {
            *why = CAUSE_LEFT;
            return at;
        }
    }
    *why = CAUSE_CIRCLE;
    return at;
}

/* Of the ranks that have stopped, beats being that coarse: one that waits for files, else the one that has come least
 * far. On devices nobody knows who waits for whom, but ranks with the same program stop one after the other. */
static int least_advanced(const watchdog_report *reports, int ranks, double time, double limit, double beat)
{
    int at = -1;
    for (int i = 0; i < ranks; i++) {
        const watchdog_report *r = &reports[i];
        if (r->left || time - r->moved <= limit - 2 * beat)
            continue;
        const watchdog_frame *a = &r->last, *b = at < 0 ? NULL : &reports[at].last;
        bool files = a->storage && a->waiting_for < 0, theirs = b && b->storage && b->waiting_for < 0;
        if (!b || (files && !theirs) ||
            (files == theirs && (a->step < b->step || (a->step == b->step && a->moves < b->moves))))
            at = i;
    }
    return at;
}

bool watchdog_judge(int *culprit, watchdog_cause *why, watchdog_report *reports, int ranks, double time,
                    const watchdog_limits *limits, double beat)
{
    double patience = watchdog_judge_patience(reports, ranks, limits);
    for (int i = 0; i < ranks; i++) {
        watchdog_report *r = &reports[i];
        if (r->left)
            continue;
        if (time - r->heard > limits->silent) {
            *culprit = i;
            *why = CAUSE_SILENT;
            return true;
        }
        double limit = limits->phase[r->last.phase];
        if (limit < patience)
            r->moved = time;
        else if (time - r->moved > limit) {
            *culprit = find_culprit(reports, ranks, least_advanced(reports, ranks, time, limit, beat), time, beat, why);
            return true;
        }
    }
    return false;
}
