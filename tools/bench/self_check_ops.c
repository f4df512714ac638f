/* Checks the ops of training steps of shipped configurations, made small: every candidate of the device's libraries and
 * the CPU play each op on the same operands. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/exact_sum.h"
#include "kernels/philox.h"
#include "kernels/record/product.h"
#include "kernels/table/precision.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/bench/bench_parts.h"
#include "tools/bench/self_check_parts.h"

enum { OPERANDS = 11, BOUNDARY = 256, NAME = 160, WORDS = 256 };

/* ---- cases ------------------------------------------------------------------------------------------------------- */

/* Widths of 1, 17, 63, 95 and 127, and as many tokens, leave 1, 15, 31 or 63 of a tile as rows, columns and depths of
 * products. Heads have each size that a kernel or a library is made for, and one size that none is made for. */
static const struct {
    const char *model, *more;
    int sequence, micro_batch;
} steps[] = {
    {"preset: gpt2-124m, hidden_size: 64, heads: 2, kv_heads: 2, ffn_size: 95", "memory: {recompute: full}", 80, 1},
    {"architecture: llama, hidden_size: 17, heads: 4, kv_heads: 2, head_size: 64, ffn_size: 127, sliding_window: 24",
     "", 72, 1},
    {"architecture: llama, hidden_size: 17, heads: 2, head_size: 64, ffn_size: 1", "data: {document_mask: true}", 144,
     1},
    {"architecture: llama, hidden_size: 17, heads: 2, kv_heads: 1, head_size: 80, ffn_size: 63", "", 72, 1},
    {"architecture: llama, hidden_size: 17, heads: 2, kv_heads: 1, head_size: 96, ffn_size: 17",
     "data: {document_mask: true}", 72, 1},
    {"preset: llama-8b, hidden_size: 17, heads: 4, kv_heads: 2, head_size: 128, ffn_size: 64", "", 40, 2},
    {"preset: llama-8b, hidden_size: 17, heads: 2, kv_heads: 1, head_size: 128, ffn_size: 95, sliding_window: 40",
     "data: {document_mask: true}", 136, 1},
    {"architecture: deepseek_v3, hidden_size: 17, heads: 2, head_size: 192, rope_head_size: 64, v_head_size: 128, "
     "kv_lora_rank: 40, q_lora_rank: 31, experts: 4, expert_ffn_size: 17",
     "", 72, 1},
    {"preset: gemma3-4b, hidden_size: 17, heads: 2, kv_heads: 1, ffn_size: 64, rope_scaling: {factor: 0}", "", 72, 1},
    {"preset: pythia-1b, hidden_size: 136, heads: 2, kv_heads: 2, head_size: 48, rotary_size: 12, ffn_size: 136", "",
     40, 1},
    {"architecture: glm4_moe, hidden_size: 63, heads: 2, kv_heads: 1, head_size: 64, experts: 4, expert_ffn_size: 64, "
     "ffn_size: 64",
     "", 17, 1},
    {"architecture: mixtral, hidden_size: 127, heads: 2, kv_heads: 1, head_size: 64, experts: 4, expert_ffn_size: 31",
     "", 17, 1},
};

/* Attention cases of a rank with zig-zag shards ("halves") of the samples: heads, key/value heads, head size, tokens of
 * a sample, samples, window, documents, ranks, and the rank's index. */
static const int zigzag[][9] = {
    {4, 2, 64, 32, 2, 0, 0, 2, 0}, {2, 1, 128, 72, 1, 0, 1, 3, 1}, {2, 1, 64, 48, 1, 20, 0, 2, 1}};

/* Tolerance of |got - right| / |right| of an output, and its GROWTH by the square root of a product's depth, where
 * rounding errors add up. Ops outside the libraries and tensor cores may use approximate instructions (APPROXIMATE). */
static const double TOLERANCE[] = {[DTYPE_FP32] = 2e-6, [DTYPE_BF16] = 8e-3, [DTYPE_FP16] = 2e-3};
static const double GROWTH[] = {[DTYPE_FP32] = 0.125, [DTYPE_FP16] = 0};
static const double APPROXIMATE = 1e-4;

/* An op that the CPU has played: both arenas are in host memory, laid out like the device's. */
typedef struct one {
    const op *o;
    const char *before, *right;
    int64_t bytes;
    char name[NAME];
} one;

typedef struct checker {
    const self_check_on *w;
    const bench_step *step; /* step being played */
    char *before;           /* copy of its arena before the current op */
    dtype type;             /* compute type of the step */
    int wanted;             /* number of keys that the device has asked about so far */
    char (*names)[NAME];    /* names of checked ops of this type */
    int count;
} checker;

/* Returns the byte offset of element i from the arena's start. */
static int64_t address_of(const tensor *t, int64_t i)
{
    int64_t columns = tensor_elements(t) / t->shape[0];
    return t->address + (i / columns * t->pitch + i % columns) * dtype_bytes((dtype)t->type);
}

/* Fills a tensor with uniform values in [-1, 1), rounded to its type. */
static void fill_random(char *arena, const tensor *t, int number)
{
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        uint32_t draw[4];
        philox_draws(draw, 3, 1, (uint32_t)number, 0, (uint64_t)i);
        float x = 2 * philox_uniform(draw[0]) - 1;
        dtype_convert(arena + address_of(t, i), (dtype)t->type, &x, DTYPE_FP32, 1);
    }
}

/* ---- playing ----------------------------------------------------------------------------------------------------- */

static void idle(void *context)
{
    (void)context;
}

/* Copies an operand from the host's arena to the device's, or back. */
static void copy_operand(const checker *k, const tensor *t, const char *from, char *to)
{
    if (!t || tensor_elements(t) == 0)
        return;
    char *memory = k->w->on->borrow(k->w->d, t->address, tensor_bytes(t));
    memcpy(from ? memory : to + t->address, from ? from + t->address : memory, (size_t)tensor_bytes(t));
    k->w->on->give_back(k->w->d, memory, t->address, tensor_bytes(t), from != NULL);
}

/* Plays `o` once, or captures and replays it; copies its outputs into the arena `out`. */
static void play(char *out, const checker *k, const one *c, const op *o, bool captured)
{
    const device_interface *on = k->w->on;
    for (int i = 0; i < OP_MAX_IN; i++)
        copy_operand(k, o->in[i], c->before, NULL);
    for (int i = 0; i < OP_MAX_OUT; i++)
        copy_operand(k, o->out[i], c->before, NULL);
    if (captured)
        on->capture(k->w->d, 0);
    on->launch(k->w->d, o);
    if (captured) {
        on->captured(k->w->d);
        on->replay(k->w->d, 0);
    }
    on->synchronise(k->w->d, idle, NULL);
    if (captured)
        on->forget(k->w->d);
    for (int i = 0; i < OP_MAX_OUT; i++)
        copy_operand(k, o->out[i], NULL, out);
}

static bool same_bits(const one *c, const char *a, const char *b)
{
    for (int k = 0; k < OP_MAX_OUT; k++)
        for (int64_t i = 0; c->o->out[k] && i < tensor_elements(c->o->out[k]); i++) {
            int64_t at = address_of(c->o->out[k], i);
            if (memcmp(a + at, b + at, (size_t)dtype_bytes((dtype)c->o->out[k]->type)) != 0)
                return false;
        }
    return true;
}

/* Returns |got - right| / |right| of an output; infinite if a value is not finite or an integer differs. */
static double error_of(const tensor *t, const char *got, const char *right)
{
    double square = 0, error = 0;
    dtype type = (dtype)t->type;
    if (type == DTYPE_INT64) { /* one exact sum has many representations */
        double x = exact_sum_value((const int64_t *)(const void *)(got + t->address)),
               y = exact_sum_value((const int64_t *)(const void *)(right + t->address));
        return x == y ? 0 : fabs(x - y) / fabs(y);
    }
    for (int64_t i = 0; i < tensor_elements(t); i++) {
        int64_t at = address_of(t, i);
        bool same = memcmp(got + at, right + at, (size_t)dtype_bytes(type)) == 0;
        if (!same && !dtype_is_float(type))
            return INFINITY;
        float x = 0, y = 0;
        if (dtype_is_float(type)) {
            dtype_convert(&x, DTYPE_FP32, got + at, type, 1);
            dtype_convert(&y, DTYPE_FP32, right + at, type, 1);
        }
        error += same ? 0 : ((double)x - (double)y) * ((double)x - (double)y);
        square += isfinite(y) ? (double)y * (double)y : 0;
    }
    error = sqrt(error / (square > 0 ? square : 1));
    return error <= 1e30 ? error : INFINITY;
}

static const tensor *first_output(const op *o)
{
    int i = 0;
    while (!o->out[i])
        i++;
    return o->out[i];
}

static double tolerance_of(const checker *k, const op *o, const tensor *out)
{
    if (op_is(o, OP_CLASS_PRODUCT))
        return TOLERANCE[out->type] * (1 + GROWTH[out->type] * sqrt((double)product_of(o).k));
    if (op_does(o, OP_MIXES))
        return TOLERANCE[k->type] * (op_has(o, OP_GRADIENT) ? 2 : 1);
    if (dtype_is_float((dtype)out->type))
        return fmax(TOLERANCE[out->type], APPROXIMATE);
    return out->type == DTYPE_INT64 ? TOLERANCE[DTYPE_FP32] : 0;
}

/* Returns the output error that is largest relative to its tolerance; *tolerance is that tolerance. */
static double worst_error(double *tolerance, const checker *k, const one *c, const char *got)
{
    double worst = 0;
    *tolerance = tolerance_of(k, c->o, first_output(c->o));
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (!c->o->out[i])
            continue;
        double error = error_of(c->o->out[i], got, c->right), within = tolerance_of(k, c->o, c->o->out[i]);
        if (error > 0 && !(error * *tolerance <= worst * within)) {
            worst = error;
            *tolerance = within;
        }
    }
    return worst;
}

/* Checks the op with the current choice, which `how` describes. */
static void compare_outputs(const checker *k, const one *c, const op *o, const char *how)
{
    AUTO_FREE char *first = must_alloc((unsigned long)c->bytes), *again = must_alloc((unsigned long)c->bytes);
    char words[WORDS];
    double tolerance, other;
    play(first, k, c, o, false);
    double error = worst_error(&tolerance, k, c, first);
    play(again, k, c, o, false);
    bool same = k->w->varies || same_bits(c, first, again), graph = true;
    if (k->w->on->capture) {
        play(again, k, c, o, true);
        graph = k->w->varies ? worst_error(&other, k, c, again) <= other : same_bits(c, first, again);
    }
    snprintf(words, sizeof words, "%s: error %.2g of %.2g%s%s", how, error, tolerance,
             same ? "" : "; a second run gives other bits", graph ? "" : "; a captured run gives other values");
    k->w->say(k->w->context, error <= tolerance && same && graph ? DEVICE_RIGHT : DEVICE_WRONG, c->name, words);
}

/* Checks each candidate for the keys that this op has added. */
static void judge_candidates(checker *k, const one *c, const op *o)
{
    const device_choices *of = &k->w->on->choices;
    const char *key;
    int before = k->wanted;
    for (; of->wanted && (key = of->wanted(k->w->d, k->wanted)); k->wanted++) {
        device_choice choice = {.microseconds = 0};
        snprintf(choice.key, sizeof choice.key, "%s", key);
        const char *epilogue = strstr(key, "epilogue: ");
        if (epilogue && op_is(o, OP_CLASS_PRODUCT) && product_of(o).gelu && !strstr(epilogue, "gelu"))
            k->w->say(k->w->context, DEVICE_REFUSED, c->name,
                      "the library has no product with this epilogue: ours follows the product");
        for (int i = 0; of->candidate(k->w->d, &choice, i); i++) {
            char how[WORDS];
            if (strlen(choice.value) < 100)
                snprintf(how, sizeof how, "%s", choice.value);
            else
                snprintf(how, sizeof how, "algorithm %d", i + 1);
            if (of->choose(k->w->d, &choice) == STATUS_OK)
                compare_outputs(k, c, o, how);
            else
                k->w->say(k->w->context, DEVICE_REFUSED, c->name, status_message());
        }
    }
    if (k->wanted == before)
        compare_outputs(k, c, o, o->prepared ? "by the library" : "our own");
}

static void name_attention(char out[NAME], const char *type, const op *o)
{
    const tensor *q = o->in[op_has(o, OP_GRADIENT)], *v = o->in[op_has(o, OP_GRADIENT) ? 3 : 2];
    int values = (int)(v->shape[1] / o->at.heads.kv);
    int64_t tokens = q->shape[0] * (o->at.attention.run ? o->at.attention.ranks : 1);
    char other[32] = "", ranks[48] = "";
    if (values != o->at.heads.size)
        snprintf(other, sizeof other, " and %d", values);
    if (o->at.attention.run)
        snprintf(ranks, sizeof ranks, ", halves of rank %d of %d", o->at.attention.rank, o->at.attention.ranks);
    snprintf(out, NAME, "%s %s, heads %d/%d of %d%s, %d x %d%s%s%s", op_row_of(o)->name, type, o->at.heads.q,
             o->at.heads.kv, o->at.heads.size, other, (int)(tokens / o->at.attention.sequence),
             o->at.attention.sequence, o->at.attention.window ? ", window" : "",
             o->in[op_has(o, OP_GRADIENT) ? 6 : 3] ? ", documents" : "", ranks);
}

static void name_of(char out[NAME], const checker *k, const op *o)
{
    const char *name = op_row_of(o)->name;
    if (op_does(o, OP_PAIRS)) {
        name_attention(out, dtype_name(k->type), o);
    } else if (op_is(o, OP_CLASS_PRODUCT)) {
        matrix_product p = product_of(o);
        snprintf(out, NAME, "%s %s, %lld x %lld x %lld%s%s", name, dtype_name((dtype)p.a->type), (long long)p.m,
                 (long long)p.n, (long long)p.k, p.bias ? ", bias" : "", p.gelu && o->out[1] ? ", z kept" : "");
    } else {
        char text[WORDS / 2];
        snprintf(out, NAME, "%s %s, %s", name, dtype_name(k->type), tensor_text(text, sizeof text, first_output(o)));
    }
    if (o->at.accumulate == OP_ADDS)
        strncat(out, ", adds", NAME - strlen(out) - 1);
}

/* Tells whether such an op has been checked in this type, and marks it as checked. Products of one depth count as the
 * same if their columns both are, or both are not, multiples of 8 elements. */
static bool is_known(checker *k, const op *o, const char *name)
{
    char product[NAME];
    if (op_is(o, OP_CLASS_PRODUCT)) {
        matrix_product p = product_of(o);
        snprintf(product, NAME, "%s of %lld%s%s%s%s", op_row_of(o)->name, (long long)p.k, p.n % 8 ? ", odd" : "",
                 p.bias ? ", bias" : "", o->out[1] ? ", z" : "", o->at.accumulate == OP_ADDS ? ", adds" : "");
        name = product;
    }
    for (int i = 0; i < k->count; i++)
        if (strcmp(k->names[i], name) == 0)
            return true;
    snprintf(APPEND(k->names, k->count), NAME, "%s", name);
    return false;
}

/* Checks one op; the device's scratch memory follows the arena. */
static void check_op(checker *k, const op *of, const char *before, const char *right, int64_t bytes)
{
    one c = {.o = of, .before = before, .right = right, .bytes = bytes};
    tensor scratch;
    op o = *of;
    name_of(c.name, k, of);
    if (is_known(k, of, c.name))
        return;
    o.label = c.name;
    o.prepared = NULL;
    o.scratch = NULL;
    o.where.bundle = o.where.bundle_of = 0;
    int64_t more = k->w->backend->scratch_bytes(&o, k->w->threads), from = (bytes + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
    if (more > 0) {
        tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &more);
        scratch.address = from;
        o.scratch = &scratch;
    }
    if (from + more > (int64_t)SELF_CHECK_ARENA)
        k->w->say(k->w->context, DEVICE_NOT_ASKED, c.name, "it does not fit into the arena of a self-check");
    else if (k->w->on->prepare(k->w->d, &o) != STATUS_OK)
        k->w->say(k->w->context, DEVICE_REFUSED, c.name, status_message());
    else
        judge_candidates(k, &c, &o);
}

/* Selects the ops to check: sums vary only in mixers' gradients by a library of 16-bit types. */
static bool is_asked(const checker *k, const op *o)
{
    if (k->w->varies)
        return op_does(o, OP_MIXES) && op_has(o, OP_GRADIENT) && dtype_bytes(k->type) == 2;
    return op_computes(o) && !op_is(o, OP_CLASS_VIEW);
}

/* ---- steps ------------------------------------------------------------------------------------------------------- */

/* Fills operands of products and mixers with random numbers, since a new model has few and small values there; a
 * mixer's gradient keeps the results of its forward pass. */
static void before_op(void *checker_, const compiled_program *p, int index)
{
    const checker *k = checker_;
    const op *o = p->list.ops[index];
    char *arena = executor_context(k->step->executor)->arena;
    int inputs = product_multiplies(o) ? OP_MAX_IN : !op_does(o, OP_MIXES) ? 0 : op_has(o, OP_GRADIENT) ? 1 : 3;
    for (int i = 0; i < inputs; i++)
        if (o->in[i] && dtype_is_float((dtype)o->in[i]->type))
            fill_random(arena, o->in[i], 10 * index + i);
    if (is_asked(k, o))
        memcpy(k->before, arena, (size_t)k->step->compiled.arena_bytes);
}

static void after_op(void *checker_, const compiled_program *p, int index)
{
    checker *k = checker_;
    const op *o = p->list.ops[index];
    if (is_asked(k, o))
        check_op(k, o, k->before, executor_context(k->step->executor)->arena, k->step->compiled.arena_bytes);
}

/* Fills the starts of documents of 1, 2, 3, ... tokens, which restart in each sample. */
static void fill_starts(int32_t *starts, int64_t tokens, int64_t sequence)
{
    int32_t begin = 0, length = 1;
    for (int64_t i = 0; i < tokens; i++) {
        int32_t within = (int32_t)(i % sequence);
        if (within == 0)
            begin = 0, length = 1;
        if (within >= begin + length)
            begin = within, length++;
        starts[i] = begin;
    }
}

static status check_step(checker *k, int number)
{
    AUTO_FREE char *text = must_format(
        "{model: {%s, layers: 1, vocab_size: 127, max_sequence: 144}, train: {sequence: %d, micro_batch: %d, "
        "global_batch: %d, precision: %s, loss_scale: 4096}, %s}\n",
        steps[number].model, steps[number].sequence, steps[number].micro_batch, 2 * steps[number].micro_batch,
        dtype_name(k->type), steps[number].more);
    RELEASED_BY(config_free) config c = {0};
    RELEASED_BY(bench_step_close) bench_step step = {0};
    TRY(config_parse(&c, "self-check", text, strlen(text), 0, NULL));
    TRY(bench_step_open(&step, &c, &device_cpu, k->w->threads, k->w->self, NULL));
    AUTO_FREE char *before = must_alloc((unsigned long)step.compiled.arena_bytes);
    const tensor *starts = step.compiled.values.document_start;
    fill_starts(executor_at(step.executor, starts), tensor_elements(starts), c.train.sequence);
    k->step = &step;
    k->before = before;
    executor_observe(step.executor, OBSERVES_OUTSIDE, (executor_observer){k, before_op, after_op, NULL});
    executor_play(step.executor, &step.compiled.training);
    return STATUS_OK;
}

/* ---- zig-zag shards ---------------------------------------------------------------------------------------------- */

static tensor *operand(tensor **next, int64_t *bytes, dtype type, int64_t rows, int64_t columns)
{
    tensor *t = (*next)++;
    const int64_t shape[] = {rows, columns};
    tensor_describe(t, "operand", CLASS_INPUT, type, columns ? 2 : 1, shape);
    t->address = *bytes;
    *bytes += (tensor_bytes(t) + BOUNDARY - 1) / BOUNDARY * BOUNDARY;
    return t;
}

/* Plays the op on the CPU, then on the device. */
static status check_apart(checker *k, op *o, char *arena, int64_t bytes)
{
    int64_t more = cpu_backend.scratch_bytes(o, k->w->threads);
    tensor scratch;
    tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &more);
    scratch.address = bytes;
    o->scratch = more > 0 ? &scratch : NULL;
    MUST(bytes + more <= (int64_t)SELF_CHECK_ARENA, "%lld bytes of scratch", (long long)more);
    TRY(cpu_backend.prepare(o, k->w->threads));
    AUTO_FREE char *before = must_alloc((unsigned long)bytes);
    memcpy(before, arena, (size_t)bytes);
    cpu_backend.kernels[o->kind](o, &(run_context){.arena = arena, .threads = k->w->threads});
    if (is_asked(k, o))
        check_op(k, o, before, arena, bytes);
    return STATUS_OK;
}

/* Checks attention of a rank that holds two runs of each sample's tokens, and all keys and values. */
static status check_zigzag(checker *k, const int *s)
{
    const int64_t tokens = (int64_t)s[3] * s[4], run = s[3] / (2 * s[7]), count = tokens / s[7], wide = s[0] * s[2],
                  narrow = s[1] * s[2], runs[] = {s[8], 2 * s[7] - 1 - s[8]};
    tensor at[OPERANDS], *next = at;
    int64_t bytes = 0;
    op o = {.kind = OP_attention}, back = {.kind = OP_attention_grad};
    const dtype t = k->type;
    tensor *q = operand(&next, &bytes, t, count, wide), *key = operand(&next, &bytes, t, tokens, narrow),
           *v = operand(&next, &bytes, t, tokens, narrow), *y = operand(&next, &bytes, t, count, wide),
           *lse = operand(&next, &bytes, DTYPE_FP32, count / run * s[0], run),
           *starts = operand(&next, &bytes, DTYPE_INT32, count, 0),
           *token_positions = operand(&next, &bytes, DTYPE_INT32, count, 0),
           *dy = operand(&next, &bytes, t, count, wide), *dq = operand(&next, &bytes, t, count, wide),
           *dk = operand(&next, &bytes, t, tokens, narrow), *dv = operand(&next, &bytes, t, tokens, narrow);
    AUTO_FREE char *arena = aligned_alloc(4096, SELF_CHECK_ARENA);
    MUST(arena, "out of memory");
    tensor *const random[] = {q, key, v, dy};
    for (int i = 0; i < 4; i++)
        fill_random(arena, random[i], i);
    AUTO_FREE int32_t *all = must_alloc((unsigned long)tokens * sizeof *all);
    fill_starts(all, tokens, s[3]);
    for (int64_t i = 0; i < count; i++) {
        int64_t unit = i / run, place = unit % s[4] * s[3] + runs[unit / s[4]] * run + i % run;
        ((int32_t *)tensor_at(token_positions, arena))[i] = (int32_t)place;
        ((int32_t *)tensor_at(starts, arena))[i] = all[place];
    }
    starts = s[6] ? starts : NULL;
    memcpy(o.in, (tensor *[]){q, key, v, starts, token_positions}, 5 * sizeof *o.in);
    memcpy(o.out, (tensor *[]){y, lse}, 2 * sizeof *o.out);
    memcpy(back.in, (tensor *[]){dy, q, key, v, y, lse, starts, token_positions}, 8 * sizeof *back.in);
    memcpy(back.out, (tensor *[]){dq, dk, dv}, 3 * sizeof *back.out);
    o.at = (op_attributes){.heads = {s[0], s[1], s[2]},
                           .attention = {s[3], s[5], (int32_t)run, s[7], s[8], .scale = 1 / sqrtf((float)s[2])}};
    back.at = o.at;
    TRY(check_apart(k, &o, arena, bytes));
    return check_apart(k, &back, arena, bytes);
}

static status check_all(checker *k)
{
    for (k->type = 0; k->type < DTYPE_COUNT; k->type++) {
        if (!precision_computes_in(k->type) || (k->w->varies && dtype_bytes(k->type) > 2))
            continue;
        k->count = 0;
        for (int i = 0; i < (int)(sizeof steps / sizeof *steps); i++)
            TRY(check_step(k, i));
        for (int i = 0; i < (int)(sizeof zigzag / sizeof *zigzag); i++)
            TRY(check_zigzag(k, zigzag[i]));
    }
    return STATUS_OK;
}

status self_check_ops(const self_check_on *w)
{
    checker k = {.w = w};
    status s = check_all(&k);
    free(k.names);
    return s;
}
