/* Every CUDA kernel, through its binding to the op table, against the float64 reference on the same cases as the host's
 * kernels (tests/oracle/test_ops.c); the kernels execute on the shim. An op that is neither here nor among those made
 * elsewhere fails, so that the table and this backend cannot drift apart.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "tests/oracle/op_sweep.h"
#include "tests/test.h"

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
    BOUND(width_squares),
    BOUND(width_norm),
    BOUND(width_dots),
    BOUND(width_norm_grad),
    BOUND(rope),
    BOUND(attention),
    BOUND(attention_grad),
    BOUND(attention_decode),
    BOUND(join_keys),
    BOUND(split_keys),
    BOUND(latent_decode),
    BOUND(attention_sinks_grad),
    BOUND(max_logit),
    BOUND(qk_factors),
    BOUND(scale),
    BOUND(soft_cap),
    BOUND(soft_cap_grad),
    BOUND(gelu),
    BOUND(gelu_grad),
    BOUND(gelu_exact),
    BOUND(gelu_exact_grad),
    BOUND(swiglu),
    BOUND(swiglu_grad),
    BOUND(geglu),
    BOUND(geglu_grad),
    BOUND(swiglu_clamped),
    BOUND(swiglu_clamped_grad),
    BOUND(add),
    BOUND(accumulate),
    BOUND(dropout),
    BOUND(cast),
    BOUND(arrange),
    BOUND(copy),
    BOUND(zero),
    BOUND(route),
    BOUND(route_grad),
    BOUND(assign),
    BOUND(dispatch),
    BOUND(combine),
    BOUND(combine_dots),
    BOUND(overflow),
    BOUND(slots),
    BOUND(grouped_linear),
    BOUND(grouped_linear_grad_input),
    BOUND(grouped_linear_grad_weight),
    BOUND(grouped_bias_grad),
    BOUND(cross_entropy_stats),
    BOUND(cross_entropy),
    BOUND(expert_load),
    BOUND(expert_count),
    BOUND(expert_share),
    BOUND(expert_bias),
    BOUND(balance),
    BOUND(balance_grad),
    BOUND(sum_squares),
    BOUND(clip),
    BOUND(adamw),
    BOUND(lion),
    BOUND(sgd),
    BOUND(muon_momentum),
    BOUND(muon_scale),
    BOUND(muon_polynomial),
    BOUND(muon),
    BOUND(compress),
    BOUND(decompress),
    BOUND(store_feedback),
#undef BOUND
};

/* cuBLASLt's, communication's and the device's own */
static const op_kind ELSEWHERE[] = {OP_linear,
                                    OP_linear_wide,
                                    OP_linear_grad_input,
                                    OP_linear_grad_weight,
                                    OP_linear_gelu,
                                    OP_linear_grad_gelu,
                                    OP_all_gather,
                                    OP_reduce_scatter,
                                    OP_all_to_all,
                                    OP_all_reduce,
                                    OP_copy_to_shards,
                                    OP_regroup,
                                    OP_balance_through,
                                    OP_send,
                                    OP_receive,
                                    OP_load_host,
                                    OP_store_host,
                                    OP_wait};

/* Kernels that take matrices without gaps only; the binding refuses others. */
static const op_kind WHOLE[] = {OP_embed,         OP_embed_grad,
                                OP_add_positions, OP_add_positions_grad,
                                OP_rmsnorm,       OP_rmsnorm_grad,
                                OP_layernorm,     OP_layernorm_grad,
                                OP_zero,          OP_cross_entropy_stats,
                                OP_cross_entropy, OP_compress,
                                OP_decompress,    OP_arrange,
                                OP_expert_load,   OP_balance,
                                OP_balance_grad,  OP_qk_factors};

static status prepare_nothing(op *o, int threads)
{
    (void)o;
    (void)threads;
    return STATUS_OK;
}

static const op_backend shim_backend = {
    .name = "shim", .kernels = KERNELS, .scratch_bytes = bind_scratch_bytes, .prepare = prepare_nothing};

static int wanted_count;
static char **wanted; /* names of ops; none: all */

static bool is_wanted(const char *name)
{
    for (int i = 0; i < wanted_count; i++)
        if (strcmp(wanted[i], name) == 0)
            return true;
    return wanted_count == 0;
}

TEST(every_cuda_kernel_agrees_with_the_reference)
{
    int total = 0, elsewhere = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (op_sweep_among(ELSEWHERE, sizeof ELSEWHERE / sizeof *ELSEWHERE, (op_kind)kind)) {
            elsewhere++;
            continue;
        }
        assert_non_null((const void *)(uintptr_t)KERNELS[kind]);
        if (!is_wanted(op_rows[kind].name))
            continue;
        op_sweep s = {.backend = &shim_backend,
                      .gaps = !op_sweep_among(WHOLE, sizeof WHOLE / sizeof *WHOLE, (op_kind)kind)};
        int cases = op_sweep_run(&s, (op_kind)kind);
        print_message("%-20s %4d cases, worst %.2f of the tolerance\n", op_rows[kind].name, cases, s.worst);
        assert_int_equal(s.failed, 0);
        assert_true(cases >= 7);
        total += cases;
    }
    print_message("%d cases; %d ops are made elsewhere\n", total, elsewhere);
    assert_int_equal(elsewhere, sizeof ELSEWHERE / sizeof *ELSEWHERE);
}

/* Arguments: the ops to try. */
int main(int argc, char **argv)
{
    wanted_count = argc - 1;
    wanted = argv + 1;
    return test_run(NULL, NULL);
}
