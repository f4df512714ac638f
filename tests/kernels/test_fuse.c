/* Fusion: what becomes one op, what may not, and that on the host one op is the two to the last bit. */
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "kernels/record/fuse.h"
#include "kernels/record/record.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/op_case.h"
#include "tests/test.h"

enum { LAYERS = 3, MICROBATCHES = 2, ROWS = 37, WIDE = 40, NARROW = 24 };

/* ---- whole programs --------------------------------------------------------------------------------------------- */

static void compile_gpt2(compiled *out, recompute how)
{
    model_shape s = {.architecture = SHAPE_GPT2,
                     .layers = LAYERS,
                     .hidden_size = 64,
                     .heads = 4,
                     .kv_heads = 4,
                     .ffn_size = 256,
                     .vocab_size = 131,
                     .max_sequence = 32};
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = PRECISION_FP32,
                         .sequence = 32,
                         .micro_batch = 1,
                         .microbatches = MICROBATCHES,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .recompute = how,
                         .threads = 1,
                         .train = true,
                         .evaluate = true};
    assert_int_equal(grid_make(&o.grid, 1, 0, GRID_SIZES(1, 1, 1, 1)), STATUS_OK);
    if (compile(out, &o) != STATUS_OK)
        fail_msg("%s", status_message());
}

typedef struct tally {
    int of[OP_COUNT], with_z;
} tally;

static tally count_ops(const compiled_program *p)
{
    tally t = {0};
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        t.of[o->kind]++;
        t.with_z += o->kind == OP_linear_gelu && o->out[1];
    }
    return t;
}

TEST(every_gelu_of_gpt2_is_fused)
{
    enum { ALL = LAYERS * MICROBATCHES };
    static const struct {
        recompute how;
        int fused, with_z, gelu;
    } cases[] = {
        {RECOMPUTE_NONE, ALL, ALL, 0},
        {RECOMPUTE_SELECTIVE, ALL, ALL, ALL}, /* y again from z, without the product */
        {RECOMPUTE_FULL, 2 * ALL, ALL, 0},    /* z only where gelu_grad reads it: of what is made again */
    };
    for (int i = 0; i < 3; i++) {
        compiled c;
        compile_gpt2(&c, cases[i].how);
        tally training = count_ops(&c.training), evaluation = count_ops(&c.evaluation);
        assert_int_equal(training.of[OP_linear_gelu], cases[i].fused);
        assert_int_equal(training.with_z, cases[i].with_z);
        assert_int_equal(training.of[OP_gelu], cases[i].gelu);
        assert_int_equal(training.of[OP_linear_grad_gelu], ALL);
        assert_int_equal(training.of[OP_gelu_grad], 0);
        assert_int_equal(evaluation.of[OP_linear_gelu], LAYERS);
        assert_int_equal(evaluation.with_z + evaluation.of[OP_gelu], 0);
        compile_free(&c);
    }
}

/* ---- bodies by hand ---------------------------------------------------------------------------------------------- */

typedef struct body {
    pool pool;
    recorder r;
} body;

static void begin(body *b)
{
    *b = (body){0};
    const recorder_grid alone = recorder_alone();
    recorder_open(&b->r, &b->pool, &alone, DTYPE_FP32, NULL, 0);
    b->r.tokens = ROWS;
}

static void end(body *b)
{
    recorder_close(&b->r);
    pool_free(&b->pool);
}

static tensor *input(body *b, const char *name, int64_t rows, int64_t columns)
{
    return recorder_input(&b->r, name, DTYPE_FP32, 2, (int64_t[]){rows, columns}, (placements){0});
}

/* The kinds of the body's ops, "linear gelu", after fusing; `kept` is read by somebody else. */
static void expect(body *b, tensor *kept, const char *kinds)
{
    char got[256] = "";
    fuse_recorded(&b->r, &kept, 1);
    const program *p = &b->r.body[PHASE_FORWARD];
    for (int i = 0; i < p->count; i++) {
        if (i)
            strcat(got, " ");
        strcat(got, op_row_of(p->ops[i])->name);
    }
    assert_string_equal(got, kinds);
}

static tensor *product_and_gelu(body *b, tensor **z)
{
    *z = record_linear(&b->r, "up", input(b, "x", ROWS, NARROW), input(b, "w", WIDE, NARROW), NULL);
    return record_gelu(&b->r, "gelu", *z);
}

TEST(a_sum_that_others_read_is_stored)
{
    for (int kept = 0; kept < 2; kept++) {
        body b;
        tensor *z;
        begin(&b);
        tensor *y = product_and_gelu(&b, &z);
        expect(&b, kept ? z : NULL, "linear_gelu");
        const op *o = b.r.body[PHASE_FORWARD].ops[0];
        assert_ptr_equal(o->out[0], y);
        assert_ptr_equal(o->out[1], kept ? z : NULL);
        assert_string_equal(o->label, "up");
        end(&b);
    }
    body b;
    tensor *z;
    begin(&b);
    product_and_gelu(&b, &z);
    record_gelu(&b.r, "another", z);
    expect(&b, NULL, "linear_gelu gelu");
    assert_ptr_equal(b.r.body[PHASE_FORWARD].ops[0]->out[1], z);
    end(&b);
}

/* dx = dy w [+ addend], then dz = gelu'(z) dx. */
static tensor *backward(body *b, tensor *addend, bool z_between, tensor **dz)
{
    tensor *given = input(b, "z", ROWS, NARROW), *dy = input(b, "dy", ROWS, WIDE), *w = input(b, "w", WIDE, NARROW);
    op product = {.kind = OP_linear_grad_input, .in = {dy, w, addend}};
    tensor *dx = recorder_record(&b->r, "dx", &product, 1, NULL)->out[0];
    tensor *z = z_between ? record_add(&b->r, "made again", given, given) : given;
    *dz = recorder_record(&b->r, "dz", &(op){.kind = OP_gelu_grad, .in = {dx, z}}, 1, NULL)->out[0];
    return dx;
}

TEST(only_what_nobody_else_reads_goes_through_gelu_grad)
{
    body b;
    tensor *dz;
    begin(&b);
    backward(&b, NULL, false, &dz);
    expect(&b, dz, "linear_grad_gelu");
    const op *o = b.r.body[PHASE_FORWARD].ops[0];
    assert_ptr_equal(o->out[0], dz);
    assert_true(o->in[2] && !strcmp(o->in[2]->name, "z"));
    end(&b);

    begin(&b);
    backward(&b, NULL, true, &dz);
    expect(&b, dz, "add linear_grad_gelu"); /* after what it reads */
    end(&b);

    begin(&b);
    backward(&b, input(&b, "addend", ROWS, NARROW), false, &dz);
    expect(&b, dz, "linear_grad_input gelu_grad");
    end(&b);

    begin(&b);
    tensor *dx = backward(&b, NULL, false, &dz);
    expect(&b, dx, "linear_grad_input gelu_grad");
    end(&b);

    begin(&b);
    dx = backward(&b, NULL, false, &dz);
    record_add(&b.r, "reader", dx, dz);
    expect(&b, NULL, "linear_grad_input gelu_grad add");
    end(&b);
}

/* ---- bits ------------------------------------------------------------------------------------------------------- */

enum { OPERANDS = 1 << 16, ARENA = 1 << 20 }; /* scratch after the operands */

static tensor *place(tensor *t, int64_t *at, dtype type, int64_t rows, int64_t columns)
{
    tensor_describe(t, "operand", CLASS_TEMPORARY, type, 2, (int64_t[]){rows, columns});
    t->address = *at;
    *at += (tensor_bytes(t) + 63) / 64 * 64;
    assert_true(*at <= OPERANDS);
    return t;
}

static void run(op *o, const run_context *r)
{
    int64_t bytes = cpu_backend.scratch_bytes(o, 1);
    tensor scratch;
    tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &bytes);
    scratch.address = OPERANDS;
    assert_true(OPERANDS + bytes <= ARENA);
    o->scratch = bytes ? &scratch : NULL;
    assert_int_equal(cpu_backend.prepare(o, 1), STATUS_OK);
    cpu_backend.kernels[o->kind](o, r);
}

/* `kind` on random operands gives what its parts give one after another. */
static void check_bits(op_kind kind, dtype type, bool stored)
{
    tensor t[8];
    int64_t at = 0;
    bool forward = kind == OP_linear_gelu;
    char *arena = aligned_alloc(64, ARENA);
    run_context r = {.arena = arena, .threads = 1};
    op o = {.kind = (uint8_t)kind, .label = "fused"};
    o.in[0] = place(&t[0], &at, type, ROWS, NARROW);
    o.in[1] = place(&t[1], &at, type, forward ? WIDE : NARROW, forward ? NARROW : WIDE);
    if (!forward)
        o.in[2] = place(&t[2], &at, type, ROWS, WIDE);
    int64_t filled = at;
    o.out[0] = place(&t[3], &at, type, ROWS, WIDE);
    tensor *z = place(&t[4], &at, type, ROWS, WIDE);
    if (forward && stored)
        o.out[1] = z;
    test_random random = {7};
    float value;
    for (int64_t i = 0; i < filled / dtype_bytes(type); i++) {
        value = (float)test_normal(&random);
        dtype_convert(arena + i * dtype_bytes(type), type, &value, DTYPE_FP32, 1);
    }
    run(&o, &r);
    int64_t bytes = tensor_bytes(o.out[0]);
    AUTO_FREE char *y = must_alloc((unsigned long)bytes);
    memcpy(y, tensor_at(o.out[0], arena), (size_t)bytes);
    memset(arena + filled, 0xFF, (size_t)(ARENA - filled));
    op first = o, second = {.label = "second", .in = {z, forward ? NULL : o.in[2]}, .out = {o.out[0]}};
    first.kind = forward ? OP_linear : OP_linear_grad_input;
    second.kind = forward ? OP_gelu : OP_gelu_grad;
    first.in[2] = NULL;
    first.out[0] = z;
    first.out[1] = NULL;
    run(&first, &r);
    run(&second, &r);
    assert_memory_equal(y, tensor_at(o.out[0], arena), (size_t)bytes);
    free(arena);
}

TEST(on_the_host_one_op_is_the_two_to_the_last_bit)
{
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    for (int i = 0; i < 3; i++) {
        check_bits(OP_linear_gelu, types[i], false);
        check_bits(OP_linear_gelu, types[i], true);
        check_bits(OP_linear_grad_gelu, types[i], false);
    }
}

TEST_MAIN(NULL, NULL)
