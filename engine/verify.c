#include "engine/verify.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/arena.h"
#include "memory/bits.h"
#include "memory/clock.h"
#include "memory/log.h"

/* A tensor whose bytes outlive the step. */
typedef struct rest {
    const tensor *t;
    const char *what; /* "weight" */
    int first, last;  /* ops of a step that write it; the program's length and -1: none */
    bool weight;
    int number; /* the parameter's */
    uint64_t sum;
} rest;

struct verify {
    const compiled *compiled;
    const program *list;
    executor *executor;
    char *base;
    int threads, every;
    rest *rests; /* in the order of the first write */
    int count;
    int *by_last; /* in the order of the last */
    int next_first, next_last;

    int micro_batch; /* that is repeated in this step, or -1 */
    arena *arena;
    char *copy; /* of what an op is going to change */
    int64_t copy_bytes;
    bool repeating;
    uint64_t result; /* of the first play */

    int64_t step;
    bool bad;
    char words[256];
    double seconds;
};

/* ---- what is at rest ---------------------------------------------------------------------------------------------- */

static void add_rest(verify *v, const storage *s, const tensor *t, const char *what, bool weight)
{
    if (t && t->address >= 0 && tensor_bytes(t) > 0)
        v->rests[v->count++] = (rest){
            .t = t, .what = what, .first = v->list->count, .last = -1, .weight = weight, .number = s->of->number};
}

static void list_rests(verify *v)
{
    const compiled *c = v->compiled;
    v->rests = must_calloc((unsigned long)c->model.parameter_count * (STORAGE_STATES + 2), sizeof *v->rests);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const storage *s = &c->storage[c->model.parameters[i]->number];
        add_rest(v, s, s->shard_weight ? s->shard : s->weight, "weight", true);
        if (s->master != s->own_weight)
            add_rest(v, s, s->master, "master weight", false);
        for (int k = 0; k < s->states; k++)
            add_rest(v, s, s->state[k], "optimizer's state", false);
        if (s->feedback)
            add_rest(v, s, s->feedback, "feedback", false);
        if (s->feedback_sum)
            add_rest(v, s, s->feedback_sum, "feedback of the sum", false);
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

/* Op `at` writes bytes [begin, end) of the arena. The rests are in the order of their addresses. */
static void note_write(verify *v, int64_t begin, int64_t end, int at)
{
    int low = 0, high = v->count;
    while (low < high) { /* the first that ends behind `begin` */
        int middle = (low + high) / 2;
        const tensor *t = v->rests[middle].t;
        if (t->address + tensor_bytes(t) <= begin)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < v->count && v->rests[low].t->address < end; low++) {
        rest *r = &v->rests[low];
        r->first = at < r->first ? at : r->first;
        r->last = at > r->last ? at : r->last;
    }
}

/* What communication writes it may write until it has been waited for. */
static void note_writes(verify *v)
{
    const op **started = must_calloc((unsigned long)v->compiled->training.requests + 1, sizeof *started);
    for (int i = 0; i < v->list->count; i++) {
        const op *o = v->list->ops[i], *writes = o;
        if (op_row_of(o)->flags & OP_ASYNCHRONOUS)
            started[o->at.request] = o;
        if (o->kind == OP_wait)
            writes = started[o->at.request];
        for (int k = 0; writes && k < OP_MAX_OUT; k++)
            if (writes->out[k] && writes->out[k]->address >= 0)
                note_write(v, writes->out[k]->address, writes->out[k]->address + tensor_bytes(writes->out[k]), i);
    }
    free(started);
}

static void order_rests(verify *v)
{
    qsort(v->rests, (size_t)v->count, sizeof *v->rests, compare_first);
    v->by_last = must_alloc((unsigned long)v->count * sizeof *v->by_last + 1);
    for (int i = 0; i < v->count; i++) {
        int k = i;
        for (; k > 0 && v->rests[v->by_last[k - 1]].last > v->rests[i].last; k--)
            v->by_last[k] = v->by_last[k - 1];
        v->by_last[k] = i;
    }
}

static uint64_t sum_of(const verify *v, const rest *r)
{
    return bits_sum(tensor_at(r->t, v->base), tensor_bytes(r->t), v->threads);
}

static void find(verify *v, const char *what, const char *name, const char *how)
{
    if (!v->bad)
        snprintf(v->words, sizeof v->words, "step %lld: %s of %s %s", (long long)v->step, what, name, how);
    v->bad = true;
}

static void check(verify *v, const rest *r)
{
    if (sum_of(v, r) != r->sum)
        find(v, r->what, r->t->name, "has changed while nothing wrote it");
}

/* ---- repetition ---------------------------------------------------------------------------------------------------- */

static bool repeats(const verify *v, const op *o)
{
    bool pass = o->phase == PHASE_FORWARD || o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT;
    return pass && !(op_row_of(o)->flags & OP_ASYNCHRONOUS) && o->kind != OP_wait && o->microbatch >= 0 &&
           (v->micro_batch < 0 || o->microbatch == v->micro_batch);
}

/* Does the op read bytes that it writes? Then they must be as they were before it is played again. */
static bool changes(const op *o)
{
    if (o->at.accumulate != OP_WRITES || (op_row_of(o)->flags & OP_STATEFUL))
        return true;
    for (int k = 0; k < OP_MAX_OUT; k++)
        for (int i = 0; o->out[k] && i < OP_MAX_IN; i++) {
            const tensor *a = o->out[k], *b = o->in[i];
            if (b && a->address < b->address + tensor_bytes(b) && b->address < a->address + tensor_bytes(a))
                return true;
        }
    return false;
}

/* Calls `use` for each contiguous run of bytes that the op writes: between the rows of a view lies what others write. */
static void each_run(const op *o, char *base, void (*use)(void *context, char *at, int64_t bytes), void *context)
{
    for (int k = 0; k < OP_MAX_OUT; k++) {
        const tensor *t = o->out[k];
        if (!t || t->address < 0 || tensor_elements(t) == 0)
            continue;
        char *at = tensor_at(t, base);
        if (tensor_contiguous(t)) {
            use(context, at, tensor_bytes(t));
            continue;
        }
        int64_t element = dtype_bytes((dtype)t->type), row = tensor_elements(t) / t->shape[0] * element;
        for (int64_t i = 0; i < t->shape[0]; i++)
            use(context, at + i * t->pitch * element, row);
    }
}

static void count_run(void *context, char *at, int64_t bytes)
{
    (void)at;
    *(int64_t *)context += bytes;
}

static void keep_run(void *context, char *at, int64_t bytes)
{
    char **to = context;
    memcpy(*to, at, (size_t)bytes);
    *to += bytes;
}

static void bring_back_run(void *context, char *at, int64_t bytes)
{
    char **from = context;
    memcpy(at, *from, (size_t)bytes);
    *from += bytes;
}

static void sum_run(void *context, char *at, int64_t bytes)
{
    uint64_t *sum = context;
    *sum = bits_mix(*sum, bits_sum(at, bytes, 1));
}

static uint64_t result_of(const verify *v, const op *o)
{
    uint64_t sum = 0;
    each_run(o, v->base, sum_run, &sum);
    return sum;
}

static void open_copy(verify *v)
{
    v->micro_batch = -1;
    for (int i = 0; i < v->list->count; i++) {
        const op *o = v->list->ops[i];
        int64_t bytes = 0;
        if (repeats(v, o) && changes(o))
            each_run(o, v->base, count_run, &bytes);
        v->copy_bytes = bytes > v->copy_bytes ? bytes : v->copy_bytes;
    }
}

/* ---- observing ------------------------------------------------------------------------------------------------------ */

static void before(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    if (p != &v->compiled->training)
        return;
    double began = clock_seconds();
    bool busy = false;
    for (; v->next_first < v->count && v->rests[v->next_first].first == i; busy = true)
        check(v, &v->rests[v->next_first++]);
    if (v->micro_batch >= 0 && repeats(v, p->list.ops[i])) {
        char *to = v->copy;
        if (changes(p->list.ops[i]))
            each_run(p->list.ops[i], v->base, keep_run, &to);
        busy = true;
    }
    v->seconds += busy ? clock_seconds() - began : 0;
}

static void after(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    if (p != &v->compiled->training)
        return;
    double began = clock_seconds();
    bool busy = false;
    for (; v->next_last < v->count && v->rests[v->by_last[v->next_last]].last == i; busy = true) {
        rest *r = &v->rests[v->by_last[v->next_last++]];
        r->sum = sum_of(v, r);
    }
    v->seconds += busy ? clock_seconds() - began : 0;
}

/* The second play is over when this is asked for the second time. */
static bool again(void *context, const compiled_program *p, int i)
{
    verify *v = context;
    const op *o = p->list.ops[i];
    if (p != &v->compiled->training || v->micro_batch < 0 || !repeats(v, o))
        return false;
    uint64_t result = result_of(v, o);
    if (v->repeating) {
        v->repeating = false;
        v->seconds += clock_seconds(); /* less the beginning, below */
        if (result != v->result)
            find(v, "the result", o->label, "was another one when it was computed again");
        return false;
    }
    v->seconds -= clock_seconds();
    v->result = result;
    v->repeating = true;
    char *from = v->copy;
    if (changes(o))
        each_run(o, v->base, bring_back_run, &from);
    return true;
}

/* ---- */

verify *verify_open(const compiled *c, executor *e, int every)
{
    verify *v = must_calloc(1, sizeof *v);
    v->compiled = c;
    v->list = &c->training.list;
    v->executor = e;
    v->base = executor_context(e)->arena;
    v->threads = executor_context(e)->threads;
    v->every = every;
    list_rests(v);
    qsort(v->rests, (size_t)v->count, sizeof *v->rests, compare_address);
    note_writes(v);
    order_rests(v);
    open_copy(v);
    MUST(v->copy_bytes == 0 || arena_open(&v->arena, v->copy_bytes) == STATUS_OK, "%s", status_message());
    v->copy = v->arena ? arena_base(v->arena) : NULL;
    executor_observe(e, OBSERVES_OUTSIDE, (executor_observer){v, before, after, again});
    return v;
}

void verify_close(verify *v)
{
    if (!v)
        return;
    executor_observe(v->executor, OBSERVES_OUTSIDE, (executor_observer){0});
    arena_close(v->arena);
    free(v->rests);
    free(v->by_last);
    free(v);
}

int64_t verify_bytes(const verify *v)
{
    return v ? v->copy_bytes : 0;
}

void verify_begin(verify *v)
{
    for (int i = 0; i < v->count; i++)
        v->rests[i].sum = sum_of(v, &v->rests[i]);
    v->bad = false;
}

void verify_step(verify *v, int64_t step)
{
    v->step = step;
    v->next_first = v->next_last = 0;
    while (v->next_last < v->count && v->rests[v->by_last[v->next_last]].last < 0)
        v->next_last++;
    bool due = step % v->every == 0;
    v->micro_batch = due ? (int)(step / v->every % v->compiled->options.microbatches) : -1;
}

verify_finding verify_find(verify *v)
{
    double began = clock_seconds();
    verify_finding f = {0};
    for (int i = 0; i < v->count; i++) {
        const rest *r = &v->rests[i];
        if (r->last < 0)
            check(v, r);
        if (r->weight)
            f.weights += bits_mix(r->sum, (uint64_t)r->number); /* replicas may have another order */
    }
    v->seconds += clock_seconds() - began;
    f.bad = v->bad;
    f.seconds = v->seconds;
    memcpy(f.words, v->words, sizeof f.words);
    v->bad = false;
    return f;
}
