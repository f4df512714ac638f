/* Named schedules: pure functions of (kind, stages, chunks, micro-batches). */
#pragma once

#include "parallel/schedule/schedule.h"
#include "parallel/schedule/simulate.h"

/* Every schedule runs the micro-batches of one chunk forward in ascending order, and backward in ascending order, so
 * that each parameter's gradient is accumulated in the same order under all schedules.
 *
 * With several chunks that are not folded, micro-batches travel in rounds: a round passes through all chunks before the
 * next one starts. There are max(1, floor(microbatches / stages)) rounds, of sizes that differ by at most one, the
 * larger first: `stages` each where that divides, between `stages` and 2 stages - 1 otherwise, and all micro-batches at
 * once if they are fewer than the stages. A round shorter than the number of stages would stall at every change of
 * chunk; a longer one costs only activations, (chunks - 1) for each micro-batch above `stages`.
 *
 * Some kinds need a number of chunks (schedule_kind_chunks). `kind`: not SCHEDULE_AUTO. */
status schedule_make(schedule *out, schedule_kind kind, int stages, int chunks, int microbatches);

/* Two orders to weave the gradients of weights into (weave()). `out` has room for them.
 *
 * warmup[stage] forwards first on each stage, then an input gradient and a forward in turns. */
void schedule_make_warmed(schedule *out, const int *warmup);

/* Folded: one micro-batch's four actions on every stage, repeated each SCHEDULE_MAKE_PERIOD units of time. */
enum { SCHEDULE_MAKE_PERIOD = 6 }; /* two each of F, I and W, a unit long */
typedef struct schedule_block {
    int step[4]; /* time from stage to stage: the first chunk's forward, the second's, and their input gradients */
    int turn[3]; /* time from the end of one such path to the beginning of the next */
} schedule_block;
/* Returns false if two actions of a stage would be at the same time. */
bool schedule_make_repeated(schedule *out, schedule_block block);

/* Weaves the gradients of weights into an order of forwards and gradients of inputs.
 *
 * Only memory waits for a weight's gradient, so it goes where its stage would be idle, or where its activations are in
 * the way of the next forward. It plays event by event, with the given costs, messages and memory.
 */

typedef struct weave_terms {
    const simulate_cost *costs; /* [stages * chunks], by global chunk */
    double hop;                 /* time of a message to another stage */
    const double *holds;        /* [stages * chunks] by global chunk: memory that a forward takes */
    const double *defers;       /* the part of it that stays from the input's gradient to the weights' */
    const double *limit;        /* [stages] memory limit */
    double
        patience; /* a stage rather waits for its next action than begins a weight's gradient that delays it by more */
} weave_terms;

/* `order`: forwards and input gradients of every stage (their micro-batches are taken to ascend). `out` has room for 3
 * actions for each chunk and micro-batch; its lists are written anew. Returns false if the order comes to a halt, for
 * lack of memory or by itself. */
bool weave(schedule *out, double *length, double *span, const schedule *order, const weave_terms *terms);

/* Inserts the work of a vocabulary that is divided over all stages into a schedule of layers.
 *
 * Every stage has a part of the embedding and of the head of each micro-batch (exchange.h). Played event by event with
 * the given costs: actions that other stages wait for come first; gradients of the vocabulary's weights come where a
 * stage would be idle. The head answers later than it would on the last stage alone, so a stage that would wait for it
 * goes ahead with the next forwards of its list. It tries several numbers of them and takes a larger one only if the
 * schedule gets shorter: they cost activations.
 */

/* `of` passes schedule_check and has two stages at least. `costs`: of all chunks of the result, by global number, the
 * chunks of layers as in `of`; forwards and backwards take time. `hop`: of a message, and of a meeting. `out` passes
 * schedule_check. */
void schedule_share(schedule *out, const schedule *of, const simulate_cost *costs, double hop);

/* A schedule found for given costs within given memory.
 *
 * Candidates are the named schedules, their orders with the weights' gradients woven in anew (weave()), 1F1B with other
 * numbers of forwards first, repeated blocks, and the neighbours of the best of these: actions moved by a few places.
 * So the result is never worse than the best named schedule that fits. The same result for the same terms, after a
 * bounded number of tries: no clock decides.
 */

/* Costs and memory are by global chunk: [stages * chunks], the same however chunks are mapped to stages. */
typedef struct schedule_search_terms {
    int stages, chunks, microbatches;
    const simulate_cost *costs;
    double hop;
    const double *holds;    /* memory that a forward takes */
    const double *defers;   /* the part of it that stays from the input's gradient to the weights' */
    const double *limit[2]; /* [stages] memory limit: round and round, and folded; NULL: mapping not allowed */
    /* true: minimises the time from the first action of all to the last; else the longest stage's span, because a stage
     * that is done goes on to the next step while others still work */
    bool barrier;
} schedule_search_terms;

/* Fails with a usage error if no schedule fits. `out->kind` is the name's if a named one is best. */
status schedule_search(schedule *out, const schedule_search_terms *terms);

/* Gives the most memory that each stage, [stages], holds under `s` in these terms. */
void schedule_search_peaks(double *peaks, const schedule *s, const double *holds, const double *defers);
