/* Names and memory of every schedule. */
#include "parallel/schedule/schedule.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

const char *const schedule_names[] = {
    [SCHEDULE_GPIPE] = "gpipe", [SCHEDULE_1F1B] = "1f1b",     [SCHEDULE_INTERLEAVED] = "interleaved",
    [SCHEDULE_ZB_H1] = "zb-h1", [SCHEDULE_ZB_H2] = "zb-h2",   [SCHEDULE_ZB_V] = "zb-v",
    [SCHEDULE_V_MIN] = "v-min", [SCHEDULE_V_HALF] = "v-half", [SCHEDULE_AUTO] = "auto",
    [SCHEDULE_AUTO + 1] = NULL,
};

static const struct {
    bool splits, folds;
    int chunks; /* chunks that it needs; 0: any number */
} traits[SCHEDULE_KINDS] = {
    [SCHEDULE_ZB_H1] = {.splits = true},
    [SCHEDULE_ZB_H2] = {.splits = true, .chunks = 1},
    [SCHEDULE_ZB_V] = {.splits = true, .folds = true, .chunks = 2},
    [SCHEDULE_V_HALF] = {.splits = true, .folds = true, .chunks = 2},
    [SCHEDULE_V_MIN] = {.splits = true, .folds = true, .chunks = 2},
};

static const char *const action_names[ACTION_KINDS] = {
    [ACTION_FORWARD] = "forward",
    [ACTION_BACKWARD] = "backward",
    [ACTION_BACKWARD_INPUT] = "backward-input",
    [ACTION_BACKWARD_WEIGHT] = "backward-weight",
};

const char *schedule_name(schedule_kind kind)
{
    return schedule_names[kind];
}

bool schedule_kind_splits(schedule_kind kind)
{
    return kind < SCHEDULE_KINDS && traits[kind].splits;
}

schedule_kind schedule_kind_of(schedule_kind kind, int chunks)
{
    if (kind == SCHEDULE_1F1B || kind == SCHEDULE_INTERLEAVED)
        return chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B;
    return kind;
}

schedule_kind schedule_kind_over(schedule_kind kind, int stages)
{
    return stages == 1 ? SCHEDULE_1F1B : kind;
}

bool schedule_kind_folds(schedule_kind kind)
{
    return kind < SCHEDULE_KINDS && traits[kind].folds;
}

int schedule_kind_chunks(schedule_kind kind)
{
    return kind < SCHEDULE_KINDS ? traits[kind].chunks : 0;
}

bool schedule_splits(const schedule *s)
{
    for (int i = 0; i < s->counts[0]; i++)
        if (s->actions[0][i].kind != ACTION_FORWARD && s->actions[0][i].chunk < s->chunks)
            return s->actions[0][i].kind != ACTION_BACKWARD;
    return false;
}

const char *schedule_describe(char out[SCHEDULE_DESCRIPTION_BYTES], action a)
{
    snprintf(out, SCHEDULE_DESCRIPTION_BYTES, "%s of chunk %d, micro-batch %d",
             a.kind < ACTION_KINDS ? action_names[a.kind] : "unknown action", a.chunk, a.microbatch);
    return out;
}

void schedule_alloc(schedule *out, schedule_kind kind, chunk_map map, int microbatches, int actions)
{
    *out = (schedule){
        .stages = map.stages, .chunks = map.chunks, .microbatches = microbatches, .folded = map.folded, .kind = kind};
    out->actions = must_calloc((unsigned long)map.stages, sizeof *out->actions);
    out->counts = must_calloc((unsigned long)map.stages, sizeof *out->counts);
    for (int stage = 0; stage < map.stages; stage++)
        out->actions[stage] = must_alloc(sizeof **out->actions * (unsigned long)actions);
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
