/* Every gradient rule of kernels/ops/ passes the adjoint test in float64: alone, where tensors have several
 * consumers, under every recompute setting, and over tensor groups; and every mutant fails it. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "memory/scope.h"
#include "tests/oracle/adjoint.h"
#include "tests/oracle/reference_program.h"
#include "tests/test.h"

enum { SEQUENCE = 5, SAMPLES = 2, TOKENS = SEQUENCE * SAMPLES, HIDDEN = 6, VOCABULARY = 7 };

/* ---- constants ------------------------------------------------------------------------------------------------- */

static int32_t token_of(int64_t i)
{
    return (int32_t)(i * 5 % 13); /* of 14 ids: two shards of 7, three of 5 */
}

static int32_t target_of(int64_t i)
{
    return i % 5 == 2 ? -1 : (int32_t)((i * 3 + 1) % 13);
}

static int32_t position_of(int64_t i)
{
    return (int32_t)(i % SEQUENCE);
}

static int32_t document_of(int64_t i)
{
    return i % SEQUENCE >= 2 ? 2 : 0;
}

static double rope_of(int64_t position, int64_t i, int64_t columns)
{
    int64_t half = columns / 2;
    double angle = (double)position * pow(10, -(double)(i % half) / (double)half);
    return i < half ? cos(angle) : sin(angle);
}

static const step_scalars SCALARS = {
    .seed = 11, .step = 3, .updates = 2, .first_sample = 40, .loss_scale = 4, .loss_tokens = 8};

/* ---- single ops ------------------------------------------------------------------------------------------------ */

static tensor *input(adjoint_rank *a)
{
    return adjoint_input(a, "x", TOKENS, HIDDEN, place_replicate());
}

static tensor *weight(adjoint_rank *a, const char *name, int64_t rows, int64_t columns)
{
    return recorder_weight(&a->r, adjoint_parameter(a, name, rows, columns, place_replicate()));
}

static void linear(adjoint_rank *a, const void *options)
{
    (void)options;
    a->output = record_linear(&a->r, "linear", input(a), weight(a, "w", 4, HIDDEN), weight(a, "b", 4, 0));
}

/* x has three consumers: the cotangent of the last is written, the linears add to it as they go */
static void linear_addend(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *x = record_gelu(r, "gelu", input(a));
    tensor *y = record_linear(r, "first", x, weight(a, "w1", 4, HIDDEN), NULL);
    tensor *z = record_linear(r, "second", x, weight(a, "w2", 4, HIDDEN), NULL);
    tensor *wide = record_linear(r, "third", record_gelu(r, "other", x), weight(a, "w3", 4, HIDDEN), NULL);
    a->output = record_add(r, "sum", record_add(r, "sum", y, z), wide);
}

static void embedding(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *tokens = adjoint_integers(a, "tokens", TOKENS, token_of);
    tensor *positions = adjoint_integers(a, "positions", TOKENS, position_of);
    tensor *x = record_embed(r, "embed", tokens, weight(a, "table", VOCABULARY, HIDDEN), 3);
    a->output = record_add_positions(r, "positions", x, positions, weight(a, "positions table", SEQUENCE, HIDDEN));
}

/* options: which of y and s are used further */
typedef struct norm_options {
    bool bias, residual, use_y, use_s, another_consumer;
} norm_options;

static void norm(adjoint_rank *a, const void *options)
{
    const norm_options *n = options;
    recorder *r = &a->r;
    tensor *x = record_gelu(r, "gelu", input(a)), *residual = NULL, *s;
    if (n->residual)
        residual = adjoint_input(a, "residual", TOKENS, HIDDEN, place_replicate());
    tensor *w = weight(a, "norm", HIDDEN, 0), *b = n->bias ? weight(a, "bias", HIDDEN, 0) : NULL;
    tensor *y = record_norm(r, "norm", &s, x, residual, (record_norm_of){w, b, 1e-5f, b ? 0 : 1});
    a->output = n->use_y && n->use_s ? record_add(r, "sum", y, record_gelu(r, "gelu of s", s)) : n->use_y ? y : s;
    if (n->another_consumer)
        a->output = record_add(r, "sum", a->output, record_gelu(r, "gelu of x", x));
}

typedef struct head_options {
    int heads, kv_heads, window;
    bool documents;
    int v_size; /* of a value's head; 0: HEAD */
    bool interleaved;
    float cap; /* of scores */
    bool sinks;
} head_options;

enum { HEAD = 4 };

static op_attributes heads_of(const head_options *h)
{
    return (op_attributes){.heads = {h->heads, h->kv_heads, HEAD}};
}

/* The heads of q and of k, columns of one matrix. */
static record_qkv queries_and_keys(adjoint_rank *a, const head_options *h)
{
    int q = h->heads * HEAD, k = h->kv_heads * HEAD;
    tensor *both = adjoint_input(a, "q and k", TOKENS, q + k, place_replicate());
    return (record_qkv){.q = recorder_columns(&a->r, both, 0, q), .k = recorder_columns(&a->r, both, q, k)};
}

/* One output of two matrices of different widths. */
static tensor *joined(adjoint_rank *a, const record_qkv *x)
{
    tensor *q = record_linear(&a->r, "from q", x->q, weight(a, "join q", HIDDEN, (int)x->q->shape[1]), NULL);
    tensor *k = record_linear(&a->r, "from k", x->k, weight(a, "join k", HIDDEN, (int)x->k->shape[1]), NULL);
    return record_add(&a->r, "join", q, k);
}

static void head_norm(adjoint_rank *a, const void *options)
{
    const head_options *h = options;
    op_attributes at = heads_of(h);
    at.norm.epsilon = 1e-5f;
    record_qkv x = queries_and_keys(a, h);
    record_head_norm(&a->r, "head norm", &x, weight(a, "q norm", HEAD, 0), weight(a, "k norm", HEAD, 0), &at);
    a->output = joined(a, &x);
}

static void width_norm(adjoint_rank *a, const void *options)
{
    const head_options *h = options;
    int q = h->heads * HEAD, k = h->kv_heads * HEAD;
    op_attributes at = {.norm = {.epsilon = 1e-5f, .width = {q, k}}};
    record_qkv x = queries_and_keys(a, h);
    record_width_norm(&a->r, "width norm", &x, weight(a, "q norm", q, 0), weight(a, "k norm", k, 0), &at);
    a->output = joined(a, &x);
}

static void rope(adjoint_rank *a, const void *options)
{
    const head_options *h = options;
    op_attributes at = heads_of(h);
    at.rotation.interleaved = h->interleaved;
    record_qkv x = queries_and_keys(a, h);
    tensor *positions = adjoint_integers(a, "positions", TOKENS, position_of);
    record_rope(&a->r, "rope", &x, positions, adjoint_table(a, "table", SEQUENCE, HEAD, rope_of), &at);
    a->output = joined(a, &x);
}

static void attention(adjoint_rank *a, const void *options)
{
    const head_options *h = options;
    op_attributes at = heads_of(h);
    at.attention = (op_attention){.sequence = SEQUENCE, .window = h->window, .scale = 0.5f, .cap = h->cap};
    int columns = (h->heads + h->kv_heads) * HEAD + h->kv_heads * (h->v_size ? h->v_size : HEAD);
    tensor *start = h->documents ? adjoint_integers(a, "document start", TOKENS, document_of) : NULL;
    record_qkv x = record_split_heads(&a->r, adjoint_input(a, "qkv", TOKENS, columns, place_replicate()), &at);
    tensor *sinks = h->sinks ? weight(a, "sinks", h->heads, 0) : NULL;
    a->output = record_attention(&a->r, "attention", &x, start, NULL, sinks, &at);
}

/* The cotangents of columns: written there by an op, copied there, added there twice, and passed on by an op that makes
 * none. */
static void columns(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *x = adjoint_input(a, "x", TOKENS, 3 * HIDDEN, place_replicate()), *part[3];
    for (int i = 0; i < 3; i++)
        part[i] = recorder_columns(r, x, i * HIDDEN, HIDDEN);
    tensor *normed =
        record_norm(r, "norm", NULL, part[0], NULL, (record_norm_of){weight(a, "norm", HIDDEN, 0), NULL, 1e-5f, 0});
    tensor *twice = record_add(r, "twice", part[1], record_gelu(r, "gelu", part[1]));
    tensor *product = record_linear(r, "product", part[2], weight(a, "w", HIDDEN, HIDDEN), NULL);
    a->output =
        record_add(r, "sum", record_add(r, "sum of two", normed, twice), record_add(r, "again", product, part[2]));
}

static int32_t place_of(int64_t i)
{
    return (int32_t)i;
}

static void elementwise(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *x = input(a), *scalars = adjoint_scalars(a, &SCALARS);
    tensor *y = record_swiglu(r, "swiglu", record_linear(r, "up", x, weight(a, "w", 2 * HIDDEN, HIDDEN), NULL));
    y = record_geglu(r, "geglu", record_linear(r, "wide", y, weight(a, "w2", 2 * HIDDEN, HIDDEN), NULL));
    op_attributes at = {.dropout = {.probability = 0.4f, .site = 2, .sample_tokens = SEQUENCE, .sample = 1}};
    tensor *token_positions = adjoint_integers(a, "places", TOKENS, place_of);
    tensor *scaled = record_scale(r, "scale", record_add(r, "twice", y, y), -1.5);
    tensor *z = record_dropout(r, "dropout", record_soft_cap(r, "cap", scaled, 0.8), scalars, token_positions, &at);
    a->output = recorder_record(r, "copy", &(op){.kind = OP_copy, .in = {z}}, 1, NULL)->out[0];
}

/* One weight used twice: its gradient is written once and added to once. */
static void tied(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    parameter *p = adjoint_parameter(a, "table", VOCABULARY, HIDDEN, place_replicate());
    tensor *tokens = adjoint_integers(a, "tokens", TOKENS, position_of);
    tensor *x = record_embed(r, "embed", tokens, recorder_weight(r, p), 0);
    a->output = record_linear(r, "head", record_gelu(r, "gelu", x), recorder_weight(r, p), NULL);
}

/* Of four experts one has most rows, one none; the last rows are nobody's. */
static int32_t offset_of(int64_t i)
{
    return (int32_t[]){0, 2, 2, TOKENS - 3, TOKENS - 1}[i];
}

static int32_t other_offset_of(int64_t i)
{
    return (int32_t[]){0, 4, 5, 6, TOKENS}[i];
}

/* The second product reads what the first made; x has more consumers, one of them by another routing. */
static void experts(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *x = record_gelu(r, "gelu", input(a)), *offsets = adjoint_integers(a, "offsets", 5, offset_of);
    tensor *others = adjoint_integers(a, "other offsets", 5, other_offset_of);
    tensor *up = record_grouped_linear(r, "up", x, weight(a, "w1", 4 * 6, HIDDEN), offsets, weight(a, "b1", 4 * 6, 0));
    tensor *act = record_swiglu_clamped(r, "act", up, 0.8, 1.702);
    tensor *down =
        record_grouped_linear(r, "down", act, weight(a, "w2", 4 * HIDDEN, 3), offsets, weight(a, "b2", 4 * HIDDEN, 0));
    tensor *other = record_grouped_linear(r, "other", x, weight(a, "w3", 4 * HIDDEN, HIDDEN), others, NULL);
    a->output = record_add(r, "sum", record_add(r, "sum of two", x, down), other);
}

/* ---- layers ---------------------------------------------------------------------------------------------------- */

typedef struct block_options {
    bool llama; /* else as GPT-2 */
    bool loss, has_embedding;
    int window;
} block_options;

static norm_layer norm_params(adjoint_rank *a, bool llama, const char *name, const char *bias)
{
    placement place = a->r.grid.sequence ? place_shared() : place_replicate();
    return (norm_layer){.weight = adjoint_parameter(a, name, HIDDEN, 0, place),
                        .bias = llama ? NULL : adjoint_parameter(a, bias, HIDDEN, 0, place)};
}

/* Two query heads and one key/value head, and three columns of the MLP, on every rank. */
static block_layer block_params(adjoint_rank *a, const block_options *o)
{
    bool first = a->r.grid.group[AXIS_TENSOR].rank == 0;
    int rows = (2 + 2) * HEAD, ffn = 3;
    block_layer b = {
        .sub = {{.norm = norm_params(a, o->llama, "norm 1", "norm 1 bias"), .mixers = 1u << MIXER_attention},
                {.norm = norm_params(a, o->llama, "norm 2", "norm 2 bias"), .mixers = 1u << MIXER_mlp}},
        .attention = {.heads = 2, .kv_heads = 1, .head_size = HEAD, .window = o->window, .rotary = o->llama},
        .mlp = {.gated = o->llama}};
    b.attention.qkv = adjoint_parameter(a, "qkv", rows, HIDDEN, place_shard(0));
    b.attention.out = adjoint_parameter(a, "out", HIDDEN, 2 * HEAD, place_shard(1));
    b.mlp.up = adjoint_parameter(a, "up", (o->llama ? 2 : 1) * ffn, HIDDEN, place_shard(0));
    b.mlp.down = adjoint_parameter(a, "down", HIDDEN, ffn, place_shard(1));
    if (o->llama) {
        b.attention.q_norm = adjoint_parameter(a, "q norm", HEAD, 0, place_shared());
        b.attention.k_norm = adjoint_parameter(a, "k norm", HEAD, 0, place_shared());
        b.attention.sinks = adjoint_parameter(a, "sinks", 2, 0, place_shard(0));
        return b;
    }
    b.attention.qkv_bias = adjoint_parameter(a, "qkv bias", rows, 0, place_shard(0));
    b.mlp.up_bias = adjoint_parameter(a, "up bias", ffn, 0, place_shard(0));
    if (first) {
        b.attention.out_bias = adjoint_parameter(a, "out bias", HIDDEN, 0, place_partial());
        b.mlp.down_bias = adjoint_parameter(a, "down bias", HIDDEN, 0, place_partial());
    }
    return b;
}

static layer_inputs inputs_of(adjoint_rank *a, const block_options *o)
{
    layer_inputs in = {.tokens = adjoint_integers(a, "tokens", TOKENS, token_of),
                       .targets = adjoint_integers(a, "targets", TOKENS, target_of),
                       .positions = adjoint_integers(a, "positions", TOKENS, position_of),
                       .token_positions = adjoint_integers(a, "places", TOKENS, place_of),
                       .scalars = adjoint_scalars(a, &SCALARS),
                       .sequence = SEQUENCE,
                       .epsilon = 1e-5f,
                       .dropout = o->llama ? 0 : 0.3f};
    if (o->llama) {
        in.document_start = adjoint_integers(a, "document start", TOKENS, document_of);
        in.rope_table = adjoint_table(a, "rope table", SEQUENCE, HEAD, rope_of);
    }
    return in;
}

static void record_loss(adjoint_rank *a, stream *s, layer_inputs *in, const parameter *tied_head, bool llama)
{
    int ranks = a->r.grid.group[AXIS_TENSOR].ranks, rank = a->r.grid.group[AXIS_TENSOR].rank;
    int64_t rows = (14 + ranks - 1) / ranks, first = rows * rank;
    a->loss = pool_alloc(&a->pool, sizeof *a->loss);
    tensor_describe(a->loss, "loss", CLASS_INPUT, DTYPE_FP32, 1, (int64_t[]){1});
    loss_layer l = {.norm = norm_params(a, llama, "final norm", "final norm bias"),
                    .head = tied_head ? tied_head : adjoint_parameter(a, "head", rows, HIDDEN, place_shard(0)),
                    .cap = llama ? 12 : 0,
                    .first = first,
                    .count = 14 - first < rows ? 14 - first : rows, /* the last of three has a padding row */
                    .chunk_tokens = 4};
    in->loss = a->loss;
    layer_loss(&a->r, s, &l, NULL, in);
    a->output = NULL;
}

static void block(adjoint_rank *a, const void *options)
{
    const block_options *o = options;
    recorder *r = &a->r;
    r->tokens = TOKENS;
    layer_inputs in = inputs_of(a, o);
    block_layer b = block_params(a, o);
    stream s = {0};
    const parameter *table = NULL;
    if (o->has_embedding) {
        const axis_group *tensor_group = &r->grid.group[AXIS_TENSOR];
        int64_t rows = (14 + tensor_group->ranks - 1) / tensor_group->ranks;
        placement place = r->grid.sequence ? place_shared() : place_replicate();
        table = adjoint_parameter(a, "table", rows, HIDDEN, place_shard(0));
        embedding_layer e = {.table = table, .first = rows * tensor_group->rank};
        e.positions = o->llama ? NULL : adjoint_parameter(a, "position table", SEQUENCE, HIDDEN, place);
        s.sum = layer_embedded(r, &e, &in, layer_embed(r, &e, in.tokens));
    } else {
        int64_t first, count;
        recorder_part(&first, &count, &r->grid, AXIS_TENSOR, TOKENS);
        count = r->grid.sequence ? count : TOKENS;
        s.sum = adjoint_input(a, "x", count, HIDDEN, r->grid.sequence ? place_shard(0) : place_replicate());
    }
    layer_block(r, &s, &b, &in);
    if (o->loss)
        record_loss(a, &s, &in, o->has_embedding && o->llama ? table : NULL, o->llama);
    else
        a->output = record_add(r, "sum", s.sum, s.delta);
}

static const block_options LLAMA = {.llama = true, .window = 3}, GPT2 = {0},
                           LLAMA_LOSS = {.llama = true, .loss = true, .has_embedding = true},
                           GPT2_LOSS = {.loss = true, .has_embedding = true};
static const norm_options NORMS[] = {{0, 0, 1, 0, 0}, {0, 0, 1, 1, 1}, {0, 1, 1, 1, 0}, {0, 1, 1, 0, 1},
                                     {0, 1, 0, 1, 0}, {1, 0, 1, 0, 0}, {1, 0, 1, 1, 1}, {1, 1, 1, 1, 0},
                                     {1, 1, 1, 0, 1}, {1, 1, 0, 1, 0}};
static const head_options HEADS[] = {{1, 1, 0, 0, 0, 0, 0, 0},   {4, 2, 0, 0, 0, 0, 0, 0},    {3, 1, 2, 0, 0, 1, 0, 0},
                                     {2, 2, 0, 1, 0, 0, 0, 0},   {4, 1, 3, 1, 0, 0, 0, 0},    {4, 2, 3, 1, 6, 1, 0, 0},
                                     {2, 2, 0, 0, 2, 0, 0, 0},   {4, 2, 2, 1, 0, 0, 0.7f, 0}, {4, 2, 3, 0, 6, 0, 0, 1},
                                     {3, 1, 0, 1, 0, 0, 0.7f, 1}};

/* ---- checks ---------------------------------------------------------------------------------------------------- */

static double worst_of(const adjoint_spec *s, char *why)
{
    adjoint *a = adjoint_open(s);
    double worst = adjoint_worst(why, a);
    adjoint_close(a);
    return worst;
}

static double worst_of_all; /* of what passed, for the record */

static void passes(adjoint_spec s)
{
    char why[256];
    for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        s.recompute = (recompute)how;
        s.split = how == RECOMPUTE_SELECTIVE;
        double worst = worst_of(&s, why);
        if (!(worst <= 1))
            fail_msg("%d ranks, recompute %d: %.3g times what is allowed; %s", s.ranks, how, worst, why);
        worst_of_all = worst > worst_of_all ? worst : worst_of_all;
    }
}

TEST(every_gradient_passes_the_adjoint_test)
{
    passes((adjoint_spec){.name = "linear", .record = linear});
    passes((adjoint_spec){.name = "linear with addends", .record = linear_addend});
    passes((adjoint_spec){.name = "embedding", .record = embedding});
    for (unsigned i = 0; i < sizeof NORMS / sizeof *NORMS; i++)
        passes((adjoint_spec){.name = NORMS[i].bias ? "layernorm" : "rmsnorm",
                              .record = norm,
                              .options = &NORMS[i],
                              .idle = !NORMS[i].use_y}); /* the weight of a norm whose output nobody reads */
    for (unsigned i = 0; i < sizeof HEADS / sizeof *HEADS; i++) {
        passes((adjoint_spec){.name = "head norm", .record = head_norm, .options = &HEADS[i]});
        passes((adjoint_spec){.name = "width norm", .record = width_norm, .options = &HEADS[i]});
        passes((adjoint_spec){.name = "rope", .record = rope, .options = &HEADS[i]});
        passes((adjoint_spec){.name = "attention", .record = attention, .options = &HEADS[i]});
    }
    passes((adjoint_spec){.name = "columns", .record = columns});
    passes((adjoint_spec){.name = "element-wise ops", .record = elementwise});
    passes((adjoint_spec){.name = "a tied weight", .record = tied});
    passes((adjoint_spec){.name = "experts' products", .record = experts});
}

static const struct {
    const char *name;
    const block_options *options;
} BLOCKS[] = {{"a Llama block", &LLAMA},
              {"a GPT-2 block", &GPT2},
              {"embedding, Llama block and loss, tied", &LLAMA_LOSS},
              {"embedding, GPT-2 block and loss", &GPT2_LOSS}};
enum { BLOCK_COUNT = sizeof BLOCKS / sizeof *BLOCKS };

TEST(layers_pass_alone_and_over_tensor_groups)
{
    for (int i = 0; i < BLOCK_COUNT; i++)
        for (int ranks = 1; ranks <= 3; ranks++)
            for (int sequence = 0; sequence <= (ranks > 1); sequence++)
                passes((adjoint_spec){.name = BLOCKS[i].name,
                                      .record = block,
                                      .options = BLOCKS[i].options,
                                      .ranks = ranks,
                                      .sequence = sequence});
    print_message("the worst is %.2g of what is allowed\n", worst_of_all);
}

enum { MOST = 10000 };

TEST(neither_recompute_nor_fusion_changes_a_bit)
{
    AUTO_FREE double *none = malloc(MOST * sizeof *none), *other = malloc(MOST * sizeof *other);
    for (int i = 0; i < BLOCK_COUNT; i++) {
        int ops[2][3], n = 0;
        for (int k = 0; k < 6; k++) {
            int fused = k / 3, how = k % 3;
            adjoint_spec s = {.name = BLOCKS[i].name,
                              .record = block,
                              .options = BLOCKS[i].options,
                              .ranks = 2,
                              .sequence = true,
                              .recompute = (recompute)how,
                              .fuse = fused};
            adjoint *a = adjoint_open(&s);
            ops[fused][how] = adjoint_rank_of(a, 0)->count;
            n = adjoint_gradients(k ? other : none, a, MOST);
            assert_true(n > 100 && n < MOST);
            if (k)
                assert_memory_equal(none, other, (size_t)n * sizeof *none);
            adjoint_close(a);
        }
        assert_true(ops[0][RECOMPUTE_NONE] < ops[0][RECOMPUTE_SELECTIVE] &&
                    ops[0][RECOMPUTE_SELECTIVE] < ops[0][RECOMPUTE_FULL]);
        /* GPT-2's gelu and gelu_grad are gone, and under full recompute the second gelu */
        bool gelu = !((const block_options *)BLOCKS[i].options)->llama;
        for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++)
            assert_int_equal(ops[0][how] - ops[1][how], !gelu ? 0 : how == RECOMPUTE_FULL ? 3 : 2);
    }
}

/* A second micro-batch like the first doubles the gradients of parameters. */
TEST(later_microbatches_add)
{
    static double once[MOST];
    adjoint_spec s = {.name = "tied", .record = tied};
    adjoint *a = adjoint_open(&s);
    int n = adjoint_gradients(once, a, MOST);
    adjoint_again(a);
    const adjoint_rank *k = adjoint_rank_of(a, 0);
    double twice[VOCABULARY * HIDDEN];
    assert_int_equal(n, VOCABULARY * HIDDEN);
    reference_program_get(twice, k->program, k->variable[0].gradient);
    for (int i = 0; i < n; i++)
        assert_true(fabs(twice[i] - 2 * once[i]) <= 1e-12 * (1 + fabs(once[i])));
    adjoint_close(a);
}

/* ---- mutants --------------------------------------------------------------------------------------------------- */

static op *backward_op(op **ops, int forward, int count, op_kind kind)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == kind)
            return ops[i];
    return NULL;
}

static void drop_addend_of_product(op **ops, int forward, int count)
{
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_linear_grad_input)
            ops[i]->in[2] = NULL;
}

static void drop_addend_of_norm(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_rmsnorm_grad)->in[4] = NULL;
}

static void window_by_one(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_attention_grad)->at.attention.window++;
}

static void cap_of_scores_forgotten(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_attention_grad)->at.attention.cap = 0;
}

static void cap_of_logits_forgotten(op **ops, int forward, int count)
{
    (void)forward; /* the gradient of the loss is recorded within the forward pass */
    backward_op(ops, 0, count, OP_soft_cap_grad)->at.constants.cap = 1e6f;
}

static void rope_not_turned_back(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_rope)->at.rotation.inverse = 0;
}

static void rope_turned_back_as_halves(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_rope)->at.rotation.interleaved = 0;
}

static void another_mask(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_dropout)->at.dropout.site++;
}

static void written_over(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_embed_grad)->at.accumulate = 0;
}

static void shard_swapped(op **ops, int forward, int count)
{
    op *o = backward_op(ops, forward, count, OP_embed_grad);
    o->at.vocabulary.first = o->at.vocabulary.first ? 0 : 7;
}

static void documents_ignored(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_attention_grad)->in[6] = NULL;
}

/* The gradient goes by another layer's routing. */
static void routed_otherwise(op **ops, int forward, int count, op_kind kind)
{
    tensor **offsets[2] = {NULL, NULL};
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == kind && (!offsets[0] || *offsets[0] != ops[i]->in[2]))
            offsets[offsets[0] != NULL] = &ops[i]->in[2];
    *offsets[0] = *offsets[1];
}

static void input_routed_otherwise(op **ops, int forward, int count)
{
    routed_otherwise(ops, forward, count, OP_grouped_linear_grad_input);
}

static void weight_routed_otherwise(op **ops, int forward, int count)
{
    routed_otherwise(ops, forward, count, OP_grouped_linear_grad_weight);
}

static void bias_routed_otherwise(op **ops, int forward, int count)
{
    op *bias = backward_op(ops, forward, count, OP_grouped_bias_grad);
    const tensor *own = bias->in[1];
    for (int i = forward; i < count; i++)
        if (ops[i]->kind == OP_grouped_linear_grad_weight && ops[i]->in[2] != own)
            bias->in[1] = ops[i]->in[2];
}

static void limit_of_gates_forgotten(op **ops, int forward, int count)
{
    backward_op(ops, forward, count, OP_swiglu_clamped_grad)->at.constants.cap = 1e6f;
}

/* As of a score that has a value, 0: exp(sink - lse) (dy . y). */
static void value_of_a_sink(op **ops, int forward, int count)
{
    op *o = backward_op(ops, forward, count, OP_attention_sinks_grad);
    o->in[1] = o->in[0];
}

TEST(every_mutant_fails_the_adjoint_test)
{
    static const head_options heads = {4, 2, 2, true, 0, true, 0.7f, true};
    static const norm_options with_sum = {0, 1, 1, 1, 0};
    const adjoint_spec mutants[] = {
        {.name = "scaled by -7", .record = attention, .options = &heads, .gradient_factor = -7},
        {.name = "scaled by 1.000001", .record = linear, .gradient_factor = 1.000001},
        {.name = "a product's addend dropped", .record = linear_addend, .mutate = drop_addend_of_product},
        {.name = "a norm's addend dropped", .record = norm, .options = &with_sum, .mutate = drop_addend_of_norm},
        {.name = "a window one key too wide", .record = attention, .options = &heads, .mutate = window_by_one},
        {.name = "scores without their cap", .record = attention, .options = &heads, .mutate = cap_of_scores_forgotten},
        {.name = "logits without their cap",
         .record = block,
         .options = &LLAMA_LOSS,
         .mutate = cap_of_logits_forgotten},
        {.name = "documents ignored", .record = attention, .options = &heads, .mutate = documents_ignored},
        {.name = "rope not turned back", .record = rope, .options = &heads, .mutate = rope_not_turned_back},
        {.name = "neighbours turned back as halves",
         .record = rope,
         .options = &heads,
         .mutate = rope_turned_back_as_halves},
        {.name = "another dropout mask", .record = elementwise, .mutate = another_mask},
        {.name = "cotangents of experts by another routing", .record = experts, .mutate = input_routed_otherwise},
        {.name = "experts' gradients by another routing", .record = experts, .mutate = weight_routed_otherwise},
        {.name = "experts' biases by another routing", .record = experts, .mutate = bias_routed_otherwise},
        {.name = "gates without their limit", .record = experts, .mutate = limit_of_gates_forgotten},
        {.name = "a sink's gradient without y", .record = attention, .options = &heads, .mutate = value_of_a_sink},
        {.name = "a tied gradient written over", .record = tied, .mutate = written_over},
        {.name = "a shard of the vocabulary swapped",
         .record = block,
         .options = &LLAMA_LOSS,
         .ranks = 2,
         .mutate = shard_swapped},
    };
    for (unsigned i = 0; i < sizeof mutants / sizeof *mutants; i++) {
        char why[256];
        adjoint_spec honest = mutants[i];
        honest.mutate = NULL;
        honest.gradient_factor = 0;
        assert_true(worst_of(&honest, why) <= 1);
        if (worst_of(&mutants[i], why) <= 1)
            fail_msg("%s was not noticed", mutants[i].name);
    }
}

/* Each collective of the backward pass in turn. */
TEST(a_missing_collective_fails_the_adjoint_test)
{
    int tried = 0;
    for (int i = 0; i < BLOCK_COUNT; i++)
        for (int sequence = 0; sequence < 2; sequence++) {
            adjoint_spec s = {.name = BLOCKS[i].name,
                              .record = block,
                              .options = BLOCKS[i].options,
                              .ranks = 2,
                              .sequence = sequence,
                              .leave_out = true};
            adjoint *a = adjoint_open(&s);
            int collectives = adjoint_collectives(a);
            adjoint_close(a);
            assert_true(collectives >= 2);
            for (s.skip = 0; s.skip < collectives; s.skip++, tried++) {
                char why[256];
                if (worst_of(&s, why) <= 1)
                    fail_msg("%s: collective %d of %d was left out, and nothing was noticed", s.name, s.skip,
                             collectives);
            }
        }
    assert_true(tried >= 16);
}

TEST_MAIN(NULL, NULL)
