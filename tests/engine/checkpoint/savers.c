#include "tests/engine/checkpoint/savers.h"

#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "memory/box.h"
#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"

#define MAX_RANKS 8

typedef struct tensor {
    const char *section, *name;
    dtype type;
    int dims;
    int64_t global[BOX_DIMS];
} tensor;

static const tensor model[] = {
    {"model", "wte.weight", DTYPE_BF16, 2, {7, 5}},
    {"master", "wte.weight", DTYPE_FP32, 2, {7, 5}},
    {"moment1", "wte.weight", DTYPE_FP32, 2, {7, 5}},
    {"model", "h.0.attn.weight", DTYPE_BF16, 2, {6, 16}},
    {"model", "h.0.bias", DTYPE_BF16, 1, {11}},
    {"model", "h.0.conv", DTYPE_FP16, 3, {4, 3, 5}},
    {"model", "h.1.experts", DTYPE_FP32, 4, {2, 3, 4, 5}},
    {"moment1", "scale", DTYPE_FP64, 0, {0}},
};
#define TENSORS ((int)(sizeof model / sizeof *model))

static int expected(int seed, int index, int64_t element)
{
    return (int)((seed * 37 + index * 101 + element * 7) % 251) - 100;
}

/* Rank's rectangle of a tensor, and the strides of its share in memory. A scalar belongs to the last rank. */
static void share(rectangle *of, box_memory *at, const tensor *t, savers_layout layout, int rank)
{
    *of = box_whole(t->name, t->dims, t->global);
    int64_t *start = of->part.start, *size = of->part.size, *stride = at->stride;
    int split = t->dims ? layout.split % t->dims : -1;
    for (int d = 0; d < t->dims; d++) {
        start[d] = d == split ? t->global[d] * rank / layout.ranks : 0;
        size[d] = (d == split ? t->global[d] * (rank + 1) / layout.ranks : t->global[d]) - start[d];
    }
    box_row_major(stride, t->dims, size);
    int64_t next = 1;
    for (int d = 0; d < t->dims && layout.transposed; d++) {
        stride[d] = next;
        next *= size[d];
    }
}

/* Offset in memory and index in the global tensor of element i of a share. */
static void locate(int64_t *memory, int64_t *global, const rectangle *t, const box_memory *at, int64_t i)
{
    const int64_t *size = t->part.size;
    int64_t scale = 1;
    *memory = *global = 0;
    for (int d = t->dims - 1; d >= 0; d--) {
        *memory += i % size[d] * at->stride[d];
        *global += (t->part.start[d] + i % size[d]) * scale;
        scale *= t->global[d];
        i /= size[d];
    }
}

/* ---- saving ---- */

typedef struct meeting {
    pthread_barrier_t barrier;
    int ranks;
    status reports[MAX_RANKS];
    char messages[MAX_RANKS][512];
} meeting;

typedef struct saver {
    pthread_t thread;
    meeting *meeting;
    const char *folder, *name;
    int rank, seed;
    savers_layout layout;
    status result;
    char message[1024];
} saver;

static status meet(void *context, status mine)
{
    saver *me = context;
    meeting *all = me->meeting;
    all->reports[me->rank] = mine;
    snprintf(all->messages[me->rank], sizeof all->messages[0], "%s", status_message());
    pthread_barrier_wait(&all->barrier);
    int failed = -1;
    for (int r = all->ranks - 1; r >= 0; r--)
        failed = all->reports[r] != STATUS_OK ? r : failed;
    status s = failed < 0 ? STATUS_OK : status_fail(STATUS_FAILED, "rank %d: %s", failed, all->messages[failed]);
    pthread_barrier_wait(&all->barrier); /* nobody reports again before all have read */
    return s;
}

static void *save(void *argument)
{
    saver *me = argument;
    checkpoint_piece pieces[TENSORS];
    int count = 0;
    for (int k = 0; k < TENSORS; k++) {
        const tensor *t = &model[k];
        if (t->dims == 0 && me->rank != me->layout.ranks - 1)
            continue;
        checkpoint_piece *p = &pieces[count++];
        *p = (checkpoint_piece){.section = t->section, .at = {.type = t->type}};
        share(&p->of, &p->at, t, me->layout, me->rank);
        int64_t volume = box_volume(t->dims, p->of.part.size), memory, global;
        char *data = must_alloc((unsigned long)(volume * dtype_bytes(t->type)));
        for (int64_t i = 0; i < volume; i++) {
            locate(&memory, &global, &p->of, &p->at, i);
            double value = expected(me->seed, k, global);
            dtype_convert(data + memory * dtype_bytes(t->type), t->type, &value, DTYPE_FP64, 1);
        }
        p->at.data = data;
    }
    json_t *meta = me->rank == 0 ? json_pack("{s:i}", "seed", me->seed) : NULL;
    const checkpoint_share mine = {pieces, count, me->rank, me->layout.ranks, "0123abcd", false};
    me->result = checkpoint_write(me->folder, me->name, &mine, meta, meet, me);
    snprintf(me->message, sizeof me->message, "%s", status_message());
    json_decref(meta);
    for (int i = 0; i < count; i++)
        free(pieces[i].at.data);
    return NULL;
}

status savers_write(const char *folder, const char *name, int seed, savers_layout layout)
{
    saver savers[MAX_RANKS];
    meeting all = {.ranks = layout.ranks};
    MUST(layout.ranks <= MAX_RANKS, "%d ranks", layout.ranks);
    pthread_barrier_init(&all.barrier, NULL, (unsigned)layout.ranks);
    for (int r = 0; r < layout.ranks; r++) {
        savers[r] = (saver){
            .meeting = &all, .folder = folder, .name = name, .rank = r, .seed = seed, .layout = layout, .result = -1};
        if (layout.ranks == 1)
            save(&savers[r]); /* on this thread: injected faults then come in one order */
        else
            assert_int_equal(pthread_create(&savers[r].thread, NULL, save, &savers[r]), 0);
    }
    for (int r = 0; r < layout.ranks && layout.ranks > 1; r++)
        pthread_join(savers[r].thread, NULL);
    pthread_barrier_destroy(&all.barrier);
    for (int r = 1; r < layout.ranks; r++)
        assert_int_equal(savers[r].result, savers[0].result);
    return savers[0].result == STATUS_OK ? STATUS_OK : status_fail(savers[0].result, "%s", savers[0].message);
}

/* ---- loading ---- */

static status load_share(checkpoint *c, int k, int seed, savers_layout layout, dtype type, int rank)
{
    const tensor *t = &model[k];
    rectangle of;
    box_memory to = {.type = type};
    int64_t memory, global;
    share(&of, &to, t, layout, rank);
    int64_t volume = box_volume(t->dims, of.part.size);
    int bytes = dtype_bytes(type);
    char *data = must_alloc((unsigned long)((volume + 1) * bytes));
    memset(data, 0xa5, (size_t)((volume + 1) * bytes));
    to.data = data;
    status s = checkpoint_read(c, t->section, &of, &to);
    for (int64_t i = 0; i < volume && s == STATUS_OK; i++) {
        double value;
        locate(&memory, &global, &of, &to, i);
        dtype_convert(&value, DTYPE_FP64, data + memory * bytes, type, 1);
        if (!(value == expected(seed, k, global)))
            s = status_fail(STATUS_USAGE, "%s/%s element %lld is %g, not %d", t->section, t->name, (long long)global,
                            value, expected(seed, k, global));
    }
    for (int i = 0; i < bytes; i++)
        assert_int_equal((uint8_t)data[volume * bytes + i], 0xa5); /* nothing was written past the end */
    free(data);
    return s;
}

/* STATUS_USAGE, which the product never returns here, marks a wrong value. */
status savers_load(const char *path, int seed, savers_layout layout, dtype type)
{
    checkpoint *c;
    TRY(checkpoint_open(&c, path));
    status s = STATUS_OK;
    for (int rank = 0; rank < layout.ranks && s == STATUS_OK; rank++)
        for (int k = 0; k < TENSORS && s == STATUS_OK; k++)
            s = load_share(c, k, seed, layout, type, rank);
    checkpoint_close(c);
    return s;
}

int savers_identify(const char *path)
{
    checkpoint *c;
    if (checkpoint_open(&c, path) != STATUS_OK)
        return -1;
    const json_t *seed = json_object_get(checkpoint_meta(c), "seed");
    int value = json_is_integer(seed) ? (int)json_integer_value(seed) : -2;
    checkpoint_close(c);
    if (value == -2)
        return -2;
    status s = savers_load(path, value, (savers_layout){.ranks = 1}, DTYPE_FP32);
    return s == STATUS_OK ? value : s == STATUS_FAILED ? -1 : -2;
}
