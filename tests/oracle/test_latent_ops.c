/* The ops of latent attention: values computed by hand, gradients by the adjoint test alone and over tensor groups, and
 * kernels that are wrong in one way, each of which is noticed. */
#include <math.h>
#include <string.h>

#include "tests/oracle/adjoint.h"
#include "tests/oracle/bench.h"
#include "tests/oracle/op_sweep.h"
#include "tests/oracle/reference.h"
#include "tests/test.h"

/* ---- by hand --------------------------------------------------------------------------------------------------- */

/* One key that two heads share: a quarter turn of each head's last two elements, the others as they are; there, then
 * back; pairs that are halves, then neighbours, of two elements are the same. */
TEST(the_last_elements_of_heads_turn_as_the_key_they_share)
{
    static const double q[] = {1, 2, 3, 4, 5, 6, 7, 8}, k[] = {9, 10};
    static const double turned[2][10] = {{1, 2, -4, 3, 5, 6, -8, 7, -10, 9}, {1, 2, 4, -3, 5, 6, 8, -7, 10, -9}};
    for (int variant = 0; variant < 4; variant++) {
        bench b = {
            .o = {
                .kind = OP_rope,
                .at = {.heads.q = 2, .heads.size = 4, .rotation = {(uint8_t)(variant & 1), (uint8_t)(variant >> 1)}}}};
        for (int i = 0; i < 2; i++) {
            b.o.in[i] = bench_operand(&b, DTYPE_FP32, 1, i ? 2 : 8);
            b.o.out[i] = bench_operand(&b, DTYPE_FP32, 1, i ? 2 : 8);
        }
        b.o.in[2] = bench_operand(&b, DTYPE_INT32, 1, 0);
        b.o.in[3] = bench_operand(&b, DTYPE_FP32, 2, 2);
        bench_start(&b);
        reference_program_set(b.p, b.o.in[0], q);
        reference_program_set(b.p, b.o.in[1], k);
        reference_program_set(b.p, b.o.in[3], (double[]){1, 0, 0, 1});
        *(int32_t *)reference_program_bytes(b.p, b.o.in[2]) = 1;
        bench_run(&b);
        double y[10];
        reference_program_get(y, b.p, b.o.out[0]);
        reference_program_get(y + 8, b.p, b.o.out[1]);
        assert_memory_equal(y, turned[variant & 1], sizeof y);
        reference_program_close(b.p);
    }
}

TEST(keys_are_joined_and_their_cotangents_summed)
{
    bench join = {.o = {.kind = OP_join_keys, .at = {.heads.q = 2, .heads.size = 1}}};
    join.o.in[0] = bench_operand(&join, DTYPE_FP32, 1, 2);
    join.o.in[1] = bench_operand(&join, DTYPE_FP32, 1, 2);
    join.o.out[0] = bench_operand(&join, DTYPE_FP32, 1, 6);
    bench_start(&join);
    reference_program_set(join.p, join.o.in[0], (double[]){1, 2});
    reference_program_set(join.p, join.o.in[1], (double[]){3, 4});
    bench_run(&join);
    double k[6], dkn[2], dkr[2];
    reference_program_get(k, join.p, join.o.out[0]);
    assert_memory_equal(k, ((double[]){1, 3, 4, 2, 3, 4}), sizeof k);
    reference_program_close(join.p);

    bench split = {.o = {.kind = OP_split_keys, .at = {.heads.q = 2, .heads.size = 1}}};
    split.o.in[0] = bench_operand(&split, DTYPE_FP32, 1, 6);
    split.o.out[0] = bench_operand(&split, DTYPE_FP32, 1, 2);
    split.o.out[1] = bench_operand(&split, DTYPE_FP32, 1, 2);
    bench_start(&split);
    reference_program_set(split.p, split.o.in[0], (double[]){1, 10, 20, 2, 3, 4});
    bench_run(&split);
    reference_program_get(dkn, split.p, split.o.out[0]);
    reference_program_get(dkr, split.p, split.o.out[1]);
    assert_memory_equal(dkn, ((double[]){1, 2}), sizeof dkn);
    assert_memory_equal(dkr, ((double[]){13, 24}), sizeof dkr);
    reference_program_close(split.p);
}

/* Scores 0 and (0.5 * 2 * 1 + 1 * 1) / 2 of two latents, 0 and 1, whose values are 0 and 3. */
TEST(a_new_token_meets_the_latents_before_it)
{
    bench b = {.o = {.kind = OP_latent_decode, .at = {.heads.q = 1, .attention.scale = 0.5f}}};
    const int64_t columns[] = {2, 1, 1};
    for (int i = 0; i < 3; i++)
        b.o.in[i] = bench_operand(&b, DTYPE_FP32, 1, columns[i]);
    b.o.in[3] = bench_operand(&b, DTYPE_FP32, 2, 1);
    b.o.in[4] = bench_operand(&b, DTYPE_INT32, 1, 0);
    b.o.in[5] = bench_operand(&b, DTYPE_FP32, 1, 4);
    tensor_describe(b.o.in[5], "cache", CLASS_TEMPORARY, DTYPE_FP32, 3, (int64_t[]){1, 2, 2});
    b.o.out[0] = bench_operand(&b, DTYPE_FP32, 1, 1);
    bench_start(&b);
    reference_program_set(b.p, b.o.in[0], (double[]){0.5, 1});
    reference_program_set(b.p, b.o.in[1], (double[]){1});
    reference_program_set(b.p, b.o.in[2], (double[]){1});
    reference_program_set(b.p, b.o.in[3], (double[]){2, 3});
    reference_program_set(b.p, b.o.in[5], (double[]){0, 0, 7, 7});
    *(int32_t *)reference_program_bytes(b.p, b.o.in[4]) = 1;
    bench_run(&b);
    double y, cache[4];
    reference_program_get(&y, b.p, b.o.out[0]);
    reference_program_get(cache, b.p, b.o.in[5]);
    bench_near(y, 2.193175735890015, 1e-14); /* 3 e / (1 + e) */
    assert_memory_equal(cache, ((double[]){0, 0, 1, 1}), sizeof cache);
    reference_program_close(b.p);
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

enum { SEQUENCE = 5, TOKENS = 2 * SEQUENCE, HIDDEN = 6, HEADS = 2, NOPE = 3, ROPE = 4, VALUE = 5, RANK = 3 };

static int32_t position_of(int64_t i)
{
    return (int32_t)(i % SEQUENCE);
}

static double turn_of(int64_t position, int64_t i, int64_t columns)
{
    int64_t half = columns / 2;
    double angle = (double)position * pow(10, -(double)(i % half) / (double)half);
    return i < half ? cos(angle) : sin(angle);
}

typedef struct latent_options {
    bool interleaved;
    int rotated; /* of the ROPE elements */
} latent_options;

static tensor *weight(adjoint_rank *a, const char *name, int64_t rows, int64_t columns, placement place)
{
    return recorder_weight(&a->r, adjoint_parameter(a, name, rows, columns, place));
}

/* HEADS heads on each rank; the latent and its key are whole on all of them. */
static void latent(adjoint_rank *a, const void *options)
{
    const latent_options *l = options;
    recorder *r = &a->r;
    tensor *x = record_gelu(r, "gelu", adjoint_input(a, "x", TOKENS, HIDDEN, place_replicate()));
    tensor *c = record_linear(r, "down", x, weight(a, "kv a", RANK + ROPE, HIDDEN, place_replicate()), NULL);
    tensor *all = record_copy_to_shards(r, "share x", a->along, x);
    tensor *normed = record_norm(r, "norm", NULL, recorder_columns(r, c, 0, RANK), NULL,
                                 (record_norm_of){weight(a, "norm", RANK, 0, place_replicate()), NULL, 1e-5f, 0});
    tensor *kv = record_linear(r, "up", record_copy_to_shards(r, "share c", a->along, normed),
                               weight(a, "kv b", HEADS * (NOPE + VALUE), RANK, place_shard(0)), NULL);
    record_qkv h = {.q =
                        record_linear(r, "q", all, weight(a, "q", HEADS * (NOPE + ROPE), HIDDEN, place_shard(0)), NULL),
                    .k = record_copy_to_shards(r, "share key", a->along, recorder_columns(r, c, RANK, ROPE)),
                    .v = recorder_columns(r, kv, HEADS * NOPE, HEADS * VALUE)};
    const op_attributes turn = {.heads = {HEADS, 0, NOPE + ROPE}, .rotation.interleaved = l->interleaved};
    const op_attributes at = {.heads = {HEADS, HEADS, NOPE + ROPE}, .attention = {.sequence = SEQUENCE, .scale = 0.6f}};
    record_rope(r, "rope", &h, adjoint_integers(a, "positions", TOKENS, position_of),
                adjoint_table(a, "table", SEQUENCE, l->rotated, turn_of), &turn);
    h.k = record_join_keys(r, "join", recorder_columns(r, kv, 0, HEADS * NOPE), h.k, HEADS);
    tensor *y = record_attention(r, "attention", &h, NULL, NULL, NULL, &at);
    y = record_linear(r, "out", y, weight(a, "out", HIDDEN, HEADS * VALUE, place_shard(1)), NULL);
    a->output = record_add(r, "sum", record_all_reduce(r, "reduce", a->along, y), x);
}

static double worst_of(const adjoint_spec *s, char *why)
{
    adjoint *a = adjoint_open(s);
    double worst = adjoint_worst(why, a);
    adjoint_close(a);
    return worst;
}

static const latent_options OPTIONS[] = {{true, ROPE}, {false, ROPE}, {true, 2}};

TEST(latent_attention_passes_the_adjoint_test)
{
    for (unsigned i = 0; i < sizeof OPTIONS / sizeof *OPTIONS; i++)
        for (int k = 0; k < 9; k++) {
            char why[256];
            adjoint_spec s = {.name = "latent attention",
                              .record = latent,
                              .options = &OPTIONS[i],
                              .ranks = 1 + k / 3,
                              .recompute = (recompute)(k % 3),
                              .split = k % 3 == 1};
            double worst = worst_of(&s, why);
            if (!(worst <= 1))
                fail_msg("options %u, %d ranks, recompute %d: %.3g times what is allowed; %s", i, s.ranks, k % 3, worst,
                         why);
        }
}

static op *backward_op(op **ops, int forward, int count, op_kind kind)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == kind)
            return ops[i];
    return NULL;
}

static void not_turned_back(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_rope)->at.rotation.inverse = 0;
}

/* As if all heads of q were the one of k. */
static void another_part_turned_back(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_rope)->at.heads.kv = 1;
}

static void split_as_one_head(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_split_keys)->at.heads.q = 1;
}

/* The cotangents of x, of the latent and of its key are sums over the ranks. */
TEST(every_mutant_of_gradients_fails)
{
    static void (*const mutants[])(op **, int, int) = {not_turned_back, another_part_turned_back, split_as_one_head};
    char why[256];
    adjoint_spec s = {.name = "latent attention", .record = latent, .options = &OPTIONS[0], .ranks = 2};
    for (unsigned i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        s.mutate = mutants[i];
        if (worst_of(&s, why) <= 1)
            fail_msg("mutant %u was not noticed", i);
    }
    s.mutate = NULL;
    s.leave_out = true;
    for (s.skip = 0; s.skip < 3; s.skip++)
        if (worst_of(&s, why) <= 1)
            fail_msg("the sum %d of cotangents was left out, and nothing was noticed", s.skip);
    adjoint *a = adjoint_open(&s);
    assert_int_equal(adjoint_collectives(a), 3);
    adjoint_close(a);
}

/* ---- kernels --------------------------------------------------------------------------------------------------- */

/* The first elements of a head of q, where k's one head has as many as rotate. */
static void rope_on_the_wrong_part(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.heads.kv += o->at.heads.kv == 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void last_head_alone(const op *o, const run_context *r)
{
    const tensor *dk = o->in[0], *dkr = o->out[1];
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t t = 0; t < dk->shape[0]; t++)
        memcpy((float *)tensor_at(dkr, r->arena) + t * dkr->pitch,
               (float *)tensor_at(dk, r->arena) + t * dk->pitch + dk->shape[1] - dkr->shape[1],
               (size_t)dkr->shape[1] * sizeof(float));
}

static void scale_left_out(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.attention.scale = 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* The new row one later than it belongs, where there is room for it. */
static void cache_shifted(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor positions = *o->in[4];
    const int32_t *right = tensor_at(o->in[4], r->arena);
    int32_t later[8];
    for (int64_t i = 0; i < positions.shape[0]; i++)
        later[i] = right[i] + (right[i] + 1 < o->in[5]->shape[1]);
    positions.address = (char *)later - r->arena;
    wrong.in[4] = &positions;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* Scores by the latents alone. */
static void rotated_part_ignored(const op *o, const run_context *r)
{
    int64_t heads = o->at.heads.q, size = o->in[0]->shape[1] / heads, rope = o->in[2]->shape[1];
    op wrong = *o;
    tensor q = *o->in[0];
    float *all = tensor_at(&q, r->arena), was[4096];
    assert_true(q.shape[0] * q.pitch <= 4096);
    memcpy(was, all, (size_t)(q.shape[0] * q.pitch) * sizeof *all);
    for (int64_t i = 0; i < q.shape[0] * heads; i++)
        memset(all + i / heads * q.pitch + i % heads * size + size - rope, 0, (size_t)rope * sizeof *all);
    cpu_backend.kernels[o->kind](&wrong, r);
    memcpy(all, was, (size_t)(q.shape[0] * q.pitch) * sizeof *all);
}

TEST(every_mutant_of_kernels_is_noticed)
{
    static const struct {
        op_kind kind;
        op_kernel kernel;
    } mutants[] = {{OP_rope, rope_on_the_wrong_part},
                   {OP_split_keys, last_head_alone},
                   {OP_latent_decode, scale_left_out},
                   {OP_latent_decode, cache_shifted},
                   {OP_latent_decode, rotated_part_ignored}};
    for (unsigned i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        op_kernel kernels[OP_COUNT];
        memcpy(kernels, cpu_backend.kernels, sizeof kernels);
        kernels[mutants[i].kind] = mutants[i].kernel;
        op_backend mutant = cpu_backend;
        mutant.kernels = kernels;
        int noticed = 0;
        op_case c;
        for (int v = 0; !noticed && op_sweep_case(&c, mutants[i].kind, DTYPE_FP32, v); v++) {
            char why[256];
            op_case_mode m = {.in_place_out = -1, .threads = 1};
            noticed = !(op_case_run(why, &c, &mutant, &m, (uint64_t)v) <= 1);
        }
        if (!noticed)
            fail_msg("%s: mutant %u was not noticed", op_rows[mutants[i].kind].name, i);
    }
}

TEST_MAIN(NULL, NULL)
