/* Copies between layouts, against an element-by-element walk that shares nothing with them. */
#include <stdlib.h>
#include <string.h>

#include "memory/box.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

static uint64_t random_state = 1;

static int64_t random_below(int64_t n)
{
    random_state = random_state * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((random_state >> 33) % (uint64_t)n);
}

/* Strides of a random order of the dimensions, with gaps now and then; returns the elements it spans. */
static int64_t random_layout(int64_t *stride, int dims, const int64_t *size)
{
    int order[BOX_DIMS] = {0, 1, 2, 3};
    for (int d = dims - 1; d > 0; d--) {
        int k = (int)random_below(d + 1), kept = order[d];
        order[d] = order[k];
        order[k] = kept;
    }
    int64_t next = random_below(4) ? 1 : 2;
    for (int i = 0; i < dims; i++) {
        stride[order[i]] = next;
        next = next * size[order[i]] + (random_below(3) ? 0 : random_below(3));
    }
    return next;
}

/* Offsets of element i, counted row-major, in two layouts. */
static void offsets(int64_t *a, int64_t *b, int64_t i, int dims, const int64_t *size, const int64_t *stride_a,
                    const int64_t *stride_b)
{
    *a = *b = 0;
    for (int d = dims - 1; d >= 0; d--) {
        *a += i % size[d] * stride_a[d];
        *b += i % size[d] * stride_b[d];
        i /= size[d];
    }
}

TEST(every_layout_is_copied_and_nothing_else_is_touched)
{
    const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP64, DTYPE_UINT8};
    for (int round = 0; round < 400; round++) {
        int64_t size[BOX_DIMS] = {0}, from_stride[BOX_DIMS] = {0}, to_stride[BOX_DIMS] = {0}, a, b,
                largest[] = {3000, 100, 40, 9};
        int dims = (int)random_below(BOX_DIMS + 1);
        for (int d = 0; d < dims; d++)
            size[d] = 1 + random_below(largest[dims - 1]);
        dtype from_type = types[random_below(4)], to_type = types[random_below(4)];
        int64_t from_count = random_layout(from_stride, dims, size), to_count = random_layout(to_stride, dims, size);
        int from_bytes = dtype_bytes(from_type), to_bytes = dtype_bytes(to_type);
        char *from = must_calloc((unsigned long)from_count, (unsigned long)from_bytes);
        char *to = must_alloc((unsigned long)(to_count * to_bytes)),
             *wanted = must_alloc((unsigned long)(to_count * to_bytes));
        memset(to, 0x5a, (size_t)(to_count * to_bytes));
        memset(wanted, 0x5a, (size_t)(to_count * to_bytes));
        int64_t volume = box_volume(dims, size);
        for (int64_t i = 0; i < volume; i++) {
            double value = (double)random_below(200);
            offsets(&a, &b, i, dims, size, from_stride, to_stride);
            dtype_convert(from + a * from_bytes, from_type, &value, DTYPE_FP64, 1);
            dtype_convert(wanted + b * to_bytes, to_type, &value, DTYPE_FP64, 1);
        }
        box_memory source = {.data = from, .type = from_type}, target = {.data = to, .type = to_type};
        memcpy(source.stride, from_stride, sizeof from_stride);
        memcpy(target.stride, to_stride, sizeof to_stride);
        box_convert(&target, &source, dims, size);
        assert_true(memcmp(to, wanted, (size_t)(to_count * to_bytes)) == 0);

        int64_t first = random_below(volume), count = random_below(volume - first + 1);
        AUTO_FREE char *dense = must_alloc((unsigned long)((count + 1) * from_bytes));
        memset(dense, 0x5a, (size_t)((count + 1) * from_bytes));
        box_gather(dense, &source, dims, size, first, count);
        for (int64_t i = 0; i < count; i++) {
            offsets(&a, &b, first + i, dims, size, from_stride, to_stride);
            assert_memory_equal(dense + i * from_bytes, from + a * from_bytes, from_bytes);
        }
        assert_int_equal(dense[count * from_bytes], 0x5a);
        free(wanted);
        free(to);
        free(from);
    }
}

TEST(row_major_is_recognised)
{
    const int64_t size[] = {2, 1, 3}, yes[] = {3, 99, 1}, no[] = {4, 3, 1};
    int64_t stride[3];
    box_row_major(stride, 3, size);
    assert_true(stride[0] == 3 && stride[1] == 3 && stride[2] == 1);
    assert_true(box_is_row_major(3, size, stride) && box_is_row_major(3, size, yes) && !box_is_row_major(3, size, no));
}

TEST(boxes_meet_or_do_not)
{
    const box a = {{0, 2}, {4, 3}}, b = {{3, 0}, {5, 3}}, c = {{4, 2}, {1, 1}};
    box common;
    assert_true(box_intersect(&common, 2, &a, &b));
    assert_true(common.start[0] == 3 && common.start[1] == 2 && common.size[0] == 1 && common.size[1] == 1);
    assert_false(box_intersect(&common, 2, &a, &c));
    assert_true(box_intersect(&common, 0, &a, &c));
}

TEST_MAIN(NULL, NULL)
