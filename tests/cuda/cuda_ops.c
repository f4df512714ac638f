/* Every CUDA kernel, through its binding to the op table, against the float64 reference on the same cases as the host's
 * kernels (tests/test_ops.c); the kernels execute on the shim. An op that is neither here nor among those made elsewhere
 * fails, so that the table and this backend cannot drift apart.
 */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "kernels/cuda/cuda.h"
#include "tests/op_cases.h"

static const dtype TYPES[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

static const op_kernel KERNELS[OP_COUNT] = {
#define BOUND(name) [OP_##name] = cuda_##name
    BOUND(bias_grad),
    BOUND(embed),
    BOUND(embed_grad),
    BOUND(add_positions),
    BOUND(add_positions_grad),
    BOUND(rmsnorm),
    BOUND(rmsnorm_grad),
    BOUND(layernorm),
    BOUND(layernorm_grad),
    BOUND(head_norm),
    BOUND(head_norm_grad),
    BOUND(rope),
    BOUND(attention),
    BOUND(attention_grad),
    BOUND(attention_decode),
    BOUND(gelu),
    BOUND(gelu_grad),
    BOUND(swiglu),
    BOUND(swiglu_grad),
    BOUND(add),
    BOUND(accumulate),
    BOUND(dropout),
    BOUND(cast),
    BOUND(copy),
    BOUND(zero),
    BOUND(cross_entropy_stats),
    BOUND(cross_entropy),
    BOUND(sum_squares),
    BOUND(clip),
    BOUND(adamw),
#undef BOUND
};

/* cuBLASLt's, and communication's */
static const op_kind ELSEWHERE[] = {OP_linear,         OP_linear_grad_input, OP_linear_grad_weight,
                                    OP_linear_gelu,    OP_linear_grad_gelu,  OP_all_gather,
                                    OP_reduce_scatter, OP_all_reduce,        OP_share,
                                    OP_send,           OP_receive,           OP_wait};

/* Kernels that take matrices without gaps only; the binding refuses others. */
static const op_kind WHOLE[] = {
    OP_embed,        OP_embed_grad,       OP_add_positions,       OP_add_positions_grad, OP_rmsnorm,
    OP_rmsnorm_grad, OP_layernorm,        OP_layernorm_grad,      OP_head_norm,          OP_head_norm_grad,
    OP_zero,         OP_attention_decode, OP_cross_entropy_stats, OP_cross_entropy};

static bool among(const op_kind *list, size_t count, op_kind kind)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == kind)
            return true;
    return false;
}

static status prepare_nothing(op *o, int threads)
{
    (void)o;
    (void)threads;
    return STATUS_OK;
}

static const op_backend shim_backend = {"shim", KERNELS, bind_scratch_bytes, prepare_nothing, false};

static bool build(op_case *c, op_kind kind, dtype type, int variant)
{
    *c = (op_case){.type = type};
    c->o.kind = (uint8_t)kind;
    snprintf(c->what, sizeof c->what, "%s %s, variant %d", dtype_name(type), op_rows[kind].name, variant);
    if (!op_cases_table[kind](c, variant))
        return false;
    c->o.label = c->what;
    return true;
}

static void try_mode(int *cases, double *worst, op_kind kind, dtype type, int variant, const op_case_mode *m)
{
    op_case c;
    char why[256] = "";
    if (!build(&c, kind, type, variant) || !op_case_allows(&c, m))
        return;
    double error = op_case_run(why, &c, &shim_backend, m, (uint64_t)kind * 1000 + (uint64_t)variant);
    ++*cases;
    *worst = error > *worst ? error : *worst;
    if (!(error <= 1))
        fail_msg("%s%s%s: %.3g times the tolerance; %s", c.what, m->strided ? ", strided" : "",
                 m->in_place_out >= 0 ? ", in place" : "", error, why);
}

static int try_op(double *worst, op_kind kind, dtype type)
{
    int cases = 0;
    op_case c;
    for (int variant = 0; build(&c, kind, type, variant); variant++) {
        try_mode(&cases, worst, kind, type, variant, &(op_case_mode){.in_place_out = -1, .threads = 1});
        if (!among(WHOLE, sizeof WHOLE / sizeof *WHOLE, kind))
            try_mode(&cases, worst, kind, type, variant,
                     &(op_case_mode){.in_place_out = -1, .threads = 1, .strided = true});
        for (int pair = 0; pair < 2; pair++)
            for (int i = 0; i < OP_MAX_IN; i++)
                if (op_rows[kind].inplace_in[pair] >> i & 1 && !c.alias)
                    try_mode(&cases, worst, kind, type, variant,
                             &(op_case_mode){
                                 .in_place_out = op_rows[kind].inplace_out[pair], .in_place_in = i, .threads = 1});
    }
    return cases;
}

static void every_cuda_kernel_agrees_with_the_reference(void **state)
{
    (void)state;
    int total = 0, elsewhere = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (among(ELSEWHERE, sizeof ELSEWHERE / sizeof *ELSEWHERE, (op_kind)kind)) {
            elsewhere++;
            continue;
        }
        assert_non_null((const void *)(uintptr_t)KERNELS[kind]);
        int cases = 0;
        double worst = 0;
        op_case c;
        for (unsigned i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
            if (i == 0 || (build(&c, (op_kind)kind, TYPES[i], 0) && !c.one_type))
                cases += try_op(&worst, (op_kind)kind, TYPES[i]);
        print_message("%-20s %4d cases, worst %.2f of the tolerance\n", op_rows[kind].name, cases, worst);
        assert_true(cases >= 7);
        total += cases;
    }
    print_message("%d cases; %d ops are made elsewhere\n", total, elsewhere);
    assert_int_equal(elsewhere, sizeof ELSEWHERE / sizeof *ELSEWHERE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(every_cuda_kernel_agrees_with_the_reference)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
