#include "kernels/cuda/tuning.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/host.h"
#include "memory/scope.h"

/* Candidates take turns, so that a clock that slows as the GPU warms up favours none; the median of the rounds counts.
 * Only candidates near the best run after the first round. */
enum { ROUNDS = 5, LAUNCHES = 2 };
static const double NEAR = 1.25;

enum { RANDOM_BYTES = 1 << 20 };

struct tuning {
    char *device_name;
    tuning_item *items;
    int count;
};

void tuning_open(tuning **out, const char *device_name)
{
    *out = must_calloc(1, sizeof **out);
    (*out)->device_name = must_strdup(device_name);
}

void tuning_close(tuning *t)
{
    if (!t)
        return;
    free(t->items);
    free(t->device_name);
    free(t);
}

static tuning_item *find_item(const tuning *t, const char *key)
{
    for (int i = 0; i < t->count; i++)
        if (!strcmp(t->items[i].key, key))
            return &t->items[i];
    return NULL;
}

void tuning_add(tuning *t, const tuning_item *item)
{
    t->items = must_realloc(t->items, (unsigned long)(t->count + 1) * sizeof *t->items);
    tuning_item *mine = &t->items[t->count++];
    *mine = *item;
    int length = snprintf(mine->key, sizeof mine->key, "%s | %s", item->key, t->device_name);
    MUST(length < (int)sizeof mine->key && item->candidates >= 1 && item->candidates <= TUNING_CANDIDATES,
         "%s: %d candidates", item->key, item->candidates);
    MUST(find_item(t, mine->key) == mine, "%s: two plans", mine->key);
}

const char *tuning_wanted(const tuning *t, int i)
{
    return i < t->count ? t->items[i].key : NULL;
}

/* ---- timing ---------------------------------------------------------------------------------------------------- */

/* Makes numbers uniform in [-1, 1): speed and power depend on the data, and zeros are the fastest there are. */
static char *random_numbers(dtype type)
{
    int64_t count = RANDOM_BYTES / dtype_bytes(type);
    AUTO_FREE float *values = must_alloc((unsigned long)count * sizeof *values);
    uint32_t state = 1;
    for (int64_t i = 0; i < count; i++) {
        state = state * 1664525u + 1013904223u;
        values[i] = (float)(state >> 8) / 8388608.0f - 1;
    }
    char *made = must_alloc(RANDOM_BYTES);
    dtype_convert(made, type, values, DTYPE_FP32, count);
    return made;
}

/* Fills an operand: random numbers come from the host and are doubled on the device; given values are copied whole. */
static void fill(const tuning_operand *o, const void *plan, cudaStream_t stream)
{
    AUTO_FREE char *numbers = o->give ? must_alloc((unsigned long)o->bytes) : random_numbers(o->type);
    char *at = o->at;
    if (o->give)
        o->give(numbers, o->bytes, plan);
    int64_t done = o->give || o->bytes < RANDOM_BYTES ? o->bytes : RANDOM_BYTES;
    CUDA_MUST(cudaMemcpyAsync(at, numbers, (size_t)done, cudaMemcpyHostToDevice, stream));
    for (int64_t more; done < o->bytes; done += more) {
        more = o->bytes - done < done ? o->bytes - done : done;
        CUDA_MUST(cudaMemcpyAsync(at + done, at, (size_t)more, cudaMemcpyDeviceToDevice, stream));
    }
    CUDA_MUST(cudaStreamSynchronize(stream));
}

typedef struct stopwatch {
    cudaEvent_t begin, end;
    cudaStream_t stream;
} stopwatch;

/* Measures microseconds of one run; infinite if the library refuses this candidate. */
static double measure(const stopwatch *w, const tuning_item *item, int candidate)
{
    float milliseconds = 0;
    CUDA_MUST(cudaEventRecord(w->begin, w->stream));
    for (int i = 0; i < LAUNCHES; i++)
        if (!item->run(item->plan, candidate, w->stream))
            return INFINITY;
    CUDA_MUST(cudaEventRecord(w->end, w->stream));
    CUDA_MUST(cudaEventSynchronize(w->end));
    CUDA_MUST(cudaEventElapsedTime(&milliseconds, w->begin, w->end));
    return (double)milliseconds * 1e3 / LAUNCHES;
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Returns the fastest candidate; among equals the library's better guess. */
static int fastest(double *microseconds, const stopwatch *w, const tuning_item *item)
{
    double took[TUNING_CANDIDATES][ROUNDS], best = INFINITY;
    int chosen = 0;
    for (int candidate = 0; candidate < item->candidates; candidate++)
        (void)measure(w, item, candidate); /* loads its kernel */
    for (int candidate = 0; candidate < item->candidates; candidate++)
        best = fmin(best, took[candidate][0] = measure(w, item, candidate));
    bool near[TUNING_CANDIDATES];
    for (int candidate = 0; candidate < item->candidates; candidate++)
        near[candidate] = took[candidate][0] <= NEAR * best && isfinite(took[candidate][0]);
    for (int round = 1; round < ROUNDS; round++)
        for (int candidate = 0; candidate < item->candidates; candidate++)
            if (near[candidate])
                took[candidate][round] = measure(w, item, candidate);
    *microseconds = INFINITY;
    for (int candidate = 0; candidate < item->candidates; candidate++) {
        if (!near[candidate])
            continue;
        qsort(took[candidate], ROUNDS, sizeof(double), ascending);
        if (took[candidate][ROUNDS / 2] < *microseconds) {
            *microseconds = took[candidate][ROUNDS / 2];
            chosen = candidate;
        }
    }
    return chosen;
}

static status find_one(device_choice *out, const stopwatch *w, const tuning_item *item, bool timing)
{
    int candidate = 0;
    out->microseconds = 0;
    if (timing) {
        for (int i = 0; i < TUNING_OPERANDS; i++)
            if (item->reads[i].at)
                fill(&item->reads[i], item->plan, w->stream);
        candidate = fastest(&out->microseconds, w, item);
        if (!isfinite(out->microseconds))
            return status_fail(STATUS_FAILED, "none of the library's candidates runs: %s", item->key);
    }
    item->write(out->value, sizeof out->value, item->plan, candidate);
    return STATUS_OK;
}

status tuning_find(tuning *t, device_choice *choices, int count, bool timing, cudaStream_t stream)
{
    stopwatch w = {.stream = stream};
    status s = STATUS_OK;
    CUDA_MUST(cudaEventCreate(&w.begin));
    CUDA_MUST(cudaEventCreate(&w.end));
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        const tuning_item *item = find_item(t, choices[i].key);
        MUST(item, "nobody wants %s", choices[i].key);
        s = find_one(&choices[i], &w, item, timing);
    }
    CUDA_MUST(cudaEventDestroy(w.begin));
    CUDA_MUST(cudaEventDestroy(w.end));
    return s;
}

status tuning_choose(tuning *t, const device_choice *choice)
{
    tuning_item *item = find_item(t, choice->key);
    MUST(item, "nobody wants %s", choice->key);
    return item->take(item->plan, choice->value);
}

bool tuning_candidate(const tuning *t, device_choice *choice, int i)
{
    const tuning_item *item = find_item(t, choice->key);
    MUST(item, "nobody wants %s", choice->key);
    if (i >= item->candidates)
        return false;
    item->write(choice->value, sizeof choice->value, item->plan, i);
    return true;
}
