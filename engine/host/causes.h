/* Why did a job end, and is it worth starting again? Incidents are read from a run's folder; what to do about one is a function
 * of it and of those before.
 */
#ifndef PHALANX_ENGINE_HOST_CAUSES_H
#define PHALANX_ENGINE_HOST_CAUSES_H

#include "parallel/watch/incident.h"

typedef struct cause {
    bool known; /* some rank has said why; else `words` is all there is */
    incident_verdict verdict;
    int rank;     /* -1: not known */
    int64_t step; /* -1: not known */
    double time;  /* seconds since 1970; 0: not known */
    char host[INCIDENT_HOST];
    char words[INCIDENT_WORDS];
} cause;

/* Where the incidents of the next job begin: the end of those so far. */
int64_t causes_position(const char *folder);
/* Of the incidents from `position` on that end a job, the one that says most: a dead rank is often what another trouble looks like
 * from outside. Not known if there is none. */
cause causes_read(const char *folder, int64_t position);

/* How far the run has come: the last step of its metrics, or, of a server of islands, its last merge; that of its latest checkpoint if
 * there is neither; 0: none. */
int64_t causes_progress(const char *folder);

/* What is remembered between jobs. All zero at first. */
typedef struct causes {
    cause last;
    int same;      /* as often in a row */
    int fruitless; /* jobs in a row that did not come further than those before */
    int64_t best;
} causes;

typedef struct causes_advice {
    const char *give_up; /* why starting again is of no use; NULL: it is of use */
    double wait;         /* seconds before the next start */
} causes_advice;

causes_advice causes_weigh(causes *k, const cause *why, int64_t progress);

#endif
