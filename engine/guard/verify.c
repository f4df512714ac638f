#include "engine/guard/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/storage.h"
#include "engine/compile/compile.h"
#include "memory/bits.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/compile/model/owner.h"

/* A tensor that outlives the step. */
typedef struct rest {
    const tensor *t;
    const char *what;        /* "weight" */
    int first, last;         /* ops of a step: checked before `first`, summed after `last` */
    const storage *compared; /* a weight's storage that replicas also have; else NULL */
    int64_t sum;             /* address of its sum in the arena */
} rest;

/* Bytes of a sum and its working memory, or of a note. */
static const int64_t SUM_BYTES = 2 * sizeof(uint64_t);

/* A note is the index of a rest, or AN_OP + the index of an op. */
static const uint64_t AN_OP = (uint64_t)1 << 32;

struct verify {
    const compiled *compiled;
    const program *list;
    executor *executor;
    const device_interface *interface;
    device *device;
    double bandwidth; /* memory bandwidth of a device; on the CPU 0, and time is measured */
    int every;
    rest *rests; /* sorted by `first` */
    int count;
    int apart;    /* while they are listed: from this index on rests are gathered weights */
    int *by_last; /* sorted by `last` */
    int next_first, next_last;

    int micro_batch; /* repeated micro-batch of this step, or -1 */
    bool repeating, alone;

    int64_t step;
    double seconds;
};

/* ---- state at rest ----------------------------------------------------------------------------------------------- */

/* Adds a rest, except offloaded state, which passes through windows of the arena and rests in host memory. */
static void add_rest(verify *v, const tensor *t, const char *what, const storage *compared)
{
    if (!t || t->address < 0 || t->address >= TENSOR_HOST || tensor_bytes(t) == 0)
        return;
    v->rests[v->count] = (rest){.t = t,
                                .what = what,
                                .first = v->list->count,
                                .last = -1,
                                .compared = compared,
                                .sum = v->compiled->sums + (1 + v->count) * SUM_BYTES};
    v->count++;
}

/* Returns the storage if this rank compares the weight with its replicas', else NULL. */
static const storage *compared_storage(const compiled *c, const storage *s)
{
    return owner_rows_of(c->around.group, s, OWNER_COMPARES).rows > 0 ? s : NULL;
}

/* Lists the rests. A tensor rests from the last op of a step that writes it to the first of the next. A weight that
 * each step gathers has two: its own rows; and all rows, from the gather to the update of the same step, which are the
 * same on replicas. */
static void list_rests(verify *v)
{
    const compiled *c = v->compiled;
    v->rests = must_calloc((unsigned long)c->model.parameter_count * REPEAT_RESTS, sizeof *v->rests);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        if (owner_rows_of(c->around.group, s, OWNER_UPDATES).rows > 0)
            add_rest(v, s->own_weight, "weight", storage_is_gathered(s) ? NULL : compared_storage(c, s));
        if (s->master != s->own_weight)
            add_rest(v, s->master, "master weight", NULL);
        for (int k = 0; k < s->states; k++)
            add_rest(v, s->state[k], "optimizer's state", NULL);
        add_rest(v, s->feedback, "feedback", NULL);
        add_rest(v, s->feedback_sum, "feedback of the sum", NULL);
    }
    v->apart = v->count;
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        if (storage_is_gathered(s) && compared_storage(c, s))
            add_rest(v, s->weight, "weight", s);
    }
}

static int compare_address(const void *a, const void *b)
{
    const rest *x = a, *y = b;
    return (x->t->address > y->t->address) - (x->t->address < y->t->address);
}

static int compare_first(const void *a, const void *b)
{
    const rest *x = a, *y = b;
    return (x->first > y->first) - (x->first < y->first);
}

/* Notes that op `at` writes tensor `to`: it is the first or the last write, or both, of rests that overlap it, out of
 * `count` sorted by address. */
static void note_write(rest *rests, int count, const tensor *to, int at, bool first, bool last)
{
    int low = 0, high = count;
    int64_t end = to->address + tensor_bytes(to);
    while (low < high) { /* the first that ends after the tensor's begin */
        int middle = (low + high) / 2;
        const tensor *t = rests[middle].t;
        if (t->address + tensor_bytes(t) <= to->address)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < count && rests[low].t->address < end; low++) {
        rest *r = &rests[low];
        if (first)
            r->first = at < r->first ? at : r->first;
        if (last)
            r->last = at > r->last ? at : r->last;
    }
}

/* Notes an op's outputs. A gather leaves a rank's own rows unchanged. */
static void note_op(verify *v, const op *writes, int at)
{
    bool gathers = writes->phase == PHASE_BEGIN;
    for (int k = 0; k < OP_MAX_OUT; k++) {
        const tensor *t = writes->out[k];
        if (!t || t->address < 0)
            continue;
        if (!gathers)
            note_write(v->rests, v->apart, t, at, true, true);
        note_write(v->rests + v->apart, v->count - v->apart, t, at, !gathers, gathers);
    }
}

/* Notes all writes. Communication may write until it has been waited for. */
static void note_writes(verify *v)
{
    AUTO_FREE const op **started = must_calloc((unsigned long)v->compiled->training.requests + 1, sizeof *started);
    for (int i = 0; i < v->list->count; i++) {
        const op *o = v->list->ops[i], *writes = o;
        if (op_starts(o))
            started[o->where.request] = o;
        if (op_waits(o))
            writes = started[o->where.request];
        if (writes)
            note_op(v, writes, i);
    }
    for (int i = v->apart; i < v->count; i++) /* rows that this rank does not update are checked at the step's end */
        if (v->rests[i].first == v->list->count)
            v->rests[i].first = v->list->count - 1;
}

/* Counts time by bytes read over memory bandwidth, since a device only enqueues. */
static void count_bytes(verify *v, int64_t bytes)
{
    v->seconds += v->bandwidth > 0 ? (double)bytes / v->bandwidth : 0;
}

static void sum_rest(verify *v, const rest *r)
{
    device_rows rows = repeat_rows(r->t);
    v->interface->bits.sum(v->device, r->sum, &rows);
}

static void check_rows(verify *v, int64_t with, const device_rows *rows, uint64_t what)
{
    const compiled *c = v->compiled;
    const device_note note = {
        .note = c->sums, .step = c->values.scalars->address + (int64_t)offsetof(step_scalars, step), .what = what};
    v->interface->bits.check(v->device, with, rows, &note);
}

static void check_rest(verify *v, const rest *r)
{
    device_rows rows = repeat_rows(r->t);
    check_rows(v, r->sum, &rows, 1 + (uint64_t)(r - v->rests));
}

/* ---- repetition -------------------------------------------------------------------------------------------------- */

static bool is_repeated(const verify *v, const op *o)
{
    return repeat_may(o) && v->micro_batch == o->microbatch;
}

/* Calls `use` for the bytes that the op writes, one output after the other from address `at` on. */
static void each_output(verify *v, const op *o, void (*use)(verify *v, const device_rows *rows, int64_t at))
{
    int64_t at = v->compiled->before;
    for (int k = 0; k < OP_MAX_OUT && o->out[k]; k++) {
        device_rows rows = repeat_rows(o->out[k]);
        if (rows.rows == 0)
            continue;
        use(v, &rows, at);
        at += rows.rows * rows.bytes;
    }
}

static void save_rows(verify *v, const device_rows *rows, int64_t at)
{
    v->interface->bits.keep(v->device, at, rows);
    count_bytes(v, 2 * rows->rows * rows->bytes);
}

static void bring_back(verify *v, const device_rows *rows, int64_t at)
{
    v->interface->bits.bring_back(v->device, rows, at);
    count_bytes(v, 2 * rows->rows * rows->bytes);
}

/* ---- observer of ops --------------------------------------------------------------------------------------------- */

static void add_time(verify *v, bool busy, double began)
{
    v->seconds += busy && v->bandwidth == 0 ? clock_seconds() - began : 0;
}

static void before_op(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    if (p != &v->compiled->training)
        return;
    double began = clock_seconds();
    bool busy = false;
    for (; v->next_first < v->count && v->rests[v->next_first].first == i; busy = true)
        check_rest(v, &v->rests[v->next_first++]);
    if (v->micro_batch >= 0 && is_repeated(v, p->list.ops[i])) {
        if (repeat_changes(p->list.ops[i]))
            each_output(v, p->list.ops[i], save_rows);
        busy = true;
    }
    add_time(v, busy, began);
}

static void after_op(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    if (p != &v->compiled->training)
        return;
    double began = clock_seconds();
    bool busy = false;
    for (; v->next_last < v->count && v->rests[v->by_last[v->next_last]].last == i; busy = true)
        sum_rest(v, &v->rests[v->by_last[v->next_last++]]);
    add_time(v, busy, began);
}

/* The second call ends the repetition. */
static bool repeat_op(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    const op *o = p->list.ops[i];
    if (p != &v->compiled->training || v->micro_batch < 0 || !is_repeated(v, o))
        return false;
    bool second = v->repeating;
    v->repeating = !second;
    v->seconds -= v->bandwidth == 0 && !second ? clock_seconds() : 0;
    for (int k = 0; k < OP_MAX_OUT && o->out[k]; k++) {
        /* The sums of an op's outputs follow all rests' sums. */
        int64_t at = v->compiled->sums + (1 + v->count + k) * SUM_BYTES;
        device_rows rows = repeat_rows(o->out[k]);
        if (rows.rows > 0 && second)
            check_rows(v, at, &rows, AN_OP + (uint64_t)i);
        else if (rows.rows > 0)
            v->interface->bits.sum(v->device, at, &rows);
        count_bytes(v, rows.rows * rows.bytes);
    }
    v->seconds += v->bandwidth == 0 && second ? clock_seconds() : 0;
    if (!second && repeat_changes(o))
        each_output(v, o, bring_back);
    return !second;
}

/* ---- */

verify *verify_open(const compiled *c, executor *e, int every)
{
    device_facts facts;
    verify *v = must_calloc(1, sizeof *v);
    v->compiled = c;
    v->list = &c->training.list;
    v->executor = e;
    v->interface = executor_device(e, &v->device);
    executor_facts(&facts, e);
    v->bandwidth = facts.bandwidth;
    v->every = every;
    v->micro_batch = -1;
    list_rests(v);
    qsort(v->rests, (size_t)v->apart, sizeof *v->rests, compare_address);
    qsort(v->rests + v->apart, (size_t)(v->count - v->apart), sizeof *v->rests, compare_address);
    note_writes(v);
    qsort(v->rests, (size_t)v->count, sizeof *v->rests, compare_first);
    v->by_last = must_alloc((unsigned long)v->count * sizeof *v->by_last + 1);
    for (int i = 0; i < v->count; i++) {
        int k = i;
        for (; k > 0 && v->rests[v->by_last[k - 1]].last > v->rests[i].last; k--)
            v->by_last[k] = v->by_last[k - 1];
        v->by_last[k] = i;
    }
    executor_observe(e, OBSERVES_OUTSIDE, (executor_observer){v, before_op, after_op, repeat_op});
    return v;
}

void verify_close(verify *v)
{
    if (!v)
        return;
    executor_observe(v->executor, OBSERVES_OUTSIDE, (executor_observer){0});
    free(v->rests);
    free(v->by_last);
    free(v);
}

void verify_begin(verify *v)
{
    for (int i = 0; i < v->count; i++)
        sum_rest(v, &v->rests[i]);
    const compiled *c = v->compiled;
    uint64_t *sums = executor_borrow(v->executor, c->sums, c->sums_bytes); /* the note and all sums, between programs */
    sums[0] = 0;
    executor_give_back(v->executor, sums, c->sums, c->sums_bytes, true);
}

void verify_step(verify *v, int64_t step)
{
    v->step = step;
    v->next_first = v->next_last = 0;
    while (v->next_last < v->count && v->rests[v->by_last[v->next_last]].last < 0)
        v->next_last++;
    bool due = step % v->every == 0;
    v->micro_batch = due ? (int)(step / v->every % v->compiled->options.microbatches) : -1;
    /* A captured graph cannot repeat a micro-batch. */
    if (v->alone != due)
        executor_op_by_op(v->executor, due);
    v->alone = due;
    for (int i = 0; i < v->count; i++)
        count_bytes(v, v->rests[i].last < 0 ? 0 : 2 * tensor_bytes(v->rests[i].t));
}

verify_finding verify_find(verify *v)
{
    double began = clock_seconds();
    verify_finding f = {0};
    for (int i = 0; i < v->count; i++)
        if (v->rests[i].last < 0)
            check_rest(v, &v->rests[i]);
    const compiled *c = v->compiled;
    uint64_t *sums = executor_borrow(v->executor, c->sums, c->sums_bytes);
    for (int i = 0; i < v->count; i++)
        if (v->rests[i].compared) { /* replicas may have another order */
            const parameter *p = v->rests[i].compared->of;
            f.weights[p->replicas] +=
                bits_mix(sums[(v->rests[i].sum - v->compiled->sums) / (int64_t)sizeof *sums], (uint64_t)p->number);
            f.compared |= 1u << p->replicas;
        }
    f.bad = sums[0] != 0;
    if (f.bad) {
        const bool an_op = sums[0] >= AN_OP;
        const rest *r = an_op ? NULL : &v->rests[sums[0] - 1];
        snprintf(f.words, sizeof f.words, "step %lld: %s of %s %s", (long long)sums[1], an_op ? "the result" : r->what,
                 an_op ? v->list->ops[sums[0] - AN_OP]->label : r->t->name,
                 an_op ? "was another one when it was computed again" : "has changed while nothing wrote it");
    }
    sums[0] = 0;
    executor_give_back(v->executor, sums, c->sums, c->sums_bytes, f.bad);
    add_time(v, true, began);
    f.seconds = v->seconds;
    return f;
}
