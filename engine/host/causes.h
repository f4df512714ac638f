/* Why did a job end, and is it worth starting again? Incidents are read from a run's folder; what to do about one is a
 * function of it and of those before.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "parallel/watch/incident.h"

typedef struct cause {
    bool known; /* some rank has said why; else `words` is all there is */
    incident_verdict verdict;
    int rank;     /* -1: not known */
    int64_t step; /* -1: not known */
    char host[INCIDENT_HOST];
    char words[INCIDENT_WORDS];
} cause;

/* Where the incidents of the next job begin: the end of those so far. */
int64_t causes_position(const char *folder);
/* Of the incidents from `position` on with which the start `run` ends, the one that says most: a dead rank is often
 * what another trouble looks like from outside. Not known if there is none. Anybody may write to the folder: the
 * incidents of other starts say nothing of this one. `run` "": this start has no id yet, and any will do. */
cause causes_read(const char *folder, int64_t position, const char *run);

/* Has the start `run` opened the run's files, as events.jsonl knows? */
bool causes_began(const char *folder, const char *run);
/* Has it saved the checkpoint that is the latest? */
bool causes_saved(const char *folder, const char *run);

/* How far the run has come: the last step of its metrics, or, of a server of islands, its last merge; that of its
 * latest checkpoint if there is neither; 0: none. */
int64_t causes_progress(const char *folder);

/* What is remembered between jobs. All zero at first. */
typedef struct causes {
    cause last;
    int same;      /* as often in a row */
    int fruitless; /* jobs in a row that did not come further than those before */
    int unbegun;   /* and those of them in a row of which no rank has begun */
    int64_t best;
} causes;

typedef struct causes_advice {
    const char *give_up; /* why starting again is of no use; NULL: it is of use */
    double wait;         /* seconds before the next start */
} causes_advice;

/* `began`: a rank of the job has begun. If none has, the progress that the folder shows is not the job's. */
causes_advice causes_weigh(causes *k, const cause *why, bool began, int64_t progress);
