/* The generators of element-wise ops, loss, optimizer and communication: see op_cases.h. */
#include "tests/oracle/op_cases.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/compress.h"
#include "kernels/exact_sum.h"
#include "kernels/ops/compression.h"
#include "kernels/rounding.h"
#include "memory/log.h"
#include "memory/scope.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

#define OP(name, ...) op_cases_##name,
const op_cases_generator op_cases_table[OP_COUNT] = {
#include "kernels/table/ops.def"
};

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, WIDE = {.kind = FILL_NORMAL, .b = 3},
                  DERIVED = {.kind = FILL_DERIVED};

/* ---- element-wise -------------------------------------------------------------------------------------------- */

/* `inputs` operands of [rows, columns] and one output. */
static bool each(op_case *c, int inputs, fill f, int variant)
{
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    for (int i = 0; i < inputs; i++)
        op_case_in(c, i, c->type, f, rows, columns);
    op_case_infer(c, 1);
    return true;
}

CASES(gelu)
{
    c->growth = 4; /* u = 1 + tanh or exp(u), where y is small beside x */
    return each(c, 1, WIDE, variant);
}

CASES(gelu_grad)
{
    c->growth = 4;
    return each(c, 2, WIDE, variant);
}

CASES(gelu_exact)
{
    c->growth = 8; /* exp(x^2 / 2), x up to 8 */
    return each(c, 1, WIDE, variant);
}

CASES(gelu_exact_grad)
{
    c->growth = 8;
    return each(c, 2, WIDE, variant);
}

CASES(scale)
{
    c->o.at.constants.scale = op_case_option(&variant, 2) ? 0.22f : -12;
    return each(c, 1, UNIT, variant);
}

/* From where the cap changes little to where all is nearly the cap. */
static float a_cap(int *variant)
{
    return op_case_option(variant, 2) ? 30 : 0.75f;
}

CASES(soft_cap)
{
    c->o.at.constants.cap = a_cap(&variant);
    return each(c, 1, WIDE, variant);
}

CASES(soft_cap_grad)
{
    c->o.at.constants.cap = a_cap(&variant);
    c->growth = 8; /* exp(2 x / cap), whose x / cap is rounded */
    return each(c, 2, WIDE, variant);
}

CASES(swiglu)
{
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    return true;
}

CASES(swiglu_grad)
{
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    op_case_in(c, 1, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    return true;
}

/* Limits within which most are, and few. */
static void clamps(op_case *c, int *variant)
{
    c->o.at.constants.cap = op_case_option(variant, 2) ? 7 : 0.75f;
    c->o.at.constants.scale = 1.702f;
}

CASES(swiglu_clamped)
{
    int64_t rows, columns;
    clamps(c, &variant);
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    c->growth = 4; /* exp(scale gate), whose product is rounded */
    return true;
}

CASES(swiglu_clamped_grad)
{
    int64_t rows, columns;
    clamps(c, &variant);
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    op_case_in(c, 1, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    c->growth = 4;
    return true;
}

CASES(geglu)
{
    c->growth = 4; /* as gelu */
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    return true;
}

CASES(geglu_grad)
{
    c->growth = 4; /* as gelu */
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    op_case_in(c, 1, c->type, WIDE, rows, 2 * columns);
    op_case_infer(c, 1);
    return true;
}

CASES(add)
{
    return each(c, 2, UNIT, variant);
}

CASES(accumulate)
{
    c->one_type = true;
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    if (rows == 1)
        rows = columns, columns = 0; /* a vector */
    op_case_in(c, 0, DTYPE_FP32, UNIT, rows, columns);
    op_case_update(c, 0, DTYPE_FP32, UNIT, rows, columns, c->o.at.accumulate);
    op_case_infer(c, 0);
    return true;
}

static void training_scalars(op_case *c)
{
    c->scalars = (step_scalars){.seed = 0x123456789ABCDEF0u,
                                .step = 7,
                                .updates = 5,
                                .first_sample = 1000003,
                                .lr = 0.01f,
                                .beta1 = 0.9f,
                                .beta2 = 0.95f,
                                .epsilon = 1e-8f,
                                .weight_decay = 0.1f,
                                .muon_lr = 0.02f,
                                .momentum = 0.95f,
                                .clip = 1,
                                .loss_scale = 1,
                                .loss_tokens = 13,
                                .batch_tokens = 16};
    c->scalars.momentum_correction = (float)(1 - pow((double)c->scalars.beta1, (double)c->scalars.updates));
    c->scalars.variance_correction = (float)(1 - pow((double)c->scalars.beta2, (double)c->scalars.updates));
}

/* A permutation, from 4 on where there is more than one. */
static void give_positions(const op_case *c, void *bytes, const tensor *t)
{
    (void)c;
    for (int64_t i = 0, n = t->shape[0]; i < n; i++)
        ((int32_t *)bytes)[i] = (int32_t)((2 * n + 3 - i) % n);
}

CASES(arrange)
{
    c->o.at.rotation.inverse = (uint8_t)op_case_option(&variant, 2);
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    op_case_in(c, 1, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_positions}, rows, 0);
    op_case_infer(c, 1);
    c->exact = true;
    return true;
}

CASES(dropout)
{
    static const float probabilities[] = {0.1f, 0.5f, 0};
    c->o.at.dropout.probability = probabilities[op_case_option(&variant, 3)];
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    training_scalars(c);
    c->o.at.dropout.site = 3;
    c->o.at.dropout.sample = 2;
    c->o.at.dropout.sample_tokens = 5; /* samples end within the rows */
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    op_case_scalars(c, 1);
    op_case_in(c, 2, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_positions}, rows, 0);
    op_case_infer(c, 1);
    return true;
}

CASES(cast)
{
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    dtype to = types[op_case_option(&variant, 3)];
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, rows, columns);
    to = to == c->type ? (to == DTYPE_FP32 ? DTYPE_BF16 : DTYPE_FP32) : to;
    op_case_update(c, 0, to, UNIT, rows, columns, false);
    op_case_infer(c, 0);
    return true;
}

CASES(copy)
{
    c->exact = true;
    return each(c, 1, UNIT, variant);
}

CASES(zero)
{
    int64_t rows, columns;
    c->exact = true;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_update(c, 0, c->type, UNIT, rows, columns, true);
    op_case_infer(c, 0);
    return true;
}

/* ---- loss ---------------------------------------------------------------------------------------------------- */

/* rows, columns, real columns, first id: a shard between two others, one with padding, one that is all padding */
static const int LOSS[][4] = {{1, 1, 1, 0},      {3, 17, 17, 0},  {5, 64, 50, 0},     {9, 130, 130, 100},
                              {40, 512, 257, 0}, {7, 64, 33, 64}, {17, 1056, 1056, 0}};

static void give_targets(const op_case *c, void *bytes, const tensor *t)
{
    /* of a vocabulary that ends beyond this shard; every fourth counts nothing */
    int64_t ids = c->o.at.vocabulary.first + c->o.at.vocabulary.ids + (c->o.at.vocabulary.first ? 20 : 0);
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)bytes)[i] = i % 4 == 3 ? -1 : (int32_t)((i * 7919 + 3) % ids);
}

static bool logits(op_case *c, int variant)
{
    if (variant >= COUNT(LOSS))
        return false;
    const int *s = LOSS[variant];
    c->o.at.vocabulary.ids = s[2];
    c->o.at.vocabulary.first = s[3];
    op_case_in(c, 0, c->type, WIDE, s[0], s[1]);
    op_case_in(c, 1, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_targets}, s[0], 0);
    c->terms = s[1];
    return true;
}

CASES(cross_entropy_stats)
{
    if (variant == COUNT(LOSS)) { /* a shard without real columns */
        logits(c, 1);
        c->o.at.vocabulary.ids = 0;
        c->o.at.vocabulary.first = 100;
    } else if (!logits(c, variant)) {
        return false;
    }
    op_case_infer(c, 1);
    return true;
}

/* Statistics of `shards` shards: this one's from its logits, the others' from logits of their own. */
static void give_stats(op_case *c, int shards)
{
    int64_t rows = c->o.in[0]->shape[0];
    tensor *stats = op_case_in(c, 2, DTYPE_FP32, DERIVED, shards * rows, 3);
    for (int i = 0; i < shards; i++) {
        op *forward = op_case_prelude(c, OP_cross_entropy_stats);
        tensor *view = op_case_tensor(c, "shard's stats", DTYPE_FP32, DERIVED, rows, 3);
        view->base = stats;
        view->offset = i * rows * 3 * (int64_t)sizeof(float);
        forward->in[0] = i == 0 ? c->o.in[0] : op_case_tensor(c, "other logits", c->type, WIDE, rows, 20);
        forward->in[1] = c->o.in[1];
        forward->out[0] = view;
        forward->at = c->o.at;
        if (i > 0) {
            forward->at.vocabulary.first = c->o.at.vocabulary.first ? 0 : c->o.at.vocabulary.ids;
            forward->at.vocabulary.ids = 20;
        }
    }
}

/* Where other shards are, targets of theirs must be theirs: ids below 100 of the shard at 100 belong to 20 columns. */
static void give_shard_targets(const op_case *c, void *bytes, const tensor *t)
{
    int64_t first = c->o.at.vocabulary.first, count = c->o.at.vocabulary.ids;
    for (int64_t i = 0; i < t->shape[0]; i++) {
        int64_t other = first ? i % 20 : count + i % 20;
        ((int32_t *)bytes)[i] = i % 4 == 3 ? -1 : (int32_t)(i % 2 ? other : first + i * 31 % count);
    }
}

CASES(cross_entropy)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int shards = op_case_option(&variant, 2) + 1, gradient = op_case_option(&variant, 2);
    if (!logits(c, variant))
        return false;
    training_scalars(c);
    c->scalars.loss_scale = 8;
    if (shards == 1)
        c->o.at.vocabulary.first = 0;
    c->fills[1].give = shards > 1 ? give_shard_targets : give_targets;
    give_stats(c, shards);
    op_case_scalars(c, 3);
    op_case_update(c, 0, DTYPE_FP32, (fill){.kind = FILL_NORMAL, .a = 10, .b = 1}, 1, 0, c->o.at.accumulate);
    op_case_infer(c, gradient ? 2 : 0);
    c->terms += (double)c->o.in[0]->shape[0];
    c->growth = 4; /* log sum exp and target are larger than their difference; softmax - onehot */
    return true;
}

/* ---- optimizer ----------------------------------------------------------------------------------------------- */

CASES(sum_squares)
{
    c->one_type = true;
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    if (rows == 1)
        rows = columns, columns = 0;
    op_case_in(c, 0, DTYPE_FP32, UNIT, rows, columns);
    if (c->o.at.accumulate)
        op_case_update(c, 0, DTYPE_INT64, (fill){.kind = FILL_INTEGERS, .b = 1000}, SUM_BINS, 0, true);
    else
        op_case_update(c, 0, DTYPE_INT64, (fill){.kind = FILL_NOTHING}, SUM_BINS, 0, false);
    op_case_infer(c, 0);
    return true;
}

CASES(clip)
{
    static const float clips[] = {1, 0, 1000}, scales[] = {1, 1024};
    c->one_type = true;
    training_scalars(c);
    c->scalars.clip = clips[op_case_option(&variant, 3)];
    c->scalars.loss_scale = scales[op_case_option(&variant, 2)];
    int not_finite = op_case_option(&variant, 2);
    if (variant > 0)
        return false;
    fill f = not_finite ? (fill){.kind = FILL_NORMAL, .a = INFINITY} : UNIT;
    op_case_in(c, 0, DTYPE_INT64, DERIVED, SUM_BINS, 0);
    op *squares = op_case_prelude(c, OP_sum_squares);
    squares->in[0] = op_case_tensor(c, "gradient", DTYPE_FP32, f, 9, 31);
    squares->out[0] = c->o.in[0];
    op_case_scalars(c, 1);
    op_case_infer(c, 1);
    return true;
}

static void give_control(const op_case *c, void *bytes, const tensor *t)
{
    float *control = bytes;
    (void)t;
    control[CONTROL_NORM] = 3;
    control[CONTROL_FACTOR] = 0.25f;
    control[CONTROL_SKIP] = c->skips ? 1 : 0;
}

/* gradient, scalars, control -> weight unless T is fp32, master, `states` of them; also skipped. Narrow: states, and in
 * bf16 the master too, are bf16, which loses up to a unit and not half of one (tests/kernels/test_rounding.c has the
 * exact bits). */
static bool update_case(op_case *c, int variant, int states)
{
    int64_t rows, columns;
    c->skips = op_case_option(&variant, 4) == 3;
    bool narrow = op_case_option(&variant, 2), narrow_master = narrow && c->type == DTYPE_BF16;
    c->stochastic = narrow;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    if (rows == 1)
        rows = columns, columns = 0;
    training_scalars(c);
    op_case_in(c, 0, DTYPE_FP32, UNIT, rows, columns);
    op_case_scalars(c, 1);
    op_case_in(c, 2, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_control}, CONTROL_COUNT, 0);
    c->o.at.update.first_element = 1000003;
    c->o.at.update.stride = variant % 2 ? columns : columns + 5;
    c->o.at.update.rounding_site = ROUNDING_SITE;
    if (c->type != DTYPE_FP32 && !narrow_master)
        op_case_update(c, 0, c->type, UNIT, rows, columns, true);
    for (int i = 0; i < 1 + states; i++) /* the second state is a mean of squares */
        op_case_update(c, 1 + i, narrow_master || (narrow && i > 0) ? DTYPE_BF16 : DTYPE_FP32,
                       i == 2 ? (fill){.kind = FILL_UNIFORM, .a = 0.01, .b = 1} : UNIT, rows, columns, true);
    op_case_infer(c, 0);
    return true;
}

CASES(adamw)
{
    c->o.at.update.decay = (uint8_t)op_case_option(&variant, 2);
    return update_case(c, variant, 2);
}

CASES(lion)
{
    c->o.at.update.decay = (uint8_t)op_case_option(&variant, 2);
    return update_case(c, variant, 1);
}

CASES(sgd)
{
    c->o.at.update.nesterov = (uint8_t)op_case_option(&variant, 2);
    return update_case(c, variant, 1);
}

CASES(muon)
{
    c->o.at.update.decay = (uint8_t)op_case_option(&variant, 2);
    c->o.at.update.scale = 1.75f;
    const bool factors = op_case_option(&variant, 2);
    if (!update_case(c, variant, 0))
        return false;
    const tensor *x = c->o.in[0];
    if (factors && x->dims == 2)
        op_case_in(c, 3, DTYPE_FP32, (fill){.kind = FILL_UNIFORM, .a = 0.25, .b = 1}, x->shape[0], 0);
    return true;
}

CASES(muon_momentum)
{
    int64_t rows, columns;
    c->one_type = true;
    c->o.at.update.nesterov = (uint8_t)op_case_option(&variant, 2);
    c->skips = op_case_option(&variant, 4) == 3;
    bool narrow = op_case_option(&variant, 2);
    c->stochastic = narrow;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    training_scalars(c);
    c->o.at.update.stride = columns;
    op_case_in(c, 0, DTYPE_FP32, UNIT, rows, columns);
    op_case_scalars(c, 1);
    op_case_in(c, 2, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_control}, CONTROL_COUNT, 0);
    op_case_update(c, 1, narrow ? DTYPE_BF16 : DTYPE_FP32, UNIT, rows, columns, true);
    op_case_infer(c, 1);
    return true;
}

/* Squares of one column, of primes and next to multiples of vectors, and one large enough for threads. */
static const int SQUARES[] = {1, 2, 17, 31, 64, 67, 200};

CASES(muon_scale)
{
    static const double sizes[] = {1, 1e-20};
    c->one_type = true;
    double size = sizes[op_case_option(&variant, 2)]; /* the norm, and epsilon, above the norm */
    if (variant >= COUNT(SQUARES))
        return false;
    c->o.at.update.epsilon = 1e-7f;
    c->terms = SQUARES[variant];
    op_case_in(c, 0, DTYPE_FP32, (fill){.kind = FILL_UNIFORM, .a = 0, .b = size}, SQUARES[variant], SQUARES[variant]);
    op_case_infer(c, 3);
    return true;
}

CASES(muon_polynomial)
{
    c->one_type = true;
    c->growth = 8; /* the terms are larger than their sum */
    int scaled = op_case_option(&variant, 2);
    if (variant >= COUNT(SQUARES))
        return false;
    for (int i = 0; i < 2; i++)
        op_case_in(c, i, DTYPE_FP32, UNIT, SQUARES[variant], SQUARES[variant]);
    if (scaled)
        op_case_in(c, 2, DTYPE_FP32, (fill){.kind = FILL_UNIFORM, .a = 1, .b = 100}, 1, 0);
    op_case_infer(c, 1);
    return true;
}

/* ---- compressed gradients ------------------------------------------------------------------------------------ */

/* A matrix of one and of several chunks, in parts that its rows do not divide into, and a vector. */
static bool compressed(op_case *c, int64_t *rows, int64_t *columns, int variant)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 64}, {7, 31}, {19, 130}, {17, 1056}, {300, 0}, {9000, 0}};
    c->one_type = true;
    c->o.where.owner = -1;
    c->o.at.compression.kind = (uint8_t)(COMPRESS_BF16 + op_case_option(&variant, COMPRESS_KINDS - COMPRESS_BF16));
    c->o.where.group_size = 1 + 2 * op_case_option(&variant, 2);
    c->o.at.compression.density = 0.05f;
    if (variant >= COUNT(sizes))
        return false;
    *rows = sizes[variant][0];
    *columns = sizes[variant][1];
    training_scalars(c);
    c->scalars.loss_scale = variant % 2 ? 64 : 1;
    return true;
}

/* Gradients of which some are much larger, and of a vector's first chunk one is not finite. */
static void give_gradient(const op_case *c, void *bytes, const tensor *t)
{
    float *x = bytes;
    test_random random = {77};
    for (int64_t i = 0; i < tensor_elements(t); i++)
        x[i] = (float)(test_normal(&random) * pow(10, 2 * test_normal(&random)) * (double)c->scalars.loss_scale);
    if (t->shape[0] == 9000)
        x[100] = NAN;
}

CASES(compress)
{
    int64_t rows, columns;
    if (!compressed(c, &rows, &columns, variant))
        return false;
    op_case_in(c, 0, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_gradient}, rows, columns);
    op_case_in(c, 1, DTYPE_FP32, WIDE, rows, columns);
    op_case_scalars(c, 2);
    op_case_infer(c, 3);
    return true;
}

/* What ranks wrote of numbers of their own. */
static void give_messages(const op_case *c, void *bytes, const tensor *t)
{
    const op *o = &c->o;
    const tensor *y = o->out[0];
    const compress_method m = {(compress_kind)o->at.compression.kind, (double)o->at.compression.density};
    int parts = compression_parts(o, y);
    test_random random = {78};
    for (int64_t i = 0; i < t->shape[0]; i++) {
        int64_t first, count, width = y->dims > 1 ? y->shape[1] : 1;
        shard_rows(&first, &count, y->shape[0], parts, (int)(i % parts));
        AUTO_FREE float *x = must_calloc((unsigned long)(count * width) + 1, sizeof *x);
        for (int64_t k = 0; k < count * width; k++)
            x[k] = (float)test_normal(&random);
        if (count > 0)
            compress_encode((uint8_t *)bytes + i * t->shape[1], x, &m, count * width);
    }
}

CASES(decompress)
{
    int64_t rows, columns;
    c->o.at.compression.messages = 1 + 2 * op_case_option(&variant, 2);
    if (!compressed(c, &rows, &columns, variant))
        return false;
    op_case_update(c, 0, DTYPE_FP32, UNIT, rows, columns, false);
    op_case_in(c, 0, DTYPE_UINT8, (fill){.kind = FILL_GIVEN, .give = give_messages},
               c->o.at.compression.messages * compression_parts(&c->o, c->o.out[0]),
               compression_part_bytes(&c->o, c->o.out[0]));
    op_case_scalars(c, 1);
    op_case_infer(c, 0);
    c->growth = 4; /* messages of both signs */
    return true;
}

CASES(store_feedback)
{
    c->one_type = c->exact = true;
    c->skips = op_case_option(&variant, 2);
    int64_t rows, columns;
    if (!op_case_sizes(&rows, &columns, variant))
        return false;
    op_case_in(c, 0, DTYPE_FP32, UNIT, rows, columns);
    op_case_in(c, 1, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_control}, CONTROL_COUNT, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, rows, columns, true);
    op_case_infer(c, 0);
    return true;
}

/* ---- communication ------------------------------------------------------------------------------------------- */

CASES(copy_to_shards)
{
    c->alias = c->exact = true;
    c->o.where.group_size = 1;
    return each(c, 1, UNIT, variant);
}

CASES(regroup)
{
    c->alias = c->exact = true;
    return each(c, 1, UNIT, variant);
}

/* These have no kernel. */
#define NO_CASES(name)                                                                                                 \
    CASES(name)                                                                                                        \
    {                                                                                                                  \
        (void)c;                                                                                                       \
        (void)variant;                                                                                                 \
        return false;                                                                                                  \
    }

NO_CASES(all_gather)
NO_CASES(reduce_scatter)
NO_CASES(all_to_all)
NO_CASES(all_reduce)
NO_CASES(send)
NO_CASES(receive)
NO_CASES(load_host)
NO_CASES(store_host)
NO_CASES(wait)
