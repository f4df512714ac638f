/* Trains as `phalanx train` does, on a machine that is not as it should be: PHALANX_FAULT says how. The linker puts
 * this file's functions between the engine's (-Wl,--wrap, see the Makefile). What was done is said on standard error:
 * "injected: ...".
 *
 *   slow RANK SHARE FROM       that rank's ops take 1 + SHARE times as long, from step FROM on
 *   state RANK STEP SEED       a bit of that rank's weights, master weights or optimizer states flips while they are at
 *                              rest
 *   others RANK STEP SEED      a bit of rows that it holds of a weight, but does not own
 *   message RANK STEP SEED     a bit of a message to it flips on its way
 *   result RANK STEP SEED      a bit of the result of one op of a forward or backward pass
 *   update RANK STEP SEED      a bit of a weight, while it is updated
 *   results RANK STEP SEED     the same of every op like it, from that step on
 *
 * One process has one fault: an injection that a run goes back behind does not happen again.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/guard/verify.h"
#include "memory/log.h"
#include "tools/tools.h"

void __real_executor_observe(executor *e, executor_place place, executor_observer o);
void __wrap_executor_observe(executor *e, executor_place place, executor_observer o);
verify *__real_verify_open(const compiled *c, executor *e, int every);
verify *__wrap_verify_open(const compiled *c, executor *e, int every);

int __wrap_MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm job, MPI_Request *r);
int __real_MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm job, MPI_Request *r);
int __wrap_MPI_Testsome(int count, MPI_Request *requests, int *finished, int *indices, MPI_Status *statuses);
int __real_MPI_Testsome(int count, MPI_Request *requests, int *finished, int *indices, MPI_Status *statuses);

static struct {
    char kind[16];
    int rank, from, step;
    double share, began;
    uint64_t random;
    executor_observer real;
    const compiled *compiled;
    executor *executor;
    int op, messages, bytes;
    MPI_Request *request;
    char *message;
    bool playing, done;
} fault;

static double processor_seconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool is(const char *kind)
{
    return !strcmp(fault.kind, kind) && log_rank() == fault.rank;
}

static uint64_t draw(void)
{
    fault.random ^= fault.random >> 12;
    fault.random ^= fault.random << 25;
    fault.random ^= fault.random >> 27;
    return fault.random * 2685821657736338717u >> 8;
}

static bool computes(const op *o)
{
    return !op_communicates(o) && !op_waits(o);
}

static bool within_passes(const op *o)
{
    return o->phase == PHASE_FORWARD || o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT;
}

static void flip(const tensor *t)
{
    int64_t columns = tensor_elements(t) / t->shape[0], element = (int64_t)(draw() % (uint64_t)tensor_elements(t));
    int64_t bits = 8 * dtype_bytes((dtype)t->type), at = element / columns * t->pitch + element % columns;
    int64_t bit = at * bits + (int64_t)(draw() % (uint64_t)bits);
    char *data = tensor_at(t, executor_context(fault.executor)->arena);
    data[bit / 8] = (char)(data[bit / 8] ^ 1 << bit % 8);
}

/* ---- state ------------------------------------------------------------------------------------------------------ */

/* What others own of a weight rests once it has been gathered. */
static const tensor *resting_weight(const storage *s)
{
    const program *p = &fault.compiled->training.list;
    int request = -1;
    for (int i = 0; i < fault.op; i++) {
        const op *o = p->ops[i];
        if (o->kind == OP_all_gather && o->phase == PHASE_BEGIN && o->out[0] == s->weight)
            request = o->where.request;
        if (op_waits(o) && o->where.request == request)
            request = -1;
    }
    return s->shard_weight || request >= 0 ? s->own_weight : s->weight;
}

/* The rows before the rank's own, or those after, in `out`; NULL if there are none, or not yet. */
static const tensor *rows_of_others(tensor *out, const storage *s)
{
    int64_t end = s->own_first + s->own_rows, row = s->weight->pitch * dtype_bytes((dtype)s->weight->type);
    *out = *s->weight;
    if (resting_weight(s) != s->weight)
        return NULL;
    if (s->own_rows > 0) {
        out->shape[0] = s->own_first > 0 ? s->own_first : s->of->rows - end;
        out->address += s->own_first > 0 ? 0 : end * row;
    }
    return out->shape[0] > 0 ? out : NULL;
}

static const tensor *draw_state(const char **what, tensor *part, const storage *s)
{
    if (is("others")) {
        *what = "weight of another";
        return rows_of_others(part, s);
    }
    int which = (int)(draw() % (uint64_t)(2 + s->states));
    *what = which == 0 ? "weight" : which == 1 ? "master" : "state";
    return which == 0 ? resting_weight(s) : which == 1 ? s->master : s->state[which - 2];
}

static void flip_state(void)
{
    tensor part;
    const compiled *c = fault.compiled;
    const tensor *t = NULL;
    const char *what = "";
    while (!t || t->address < 0 || tensor_elements(t) == 0) {
        const parameter *p = c->model.parameters[draw() % (uint64_t)c->model.parameter_count];
        t = draw_state(&what, &part, &c->storage[p->number]);
    }
    flip(t);
    fprintf(stderr, "injected: step %d: %s %s\n", fault.step, what, t->name);
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

int __wrap_MPI_Irecv(void *data, int count, MPI_Datatype type, int from, int tag, MPI_Comm job, MPI_Request *r)
{
    bool due = fault.playing && is("message") && !fault.done && !fault.request && fault.step == fault.from &&
               type == MPI_BYTE && count > 0;
    if (due && fault.messages-- == 0) {
        fault.request = r;
        fault.message = data;
        fault.bytes = count;
    }
    return __real_MPI_Irecv(data, count, type, from, tag, job, r);
}

/* It has arrived, and nobody has looked at it yet. */
int __wrap_MPI_Testsome(int count, MPI_Request *requests, int *finished, int *indices, MPI_Status *statuses)
{
    int result = __real_MPI_Testsome(count, requests, finished, indices, statuses);
    for (int i = 0; *finished != MPI_UNDEFINED && i < *finished; i++)
        if (!fault.done && fault.request == &requests[indices[i]]) {
            fault.message[draw() % (uint64_t)fault.bytes] ^= (char)(1 << draw() % 8);
            fault.done = true;
            fprintf(stderr, "injected: step %d: message of %d bytes\n", fault.step, fault.bytes);
        }
    return result;
}

/* ---- around ops -------------------------------------------------------------------------------------------------- */

static void before(void *context, const compiled_program *p, int i)
{
    (void)context;
    if (fault.compiled && p != &fault.compiled->training)
        return;
    fault.playing = true;
    fault.step += i == 0;
    if (i == 0 && fault.step == fault.from && !fault.done) {
        do
            fault.op = (int)(draw() % (uint64_t)p->list.count);
        while (!within_passes(p->list.ops[fault.op]) || !computes(p->list.ops[fault.op]));
        fault.messages = (int)(draw() % 3);
    }
    if ((is("state") || is("others")) && !fault.done && fault.step == fault.from && i == fault.op) {
        flip_state();
        fault.done = true;
    }
    if (fault.real.before)
        fault.real.before(fault.real.context, p, i);
    fault.began = processor_seconds();
}

static void flip_result(const op *o)
{
    int outs = 0;
    while (outs < OP_MAX_OUT && o->out[outs])
        outs++;
    MUST(outs > 0, "%s has no result", o->label);
    const tensor *t = o->out[draw() % (uint64_t)outs];
    flip(t);
    if (!fault.done)
        fprintf(stderr, "injected: step %d, micro-batch %d: result %s of %s\n", fault.step, o->microbatch, t->name,
                o->label);
    fault.done = true;
}

static void after(void *context, const compiled_program *p, int i)
{
    (void)context;
    const op *o = p->list.ops[i];
    if (!fault.compiled || p == &fault.compiled->training) {
        double now = processor_seconds(), until = now + fault.share * (now - fault.began);
        while (is("slow") && fault.step >= fault.from && computes(o) && processor_seconds() < until)
            ;
        if (is("result") && !fault.done && fault.step == fault.from && i == fault.op)
            flip_result(o);
        if (is("update") && !fault.done && fault.step == fault.from && o->phase == PHASE_UPDATE && computes(o) &&
            o->out[0] && tensor_root(o->out[0])->class == CLASS_WEIGHT)
            flip_result(o);
        if (is("results") && fault.step >= fault.from && within_passes(o) && o->out[0] &&
            !strcmp(o->site, p->list.ops[fault.op]->site) && o->kind == p->list.ops[fault.op]->kind)
            flip_result(o);
        fault.playing = i + 1 < p->list.count;
    }
    if (fault.real.after)
        fault.real.after(fault.real.context, p, i);
}

static bool again(void *context, const compiled_program *p, int i)
{
    (void)context;
    return fault.real.again && fault.real.again(fault.real.context, p, i);
}

void __wrap_executor_observe(executor *e, executor_place place, executor_observer o)
{
    executor_place mine = !strcmp(fault.kind, "slow") ? OBSERVES_INSIDE : OBSERVES_OUTSIDE;
    if (place == mine)
        fault.real = o;
    __real_executor_observe(e, place, place == mine ? (executor_observer){NULL, before, after, again} : o);
}

verify *__wrap_verify_open(const compiled *c, executor *e, int every)
{
    fault.compiled = c;
    fault.executor = e;
    return __real_verify_open(c, e, every);
}

int main(int argc, char **argv)
{
    const char *what = getenv("PHALANX_FAULT");
    double seed = 0;
    fault.rank = -1;
    if (what && !strncmp(what, "slow ", 5))
        MUST(sscanf(what, "%15s %d %lf %d", fault.kind, &fault.rank, &fault.share, &fault.from) == 4, "%s", what);
    else if (what)
        MUST(sscanf(what, "%15s %d %d %lf", fault.kind, &fault.rank, &fault.from, &seed) == 4, "%s", what);
    fault.random = 88172645463325252u + 1000003u * (uint64_t)seed;
    for (int i = 0; i < 20; i++)
        draw();
    return train_main(argc, argv);
}
