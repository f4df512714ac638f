#include "parallel/schedule/exchange.h"

#include "memory/log.h"

/* The role of a chunk. */
typedef enum role { FIRST_LAYERS, LAST_LAYERS, HEAD, EMBEDDING } role;

typedef struct side {
    role of;
    bool forward;
} side;

static const struct {
    const char *name;
    side makes, takes; /* a meeting's */
} kinds[EXCHANGES] = {
    [EXCHANGE_ACTIVATION] = {.name = "activation"},
    [EXCHANGE_COTANGENT] = {.name = "cotangent"},
    [EXCHANGE_EMBEDDING] = {"embedding", {EMBEDDING, true}, {FIRST_LAYERS, true}},
    [EXCHANGE_HIDDEN] = {"hidden state", {LAST_LAYERS, true}, {HEAD, true}},
    [EXCHANGE_STATISTICS] = {"statistics", {HEAD, true}, {HEAD, false}},
    [EXCHANGE_HIDDEN_COTANGENT] = {"hidden state's cotangent", {HEAD, false}, {LAST_LAYERS, false}},
    [EXCHANGE_EMBEDDING_COTANGENT] = {"embedding's cotangent", {FIRST_LAYERS, false}, {EMBEDDING, false}},
};

const char *exchange_name(int kind)
{
    return kind >= 0 && kind < EXCHANGES ? kinds[kind].name : "unknown exchange";
}

static bool is_role(const schedule *s, role r, int chunk, int global)
{
    switch (r) {
    case FIRST_LAYERS:
        return global == 0;
    case LAST_LAYERS:
        return global == schedule_layer_chunks(s) - 1;
    case HEAD:
        return chunk == s->chunks + SCHEDULE_HEAD;
    case EMBEDDING:
        return chunk == s->chunks + SCHEDULE_EMBEDDING;
    default:
        return false;
    }
}

/* The meeting that the action makes a part of, or else takes; -1: none. */
static int meeting_of(const schedule *s, int stage, action a, bool makes)
{
    int global = schedule_global_chunk(s, stage, a.chunk);
    for (int k = EXCHANGE_EMBEDDING; s->shared && k < EXCHANGES; k++) {
        side x = makes ? kinds[k].makes : kinds[k].takes;
        if (x.forward == (a.kind == ACTION_FORWARD) && is_role(s, x.of, a.chunk, global))
            return k;
    }
    return -1;
}

static int exchange_of(const schedule *s, int stage, action a, bool makes)
{
    if (a.kind == ACTION_BACKWARD_WEIGHT)
        return -1;
    int meeting = meeting_of(s, stage, a, makes);
    if (meeting >= 0 || a.chunk >= s->chunks)
        return meeting;
    bool forward = a.kind == ACTION_FORWARD;
    int other = schedule_global_chunk(s, stage, a.chunk) + (forward == makes ? 1 : -1);
    if (other < 0 || other >= schedule_layer_chunks(s))
        return -1;
    return forward ? EXCHANGE_ACTIVATION : EXCHANGE_COTANGENT;
}

int exchange_taken(const schedule *s, int stage, action a)
{
    return exchange_of(s, stage, a, false);
}

int exchange_made(const schedule *s, int stage, action a)
{
    return exchange_of(s, stage, a, true);
}

/* Returns the first global chunk with a role, and counts them. */
static int chunks_of(int *count, const schedule *s, role r)
{
    *count = r == HEAD || r == EMBEDDING ? s->stages : 1;
    switch (r) {
    case LAST_LAYERS:
        return schedule_layer_chunks(s) - 1;
    case HEAD:
        return (s->chunks + SCHEDULE_HEAD) * s->stages;
    case EMBEDDING:
        return (s->chunks + SCHEDULE_EMBEDDING) * s->stages;
    default:
        return 0;
    }
}

exchange_makers exchange_makers_of(const schedule *s, int stage, action a)
{
    int kind = exchange_taken(s, stage, a), g = schedule_global_chunk(s, stage, a.chunk);
    exchange_makers m = {0};
    if (kind == EXCHANGE_ACTIVATION)
        return (exchange_makers){g - 1, 1, true};
    if (kind == EXCHANGE_COTANGENT)
        return (exchange_makers){g + 1, 1, false};
    if (kind >= 0) {
        m.first = chunks_of(&m.count, s, kinds[kind].makes.of);
        m.forward = kinds[kind].makes.forward;
    }
    return m;
}

static int chunk_here(bool *forward, const schedule *s, side x, int stage)
{
    int count, first = chunks_of(&count, s, x.of), last = schedule_layer_chunks(s) - 1;
    *forward = x.forward;
    if (x.of == HEAD || x.of == EMBEDDING)
        return schedule_global_chunk(s, stage, first / s->stages);
    if (schedule_stage_of(s, first) == stage)
        return first;
    return s->next_tokens && x.of == FIRST_LAYERS && schedule_stage_of(s, last) == stage ? last : -1;
}

int exchange_maker(bool *forward, const schedule *s, int kind, int stage)
{
    MUST(exchange_meets(kind), "%s is no meeting", exchange_name(kind));
    return chunk_here(forward, s, kinds[kind].makes, stage);
}

int exchange_taker(bool *forward, const schedule *s, int kind, int stage)
{
    MUST(exchange_meets(kind), "%s is no meeting", exchange_name(kind));
    return chunk_here(forward, s, kinds[kind].takes, stage);
}
