/* Which op is being launched, and what its kernels touch. The linker leads the op table's cuda_NAME through the
 * functions here (--wrap), and the shim asks before each launch. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

static const op *current;
static const updates *current_updates; /* the ops of one launch */
static const run_context *current_context;

standin_count standin_counts;

extern void (*shim_before_launch)(const char *name, void *stream);
extern bool (*shim_keep_launch)(void *stream, void (*play)(void *launch), void *launch);

const op *standin_op(void)
{
    return current_updates && current_updates->held ? current_updates->of[0] : current;
}

void standin_set_op(const op *o)
{
    current = o;
}

static void touch(int queue, const op *o, char *arena)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        standin_access_tensor(queue, o->in[i], arena, false, o->label);
    for (int i = 0; i < OP_MAX_OUT; i++)
        standin_access_tensor(queue, o->out[i], arena, true, o->label);
    standin_access_tensor(queue, o->scratch, arena, true, o->label);
}

/* STANDIN_FLIP_1="layer 0/norm: in 9": on rank 1, before the ninth launch in steps (warming is none) of an op with that
 * label, a bit is flipped of its second operand, a weight, or ("acc") of a result that it adds to. Once. */
static void flip_a_bit(void)
{
    static int launches;
    static bool done;
    char name[32], label[128], which[8];
    int when = 0;
    snprintf(name, sizeof name, "STANDIN_FLIP_%d", log_rank());
    const char *text = getenv(name);
    if (done || !text || !current || !standin_warmed() || sscanf(text, "%127[^:]: %7s %d", label, which, &when) != 3 ||
        strcmp(current->label, label) || ++launches < when)
        return;
    const tensor *t = !strcmp(which, "acc") ? current->out[0] : current->in[1];
    done = true;
    ((char *)tensor_at(t, current_context->arena))[1] ^= 4;
    fprintf(stderr, "standin: a bit of %s is flipped\n", t->name);
}

static void before_launch(const char *name, void *stream)
{
    int queue = standin_stream(stream, name);
    if (!standin_op())
        standin_fail("kernel %s is launched by no op", name);
    standin_land();
    standin_tick(queue);
    standin_take(queue, 1);
    flip_a_bit();
    standin_busy();
    standin_counts.launches++;
    standin_counts.updates += current_updates != NULL;
    for (int i = 0; current_updates && i < current_updates->held; i++)
        touch(queue, current_updates->of[i], current_context->arena);
    if (current)
        touch(queue, current, current_context->arena);
}

/* A launch that a graph keeps, and whose it is: a copy of `ops`, or of one op, which may be gone when the graph is
 * launched. */
typedef struct kept {
    void (*play)(void *launch);
    void *launch;
    bool single;
    op o;
    updates *ops;
    const run_context *context;
} kept;

static void play_kept(int queue, void *what)
{
    const kept *k = what;
    (void)queue;
    current = k->single ? &k->o : NULL;
    current_updates = k->ops;
    current_context = k->context;
    k->play(k->launch);
    current = NULL;
    current_updates = NULL;
}

static bool keep_launch(void *stream, void (*play)(void *launch), void *launch)
{
    kept k = {.play = play, .launch = launch, .single = current != NULL, .context = current_context};
    int queue = standin_stream(stream, "a kernel");
    if (!standin_captured(queue))
        return false;
    if (current)
        k.o = *current;
    if (current_updates) {
        k.ops = must_alloc(sizeof *k.ops);
        *k.ops = *current_updates;
    }
    return standin_keep(queue, play_kept, &k, sizeof k);
}

static void begin(const op *o, const run_context *r)
{
    shim_before_launch = before_launch;
    shim_keep_launch = keep_launch;
    current = o;
    current_context = r;
}

/* The first launch of a kind of op loads its kernels, and loading may wait for all that the device does: among it a
 * receive that waits for the rank that is waited for here. */
static void load(const op *o)
{
    static bool loaded[OP_COUNT];
    if (!loaded[o->kind] && standin_warmed())
        standin_fail("the kernels of %s are loaded while communication may wait: first launched by %s",
                     op_row_of(o)->name, o->label);
    loaded[o->kind] = true;
}

#define OP(name, ...)                                                                                                  \
    void __real_cuda_##name(const op *o, const run_context *r);                                                        \
    void __wrap_cuda_##name(const op *o, const run_context *r);                                                        \
    void __wrap_cuda_##name(const op *o, const run_context *r)                                                         \
    {                                                                                                                  \
        load(o);                                                                                                       \
        begin(o, r);                                                                                                   \
        __real_cuda_##name(o, r);                                                                                      \
        current = NULL;                                                                                                \
    }
#include "kernels/table/ops.def"

/* Verification's kernels are of no op: one is made up, whose operands are the bytes that they touch. Kept for
 * graphs. */
static void begin_bytes(const void *read, int64_t bytes, int64_t pitch, int64_t rows, void *written)
{
    static const run_context from_zero;
    tensor *t = must_calloc(2, sizeof *t);
    op *o = must_calloc(1, sizeof *o);
    const int64_t shapes[2][2] = {{rows, bytes}, {1, (int64_t)sizeof(uint64_t)}};
    const void *at[2] = {read, written};
    for (int i = 0; i < 2; i++) {
        tensor_describe(&t[i], "bits", CLASS_TEMPORARY, DTYPE_UINT8, 2, shapes[i]);
        t[i].address = (int64_t)(intptr_t)at[i];
    }
    t[0].pitch = pitch;
    o->label = "verification";
    o->in[0] = &t[0];
    o->out[0] = &t[1];
    begin(o, &from_zero);
}

int __real_launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of);
int __wrap_launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of);
int __wrap_launch_sum_bits(void *stream, uint64_t *total, const launch_bytes *of)
{
    begin_bytes(of->at, of->bytes, of->pitch, of->rows, total);
    int error = __real_launch_sum_bits(stream, total, of);
    current = NULL;
    return error;
}

int __real_launch_finish_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what,
                              const int64_t *step);
int __wrap_launch_finish_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what,
                              const int64_t *step);
int __wrap_launch_finish_bits(void *stream, uint64_t *total, uint64_t *sum, uint64_t *note, uint64_t what,
                              const int64_t *step)
{
    begin_bytes(total, sizeof *total, sizeof *total, 1, note ? note : sum);
    int error = __real_launch_finish_bits(stream, total, sum, note, what, step);
    current = NULL;
    return error;
}

void __real_updates_add(updates *u, const op *o, const run_context *r);
void __wrap_updates_add(updates *u, const op *o, const run_context *r);
void __real_updates_launch(updates *u, const run_context *r);
void __wrap_updates_launch(updates *u, const run_context *r);

void __wrap_updates_add(updates *u, const op *o, const run_context *r)
{
    load(o);
    begin(NULL, r);
    current_updates = u;
    __real_updates_add(u, o, r);
    current_updates = NULL;
}

/* The mutant launches at the second occasion: behind the copies that were to take what is updated to the host. */
void __wrap_updates_launch(updates *u, const run_context *r)
{
    static bool put_off;
    put_off = standin_mutant("updates are late") && u->held && !put_off;
    if (put_off)
        return;
    begin(NULL, r);
    current_updates = u;
    __real_updates_launch(u, r);
    current_updates = NULL;
}
