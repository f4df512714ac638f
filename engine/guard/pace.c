#include "engine/guard/pace.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/attention.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Timed ops of each kind per step. The first steps warm up caches, pages and libraries. */
enum { TIMED = 4, WARM = 2 };

struct pace {
    executor *executor;
    const compiled_program *program;
    const device_interface *interface;
    device *device;
    int8_t *slot; /* [ops] class x TIMED + index within it; -1: not timed */
    bool used[PACE_CLASSES * TIMED];
    double began;
    double seconds[PACE_CLASSES], waited;
    int count[PACE_CLASSES];
    int steps;
    int64_t launched; /* launches of the program at the last query */
};

/* ---- selection of ops -------------------------------------------------------------------------------------------- */

typedef struct kind_of_op {
    uint64_t key;
    double flops; /* FLOPs of a step, finally over all ranks */
    int64_t ranks;
} kind_of_op;

static uint64_t mix(uint64_t key, uint64_t value)
{
    key = (key ^ value) * 0x9e3779b97f4a7c15u;
    return key ^ key >> 29;
}

static uint64_t mix_tensor(uint64_t key, const tensor *t)
{
    key = mix(key, t ? t->type + 1u : 0);
    for (int d = 0; t && d < t->dims; d++)
        key = mix(key, (uint64_t)t->shape[d]);
    return key;
}

/* Returns the same key for ops that do the same work. */
static uint64_t key_of(const op *o)
{
    uint64_t key = mix(1, o->kind);
    for (int i = 0; i < OP_MAX_IN; i++)
        key = mix_tensor(key, o->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        key = mix_tensor(key, o->out[i]);
    return mix(key, o->at.accumulate);
}

/* Returns 0 for ops that are not compared: ranks with the same op and other documents have different work. */
static double flops_of(const op *o)
{
    bool within = o->phase == PHASE_FORWARD || o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT;
    bool unlike = !within || op_communicates(o) || op_waits(o) || attention_work_varies(o);
    return unlike ? 0 : op_row_of(o)->cost(o).flops;
}

static void add_kind(kind_of_op *list, int *count, kind_of_op k)
{
    for (int i = 0; i < *count; i++)
        if (list[i].key == k.key) {
            list[i].flops += k.flops;
            list[i].ranks += k.ranks;
            return;
        }
    list[(*count)++] = k;
}

/* Sorts kinds that several ranks have first, then by work, then by key. */
static int compare_kinds(const void *a, const void *b)
{
    const kind_of_op *x = a, *y = b;
    int shared = (y->ranks > 1) - (x->ranks > 1), work = (x->flops < y->flops) - (x->flops > y->flops);
    return shared ? shared : work ? work : (x->key > y->key) - (x->key < y->key);
}

/* Lists the kinds with the most work in this rank's program. */
static void own_kinds(kind_of_op out[PACE_CLASSES], const program *list)
{
    AUTO_FREE kind_of_op *all = must_calloc((unsigned long)list->count + PACE_CLASSES, sizeof *all);
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        double flops = flops_of(list->ops[i]);
        if (flops > 0)
            add_kind(all, &count, (kind_of_op){key_of(list->ops[i]), flops, 0});
    }
    qsort(all, (size_t)count, sizeof *all, compare_kinds);
    for (int i = 0; i < PACE_CLASSES; i++) {
        all[i].ranks = i < count;
        out[i] = all[i];
    }
}

/* Lists the kinds of all ranks, the same on each. */
static void shared_kinds(kind_of_op out[PACE_CLASSES], const program *list, comm *world)
{
    int ranks = comm_ranks(world), count = 0;
    kind_of_op mine[PACE_CLASSES] = {0};
    AUTO_FREE kind_of_op *all = must_calloc((unsigned long)ranks * PACE_CLASSES, sizeof *all);
    AUTO_FREE kind_of_op *merged = must_calloc((unsigned long)ranks * PACE_CLASSES, sizeof *merged);
    own_kinds(mine, list);
    comm_all_gather_bytes(comm_world(world), all, mine, sizeof mine);
    for (int i = 0; i < ranks * PACE_CLASSES; i++)
        if (all[i].ranks > 0)
            add_kind(merged, &count, all[i]);
    qsort(merged, (size_t)count, sizeof *merged, compare_kinds);
    memcpy(out, merged, PACE_CLASSES * sizeof *out);
}

/* ---- timing ---------------------------------------------------------------------------------------------------- */

static void before_op(void *context, const compiled_program *of, int i)
{
    pace *p = context;
    if (of != p->program)
        return;
    if (p->slot[i] >= 0 && p->interface->times.stamp)
        p->interface->times.stamp(p->device, CLOCK_PACE, 2 * p->slot[i], of->list.ops[i]);
    else if (p->slot[i] >= 0)
        p->began = clock_of(CLOCK_THREAD_CPUTIME_ID);
    else if (op_waits(of->list.ops[i]))
        p->began = clock_seconds();
}

static void after_op(void *context, const compiled_program *of, int i)
{
    pace *p = context;
    if (of != p->program)
        return;
    if (p->slot[i] >= 0 && p->interface->times.stamp) {
        p->interface->times.stamp(p->device, CLOCK_PACE, 2 * p->slot[i] + 1, of->list.ops[i]);
    } else if (p->slot[i] >= 0) {
        p->seconds[p->slot[i] / TIMED] += clock_of(CLOCK_THREAD_CPUTIME_ID) - p->began;
        p->count[p->slot[i] / TIMED]++;
    } else if (op_waits(of->list.ops[i]) && !p->interface->times.stamp) {
        p->waited += clock_seconds() - p->began;
    }
}

pace *pace_open(const compiled *c, executor *e, comm *world)
{
    kind_of_op kinds[PACE_CLASSES];
    int timed[PACE_CLASSES] = {0};
    pace *p = must_calloc(1, sizeof *p);
    p->executor = e;
    p->program = &c->training;
    p->interface = executor_device(e, &p->device);
    p->slot = must_alloc((unsigned long)p->program->list.count + 1);
    memset(p->slot, -1, (size_t)p->program->list.count + 1);
    shared_kinds(kinds, &p->program->list, world);
    for (int i = 0; i < p->program->list.count; i++) {
        double flops = flops_of(p->program->list.ops[i]);
        uint64_t key = flops > 0 ? key_of(p->program->list.ops[i]) : 0;
        for (int k = 0; k < PACE_CLASSES && flops > 0; k++)
            if (kinds[k].ranks > 1 && kinds[k].key == key && timed[k] < TIMED) {
                p->slot[i] = (int8_t)(k * TIMED + timed[k]++);
                p->used[p->slot[i]] = true;
            }
    }
    if (p->interface->times.stamps)
        p->interface->times.stamps(p->device, CLOCK_PACE, 2 * PACE_CLASSES * TIMED);
    executor_observe(e, OBSERVES_INSIDE, (executor_observer){p, before_op, after_op, NULL});
    return p;
}

void pace_close(pace *p)
{
    if (!p)
        return;
    executor_observe(p->executor, OBSERVES_INSIDE, (executor_observer){0});
    if (p->interface->times.stamps)
        p->interface->times.stamps(p->device, CLOCK_PACE, 0);
    free(p->slot);
    free(p);
}

pace_figures pace_take(pace *p)
{
    pace_figures s = {0};
    if (!p)
        return s;
    int64_t launched = executor_launches(p->executor, p->program);
    if (++p->steps > WARM && p->interface->times.stamp &&
        launched > p->launched) { /* not a smaller batch's step; the last one has been waited for */
        for (int i = 0; i < PACE_CLASSES * TIMED; i++)
            if (p->used[i]) {
                p->seconds[i / TIMED] += p->interface->times.seconds(p->device, CLOCK_PACE, 2 * i, 2 * i + 1);
                p->count[i / TIMED]++;
            }
    }
    p->launched = launched;
    for (int k = 0; k < PACE_CLASSES; k++) {
        s.seconds[k] = p->count[k] && p->steps > WARM ? (float)(p->seconds[k] / p->count[k]) : 0;
        p->seconds[k] = 0;
        p->count[k] = 0;
    }
    s.waited = (float)p->waited;
    p->waited = 0;
    return s;
}

/* ---- the judge --------------------------------------------------------------------------------------------------- */

typedef struct track {
    float ratio[PACE_WINDOW];
    int64_t added;
    bool slow;
} track;

struct pace_judge {
    int ranks;
    double waited;
    track *tracks; /* [ranks] */
    float *values; /* [ranks] */
};

pace_judge *pace_judge_open(int ranks)
{
    pace_judge *j = must_calloc(1, sizeof *j);
    j->ranks = ranks;
    j->tracks = must_calloc((unsigned long)ranks, sizeof *j->tracks);
    j->values = must_calloc((unsigned long)ranks, sizeof *j->values);
    return j;
}

void pace_judge_close(pace_judge *j)
{
    if (!j)
        return;
    free(j->tracks);
    free(j->values);
    free(j);
}

static int compare_floats(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* Returns the lower median: of two ranks the faster shows how fast the slower could be. Sorts the values. */
static double sort_median(float *values, int count)
{
    qsort(values, (size_t)count, sizeof *values, compare_floats);
    return count ? values[(count - 1) / 2] : 0;
}

static const pace_figures *share_of(const pace_figures *shares, int64_t stride, int rank)
{
    return (const pace_figures *)((const char *)shares + rank * stride);
}

void pace_judge_add(pace_judge *j, const pace_figures *shares, int64_t stride)
{
    double middle[PACE_CLASSES];
    j->waited = 0;
    for (int k = 0; k < PACE_CLASSES; k++) {
        int count = 0;
        for (int i = 0; i < j->ranks; i++) {
            float seconds = share_of(shares, stride, i)->seconds[k];
            if (seconds > 0)
                j->values[count++] = seconds;
        }
        middle[k] = count > 1 ? sort_median(j->values, count) : 0;
        middle[k] = middle[k] < PACE_SHORTEST ? 0 : middle[k];
    }
    for (int i = 0; i < j->ranks; i++) {
        const pace_figures *s = share_of(shares, stride, i);
        double mine = 0, usual = 0;
        for (int k = 0; k < PACE_CLASSES; k++)
            if (s->seconds[k] > 0 && middle[k] > 0) {
                mine += s->seconds[k];
                usual += middle[k];
            }
        if (usual > 0)
            j->tracks[i].ratio[j->tracks[i].added++ % PACE_WINDOW] = (float)(mine / usual);
        j->waited += s->waited / (double)j->ranks;
    }
}

double pace_ratio(const pace_judge *j, int rank)
{
    const track *t = &j->tracks[rank];
    float sorted[PACE_WINDOW];
    if (t->added < PACE_WINDOW)
        return 0;
    memcpy(sorted, t->ratio, sizeof sorted);
    return sort_median(sorted, PACE_WINDOW);
}

double pace_waited(const pace_judge *j)
{
    return j->waited;
}

int pace_change(pace_judge *j, double limit, bool *recovered)
{
    double low = 1 + (limit - 1) / 2; /* hysteresis: a rank near the limit is not reported repeatedly */
    for (int i = 0; i < j->ranks; i++) {
        double ratio = pace_ratio(j, i);
        *recovered = j->tracks[i].slow;
        if (ratio > 0 && (*recovered ? ratio < low : ratio >= limit)) {
            j->tracks[i].slow = !*recovered;
            return i;
        }
    }
    return -1;
}
