/* The patterns that cuDNN's fused attention engines recognise, in its documentation's terms (Graph API, fused flash
 * attention). Scores are virtual: they exist on the chip only. With m = row maximum,
 *
 *     forward    S = mask(scale Q K^T), Z = sum exp(S - m), P = exp(S - m) / Z, Y = P V, lse = m + ln Z
 *     backward   P = exp(mask(scale Q K^T - lse)), delta = rowsum(dY Y), dS = scale P (dY V^T - delta)
 *                dV = P^T dY, dK = dS^T Q, dQ = dS K; dK and dV summed over the heads that share them
 *
 * There are two patterns for dQ. Into an fp32 tensor in working memory the engines add with atomics, in any order, and
 * no numerical note says so (9.19 on sm_90). Straight into a 16-bit tensor, as here, they write dS to memory (2 bytes
 * for each pair of a query and a key) and compute dQ by one more product, in an order that follows from the sizes.
 */
#include "kernels/cuda/cudnn_graph.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

enum { OPERATIONS = 40, DIMENSIONS = 4, ALIGNMENT = 16, KNOBS = 16, NOTES = 16 };
enum { HOPPER = 9, BLACKWELL = 10 }; /* major compute capability */

typedef struct candidate {
    cudnnBackendDescriptor_t config;
    char words[CUDNN_GRAPH_WORDS];
    bool compiled;
    int64_t workspace;     /* bytes that it wants */
    cudnn_api_builder own; /* the plan's descriptors */
    cudnnBackendDescriptor_t plan;
} candidate;

struct cudnn_graph {
    cudnn_graph_shape shape;
    cudnn_api_builder b;
    cudnnBackendDescriptor_t device;
    cudnnBackendDescriptor_t operations[OPERATIONS];
    int held;
    int64_t next; /* unique id */
    candidate candidates[CUDNN_GRAPH_CANDIDATES];
    int count;
};

/* A tensor of the graph: [samples, heads, rows, columns]. */
typedef struct value {
    cudnnBackendDescriptor_t d;
    int64_t shape[DIMENSIONS];
} value;

/* ---- tensors --------------------------------------------------------------------------------------------------- */

static value describe(cudnn_graph *g, int64_t id, cudnnDataType_t type, const int64_t shape[], const int64_t strides[],
                      cudnnBackendAttributeName_t flag)
{
    value v;
    int64_t alignment = ALIGNMENT;
    bool yes = true;
    memcpy(v.shape, shape, sizeof v.shape);
    v.d = cudnn_api_make(&g->b, CUDNN_BACKEND_TENSOR_DESCRIPTOR);
    cudnn_api_set(&g->b, v.d, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, &id);
    cudnn_api_set(&g->b, v.d, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_api_set(&g->b, v.d, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, DIMENSIONS, shape);
    cudnn_api_set(&g->b, v.d, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, DIMENSIONS, strides);
    cudnn_api_set(&g->b, v.d, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, &alignment);
    if (flag != CUDNN_ATTR_TENSOR_UNIQUE_ID)
        cudnn_api_set(&g->b, v.d, flag, CUDNN_TYPE_BOOLEAN, 1, &yes);
    cudnn_api_finish(&g->b, v.d);
    return v;
}

/* A virtual tensor, with contiguous columns or, turned, contiguous rows. */
static value virtual_value(cudnn_graph *g, cudnnDataType_t type, const int64_t shape[], bool transposed)
{
    int64_t rows = shape[2], columns = shape[3];
    int64_t strides[] = {shape[1] * rows * columns, rows * columns, transposed ? 1 : columns, transposed ? rows : 1};
    return describe(g, g->next++, type, shape, strides, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

static value number(cudnn_graph *g, cudnn_graph_operand id)
{
    static const int64_t ones[DIMENSIONS] = {1, 1, 1, 1};
    return describe(g, id, CUDNN_DATA_FLOAT, ones, ones, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
}

static cudnnDataType_t type_of(const cudnn_graph *g)
{
    return g->shape.fp16 ? CUDNN_DATA_HALF : CUDNN_DATA_BFLOAT16;
}

/* Heads of `size` elements in a row of the given pitch: [samples, heads, sequence, size]. */
static value rows(cudnn_graph *g, cudnn_graph_operand id, int64_t heads, int64_t size, int64_t pitch)
{
    const cudnn_graph_shape *a = &g->shape;
    const int64_t shape[] = {a->samples, heads, a->sequence, size};
    const int64_t strides[] = {a->sequence * pitch, size, pitch, 1};
    return describe(g, id, type_of(g), shape, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* Keys or values in the same way: [samples, kv_heads, keys, size], or, turned, [.., size, keys]. */
static value key_rows(cudnn_graph *g, cudnn_graph_operand id, int64_t size, int64_t pitch, bool transposed)
{
    const cudnn_graph_shape *a = &g->shape;
    int64_t apart = id == CUDNN_GRAPH_DK || id == CUDNN_GRAPH_DV ? a->gradients_apart : a->keys_apart;
    int64_t shape[] = {a->samples, a->kv_heads, a->keys, size};
    int64_t strides[] = {apart * pitch, size, pitch, 1};
    if (transposed) {
        shape[2] = size, shape[3] = a->keys;
        strides[2] = 1, strides[3] = pitch;
    }
    return describe(g, id, type_of(g), shape, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* One number for each query, [samples, heads, sequence] without gaps. */
static value statistics(cudnn_graph *g, cudnn_graph_operand id)
{
    const cudnn_graph_shape *a = &g->shape;
    const int64_t shape[] = {a->samples, a->heads, a->sequence, 1};
    const int64_t strides[] = {a->heads * a->sequence, a->sequence, 1, 1};
    return describe(g, id, CUDNN_DATA_FLOAT, shape, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

static void add_operation(cudnn_graph *g, cudnnBackendDescriptor_t operation)
{
    MUST(g->held < OPERATIONS, "a graph of more than %d operations", OPERATIONS);
    g->operations[g->held++] = cudnn_api_finish(&g->b, operation);
}

typedef struct pointwise {
    cudnnPointwiseMode_t mode;
    cudnnDataType_t type; /* that it computes in */
    int64_t axis;         /* GEN_INDEX's */
} pointwise;

static void apply(cudnn_graph *g, pointwise p, value out, value x, const value *b, const value *t)
{
    cudnn_api_builder *k = &g->b;
    cudnnBackendDescriptor_t what = cudnn_api_make(k, CUDNN_BACKEND_POINTWISE_DESCRIPTOR);
    cudnn_api_set(k, what, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, &p.mode);
    cudnn_api_set(k, what, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, &p.type);
    if (p.mode == CUDNN_POINTWISE_GEN_INDEX)
        cudnn_api_set(k, what, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, &p.axis);
    cudnn_api_finish(k, what);
    cudnnBackendDescriptor_t o = cudnn_api_make(k, CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR, what);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, x.d);
    if (b)
        cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, b->d);
    if (t)
        cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, t->d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, out.d);
    add_operation(g, o);
}

/* fp32, of the shape of x */
static value computed(cudnn_graph *g, cudnnPointwiseMode_t mode, value x, const value *b)
{
    value out = virtual_value(g, CUDNN_DATA_FLOAT, x.shape, false);
    apply(g, (pointwise){mode, CUDNN_DATA_FLOAT, 0}, out, x, b, NULL);
    return out;
}

static void multiply(cudnn_graph *g, value out, value a, value b)
{
    static const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnn_api_builder *k = &g->b;
    cudnnBackendDescriptor_t what = cudnn_api_make(k, CUDNN_BACKEND_MATMUL_DESCRIPTOR);
    cudnn_api_set(k, what, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_api_finish(k, what);
    cudnnBackendDescriptor_t o = cudnn_api_make(k, CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC, a.d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC, b.d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC, out.d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_MATMUL_DESC, what);
    add_operation(g, o);
}

static void reduce(cudnn_graph *g, cudnnReduceTensorOp_t how, value out, value x)
{
    static const cudnnDataType_t type = CUDNN_DATA_FLOAT;
    cudnn_api_builder *k = &g->b;
    cudnnBackendDescriptor_t what = cudnn_api_make(k, CUDNN_BACKEND_REDUCTION_DESCRIPTOR);
    cudnn_api_set(k, what, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, &how);
    cudnn_api_set(k, what, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, &type);
    cudnn_api_finish(k, what);
    cudnnBackendDescriptor_t o = cudnn_api_make(k, CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, x.d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, out.d);
    cudnn_api_link(k, o, CUDNN_ATTR_OPERATION_REDUCTION_DESC, what);
    add_operation(g, o);
}

static value over_columns(cudnn_graph *g, cudnnReduceTensorOp_t how, value x)
{
    const int64_t shape[] = {x.shape[0], x.shape[1], x.shape[2], 1};
    value out = virtual_value(g, CUDNN_DATA_FLOAT, shape, false);
    reduce(g, how, out, x);
    return out;
}

/* Gives the same memory other dimensions and strides: here, transposed. */
static value reshape(cudnn_graph *g, value out, value x)
{
    cudnnBackendDescriptor_t o = cudnn_api_make(&g->b, CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR);
    cudnn_api_link(&g->b, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, x.d);
    cudnn_api_link(&g->b, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, out.d);
    add_operation(g, o);
    return out;
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

static value index_along(cudnn_graph *g, value like, int64_t axis)
{
    value out = virtual_value(g, CUDNN_DATA_INT32, like.shape, false);
    apply(g, (pointwise){CUDNN_POINTWISE_GEN_INDEX, CUDNN_DATA_FLOAT, axis}, out, like, NULL, NULL);
    return out;
}

/* The queries' positions among the keys. */
static value query_index(cudnn_graph *g, value like)
{
    value index = index_along(g, like, 2);
    if (g->shape.keys == g->shape.sequence)
        return index;
    static const int64_t ones[DIMENSIONS] = {1, 1, 1, 1};
    value shift = describe(g, CUDNN_GRAPH_SHIFT, CUDNN_DATA_INT32, ones, ones, CUDNN_ATTR_TENSOR_IS_BY_VALUE),
          out = virtual_value(g, CUDNN_DATA_INT32, like.shape, false);
    apply(g, (pointwise){CUDNN_POINTWISE_ADD, CUDNN_DATA_INT32, 0}, out, index, &shift, NULL);
    return out;
}

/* x where `left compare right`, else the number for masked scores */
static value keep_where(cudnn_graph *g, cudnnPointwiseMode_t compare, value left, value right, value x)
{
    value seen = virtual_value(g, CUDNN_DATA_BOOLEAN, x.shape, false), masked = number(g, CUDNN_GRAPH_MASKED);
    value out = virtual_value(g, CUDNN_DATA_FLOAT, x.shape, false);
    apply(g, (pointwise){compare, CUDNN_DATA_BOOLEAN, 0}, seen, left, &right, NULL);
    apply(g, (pointwise){CUDNN_POINTWISE_BINARY_SELECT, CUDNN_DATA_FLOAT, 0}, out, x, &masked, &seen);
    return out;
}

/* The first token of each query's document. */
static value starts(cudnn_graph *g)
{
    const cudnn_graph_shape *a = &g->shape;
    const int64_t shape[] = {a->samples, 1, a->sequence, 1}, strides[] = {a->sequence, a->sequence, 1, 1};
    return describe(g, CUDNN_GRAPH_START, CUDNN_DATA_INT32, shape, strides, CUDNN_ATTR_TENSOR_UNIQUE_ID);
}

/* Masks scores: a query sees the keys up to its own position, in its document, and within a window keys with key +
 * window > query. */
static value mask(cudnn_graph *g, value scores)
{
    value query = query_index(g, scores), key = index_along(g, scores, 3);
    value kept = keep_where(g, CUDNN_POINTWISE_CMP_GE, query, key, scores);
    if (g->shape.documents)
        kept = keep_where(g, CUDNN_POINTWISE_CMP_GE, index_along(g, kept, 3), starts(g), kept);
    if (g->shape.window == 0)
        return kept;
    value window = number(g, CUDNN_GRAPH_WINDOW);
    query = query_index(g, kept);
    key = index_along(g, kept, 3);
    return keep_where(g, CUDNN_POINTWISE_CMP_GT, computed(g, CUDNN_POINTWISE_ADD, key, &window), query, kept);
}

/* A number for each query and key: [.., sequence, keys], or, turned, [.., keys, sequence]. */
static value pairs(cudnn_graph *g, cudnnDataType_t type, bool transposed)
{
    const cudnn_graph_shape *a = &g->shape;
    const int64_t shape[] = {a->samples, a->heads, transposed ? a->keys : a->sequence,
                             transposed ? a->sequence : a->keys};
    return virtual_value(g, type, shape, transposed);
}

/* scale Q K^T, with K^T as a tensor of its own strides */
static value scores(cudnn_graph *g, value q, value k_transposed, const value *scale)
{
    value product = pairs(g, CUDNN_DATA_FLOAT, false);
    multiply(g, product, q, k_transposed);
    return computed(g, CUDNN_POINTWISE_MUL, product, scale);
}

static void forward(cudnn_graph *g)
{
    const cudnn_graph_shape *a = &g->shape;
    int64_t d = a->head_size, e = a->v_head_size;
    value q = rows(g, CUDNN_GRAPH_Q, a->heads, d, a->q_pitch), y = rows(g, CUDNN_GRAPH_Y, a->heads, e, a->y_pitch);
    value k = key_rows(g, CUDNN_GRAPH_K, d, a->k_pitch, true), v = key_rows(g, CUDNN_GRAPH_V, e, a->v_pitch, false);
    value lse = statistics(g, CUDNN_GRAPH_LSE), scale = number(g, CUDNN_GRAPH_SCALE);
    value s = mask(g, scores(g, q, k, &scale));
    value most = over_columns(g, CUDNN_REDUCE_TENSOR_MAX, s);
    value exponential = computed(g, CUDNN_POINTWISE_EXP, computed(g, CUDNN_POINTWISE_SUB, s, &most), NULL);
    value sum = over_columns(g, CUDNN_REDUCE_TENSOR_ADD, exponential);
    value logarithm = computed(g, CUDNN_POINTWISE_LOG, sum, NULL), p = pairs(g, type_of(g), false);
    apply(g, (pointwise){CUDNN_POINTWISE_ADD, CUDNN_DATA_FLOAT, 0}, lse, most, &logarithm, NULL);
    apply(g, (pointwise){CUDNN_POINTWISE_DIV, CUDNN_DATA_FLOAT, 0}, p, exponential, &sum, NULL);
    multiply(g, y, p, v);
}

/* The gradient of K or V, summed over the heads that share it. */
static void shared(cudnn_graph *g, value out, value weights, value x)
{
    const cudnn_graph_shape *a = &g->shape;
    value transposed = reshape(g, pairs(g, type_of(g), true), weights);
    if (a->heads == a->kv_heads) {
        multiply(g, out, transposed, x);
        return;
    }
    const int64_t shape[] = {a->samples, a->heads, a->keys, x.shape[3]};
    value each = virtual_value(g, type_of(g), shape, false);
    multiply(g, each, transposed, x);
    reduce(g, CUDNN_REDUCE_TENSOR_ADD, out, each);
}

static void backward(cudnn_graph *g)
{
    const cudnn_graph_shape *a = &g->shape;
    int64_t h = a->heads, kv = a->kv_heads, d = a->head_size, e = a->v_head_size;
    value q = rows(g, CUDNN_GRAPH_Q, h, d, a->q_pitch), k_transposed = key_rows(g, CUDNN_GRAPH_K, d, a->k_pitch, true);
    value v_transposed = key_rows(g, CUDNN_GRAPH_V, e, a->v_pitch, true), y = rows(g, CUDNN_GRAPH_Y, h, e, a->y_pitch);
    value dy = rows(g, CUDNN_GRAPH_DY, h, e, a->dy_pitch), dq = rows(g, CUDNN_GRAPH_DQ, h, d, a->dq_pitch);
    value dk = key_rows(g, CUDNN_GRAPH_DK, d, a->dk_pitch, false),
          dv = key_rows(g, CUDNN_GRAPH_DV, e, a->dv_pitch, false);
    value lse = statistics(g, CUDNN_GRAPH_LSE), scale = number(g, CUDNN_GRAPH_SCALE);
    value delta = statistics(g, CUDNN_GRAPH_DELTA), one = number(g, CUDNN_GRAPH_ONE);
    value terms = computed(g, CUDNN_POINTWISE_MUL, dy, &y);
    apply(g, (pointwise){CUDNN_POINTWISE_MUL, CUDNN_DATA_FLOAT, 0}, delta,
          over_columns(g, CUDNN_REDUCE_TENSOR_ADD, terms), &one, NULL);
    value s = scores(g, q, k_transposed, &scale);
    value p = computed(g, CUDNN_POINTWISE_EXP, mask(g, computed(g, CUDNN_POINTWISE_SUB, s, &lse)), NULL);
    shared(g, dv, p, dy);
    value dp = pairs(g, CUDNN_DATA_FLOAT, false);
    multiply(g, dp, dy, v_transposed);
    value ds = computed(g, CUDNN_POINTWISE_MUL, computed(g, CUDNN_POINTWISE_SUB, dp, &delta), &p);
    ds = computed(g, CUDNN_POINTWISE_MUL, ds, &scale);
    shared(g, dk, ds, q);
    const int64_t shape[] = {a->samples, kv, a->keys, d};
    const int64_t strides[] = {a->keys_apart * a->k_pitch, d, a->k_pitch, 1};
    value k = describe(g, g->next++, CUDNN_DATA_FLOAT, shape, strides, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    reshape(g, k, k_transposed);
    multiply(g, dq, ds, k);
}

/* ---- candidates ------------------------------------------------------------------------------------------------- */

static int64_t rounded(int64_t count, int64_t to)
{
    return (count + to - 1) / to * to;
}

int64_t cudnn_graph_workspace(const cudnn_graph_shape *a)
{
    enum { SMALL = 64 << 10 }; /* semaphores, descriptors of tensors */
    int64_t heads = a->samples * a->heads;
    if (!a->backward)
        return SMALL;
    /* dS; and dK and dV of each head, where they are summed over several */
    int64_t ds = heads * rounded(a->sequence, 64) * rounded(a->keys, 128) * 2;
    return SMALL + ds + (a->heads != a->kv_heads ? heads * a->keys * (a->head_size + a->v_head_size) * 2 : 0);
}

/* False for an engine with a note that its sums come in a varying order; such engines are used only if allowed. */
static bool repeatable(cudnn_api_builder *b, cudnnBackendDescriptor_t engine)
{
    cudnnBackendNumericalNote_t notes[NOTES];
    int64_t count = cudnn_api_get(b, engine, CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, CUDNN_TYPE_NUMERICAL_NOTE, NOTES, notes);
    for (int64_t i = 0; i < count && i < NOTES; i++)
        if (notes[i] == CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC)
            return false;
    return b->failed == CUDNN_STATUS_SUCCESS;
}

static void name_candidate(candidate *w, cudnn_api_builder *b, cudnnBackendDescriptor_t engine)
{
    cudnnBackendDescriptor_t knobs[KNOBS];
    int64_t number = 0;
    for (int i = 0; i < KNOBS; i++)
        knobs[i] = cudnn_api_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
    int64_t count =
        cudnn_api_get(b, w->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, KNOBS, knobs);
    cudnn_api_get(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &number);
    int length = snprintf(w->words, sizeof w->words, "engine %lld", (long long)number);
    for (int64_t i = 0; i < count && i < KNOBS && length < CUDNN_GRAPH_WORDS; i++) {
        cudnnBackendKnobType_t type = CUDNN_KNOB_TYPE_COUNTS;
        int64_t to = 0;
        cudnn_api_get(b, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &type);
        cudnn_api_get(b, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &to);
        length +=
            snprintf(w->words + length, sizeof w->words - (size_t)length, ", %d = %lld", (int)type, (long long)to);
    }
}

/* Keeps the heuristics' choices, except those marked as summing in any order. */
static void find_candidates(cudnn_graph *g, cudnnBackendDescriptor_t graph)
{
    static const cudnnBackendHeurMode_t mode = CUDNN_HEUR_MODE_A;
    cudnn_api_builder *b = &g->b;
    cudnnBackendDescriptor_t found[CUDNN_GRAPH_CANDIDATES],
        heuristic = cudnn_api_make(b, CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR);
    cudnn_api_link(b, heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, graph);
    cudnn_api_set(b, heuristic, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, &mode);
    cudnn_api_link(b, heuristic, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, g->device);
    cudnn_api_finish(b, heuristic);
    for (int i = 0; i < CUDNN_GRAPH_CANDIDATES; i++)
        found[i] = cudnn_api_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    int64_t count = cudnn_api_get(b, heuristic, CUDNN_ATTR_ENGINEHEUR_RESULTS, CUDNN_TYPE_BACKEND_DESCRIPTOR,
                                  CUDNN_GRAPH_CANDIDATES, found);
    for (int64_t i = 0; i < count && i < CUDNN_GRAPH_CANDIDATES; i++) {
        candidate *w = &g->candidates[g->count];
        cudnnBackendDescriptor_t engine = cudnn_api_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR);
        w->config = found[i];
        cudnn_api_get(b, w->config, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &engine);
        if (!g->shape.varies && !repeatable(b, engine))
            continue;
        name_candidate(w, b, engine);
        g->count += b->failed == CUDNN_STATUS_SUCCESS;
    }
}

typedef struct knob {
    cudnnBackendKnobType_t type;
    int64_t value;
} knob;

static const knob first_knobs[] = {{CUDNN_KNOB_TYPE_KERNEL_CFG, 31}, {CUDNN_KNOB_TYPE_STAGES, 2}};
static const knob later_knobs[] = {{CUDNN_KNOB_TYPE_TILE_M, 3},     {CUDNN_KNOB_TYPE_TILE_N, 2},
                                   {CUDNN_KNOB_TYPE_KERNEL_CFG, 2}, {CUDNN_KNOB_TYPE_STREAM_K, 0},
                                   {CUDNN_KNOB_TYPE_TILE_CGA_M, 0}, {CUDNN_KNOB_TYPE_STAGES, 2}};
#define KNOBS_OF(array) array, sizeof(array) / sizeof *(array)

/* Engines that keep an order in the backward pass of compute capability 10.x, which the heuristics' choices are not
 * known to do. cudnn-frontend asks for these where sums must not vary (override_heuristics_query in
 * node/scaled_dot_product_flash_attention.h of 1.17 to 1.23): from 9.18.0 on, but Transformer Engine trusts 9.18.1
 * first (its pull request 2584), and so do we. Its release 1.19 named another configuration for 9.21 and 9.22, all
 * later releases this one. For 10.4 and up its releases name engine 18 and then 17; we take 17 from 9.23 on. Our own
 * kernels compute all versions without a row, which are not known to keep an order. */
static const struct ordered_engine {
    int32_t least, most; /* minor compute capability */
    size_t from, before; /* versions of the library */
    int64_t number;
    const knob *knobs;
    size_t count;
} ordered_engines[] = {
    {0, 3, 91801, 92300, 5, KNOBS_OF(first_knobs)},
    {0, 3, 92300, SIZE_MAX, 5, KNOBS_OF(later_knobs)},
    {4, 9, 92300, SIZE_MAX, 17, KNOBS_OF(later_knobs)},
};
typedef struct ordered_engine ordered_engine;

static const ordered_engine *ordered_engine_of(const cudnn_api *api, const cudnn_graph_shape *a)
{
    size_t version = api->cudnnGetVersion();
    for (size_t i = 0; i < sizeof ordered_engines / sizeof *ordered_engines; i++) {
        const ordered_engine *e = &ordered_engines[i];
        if (a->major == BLACKWELL && a->minor >= e->least && a->minor <= e->most && version >= e->from &&
            version < e->before)
            return e;
    }
    return NULL;
}

static void take_ordered(cudnn_graph *g, cudnnBackendDescriptor_t graph, const ordered_engine *as)
{
    cudnn_api_builder *b = &g->b;
    candidate *w = &g->candidates[0];
    cudnnBackendDescriptor_t engine = cudnn_api_make(b, CUDNN_BACKEND_ENGINE_DESCRIPTOR), knobs[KNOBS];
    cudnn_api_link(b, engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, graph);
    cudnn_api_set(b, engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, &as->number);
    cudnn_api_link(b, engine, CUDNN_ATTR_ENGINE_DEVICEPROP, g->device);
    cudnn_api_finish(b, engine);
    for (size_t i = 0; i < as->count; i++) {
        knobs[i] = cudnn_api_make(b, CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR);
        cudnn_api_set(b, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, &as->knobs[i].type);
        cudnn_api_set(b, knobs[i], CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, &as->knobs[i].value);
        cudnn_api_finish(b, knobs[i]);
    }
    w->config = cudnn_api_make(b, CUDNN_BACKEND_ENGINECFG_DESCRIPTOR);
    cudnn_api_link(b, w->config, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
    cudnn_api_set(b, w->config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, (int64_t)as->count,
                  knobs);
    cudnn_api_finish(b, w->config);
    name_candidate(w, b, engine);
    g->count = b->failed == CUDNN_STATUS_SUCCESS;
}

cudnn_graph *cudnn_graph_open(const cudnn_api *api, cudnnBackendDescriptor_t device, const cudnn_graph_shape *a)
{
    bool chosen = a->backward && !a->varies && a->major != HOPPER;
    const ordered_engine *engine = chosen ? ordered_engine_of(api, a) : NULL;
    if (chosen && !engine)
        return NULL;
    cudnn_graph *g = must_calloc(1, sizeof *g);
    g->shape = *a;
    g->b.api = api;
    g->device = device;
    g->next = CUDNN_GRAPH_OPERANDS;
    if (a->backward)
        backward(g);
    else
        forward(g);
    cudnnBackendDescriptor_t graph = cudnn_api_make(&g->b, CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR);
    cudnn_api_set(&g->b, graph, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, g->held, g->operations);
    cudnn_api_finish(&g->b, graph);
    if (engine)
        take_ordered(g, graph, engine);
    else
        find_candidates(g, graph);
    if (g->count > 0)
        return g;
    cudnn_graph_close(g);
    return NULL;
}

void cudnn_graph_close(cudnn_graph *g)
{
    if (!g)
        return;
    for (int i = 0; i < g->count; i++)
        if (g->candidates[i].compiled)
            cudnn_api_drop(&g->candidates[i].own);
    cudnn_api_drop(&g->b);
    free(g);
}

int cudnn_graph_candidates(const cudnn_graph *g)
{
    return g->count;
}

const char *cudnn_graph_words(const cudnn_graph *g, int i)
{
    return g->candidates[i].words;
}

cudnnBackendDescriptor_t cudnn_graph_plan(cudnn_graph *g, int i)
{
    candidate *w = &g->candidates[i];
    if (w->compiled)
        return w->plan;
    w->compiled = true;
    cudnn_api_builder *b = &w->own;
    b->api = g->b.api;
    cudnnBackendDescriptor_t plan = cudnn_api_make(b, CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR);
    cudnn_api_link(b, plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, w->config);
    cudnn_api_link(b, plan, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, g->device);
    cudnn_api_finish(b, plan);
    cudnn_api_get(b, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &w->workspace);
    if (b->failed == CUDNN_STATUS_SUCCESS && w->workspace <= g->shape.workspace)
        w->plan = plan;
    return w->plan;
}

void cudnn_graph_refusal(char *out, int bytes, const cudnn_graph *g, int i)
{
    const candidate *w = &g->candidates[i];
    if (w->own.failed != CUDNN_STATUS_SUCCESS)
        snprintf(out, (size_t)bytes, "%s", g->b.api->cudnnGetErrorString(w->own.failed));
    else
        snprintf(out, (size_t)bytes, "it wants %lld bytes of workspace, and there are %lld", (long long)w->workspace,
                 (long long)g->shape.workspace);
}
