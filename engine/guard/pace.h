/* Pace: how fast this rank computes what other ranks compute, too, and so which rank holds up the others.
 *
 * Ranks run equal programs, or parts of one that have equal ops in them: a layer's product has the same shape on every
 * stage. Of the PACE_CLASSES kinds of ops (kind, shapes, types) that most work is in, a few are timed in each step. Not
 * among them is attention whose work the batch decides (kernels/attention_work.h): a rank that is dealt more of it is
 * healthy. On the CPU ops are timed by the processor time of the thread that plays the program: it sees a core that is
 * throttled, shared with a busy sibling, or slow at reaching its memory, and does not see time in which the process
 * does not run at all (another process has the core). Communication is counted apart, in seconds spent waiting. On a
 * GPU they are timed by events before and after the op, also within a graph: these see a GPU whose clock is low or
 * whose memory is slow; what it waits for is not counted there (run.trace shows it).
 *
 * A rank's ratio is its time over the median of the ranks that have the same ops; what counts is the median of its
 * ratios over PACE_WINDOW steps. One rank judges what all have sent. Nothing is allocated after opening.
 */
#pragma once

#include "engine/run/executor.h"

enum { PACE_CLASSES = 8, PACE_WINDOW = 20 };

/* Seconds: of shorter ops the clock itself (0.3 us a reading) and the caches' state are too large a part. */
#define PACE_SHORTEST 50e-6

/* What a rank says of its last step: 0 for what it has not timed. */
typedef struct pace_share {
    float seconds[PACE_CLASSES]; /* of one op, on average */
    float waited;                /* for communication, by the wall's clock */
} pace_share;

typedef struct pace pace;

/* Collective. From now on `e` is observed. */
pace *pace_open(const compiled *c, executor *e, comm *world);
void pace_close(pace *p);
/* Of the steps since it was last asked. */
pace_share pace_take(pace *p);

/* The judge. */
typedef struct pace_judge pace_judge;
pace_judge *pace_judge_open(int ranks);
void pace_judge_close(pace_judge *j);
void pace_judge_add(pace_judge *j, const pace_share *shares, int64_t stride); /* [ranks], `stride` bytes apart */
/* A rank's ratio over the window; 0 as long as that is not full, or where it has nothing in common with others. */
double pace_ratio(const pace_judge *j, int rank);
double pace_waited(const pace_judge *j); /* seconds of the last step, the mean over the ranks */
/* A rank that has become slow by `limit` (1.1: 10% over the median) since the last call, or recovered (*recovered):
 * each change is told once. -1: none. */
int pace_change(pace_judge *j, double limit, bool *recovered);
