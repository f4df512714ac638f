/* Maps an attention op to cuDNN: its operands by name, the parts that it is divided into, and the scratch.
 *
 * The backward pass writes dS, 2 bytes for each pair of a query and a key of each head (cudnn_graph.c). To bound its
 * workspace, an op is divided into parts of equally many samples or, within a sample, of equally many key/value heads
 * with the query heads that share them. A part is as large as the plan's memory allows (attention.workspace). Parts
 * run one after the other.
 *
 * cuDNN reads lse in the backward pass as [sample, head, query] without gaps (before 9.26 it silently misreads other
 * strides).
 *
 * Context-parallel ranks (parallel.context) hold zig-zag shards: two runs of queries of each sample. A part has a graph
 * for each run: against the keys up to its last query, with the run's position added to the queries' indices. The later
 * run writes its gradients of keys to the outputs, the earlier run to scratch, which is then added; gradients of keys
 * past the later run are cleared. Scratch has the size for the rank with most keys, so that all ranks plan alike.
 *
 *     scratch of the backward pass      delta of one part | dk, dv of the earlier run | workspace
 */
#include "kernels/cuda/cudnn.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/host.h"
#include "kernels/cuda/launch.h"
#include "kernels/heads.h"
#include "kernels/token.h"

/* ---- division of an op into parts -------------------------------------------------------------------------------- */

enum { PIECE = 256, ALIGNMENT = 16 };

/* A part may always use this many bytes of workspace; a test lowers it to divide small ops. */
#ifndef CUDNN_WORKSPACE_MOST
#define CUDNN_WORKSPACE_MOST (128 << 20)
#endif

typedef struct operands {
    const tensor *q, *k, *v, *y, *lse, *document_start, *token_positions, *dy, *dq, *dk, *dv;
} operands;

static operands operands_of(const op *o)
{
    if (!op_has(o, OP_GRADIENT))
        return (operands){.q = o->in[0],
                          .k = o->in[1],
                          .v = o->in[2],
                          .document_start = o->in[3],
                          .token_positions = o->in[4],
                          .y = o->out[0],
                          .lse = o->out[1]};
    return (operands){.dy = o->in[0],
                      .q = o->in[1],
                      .k = o->in[2],
                      .v = o->in[3],
                      .y = o->in[4],
                      .lse = o->in[5],
                      .document_start = o->in[6],
                      .token_positions = o->in[7],
                      .dq = o->out[0],
                      .dk = o->out[1],
                      .dv = o->out[2]};
}

/* Returns the index of a run among its sample's runs. */
static int64_t run_index(const op *o, int run)
{
    return token_zigzag(o->at.attention.rank, o->at.attention.ranks, run);
}

/* Counts the keys of a sample up to the last one that the run sees. */
static int64_t count_keys(const op *o, int run)
{
    return token_last_key((int32_t)((run_index(o, run) + 1) * o->at.attention.run) - 1) + 1;
}

/* Counts the samples of the op's keys. */
static int64_t count_samples(const op *o)
{
    return operands_of(o).k->shape[0] / o->at.attention.sequence;
}

static bool can_compute(const op *o)
{
    const op_attention *at = &o->at.attention;
    if (!op_does(o, OP_PAIRS))
        return false;
    /* cuDNN's softmax has no sinks and no max logit output; its gradient reads y and lse alone */
    if (!op_has(o, OP_GRADIENT) && (o->in[5] || o->out[2]))
        return false;
    operands x = operands_of(o);
    /* all rows begin at multiples of 16 bytes, if the arena's tensors do */
    const tensor *rows[] = {x.q, x.k, x.v, x.y, x.dy, x.dq, x.dk, x.dv};
    for (int i = 0; i < 8; i++)
        if (rows[i] && (rows[i]->pitch % (ALIGNMENT / 2) || (rows[i]->base && rows[i]->offset % ALIGNMENT)))
            return false;
    /* cuDNN takes queries that are whole samples, or two runs of each known before the batch is. It has no candidate
     * for runs with a window. Rows of four-byte numbers begin at multiples of 16 bytes. */
    if (x.token_positions &&
        (at->ranks <= 1 || token_window(at->window, at->sequence) != 0 || at->run * 4 % ALIGNMENT != 0 ||
         x.q->shape[0] != TOKEN_RUNS * count_samples(o) * at->run ||
         (x.dk && !(tensor_contiguous(x.dk) && tensor_contiguous(x.dv)))))
        return false;
    return tensor_contiguous(x.lse) && x.q->type != DTYPE_FP32 && x.q->shape[0] > 0 &&
           x.q->shape[0] % attention_run(o) == 0 && at->cap == 0 && heads_suit_cudnn((int)o->at.heads.size) &&
           heads_suit_cudnn((int)attention_v_head_size(o, x.v)) && heads_divide(o->at.heads.q, o->at.heads.kv);
}

/* Returns the next smaller number that divides n, or 0. */
static int64_t divisor_below(int64_t n, int64_t d)
{
    do
        d--;
    while (d > 0 && n % d);
    return d;
}

static int64_t round_up(int64_t bytes)
{
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

/* Byte offsets within the scratch. */
typedef struct layout {
    int64_t delta, dk, dv, workspace, bytes;
} layout;

static layout layout_of(const cudnn_graph_shape *a, const op *o)
{
    layout l = {0};
    l.dk = a->backward ? round_up(a->samples * a->heads * a->sequence * 4) : 0;
    /* the earlier run ends within a sample's first half */
    int64_t keys =
        a->backward && o->at.attention.run ? a->samples * (o->at.attention.sequence / TOKEN_RUNS) * a->kv_heads : 0;
    l.dv = l.dk + round_up(keys * a->head_size * 2);
    l.workspace = l.dv + round_up(keys * a->v_head_size * 2);
    l.bytes = l.workspace + a->workspace;
    return l;
}

static bool exceeds_limit(const cudnn_graph_shape *a, const op *o)
{
    cudnn_graph_shape with = *a;
    with.workspace = cudnn_graph_workspace(a);
    return with.workspace > CUDNN_WORKSPACE_MOST && layout_of(&with, o).bytes > o->at.attention.workspace;
}

/* Finds the op's largest part that fits the workspace, with all keys of its samples; false: cuDNN cannot compute it. */
static bool find_part(cudnn_graph_shape *out, const op *o)
{
    if (!can_compute(o))
        return false;
    operands x = operands_of(o);
    int64_t s = attention_run(o), samples = count_samples(o), shared = heads_sharing(o->at.heads.q, o->at.heads.kv);
    cudnn_graph_shape a;
    memset(&a, 0, sizeof a);
    a.samples = samples;
    a.sequence = s;
    a.keys = a.keys_apart = a.gradients_apart = o->at.attention.sequence;
    a.heads = o->at.heads.q;
    a.kv_heads = o->at.heads.kv;
    a.head_size = o->at.heads.size;
    a.v_head_size = attention_v_head_size(o, x.v);
    a.window = token_window(o->at.attention.window, o->at.attention.sequence);
    a.q_pitch = x.q->pitch;
    a.k_pitch = x.k->pitch;
    a.v_pitch = x.v->pitch;
    a.y_pitch = x.y->pitch;
    a.fp16 = x.q->type == DTYPE_FP16;
    a.backward = op_has(o, OP_GRADIENT);
    if (a.backward) {
        a.dy_pitch = x.dy->pitch;
        a.dq_pitch = x.dq->pitch;
        a.dk_pitch = x.dk->pitch;
        a.dv_pitch = x.dv->pitch;
    }
    a.documents = x.document_start != NULL;
    while (a.samples > 1 && exceeds_limit(&a, o))
        a.samples = divisor_below(samples, a.samples);
    while (a.kv_heads > 0 && exceeds_limit(&a, o)) {
        a.kv_heads = divisor_below(o->at.heads.kv, a.kv_heads);
        a.heads = a.kv_heads * shared;
    }
    bool whole = a.samples == samples && a.heads == o->at.heads.q;
    if (a.kv_heads == 0 || (!whole && a.samples * a.heads * s * 4 % ALIGNMENT) ||
        (a.documents && a.samples < samples && a.samples * s * 4 % ALIGNMENT))
        return false;
    a.workspace = cudnn_graph_workspace(&a);
    *out = a;
    return true;
}

/* Returns the shape of the graph that computes one run of part `a`'s queries. */
static cudnn_graph_shape shape_of_run(const cudnn_graph_shape *a, const op *o, int run)
{
    cudnn_graph_shape of = *a;
    if (!o->at.attention.run)
        return of;
    of.keys = count_keys(o, run);
    if (a->backward && run == 0) {
        of.gradients_apart = of.keys;
        of.dk_pitch = a->kv_heads * a->head_size;
        of.dv_pitch = a->kv_heads * a->v_head_size;
    }
    return of;
}

/* ---- plans and calls ------------------------------------------------------------------------------------------ */

enum { OWN = 0, DOCUMENTS = 4 };

typedef struct plan {
    cudnn_graph_shape shape; /* one part, with the keys of whole samples */
    int64_t parts;
    int runs;                       /* 1, or TOKEN_RUNS */
    bool open;                      /* the library has candidates */
    cudnn_graph *graph[TOKEN_RUNS]; /* one per run of queries */
    int chosen;                     /* OWN, or 1 + the graphs' candidate */
    op first;                       /* the op that the plan was made for; timing uses its operands */
    cudnnStatus_t *outcome;         /* receives the status of a timed candidate; NULL: a failure is fatal */
    cudnn *owner;
    struct plan *next;
} plan;

/* A prepared op: a variant pack of addresses for each part and run. */
typedef struct call {
    op_prepared prepared; /* first */
    plan *plan;
    op of;
    cudnn_api_builder packs;             /* one per part and run */
    int32_t shift[TOKEN_RUNS];           /* keys before the run */
    float numbers[CUDNN_GRAPH_OPERANDS]; /* operands that are numbers, by id */
    struct call *next;
} call;

struct cudnn {
    cudnn_api *api;
    cudnnHandle_t handle;
    cudnn_api_builder device;
    cudnn_options with;
    char *arena;
    plan *plans;
    call *calls;
};

int64_t cudnn_scratch_bytes(const op *o)
{
    cudnn_graph_shape a;
    return find_part(&a, o) ? layout_of(&a, o).bytes : 0;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

/* Returns the address of a part in the 16-bit rows of `t`: heads of `size` elements, from `token` and `head` on. */
static char *part_pointer(const tensor *t, char *arena, int64_t token, int64_t head, int64_t size)
{
    return (char *)tensor_at(t, arena) + (token * t->pitch + head * size) * 2;
}

/* Adds the earlier run's gradient of k or v, at byte `first` of scratch, to the later run's in `to` [keys, kv_heads
 * size], for part number `part`, and clears the gradients of keys past the later run. */
static int add_early_run(const call *k, const tensor *to, int64_t part, int64_t first, cudaStream_t stream)
{
    const op *o = &k->of;
    const cudnn_graph_shape *a = &k->plan->shape;
    char *arena = k->plan->owner->arena;
    int64_t of_heads = o->at.heads.kv / a->kv_heads, sample = part / of_heads * a->samples;
    int64_t size = to->shape[1] / o->at.heads.kv, columns = a->kv_heads * size, head = part % of_heads * a->kv_heads;
    int64_t early = count_keys(o, 0), late = count_keys(o, 1);
    char *from = (char *)tensor_at(o->scratch, arena) + first;
    for (int64_t i = 0; i < a->samples; i++) {
        int64_t token = (sample + i) * o->at.attention.sequence;
        launch_matrix sum = {part_pointer(to, arena, token, head, size), to->pitch};
        int failed = launch_add(stream, to->type, sum, sum, (launch_matrix){from + i * early * columns * 2, columns},
                                early, columns);
        if (!failed && head == 0 && late < o->at.attention.sequence)
            failed = launch_zero(stream, part_pointer(to, arena, token + late, 0, size),
                                 (o->at.attention.sequence - late) * to->pitch * 2);
        if (failed)
            return failed;
    }
    return 0;
}

static cudnnStatus_t launch_runs(const call *k, int candidate, cudaStream_t stream)
{
    const plan *p = k->plan;
    const cudnn *c = p->owner;
    const operands x = operands_of(&k->of);
    const layout l = layout_of(&p->shape, &k->of);
    for (int i = 0; i < k->packs.count; i++) {
        int run = i % p->runs;
        cudnnBackendDescriptor_t compiled = cudnn_graph_plan(p->graph[run], candidate - 1);
        cudnnStatus_t s = c->api->cudnnBackendExecute(c->handle, compiled, k->packs.made[i]);
        if (s != CUDNN_STATUS_SUCCESS)
            return s;
        if (p->shape.backward && p->runs > 1 && run == p->runs - 1)
            for (int of_v = 0; of_v < 2; of_v++)
                CUDA_MUST((cudaError_t)add_early_run(k, of_v ? x.dv : x.dk, i / p->runs, of_v ? l.dv : l.dk, stream));
    }
    return CUDNN_STATUS_SUCCESS;
}

static bool run_chosen(const op_prepared *self, const op *o, const run_context *r)
{
    const call *k = (const call *)self;
    (void)o;
    const plan *p = k->plan;
    if (p->chosen == OWN)
        return false;
    cudnnStatus_t s = launch_runs(k, p->chosen, r->stream);
    if (p->outcome)
        *p->outcome = s;
    MUST(p->outcome || s == CUDNN_STATUS_SUCCESS, "cuDNN: %s", p->owner->api->cudnnGetErrorString(s));
    return true;
}

/* ---- a choice of candidates ------------------------------------------------------------------------------------- */

/* Counts the candidates that the graphs of all runs have. */
static int count_candidates(const plan *p)
{
    int count = CUDNN_GRAPH_CANDIDATES;
    for (int i = 0; i < p->runs; i++)
        count = cudnn_graph_candidates(p->graph[i]) < count ? cudnn_graph_candidates(p->graph[i]) : count;
    return count;
}

/* Returns the first graph that does not compile with the candidate, or NULL. */
static const cudnn_graph *refusing_graph(const plan *p, int candidate)
{
    for (int i = 0; i < p->runs; i++)
        if (!cudnn_graph_plan(p->graph[i], candidate - 1))
            return p->graph[i];
    return NULL;
}

static bool run_candidate(void *plan_, int candidate, cudaStream_t stream)
{
    plan *p = plan_;
    if (candidate != OWN && refusing_graph(p, candidate))
        return false;
    cudnnStatus_t outcome = CUDNN_STATUS_SUCCESS;
    const run_context r = {.arena = p->owner->arena, .stream = stream};
    int before = p->chosen;
    p->chosen = candidate;
    p->outcome = &outcome;
    (p->shape.backward ? cuda_attention_grad : cuda_attention)(&p->first, &r);
    p->chosen = before;
    p->outcome = NULL;
    return outcome == CUDNN_STATUS_SUCCESS;
}

static void write_candidate(char *out, int bytes, const void *plan_, int candidate)
{
    const plan *p = plan_;
    int used = snprintf(out, (size_t)bytes, "%s", candidate == OWN ? "own" : "cuDNN ");
    for (int i = 0; i < p->runs && candidate != OWN && used < bytes; i++)
        used += snprintf(out + used, (size_t)(bytes - used), "%s%s", i ? "; " : "",
                         cudnn_graph_words(p->graph[i], candidate - 1));
}

/* Chooses the candidate of these words; "cuDNN" alone chooses the first that compiles. */
static status take_candidate(void *plan_, const char *words)
{
    plan *p = plan_;
    char why[DEVICE_CHOICE_VALUE] = "this cuDNN has no such candidate for it";
    for (int candidate = OWN; candidate <= count_candidates(p); candidate++) {
        char known[DEVICE_CHOICE_VALUE];
        write_candidate(known, sizeof known, p, candidate);
        if (strcmp(known, words) != 0 && (candidate == OWN || strcmp(words, "cuDNN") != 0))
            continue;
        const cudnn_graph *refuses = candidate == OWN ? NULL : refusing_graph(p, candidate);
        if (refuses) {
            cudnn_graph_refusal(why, sizeof why, refuses, candidate - 1);
            continue;
        }
        p->chosen = candidate;
        return STATUS_OK;
    }
    return status_fail(STATUS_FAILED, "%s", why);
}

static tuning_operand operand_of(const tensor *t, char *arena)
{
    if (!t)
        return (tuning_operand){0};
    int64_t columns = tensor_elements(t) / t->shape[0];
    return (tuning_operand){.at = tensor_at(t, arena),
                            .bytes = ((t->shape[0] - 1) * t->pitch + columns) * dtype_bytes((dtype)t->type),
                            .type = (dtype)t->type};
}

/* Returns the token position of query i among the keys. */
static int64_t position_of(const op *o, int64_t i)
{
    int64_t run = o->at.attention.run, unit = run ? i / run : 0, samples = count_samples(o);
    return run ? unit % samples * o->at.attention.sequence + run_index(o, (int)(unit / samples)) * run + i % run : i;
}

/* Fills document_start for timing with DOCUMENTS documents in a sample. Our kernels skip tiles of other documents,
 * cuDNN's compute them and mask the scores, so that longer documents favour cuDNN. */
static void fill_documents(void *out, int64_t bytes, const void *plan_)
{
    const plan *p = plan_;
    int32_t *starts = out;
    int64_t length = (p->shape.keys + DOCUMENTS - 1) / DOCUMENTS;
    for (int64_t i = 0; i < bytes / 4; i++)
        starts[i] = (int32_t)(position_of(&p->first, i) % p->shape.keys / length * length);
}

static void fill_positions(void *out, int64_t bytes, const void *plan_)
{
    const plan *p = plan_;
    int32_t *token_positions = out;
    for (int64_t i = 0; i < bytes / 4; i++)
        token_positions[i] = (int32_t)position_of(&p->first, i);
}

enum { PITCHES_TEXT = 200, RUNS_TEXT = 64 };

static const char *write_pitches(char *out, int bytes, const cudnn_graph_shape *a)
{
    const int64_t all[] = {a->q_pitch,  a->k_pitch,  a->v_pitch,  a->y_pitch,
                           a->dy_pitch, a->dq_pitch, a->dk_pitch, a->dv_pitch};
    int used = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all && used < bytes; i++)
        used += snprintf(out + used, (size_t)(bytes - used), "%s%lld", i ? " " : "", (long long)all[i]);
    return out;
}

static void offer_plan(const cudnn *c, plan *p)
{
    const cudnn_graph_shape *a = &p->shape;
    const op *o = &p->first;
    operands x = operands_of(o);
    char pitches[PITCHES_TEXT], runs[RUNS_TEXT] = "";
    if (o->at.attention.run)
        snprintf(runs, sizeof runs, ", runs %lld and %lld of %d", (long long)run_index(o, 0),
                 (long long)run_index(o, 1), o->at.attention.run);
    tuning_item item = {.plan = p,
                        .candidates = 1 + count_candidates(p),
                        .run = run_candidate,
                        .write = write_candidate,
                        .take = take_candidate};
    int length = snprintf(
        item.key, sizeof item.key,
        "%s %s, %lld tokens of samples of %lld, heads %d %d of %lld %lld, window %lld, pitch %s, parts %lld%s%s%s | "
        "cuDNN %zu",
        op_row_of(o)->name, dtype_name((dtype)x.q->type), (long long)x.q->shape[0], (long long)a->keys, o->at.heads.q,
        o->at.heads.kv, (long long)a->head_size, (long long)a->v_head_size, (long long)a->window,
        write_pitches(pitches, sizeof pitches, a), (long long)p->parts, runs, a->documents ? ", documents" : "",
        a->varies ? ", sums in any order" : "", c->api->cudnnGetVersion());
    MUST(length < (int)sizeof item.key, "%s ...", item.key);
    item.reads[0] = operand_of(x.q, c->arena);
    item.reads[1] = operand_of(x.k, c->arena);
    item.reads[2] = operand_of(x.v, c->arena);
    item.reads[3] = operand_of(x.document_start, c->arena);
    item.reads[3].give = fill_documents;
    if (a->backward) {
        item.reads[4] = operand_of(x.y, c->arena);
        item.reads[5] = operand_of(x.dy, c->arena);
        item.reads[6] = operand_of(x.lse, c->arena);
    }
    item.reads[7] = operand_of(x.token_positions, c->arena);
    item.reads[7].give = fill_positions;
    tuning_add(c->with.tuning, &item);
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

static void pack_pointers(call *k, char *const at[CUDNN_GRAPH_OPERANDS], char *workspace)
{
    cudnn_api_builder *b = &k->packs;
    int64_t ids[CUDNN_GRAPH_OPERANDS];
    void *token_positions[CUDNN_GRAPH_OPERANDS];
    int count = 0;
    for (int i = 0; i < CUDNN_GRAPH_OPERANDS; i++)
        if (at[i]) {
            ids[count] = i;
            token_positions[count++] = at[i];
        }
    cudnnBackendDescriptor_t d = cudnn_api_make(b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, token_positions);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_api_finish(b, d);
}

static void point_gradients(char *at[CUDNN_GRAPH_OPERANDS], call *k, int run, int64_t first_key, int64_t kv_head)
{
    const cudnn_graph_shape *a = &k->plan->shape;
    operands x = operands_of(&k->of);
    layout l = layout_of(a, &k->of);
    char *arena = k->plan->owner->arena, *scratch = tensor_at(k->of.scratch, arena);
    const bool aside = k->plan->runs > 1 && run == 0; /* gradients go to scratch first */
    at[CUDNN_GRAPH_DK] = aside ? scratch + l.dk : part_pointer(x.dk, arena, first_key, kv_head, a->head_size);
    at[CUDNN_GRAPH_DV] = aside ? scratch + l.dv : part_pointer(x.dv, arena, first_key, kv_head, a->v_head_size);
    at[CUDNN_GRAPH_DELTA] = scratch + l.delta;
    at[CUDNN_GRAPH_ONE] = (char *)&k->numbers[CUDNN_GRAPH_ONE];
}

/* Packs the addresses of one run of the part whose first sample and key/value head are given. */
static void pack_part(call *k, int run, int64_t sample, int64_t kv_head)
{
    const op *o = &k->of;
    const cudnn_graph_shape *a = &k->plan->shape;
    operands x = operands_of(o);
    layout l = layout_of(a, o);
    char *arena = k->plan->owner->arena, *at[CUDNN_GRAPH_OPERANDS] = {0};
    int64_t unit = run * count_samples(o) + sample, token = unit * a->sequence,
            first_key = sample * o->at.attention.sequence;
    int64_t head = heads_first((int32_t)kv_head, o->at.heads.q, o->at.heads.kv), size = a->head_size,
            v_size = a->v_head_size;
    at[CUDNN_GRAPH_Q] = part_pointer(x.q, arena, token, head, size);
    at[CUDNN_GRAPH_K] = part_pointer(x.k, arena, first_key, kv_head, size);
    at[CUDNN_GRAPH_V] = part_pointer(x.v, arena, first_key, kv_head, v_size);
    at[CUDNN_GRAPH_Y] = part_pointer(x.y, arena, token, head, v_size);
    at[CUDNN_GRAPH_LSE] = (char *)tensor_at(x.lse, arena) + (unit * o->at.heads.q + head) * a->sequence * 4;
    if (a->backward) {
        at[CUDNN_GRAPH_DY] = part_pointer(x.dy, arena, token, head, v_size);
        at[CUDNN_GRAPH_DQ] = part_pointer(x.dq, arena, token, head, size);
        point_gradients(at, k, run, first_key, kv_head);
    }
    if (a->documents)
        at[CUDNN_GRAPH_START] = (char *)tensor_at(x.document_start, arena) + token * 4;
    at[CUDNN_GRAPH_SCALE] = (char *)&k->numbers[CUDNN_GRAPH_SCALE];
    at[CUDNN_GRAPH_MASKED] = (char *)&k->numbers[CUDNN_GRAPH_MASKED];
    if (a->window > 0)
        at[CUDNN_GRAPH_WINDOW] = (char *)&k->numbers[CUDNN_GRAPH_WINDOW];
    if (k->shift[run] > 0)
        at[CUDNN_GRAPH_SHIFT] = (char *)&k->shift[run];
    pack_pointers(k, at, (char *)tensor_at(o->scratch, arena) + l.workspace);
}

static call *call_make(cudnn *c, plan *p, const op *o)
{
    call *k = must_calloc(1, sizeof *k);
    k->prepared.run = run_chosen;
    k->plan = p;
    k->of = *o;
    k->packs.api = c->api;
    k->numbers[CUDNN_GRAPH_SCALE] = o->at.attention.scale;
    k->numbers[CUDNN_GRAPH_MASKED] = -FLT_MAX; /* a fully masked tile must not leave -inf - -inf */
    k->numbers[CUDNN_GRAPH_WINDOW] = (float)p->shape.window;
    k->numbers[CUDNN_GRAPH_ONE] = 1;
    for (int run = 0; run < p->runs; run++)
        k->shift[run] = o->at.attention.run ? (int32_t)run_index(o, run) * o->at.attention.run : 0;
    for (int64_t sample = 0; sample < count_samples(o); sample += p->shape.samples)
        for (int64_t head = 0; head < o->at.heads.kv; head += p->shape.kv_heads)
            for (int run = 0; run < p->runs; run++)
                pack_part(k, run, sample, head);
    MUST(k->packs.failed == CUDNN_STATUS_SUCCESS, "cuDNN: %s", c->api->cudnnGetErrorString(k->packs.failed));
    k->next = c->calls;
    c->calls = k;
    return k;
}

static bool is_aligned(const op *o, const char *arena)
{
    operands x = operands_of(o);
    const tensor *all[] = {x.q, x.k, x.v, x.y, x.lse, x.dy, x.dq, x.dk, x.dv, x.document_start, o->scratch};
    uintptr_t bits = (uintptr_t)arena;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        bits |= all[i] ? (uintptr_t)all[i]->address : 0;
    return bits % ALIGNMENT == 0;
}

static bool open_graphs(plan *p)
{
    for (int i = 0; i < p->runs; i++) {
        cudnn_graph_shape of = shape_of_run(&p->shape, &p->first, i);
        p->graph[i] = cudnn_graph_open(p->owner->api, p->owner->device.made[0], &of);
        if (!p->graph[i])
            return false;
    }
    return true;
}

/* Finds or makes the plan; it is not `open` if the library has no candidate. */
static plan *plan_for(cudnn *c, const cudnn_graph_shape *a, const op *o)
{
    for (plan *p = c->plans; p; p = p->next)
        if (!memcmp(&p->shape, a, sizeof *a) && operands_of(o).q->shape[0] == operands_of(&p->first).q->shape[0] &&
            o->at.heads.q == p->first.at.heads.q && o->at.attention.run == p->first.at.attention.run &&
            o->at.attention.rank == p->first.at.attention.rank)
            return p;
    plan *p = must_calloc(1, sizeof *p);
    p->shape = *a;
    p->parts = o->at.heads.kv / a->kv_heads * (count_samples(o) / a->samples);
    p->runs = o->at.attention.run ? TOKEN_RUNS : 1;
    p->owner = c;
    p->first = *o;
    p->open = open_graphs(p);
    p->next = c->plans;
    c->plans = p;
    if (p->open)
        offer_plan(c, p);
    return p;
}

void cudnn_prepare_on(cudnn *c, op *o)
{
    enum { LAST_BAD = 91500, KEYS = 128 };
    cudnn_graph_shape a;
    o->prepared = NULL;
    if (!c || !find_part(&a, o) || !is_aligned(o, c->arena) || !o->scratch ||
        tensor_bytes(o->scratch) < layout_of(&a, o).bytes)
        return;
    /* Up to 9.15 the backward pass is wrong if the last tile of keys is partial and the graph has no padding mask, as
     * ours (cudnn-frontend adds one: scaled_dot_product_flash_attention.h). */
    if (a.backward && a.sequence % KEYS && c->api->cudnnGetVersion() <= LAST_BAD)
        return;
    a.varies = a.backward && c->with.varies;
    a.major = c->with.major;
    a.minor = c->with.minor;
    plan *p = plan_for(c, &a, o);
    if (!p->open)
        return;
    o->prepared = &call_make(c, p, o)->prepared;
    if (!p->first.prepared)
        p->first.prepared = o->prepared;
}

/* ---- the interface --------------------------------------------------------------------------------------------- */

void cudnn_open(cudnn **out, const cudnn_options *with)
{
    *out = NULL;
    cudnn_api *api;
    if (cudnn_api_open(&api) != STATUS_OK)
        return; /* cuDNN is optional; the self-check prints the failure */
    cudnn *c = must_calloc(1, sizeof *c);
    c->api = api;
    c->with = *with;
    c->device.api = api;
    int32_t gpu = with->gpu;
    cudnnStatus_t s = api->cudnnCreate(&c->handle);
    if (s == CUDNN_STATUS_SUCCESS)
        s = api->cudnnSetStream(c->handle, with->stream);
    cudnnBackendDescriptor_t d = cudnn_api_make(&c->device, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnn_api_set(&c->device, d, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, &gpu);
    cudnn_api_finish(&c->device, d);
    if (s != CUDNN_STATUS_SUCCESS || c->device.failed != CUDNN_STATUS_SUCCESS)
        cudnn_close(c);
    else
        *out = c;
}

bool cudnn_words(char *out, int bytes, const cudnn *c)
{
    cudnn_api *api = NULL;
    if (c)
        snprintf(out, (size_t)bytes, "version %zu, built with %d", c->api->cudnnGetVersion(), (int)CUDNN_VERSION);
    else if (cudnn_api_open(&api) != STATUS_OK)
        snprintf(out, (size_t)bytes, "%s", status_message());
    else
        snprintf(out, (size_t)bytes, "version %zu is there, and does not start", api->cudnnGetVersion());
    cudnn_api_close(api);
    return c != NULL;
}

void cudnn_use_arena(cudnn *c, char *arena)
{
    if (c)
        c->arena = arena;
}

void cudnn_close(cudnn *c)
{
    if (!c)
        return;
    for (call *k = c->calls, *next; k; k = next) {
        next = k->next;
        cudnn_api_drop(&k->packs);
        free(k);
    }
    for (plan *p = c->plans, *next; p; p = next) {
        next = p->next;
        for (int i = 0; i < TOKEN_RUNS; i++)
            cudnn_graph_close(p->graph[i]);
        free(p);
    }
    cudnn_api_drop(&c->device);
    if (c->handle)
        c->api->cudnnDestroy(c->handle);
    cudnn_api_close(c->api);
    free(c);
}
