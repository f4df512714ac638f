/* One loop makes every schedule: warm up with some forwards, alternate forward and backward, drain. The kinds differ in
 * how many forwards come first and in how many weight gradients may wait: one row of the table each. */
#include "parallel/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

enum { CHUNKS_MOST = 1024, ACTIONS_MOST = 1 << 28 };

typedef struct shape {
    int stages, chunks, microbatches;
    int rounds; /* of micro-batches through all chunks */
} shape;

/* Every forward before the first backward. */
static int warmup_all(const shape *s, int stage)
{
    (void)stage;
    return s->chunks * s->microbatches;
}

/* One chunk: the first backward comes when the micro-batch has gone down to the last stage and back.
 * Several: the forwards of a round's chunks but the last must all have begun before its first backward, and the path down
 * and back is counted twice because the stages below are themselves busy with alternation (2104.04473, section 2.2). */
static int warmup_alternating(const shape *s, int stage)
{
    int below = s->stages - 1 - stage;
    int longest = (s->microbatches + s->rounds - 1) / s->rounds;
    return s->chunks == 1 ? below : (s->chunks - 1) * longest + 2 * below;
}

static const struct {
    const char *name;
    int (*warmup)(const shape *s, int stage); /* forwards before the first alternation */
    bool one_round;                           /* all micro-batches through a chunk before the next chunk */
    bool split;                               /* backward in two actions; stage i lets i weight gradients wait */
} kinds[SCHEDULE_KINDS] = {
    [SCHEDULE_GPIPE] = {"gpipe", warmup_all, true, false},
    [SCHEDULE_1F1B] = {"1f1b", warmup_alternating, false, false},
    [SCHEDULE_INTERLEAVED] = {"interleaved", warmup_alternating, false, false},
    [SCHEDULE_ZB_H1] = {"zb-h1", warmup_alternating, false, true},
};

static const char *const action_names[ACTION_KINDS] = {
    [ACTION_FORWARD] = "forward",
    [ACTION_BACKWARD] = "backward",
    [ACTION_BACKWARD_INPUT] = "backward-input",
    [ACTION_BACKWARD_WEIGHT] = "backward-weight",
};

const char *schedule_name(schedule_kind kind)
{
    return kinds[kind].name;
}

static const char *action_name(int kind)
{
    return kind >= 0 && kind < ACTION_KINDS ? action_names[kind] : "unknown action";
}

const char *schedule_describe(char out[SCHEDULE_DESCRIPTION_BYTES], action a)
{
    snprintf(out, SCHEDULE_DESCRIPTION_BYTES, "%s of chunk %d, micro-batch %d", action_name(a.kind), a.chunk,
             a.microbatch);
    return out;
}

static shape shape_of(schedule_kind kind, int stages, int chunks, int microbatches)
{
    int rounds = kinds[kind].one_round || microbatches < stages ? 1 : microbatches / stages;
    return (shape){stages, chunks, microbatches, rounds};
}

/* First micro-batch of a round: ceil(round * microbatches / rounds). */
static int round_start(const shape *s, int round)
{
    return (int)(((long)round * s->microbatches + s->rounds - 1) / s->rounds);
}

/* The order in which a stage goes through its (chunk, micro-batch) pairs: round by round, within a round chunk by chunk
 * (ascending forward, descending backward), within a chunk micro-batch by micro-batch. */
static void fill_order(action *out, const shape *s, action_kind kind)
{
    for (int round = 0; round < s->rounds; round++)
        for (int c = 0; c < s->chunks; c++)
            for (int m = round_start(s, round); m < round_start(s, round + 1); m++) {
                int chunk = kind == ACTION_FORWARD ? c : s->chunks - 1 - c;
                *out++ = (action){(uint8_t)kind, (int16_t)chunk, m};
            }
}

static int least(int a, int b)
{
    return a < b ? a : b;
}

/* Returns the number of actions written. */
static int fill_stage(action *out, const action *forward, const action *backward, const shape *s, schedule_kind kind,
                      int stage)
{
    int total = s->chunks * s->microbatches, n = 0, weights = 0;
    int warmup = least(total, kinds[kind].warmup(s, stage));
    int deferred = kinds[kind].split ? stage : 0;
    for (int k = 0; k < warmup; k++)
        out[n++] = forward[k];
    for (int k = 0; k < total; k++) {
        if (warmup + k < total)
            out[n++] = forward[warmup + k];
        out[n++] = backward[k];
        /* weight gradients follow in the order of the input gradients, so ascending within a chunk */
        if (kinds[kind].split && k + 1 - weights > deferred) {
            out[n] = backward[weights++];
            out[n++].kind = ACTION_BACKWARD_WEIGHT;
        }
    }
    while (kinds[kind].split && weights < total) {
        out[n] = backward[weights++];
        out[n++].kind = ACTION_BACKWARD_WEIGHT;
    }
    return n;
}

status schedule_make(schedule *out, schedule_kind kind, int stages, int chunks, int microbatches)
{
    MUST((int)kind >= 0 && kind < SCHEDULE_KINDS, "schedule kind %d", (int)kind);
    if (stages < 1 || stages > INT16_MAX || chunks < 1 || chunks > CHUNKS_MOST || microbatches < 1)
        return status_fail(
            STATUS_USAGE,
            "a pipeline of %d stages, %d virtual stages and %d micro-batches cannot be scheduled: each must "
            "be at least 1 (at most %d stages, %d virtual stages)",
            stages, chunks, microbatches, INT16_MAX, CHUNKS_MOST);
    if ((double)stages * chunks * microbatches * 3 > ACTIONS_MOST)
        return status_fail(STATUS_USAGE,
                           "a pipeline of %d stages, %d virtual stages and %d micro-batches has too many actions",
                           stages, chunks, microbatches);
    if (kind == SCHEDULE_1F1B || kind == SCHEDULE_INTERLEAVED)
        kind = chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;

    shape s = shape_of(kind, stages, chunks, microbatches);
    int total = chunks * microbatches, actions = total * (kinds[kind].split ? 3 : 2);
    action *forward = must_alloc(sizeof *forward * total), *backward = must_alloc(sizeof *backward * total);
    fill_order(forward, &s, ACTION_FORWARD);
    fill_order(backward, &s, kinds[kind].split ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD);

    *out = (schedule){.stages = stages, .chunks = chunks, .microbatches = microbatches, .kind = kind};
    out->actions = must_calloc(stages, sizeof *out->actions);
    out->counts = must_calloc(stages, sizeof *out->counts);
    for (int stage = 0; stage < stages; stage++) {
        out->actions[stage] = must_alloc(sizeof **out->actions * actions);
        out->counts[stage] = fill_stage(out->actions[stage], forward, backward, &s, kind, stage);
        MUST(out->counts[stage] == actions, "%d actions, not %d", out->counts[stage], actions);
    }
    free(forward);
    free(backward);
    return STATUS_OK;
}

void schedule_free(schedule *s)
{
    if (!s)
        return;
    for (int stage = 0; s->actions && stage < s->stages; stage++)
        free(s->actions[stage]);
    free(s->actions);
    free(s->counts);
    *s = (schedule){0};
}

int schedule_in_flight(const schedule *s, int stage)
{
    shape all = shape_of(s->kind, s->stages, s->chunks, s->microbatches);
    return least(s->chunks * s->microbatches, kinds[s->kind].warmup(&all, stage) + 1);
}
