/* The host's kernels beyond what the comparison of every op with the float64 reference covers: every instruction set,
 * the path without oneDNN, determinism, operands in place and strided, and known answers. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/kernels/workbench.h"
#include "tests/test.h"

static const double allowed[] = {[DTYPE_FP32] = 2e-6, [DTYPE_BF16] = 1e-2, [DTYPE_FP16] = 2e-3};

/* ---- products -------------------------------------------------------------------------------------------------- */

typedef struct product_sizes {
    int64_t t, n, k;
} product_sizes;

/* kind of linear's family; returns the relative error */
static double product_error(product_sizes z, const isa *set, dtype type, op_kind kind, bool prepared, bool strided,
                            int threads)
{
    const int64_t T_ = z.t, N_ = z.n, K_ = z.k;
    const bool forward = kind == OP_linear || kind == OP_linear_wide, biased = kind == OP_linear;
    workbench b = workbench_open(threads, set);
    tensor x = workbench_random(&b, type, T_, K_ + 3, 1), w = workbench_random(&b, type, N_, K_ + 5, 1);
    tensor dy = workbench_random(&b, type, T_, N_ + 1, 1), bias = workbench_random(&b, type, N_, 0, 1), out = {0};
    tensor *all[] = {&x, &w, &dy};
    int64_t columns[] = {K_, K_, N_};
    for (int i = 0; i < 3; i++) {
        all[i]->shape[1] = columns[i];
        if (!strided)
            all[i]->pitch = columns[i];
    }
    int64_t rows = kind == OP_linear_grad_weight ? N_ : T_, width = forward ? N_ : K_;
    bool wide = kind == OP_linear_grad_weight || kind == OP_linear_wide;
    out = workbench_random(&b, wide ? DTYPE_FP32 : type, rows, width, 1);
    AUTO_FREE double *want = calloc((size_t)(rows * width), sizeof *want);
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < width; j++) {
            double sum = biased ? workbench_get(&b, &bias, j, 0) : forward ? 0 : workbench_get(&b, &out, i, j);
            int64_t depth = forward ? K_ : kind == OP_linear_grad_input ? N_ : T_;
            for (int64_t k = 0; k < depth; k++)
                sum += forward                        ? workbench_get(&b, &x, i, k) * workbench_get(&b, &w, j, k)
                       : kind == OP_linear_grad_input ? workbench_get(&b, &dy, i, k) * workbench_get(&b, &w, k, j)
                                                      : workbench_get(&b, &dy, k, i) * workbench_get(&b, &x, k, j);
            want[i * width + j] = sum;
        }
    op o = {.kind = (uint8_t)kind, .out = {&out}, .at = {.accumulate = 1}};
    o.in[0] = forward ? &x : &dy;
    o.in[1] = kind == OP_linear_grad_weight ? &x : &w;
    o.in[2] = biased ? &bias : kind == OP_linear_grad_input ? &out : NULL;
    workbench_run(&b, &o, prepared);
    double error = workbench_worst(&b, &out, want, rows, width);
    free(b.arena);
    return error;
}

TEST(products_agree_on_every_path)
{
    const product_sizes z = {101, 77, 301}; /* odd, so that every remainder loop runs */
    for (op_kind kind = OP_linear; kind <= OP_linear_grad_weight; kind++)
        for (dtype type = DTYPE_FP32; type <= DTYPE_FP16; type++) {
            double most = allowed[kind == OP_linear_wide ? DTYPE_FP32 : type];
            for (int strided = 0; strided < 2; strided++) {
                assert_true(product_error(z, NULL, type, kind, true, strided, 2) <= most);
                for (int set = 0; set < workbench_sets_here(); set++) /* without oneDNN */
                    assert_true(product_error(z, workbench_sets[set], type, kind, false, strided, 1 + set % 2) <= most);
            }
        }
}

/* A library's remainder loops differ by how many are summed: oneDNN 2.6's AMX products of 63 are wrong, or stop the
 * program. */
TEST(products_of_every_depth_are_right)
{
    static const int64_t large[] = {95, 127, 1567};
    for (int i = 1; i <= 66 + 3; i++)
        for (int threads = 1; threads <= 2; threads++) {
            int64_t depth = i <= 66 ? i : large[i - 67];
            product_sizes forward = {threads == 1 ? 200 : 53, 5, depth}, weight = {depth, 61, 5};
            double error[] = {product_error(forward, NULL, DTYPE_BF16, OP_linear, true, false, threads),
                              product_error(weight, NULL, DTYPE_BF16, OP_linear_grad_weight, true, false, threads),
                              product_error(forward, NULL, DTYPE_BF16, OP_linear_wide, true, false, threads)};
            static const char *const words[] = {"forward product", "weight gradient", "product in fp32"};
            for (int k = 0; k < 3; k++)
                if (!(error[k] <= allowed[k == 2 ? DTYPE_FP32 : DTYPE_BF16]))
                    fail_msg("%s of depth %d on %d threads: error %g", words[k], (int)depth, threads, error[k]);
        }
}

TEST(linear_grad_input_adds_from_elsewhere)
{
    workbench b = workbench_open(2, NULL);
    tensor dy = workbench_random(&b, DTYPE_FP32, 40, 24, 1), w = workbench_random(&b, DTYPE_FP32, 24, 56, 1);
    tensor addend = workbench_random(&b, DTYPE_FP32, 40, 56, 1), apart = workbench_tensor(&b, DTYPE_FP32, 40, 56);
    op o = {.kind = OP_linear_grad_input, .in = {&dy, &w, &addend}, .out = {&apart}};
    workbench_run(&b, &o, true);
    o.out[0] = &addend;
    workbench_run(&b, &o, true);
    assert_memory_equal(tensor_at(&apart, b.arena), tensor_at(&addend, b.arena), (size_t)tensor_bytes(&apart));
    free(b.arena);
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

typedef struct attention_case {
    int heads, kv_heads, d, sequence, samples, window;
    bool documents;
} attention_case;

/* y, lse and dqkv in float64 by the textbook: whole score rows, one query at a time. */
static void naive_attention(double *y, double *lse, double *dqkv, const double *qkv, const double *dy,
                            const int32_t *start, const attention_case *c)
{
    int row = (c->heads + 2 * c->kv_heads) * c->d, t = c->samples * c->sequence;
    double scale = 1 / sqrt(c->d), *p = malloc((size_t)c->sequence * sizeof *p),
           *dp = malloc((size_t)c->sequence * sizeof *p);
    memset(dqkv, 0, (size_t)(t * row) * sizeof *dqkv);
    for (int h = 0; h < c->heads; h++)
        for (int i = 0; i < t; i++) {
            int base = i / c->sequence * c->sequence, q = i % c->sequence, from = start ? start[i] : 0,
                kv = h / (c->heads / c->kv_heads);
            if (c->window && q - c->window + 1 > from)
                from = q - c->window + 1;
            double top = -INFINITY, sum = 0, mean = 0;
            const double *query = qkv + i * row + h * c->d, *g = dy + (i * c->heads + h) * c->d;
            double *out = y + (i * c->heads + h) * c->d;
#define KEY(j)   ((base + (j)) * row + (c->heads + kv) * c->d)
#define VALUE(j) (KEY(j) + c->kv_heads * c->d)
            for (int j = from; j <= q; j++) {
                p[j] = 0;
                for (int e = 0; e < c->d; e++)
                    p[j] += scale * query[e] * qkv[KEY(j) + e];
                top = fmax(top, p[j]);
            }
            for (int j = from; j <= q; j++)
                sum += p[j] = exp(p[j] - top);
            lse[(i / c->sequence * c->heads + h) * c->sequence + q] = top + log(sum);
            for (int e = 0; e < c->d; e++)
                out[e] = 0;
            for (int j = from; j <= q; j++) {
                p[j] /= sum;
                dp[j] = 0;
                for (int e = 0; e < c->d; e++) {
                    out[e] += p[j] * qkv[VALUE(j) + e];
                    dp[j] += g[e] * qkv[VALUE(j) + e];
                    dqkv[VALUE(j) + e] += p[j] * g[e];
                }
                mean += p[j] * dp[j];
            }
            for (int j = from; j <= q; j++)
                for (int e = 0; e < c->d; e++) {
                    dqkv[i * row + h * c->d + e] += scale * p[j] * (dp[j] - mean) * qkv[KEY(j) + e];
                    dqkv[KEY(j) + e] += scale * p[j] * (dp[j] - mean) * query[e];
                }
        }
    free(p);
    free(dp);
}

/* The columns of a row of q, k and v that are one of the three's. */
static tensor heads_of(const tensor *row, const attention_case *c, int which)
{
    tensor t = *row;
    int64_t first = which ? c->heads + (which - 1) * c->kv_heads : 0;
    t.address += first * c->d * dtype_bytes((dtype)t.type);
    t.shape[1] = (int64_t)(which ? c->kv_heads : c->heads) * c->d;
    return t;
}

/* Worst error of y, lse, dqkv, each relative to its largest element. */
static void attention_error(double error[3], const attention_case *c, const isa *set, dtype type, int threads,
                            uint32_t *bits)
{
    workbench b = workbench_open(threads, set);
    int64_t t = (int64_t)c->samples * c->sequence, row = (int64_t)(c->heads + 2 * c->kv_heads) * c->d,
            width = (int64_t)c->heads * c->d;
    tensor qkv = workbench_random(&b, type, t, row, 2), dy = workbench_random(&b, type, t, width, 1);
    tensor y = workbench_tensor(&b, type, t, width),
           lse = workbench_tensor(&b, DTYPE_FP32, c->samples * c->heads, c->sequence),
           dqkv = workbench_tensor(&b, type, t, row);
    tensor start = workbench_tensor(&b, DTYPE_INT32, t, 0);
    int32_t *starts = tensor_at(&start, b.arena);
    for (int64_t i = 0; i < t; i++) /* a new document every 37 tokens */
        starts[i] = (int32_t)(i % c->sequence / 37 * 37);
    AUTO_FREE double *q64 = malloc((size_t)(t * row) * 8), *dy64 = malloc((size_t)(t * width) * 8),
                     *y64 = malloc((size_t)(t * width) * 8);
    AUTO_FREE double *lse64 = malloc((size_t)(c->heads * t) * 8), *dq64 = malloc((size_t)(t * row) * 8);
    for (int64_t i = 0; i < t; i++) {
        for (int64_t j = 0; j < row; j++)
            q64[i * row + j] = workbench_get(&b, &qkv, i, j);
        for (int64_t j = 0; j < width; j++)
            dy64[i * width + j] = workbench_get(&b, &dy, i, j);
    }
    naive_attention(y64, lse64, dq64, q64, dy64, c->documents ? starts : NULL, c);
    op_attributes at = {.heads = {c->heads, c->kv_heads, c->d},
                        .attention = {.sequence = c->sequence, .window = c->window}};
    at.attention.scale = (float)(1 / sqrt(c->d));
    tensor in[3], grad[3];
    for (int i = 0; i < 3; i++) {
        in[i] = heads_of(&qkv, c, i);
        grad[i] = heads_of(&dqkv, c, i);
    }
    tensor *documents = c->documents ? &start : NULL;
    op forward = {.kind = OP_attention, .in = {&in[0], &in[1], &in[2], documents}, .out = {&y, &lse}, .at = at};
    op backward = {.kind = OP_attention_grad,
                   .in = {&dy, &in[0], &in[1], &in[2], &y, &lse, documents},
                   .out = {&grad[0], &grad[1], &grad[2]},
                   .at = at};
    workbench_run(&b, &forward, true);
    workbench_run(&b, &backward, true);
    error[0] = workbench_worst(&b, &y, y64, t, width);
    error[1] = workbench_worst(&b, &lse, lse64, c->samples * c->heads, c->sequence);
    error[2] = workbench_worst(&b, &dqkv, dq64, t, row);
    if (bits)
        memcpy(bits, tensor_at(&dqkv, b.arena), (size_t)tensor_bytes(&dqkv));
    free(b.arena);
}

TEST(attention_agrees_on_every_instruction_set)
{
    static const attention_case cases[] = {
        {2, 2, 16, 70, 2, 0, false},  {4, 2, 64, 129, 1, 0, false},  {4, 1, 10, 65, 2, 0, true},
        {2, 2, 7, 33, 1, 0, false},   {2, 1, 32, 200, 1, 50, false}, {3, 3, 80, 193, 1, 100, true},
        {2, 2, 128, 64, 1, 1, false},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
        for (int set = 0; set < workbench_sets_here(); set++)
            for (dtype type = DTYPE_FP32; type <= DTYPE_FP16; type++) {
                double error[3];
                attention_error(error, &cases[i], workbench_sets[set], type, 1 + (int)i % 3, NULL);
                for (int j = 0; j < 3; j++) {
                    double most = (type == DTYPE_BF16 ? 2e-2 : type == DTYPE_FP16 ? 2e-3 : 1e-5);
                    if (!(error[j] <= most))
                        fail_msg("case %d, %s, %s: error %g of output %d", (int)i, workbench_sets[set]->name,
                                 dtype_name(type), error[j], j);
                }
            }
}

/* ---- determinism ----------------------------------------------------------------------------------------------- */

TEST(the_same_threads_give_the_same_bits)
{
    const attention_case c = {4, 2, 64, 256, 2, 0, false};
    size_t bytes = (size_t)(2 * 256 * 8 * 64) * 4;
    uint32_t *first = calloc(1, bytes), *second = calloc(1, bytes);
    double error[3];
    for (int threads = 1; threads <= 3; threads += 2) {
        attention_error(error, &c, NULL, DTYPE_FP32, threads, first);
        attention_error(error, &c, NULL, DTYPE_FP32, threads, second);
        assert_memory_equal(first, second, bytes);
    }
    free(first);
    free(second);
    for (int kind = 0; kind < 2; kind++) {
        workbench b = workbench_open(2, NULL);
        dtype type = kind ? DTYPE_BF16 : DTYPE_FP32;
        tensor dy = workbench_random(&b, type, 500, 96, 1), s = workbench_random(&b, type, 500, 96, 1),
               w = workbench_random(&b, type, 96, 0, 1);
        tensor rstd = workbench_random(&b, DTYPE_FP32, 500, 0, 1), dx = workbench_tensor(&b, type, 500, 96);
        tensor dw[2] = {workbench_tensor(&b, DTYPE_FP32, 96, 0), workbench_tensor(&b, DTYPE_FP32, 96, 0)};
        tensor weight[2] = {workbench_tensor(&b, DTYPE_FP32, 96, 96), workbench_tensor(&b, DTYPE_FP32, 96, 96)};
        for (int i = 0; i < 2; i++) {
            op norm = {.kind = OP_rmsnorm_grad, .in = {&dy, &s, &w, &rstd}, .out = {&dx, &dw[i]}};
            op product = {.kind = OP_linear_grad_weight, .in = {&dy, &s}, .out = {&weight[i]}};
            workbench_run(&b, &norm, true);
            workbench_run(&b, &product, true);
        }
        assert_memory_equal(tensor_at(&dw[0], b.arena), tensor_at(&dw[1], b.arena), 96 * 4);
        assert_memory_equal(tensor_at(&weight[0], b.arena), tensor_at(&weight[1], b.arena), 96 * 96 * 4);
        free(b.arena);
    }
}

/* ---- in place -------------------------------------------------------------------------------------------------- */

/* Run the op out of place, then with output `out` in input `in`'s storage; the same bits. */
static void check_in_place(workbench *b, op *o, int out, int in)
{
    tensor apart = *o->out[out];
    workbench_run(b, o, true);
    size_t bytes = (size_t)tensor_bytes(&apart);
    AUTO_FREE char *kept = malloc(bytes);
    memcpy(kept, tensor_at(&apart, b->arena), bytes);
    o->out[out]->address = o->in[in]->address;
    workbench_run(b, o, true);
    assert_memory_equal(kept, tensor_at(o->out[out], b->arena), bytes);
}

TEST(in_place_equals_out_of_place)
{
    for (int set = 0; set < workbench_sets_here(); set++)
        for (dtype type = DTYPE_FP32; type <= DTYPE_FP16; type++)
            for (int in = 0; in < 2; in++) {
                workbench b = workbench_open(2, workbench_sets[set]);
                tensor a = workbench_random(&b, type, 61, 45, 2), c = workbench_random(&b, type, 61, 45, 2),
                       y = workbench_tensor(&b, type, 61, 45);
                tensor w = workbench_random(&b, type, 45, 0, 1), rstd = workbench_random(&b, DTYPE_FP32, 61, 0, 1);
                tensor mean = workbench_random(&b, DTYPE_FP32, 61, 0, 1), dw = workbench_tensor(&b, DTYPE_FP32, 45, 0),
                       db = workbench_tensor(&b, DTYPE_FP32, 45, 0);
                op gelu_grad = {.kind = OP_gelu_grad, .in = {&a, &c}, .out = {&y}};
                check_in_place(&b, &gelu_grad, 0, in);
                y = workbench_tensor(&b, type, 61, 45);
                a = workbench_random(&b, type, 61, 45, 2);
                c = workbench_random(&b, type, 61, 45, 2);
                op norm = {.kind = OP_layernorm_grad, .in = {&a, &c, &w, &rstd, &mean, &c}, .out = {&y, &dw, &db}};
                check_in_place(&b, &norm, 0, in ? 5 : 0);
                free(b.arena);
            }
}

/* ---- strided operands ------------------------------------------------------------------------------------------ */

TEST(strided_operands_equal_contiguous_ones)
{
    workbench b = workbench_open(2, NULL);
    tensor wide = workbench_random(&b, DTYPE_BF16, 33, 90, 2), x = wide,
           packed = workbench_tensor(&b, DTYPE_BF16, 33, 40);
    x.shape[1] = 40;
    x.address += 10 * 2; /* columns 10..50 of it */
    op copy = {.kind = OP_copy, .in = {&x}, .out = {&packed}};
    workbench_run(&b, &copy, true);
    tensor y[2] = {workbench_tensor(&b, DTYPE_BF16, 33, 40), workbench_tensor(&b, DTYPE_BF16, 33, 40)};
    tensor db[2] = {workbench_tensor(&b, DTYPE_FP32, 40, 0), workbench_tensor(&b, DTYPE_FP32, 40, 0)};
    for (int i = 0; i < 2; i++) {
        op gelu = {.kind = OP_gelu, .in = {i ? &x : &packed}, .out = {&y[i]}};
        op bias = {.kind = OP_bias_grad, .in = {i ? &x : &packed}, .out = {&db[i]}};
        workbench_run(&b, &gelu, true);
        workbench_run(&b, &bias, true);
    }
    assert_memory_equal(tensor_at(&y[0], b.arena), tensor_at(&y[1], b.arena), (size_t)tensor_bytes(&y[0]));
    assert_memory_equal(tensor_at(&db[0], b.arena), tensor_at(&db[1], b.arena), 160);
    assert_true(workbench_get(&b, &y[0], 32, 39) != workbench_get(&b, &y[0], 31, 39));
    free(b.arena);
}

/* ---- functions ------------------------------------------------------------------------------------------------- */

TEST(activations_are_accurate_to_fp32)
{
    enum { COUNT = 4001 };
    for (int set = 0; set < workbench_sets_here(); set++) {
        workbench b = workbench_open(1, workbench_sets[set]);
        tensor x = workbench_tensor(&b, DTYPE_FP32, COUNT, 1), y = workbench_tensor(&b, DTYPE_FP32, COUNT, 1),
               gate = workbench_tensor(&b, DTYPE_FP32, COUNT, 2);
        tensor product = workbench_tensor(&b, DTYPE_FP32, COUNT, 1);
        for (int i = 0; i < COUNT; i++) {
            double value = (i - COUNT / 2) * 0.005;
            workbench_put(&b, &x, i, 0, value);
            workbench_put(&b, &gate, i, 0, value);
            workbench_put(&b, &gate, i, 1, 1.5);
        }
        op gelu = {.kind = OP_gelu, .in = {&x}, .out = {&y}},
           swiglu = {.kind = OP_swiglu, .in = {&gate}, .out = {&product}};
        workbench_run(&b, &gelu, true);
        workbench_run(&b, &swiglu, true);
        for (int i = 0; i < COUNT; i++) {
            double v = workbench_get(&b, &x, i, 0), u = sqrt(2 / 3.14159265358979323846) * (v + 0.044715 * v * v * v);
            double want = v / (1 + exp(-2 * u)), silu = 1.5 * v / (1 + exp(-v));
            /* u is rounded: its error counts as often as u is large */
            assert_true(fabs(workbench_get(&b, &y, i, 0) - want) <= 4e-7 * (1 + fabs(u)) * fabs(want) + 1e-37);
            assert_true(fabs(workbench_get(&b, &product, i, 0) - silu) <= 4e-7 * (1 + fabs(v) / 4) * fabs(silu));
        }
        free(b.arena);
    }
}

/* Of the authors' known-answer tests: zeros, ones, and digits of pi. */
TEST(philox_gives_the_published_answers)
{
    static const uint32_t answers[3][10] = {
        {0, 0, 0, 0, 0, 0, 0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8},
        {0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0xffffffff, 0x408f276d, 0x41c83b0e, 0xa20bc7c6,
         0x6d5451fd},
        {0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344, 0xa4093822, 0x299f31d0, 0xd16cfe09, 0x94fdcceb, 0x5001e420,
         0x24126ea1},
    };
    for (int i = 0; i < 3; i++) {
        uint32_t out[4];
        philox_block(out, answers[i], answers[i] + 4);
        assert_memory_equal(out, answers[i] + 6, sizeof out);
    }
    assert_true(philox_uniform(0xffffffff) < 1 && philox_uniform(0) == 0);
}

TEST(dropout_draws_for_the_global_element)
{
    workbench b = workbench_open(2, NULL);
    tensor x = workbench_tensor(&b, DTYPE_FP32, 24, 30), whole = workbench_tensor(&b, DTYPE_FP32, 24, 30),
           scalars = workbench_tensor(&b, DTYPE_UINT8, sizeof(step_scalars), 0),
           token_positions = workbench_tensor(&b, DTYPE_INT32, 24, 0), own = workbench_tensor(&b, DTYPE_INT32, 6, 0);
    for (int i = 0; i < 24; i++)
        ((int32_t *)tensor_at(&token_positions, b.arena))[i] = i;
    for (int i = 0; i < 6; i++)
        ((int32_t *)tensor_at(&own, b.arena))[i] = 10 + i;
    for (int i = 0; i < 24 * 30; i++)
        ((float *)tensor_at(&x, b.arena))[i] = 1;
    *(step_scalars *)tensor_at(&scalars, b.arena) = (step_scalars){.seed = 5, .step = 3, .first_sample = 100};
    op_attributes at = {.dropout = {.sample_tokens = 8, .probability = 0.25f, .site = 4}};
    op o = {.kind = OP_dropout, .in = {&x, &scalars, &token_positions}, .out = {&whole}, .at = at};
    workbench_run(&b, &o, true);
    int kept = 0;
    for (int i = 0; i < 24 * 30; i++) {
        float value = ((float *)tensor_at(&whole, b.arena))[i];
        assert_true(value == 0 || value == 1 / 0.75f);
        kept += value != 0;
    }
    assert_in_range(kept, 480, 600); /* 540 expected, deviation 12 */
    /* tokens 10..15 alone, as a rank with part of the sequence, and samples 1..2 as a later micro-batch, see the
     * same */
    tensor part = workbench_tensor(&b, DTYPE_FP32, 6, 30), later = workbench_tensor(&b, DTYPE_FP32, 16, 30), x_part = x,
           x_later = x;
    x_part.shape[0] = 6;
    x_later.shape[0] = 16;
    op sequence = {.kind = OP_dropout, .in = {&x_part, &scalars, &own}, .out = {&part}, .at = at};
    workbench_run(&b, &sequence, true);
    assert_memory_equal(tensor_at(&part, b.arena), (float *)tensor_at(&whole, b.arena) + 300, 6 * 30 * 4);
    op microbatch = {.kind = OP_dropout, .in = {&x_later, &scalars, &token_positions}, .out = {&later}, .at = at};
    microbatch.at.dropout.sample = 1;
    workbench_run(&b, &microbatch, true);
    assert_memory_equal(tensor_at(&later, b.arena), (float *)tensor_at(&whole, b.arena) + 240, 16 * 30 * 4);
    free(b.arena);
}

enum { EXPERT_ROWS = 333, EXPERT_N = 1100, EXPERT_C = 130 };

/* What the three products of experts make of the same operands: of `rows` rows from `from` on, in two segments, or of
 * one row in one. Returns y, dx and dw one after another, and their bytes. */
static char *experts_bits(size_t *bytes, dtype type, int threads, int64_t from, int64_t rows)
{
    workbench b = workbench_open(threads, NULL);
    tensor x = workbench_random(&b, type, EXPERT_ROWS, EXPERT_C, 1);
    tensor dy = workbench_random(&b, type, EXPERT_ROWS, EXPERT_N, 1);
    tensor w = workbench_random(&b, type, (int64_t)2 * EXPERT_N, EXPERT_C, 0.1);
    tensor offsets = workbench_tensor(&b, DTYPE_INT32, 3, 0),
           dw = workbench_tensor(&b, DTYPE_FP32, w.shape[0], EXPERT_C);
    int32_t *at = tensor_at(&offsets, b.arena);
    at[0] = 0;
    at[1] = (int32_t)(rows > 1 ? rows / 3 : rows);
    at[2] = (int32_t)rows;
    x.address += from * EXPERT_C * dtype_bytes(type);
    dy.address += from * EXPERT_N * dtype_bytes(type);
    x.shape[0] = dy.shape[0] = rows;
    tensor y = workbench_tensor(&b, type, rows, EXPERT_N), dx = workbench_tensor(&b, type, rows, EXPERT_C);
    op ops[] = {{.kind = OP_grouped_linear, .in = {&x, &w, &offsets}, .out = {&y}},
                {.kind = OP_grouped_linear_grad_input, .in = {&dy, &w, &offsets}, .out = {&dx}},
                {.kind = OP_grouped_linear_grad_weight, .in = {&dy, &x, &offsets}, .out = {&dw}}};
    size_t used = 0;
    char *all = NULL;
    for (int i = 0; i < 3; i++) {
        size_t more = (size_t)tensor_bytes(ops[i].out[0]);
        workbench_run(&b, &ops[i], false);
        all = must_realloc(all, used + more);
        memcpy(all + used, tensor_at(ops[i].out[0], b.arena), more);
        bytes[i] = more;
        used += more;
    }
    free(b.arena);
    return all;
}

/* No bit depends on the number of threads, and none of a row on the rows beside it. */
TEST(experts_rows_are_their_own)
{
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    for (int i = 0; i < 3; i++) {
        size_t bytes[3], again[3], row = 17, y = EXPERT_N * (size_t)dtype_bytes(types[i]),
                                   dx = EXPERT_C * (size_t)dtype_bytes(types[i]);
        AUTO_FREE char *one = experts_bits(bytes, types[i], 1, 0, EXPERT_ROWS);
        for (int threads = 2; threads <= 5; threads += 3) {
            AUTO_FREE char *other = experts_bits(again, types[i], threads, 0, EXPERT_ROWS);
            assert_memory_equal(one, other, bytes[0] + bytes[1] + bytes[2]);
        }
        AUTO_FREE char *alone = experts_bits(again, types[i], 1, (int64_t)row, 1);
        assert_memory_equal(one + row * y, alone, y);
        assert_memory_equal(one + bytes[0] + row * dx, alone + again[0], dx);
    }
}

TEST_MAIN(NULL, NULL)
