/* The tables of precisions and of devices: which types are decided, and what a device is said to do. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/compile/compile.h"
#include "kernels/table/devices.h"
#include "kernels/record/product.h"
#include "tests/test.h"

TEST(every_word_has_a_row_of_its_own)
{
    assert_string_equal(precision_words[PRECISION_FP32], "fp32");
    assert_string_equal(precision_words[PRECISION_BF16], "bf16");
    assert_string_equal(precision_words[PRECISION_FP16], "fp16");
    assert_null(precision_words[PRECISION_COUNT]);
    for (int i = 0; i < PRECISION_COUNT; i++) {
        const precision_row *row = precision_row_of((precision_kind)i);
        assert_true(precision_computes_in(row->compute));
        assert_string_equal(dtype_name(row->compute), precision_words[i]);
        assert_true(precision_keeps((precision_kind)i, row->compute) &&
                    precision_keeps((precision_kind)i, row->master));
        assert_int_equal(row->scales_loss, i == PRECISION_FP16);
        assert_int_equal(row->kept, i != PRECISION_FP16);
        assert_int_equal(precision_is_narrow(row->compute), i == PRECISION_BF16);
    }
    assert_false(precision_keeps(PRECISION_FP16, DTYPE_BF16) || precision_keeps(PRECISION_FP32, DTYPE_BF16));
    assert_false(precision_computes_in(DTYPE_INT32) || precision_is_narrow(DTYPE_INT32));
    assert_int_equal(precision_default(true), PRECISION_BF16);
    assert_int_equal(precision_default(false), PRECISION_FP32);
}

/* train.tf32 is said of fp32's products and of no others. */
TEST(products_reach_the_peak_of_their_type)
{
    assert_int_equal(precision_peak(DTYPE_FP32, false), PEAK_FP32);
    assert_int_equal(precision_peak(DTYPE_FP32, true), PEAK_TF32);
    for (int rounds = 0; rounds < 2; rounds++) {
        assert_int_equal(precision_peak(DTYPE_BF16, rounds), PEAK_HALF);
        assert_int_equal(precision_peak(DTYPE_FP16, rounds), PEAK_HALF);
        assert_false(precision_rounds(DTYPE_BF16, rounds));
        assert_int_equal(precision_rounds(DTYPE_FP32, rounds), rounds);
    }
}

/* Does a body whose product of this kind has operands of these types pass? */
static bool settles(op_kind kind, dtype first, dtype second, precision_kind precision)
{
    tensor a = {.type = (uint8_t)first}, b = {.type = (uint8_t)second};
    op o = {.kind = (uint8_t)kind, .label = "layer 0/mlp/down", .in = {&a, &b}};
    program body = {.ops = (op *[]){&o}, .count = 1};
    pid_t child = fork();
    if (child == 0) {
        product_check_types(&body, precision);
        _exit(0);
    }
    int end;
    assert_int_equal(waitpid(child, &end, 0), child);
    return WIFEXITED(end) && WEXITSTATUS(end) == 0;
}

TEST(a_product_of_other_types_than_decided_is_refused)
{
    const op_kind products[] = {OP_linear, OP_linear_wide, OP_linear_grad_input, OP_linear_grad_weight};
    for (int i = 0; i < 4; i++) {
        assert_true(settles(products[i], DTYPE_BF16, DTYPE_BF16, PRECISION_BF16));
        assert_false(settles(products[i], DTYPE_BF16, DTYPE_BF16, PRECISION_FP16));
        assert_false(settles(products[i], DTYPE_BF16, DTYPE_FP32, PRECISION_BF16));
        assert_false(settles(products[i], DTYPE_FP32, DTYPE_BF16, PRECISION_BF16));
    }
    assert_true(settles(OP_add, DTYPE_FP32, DTYPE_FP32, PRECISION_BF16)); /* no product */
}

static void compile_experts(compiled *out, shape_architecture architecture, precision_kind precision)
{
    model_shape s = {.architecture = architecture,
                     .layers = 2,
                     .hidden_size = 32,
                     .heads = 4,
                     .experts = 4,
                     .expert_ffn_size = 24,
                     .ffn_size = 48,
                     .router_loss = 0.1,
                     .vocab_size = 64,
                     .max_sequence = 16};
    if (shape_has_key(architecture, KEY_LATENT)) {
        s.head_size = 12;
        s.kv_lora_rank = 10;
        s.rope_head_size = 4;
    }
    shape_fill(&s);
    compile_options o = {.shape = s,
                         .precision = precision,
                         .sequence = 16,
                         .micro_batch = 1,
                         .microbatches = 2,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, 1, 0, GRID_SIZES(1, 1, 1, 1)), STATUS_OK);
    if (compile(out, &o) != STATUS_OK)
        fail_msg("%s", status_message());
}

/* As transformers has them: gradients of logits are fp32 where logits are, and products multiply 16 bits all the
 * same. */
TEST(the_family_says_of_which_type_logits_of_routers_are)
{
    static const struct {
        shape_architecture architecture;
        bool wide;
    } families[] = {{SHAPE_MIXTRAL, false},    {SHAPE_QWEN3_MOE, false},   {SHAPE_OLMOE, false},
                    {SHAPE_GPT_OSS, false},    {SHAPE_GRANITE_MOE, false}, {SHAPE_GLM4_MOE, true},
                    {SHAPE_DEEPSEEK_V2, true}, {SHAPE_DEEPSEEK_V3, true}};
    for (int i = 0; i < 8 * PRECISION_COUNT; i++) {
        const precision_kind precision = (precision_kind)(i / 8);
        const dtype narrow = precision_compute(precision), type = families[i % 8].wide ? DTYPE_FP32 : narrow;
        compiled c;
        compile_experts(&c, families[i % 8].architecture, precision);
        int routed = 0, gradients = 0, products = 0, casts = 0;
        for (int k = 0; k < c.training.list.count; k++) {
            const op *o = c.training.list.ops[k];
            if (o->kind == OP_route)
                routed += o->in[0]->type == type;
            if (o->kind == OP_route_grad || o->kind == OP_balance_grad)
                gradients += o->out[0]->type == type;
            if (op_is(o, OP_CLASS_PRODUCT) && !strncmp(o->site, "experts/router", 14))
                products += o->in[0]->type == narrow && o->in[1]->type == narrow;
            casts += o->kind == OP_cast;
        }
        assert_int_equal(routed, 4);
        assert_int_equal(gradients, 8);
        assert_int_equal(products, 12);
        assert_int_equal(casts, type != narrow ? 4 : 0);
        compile_free(&c);
    }
}

TEST(help_lists_each_word_of_the_device_table)
{
    int words = 0;
    for (const char *at = DEVICES_WORDS; *at; at += strcspn(at, ", "), at += strspn(at, ", "), words++)
        assert_non_null(devices_named(strndupa(at, strcspn(at, ", "))));
    for (int i = 0; devices_numbered(i); i++)
        words -= devices_numbered(i)->word != NULL;
    assert_int_equal(words, 0);
}

TEST(a_gpu_is_found_by_the_name_that_it_gives)
{
    const devices_row *h100 = devices_named("h100");
    assert_non_null(h100);
    assert_ptr_equal(devices_of_gpu("NVIDIA H100 80GB HBM3"), h100);
    assert_ptr_not_equal(devices_of_gpu("NVIDIA H100 PCIe"), h100);
    assert_ptr_equal(devices_of_gpu("NVIDIA A100-SXM4-80GB"), devices_named("a100"));
    assert_null(devices_of_gpu("NVIDIA GeForce RTX 9090"));
    assert_null(devices_named("abacus"));
    assert_ptr_equal(devices_numbered(devices_number(h100)), h100);
    assert_null(devices_numbered(devices_number(NULL)));
    double whole[PEAK_COUNT], half[PEAK_COUNT];
    devices_peaks(whole, h100, 132);
    devices_peaks(half, h100, 66);
    for (int i = 0; i < PEAK_COUNT; i++)
        assert_true(whole[i] == h100->peak[i] && half[i] == h100->peak[i] / 2);
    devices_peaks(whole, NULL, 132);
    assert_true(whole[PEAK_HALF] == 0);
}

/* 70% of 989 TFLOP/s against 3.35 TB/s, and against 370 GB/s. The CPU's is stated. */
TEST(balances_follow_from_the_sheet)
{
    const devices_row *h100 = devices_named("h100"), *cpu = devices_named("cpu");
    assert_true(devices_balance(h100, PEAK_HALF) > 206 && devices_balance(h100, PEAK_HALF) < 207);
    assert_true(devices_balance_sent(h100, PEAK_HALF) > 1870 && devices_balance_sent(h100, PEAK_HALF) < 1872);
    assert_true(devices_balance(h100, PEAK_FP32) < devices_balance(h100, PEAK_TF32));
    assert_true(devices_balance(cpu, PEAK_HALF) == 25 && devices_balance(cpu, PEAK_FP32) == 25);
    assert_true(devices_balance(devices_named("a100"), PEAK_HALF) < devices_balance(h100, PEAK_HALF));
}

TEST_MAIN(NULL, NULL)
