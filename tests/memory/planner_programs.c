/* The op sequence is a pre-norm block with gated MLP and flash attention in bf16; a tensor is alive from the op that
 * makes it to the last op that reads it. Under ZB-H1 the backward pass keeps each matrix's input and output gradient
 * until the weight-gradient action; under recompute it makes again what was dropped.
 */
#include "tests/memory/planner_programs.h"

#include <stdio.h>
#include <stdlib.h>

#include "memory/log.h"

typedef int32_t handle; /* index of a block */

/* What one layer's forward pass leaves for its backward pass; -1: dropped or absent. */
typedef struct saved {
    handle input, norm1, qkv, attended, lse, middle, norm2, gate_up, active, rstd1, rstd2;
} saved;

/* What the backward pass leaves for the weight gradients of a layer. */
typedef struct owed {
    handle d_output, d_gate_up, d_middle, d_qkv;
} owed;

typedef struct maker {
    program_shape shape;
    planner_block *blocks;
    int64_t count, capacity;
    int32_t now;  /* current op */
    saved *kept;  /* [micro-batch][chunk][layer] */
    owed *debts;  /* the same */
    handle *tail; /* [micro-batch][chunk]: the chunk's output, or the logits */
    handle *targets;
} maker;

static handle make(maker *m, int64_t bytes)
{
    if (m->count == m->capacity) {
        m->capacity = m->capacity ? 2 * m->capacity : 1024;
        m->blocks = must_realloc(m->blocks, (unsigned long)m->capacity * sizeof *m->blocks);
    }
    m->blocks[m->count] = (planner_block){.bytes = bytes, .first = m->now, .last = m->now, .offset = -1};
    return (handle)m->count++;
}

static void use(maker *m, handle h)
{
    if (h >= 0)
        m->blocks[h].last = m->now;
}

static void step(maker *m)
{
    m->now++;
}

/* A matrix product reads `in`, writes a fresh output and may need a scratchpad. */
static handle product(maker *m, handle in, int64_t bytes)
{
    step(m);
    use(m, in);
    if (m->shape.scratch)
        make(m, 4096 + bytes / 37);
    return make(m, bytes);
}

static handle pointwise(maker *m, handle a, handle b, int64_t bytes)
{
    step(m);
    use(m, a);
    use(m, b);
    return make(m, bytes);
}

static int64_t act(const maker *m, int64_t channels)
{
    return 2 * m->shape.tokens * channels;
}

static int64_t layer_weights(const maker *m)
{
    const program_shape *s = &m->shape;
    return 2 * (s->hidden * (2 * s->hidden + 2 * s->kv) + 3 * s->hidden * s->ffn);
}

static int64_t place_of(const maker *m, int micro, int chunk, int layer)
{
    return ((int64_t)micro * m->shape.chunks + chunk) * m->shape.layers + layer;
}

static bool is_first(const maker *m, int chunk)
{
    return m->shape.stage == 0 && chunk == 0;
}

static bool is_last(const maker *m, int chunk)
{
    return m->shape.stage == m->shape.stages - 1 && chunk == m->shape.chunks - 1;
}

/* The weights of a layer appear one op before they are used. */
static handle gather(maker *m)
{
    return m->shape.gathered ? make(m, layer_weights(m)) : -1;
}

static handle forward_layer(maker *m, saved *s, handle x)
{
    const program_shape *h = &m->shape;
    handle weights = gather(m);
    *s = (saved){.input = x};
    s->rstd1 = pointwise(m, x, -1, 4 * h->tokens);
    s->norm1 = make(m, act(m, h->hidden));
    handle raw = product(m, s->norm1, act(m, h->hidden + 2 * h->kv));
    s->qkv = pointwise(m, raw, -1, act(m, h->hidden + 2 * h->kv));
    s->attended = pointwise(m, s->qkv, -1, act(m, h->hidden));
    s->lse = make(m, 4 * h->tokens * (h->hidden / 64 + 1));
    handle projected = product(m, s->attended, act(m, h->hidden));
    s->middle = pointwise(m, projected, x, act(m, h->hidden));
    s->rstd2 = pointwise(m, s->middle, -1, 4 * h->tokens);
    s->norm2 = make(m, act(m, h->hidden));
    s->gate_up = product(m, s->norm2, act(m, 2 * h->ffn));
    s->active = pointwise(m, s->gate_up, -1, act(m, h->ffn));
    handle down = product(m, s->active, act(m, h->hidden));
    use(m, weights);
    return pointwise(m, down, s->middle, act(m, h->hidden));
}

static void drop(const maker *m, saved *s)
{
    if (m->shape.recompute == PROGRAM_SELECTIVE)
        s->norm1 = s->norm2 = s->active = -1;
    if (m->shape.recompute == PROGRAM_FULL)
        *s = (saved){s->input, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
}

static void remake(maker *m, saved *s)
{
    const program_shape *h = &m->shape;
    if (h->recompute == PROGRAM_FULL)
        forward_layer(m, s, s->input);
    if (h->recompute == PROGRAM_SELECTIVE) {
        s->active = pointwise(m, s->gate_up, -1, act(m, h->ffn));
        s->norm2 = pointwise(m, s->middle, s->rstd2, act(m, h->hidden));
        s->norm1 = pointwise(m, s->input, s->rstd1, act(m, h->hidden));
    }
}

/* A weight's gradient: added in place when it is persistent, else a buffer that a reduce-scatter reads. */
static void weight_gradient(maker *m, handle input, handle d_output, int64_t elements)
{
    step(m);
    use(m, input);
    use(m, d_output);
    if (m->shape.gathered) {
        handle full = make(m, 4 * elements);
        step(m);
        use(m, full);
    }
}

static void weights_of_layer(maker *m, const saved *s, const owed *o)
{
    const program_shape *h = &m->shape;
    weight_gradient(m, s->active, o->d_output, h->ffn * h->hidden);
    weight_gradient(m, s->norm2, o->d_gate_up, 2 * h->ffn * h->hidden);
    weight_gradient(m, s->attended, o->d_middle, h->hidden * h->hidden);
    weight_gradient(m, s->norm1, o->d_qkv, h->hidden * (h->hidden + 2 * h->kv));
}

static handle backward_layer(maker *m, saved *s, owed *o, handle d_output)
{
    const program_shape *h = &m->shape;
    remake(m, s);
    handle weights = gather(m);
    o->d_output = d_output;
    handle d_active = product(m, d_output, act(m, h->ffn));
    o->d_gate_up = pointwise(m, d_active, s->gate_up, act(m, 2 * h->ffn));
    handle d_norm2 = product(m, o->d_gate_up, act(m, h->hidden));
    o->d_middle = pointwise(m, d_norm2, s->middle, act(m, h->hidden));
    use(m, s->rstd2);
    use(m, d_output);
    handle d_attended = product(m, o->d_middle, act(m, h->hidden));
    handle d_rotated = pointwise(m, d_attended, s->qkv, act(m, h->hidden + 2 * h->kv));
    use(m, s->attended);
    use(m, s->lse);
    o->d_qkv = pointwise(m, d_rotated, -1, act(m, h->hidden + 2 * h->kv));
    handle d_norm1 = product(m, o->d_qkv, act(m, h->hidden));
    use(m, weights);
    handle d_input = pointwise(m, d_norm1, s->input, act(m, h->hidden));
    use(m, s->rstd1);
    use(m, o->d_middle);
    if (h->schedule != PROGRAM_ZB_H1)
        weights_of_layer(m, s, o);
    return d_input;
}

static void forward(maker *m, int micro, int chunk)
{
    step(m);
    handle x = make(m, act(m, m->shape.hidden)); /* received, or the embedding's output */
    for (int l = 0; l < m->shape.layers; l++) {
        saved *s = m->kept + place_of(m, micro, chunk, l);
        x = forward_layer(m, s, x);
        drop(m, s);
    }
    int64_t tail = (int64_t)micro * m->shape.chunks + chunk;
    if (is_last(m, chunk)) {
        m->targets[tail] = x;
        x = pointwise(m, x, -1, act(m, m->shape.hidden));
        m->tail[tail] = product(m, x, act(m, m->shape.vocab));
        handle loss = pointwise(m, m->tail[tail], -1, 4 * m->shape.tokens);
        step(m);
        use(m, loss);
    } else {
        step(m); /* sent */
        use(m, x);
        step(m);
        use(m, x);
    }
}

static void backward(maker *m, int micro, int chunk)
{
    step(m);
    int64_t tail = (int64_t)micro * m->shape.chunks + chunk;
    handle gradient;
    if (is_last(m, chunk)) {
        handle d_logits = pointwise(m, m->tail[tail], -1, act(m, m->shape.vocab));
        handle d_norm = product(m, d_logits, act(m, m->shape.hidden));
        weight_gradient(m, m->targets[tail], d_logits, m->shape.hidden * m->shape.vocab);
        gradient = pointwise(m, d_norm, m->targets[tail], act(m, m->shape.hidden));
    } else {
        gradient = make(m, act(m, m->shape.hidden));
    }
    for (int l = m->shape.layers - 1; l >= 0; l--) {
        int64_t at = place_of(m, micro, chunk, l);
        gradient = backward_layer(m, m->kept + at, m->debts + at, gradient);
    }
    step(m); /* sent, or added to the embedding */
    use(m, gradient);
    if (!is_first(m, chunk)) {
        step(m);
        use(m, gradient);
    }
}

static void weights(maker *m, int micro, int chunk)
{
    for (int l = m->shape.layers - 1; l >= 0; l--) {
        int64_t at = place_of(m, micro, chunk, l);
        weights_of_layer(m, m->kept + at, m->debts + at);
    }
}

/* In the order of interleaved 1F1B the n-th forward is of this micro-batch and chunk; chunks go in rounds of
 * `stages`. */
static void run_forward(maker *m, int n)
{
    const program_shape *s = &m->shape;
    int round = s->stages * s->chunks, within = n % round;
    if (s->chunks == 1)
        forward(m, n, 0);
    else
        forward(m, n / round * s->stages + within % s->stages, within / s->stages);
}

static void run_backward(maker *m, int n)
{
    const program_shape *s = &m->shape;
    int round = s->stages * s->chunks, within = n % round;
    if (s->chunks == 1)
        backward(m, n, 0);
    else
        backward(m, n / round * s->stages + within % s->stages, s->chunks - 1 - within / s->stages);
}

static void run_schedule(maker *m)
{
    const program_shape *s = &m->shape;
    int total = s->micro_batches * s->chunks, below = s->stages - 1 - s->stage, warm = below;
    if (s->schedule == PROGRAM_GPIPE)
        warm = total;
    if (s->schedule == PROGRAM_INTERLEAVED)
        warm = 2 * below + (s->chunks - 1) * s->stages;
    warm = warm < total ? warm : total;
    int done = 0, owing = 0; /* backwards done, weight gradients done */
    for (int f = 0; f < warm; f++)
        run_forward(m, f);
    for (; done < total; done++) {
        if (warm + done < total)
            run_forward(m, warm + done);
        run_backward(m, done);
        if (s->schedule == PROGRAM_ZB_H1 && done >= s->stage)
            weights(m, owing++, 0);
    }
    for (; s->schedule == PROGRAM_ZB_H1 && owing < total; owing++)
        weights(m, owing, 0);
}

static void make_persistent(maker *m)
{
    int64_t elements = layer_weights(m) / 2;
    for (int l = 0; l < m->shape.layers * m->shape.chunks; l++) {
        make(m, (m->shape.gathered ? elements / 8 : elements) * 2);
        make(m, (m->shape.gathered ? elements / 8 : elements) * 4);
        make(m, elements / 8 * 12);
    }
}

planner_block *planner_programs_make(const program_shape *shape, int64_t *count)
{
    maker m = {.shape = *shape};
    MUST(shape->chunks == 1 || shape->schedule == PROGRAM_INTERLEAVED, "only the interleaved schedule has chunks");
    MUST(shape->chunks == 1 || shape->micro_batches % shape->stages == 0, "micro-batches come in rounds of the stages");
    unsigned long tails = (unsigned long)shape->micro_batches * (unsigned long)shape->chunks;
    unsigned long places = tails * (unsigned long)shape->layers;
    m.kept = must_calloc(places, sizeof *m.kept);
    m.debts = must_calloc(places, sizeof *m.debts);
    m.tail = must_calloc(tails, sizeof *m.tail);
    m.targets = must_calloc(tails, sizeof *m.targets);
    if (shape->persistent)
        make_persistent(&m);
    int64_t persistent = m.count;
    run_schedule(&m);
    step(&m);
    for (int64_t i = 0; i < persistent; i++)
        use(&m, (handle)i);
    free(m.targets);
    free(m.tail);
    free(m.debts);
    free(m.kept);
    *count = m.count;
    return m.blocks;
}

/* splitmix64 */
static int64_t draw(uint64_t *state, int64_t limit)
{
    uint64_t z = *state += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return (int64_t)((z ^ (z >> 31)) >> 1) % limit;
}

program_shape planner_programs_draw(uint64_t seed)
{
    static const int64_t hiddens[] = {256, 384, 768, 1024, 2048, 4096, 5120}, vocabs[] = {1000, 8000, 32000, 50304};
    uint64_t r = seed * 1000003;
    program_shape s = {.chunks = 1}; /* one draw a statement: C leaves the order within one open */
    s.schedule = (program_schedule)draw(&r, 4);
    s.recompute = (program_recompute)draw(&r, 3);
    s.stages = 1 << draw(&r, 4);
    s.layers = 1 + (int)draw(&r, 12);
    s.stage = (int)draw(&r, s.stages);
    s.micro_batches = s.stages * (1 + (int)draw(&r, 4));
    if (s.schedule == PROGRAM_INTERLEAVED) {
        s.chunks = 2 + (int)draw(&r, 2);
        s.layers = 1 + s.layers / s.chunks;
    }
    s.tokens = 128 * (1 + draw(&r, 64));
    s.hidden = hiddens[draw(&r, 7)];
    s.kv = s.hidden >> draw(&r, 4);
    s.ffn = s.hidden * (16 + draw(&r, 17)) / 8 / 64 * 64;
    s.vocab = vocabs[draw(&r, 4)];
    s.vocab /= 1 + draw(&r, 2);
    s.gathered = draw(&r, 4) == 0;
    s.persistent = draw(&r, 2) == 0;
    s.scratch = draw(&r, 3) == 0;
    return s;
}

void planner_programs_describe(const program_shape *s, char *text, int bytes)
{
    static const char *const schedules[] = {"gpipe", "1f1b", "interleaved", "zb-h1"};
    static const char *const recompute[] = {"keep", "selective", "full"};
    snprintf(text, (size_t)bytes,
             "%s, stage %d of %d, %d chunks of %d layers, %d micro-batches, recompute %s, tokens %lld, hidden %lld, kv "
             "%lld, "
             "ffn %lld, vocab %lld%s%s%s",
             schedules[s->schedule], s->stage, s->stages, s->chunks, s->layers, s->micro_batches,
             recompute[s->recompute], (long long)s->tokens, (long long)s->hidden, (long long)s->kv, (long long)s->ffn,
             (long long)s->vocab, s->gathered ? ", gathered" : "", s->persistent ? ", persistent" : "",
             s->scratch ? ", scratch" : "");
}
