/* Predicts the time of a step: plays the programs of the ranks that differ on simulated queues.
 *
 * One rank of each stage is played; the other ranks of its groups do the same at the same time. A rank has one queue
 * that computes, and one for each of its communicators: along an axis, or to a neighbour in one direction.
 * Communication begins when all participants have launched it, their communicators have finished earlier launches, and
 * their links (to the node, or to the network) are free: a link serves groups one after another, messages too, and both
 * share it evenly. Computing ranks are not blocked, but on a GPU communication takes `taken` of the multiprocessors
 * from ops that run beside it; where the host moves messages, it takes the time of the ranks that wait. */
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
    double compute;             /* sum of its ops; with shared host cores, includes waiting for one */
    double cores;               /* part of compute: waiting for a core, at no particular point */
    double exposed[AXIS_COUNT]; /* waited for while transfers ran */
    double copies;              /* waited for while state was copied to host memory or from it */
    double idle;                /* waited for others, and at the step's end */
    double barrier;             /* part of exposed and idle: waited for sums over all ranks, the gradients' norm */
    double end;                 /* end, without waits for a core; compute, exposed, copies and idle sum to the step */
} timing_rank;

/* A cause of time on the longest chain of ops and transfers. */
typedef struct timing_cause {
    char text[TIMING_TEXT]; /* "backward of stage 3", "tensor transfers of stage 0" */
    double seconds;
} timing_cause;

typedef struct timing {
    const profile *profile; /* borrowed */
    timing_rank *ranks;     /* [stage] */
    int count;
    double seconds;             /* the step */
    double cores;               /* part of the step in which all ranks wait for a core */
    double bubble;              /* mean of the ranks' idle shares */
    double exposed[AXIS_COUNT]; /* mean over the ranks */
    double copies, barrier;     /* likewise */
    timing_cause causes[TIMING_CAUSES];
    int cause_count;
} timing;

void timing_open(timing *out, const profile *p, int stages);
/* Adds the program of one rank of stage g->at[GRID_PIPELINE], with `requests` asynchronous ops. Keeps no pointer into
 * it. */
void timing_add(timing *p, const grid *g, const program *list, int requests);
/* Plays the step, once every stage's rank was added. Fails if the ranks' collectives do not match. */
status timing_run(timing *p);
/* Span of op `index` of a stage's program, in seconds since the step began. From begin to end the rank was busy with
 * it, or waited; a launch's transfer travelled (several launched as one: at the last; else 0 to 0). `free`: the rank
 * went on. A wait's first `idle` seconds precede its transfer; the next `behind` seconds were spent queued for
 * transfers along the axis `before`; the rest are its own. */
typedef struct timing_span {
    double begin, end, free, idle, behind;
    int before;
} timing_span;
timing_span timing_op_at(const timing *p, int stage, int index);
/* Begin and end of the actions of `s` as they were played, into `out` as simulate_run makes it (and frees it). */
status timing_spans(simulation *out, const timing *p, const schedule *s);
/* Seconds between the ends of a stage's ops of this phase, waits included; call timing_run first. */
double timing_seconds(const timing *p, int stage, phase of);
void timing_free(timing *p);
