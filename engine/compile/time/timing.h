/* How long does a step take? The programs of the ranks that differ are played on simulated queues.
 *
 * One rank of each stage is played; the other ranks of its groups do the same at the same time. A rank has one queue
 * that computes, and one for each of its communicators: along an axis, or to a neighbour in one direction.
 * Communication begins when all who take part have launched it, their communicators are done with what was launched
 * before, and their links (to the node, or to the network) are free: a link serves groups one after another, messages
 * likewise, and both share it evenly. That occupies nobody who computes, but on a GPU takes `taken` of the
 * multiprocessors from ops for as long as they run beside it; where the host moves messages, it takes the time of those
 * who wait.
 */
#pragma once

#include "engine/compile/time/profile.h"
#include "parallel/schedule/simulate.h"

enum { TIMING_CAUSES = 512, TIMING_TEXT = 64, TIMING_STAGES = 4096 };

/* A rank's step, op by op; made by timing_add. */
typedef struct timing_op timing_op;

typedef struct timing_rank {
    grid grid;
    timing_op *ops;
    int count, requests;
    int last_action; /* the last op of a micro-batch; -1: none */
    /* timing_run(): seconds */
    double compute;             /* sum of its ops; where ranks share a host's cores, what it waits for one, too */
    double cores;               /* of that, waiting for a core: when, nobody knows */
    double exposed[AXIS_COUNT]; /* waited for while transfers ran */
    double copies;              /* waited for while state was copied to host memory or from it */
    double idle;                /* waited for others, and at the step's end */
    double barrier;             /* of both: waited for sums over all ranks, the gradients' norm */
    double end;                 /* without waiting for a core; compute, exposed, copies and idle sum to the step */
} timing_rank;

/* What the longest chain of ops and transfers consists of. */
typedef struct timing_cause {
    char text[TIMING_TEXT]; /* "backward of stage 3", "tensor transfers of stage 0" */
    double seconds;
} timing_cause;

typedef struct timing {
    const profile *profile; /* borrowed */
    timing_rank *ranks;     /* by stage */
    int count;
    double seconds;             /* the step */
    double cores;               /* of that, all ranks wait for a core */
    double bubble;              /* mean of the ranks' idle shares */
    double exposed[AXIS_COUNT]; /* mean over the ranks */
    double copies, barrier;     /* likewise */
    timing_cause causes[TIMING_CAUSES];
    int cause_count;
} timing;

void timing_open(timing *out, const profile *p, int stages);
/* The program of one rank of stage g->at[GRID_PIPELINE], whose asynchronous ops have so many requests. Nothing of it is
 * kept. */
void timing_add(timing *p, const grid *g, const program *list, int requests);
/* After the ranks of all stages are there. Fails where they do not meet. */
status timing_run(timing *p);
/* What op `index` of a stage's program did, in seconds since the step began: begin to end the rank was busy with it, or
 * waited; or, of a launch, its transfer travelled (of several launched as one, the last; else 0 to 0). `free`: then the
 * rank went on. Of a wait the first `idle` seconds are those before the transfer began; then `behind` seconds were for
 * transfers along the axis `before`, behind which it stood; the rest for its own. */
typedef struct timing_span {
    double begin, end, free, idle, behind;
    int before;
} timing_span;
timing_span timing_op_at(const timing *p, int stage, int index);
/* Begin and end of the actions of `s` as they were played, into `out` as simulate_run makes it (and frees it). */
status timing_spans(simulation *out, const timing *p, const schedule *s);
/* After timing_run: seconds between which a stage's ops of this phase ended, their waits included. */
double timing_seconds(const timing *p, int stage, phase of);
void timing_free(timing *p);
