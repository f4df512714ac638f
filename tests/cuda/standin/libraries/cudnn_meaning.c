/* Operation graphs by their definitions, in float64, each result rounded to the type of its tensor. */
#include "tests/cuda/standin/libraries/cudnn.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/dtype.h"
#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

enum { RANK = 4, MOST_VALUES = 96, TILE = 4 };

/* A tensor as the graph describes it, and, once it is computed or read, its elements in order. */
typedef struct value {
    const descriptor *of;
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

static bool is_virtual(const value *v)
{
    return flagged(v->of, CUDNN_ATTR_TENSOR_IS_VIRTUAL);
}

static dtype type_of(const value *v)
{
    switch ((int)descriptor_number(v->of, CUDNN_ATTR_TENSOR_DATA_TYPE, -1)) {
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

static double load(const state *s, const value *v, int64_t offset)
{
    float x;
    dtype type = type_of(v);
    const char *at = address_of(s, v) + offset * dtype_bytes(type);
    if (standin_is_device(at))
        standin_access(s->queue, at, dtype_bytes(type), false, "cuDNN");
    dtype_convert(&x, DTYPE_FP32, at, type, 1);
    return (double)x;
}

/* Before 9.26 the statistics are read as if there were no gaps, whatever their strides. */
static void check_statistics(const value *v)
{
    const int64_t *n = v->shape;
    if (type_of(v) == DTYPE_FP32 && n[3] == 1 && n[2] > 1 &&
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
    *v = (value){.of = of, .id = id, .count = 1};
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
    if (is_virtual(v))
        standin_fail("cuDNN: tensor %lld is read before it is computed", (long long)v->id);
    check_statistics(v);
    v->at = must_alloc((unsigned long)v->count * sizeof *v->at);
    for (int64_t i = 0; i < v->count; i++)
        v->at[i] = load(s, v, offset_of(v->shape, v->strides, i));
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
    dtype type = type_of(v);
    for (int64_t i = 0; i < v->count; i++) {
        float x = (float)v->at[i];
        char bytes[4];
        dtype_convert(bytes, type, &x, DTYPE_FP32, 1);
        if (!is_virtual(v)) {
            char *to = address_of(s, v) + offset_of(v->shape, v->strides, i) * dtype_bytes(type);
            standin_access(s->queue, to, dtype_bytes(type), true, "cuDNN");
            memcpy(to, bytes, (size_t)dtype_bytes(type));
        }
        dtype_convert(&x, DTYPE_FP32, bytes, type, 1);
        v->at[i] = (double)x;
    }
}

/* ---- operations ------------------------------------------------------------------------------------------------ */

/* The element of `v` for that of a tensor of this shape: dimensions of 1 stand for all. */
static double spread(const value *v, const int64_t shape[], int64_t index)
{
    int64_t offset = 0, stride = 1;
    for (int i = RANK - 1; i >= 0; i--) {
        if (v->shape[i] != shape[i] && v->shape[i] != 1)
            standin_fail("cuDNN: dimension %d is %lld beside %lld", i, (long long)v->shape[i], (long long)shape[i]);
        offset += v->shape[i] == 1 ? 0 : index % shape[i] * stride;
        stride *= v->shape[i];
        index /= shape[i];
    }
    return v->at[offset];
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
    bool unseen = b && type_of(b) == DTYPE_INT32 && !is_virtual(b) && standin_mutant("cuDNN sees other documents");
    value *y = output(s, o, CUDNN_ATTR_OPERATION_POINTWISE_YDESC);
    int64_t along = descriptor_number(what, CUDNN_ATTR_POINTWISE_AXIS, -1), below = 1;
    for (int i = RANK - 1; i > along && along >= 0; i--)
        below *= y->shape[i];
    for (int64_t i = 0; i < y->count; i++)
        y->at[i] = mode == CUDNN_POINTWISE_GEN_INDEX
                       ? (double)(i / below % y->shape[along])
                       : applied(mode, spread(x, y->shape, i), b && !unseen ? spread(b, y->shape, i) : 0,
                                 t ? spread(t, y->shape, i) : 0);
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
        for (int64_t i = 0; i < rows * columns; i++) {
            double sum = 0;
            for (int64_t k = 0; k < inner; k++)
                sum += x[i / columns * inner + k] * w[k * columns + i % columns];
            c->at[m * rows * columns + i] = sum;
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
    for (int64_t i = 0; i < y->count; i++) {
        int64_t offset = offset_of(y->shape, y->strides, i);
        y->at[i] = is_virtual(x) ? x->at[offset] : load(s, x, offset);
    }
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
        /* what is turned is dS or P, of which dS is kept, and K, which is not */
        const int64_t *n =
            descriptor_values(descriptor_of(o, CUDNN_ATTR_OPERATION_RESHAPE_YDESC), CUDNN_ATTR_TENSOR_DIMENSIONS);
        int64_t kept = n[0] * n[1] * ((n[2] + 63) / 64 * 64) * ((n[3] + 127) / 128 * 128) * 2;
        bytes = n[2] == n[3] && kept > bytes ? kept : bytes;
    }
    return bytes;
}
