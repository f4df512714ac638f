#include "engine/infer/inference.h"

#include <math.h>
#include <omp.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/batch.h"
#include "engine/state/rank/state.h"
#include "kernels/philox.h"
#include "memory/log.h"

const char *const inference_devices[] = {"auto", "cpu", "cuda", NULL};

status inference_tokenizer(tokenizer **out, const weights *from, const char *spec, tokenizer_begin begin)
{
    TRY(weights_tokenizer(out, from, spec, begin));
    if (log_rank() == 0 && tokenizer_begins_with(*out) == TOKENIZER_BEGIN_UNKNOWN)
        log_warn("%s does not record what began documents in its training: texts begin as its tokenizer's files say; "
                 "--begin nothing, end or token says it, PREFIX.facts beside the data records it (phalanx help data)",
                 weights_folder(from));
    return STATUS_OK;
}

static status lay_out(grid *out, const inference_ranks *r)
{
    int ranks = comm_ranks(r->world);
    int64_t pipeline = r->pipeline ? r->pipeline : 1;
    int64_t across = r->tensor ? r->tensor : r->data || ranks % pipeline ? 1 : ranks / pipeline;
    if (ranks % (across * pipeline))
        return status_fail(STATUS_USAGE, "--tensor %lld x --pipeline %lld does not divide the job's %d ranks",
                           (long long)across, (long long)pipeline, ranks);
    if (!r->data && across * pipeline != ranks)
        return status_fail(STATUS_USAGE,
                           "--tensor %lld x --pipeline %lld are not the job's %d ranks: start as many as share the "
                           "model",
                           (long long)across, (long long)pipeline, ranks);
    int size[GRID_AXES];
    grid_single(size);
    size[GRID_TENSOR] = (int)across;
    size[GRID_PIPELINE] = (int)pipeline;
    size[GRID_DATA] = 0;
    return grid_make(out, ranks, comm_rank(r->world), size);
}

static status prepare_model(inference *out, executor_options *how, weights *from, const inference_ranks *ranks,
                            const compile_options *wanted)
{
    compile_options o = *wanted;
    how->device = &device_cpu;
    status found = ranks->where == INFERENCE_CPU ? STATUS_OK : device_find(&how->device, "cuda");
    if (found != STATUS_OK && ranks->where != INFERENCE_AUTO)
        return found;
    how->backend = how->device->backend ? how->device->backend : &cpu_backend;
    TRY(lay_out(&o.grid, ranks));
    o.shape = *weights_shape(from);
    o.shape.mtp_layers = 0; /* MTP serves training only */
    o.microbatches = o.layout.virtual_stages = 1;
    o.layout.zero_gather = CONFIG_EACH_MICRO_BATCH;
    o.backend = how->backend;
    o.threads = how->threads;
    return compile(&out->compiled, &o);
}

status inference_open(inference *out, weights *from, const inference_ranks *ranks, const compile_options *wanted)
{
    int cores = omp_get_num_procs() / comm_local_ranks(ranks->world), most = omp_get_max_threads();
    bool all_cores = comm_ranks(ranks->world) == 1 || cores > most;
    executor_options how = {.threads = all_cores ? most : cores > 0 ? cores : 1};
    comm_group *all = comm_world(ranks->world);
    *out = (inference){0};
    omp_set_num_threads(how.threads);
    TRY(comm_all_status(all, prepare_model(out, &how, from, ranks, wanted)));
    TRY(comm_all_status(all, executor_open(&out->executor, &out->compiled, ranks->world, &how)));
    TRY(comm_all_status(all, state_load_weights(&out->compiled, out->executor, weights_read, from)));
    batch_rope_table(&out->compiled, out->executor);
    return STATUS_OK;
}

void inference_close(inference *i)
{
    executor_close(i->executor);
    compile_free(&i->compiled);
    i->executor = NULL;
}

/* The site of philox_draws() for sampling; the initialiser and the data order use the two above it. */
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
    AUTO(generator) *g = must_calloc(1, sizeof *g);
    const compile_options options = {.precision = precision,
                                     .sequence = positions,
                                     .micro_batch = texts,
                                     .decode_samples = texts,
                                     .decode_positions = (int)positions};
    TRY(inference_open(&g->model, from, ranks, &options));
    g->world = comm_world(ranks->world);
    g->samples = texts;
    g->vocabulary = weights_shape(from)->vocab_size;
    g->logits = must_alloc((unsigned long)g->vocabulary * sizeof(float));
    g->candidates = must_alloc((unsigned long)g->vocabulary * sizeof(candidate));
    *out = TAKE(g);
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
    /* Each tensor rank of the last stage has shape[1] rows of the vocabulary. */
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

/* Sorts larger logits first; equal ones by id, so that the order is deterministic. */
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
    /* Takes the fewest candidates with a share of `total` that reaches top_p (1904.09751). */
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
