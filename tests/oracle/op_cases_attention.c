/* The generators of what is done to heads: norms, rope and attention; see op_cases.h. */
#include <math.h>

#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, WEIGHT_LIKE = {.kind = FILL_NORMAL, .a = 1, .b = 0.3},
                  DERIVED = {.kind = FILL_DERIVED}, NOTHING = {.kind = FILL_NOTHING};

/* heads, kv_heads, head_size, tokens of a sample, samples, window, documents, v_head_size (0: head_size), deal, whether
 * scores are capped, sinks. From row HEADS_ROWS on shapes come again with what attention alone knows, but for that of
 * row WIDEST. */
enum { HEADS_ROWS = 14, WIDEST = 26 };
static const int ATTENTION[][11] = {
    {1, 1, 8, 1, 1, 0, 0, 0, 0},           {2, 2, 16, 5, 2, 0, 0, 0, 0},         {4, 2, 32, 17, 2, 0, 0, 0, 0},
    {6, 2, 64, 33, 1, 7, 0, 0, 0},         {3, 1, 128, 20, 2, 0, 1, 0, 0},       {4, 4, 64, 70, 1, 0, 1, 0, 0},
    {4, 1, 96, 40, 2, 9, 1, 0, 0},         {2, 1, 80, 130, 1, 0, 0, 0, 0},       {2, 2, 64, 129, 2, 64, 1, 0, 0},
    {4, 2, 16, 36, 3, 8, 0, 0, 0},         {5, 5, 8, 20, 1, 0, 0, 0, 0},         {2, 1, 192, 70, 1, 0, 1, 128, 0},
    {4, 2, 24, 33, 2, 9, 0, 40, 0},        {3, 3, 10, 21, 1, 0, 0, 6, 0},        {2, 1, 64, 260, 1, 0, 1, 0, 1},
    {4, 2, 32, 36, 2, 0, 0, 0, 2},         {2, 2, 16, 132, 3, 20, 1, 0, 3},      {2, 1, 192, 72, 2, 0, 0, 128, 1},
    {2, 2, 128, 256, 2, 70, 0, 0, 2},      {4, 2, 64, 64, 2, 0, 0, 0, 1},        {2, 1, 32, 48, 3, 0, 1, 0, 2},
    {4, 4, 16, 80, 1, 0, 1, 24, 1},        {4, 2, 32, 37, 2, 9, 0, 0, 0, 1},     {2, 1, 64, 130, 1, 0, 1, 0, 0, 1},
    {3, 1, 10, 68, 2, 0, 0, 6, 2, 1},      {2, 2, 128, 40, 1, 0, 0, 0, 0, 1},    {2, 1, 256, 70, 1, 33, 0, 0, 0, 1},
    {6, 2, 64, 70, 1, 20, 0, 0, 0, 0, 1},  {3, 1, 24, 33, 2, 9, 0, 40, 0, 0, 2}, {2, 1, 64, 130, 1, 0, 1, 0, 0, 0, 2},
    {4, 2, 64, 64, 2, 20, 0, 0, 2, 0, 1},  {4, 2, 32, 37, 1, 9, 0, 0, 0, 1, 2},  {1, 1, 8, 1, 1, 0, 0, 0, 0, 0, 1},
    {2, 2, 192, 40, 1, 0, 0, 128, 1, 0, 2}};

/* Sinks of about the scores' size, and some far below beside some far above. */
enum { NO_SINKS, SINKS_LIKE_SCORES, SINKS_FAR };

/* Scores of operands between -1 and 1 are a third, more or less. */
#define CAP 0.4f

enum { GAP = 8 }; /* columns before and after what is used of a row */

/* Which of the RUNS runs of each sample's keys the queries are: what two ranks have of it by halves, run by run over
 * all samples; and a deal in which samples have different numbers of runs, that are numbered over all samples. */
enum { RUNS = 4, WHOLE = 0, FIRST_AND_LAST, BETWEEN, UNEVEN };

/* The place of the first query of a rank's run number `i`, in runs. */
static int64_t run_sharded(const op_case *c, int64_t i, int64_t samples)
{
    static const int uneven[] = {0, 1, 3, RUNS + 2};
    if (c->deal == UNEVEN)
        return uneven[i];
    int64_t of_sample = c->deal == FIRST_AND_LAST ? i / samples * (RUNS - 1) : 1 + i / samples;
    return i % samples * RUNS + of_sample;
}

static int64_t runs_sharded(const op_case *c, int64_t samples)
{
    return c->deal == UNEVEN ? 4 : 2 * samples;
}

typedef struct heads {
    int64_t tokens, q, k, v, y; /* columns of each */
    int64_t queries;            /* rows of q, where k and v have `tokens` */
    bool documents, fused;
    int sinks;
} heads;

/* Every shape twice: each operand a matrix of its own, and those of one kind columns of one row. */
static bool attention_shape(heads *a, op_case *c, int variant)
{
    bool fused = op_case_option(&variant, 2);
    if (variant >= COUNT(ATTENTION))
        return false;
    const int *s = ATTENTION[variant];
    int size = s[7] ? s[7] : s[2];
    c->o.at.heads.q = s[0];
    c->o.at.heads.kv = s[1];
    c->o.at.heads.size = s[2];
    c->o.at.attention.sequence = s[3];
    c->o.at.attention.window = s[5];
    c->o.at.attention.scale = 1 / sqrtf((float)s[2]);
    c->o.at.attention.cap = s[9] ? CAP : 0;
    c->deal = s[8];
    *a = (heads){.tokens = (int64_t)s[3] * s[4],
                 .q = (int64_t)s[0] * s[2],
                 .k = (int64_t)s[1] * s[2],
                 .v = (int64_t)s[1] * size,
                 .y = (int64_t)s[0] * size,
                 .documents = s[6],
                 .fused = fused,
                 .sinks = s[10]};
    a->queries = c->deal ? runs_sharded(c, s[4]) * (s[3] / RUNS) : a->tokens;
    return true;
}

/* The same for ops that ask for shapes alone, and have attributes of their own. */
static bool heads_shape(heads *a, op_case *c, int variant)
{
    op_attributes own = c->o.at;
    int row = variant / 2;
    if (row > HEADS_ROWS || !attention_shape(a, c, 2 * (row < HEADS_ROWS ? row : WIDEST) + variant % 2))
        return false;
    own.heads = c->o.at.heads;
    c->o.at = own;
    return true;
}

/* The row that operands are columns of; NULL: they are matrices of their own. */
static tensor *row_of_heads(op_case *c, const heads *a, fill f, int64_t rows)
{
    return a->fused ? op_case_tensor(c, "fused row", c->type, f, rows, 2 * GAP + a->q + a->k + a->v) : NULL;
}

static void into_columns(tensor *t, tensor *row, int64_t first)
{
    if (!row)
        return;
    t->base = row;
    t->offset = (GAP + first) * dtype_bytes((dtype)t->type);
    t->pitch = row->pitch;
}

/* q, k and perhaps v as inputs from `slot` on. */
static void attention_inputs(op_case *c, int slot, const heads *a, int64_t rows, bool with_v)
{
    tensor *row = row_of_heads(c, a, UNIT, rows);
    into_columns(op_case_in(c, slot, c->type, UNIT, rows, a->q), row, 0);
    into_columns(op_case_in(c, slot + 1, c->type, UNIT, rows, a->k), row, a->q);
    if (with_v)
        into_columns(op_case_in(c, slot + 2, c->type, UNIT, rows, a->v), row, a->q + a->k);
}

/* The outputs of mask `outputs`, of which the first two or three are like q, k and v. */
static void attention_outputs(op_case *c, unsigned outputs, const heads *a, int like)
{
    tensor *row = row_of_heads(c, a, NOTHING, a->tokens);
    const int64_t first[] = {0, a->q, a->q + a->k};
    op_case_infer(c, outputs);
    for (int i = 0; i < like; i++)
        if (c->o.out[i]->shape[0] == a->tokens)
            into_columns(c->o.out[i], row, first[i]);
}

CASES(head_norm)
{
    c->o.at.norm = (op_norm){.epsilon = 1e-6f, .offset = (float)op_case_option(&variant, 2)};
    heads a;
    if (!heads_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    op_case_in(c, 2, c->type, WEIGHT_LIKE, c->o.at.heads.size, 0);
    op_case_in(c, 3, c->type, WEIGHT_LIKE, c->o.at.heads.size, 0);
    attention_outputs(c, 7, &a, 2);
    c->terms = c->o.at.heads.size;
    return true;
}

CASES(head_norm_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    c->o.at.norm = (op_norm){.epsilon = 1e-6f, .offset = (float)op_case_option(&variant, 2)};
    heads a;
    if (!heads_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    attention_inputs(c, 2, &a, a.tokens, false);
    op_case_in(c, 4, c->type, WEIGHT_LIKE, c->o.at.heads.size, 0);
    op_case_in(c, 5, c->type, WEIGHT_LIKE, c->o.at.heads.size, 0);
    op_case_in(c, 6, DTYPE_FP32, DERIVED, a.tokens, c->o.at.heads.q + c->o.at.heads.kv);
    for (int i = 2; i < 4; i++)
        op_case_update(c, i, DTYPE_FP32, UNIT, c->o.at.heads.size, 0, c->o.at.accumulate);
    op *forward = op_case_prelude(c, OP_head_norm);
    forward->at = c->o.at;
    for (int i = 0; i < 4; i++)
        forward->in[i] = c->o.in[i + 2];
    forward->out[0] = op_case_tensor(c, "yq", c->type, NOTHING, a.tokens, a.q);
    forward->out[1] = op_case_tensor(c, "yk", c->type, NOTHING, a.tokens, a.k);
    forward->out[2] = c->o.in[6];
    attention_outputs(c, 3, &a, 2);
    c->terms = (double)a.tokens * c->o.at.heads.q + c->o.at.heads.size;
    c->growth = 2;
    return true;
}

/* The widths of one rank, or of two where heads of k are copied; they take the place of the heads. */
static bool width_shape(heads *a, op_case *c, int variant)
{
    int ranks = op_case_option(&variant, 2) ? 2 : 1;
    c->o.at.norm = (op_norm){.epsilon = 1e-6f, .offset = (float)op_case_option(&variant, 2)};
    if (!heads_shape(a, c, variant))
        return false;
    c->o.at.norm.width[0] = ranks * a->q;
    c->o.at.norm.width[1] = 2 * ranks * a->k;
    c->terms = (double)a->q;
    return true;
}

CASES(width_squares)
{
    heads a;
    if (!width_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    attention_outputs(c, 1, &a, 0);
    return true;
}

/* Weights from `slot` on, and the sums that stand behind them, of the q and k before them. */
static void width_inputs(op_case *c, int slot, const heads *a)
{
    op_case_in(c, slot, c->type, WEIGHT_LIKE, a->q, 0);
    op_case_in(c, slot + 1, c->type, WEIGHT_LIKE, a->k, 0);
    op *squares = op_case_prelude(c, OP_width_squares);
    squares->at = c->o.at;
    squares->in[0] = c->o.in[slot - 2];
    squares->in[1] = c->o.in[slot - 1];
    squares->out[0] = op_case_in(c, slot + 2, DTYPE_FP32, DERIVED, a->tokens, 2);
}

CASES(width_norm)
{
    heads a;
    if (!width_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    width_inputs(c, 2, &a);
    attention_outputs(c, 3, &a, 2);
    return true;
}

CASES(width_dots)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    heads a;
    if (!width_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    attention_inputs(c, 2, &a, a.tokens, false);
    width_inputs(c, 4, &a);
    op_case_update(c, 1, DTYPE_FP32, UNIT, a.q, 0, c->o.at.accumulate);
    op_case_update(c, 2, DTYPE_FP32, UNIT, a.k, 0, c->o.at.accumulate);
    attention_outputs(c, 1, &a, 0);
    c->terms += (double)a.tokens;
    c->growth = 2;
    return true;
}

CASES(width_norm_grad)
{
    heads a;
    if (!width_shape(&a, c, variant))
        return false;
    attention_inputs(c, 0, &a, a.tokens, false);
    attention_inputs(c, 2, &a, a.tokens, false);
    width_inputs(c, 4, &a);
    op_case_in(c, 7, DTYPE_FP32, (fill){.kind = FILL_NORMAL, .b = 10}, a.tokens, 2);
    attention_outputs(c, 3, &a, 2);
    c->growth = 2;
    return true;
}

enum { POSITIONS = 12 };

static void give_rope_table(const op_case *c, void *bytes, const tensor *t)
{
    int64_t half = t->shape[1] / 2;
    float *table = bytes;
    (void)c;
    for (int64_t p = 0; p < t->shape[0]; p++)
        for (int64_t i = 0; i < half; i++) {
            double angle = (double)p * pow(10000, -(double)i / (double)half);
            table[p * 2 * half + i] = (float)cos(angle);
            table[p * 2 * half + half + i] = (float)sin(angle);
        }
}

/* One head of k, a third of a head of q's elements, for all of them. */
static void share_key(op_case *c, heads *a)
{
    c->o.at.heads.kv = 0;
    a->k = c->o.at.heads.size / 3 / 2 * 2;
}

CASES(rope)
{
    c->o.at.rotation.inverse = (uint8_t)op_case_option(&variant, 2);
    const bool part = op_case_option(&variant, 2);
    c->o.at.rotation.interleaved = (uint8_t)op_case_option(&variant, 2);
    const bool shared = op_case_option(&variant, 2);
    heads a;
    if (!heads_shape(&a, c, variant))
        return false;
    if (shared)
        share_key(c, &a);
    int64_t size = shared ? a.k : c->o.at.heads.size, rotated = part && size >= 4 ? size / 4 * 2 : size;
    attention_inputs(c, 0, &a, a.tokens, false);
    op_case_in(c, 2, DTYPE_INT32, (fill){.kind = FILL_INTEGERS, .b = POSITIONS - 1}, a.tokens, 0);
    op_case_in(c, 3, DTYPE_FP32, (fill){.kind = FILL_GIVEN, .give = give_rope_table}, POSITIONS, rotated);
    attention_outputs(c, 3, &a, 2);
    return true;
}

static int64_t place_of_query(const op_case *c, int64_t i)
{
    int64_t run = c->o.at.attention.run, samples = c->t_keys / c->o.at.attention.sequence;
    return c->deal ? run_sharded(c, i / run, samples) * run + i % run : i;
}

static void give_positions(const op_case *c, void *bytes, const tensor *t)
{
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)bytes)[i] = (int32_t)place_of_query(c, i);
}

/* Documents of 1, 2, 3, ... tokens, begun anew in each sample. */
static void give_documents(const op_case *c, void *bytes, const tensor *t)
{
    for (int64_t i = 0; i < t->shape[0]; i++) {
        int32_t within = (int32_t)(place_of_query(c, i) % c->o.at.attention.sequence), at = 0;
        for (int32_t length = 1; at + length <= within; length++)
            at += length;
        ((int32_t *)bytes)[i] = at;
    }
}

static const fill DOCUMENTS = {.kind = FILL_GIVEN, .give = give_documents},
                  PLACES = {.kind = FILL_GIVEN, .give = give_positions};

/* q, k and v from `slot` on, then, where they are asked for, document_start and places from `masks` on. */
static void attention_operands(op_case *c, const heads *a, int slot, int masks)
{
    c->o.at.attention.run = c->deal ? c->o.at.attention.sequence / RUNS : 0;
    if (c->deal == FIRST_AND_LAST || c->deal == BETWEEN)
        c->o.at.attention.ranks = RUNS / 2, c->o.at.attention.rank = c->deal == BETWEEN;
    c->t_keys = a->tokens;
    tensor *row = row_of_heads(c, a, UNIT, a->tokens), *q = op_case_in(c, slot, c->type, UNIT, a->queries, a->q);
    if (!c->deal) /* else a matrix of its own: queries have come another way than keys */
        into_columns(q, row, 0);
    into_columns(op_case_in(c, slot + 1, c->type, UNIT, a->tokens, a->k), row, a->q);
    into_columns(op_case_in(c, slot + 2, c->type, UNIT, a->tokens, a->v), row, a->q + a->k);
    if (a->documents)
        op_case_in(c, masks, DTYPE_INT32, DOCUMENTS, a->queries, 0);
    if (c->deal)
        op_case_in(c, masks + 1, DTYPE_INT32, PLACES, a->queries, 0);
}

static void give_far_sinks(const op_case *c, void *bytes, const tensor *t)
{
    static const double values[] = {6, -9, 3, -30};
    (void)c;
    for (int64_t i = 0; i < t->shape[0]; i++)
        dtype_convert((char *)bytes + i * dtype_bytes((dtype)t->type), (dtype)t->type, &values[i % 4], DTYPE_FP64, 1);
}

static fill sinks_of(const heads *a)
{
    return a->sinks == SINKS_FAR ? (fill){.kind = FILL_GIVEN, .give = give_far_sinks} : UNIT;
}

CASES(attention)
{
    heads a;
    if (!attention_shape(&a, c, variant))
        return false;
    attention_operands(c, &a, 0, 3);
    if (a.sinks)
        op_case_in(c, 5, c->type, sinks_of(&a), c->o.at.heads.q, 0);
    op_case_infer(
        c, a.sinks || c->o.at.attention.cap > 0 || variant % 8 > 0 ? 3 : 7); /* cuDNN takes those without maxima */
    c->terms = c->o.at.heads.size + c->o.at.attention.sequence;
    c->roundings = 1; /* probabilities are rounded to T for the product with v */
    c->growth = 2;
    return true;
}

CASES(attention_grad)
{
    heads a;
    if (!attention_shape(&a, c, variant))
        return false;
    op_case_in(c, 0, c->type, UNIT, a.queries, a.y);
    attention_operands(c, &a, 1, 6);
    op_case_in(c, 4, c->type, DERIVED, a.queries, a.y);
    int64_t run = c->o.at.attention.sequence / (c->deal ? RUNS : 1);
    op_case_in(c, 5, DTYPE_FP32, DERIVED, a.queries / run * c->o.at.heads.q, run);
    op *forward = op_case_prelude(c, OP_attention);
    forward->at = c->o.at;
    for (int i = 0; i < 3; i++)
        forward->in[i] = c->o.in[1 + i];
    forward->in[3] = c->o.in[6];
    forward->in[4] = c->o.in[7];
    forward->in[5] = a.sinks ? op_case_tensor(c, "sinks", c->type, sinks_of(&a), c->o.at.heads.q, 0) : NULL;
    forward->out[0] = c->o.in[4];
    forward->out[1] = c->o.in[5];
    attention_outputs(c, 7, &a, 3);
    c->terms = c->o.at.heads.size + c->o.at.attention.sequence * (c->o.at.heads.q / c->o.at.heads.kv);
    c->roundings = 2; /* probabilities and ds */
    c->growth = 2;
    c->floor = c->o.at.attention.sequence == 1 ? 16 : 0; /* dq and dk of a query that sees one key are 0 */
    return true;
}

/* y and lse are not those of any attention: lse is a little above most sinks, and y like dy, so that their products do
 * not cancel each other. */
CASES(attention_sinks_grad)
{
    c->o.at.accumulate = (uint8_t)op_case_option(&variant, 2);
    heads a;
    if (!attention_shape(&a, c, variant))
        return false;
    for (int i = 0; i < 2; i++)
        op_case_in(c, i, c->type, (fill){.kind = FILL_NORMAL, .a = 1, .b = 1}, a.queries, a.y);
    int64_t run = c->o.at.attention.sequence / (c->deal ? RUNS : 1);
    op_case_in(c, 2, DTYPE_FP32, (fill){.kind = FILL_NORMAL, .a = 2, .b = 1}, a.queries / run * c->o.at.heads.q, run);
    op_case_in(c, 3, c->type, UNIT, c->o.at.heads.q, 0);
    op_case_update(c, 0, DTYPE_FP32, UNIT, c->o.at.heads.q, 0, c->o.at.accumulate);
    op_case_infer(c, 0);
    c->terms = (double)a.queries + (double)a.y / c->o.at.heads.q;
    return true;
}

static void give_decode_positions(const op_case *c, void *bytes, const tensor *t)
{
    (void)c;
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)bytes)[i] = (int32_t)(i * 5 % POSITIONS);
}

CASES(attention_decode)
{
    heads a;
    if (!attention_shape(&a, c, variant))
        return false;
    int64_t samples = variant % 3 + 1, width[] = {a.k, a.v};
    attention_inputs(c, 0, &a, samples, true);
    op_case_in(c, 3, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_decode_positions}, samples, 0);
    for (int i = 0; i < 2; i++) {
        tensor *cache = op_case_in(c, 4 + i, c->type, UNIT, samples, POSITIONS * width[i]);
        tensor_describe(cache, "cache", CLASS_TEMPORARY, c->type, 3, (int64_t[]){samples, POSITIONS, width[i]});
    }
    if (a.sinks)
        op_case_in(c, 6, c->type, sinks_of(&a), c->o.at.heads.q, 0);
    op_case_infer(c, 1);
    c->terms = c->o.at.heads.size + POSITIONS;
    c->roundings = 1;
    c->growth = 2;
    return true;
}
