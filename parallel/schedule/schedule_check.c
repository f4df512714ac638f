/* Checks schedules, as schedule.h promises. */
#include "parallel/schedule/schedule.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/exchange.h"

/* The index of each action of one (global chunk, micro-batch) in its stage's list; -1: none. */
typedef struct positions {
    int at[ACTION_KINDS];
} positions;

typedef struct checker {
    const schedule *s;
    positions *where; /* [all chunks][microbatches] */
    int *done;        /* [stages]: actions replayed */
} checker;

static positions *find(const checker *c, int global_chunk, int microbatch)
{
    return &c->where[(long)global_chunk * c->s->microbatches + microbatch];
}

static status fail_at(const schedule *s, int stage, int position, const char *what, int number)
{
    char text[SCHEDULE_DESCRIPTION_BYTES];
    const char *name = schedule_describe(text, s->actions[stage][position]);
    return number < 0
               ? status_fail(STATUS_FAILED, "stage %d, position %d, %s: %s", stage, position, name, what)
               : status_fail(STATUS_FAILED, "stage %d, position %d, %s: %s %d", stage, position, name, what, number);
}

/* Checks that every action is within range and none is there twice; fills `where`. */
static status index_actions(checker *c)
{
    const schedule *s = c->s;
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            if (a.kind >= ACTION_KINDS || a.chunk < 0 || a.chunk >= s->chunks + s->shared || a.microbatch < 0 ||
                a.microbatch >= s->microbatches)
                return fail_at(s, stage, i, "no such action in this schedule", -1);
            int *at = &find(c, schedule_global_chunk(s, stage, a.chunk), a.microbatch)->at[a.kind];
            if (*at >= 0)
                return fail_at(s, stage, i, "already done at position", *at);
            *at = i;
        }
    return STATUS_OK;
}

static status fail_missing(const schedule *s, int global_chunk, int microbatch, int kind)
{
    char text[SCHEDULE_DESCRIPTION_BYTES];
    action a = {(uint8_t)kind, (int16_t)chunk_map_chunk(schedule_map(s), global_chunk), microbatch};
    return status_fail(STATUS_FAILED, "stage %d: %s is missing", schedule_stage_of(s, global_chunk),
                       schedule_describe(text, a));
}

static status check_complete(const checker *c)
{
    const schedule *s = c->s;
    for (int g = 0; g < schedule_all_chunks(s); g++)
        for (int m = 0; m < s->microbatches; m++) {
            const int *at = find(c, g, m)->at;
            bool whole = at[ACTION_BACKWARD] >= 0;
            bool input = at[ACTION_BACKWARD_INPUT] >= 0, weight = at[ACTION_BACKWARD_WEIGHT] >= 0;
            if (at[ACTION_FORWARD] < 0)
                return fail_missing(s, g, m, ACTION_FORWARD);
            if (whole && (input || weight))
                return fail_at(s, schedule_stage_of(s, g), at[input ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD_WEIGHT],
                               "its gradient is already computed by the backward at position", at[ACTION_BACKWARD]);
            if (!whole && !input)
                return fail_missing(s, g, m, weight ? ACTION_BACKWARD_INPUT : ACTION_BACKWARD);
            if (!whole && !weight)
                return fail_missing(s, g, m, ACTION_BACKWARD_WEIGHT);
        }
    return STATUS_OK;
}

static status check_ascending(const schedule *s)
{
    /* forward; the cotangent's order (whole or input's part); the accumulation's order (whole or weights' part) */
    enum { ORDERS = 3 };
    static const unsigned char of_kind[ORDERS] = {
        1u << ACTION_FORWARD,
        1u << ACTION_BACKWARD | 1u << ACTION_BACKWARD_INPUT,
        1u << ACTION_BACKWARD | 1u << ACTION_BACKWARD_WEIGHT,
    };
    int chunks = s->chunks + s->shared;
    AUTO_FREE int *last = must_alloc(sizeof *last * chunks * ORDERS);
    for (int stage = 0; stage < s->stages; stage++) {
        memset(last, 0xff, sizeof *last * chunks * ORDERS); /* -1 */
        for (int i = 0; i < s->counts[stage]; i++) {
            action a = s->actions[stage][i];
            for (int order = 0; order < ORDERS; order++) {
                int *before = &last[a.chunk * ORDERS + order];
                if (!(of_kind[order] >> a.kind & 1))
                    continue;
                if (a.microbatch < *before)
                    return fail_at(s, stage, i, "out of order, it comes after micro-batch", *before);
                *before = a.microbatch;
            }
        }
    }
    return STATUS_OK;
}

/* True if any action of `kinds` of this chunk and micro-batch has been replayed. */
static bool is_done(const checker *c, int global_chunk, int microbatch, unsigned kinds)
{
    const positions *p = find(c, global_chunk, microbatch);
    for (int k = 0; k < ACTION_KINDS; k++)
        if (kinds >> k & 1 && p->at[k] >= 0 && p->at[k] < c->done[schedule_stage_of(c->s, global_chunk)])
            return true;
    return false;
}

enum { COTANGENT = 1u << ACTION_BACKWARD | 1u << ACTION_BACKWARD_INPUT };

/* Messages of a missing exchange, by kind. */
static const char *const missing[EXCHANGES] = {
    [EXCHANGE_ACTIVATION] = "the previous chunk's forward never comes",
    [EXCHANGE_COTANGENT] = "the next chunk's backward never comes",
    [EXCHANGE_EMBEDDING] = "a stage's part of the embedding never comes",
    [EXCHANGE_HIDDEN] = "the last chunk's forward never comes",
    [EXCHANGE_STATISTICS] = "a stage's part of the head never comes",
    [EXCHANGE_HIDDEN_COTANGENT] = "a stage's part of the head's backward never comes",
    [EXCHANGE_EMBEDDING_COTANGENT] = "the first chunk's backward never comes",
};

/* Says why the stage's next action must wait; NULL if it need not. */
static const char *waits_for(const checker *c, int stage)
{
    const schedule *s = c->s;
    action a = s->actions[stage][c->done[stage]];
    int g = schedule_global_chunk(s, stage, a.chunk);
    if (a.kind == ACTION_BACKWARD_WEIGHT)
        return is_done(c, g, a.microbatch, 1u << ACTION_BACKWARD_INPUT) ? NULL : "its backward-input has not been done";
    if (a.kind != ACTION_FORWARD && !is_done(c, g, a.microbatch, 1u << ACTION_FORWARD))
        return "its forward has not been done";
    exchange_makers m = exchange_makers_of(s, stage, a);
    for (int i = 0; i < m.count; i++)
        if (!is_done(c, m.first + i, a.microbatch, m.forward ? 1u << ACTION_FORWARD : COTANGENT))
            return missing[exchange_taken(s, stage, a)];
    return NULL;
}

static status check_progress(checker *c)
{
    const schedule *s = c->s;
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < s->stages; stage++)
            while (c->done[stage] < s->counts[stage] && !waits_for(c, stage)) {
                c->done[stage]++;
                moved = true;
            }
    }
    for (int stage = 0; stage < s->stages; stage++)
        if (c->done[stage] < s->counts[stage])
            return fail_at(s, stage, c->done[stage], waits_for(c, stage), -1);
    return STATUS_OK;
}

status schedule_check(const schedule *s)
{
    unsigned long pairs = (unsigned long)schedule_all_chunks(s) * s->microbatches;
    checker c = {.s = s};
    c.where = must_alloc(sizeof *c.where * pairs);
    c.done = must_calloc(s->stages, sizeof *c.done);
    memset(c.where, 0xff, sizeof *c.where * pairs); /* -1 */
    status result = index_actions(&c);
    if (result == STATUS_OK)
        result = check_complete(&c);
    if (result == STATUS_OK)
        result = check_ascending(s);
    if (result == STATUS_OK)
        result = check_progress(&c);
    free(c.where);
    free(c.done);
    return result;
}
