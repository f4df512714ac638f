/* How fast the host's heavy kernels are at GPT-2's shapes, beside the best product that oneDNN does here: GFLOP/s of
 * the products and of attention, GB/s of what memory bounds. Best of a few runs on random data.
 *
 *   rank_bench_kernels [threads] [tokens]        (default 2 and 4096; --quick: one small round, to see that all run)
 *
 * With one thread the time is processor time, which a busy machine disturbs less than the clock on the wall. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/table/op.h"
#include "memory/log.h"

static char *arena;
static int64_t used, limit;
static int threads = 2, repeats = 5;

static double seconds(void)
{
    struct timespec t;
    clock_gettime(threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Random values in (-1, 1), from a small generator; zeros would run faster than what training sees. */
static tensor make(dtype type, int64_t rows, int64_t columns)
{
    tensor t;
    int64_t shape[2] = {rows, columns};
    tensor_describe(&t, "t", CLASS_TEMPORARY, type, columns ? 2 : 1, shape);
    t.address = used;
    used += (tensor_bytes(&t) + 127) / 64 * 64;
    MUST(used <= limit, "the arena of the benchmark is too small");
    char *at = arena + t.address;
    uint32_t state = 12345;
    for (int64_t i = 0; i < tensor_elements(&t); i++) {
        state = state * 1664525 + 1013904223;
        float value = (float)(int32_t)state * 0x1p-31f;
        if (type == DTYPE_FP32)
            memcpy(at + 4 * i, &value, 4);
        else if (type == DTYPE_BF16) {
            uint16_t bits = float_to_bf16(value);
            memcpy(at + 2 * i, &bits, 2);
        } else
            memset(at + i * dtype_bytes(type), 0, (size_t)dtype_bytes(type));
    }
    return t;
}

static double time_op(op *o)
{
    run_context r = {.arena = arena, .threads = threads};
    int64_t before = used, size = cpu_backend.scratch_bytes(o, threads);
    tensor scratch;
    tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &size);
    scratch.address = used;
    used += (size + 127) / 64 * 64;
    MUST(used <= limit, "the arena of the benchmark is too small");
    o->scratch = &scratch;
    MUST(cpu_backend.prepare(o, threads) == STATUS_OK, "%s", status_message());
    double best = 1e9;
    for (int i = 0; i < repeats; i++) {
        double start = seconds();
        cpu_backend.kernels[o->kind](o, &r);
        double took = seconds() - start;
        best = took < best ? took : best;
    }
    used = before;
    return best;
}

static double ceiling; /* GFLOP/s */

static void print_flops(op *o, const char *what)
{
    double took = time_op(o), rate = op_row_of(o)->cost(o).flops / took / 1e9;
    if (rate > ceiling && o->kind == OP_linear)
        ceiling = rate;
    printf("%-20s %-24s %9.3f ms %8.1f GFLOP/s %5.0f%%\n", op_row_of(o)->name, what, took * 1e3, rate,
           100 * rate / ceiling);
    fflush(stdout);
}

static void print_bytes(op *o, const char *what)
{
    double took = time_op(o);
    printf("%-20s %-24s %9.3f ms %8.1f GB/s\n", op_row_of(o)->name, what, took * 1e3,
           op_row_of(o)->cost(o).bytes / took / 1e9);
    fflush(stdout);
}

static void bench_products(int64_t t)
{
    static const int64_t shapes[][2] = {{1024, 1024}, {2304, 768}, {768, 768}, {3072, 768}, {768, 3072}, {50304, 768}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        int64_t before = used, n = shapes[i][0], k = shapes[i][1], tokens = n > 10000 && t > 1024 ? 1024 : t;
        char what[64];
        snprintf(what, sizeof what, "t %lld n %lld k %lld", (long long)tokens, (long long)n, (long long)k);
        tensor x = make(DTYPE_BF16, tokens, k), w = make(DTYPE_BF16, n, k), y = make(DTYPE_BF16, tokens, n);
        tensor dx = make(DTYPE_BF16, tokens, k), dw = make(DTYPE_FP32, n, k);
        print_flops(&(op){.kind = OP_linear, .in = {&x, &w}, .out = {&y}}, what);
        print_flops(&(op){.kind = OP_linear_grad_input, .in = {&y, &w}, .out = {&dx}}, what);
        print_flops(&(op){.kind = OP_linear_grad_weight, .in = {&y, &x}, .out = {&dw}, .at = {.accumulate = 1}}, what);
        used = before;
    }
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Medians of an op and of the one it is compared with, in turn. */
static void print_beside(op *o, op *other, const char *what)
{
    enum { TURNS = 15 };
    double own[TURNS], others[TURNS];
    int turns = repeats > 1 ? TURNS : 1;
    for (int i = 0; i < turns; i++) {
        own[i] = time_op(o);
        others[i] = time_op(other);
    }
    qsort(own, (size_t)turns, sizeof *own, by_size);
    qsort(others, (size_t)turns, sizeof *others, by_size);
    double rate = op_row_of(o)->cost(o).flops / own[turns / 2],
           beside = op_row_of(other)->cost(other).flops / others[turns / 2];
    printf("%-20s %-24s %9.3f ms %8.1f GFLOP/s, %.2f of %s's %.1f\n", op_row_of(o)->name, what, own[turns / 2] * 1e3,
           rate / 1e9, rate / beside, op_row_of(other)->name, beside / 1e9);
    fflush(stdout);
}

/* As many rows as t by the weights of 8 experts, unevenly, beside as many by one weight. */
static void bench_experts(int64_t t, dtype type, int64_t n, int64_t k)
{
    enum { EXPERTS = 8 };
    int64_t before = used;
    char what[64];
    snprintf(what, sizeof what, "%s R %lld n %lld k %lld", dtype_name(type), (long long)t, (long long)n, (long long)k);
    tensor x = make(type, t, k), w = make(type, EXPERTS * n, k), y = make(type, t, n), one = make(type, n, k);
    tensor dw = make(DTYPE_FP32, EXPERTS * n, k), dx = make(type, t, k), offsets = make(DTYPE_INT32, EXPERTS + 1, 0);
    tensor one_dw = make(DTYPE_FP32, n, k);
    static const double shares[EXPERTS + 1] = {0, 0.1, 0.26, 0.35, 0.5, 0.61, 0.78, 0.87, 1};
    for (int e = 0; e <= EXPERTS; e++)
        ((int32_t *)tensor_at(&offsets, arena))[e] = (int32_t)(shares[e] * (double)t);
    print_beside(&(op){.kind = OP_grouped_linear, .in = {&x, &w, &offsets}, .out = {&y}},
                 &(op){.kind = OP_linear, .in = {&x, &one}, .out = {&y}}, what);
    print_beside(&(op){.kind = OP_grouped_linear_grad_input, .in = {&y, &w, &offsets}, .out = {&dx}},
                 &(op){.kind = OP_linear_grad_input, .in = {&y, &one}, .out = {&dx}}, what);
    print_beside(
        &(op){.kind = OP_grouped_linear_grad_weight, .in = {&y, &x, &offsets}, .out = {&dw}, .at = {.accumulate = 1}},
        &(op){.kind = OP_linear_grad_weight, .in = {&y, &x}, .out = {&one_dw}, .at = {.accumulate = 1}}, what);
    used = before;
}

static tensor columns_of(const tensor *of, int64_t first, int64_t count)
{
    tensor t = *of;
    t.address += first * dtype_bytes((dtype)t.type);
    t.shape[1] = count;
    return t;
}

static void bench_attention(int64_t t, int heads, int kv_heads, int d, dtype type)
{
    int64_t before = used, sequence = t < 1024 ? t / 4 : 1024;
    char what[64];
    snprintf(what, sizeof what, "%s s %lld h %d/%d d %d", dtype_name(type), (long long)sequence, heads, kv_heads, d);
    tensor qkv = make(type, t, (int64_t)(heads + 2 * kv_heads) * d), y = make(type, t, (int64_t)heads * d);
    tensor dy = make(type, t, (int64_t)heads * d), lse = make(DTYPE_FP32, t / sequence * heads, sequence),
           dqkv = make(type, t, qkv.shape[1]);
    op_attributes at = {.heads = {heads, kv_heads, d}, .attention.sequence = (int32_t)sequence};
    at.attention.scale = 1 / sqrtf((float)d);
    tensor in[3], grad[3];
    for (int i = 0; i < 3; i++) {
        int64_t first = i ? heads + (int64_t)(i - 1) * kv_heads : 0, count = i ? kv_heads : heads;
        in[i] = columns_of(&qkv, first * d, count * d);
        grad[i] = columns_of(&dqkv, first * d, count * d);
    }
    print_flops(&(op){.kind = OP_attention, .in = {&in[0], &in[1], &in[2]}, .out = {&y, &lse}, .at = at}, what);
    print_flops(&(op){.kind = OP_attention_grad,
                      .in = {&dy, &in[0], &in[1], &in[2], &y, &lse},
                      .out = {&grad[0], &grad[1], &grad[2]},
                      .at = at},
                what);
    used = before;
}

static void bench_rows(int64_t t)
{
    int64_t before = used;
    tensor x = make(DTYPE_BF16, t, 768), s = make(DTYPE_BF16, t, 768), y = make(DTYPE_BF16, t, 768),
           w = make(DTYPE_BF16, 768, 0);
    tensor rstd = make(DTYPE_FP32, t, 0), mean = make(DTYPE_FP32, t, 0), dw = make(DTYPE_FP32, 768, 0),
           db = make(DTYPE_FP32, 768, 0);
    tensor wide = make(DTYPE_BF16, t, 3072), dwide = make(DTYPE_BF16, t, 3072), out = make(DTYPE_BF16, t, 3072);
    tensor bias = make(DTYPE_FP32, 3072, 0);
    print_bytes(&(op){.kind = OP_layernorm, .in = {&x, &w, &w, &s}, .out = {&y, &rstd, &mean, &s}}, "768");
    print_bytes(&(op){.kind = OP_layernorm_grad, .in = {&x, &s, &w, &rstd, &mean, &y}, .out = {&y, &dw, &db}}, "768");
    print_bytes(&(op){.kind = OP_rmsnorm, .in = {&x, &w, &s}, .out = {&y, &rstd, &s}}, "768");
    print_bytes(&(op){.kind = OP_gelu, .in = {&wide}, .out = {&out}}, "3072");
    print_bytes(&(op){.kind = OP_gelu_grad, .in = {&dwide, &wide}, .out = {&out}}, "3072");
    print_bytes(&(op){.kind = OP_bias_grad, .in = {&wide}, .out = {&bias}, .at = {.accumulate = 1}}, "3072");
    print_bytes(&(op){.kind = OP_add, .in = {&wide, &dwide}, .out = {&out}}, "3072");
    used = before;
}

/* 128 experts, 8 a token, of 2048 columns. */
static void bench_routing(int64_t t)
{
    int64_t before = used, h = 2048, rows = 8 * t;
    op_attributes at = {.routing = {.experts = 128, .active = 8, .local = 128, .rows = rows, .scale = 1}};
    tensor logits = make(DTYPE_BF16, t, 128), dlogits = make(DTYPE_BF16, t, 128), weights = make(DTYPE_FP32, t, 8);
    tensor experts = make(DTYPE_INT32, t, 8), token_positions = make(DTYPE_INT32, t, 8),
           offsets = make(DTYPE_INT32, 129, 0);
    tensor x = make(DTYPE_BF16, t, h), y = make(DTYPE_BF16, t, h), sent = make(DTYPE_BF16, rows, h);
    print_bytes(&(op){.kind = OP_route, .in = {&logits}, .out = {&weights, &experts}, .at = at}, "8 of 128");
    print_bytes(&(op){.kind = OP_assign, .in = {&experts}, .out = {&token_positions, &offsets}, .at = at}, "8 of 128");
    print_bytes(&(op){.kind = OP_dispatch, .in = {&x, &token_positions, &offsets}, .out = {&sent}, .at = at}, "2048");
    print_bytes(&(op){.kind = OP_dispatch, .in = {&x, &token_positions, &offsets, &weights}, .out = {&sent}, .at = at},
                "2048, weighted");
    print_bytes(
        &(op){.kind = OP_combine, .in = {&sent, &token_positions, &offsets, &weights, &x}, .out = {&y}, .at = at},
        "2048");
    print_bytes(&(op){.kind = OP_combine_dots, .in = {&x, &sent, &token_positions}, .out = {&weights}}, "2048");
    print_bytes(
        &(op){.kind = OP_route_grad, .in = {&weights, &logits, &experts, &weights}, .out = {&dlogits}, .at = at},
        "8 of 128");
    used = before;
}

static void bench_loss(int64_t t)
{
    int64_t before = used, v = 50304, rows = t < 1024 ? t : 1024;
    tensor logits = make(DTYPE_BF16, rows, v), targets = make(DTYPE_INT32, rows, 0), stats = make(DTYPE_FP32, rows, 3);
    tensor scalars = make(DTYPE_UINT8, sizeof(step_scalars), 0), loss = make(DTYPE_FP32, 1, 0);
    *(step_scalars *)tensor_at(&scalars, arena) = (step_scalars){.loss_scale = 1, .loss_tokens = 1};
    op_attributes at = {.vocabulary.ids = 50257};
    print_bytes(&(op){.kind = OP_cross_entropy_stats, .in = {&logits, &targets}, .out = {&stats}, .at = at}, "50304");
    print_bytes(
        &(op){.kind = OP_cross_entropy, .in = {&logits, &targets, &stats, &scalars}, .out = {&loss, &logits}, .at = at},
        "50304");
    used = before;
}

static void bench_optimizer(void)
{
    int64_t before = used, n = 12000;
    tensor g = make(DTYPE_FP32, n, 768), m = make(DTYPE_FP32, n, 768), v = make(DTYPE_FP32, n, 768),
           master = make(DTYPE_FP32, n, 768);
    tensor weight = make(DTYPE_BF16, n, 768), bins = make(DTYPE_INT64, 64, 0),
           control = make(DTYPE_FP32, CONTROL_COUNT, 0);
    tensor scalars = make(DTYPE_UINT8, sizeof(step_scalars), 0);
    memset(tensor_at(&v, arena), 0, (size_t)tensor_bytes(&v));
    memset(tensor_at(&control, arena), 0, sizeof(float) * CONTROL_COUNT);
    *(step_scalars *)tensor_at(&scalars, arena) = (step_scalars){.lr = 1e-4f,
                                                                 .beta1 = 0.9f,
                                                                 .beta2 = 0.95f,
                                                                 .epsilon = 1e-8f,
                                                                 .momentum_correction = 0.1f,
                                                                 .variance_correction = 0.05f};
    print_bytes(&(op){.kind = OP_adamw, .in = {&g, &scalars, &control}, .out = {&weight, &master, &m, &v}},
                "9.2M parameters");
    print_bytes(&(op){.kind = OP_sum_squares, .in = {&g}, .out = {&bins}}, "9.2M parameters");
    used = before;
}

int main(int argc, char **argv)
{
    bool quick = argc > 1 && !strcmp(argv[1], "--quick");
    int64_t t = quick ? 64 : argc > 2 ? atoll(argv[2]) : 4096;
    threads = quick ? 1 : argc > 1 ? atoi(argv[1]) : 2;
    repeats = quick ? 1 : t > 1000 ? 5 : 20;
    limit = 1ll << 30;
    arena = must_calloc(1, (unsigned long)limit);
    if (threads < 1 || t < 4) {
        fprintf(stderr, "usage: rank_bench_kernels [threads] [tokens]\n");
        return 2;
    }
    bench_experts(t, DTYPE_BF16, 1024, 512);
    bench_experts(t, DTYPE_BF16, 512, 1024);
    bench_experts(t, DTYPE_FP32, 1024, 512);
    bench_products(t);
    bench_attention(t, 12, 12, 64, DTYPE_BF16);
    bench_attention(t, 16, 4, 128, DTYPE_BF16);
    bench_attention(t, 12, 12, 64, DTYPE_FP32);
    bench_rows(t);
    bench_routing(t);
    bench_loss(t);
    bench_optimizer();
    free(arena);
    return 0;
}
