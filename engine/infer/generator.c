#include "engine/infer/generator.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "memory/log.h"

/* The site of philox_draws() for sampling; the initialiser and the data order have the two above. */
enum { SAMPLING_SITE = 0xfffd };

typedef struct candidate {
    float logit;
    int32_t token;
} candidate;

struct generator {
    inference model;
    comm_group *world;
    int samples;
    int64_t vocabulary;
    float *logits;
    candidate *candidates;
};

status generator_open(generator **out, weights *from, const inference_ranks *ranks, precision_kind precision, int texts,
                      int64_t positions)
{
    generator *g = must_calloc(1, sizeof *g);
    const compile_options options = {.precision = precision,
                                     .sequence = positions,
                                     .micro_batch = texts,
                                     .decode_samples = texts,
                                     .decode_positions = (int)positions};
    status s = inference_open(&g->model, from, ranks, &options);
    if (s != STATUS_OK) {
        generator_close(g);
        return s;
    }
    g->world = comm_world(ranks->world);
    g->samples = texts;
    g->vocabulary = weights_shape(from)->vocab_size;
    g->logits = must_alloc((unsigned long)g->vocabulary * sizeof(float));
    g->candidates = must_alloc((unsigned long)g->vocabulary * sizeof(candidate));
    *out = g;
    return STATUS_OK;
}

void generator_close(generator *g)
{
    if (!g)
        return;
    inference_close(&g->model);
    free(g->logits);
    free(g->candidates);
    free(g);
}

void generator_step(generator *g, const int32_t *tokens, int64_t position)
{
    int32_t *ids = executor_at(g->model.executor, g->model.compiled.values.tokens);
    int32_t *positions = executor_at(g->model.executor, g->model.compiled.values.positions);
    for (int i = 0; i < g->samples; i++) {
        ids[i] = tokens[i];
        positions[i] = (int32_t)position;
    }
    executor_play(g->model.executor, &g->model.compiled.decoding);
}

const float *generator_logits(generator *g, int sample)
{
    MUST(sample >= 0 && sample < g->samples, "sample %d of %d", sample, g->samples);
    const tensor *t = g->model.compiled.values.logits;
    const grid *ranks = &g->model.compiled.options.grid;
    const char *row = executor_at(g->model.executor, t);
    row += sample * t->pitch * dtype_bytes((dtype)t->type);
    /* the tensor ranks of the last stage have so many rows of the vocabulary each */
    int at[GRID_AXES] = {[GRID_PIPELINE] = ranks->size[GRID_PIPELINE] - 1};
    for (int64_t first = 0; first < g->vocabulary; first += t->shape[1]) {
        int root = grid_rank_at(ranks, at);
        int64_t left = g->vocabulary - first, count = left < t->shape[1] ? left : t->shape[1];
        if (root == ranks->rank)
            dtype_convert(g->logits + first, DTYPE_FP32, row, (dtype)t->type, count);
        comm_broadcast_bytes(g->world, g->logits + first, count * (int64_t)sizeof(float), root);
        at[GRID_TENSOR]++;
    }
    return g->logits;
}

/* Larger logits first; equal ones by id, so that a sort's order is no accident. */
static int by_logit(const void *a, const void *b)
{
    const candidate *x = a, *y = b;
    if (x->logit != y->logit)
        return x->logit > y->logit ? -1 : 1;
    return x->token - y->token;
}

int32_t generator_choose(generator *g, const generator_choice *c, int sample, int64_t text, int64_t position)
{
    const float *logits = generator_logits(g, sample);
    if (!(c->temperature > 0)) {
        int64_t best = 0;
        for (int64_t i = 1; i < g->vocabulary; i++)
            if (logits[i] > logits[best])
                best = i;
        return (int32_t)best;
    }
    for (int64_t i = 0; i < g->vocabulary; i++)
        g->candidates[i] = (candidate){logits[i], (int32_t)i};
    qsort(g->candidates, (size_t)g->vocabulary, sizeof(candidate), by_logit);
    int64_t count = c->top_k > 0 && c->top_k < g->vocabulary ? c->top_k : g->vocabulary;
    double largest = (double)g->candidates[0].logit, total = 0;
    for (int64_t i = 0; i < count; i++)
        total += exp(((double)g->candidates[i].logit - largest) / c->temperature);
    /* the fewest candidates whose share of `total` reaches top_p (1904.09751) */
    double reached = 0;
    int64_t among = 0;
    while (among < count && (among == 0 || reached < c->top_p * total))
        reached += exp(((double)g->candidates[among++].logit - largest) / c->temperature);
    uint32_t draw[4];
    philox_draws(draw, c->seed, SAMPLING_SITE, (uint64_t)position, (uint64_t)text, 0);
    double threshold = (double)philox_uniform(draw[0]) * reached, sum = 0;
    for (int64_t i = 0; i < among; i++) {
        sum += exp(((double)g->candidates[i].logit - largest) / c->temperature);
        if (sum > threshold)
            return g->candidates[i].token;
    }
    return g->candidates[among - 1].token;
}
