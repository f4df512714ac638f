/* Operation graphs by their definitions, in float64, each result rounded to the type of its tensor. */
#include "tests/cuda/standin/libraries/cudnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/dtype.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/standin/standin.h"

enum { RANK = 4, MOST_VALUES = 96, TILE = 4 };

/* A tensor as the graph describes it, and, once it is computed or read, its elements in order. */
typedef struct value {
    const descriptor *of;
    dtype type;
    bool is_virtual;
    int64_t id, count;
    const int64_t *shape, *strides;
    double *at;
} value;

typedef struct state {
    value values[MOST_VALUES];
    int count, queue;
    const descriptor *pack;
} state;

static bool flagged(const descriptor *d, cudnnBackendAttributeName_t name)
{
    return descriptor_number(d, name, 0) != 0;
}

static dtype type_of(const descriptor *of)
{
    switch ((int)descriptor_number(of, CUDNN_ATTR_TENSOR_DATA_TYPE, -1)) {
    case CUDNN_DATA_HALF:
        return DTYPE_FP16;
    case CUDNN_DATA_BFLOAT16:
        return DTYPE_BF16;
    case CUDNN_DATA_INT32:
        return DTYPE_INT32;
    default: /* truth is a small whole number */
        return DTYPE_FP32;
    }
}

/* ---- addresses ------------------------------------------------------------------------------------------------- */

static char *address_of(const state *s, const value *v)
{
    const attribute *ids = descriptor_find(s->pack, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS);
    char *const *at = descriptor_values(s->pack, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS);
    for (int64_t i = 0; i < ids->count; i++)
        if (((const int64_t *)ids->values)[i] == v->id) {
            bool number = flagged(v->of, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
            int64_t alignment = descriptor_number(v->of, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, 0);
            if (standin_is_device(at[i]) == number || (!number && (uintptr_t)at[i] % (uintptr_t)alignment))
                standin_fail("cuDNN: operand %lld at %p", (long long)v->id, (void *)at[i]);
            return at[i];
        }
    standin_fail("cuDNN: operand %lld has no address", (long long)v->id);
}

/* The element's offset, by the strides or in order. */
static int64_t offset_of(const int64_t shape[], const int64_t strides[], int64_t index)
{
    int64_t offset = 0;
    for (int i = RANK - 1; i >= 0; i--) {
        offset += index % shape[i] * strides[i];
        index /= shape[i];
    }
    return offset;
}

/* What lies in the memory of `v`, in the order of the dimensions and strides of `as`. */
static void load(double *out, const state *s, const value *v, const value *as)
{
    int64_t element = dtype_bytes(v->type);
    const char *memory = address_of(s, v);
    bool on_device = standin_is_device(memory);
    AUTO_FREE char *bytes = must_alloc((unsigned long)(as->count * element));
    AUTO_FREE float *x = must_alloc((unsigned long)as->count * sizeof *x);
    for (int64_t i = 0; i < as->count; i++) {
        const char *at = memory + offset_of(as->shape, as->strides, i) * element;
        if (on_device)
            standin_access(s->queue, at, element, false, "cuDNN");
        memcpy(bytes + i * element, at, (size_t)element);
    }
    dtype_convert(x, DTYPE_FP32, bytes, v->type, as->count);
    for (int64_t i = 0; i < as->count; i++)
        out[i] = (double)x[i];
}

/* Before 9.26 the statistics are read as if there were no gaps, whatever their strides. */
static void check_statistics(const value *v)
{
    const int64_t *n = v->shape;
    if (v->type == DTYPE_FP32 && n[3] == 1 && n[2] > 1 &&
        (v->strides[2] != 1 || v->strides[1] != n[2] || v->strides[0] != n[1] * n[2]))
        standin_fail("cuDNN: statistics with gaps are misread");
}

static value *find(state *s, const descriptor *of)
{
    int64_t id = descriptor_number(of, CUDNN_ATTR_TENSOR_UNIQUE_ID, -1);
    for (int i = 0; i < s->count; i++)
        if (s->values[i].id == id)
            return &s->values[i];
    MUST(s->count < MOST_VALUES, "a graph of more than %d tensors", MOST_VALUES);
    value *v = &s->values[s->count++];
    *v = (value){.of = of, .id = id, .count = 1, .type = type_of(of)};
    v->is_virtual = flagged(of, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
    v->shape = descriptor_values(of, CUDNN_ATTR_TENSOR_DIMENSIONS);
    v->strides = descriptor_values(of, CUDNN_ATTR_TENSOR_STRIDES);
    for (int i = 0; i < RANK; i++)
        v->count *= v->shape[i];
    return v;
}

/* An input: what an operation before left, or what lies in memory. */
static const value *input(state *s, const descriptor *operation, cudnnBackendAttributeName_t name)
{
    if (!descriptor_find(operation, name))
        return NULL;
    value *v = find(s, descriptor_of(operation, name));
    if (v->at)
        return v;
    if (v->is_virtual)
        standin_fail("cuDNN: tensor %lld is read before it is computed", (long long)v->id);
    check_statistics(v);
    v->at = must_alloc((unsigned long)v->count * sizeof *v->at);
    load(v->at, s, v, v);
    return v;
}

static value *output(state *s, const descriptor *operation, cudnnBackendAttributeName_t name)
{
    value *v = find(s, descriptor_of(operation, name));
    if (v->at)
        standin_fail("cuDNN: tensor %lld is computed twice", (long long)v->id);
    v->at = must_calloc((unsigned long)v->count, sizeof *v->at);
    return v;
}

/* Rounded, and stored where it is not virtual. */
static void finish(const state *s, value *v)
{
    int64_t element = dtype_bytes(v->type);
    char *bytes = must_alloc((unsigned long)(v->count * element)), *memory = v->is_virtual ? NULL : address_of(s, v);
    AUTO_FREE float *x = must_alloc((unsigned long)v->count * sizeof *x);
    for (int64_t i = 0; i < v->count; i++)
        x[i] = (float)v->at[i];
    dtype_convert(bytes, v->type, x, DTYPE_FP32, v->count);
    for (int64_t i = 0; memory && i < v->count; i++) {
        char *to = memory + offset_of(v->shape, v->strides, i) * element;
        standin_access(s->queue, to, element, true, "cuDNN");
        memcpy(to, bytes + i * element, (size_t)element);
    }
    dtype_convert(x, DTYPE_FP32, bytes, v->type, v->count);
    for (int64_t i = 0; i < v->count; i++)
        v->at[i] = (double)x[i];
    free(bytes);
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* Which element of `v` stands for one of a tensor of this shape: dimensions of 1 stand for all. */
static int64_t spread(const value *v, const int64_t shape[], int64_t index)
{
    int64_t offset = 0, stride = 1;
    for (int i = RANK - 1; i >= 0; i--) {
        offset += v->shape[i] == 1 ? 0 : index % shape[i] * stride;
        stride *= v->shape[i];
        index /= shape[i];
    }
    return offset;
}

/* The elements of `v` as a tensor of the shape of `like`, a fresh array; NULL without `v`. */
static double *spread_over(const value *v, const value *like)
{
    if (!v)
        return NULL;
    for (int i = RANK - 1; i >= 0; i--)
        if (v->shape[i] != like->shape[i] && v->shape[i] != 1)
            standin_fail("cuDNN: dimension %d is %lld beside %lld", i, (long long)v->shape[i],
                         (long long)like->shape[i]);
    double *out = must_alloc((unsigned long)like->count * sizeof *out);
    bool same = v->count == like->count;
    for (int64_t i = 0; i < like->count; i++)
        out[i] = v->at[same ? i : spread(v, like->shape, i)];
    return out;
}

static double applied(cudnnPointwiseMode_t mode, double x, double b, double t)
{
    switch (mode) {
    case CUDNN_POINTWISE_ADD:
        return x + b;
    case CUDNN_POINTWISE_SUB:
        return x - b;
    case CUDNN_POINTWISE_MUL:
        return x * b;
    case CUDNN_POINTWISE_DIV:
        return x / b;
    case CUDNN_POINTWISE_EXP:
        return exp(x);
    case CUDNN_POINTWISE_LOG:
        return standin_mutant("cuDNN counts in twos") ? log2(x) : log(x);
    case CUDNN_POINTWISE_CMP_GE:
        return x >= b || standin_mutant("cuDNN sees the future");
    case CUDNN_POINTWISE_CMP_GT:
        return x > b;
    case CUDNN_POINTWISE_BINARY_SELECT:
        return t != 0 ? x : b;
    default:
        standin_fail("cuDNN: pointwise mode %d", (int)mode);
    }
}

static void do_pointwise(state *s, const descriptor *o)
{
    const descriptor *what = descriptor_of(o, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR);
    cudnnPointwiseMode_t mode = *(const cudnnPointwiseMode_t *)descriptor_values(what, CUDNN_ATTR_POINTWISE_MODE);
    const value *x = input(s, o, CUDNN_ATTR_OPERATION_POINTWISE_XDESC);
    const value *b = input(s, o, CUDNN_ATTR_OPERATION_POINTWISE_BDESC);
    const value *t = input(s, o, CUDNN_ATTR_OPERATION_POINTWISE_TDESC);
    bool number = b && flagged(b->of, CUDNN_ATTR_TENSOR_IS_BY_VALUE);
    bool unseen = b && b->type == DTYPE_INT32 && !b->is_virtual &&
                  standin_mutant(number ? "cuDNN forgets where a run begins" : "cuDNN sees other documents");
    value *y = output(s, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    int64_t along = descriptor_number(what, CUDNN_ATTR_POINTWISE_AXIS, -1), below = 1;
    for (int i = RANK - 1; i > along && along >= 0; i--)
        below *= y->shape[i];
    bool index = mode == CUDNN_POINTWISE_GEN_INDEX;
    AUTO_FREE double *xs = index ? NULL : spread_over(x, y), *bs = index || unseen ? NULL : spread_over(b, y);
    AUTO_FREE double *ts = index ? NULL : spread_over(t, y);
    for (int64_t i = 0; i < y->count; i++)
        y->at[i] = index ? (double)(i / below % y->shape[along]) : applied(mode, xs[i], bs ? bs[i] : 0, ts ? ts[i] : 0);
    finish(s, y);
}

/* c = a b in the last two dimensions; heads of b are shared by as many of a. */
static void do_matmul(state *s, const descriptor *o)
{
    const value *a = input(s, o, CUDNN_ATTR_OPERATION_MATMUL_ADESC);
    const value *b = input(s, o, CUDNN_ATTR_OPERATION_MATMUL_BDESC);
    value *c = output(s, o, CUDNN_ATTR_OPERATION_MATMUL_CDESC);
    int64_t heads = a->shape[1], rows = a->shape[2], inner = a->shape[3], columns = b->shape[3];
    if (b->shape[2] != inner || c->shape[2] != rows || c->shape[3] != columns || heads % b->shape[1] ||
        c->shape[1] != heads || a->shape[0] != b->shape[0] || a->shape[0] != c->shape[0])
        standin_fail("cuDNN: a product of [%lld, %lld] and [%lld, %lld]", (long long)rows, (long long)inner,
                     (long long)b->shape[2], (long long)columns);
    for (int64_t m = 0; m < a->shape[0] * heads; m++) {
        const double *x = a->at + m * rows * inner;
        const double *w = b->at + (m / heads * b->shape[1] + m % heads / (heads / b->shape[1])) * inner * columns;
        for (int64_t i = 0; i < rows * inner; i++) {
            double *sums = c->at + (m * rows + i / inner) * columns;
            for (int64_t j = 0; j < columns; j++)
                sums[j] += x[i] * w[i % inner * columns + j];
        }
    }
    finish(s, c);
}

/* The engines go over a row's keys tile by tile, and take the exponential of what the maximum so far and a tile differ
 * by: a first tile of nothing but minus infinities leaves a NaN in all that follows. */
static void spoil_rows(value *most, const value *x)
{
    int64_t row = x->shape[RANK - 1];
    for (int64_t i = 0; i < most->count && most->shape[RANK - 1] == 1; i++) {
        bool nothing = true;
        for (int64_t k = 0; k < TILE && k < row; k++)
            nothing = nothing && x->at[i * row + k] == -INFINITY;
        if (nothing)
            most->at[i] = NAN;
    }
}

/* Neighbours are reduced to one wherever the output's dimension is smaller. */
static void do_reduction(state *s, const descriptor *o)
{
    const descriptor *what = descriptor_of(o, CUDNN_ATTR_OPERATION_REDUCTION_DESC);
    bool most = descriptor_number(what, CUDNN_ATTR_REDUCTION_OPERATOR, -1) == CUDNN_REDUCE_TENSOR_MAX;
    const value *x = input(s, o, CUDNN_ATTR_OPERATION_REDUCTION_XDESC);
    value *y = output(s, o, CUDNN_ATTR_OPERATION_REDUCTION_YDESC);
    for (int64_t i = 0; i < y->count; i++)
        y->at[i] = most ? -INFINITY : 0;
    for (int64_t i = 0; i < x->count; i++) {
        int64_t rest = i, to = 0, stride = 1;
        for (int k = RANK - 1; k >= 0; k--) {
            to += rest % x->shape[k] / (x->shape[k] / y->shape[k]) * stride;
            stride *= y->shape[k];
            rest /= x->shape[k];
        }
        y->at[to] = most ? fmax(y->at[to], x->at[i]) : y->at[to] + x->at[i];
    }
    if (most)
        spoil_rows(y, x);
    finish(s, y);
}

/* The same memory, seen by other dimensions and strides. */
static void do_reshape(state *s, const descriptor *o)
{
    const value *x = input(s, o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
    value *y = output(s, o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC);
    if (!x->is_virtual)
        load(y->at, s, x, y);
    for (int64_t i = 0; x->is_virtual && i < y->count; i++)
        y->at[i] = x->at[offset_of(y->shape, y->strides, i)];
    finish(s, y);
}

static const struct {
    cudnnBackendDescriptorType_t type;
    void (*execute)(state *s, const descriptor *o);
} operations[] = {
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, do_pointwise},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, do_matmul},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, do_reduction},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, do_reshape},
};

void meaning_execute(const descriptor *graph, const descriptor *pack, int queue)
{
    const attribute *ops = descriptor_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    state s = {.queue = queue, .pack = pack};
    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *o = ((descriptor *const *)ops->values)[i];
        for (size_t k = 0; k < sizeof operations / sizeof *operations; k++)
            if (operations[k].type == o->type)
                operations[k].execute(&s, o);
    }
    for (int i = 0; i < s.count; i++)
        free(s.values[i].at);
}

int64_t meaning_workspace(const descriptor *graph)
{
    const attribute *ops = descriptor_find(graph, CUDNN_ATTR_OPERATIONGRAPH_OPS);
    int64_t bytes = 0;
    for (int64_t i = 0; i < ops->count; i++) {
        const descriptor *o = ((descriptor *const *)ops->values)[i];
        if (o->type != CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR)
            continue;
        /* what is turned is dS or P, [.., keys, queries] then, of which dS is kept, and K, which is no result */
        const descriptor *x = descriptor_of(o, CUDNN_ATTR_OPERATION_RESHAPE_XDESC);
        const int64_t *n =
            descriptor_values(descriptor_of(o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC), CUDNN_ATTR_TENSOR_DIMENSIONS);
        int64_t kept = n[0] * n[1] * ((n[3] + 63) / 64 * 64) * ((n[2] + 127) / 128 * 128) * 2;
        bytes = flagged(x, CUDNN_ATTR_TENSOR_IS_VIRTUAL) && kept > bytes ? kept : bytes;
    }
    return bytes;
}
