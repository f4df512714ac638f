#include "engine/run/trace_marks.h"

#include <stdlib.h>

#include "engine/compile/model/tokens.h"
#include "engine/compile/step/alive.h"
#include "memory/log.h"

static bool is_backward(const op *o)
{
    return o->microbatch >= 0 && (o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT);
}

/* The last op of a micro-batch's backward pass, of all chunks, ends its tokens. */
static void count_tokens(int64_t *tokens, const program *list, const compile_options *o)
{
    int64_t each = tokens_count(o).rank, done = 0;
    int most = 0;
    for (int i = 0; i < list->count; i++)
        most = list->ops[i]->microbatch > most ? list->ops[i]->microbatch : most;
    int *last = must_calloc((unsigned long)most + 1, sizeof *last);
    for (int i = 0; i < list->count; i++)
        if (is_backward(list->ops[i]))
            last[list->ops[i]->microbatch] = i;
    for (int i = 0; i < list->count; i++) {
        done += is_backward(list->ops[i]) && last[list->ops[i]->microbatch] == i ? each : 0;
        tokens[i] = done;
    }
    free(last);
}

static bool one_way(const op *a, const op *b)
{
    return op_has(a, OP_MESSAGE) && a->at.peer == b->at.peer && a->at.upstream == b->at.upstream &&
           op_has(a, OP_LEAVES) == op_has(b, OP_LEAVES);
}

/* A rank has few peers: each message goes back to the one before on its way. */
static void number_messages(int *message, const program *list)
{
    int ways[64], count = 0;
    for (int i = 0; i < list->count; i++) {
        const op *at = list->ops[i];
        message[i] = -1;
        if (!op_has(at, OP_MESSAGE))
            continue;
        int w = 0;
        while (w < count && !one_way(list->ops[ways[w]], at))
            w++;
        MUST(w < 64, "a rank with more than 64 kinds of messages");
        message[i] = w < count ? message[ways[w]] + 1 : 0;
        count += w == count;
        ways[w] = i;
    }
}

void trace_marks_make(trace_marks *out, const compiled_program *p, const compile_options *o)
{
    unsigned long ops = (unsigned long)p->list.count + 1;
    *out = (trace_marks){.kept = must_alloc(ops * sizeof *out->kept),
                         .rest = must_alloc(ops * sizeof *out->rest),
                         .tokens = must_alloc(ops * sizeof *out->tokens),
                         .message = must_alloc(ops * sizeof *out->message)};
    alive_find(out->kept, out->rest, p);
    count_tokens(out->tokens, &p->list, o);
    number_messages(out->message, &p->list);
}

void trace_marks_free(trace_marks *m)
{
    free(m->kept);
    free(m->rest);
    free(m->tokens);
    free(m->message);
    *m = (trace_marks){0};
}

/* FNV-1a over the five. */
int64_t trace_marks_flow(int64_t step, int from, int to, bool upstream, int number)
{
    const uint64_t parts[] = {(uint64_t)step, (uint64_t)from, (uint64_t)to, upstream, (uint64_t)number};
    uint64_t hash = 14695981039346656037u;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int byte = 0; byte < 8; byte++)
            hash = (hash ^ (parts[i] >> 8 * byte & 255)) * 1099511628211u;
    return (int64_t)((hash ^ hash >> 52) & ((1ULL << 52) - 1));
}
