/* A reduction that is missing, double or along the wrong axis is refused when the program is compiled. The linker puts
 * __wrap_op_make between the compiler and the op maker (-Wl,--wrap, see the Makefile), which spoils every reduction
 * along one axis. */
#include <stdio.h>
#include <stdlib.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/compile/compile.h"
#include "kernels/record/program.h"
#include "memory/log.h"
#include "tests/test.h"

typedef enum fault { NONE, DROP, DOUBLE, MISDIRECT } fault;

static fault spoil;
static axis along, instead;

op *__real_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into);
op *__wrap_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into);

/* The rows that a reduction leaves on this rank, without their sum. */
static op *unreduced(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    op copy = *like;
    copy.kind = OP_copy;
    if (like->kind == OP_reduce_scatter) {
        tensor *rows = pool_alloc(p, sizeof *rows);
        int64_t first = 0, count = like->where.group_rank == like->where.owner ? like->in[0]->shape[0] : 0;
        *rows = *like->in[0];
        if (like->where.owner < 0)
            shard_rows(&first, &count, rows->shape[0], like->where.group_size, like->where.group_rank);
        rows->shape[0] = count;
        copy.in[0] = rows;
    }
    return __real_op_make(p, &copy, outputs, into);
}

op *__wrap_op_make(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    bool reduces = like->kind == OP_all_reduce || like->kind == OP_reduce_scatter;
    bool gradient = like->in[0] &&
                    (like->in[0]->parameter || like->in[0]->type == DTYPE_INT64 || !strcmp(like->label, "loss/reduce"));
    op other = *like;
    if (spoil == NONE || !reduces || !gradient || like->where.axis != along)
        return __real_op_make(p, like, outputs, into);
    if (spoil == DROP)
        return unreduced(p, like, outputs, into);
    if (spoil == MISDIRECT) {
        other.where.axis = (uint8_t)instead;
        return __real_op_make(p, &other, outputs, into);
    }
    other.in[0] = __real_op_make(p, like, outputs, into)->out[0];
    return __real_op_make(p, &other, outputs, into);
}

/* ---- compiling
 * ------------------------------------------------------------------------------------------------------- */

typedef struct layout {
    const char *name;
    shape_architecture architecture;
    int tensor, data, pipeline, zero, kv_heads;
    bool each;
} layout;

static compile_options options_of(const layout *l)
{
    compile_options o = {.shape = {.architecture = l->architecture,
                                   .layers = 4,
                                   .hidden_size = 96,
                                   .heads = 12,
                                   .kv_heads = l->kv_heads,
                                   .ffn_size = 200,
                                   .vocab_size = 515,
                                   .max_sequence = 64,
                                   .tied_embeddings = true},
                         .precision = PRECISION_FP32,
                         .sequence = 64,
                         .micro_batch = 2,
                         .microbatches = 4,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.sequence = true,
                         .layout.zero = l->zero,
                         .layout.zero_gather = l->each,
                         .layout.zero_reduce = l->each,
                         .threads = 1,
                         .train = true};
    shape_fill(&o.shape);
    int ranks = l->tensor * l->data * l->pipeline;
    assert_int_equal(grid_make(&o.grid, ranks, ranks - 1, GRID_SIZES(l->tensor, 1, l->data, l->pipeline)), STATUS_OK);
    return o;
}

/* What the compiler says in a process of its own; "" if it has nothing to say against the program. */
static void compile_apart(char *message, size_t bytes, const layout *l)
{
    int ends[2], result;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        compile_options o = options_of(l);
        compiled c;
        _exit(compile(&c, &o) == STATUS_OK ? 0 : 3);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t more;
    while (used < bytes - 1 && (more = read(ends[0], message + used, bytes - 1 - used)) > 0)
        used += (size_t)more;
    message[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    bool died = WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT;
    if (!died && !(WIFEXITED(result) && WEXITSTATUS(result) == 0))
        fail_msg("%s: neither compiled nor refused: %s", l->name, message);
    assert_int_equal(died, used > 0);
}

static const layout gpt2 = {"gpt2 t2 d2 p2", SHAPE_GPT2, 2, 2, 2, 0, 12, false},
                    scattered = {"llama t2 d2, zero 1", SHAPE_LLAMA, 2, 2, 1, 1, 12, false},
                    each = {"llama t2 d2, zero 2, each micro-batch", SHAPE_LLAMA, 2, 2, 1, 2, 12, true},
                    copies = {"llama t4 with 2 key/value heads", SHAPE_LLAMA, 4, 1, 1, 0, 2, false},
                    divided_copies = {"the same, zero 3 over 2", SHAPE_LLAMA, 4, 2, 1, 3, 2, true};

#define MISSING "a reduction is missing"
#define TWICE   "reduced twice"
#define WRONG   "along the wrong axis"

static const struct row {
    const layout *of;
    axis along, instead;
    const char *misdirected; /* an axis along which it is a share of a sum, too, leaves a sum undone */
} rows[] = {
    {&gpt2, AXIS_GRADIENT, AXIS_PIPELINE, WRONG},
    {&gpt2, AXIS_TENSOR, AXIS_PIPELINE, WRONG},
    {&gpt2, AXIS_TENSOR, AXIS_GRADIENT, MISSING},
    {&gpt2, AXIS_TIE, AXIS_TENSOR, WRONG},
    {&gpt2, AXIS_GRID, AXIS_TENSOR, MISSING},
    {&scattered, AXIS_GRADIENT, AXIS_PIPELINE, WRONG},
    {&each, AXIS_GRADIENT, AXIS_PIPELINE, WRONG},
    {&each, AXIS_TENSOR, AXIS_PIPELINE, WRONG},
    {&copies, AXIS_KV, AXIS_TENSOR, WRONG},
    {&divided_copies, AXIS_KV, AXIS_TENSOR, WRONG},
    {&divided_copies, AXIS_GRADIENT, AXIS_TIE, WRONG},
};

TEST(sound_programs_are_compiled)
{
    char message[8192];
    spoil = NONE;
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
        compile_apart(message, sizeof message, rows[i].of);
        if (message[0])
            fail_msg("%s: %s", rows[i].of->name, message);
    }
}

static void refused(const struct row *r, fault f, const char *why)
{
    char message[8192];
    spoil = f;
    along = r->along;
    instead = r->instead;
    compile_apart(message, sizeof message, r->of);
    if (!strstr(message, why))
        fail_msg("%s, along %s: expected \"%s\", got: %s", r->of->name, axis_name(r->along), why,
                 message[0] ? message : "nothing");
}

TEST(a_missing_reduction_is_refused_when_compiled)
{
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(&rows[i], DROP, MISSING);
}

TEST(a_double_reduction_is_refused_when_compiled)
{
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(&rows[i], DOUBLE, TWICE);
}

TEST(a_reduction_along_the_wrong_axis_is_refused_when_compiled)
{
    for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
        refused(&rows[i], MISDIRECT, rows[i].misdirected);
}

TEST_MAIN(NULL, NULL)
