/* The backward pass writes dS, 2 bytes for each pair of a query and a key of each head (cudnn_graph.c). So that its
 * workspace stays bounded it is divided: into equal numbers of samples, or within a sample into equal numbers of
 * key/value heads with the query heads that share them, as many at once as the plan has left memory for
 * (op_attributes.workspace). Parts run one after the other.
 *
 * The statistics that cuDNN reads in the backward pass must be [sample, head, query] without gaps (before 9.26 other
 * strides are misread without a word), ours are [head, sample, query]: with several samples they are copied.
 *
 *     scratch of the backward pass      delta of one part | lse, copied | workspace of one part
 */
#include "kernels/cuda/cudnn.h"

#include <float.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/attention_sizes.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/cudnn_graph.h"
#include "kernels/cuda/host.h"

enum { ALIGNMENT = 16, PIECE = 256, OWN = 0, HOPPER = 9, DOCUMENTS = 4 };

/* What a part may always ask for; a test divides small ops, too. */
#ifndef CUDNN_WORKSPACE_MOST
#define CUDNN_WORKSPACE_MOST (128 << 20)
#endif

typedef struct plan {
    cudnn_graph_shape shape; /* of a part */
    int64_t parts;
    cudnn_graph *graph;
    int chosen; /* OWN, or 1 + the graph's candidate */
    op first;   /* that it was made for: what it is timed on */
    cudnn *owner;
    struct plan *next;
} plan;

/* What is prepared for an op: its addresses, a pack for each part. */
typedef struct call {
    op_prepared prepared; /* first */
    plan *plan;
    cudnn_api_builder packs;
    float numbers[CUDNN_GRAPH_OPERANDS]; /* by operand: those that are numbers */
    const char *lse;                     /* to be copied, or NULL */
    char *lse_copy;
    int64_t lse_pitch, samples, heads; /* of the op */
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

/* ---- what an op is to the library ------------------------------------------------------------------------------ */

typedef struct operands {
    const tensor *q, *k, *v, *y, *lse, *document_start, *places, *dy, *dq, *dk, *dv;
} operands;

static operands operands_of(const op *o)
{
    if (!op_has(o, OP_GRADIENT))
        return (operands){.q = o->in[0],
                          .k = o->in[1],
                          .v = o->in[2],
                          .document_start = o->in[3],
                          .places = o->in[4],
                          .y = o->out[0],
                          .lse = o->out[1]};
    return (operands){.dy = o->in[0],
                      .q = o->in[1],
                      .k = o->in[2],
                      .v = o->in[3],
                      .y = o->in[4],
                      .lse = o->in[5],
                      .document_start = o->in[6],
                      .places = o->in[7],
                      .dq = o->out[0],
                      .dk = o->out[1],
                      .dv = o->out[2]};
}

static int64_t v_head_size(const op *o)
{
    return operands_of(o).v->shape[1] / o->at.kv_heads;
}

/* Do all rows begin at multiples of 16 bytes, if the arena's tensors do? */
static bool rows_are_aligned(const operands *x)
{
    const tensor *rows[] = {x->q, x->k, x->v, x->y, x->dy, x->dq, x->dk, x->dv};
    for (int i = 0; i < 8; i++)
        if (rows[i] && (rows[i]->pitch % (ALIGNMENT / 2) || (rows[i]->base && rows[i]->offset % ALIGNMENT)))
            return false;
    return true;
}

static bool takes(const op *o)
{
    if (!op_is(o, OP_CLASS_ATTENTION))
        return false;
    operands x = operands_of(o);
    return !x.places && rows_are_aligned(&x) && x.q->type != DTYPE_FP32 && x.q->shape[0] > 0 &&
           x.q->shape[0] % o->at.sequence == 0 && attention_suits_cudnn((int)o->at.head_size) &&
           attention_suits_cudnn((int)v_head_size(o)) && o->at.heads % o->at.kv_heads == 0;
}

/* The next smaller number that divides n, or 0. */
static int64_t divisor_below(int64_t n, int64_t d)
{
    do
        d--;
    while (d > 0 && n % d);
    return d;
}

static bool copies_lse(const cudnn_graph_shape *a, const op *o)
{
    const tensor *lse = operands_of(o).lse;
    return a->backward && (lse->shape[1] != a->sequence || lse->pitch != a->sequence);
}

/* Offsets within the scratch. */
typedef struct layout {
    int64_t delta, lse, workspace, bytes;
} layout;

static int64_t rounded(int64_t bytes)
{
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

static layout layout_of(const cudnn_graph_shape *a, const op *o)
{
    layout l = {0};
    l.lse = a->backward ? rounded(a->samples * a->heads * a->sequence * 4) : 0;
    l.workspace = l.lse + (copies_lse(a, o) ? rounded(tensor_elements(operands_of(o).lse) * 4) : 0);
    l.bytes = l.workspace + a->workspace;
    return l;
}

static bool too_large(const cudnn_graph_shape *a, const op *o)
{
    cudnn_graph_shape with = *a;
    with.workspace = cudnn_graph_workspace(a);
    return with.workspace > CUDNN_WORKSPACE_MOST && layout_of(&with, o).bytes > o->at.workspace;
}

/* The largest part of the op whose workspace is not too large. */
static bool part_of(cudnn_graph_shape *out, const op *o)
{
    if (!takes(o))
        return false;
    operands x = operands_of(o);
    int64_t s = o->at.sequence, samples = x.q->shape[0] / s, shared = o->at.heads / o->at.kv_heads;
    cudnn_graph_shape a;
    memset(&a, 0, sizeof a);
    a.samples = samples;
    a.sequence = s;
    a.heads = o->at.heads;
    a.kv_heads = o->at.kv_heads;
    a.head_size = o->at.head_size;
    a.v_head_size = v_head_size(o);
    a.window = o->at.window < s ? o->at.window : 0;
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
    while (a.samples > 1 && too_large(&a, o))
        a.samples = divisor_below(samples, a.samples);
    while (a.kv_heads > 0 && too_large(&a, o)) {
        a.kv_heads = divisor_below(o->at.kv_heads, a.kv_heads);
        a.heads = a.kv_heads * shared;
    }
    bool whole = a.samples == samples && a.heads == o->at.heads;
    if (a.kv_heads == 0 || (!whole && a.samples * a.heads * s * 4 % ALIGNMENT) ||
        (a.documents && a.samples < samples && a.samples * s * 4 % ALIGNMENT))
        return false;
    a.lse_sample = a.backward ? a.heads * s : s;
    a.lse_head = a.backward ? s : x.lse->pitch;
    a.workspace = cudnn_graph_workspace(&a);
    *out = a;
    return true;
}

int64_t cudnn_scratch_bytes(const op *o)
{
    cudnn_graph_shape a;
    return part_of(&a, o) ? layout_of(&a, o).bytes : 0;
}

/* ---- running --------------------------------------------------------------------------------------------------- */

static cudnnStatus_t launch(const call *k, cudnnBackendDescriptor_t compiled, cudaStream_t stream)
{
    const plan *p = k->plan;
    const cudnn *c = p->owner;
    int64_t row = p->shape.sequence * 4;
    for (int64_t i = 0; k->lse && i < k->samples; i++)
        CUDA_MUST(cudaMemcpy2DAsync(k->lse_copy + i * k->heads * row, (size_t)row, k->lse + i * row,
                                    (size_t)k->lse_pitch * 4, (size_t)row, (size_t)k->heads, cudaMemcpyDeviceToDevice,
                                    stream));
    cudnnStatus_t s = CUDNN_STATUS_SUCCESS;
    for (int i = 0; i < k->packs.count && s == CUDNN_STATUS_SUCCESS; i++)
        s = c->api->cudnnBackendExecute(c->handle, compiled, k->packs.made[i]);
    return s;
}

static bool run_chosen(const op_prepared *self, const op *o, const run_context *r)
{
    const call *k = (const call *)self;
    (void)o;
    const plan *p = k->plan;
    if (p->chosen == OWN)
        return false;
    cudnnStatus_t s = launch(k, cudnn_graph_plan(p->graph, p->chosen - 1), r->stream);
    MUST(s == CUDNN_STATUS_SUCCESS, "cuDNN: %s", p->owner->api->cudnnGetErrorString(s));
    return true;
}

/* ---- a choice of candidates
 * ------------------------------------------------------------------------------------------ */

static bool run_candidate(void *plan_, int candidate, cudaStream_t stream)
{
    plan *p = plan_;
    if (candidate != OWN) {
        cudnnBackendDescriptor_t compiled = cudnn_graph_plan(p->graph, candidate - 1);
        return compiled && launch((const call *)p->first.prepared, compiled, stream) == CUDNN_STATUS_SUCCESS;
    }
    const run_context r = {.arena = p->owner->arena, .stream = stream};
    int before = p->chosen;
    p->chosen = OWN;
    (p->shape.backward ? cuda_attention_grad : cuda_attention)(&p->first, &r);
    p->chosen = before;
    return true;
}

static void write_candidate(char *out, int bytes, const void *plan_, int candidate)
{
    const plan *p = plan_;
    snprintf(out, (size_t)bytes, "%s%s", candidate == OWN ? "own" : "cuDNN ",
             candidate == OWN ? "" : cudnn_graph_words(p->graph, candidate - 1));
}

/* "cuDNN" alone is its first candidate that compiles. */
static status take_candidate(void *plan_, const char *words)
{
    plan *p = plan_;
    char why[DEVICE_CHOICE_VALUE] = "this cuDNN has no such candidate for it";
    for (int candidate = OWN; candidate <= cudnn_graph_candidates(p->graph); candidate++) {
        char known[DEVICE_CHOICE_VALUE];
        write_candidate(known, sizeof known, p, candidate);
        if (strcmp(known, words) != 0 && (candidate == OWN || strcmp(words, "cuDNN") != 0))
            continue;
        if (candidate != OWN && !cudnn_graph_plan(p->graph, candidate - 1)) {
            cudnn_graph_refusal(why, sizeof why, p->graph, candidate - 1);
            continue;
        }
        p->chosen = candidate;
        return STATUS_OK;
    }
    return status_fail(STATUS_FAILED, "%s", why);
}

static tuning_operand region(const tensor *t, char *arena)
{
    if (!t)
        return (tuning_operand){0};
    int64_t columns = tensor_elements(t) / t->shape[0];
    return (tuning_operand){.at = tensor_at(t, arena),
                            .bytes = ((t->shape[0] - 1) * t->pitch + columns) * dtype_bytes((dtype)t->type),
                            .type = (dtype)t->type};
}

/* Documents to time with: DOCUMENTS in a sample. Our kernels pass over the tiles of other documents, cuDNN's compute
 * them and mask the scores, so that the longer the documents are, the better for cuDNN. */
static void give_documents(void *out, int64_t bytes, const void *plan_)
{
    const plan *p = plan_;
    int32_t *starts = out;
    int64_t length = (p->shape.sequence + DOCUMENTS - 1) / DOCUMENTS;
    for (int64_t i = 0; i < bytes / 4; i++)
        starts[i] = (int32_t)(i % p->shape.sequence / length * length);
}

enum { PITCHES_TEXT = 200 };

static const char *write_pitches(char *out, int bytes, const cudnn_graph_shape *a, const tensor *lse)
{
    const int64_t all[] = {a->q_pitch,  a->k_pitch,  a->v_pitch,  a->y_pitch, a->dy_pitch,
                           a->dq_pitch, a->dk_pitch, a->dv_pitch, lse->pitch};
    int used = 0;
    for (unsigned i = 0; i < sizeof all / sizeof *all && used < bytes; i++)
        used += snprintf(out + used, (size_t)(bytes - used), "%s%lld", i ? " " : "", (long long)all[i]);
    return out;
}

static void offer(const cudnn *c, plan *p)
{
    const cudnn_graph_shape *a = &p->shape;
    const op *o = &p->first;
    operands x = operands_of(o);
    char pitches[PITCHES_TEXT];
    tuning_item item = {.plan = p,
                        .candidates = 1 + cudnn_graph_candidates(p->graph),
                        .run = run_candidate,
                        .write = write_candidate,
                        .take = take_candidate};
    int length = snprintf(
        item.key, sizeof item.key,
        "%s %s, %lld tokens of samples of %lld, heads %d %d of %lld %lld, window %lld, pitch %s, parts %lld%s%s | "
        "cuDNN %zu",
        op_row_of(o)->name, dtype_name((dtype)x.q->type), (long long)x.q->shape[0], (long long)a->sequence, o->at.heads,
        o->at.kv_heads, (long long)a->head_size, (long long)a->v_head_size, (long long)a->window,
        write_pitches(pitches, sizeof pitches, a, x.lse), (long long)p->parts, a->documents ? ", documents" : "",
        a->varies ? ", sums in any order" : "", c->api->cudnnGetVersion());
    MUST(length < (int)sizeof item.key, "%s ...", item.key);
    item.reads[0] = region(x.q, c->arena);
    item.reads[1] = region(x.k, c->arena);
    item.reads[2] = region(x.v, c->arena);
    item.reads[3] = region(x.document_start, c->arena);
    item.reads[3].give = give_documents;
    if (a->backward) {
        item.reads[4] = region(x.y, c->arena);
        item.reads[5] = region(x.dy, c->arena);
        item.reads[6] = region(x.lse, c->arena);
    }
    tuning_add(c->with.tuning, &item);
}

/* ---- preparing ------------------------------------------------------------------------------------------------- */

static void pack(call *k, char *const at[CUDNN_GRAPH_OPERANDS], char *workspace)
{
    cudnn_api_builder *b = &k->packs;
    int64_t ids[CUDNN_GRAPH_OPERANDS];
    void *places[CUDNN_GRAPH_OPERANDS];
    int count = 0;
    for (int i = 0; i < CUDNN_GRAPH_OPERANDS; i++)
        if (at[i]) {
            ids[count] = i;
            places[count++] = at[i];
        }
    cudnnBackendDescriptor_t d = cudnn_api_make(b, CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, count, ids);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, count, places);
    cudnn_api_set(b, d, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, &workspace);
    cudnn_api_finish(b, d);
}

/* Where the part begins in the 16-bit rows of `t`: heads of `size` elements, from token and head on. */
static char *part_at(const tensor *t, char *arena, int64_t token, int64_t head, int64_t size)
{
    return (char *)tensor_at(t, arena) + (token * t->pitch + head * size) * 2;
}

/* Addresses of the part that begins with this sample and this key/value head. */
static void pack_part(call *k, const op *o, char *arena, int64_t sample, int64_t kv_head)
{
    const cudnn_graph_shape *a = &k->plan->shape;
    operands x = operands_of(o);
    layout l = layout_of(a, o);
    char *scratch = tensor_at(o->scratch, arena), *at[CUDNN_GRAPH_OPERANDS] = {0};
    int64_t token = sample * a->sequence, head = kv_head * (o->at.heads / o->at.kv_heads);
    int64_t size = a->head_size, v_size = a->v_head_size;
    at[CUDNN_GRAPH_Q] = part_at(x.q, arena, token, head, size);
    at[CUDNN_GRAPH_K] = part_at(x.k, arena, token, kv_head, size);
    at[CUDNN_GRAPH_V] = part_at(x.v, arena, token, kv_head, v_size);
    at[CUDNN_GRAPH_Y] = part_at(x.y, arena, token, head, v_size);
    at[CUDNN_GRAPH_LSE] = k->lse ? k->lse_copy + (sample * o->at.heads + head) * a->sequence * 4
                                 : (char *)tensor_at(x.lse, arena) + (head * x.lse->pitch + token) * 4;
    if (a->backward) {
        at[CUDNN_GRAPH_DY] = part_at(x.dy, arena, token, head, v_size);
        at[CUDNN_GRAPH_DQ] = part_at(x.dq, arena, token, head, size);
        at[CUDNN_GRAPH_DK] = part_at(x.dk, arena, token, kv_head, size);
        at[CUDNN_GRAPH_DV] = part_at(x.dv, arena, token, kv_head, v_size);
        at[CUDNN_GRAPH_DELTA] = scratch + l.delta;
        at[CUDNN_GRAPH_ONE] = (char *)&k->numbers[CUDNN_GRAPH_ONE];
    }
    if (a->documents)
        at[CUDNN_GRAPH_START] = (char *)tensor_at(x.document_start, arena) + token * 4;
    at[CUDNN_GRAPH_SCALE] = (char *)&k->numbers[CUDNN_GRAPH_SCALE];
    at[CUDNN_GRAPH_MASKED] = (char *)&k->numbers[CUDNN_GRAPH_MASKED];
    if (a->window > 0)
        at[CUDNN_GRAPH_WINDOW] = (char *)&k->numbers[CUDNN_GRAPH_WINDOW];
    pack(k, at, scratch + l.workspace);
}

static call *call_make(cudnn *c, plan *p, const op *o)
{
    call *k = must_calloc(1, sizeof *k);
    const tensor *lse = operands_of(o).lse;
    char *arena = c->arena;
    k->prepared.run = run_chosen;
    k->plan = p;
    k->packs.api = c->api;
    k->samples = lse->shape[1] / p->shape.sequence;
    k->heads = o->at.heads;
    k->numbers[CUDNN_GRAPH_SCALE] = o->at.scale;
    k->numbers[CUDNN_GRAPH_MASKED] = -FLT_MAX; /* a tile of nothing else must not leave -inf - -inf */
    k->numbers[CUDNN_GRAPH_WINDOW] = (float)p->shape.window;
    k->numbers[CUDNN_GRAPH_ONE] = 1;
    if (copies_lse(&p->shape, o)) {
        k->lse = tensor_at(lse, arena);
        k->lse_pitch = lse->pitch;
        k->lse_copy = (char *)tensor_at(o->scratch, arena) + layout_of(&p->shape, o).lse;
    }
    for (int64_t sample = 0; sample < k->samples; sample += p->shape.samples)
        for (int64_t head = 0; head < o->at.kv_heads; head += p->shape.kv_heads)
            pack_part(k, o, arena, sample, head);
    MUST(k->packs.failed == CUDNN_STATUS_SUCCESS, "cuDNN: %s", c->api->cudnnGetErrorString(k->packs.failed));
    k->next = c->calls;
    c->calls = k;
    return k;
}

static bool aligned(const op *o, const char *arena)
{
    operands x = operands_of(o);
    const tensor *all[] = {x.q, x.k, x.v, x.y, x.lse, x.dy, x.dq, x.dk, x.dv, x.document_start, o->scratch};
    uintptr_t bits = (uintptr_t)arena;
    for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
        bits |= all[i] ? (uintptr_t)all[i]->address : 0;
    return bits % ALIGNMENT == 0;
}

static bool same(const plan *p, const cudnn_graph_shape *a, const op *o)
{
    operands x = operands_of(o), mine = operands_of(&p->first);
    return !memcmp(&p->shape, a, sizeof *a) && x.lse->pitch == mine.lse->pitch && x.q->shape[0] == mine.q->shape[0] &&
           o->at.heads == p->first.at.heads;
}

/* A plan without a graph: the library has no candidate. */
static plan *plan_for(cudnn *c, const cudnn_graph_shape *a, const op *o)
{
    for (plan *p = c->plans; p; p = p->next)
        if (same(p, a, o))
            return p;
    plan *p = must_calloc(1, sizeof *p);
    p->shape = *a;
    p->parts = o->at.kv_heads / a->kv_heads * (operands_of(o).q->shape[0] / a->sequence / a->samples);
    p->owner = c;
    p->first = *o;
    p->graph = cudnn_graph_open(c->api, c->device.made[0], a);
    p->next = c->plans;
    c->plans = p;
    if (p->graph)
        offer(c, p);
    return p;
}

/* Up to 9.15 the backward pass is wrong where the last tile of keys is not full, unless lengths are given as a padding
 * mask: cudnn-frontend gives them (scaled_dot_product_flash_attention.h), and our graph has none. */
static bool masks_badly(const cudnn *c, const cudnn_graph_shape *a)
{
    enum { LAST_BAD = 91500, KEYS = 128 };
    return a->backward && a->sequence % KEYS && c->api->cudnnGetVersion() <= LAST_BAD;
}

void cudnn_prepare_on(cudnn *c, op *o)
{
    cudnn_graph_shape a;
    o->prepared = NULL;
    /* whether other architectures' engines keep an order in the backward pass is not known */
    if (!c || !part_of(&a, o) || masks_badly(c, &a) || (a.backward && c->with.major != HOPPER && !c->with.varies) ||
        !aligned(o, c->arena) || !o->scratch || tensor_bytes(o->scratch) < layout_of(&a, o).bytes)
        return;
    a.varies = a.backward && c->with.varies;
    plan *p = plan_for(c, &a, o);
    if (!p->graph)
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
        return; /* what it says is for a self-check: nobody has to have cuDNN */
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
        cudnn_graph_close(p->graph);
        free(p);
    }
    cudnn_api_drop(&c->device);
    if (c->handle)
        c->api->cudnnDestroy(c->handle);
    cudnn_api_close(c->api);
    free(c);
}
