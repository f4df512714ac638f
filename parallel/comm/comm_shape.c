#include "parallel/comm/comm_shape.h"

#include <string.h>

#include "memory/log.h"

/* Measured on one node (Open MPI, single-copy shared memory): 256 KiB to 1 MiB are within noise of each other for plain
 * messages, and a quarter still lies in the second-level cache when it is summed. With many peers segments shrink, so
 * that the receive windows of a reduction stay within SCRATCH_LIMIT, but not below 32 KiB, where the price of a message
 * shows. */
enum { SEGMENT = 256 << 10, SEGMENT_LEAST = 32 << 10, SCRATCH_LIMIT = 16 << 20 };

comm_cut comm_segments(int members)
{
    comm_cut cut = {.segment = SEGMENT, .window = members <= 16 ? 4 : members <= 128 ? 2 : 1};
    while (cut.segment > SEGMENT_LEAST && cut.segment * cut.window * (members - 1) > SCRATCH_LIMIT)
        cut.segment /= 2;
    return cut;
}

int comm_tree(int *children, int *parent, int members, int me, int root)
{
    int place = (me - root + members) % members, count = 0;
    *parent = -1;
    /* Position p hangs below p without its lowest set bit; its children differ from it in one lower bit each. */
    int64_t bit = 1;
    while (bit < members && !(place & bit))
        bit <<= 1;
    if (place)
        *parent = (int)((place - bit + root) % members);
    for (bit >>= 1; bit; bit >>= 1)
        if (place + bit < members)
            children[count++] = (int)((place + bit + root) % members);
    return count;
}

void comm_part(int64_t *offset, int64_t *count, const comm_shape *shape, int member)
{
    if (shape->counts) {
        *offset = 0;
        for (int i = 0; i < member; i++)
            *offset += shape->counts[i];
        *count = shape->counts[member];
        return;
    }
    int64_t each = shape->count / shape->members, left = shape->count % shape->members;
    *offset = each * member + (member < left ? member : left);
    *count = each + (member < left);
}

void comm_piece_part(int64_t *offset, int64_t *count, const comm_segment *piece, int members, int member)
{
    comm_shape shape = {.members = members, .count = piece->count, .counts = piece->counts};
    comm_part(offset, count, &shape, member);
}

static int64_t part_bytes(const comm_shape *shape, int member)
{
    int64_t offset, count;
    comm_part(&offset, &count, shape, member);
    return count * dtype_bytes(shape->type);
}

int64_t comm_scratch_bytes(const comm_shape *shape)
{
    if (shape->members == 1 || (shape->kind != COMM_ALL_REDUCE && shape->kind != COMM_REDUCE_SCATTER))
        return 0;
    comm_cut cut = comm_segments(shape->members);
    int64_t part = part_bytes(shape, shape->me), ring = cut.segment * cut.window;
    return (shape->members - 1) * (part < ring ? (part + 63) / 64 * 64 : ring);
}

/* Counts the bytes and messages that one member sends. */
typedef struct traffic {
    int64_t bytes, messages, segment;
} traffic;

static void add_traffic(traffic *t, int64_t bytes, int64_t times)
{
    t->bytes += bytes * times;
    t->messages += (bytes + t->segment - 1) / t->segment * times;
}

static void add_parts_of_others(traffic *t, const comm_shape *shape)
{
    for (int i = 0; i < shape->members; i++)
        add_traffic(t, part_bytes(shape, i), i != shape->me);
}

static void add_own_part_to_others(traffic *t, const comm_shape *shape)
{
    add_traffic(t, part_bytes(shape, shape->me), shape->members - 1);
}

static void add_all_reduce(traffic *t, const comm_shape *shape)
{
    add_parts_of_others(t, shape);
    add_own_part_to_others(t, shape);
}

static void add_broadcast(traffic *t, const comm_shape *shape)
{
    int children[31], parent;
    add_traffic(t, shape->count * dtype_bytes(shape->type),
                comm_tree(children, &parent, shape->members, shape->me, shape->peer));
}

static void add_send(traffic *t, const comm_shape *shape)
{
    add_traffic(t, shape->count * dtype_bytes(shape->type), 1);
}

static void add_nothing(traffic *t, const comm_shape *shape)
{
    (void)t;
    (void)shape;
}

/* Add a member's messages of each kind of operation. */
static void (*const add_of[COMM_KINDS])(traffic *t, const comm_shape *shape) = {
    [COMM_ALL_REDUCE] = add_all_reduce,
    [COMM_ALL_GATHER] = add_own_part_to_others,
    [COMM_REDUCE_SCATTER] = add_parts_of_others,
    [COMM_ALL_TO_ALL] = add_parts_of_others,
    [COMM_BROADCAST] = add_broadcast,
    [COMM_SEND] = add_send,
    [COMM_RECEIVE] = add_nothing,
    [COMM_EXCHANGE] = add_send,
};

static traffic sent(const comm_shape *shape)
{
    traffic t = {.segment = comm_segments(shape->members).segment};
    add_of[shape->kind](&t, shape);
    return t;
}

int64_t comm_expected_bytes(const comm_shape *shape)
{
    return sent(shape).bytes;
}

int64_t comm_expected_messages(const comm_shape *shape)
{
    return sent(shape).messages;
}

comm_use comm_use_of_both(const comm_use *a, const comm_use *b)
{
    comm_use both = {.kinds = a->kinds | b->kinds,
                     .largest = a->largest > b->largest ? a->largest : b->largest,
                     .varies = a->varies && b->varies};
    for (int kind = 0; kind < COMM_KINDS; kind++)
        both.types[kind] = a->types[kind] | b->types[kind];
    return both;
}

/* ---- sums ---- */

/* Elements summed at a time: the accumulators stay in the first-level cache, and `out` may be one of the inputs. */
enum { TILE = 1024 };

#define SUM_OF(a, b)    ((a) + (b))
#define LARGER_OF(a, b) ((b) > (a) ? (b) : (a))

/* Types that accumulate in their own arithmetic. Sums are unsigned, because signed overflow is undefined. */
#define DIRECT(name, T, OF)                                                                                            \
    static void name(void *out, const void *const *in, int arrays, int64_t first, int64_t count)                       \
    {                                                                                                                  \
        T all[TILE];                                                                                                   \
        memcpy(all, (const T *)in[0] + first, (size_t)count * sizeof(T));                                              \
        for (int a = 1; a < arrays; a++) {                                                                             \
            const T *term = (const T *)in[a] + first;                                                                  \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++) all[i] = OF(all[i], term[i]);                      \
        }                                                                                                              \
        memcpy((T *)out + first, all, (size_t)count * sizeof(T));                                                      \
    }

/* Types that accumulate in fp32. */
#define WIDENED(name, type, OF)                                                                                        \
    static void name(void *out, const void *const *in, int arrays, int64_t first, int64_t count)                       \
    {                                                                                                                  \
        float all[TILE], term[TILE];                                                                                   \
        dtype_convert(all, DTYPE_FP32, (const uint16_t *)in[0] + first, type, count);                                  \
        for (int a = 1; a < arrays; a++) {                                                                             \
            dtype_convert(term, DTYPE_FP32, (const uint16_t *)in[a] + first, type, count);                             \
            _Pragma("omp simd") for (int64_t i = 0; i < count; i++) all[i] = OF(all[i], term[i]);                      \
        }                                                                                                              \
        dtype_convert((uint16_t *)out + first, type, all, DTYPE_FP32, count);                                          \
    }

DIRECT(sum_fp32, float, SUM_OF)
DIRECT(sum_fp64, double, SUM_OF)
DIRECT(sum_int32, uint32_t, SUM_OF)
DIRECT(sum_int64, uint64_t, SUM_OF)
WIDENED(sum_bf16, DTYPE_BF16, SUM_OF)
WIDENED(sum_fp16, DTYPE_FP16, SUM_OF)
DIRECT(max_fp32, float, LARGER_OF)
DIRECT(max_fp64, double, LARGER_OF)
DIRECT(max_int32, int32_t, LARGER_OF)
DIRECT(max_int64, int64_t, LARGER_OF)
WIDENED(max_bf16, DTYPE_BF16, LARGER_OF)
WIDENED(max_fp16, DTYPE_FP16, LARGER_OF)

typedef void (*tile_reduction)(void *out, const void *const *in, int arrays, int64_t first, int64_t count);

static const struct {
    tile_reduction sum, maximum;
} reductions[DTYPE_COUNT] = {
    [DTYPE_FP32] = {sum_fp32, max_fp32}, [DTYPE_BF16] = {sum_bf16, max_bf16},    [DTYPE_FP16] = {sum_fp16, max_fp16},
    [DTYPE_FP64] = {sum_fp64, max_fp64}, [DTYPE_INT32] = {sum_int32, max_int32}, [DTYPE_INT64] = {sum_int64, max_int64},
};

bool comm_sum_takes(dtype type)
{
    return reductions[type].sum != NULL;
}

void comm_reduce(void *out, const void *const *in, int arrays, int64_t count, dtype type, bool maximum)
{
    const tile_reduction reduce = maximum ? reductions[type].maximum : reductions[type].sum;
    MUST(reduce && arrays > 0, "no reduction of %d arrays of %s", arrays, dtype_name(type));
    for (int64_t first = 0; first < count; first += TILE)
        reduce(out, in, arrays, first, count - first < TILE ? count - first : TILE);
}
