/* The ops that libraries compute, or kernels of PTX: every candidate against float64. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/philox.h"
#include "kernels/table/precision.h"
#include "memory/log.h"
#include "tools/bench/self_check_ops.h"
#include "tools/bench/self_check_math.h"

enum { OPERANDS = 11, BOUNDARY = 256, NAME = 160, WORDS = 256 };

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Depths that leave 1, 15, 31 or 63 of a tile; and one that divides. In 16 bits a row of 8 elements is what libraries
 * align to. */
static const int64_t DEPTHS[] = {64, 1, 17, 63, 95, 127, 136};
enum { DEPTH_COUNT = sizeof DEPTHS / sizeof *DEPTHS, TOKENS = 48, WIDE = 80 };

/* heads, key/value heads, head size, tokens of a sample, samples, window, documents, head size of values, and of how
 * many ranks that divide samples by halves which one (1: nobody divides them) */
static const int HEADS[][10] = {
    {2, 2, 64, 80, 2, 0, 0, 64, 1, 0},     {4, 2, 64, 72, 1, 24, 0, 64, 1, 0},  {2, 2, 64, 144, 2, 0, 1, 64, 1, 0},
    {2, 1, 80, 72, 1, 0, 0, 80, 1, 0},     {2, 1, 96, 72, 1, 0, 1, 96, 1, 0},   {4, 2, 128, 80, 2, 0, 0, 128, 1, 0},
    {2, 1, 128, 136, 1, 40, 1, 128, 1, 0}, {2, 1, 192, 72, 1, 0, 0, 128, 1, 0}, {2, 1, 256, 72, 1, 0, 0, 256, 1, 0},
    {2, 2, 48, 40, 1, 0, 0, 48, 1, 0},     {4, 2, 64, 32, 2, 0, 0, 64, 2, 0},   {2, 1, 128, 72, 1, 0, 1, 128, 3, 1},
    {2, 1, 64, 48, 1, 20, 0, 64, 2, 1}};
enum { HEAD_COUNT = sizeof HEADS / sizeof *HEADS };

/* Of a result, relative to its largest; and by how much more for each root of a product's depth, where roundings of
 * sums show. */
static const double TOLERANCE[] = {[DTYPE_FP32] = 2e-6, [DTYPE_BF16] = 1.2e-2, [DTYPE_FP16] = 2e-3};
static const double GROWTH[] = {[DTYPE_FP32] = 0.125, [DTYPE_FP16] = 0};

/* One case: an op whose operands have values in float64, as rounded to their types, and what is to come out. */
typedef struct one {
    op o;
    tensor at[OPERANDS];
    double *value[OPERANDS]; /* of inputs; of outputs what is right */
    bool out[OPERANDS];
    int count;
    int64_t bytes; /* of the arena, taken so far */
    double tolerance;
    char name[NAME];
} one;

typedef struct checker {
    const self_check_on *w;
    int wanted; /* keys that the device has asked about before */
} checker;

static int64_t upwards(int64_t bytes)
{
    return (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
}

static double *operand(one *c, tensor **into, bool out, dtype type, int64_t rows, int64_t columns)
{
    MUST(c->count < OPERANDS, "%d operands", c->count);
    tensor *t = &c->at[c->count];
    const int64_t shape[] = {rows, columns};
    tensor_describe(t, "operand", CLASS_INPUT, type, columns ? 2 : 1, shape);
    t->address = c->bytes;
    c->bytes += upwards(tensor_bytes(t));
    c->out[c->count] = out;
    *into = t;
    return c->value[c->count++] = must_calloc((unsigned long)tensor_elements(t), sizeof(double));
}

/* Uniform in [-1, 1), rounded to the type. */
static double *random_operand(one *c, tensor **into, dtype type, int64_t rows, int64_t columns)
{
    double *values = operand(c, into, false, type, rows, columns);
    for (int64_t i = 0; i < tensor_elements(*into); i++) {
        uint32_t draw[4];
        char narrow[4];
        philox_draws(draw, 3, 1, (uint32_t)c->count, 0, (uint64_t)i);
        float x = 2 * philox_uniform(draw[0]) - 1;
        dtype_convert(narrow, type, &x, DTYPE_FP32, 1);
        dtype_convert(&x, DTYPE_FP32, narrow, type, 1);
        values[i] = (double)x;
    }
    return values;
}

static void forget(one *c)
{
    for (int i = 0; i < c->count; i++)
        free(c->value[i]);
}

/* ---- playing ----------------------------------------------------------------------------------------------------- */

static void idle(void *context)
{
    (void)context;
}

/* Inputs as they are, all else no number. */
static void give_inputs(const checker *k, const one *c)
{
    char *memory = k->w->on->borrow(k->w->d, 0, c->bytes);
    memset(memory, 0xFF, (size_t)c->bytes);
    for (int i = 0; i < c->count; i++)
        for (int64_t e = 0; !c->out[i] && e < tensor_elements(&c->at[i]); e++) {
            float x = (float)c->value[i][e];
            int bytes = dtype_bytes((dtype)c->at[i].type);
            dtype_convert(memory + c->at[i].address + e * bytes, (dtype)c->at[i].type, &x, DTYPE_FP32, 1);
        }
    k->w->on->give_back(k->w->d, memory, 0, c->bytes, true);
}

/* Plays it once, or captured and replayed; *out, of c->bytes, is then the arena. */
static void play(char *out, const checker *k, const one *c, bool captured)
{
    give_inputs(k, c);
    if (captured)
        k->w->on->capture(k->w->d, 0);
    k->w->on->launch(k->w->d, &c->o);
    if (captured) {
        k->w->on->captured(k->w->d);
        k->w->on->replay(k->w->d, 0);
    }
    k->w->on->synchronise(k->w->d, idle, NULL);
    if (captured)
        k->w->on->forget(k->w->d);
    char *memory = k->w->on->borrow(k->w->d, 0, c->bytes);
    memcpy(out, memory, (size_t)c->bytes);
    k->w->on->give_back(k->w->d, memory, 0, c->bytes, false);
}

/* |got - right| / |right|, the worst of the outputs; infinite where something is no number. */
static double error_of(const one *c, const char *memory)
{
    double worst = 0;
    for (int i = 0; i < c->count; i++) {
        double square = 0, error = 0;
        const tensor *t = &c->at[i];
        for (int64_t e = 0; c->out[i] && e < tensor_elements(t); e++) {
            float x;
            dtype_convert(&x, DTYPE_FP32, memory + t->address + e * dtype_bytes((dtype)t->type), (dtype)t->type, 1);
            error += ((double)x - c->value[i][e]) * ((double)x - c->value[i][e]);
            square += c->value[i][e] * c->value[i][e];
        }
        error = sqrt(error / (square > 0 ? square : 1));
        worst = error <= 1e30 ? fmax(worst, error) : INFINITY;
    }
    return worst;
}

static bool same_bits(const one *c, const char *a, const char *b)
{
    for (int i = 0; i < c->count; i++)
        if (c->out[i] && memcmp(a + c->at[i].address, b + c->at[i].address, (size_t)tensor_bytes(&c->at[i])) != 0)
            return false;
    return true;
}

/* With what is chosen now; `how` says what that is. */
static void judge(const checker *k, const one *c, const char *how)
{
    char *first = must_alloc((unsigned long)c->bytes), *again = must_alloc((unsigned long)c->bytes), words[WORDS];
    play(first, k, c, false);
    double error = error_of(c, first);
    bool right = error <= c->tolerance, same = true, graph = true;
    play(again, k, c, false);
    same = k->w->varies || same_bits(c, first, again);
    if (k->w->on->capture) {
        play(again, k, c, true);
        graph = k->w->varies ? error_of(c, again) <= c->tolerance : same_bits(c, first, again);
    }
    snprintf(words, sizeof words, "%s: error %.2g of %.2g%s%s", how, error, c->tolerance,
             same ? "" : "; a second run gives other bits", graph ? "" : "; a captured run gives other values");
    k->w->say(k->w->context, right && same && graph ? DEVICE_RIGHT : DEVICE_WRONG, c->name, words);
    free(first);
    free(again);
}

/* Each candidate for the keys that this op has added. */
static void judge_candidates(checker *k, const one *c)
{
    const char *key;
    int before = k->wanted;
    for (; k->w->on->choices.wanted && (key = k->w->on->choices.wanted(k->w->d, k->wanted)); k->wanted++) {
        device_choice choice = {.microseconds = 0};
        snprintf(choice.key, sizeof choice.key, "%s", key);
        const char *epilogue = strstr(key, "epilogue: ");
        if (epilogue && strncmp(op_rows[c->o.kind].name + 6, "_g", 2) == 0 && strstr(op_rows[c->o.kind].name, "gelu") &&
            !strstr(epilogue, "gelu"))
            k->w->say(k->w->context, DEVICE_REFUSED, c->name,
                      "the library has no product with this epilogue: ours follows the product");
        for (int i = 0; k->w->on->choices.candidate(k->w->d, &choice, i); i++) {
            char how[WORDS];
            bool readable = strlen(choice.value) < 100;
            snprintf(how, sizeof how, "%s%.120s", readable ? "" : "algorithm ", readable ? choice.value : "");
            if (!readable)
                snprintf(how, sizeof how, "algorithm %d", i + 1);
            if (k->w->on->choices.choose(k->w->d, &choice) == STATUS_OK)
                judge(k, c, how);
            else
                k->w->say(k->w->context, DEVICE_REFUSED, c->name, status_message());
        }
    }
    if (k->wanted == before)
        judge(k, c, c->o.prepared ? "by the library" : "our own");
}

static void run(checker *k, one *c)
{
    tensor scratch;
    c->o.label = c->name;
    int64_t bytes = k->w->backend->scratch_bytes(&c->o, k->w->threads);
    if (bytes > 0) {
        tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &bytes);
        scratch.address = c->bytes;
        c->bytes += upwards(bytes);
        c->o.scratch = &scratch;
    }
    if (c->bytes > (int64_t)SELF_CHECK_ARENA)
        k->w->say(k->w->context, DEVICE_NOT_ASKED, c->name, "it does not fit into the arena of a self-check");
    else if (k->w->on->prepare(k->w->d, &c->o) != STATUS_OK)
        k->w->say(k->w->context, DEVICE_REFUSED, c->name, status_message());
    else
        judge_candidates(k, c);
    forget(c);
}

/* ---- products ---------------------------------------------------------------------------------------------------- */

static double tolerance_of(dtype type, int64_t depth)
{
    return TOLERANCE[type] * (1 + GROWTH[type] * sqrt((double)depth));
}

static void wide_product(checker *k, dtype type, int64_t depth)
{
    one c = {.o = {.kind = OP_linear_wide}, .tolerance = tolerance_of(DTYPE_FP32, depth)};
    double *x = random_operand(&c, &c.o.in[0], type, TOKENS, depth),
           *w = random_operand(&c, &c.o.in[1], type, WIDE, depth);
    double *y = operand(&c, &c.o.out[0], true, DTYPE_FP32, TOKENS, WIDE);
    math_multiply(y, x, w, &(math_product){TOKENS, WIDE, depth, false, true, false});
    snprintf(c.name, sizeof c.name, "%s %s, %d x %d x %lld", op_rows[c.o.kind].name, dtype_name(type), TOKENS, WIDE,
             (long long)depth);
    run(k, &c);
}

static void forward_product(checker *k, dtype type, int64_t depth, bool bias, bool gelu, bool kept)
{
    one c = {.o = {.kind = gelu ? OP_linear_gelu : OP_linear}, .tolerance = tolerance_of(type, depth)};
    double *x = random_operand(&c, &c.o.in[0], type, TOKENS, depth),
           *w = random_operand(&c, &c.o.in[1], type, WIDE, depth);
    double *b = bias ? random_operand(&c, &c.o.in[2], type, WIDE, 0) : NULL;
    double *y = operand(&c, &c.o.out[0], true, type, TOKENS, WIDE);
    double *z = kept ? operand(&c, &c.o.out[1], true, type, TOKENS, WIDE) : NULL;
    math_multiply(y, x, w, &(math_product){TOKENS, WIDE, depth, false, true, false});
    for (int64_t i = 0; i < TOKENS * WIDE; i++) {
        y[i] += b ? b[i % WIDE] : 0;
        if (z)
            z[i] = y[i];
        y[i] = gelu ? math_gelu(y[i]) : y[i];
    }
    snprintf(c.name, sizeof c.name, "%s %s, %d x %d x %lld%s%s", op_rows[c.o.kind].name, dtype_name(type), TOKENS, WIDE,
             (long long)depth, bias ? ", bias" : "", kept ? ", z kept" : "");
    run(k, &c);
}

static void input_gradient(checker *k, dtype type, int64_t depth, bool gelu)
{
    one c = {.o = {.kind = gelu ? OP_linear_grad_gelu : OP_linear_grad_input}, .tolerance = tolerance_of(type, depth)};
    double *dy = random_operand(&c, &c.o.in[0], type, TOKENS, depth),
           *w = random_operand(&c, &c.o.in[1], type, depth, WIDE);
    double *z = gelu ? random_operand(&c, &c.o.in[2], type, TOKENS, WIDE) : NULL;
    double *dx = operand(&c, &c.o.out[0], true, type, TOKENS, WIDE);
    math_multiply(dx, dy, w, &(math_product){TOKENS, WIDE, depth, false, false, false});
    for (int64_t i = 0; gelu && i < TOKENS * WIDE; i++)
        dx[i] *= math_gelu_slope(z[i]);
    snprintf(c.name, sizeof c.name, "%s %s, %d x %d x %lld", op_rows[c.o.kind].name, dtype_name(type), TOKENS, WIDE,
             (long long)depth);
    run(k, &c);
}

static void weight_gradient(checker *k, dtype type, int64_t depth)
{
    one c = {.o = {.kind = OP_linear_grad_weight}, .tolerance = tolerance_of(DTYPE_FP32, depth)};
    double *dy = random_operand(&c, &c.o.in[0], type, depth, WIDE),
           *x = random_operand(&c, &c.o.in[1], type, depth, TOKENS);
    double *dw = operand(&c, &c.o.out[0], true, DTYPE_FP32, WIDE, TOKENS);
    math_multiply(dw, dy, x, &(math_product){WIDE, TOKENS, depth, true, false, false});
    snprintf(c.name, sizeof c.name, "%s %s, %d x %d x %lld", op_rows[c.o.kind].name, dtype_name(type), WIDE, TOKENS,
             (long long)depth);
    run(k, &c);
}

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Documents of 1, 2, 3, ... tokens, begun anew in each sample. */
static void fill_starts(double *starts, int64_t tokens, int64_t sequence)
{
    int64_t begin = 0, length = 1;
    for (int64_t i = 0; i < tokens; i++) {
        int64_t within = i % sequence;
        if (within == 0)
            begin = 0, length = 1;
        if (within >= begin + length)
            begin = within, length++;
        starts[i] = (double)begin;
    }
}

/* Which tokens the op's queries are: all, or a rank's halves, its two runs of every sample. */
typedef struct queries {
    int64_t count, run, samples, sequence;
    int32_t run_of[2];
} queries;

static queries queries_of(const int *s)
{
    int64_t tokens = (int64_t)s[3] * s[4];
    if (s[8] == 1)
        return (queries){.count = tokens, .sequence = s[3]};
    return (queries){tokens / s[8], s[3] / (2 * s[8]), s[4], s[3], {s[9], 2 * s[8] - 1 - s[9]}};
}

static int64_t place_of(const queries *of, int64_t i)
{
    if (of->run == 0)
        return i;
    int64_t unit = i / of->run;
    return unit % of->samples * of->sequence + of->run_of[unit / of->samples] * of->run + i % of->run;
}

/* The queries' rows among those of all tokens, [tokens, columns], and back. */
static void take_rows(double *to, const double *all, const queries *of, int64_t columns)
{
    for (int64_t i = 0; i < of->count * columns; i++)
        to[i] = all[place_of(of, i / columns) * columns + i % columns];
}

static void give_rows(double *all, const double *from, const queries *of, int64_t columns)
{
    for (int64_t i = 0; i < of->count * columns; i++)
        all[place_of(of, i / columns) * columns + i % columns] = from[i];
}

/* Values of all tokens; those that are not the op's own are 0. */
typedef struct whole {
    double *q, *y, *lse, *dy, *dq, *starts;
} whole;

static double *zeros(int64_t count)
{
    return must_calloc((unsigned long)count, sizeof(double));
}

/* The op's, head after head of each run of its queries, from [heads, tokens]. */
static void take_lse(double *own, const double *all, const queries *of, const math_attention *a)
{
    int64_t tokens = a->samples * a->sequence, run = of->run ? of->run : a->sequence;
    for (int64_t i = 0; i < a->heads * of->count; i++) {
        int64_t head = i / run % a->heads, query = i / run / a->heads * run + i % run;
        own[i] = all[head * tokens + place_of(of, query)];
    }
}

/* What is right for the op's queries, from attention of all tokens; `own`: the op's operands. Cotangents of the queries
 * of other ranks are 0, so that the gradients of keys and values are this rank's share. */
static void attend(const whole *own, double *const gradients[3], math_attention *a, const queries *of)
{
    int64_t tokens = a->samples * a->sequence, wide = a->heads * a->size, width = a->heads * a->v_size;
    whole all = {zeros(tokens * wide),  zeros(tokens * width), zeros(tokens * a->heads),
                 zeros(tokens * width), zeros(tokens * wide),  zeros(tokens)};
    give_rows(all.q, own->q, of, wide);
    fill_starts(all.starts, tokens, a->sequence);
    a->q = all.q;
    a->starts = own->starts ? all.starts : NULL;
    math_attend(all.y, all.lse, a);
    take_rows(own->y, all.y, of, width);
    take_lse(own->lse, all.lse, of, a);
    if (own->starts)
        take_rows(own->starts, all.starts, of, 1);
    if (own->dy) {
        give_rows(all.dy, own->dy, of, width);
        math_attend_back((double *const[]){all.dq, gradients[1], gradients[2]}, all.dy, all.y, all.lse, a);
        take_rows(gradients[0], all.dq, of, wide);
    }
    double *const taken[] = {all.q, all.y, all.lse, all.dy, all.dq, all.starts};
    for (int i = 0; i < 6; i++)
        free(taken[i]);
}

static void name_attention(one *c, dtype type, const int *s)
{
    char values[32] = "", ranks[48] = "";
    if (s[7] != s[2])
        snprintf(values, sizeof values, " and %d", s[7]);
    if (s[8] > 1)
        snprintf(ranks, sizeof ranks, ", halves of rank %d of %d", s[9], s[8]);
    snprintf(c->name, sizeof c->name, "%s %s, heads %d/%d of %d%s, %d x %d%s%s%s", op_rows[c->o.kind].name,
             dtype_name(type), s[0], s[1], s[2], values, s[4], s[3], s[5] ? ", window" : "", s[6] ? ", documents" : "",
             ranks);
}

static void attention(checker *k, dtype type, const int *s, bool backward)
{
    one c = {.o = {.kind = backward ? OP_attention_grad : OP_attention},
             .tolerance = TOLERANCE[type] * (backward ? 2 : 1)};
    math_attention a = {.samples = s[4],
                        .sequence = s[3],
                        .heads = s[0],
                        .kv_heads = s[1],
                        .size = s[2],
                        .v_size = s[7],
                        .window = s[5]};
    queries of = queries_of(s);
    whole own = {0};
    const int64_t tokens = a.samples * a.sequence, width = a.heads * a.v_size, rows[] = {of.count, tokens, tokens};
    const int64_t columns[] = {a.heads * a.size, a.kv_heads * a.size, a.kv_heads * a.v_size};
    c.o.at.heads = s[0], c.o.at.kv_heads = s[1], c.o.at.head_size = s[2], c.o.at.sequence = s[3], c.o.at.window = s[5];
    c.o.at.scale = 1 / sqrtf((float)s[2]);
    c.o.at.run = (int32_t)of.run;
    if (of.run)
        c.o.at.group_size = s[8], c.o.at.group_rank = s[9];
    own.dy = backward ? random_operand(&c, &c.o.in[0], type, of.count, width) : NULL;
    double *in[3], *gradients[3];
    for (int i = 0; i < 3; i++)
        in[i] = random_operand(&c, &c.o.in[i + backward], type, rows[i], columns[i]);
    own.q = in[0], a.k = in[1], a.v = in[2];
    own.y = operand(&c, backward ? &c.o.in[4] : &c.o.out[0], !backward, type, of.count, width);
    own.lse = operand(&c, backward ? &c.o.in[5] : &c.o.out[1], !backward, DTYPE_FP32,
                      of.count / (of.run ? of.run : a.sequence) * a.heads, of.run ? of.run : a.sequence);
    own.starts = s[6] ? operand(&c, &c.o.in[backward ? 6 : 3], false, DTYPE_INT32, of.count, 0) : NULL;
    double *places = of.run ? operand(&c, &c.o.in[backward ? 7 : 4], false, DTYPE_INT32, of.count, 0) : NULL;
    for (int64_t i = 0; i < of.count && places; i++)
        places[i] = (double)place_of(&of, i);
    for (int i = 0; i < 3 && backward; i++)
        gradients[i] = operand(&c, &c.o.out[i], true, type, rows[i], columns[i]);
    attend(&own, gradients, &a, &of);
    name_attention(&c, type, s);
    run(k, &c);
}

void self_check_ops(const self_check_on *w)
{
    checker k = {.w = w};
    bool varies = w->varies;
    for (dtype type = 0; type < DTYPE_COUNT; type++) {
        if (!precision_computes_in(type) ||
            (varies && dtype_bytes(type) > 2)) /* sums vary in a library that takes 16 bits */
            continue;
        for (int i = 0; i < DEPTH_COUNT && !varies; i++) {
            forward_product(&k, type, DEPTHS[i], i % 2 != 0, false, false);
            input_gradient(&k, type, DEPTHS[i], false);
            weight_gradient(&k, type, DEPTHS[i]);
            wide_product(&k, type, DEPTHS[i]);
        }
        for (int i = 0; i < 4 && !varies; i++)
            forward_product(&k, type, 64, i % 2 != 0, true, i / 2 != 0);
        if (!varies)
            input_gradient(&k, type, 64, true);
        for (int i = 0; i < HEAD_COUNT; i++) {
            if (!varies)
                attention(&k, type, HEADS[i], false);
            attention(&k, type, HEADS[i], true);
        }
    }
}
