/* Products of the forward pass in parts: they are the whole, the ranks agree on them, and a transfer has one beside
 * it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/order/order.h"
#include "engine/compile/time/timing.h"
#include "memory/log.h"
#include "tests/engine/compile/step/replay.h"
#include "tests/test.h"

typedef struct layout {
    const char *name;
    int tensor, pipeline, data, chunks, kv_heads;
    bool gpt2, each; /* weights gathered and gradients reduced each micro-batch, with ZeRO 3 */
    int64_t tokens;
} layout;

static const layout layouts[] = {
    {"tensor 2", 2, 1, 1, 1, 12, false, false, 64},
    {"tensor 3 x stage 2, copies of heads, tokens unevenly divided", 3, 2, 1, 1, 1, false, false, 64},
    {"tensor 4, uneven, biases", 4, 1, 1, 1, 12, true, false, 62},
    {"tensor 2 x stage 2, interleaved", 2, 2, 1, 2, 12, false, false, 64},
    {"tensor 6, of which some have no token", 6, 1, 1, 1, 12, false, false, 4},
    {"tensor 3 x data 2, biases that one rank gathers", 3, 1, 2, 1, 12, true, true, 64},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts, RANKS = 6 };

static int ranks_of(const layout *l)
{
    return l->tensor * l->pipeline * l->data;
}

static compile_options options_of(const layout *l, int rank, compile_order how)
{
    compile_options o = {.shape = {.architecture = l->gpt2 ? SHAPE_GPT2 : SHAPE_LLAMA,
                                   .layers = 4,
                                   .hidden_size = 96,
                                   .heads = 12,
                                   .kv_heads = l->kv_heads,
                                   .ffn_size = 200,
                                   .vocab_size = 515,
                                   .max_sequence = 64,
                                   .tied_embeddings = l->gpt2},
                         .precision = PRECISION_BF16,
                         .sequence = l->tokens / 2,
                         .micro_batch = 2,
                         .microbatches = 4,
                         .layout.schedule = l->chunks > 1 ? SCHEDULE_INTERLEAVED : SCHEDULE_1F1B,
                         .layout.virtual_stages = l->chunks,
                         .layout.sequence = true,
                         .layout.zero = l->each ? 3 : 1,
                         .layout.zero_gather = l->each,
                         .layout.zero_reduce = l->each,
                         .recompute = l->each ? RECOMPUTE_SELECTIVE : RECOMPUTE_NONE,
                         .order = how,
                         .threads = 1,
                         .train = true};
    shape_fill(&o.shape);
    assert_int_equal(grid_make(&o.grid, ranks_of(l), rank, GRID_SIZES(l->tensor, 1, l->data, l->pipeline)), STATUS_OK);
    return o;
}

static program copy_of(const program *p)
{
    program copy = {0};
    for (int i = 0; i < p->count; i++)
        program_append(&copy, p->ops[i]);
    return copy;
}

static bool is_forward_transfer(const op *o)
{
    return (o->kind == OP_all_gather || o->kind == OP_reduce_scatter) && o->phase == PHASE_FORWARD &&
           o->where.axis == AXIS_TENSOR;
}

static const op *maker_of(const program *p, const tensor *t)
{
    for (int i = 0; i < p->count; i++)
        if (p->ops[i]->out[0] == t)
            return p->ops[i];
    return NULL;
}

/* ---- the parts are the whole
 * -------------------------------------------------------------------------------------- */

/* Columns of the scatter's result: each once, from the columns' own product, whole sums and no others. */
static bool columns_are_whole(const program *p, const op *product, const op *scatter)
{
    const tensor *z = scatter->out[0], *w = product->in[1];
    int64_t element = dtype_bytes((dtype)z->type), at = 0;
    for (int i = 0; i < p->count; i++) {
        const op *copy = p->ops[i];
        if (copy->kind != OP_copy || copy->out[0]->base != z)
            continue;
        const op *sums = maker_of(p, copy->in[0]), *part = sums ? maker_of(p, sums->in[0]) : NULL;
        int64_t count = copy->out[0]->shape[1];
        if (!part || sums->kind != OP_reduce_scatter || part->kind != OP_linear ||
            sums->where.rows != scatter->where.rows)
            return false;
        if (copy->out[0]->offset != at * element || copy->out[0]->pitch != z->pitch || part->in[0] != product->in[0])
            return false;
        if (part->in[1]->shape[0] != count || part->in[1]->offset != w->offset + at * w->pitch * element)
            return false;
        if (!part->in[2] != !product->in[2] ||
            (part->in[2] && part->in[2]->offset != product->in[2]->offset + at * element))
            return false;
        at += count;
    }
    return at == z->shape[1] && !maker_of(p, product->out[0]) && !maker_of(p, z);
}

/* Rows of the product's results: each once, the rank's own first and from what it gave to the gather. */
static bool rows_are_whole(const program *p, const op *gather, const op *product)
{
    const tensor *x = gather->in[0], *full = gather->out[0];
    int64_t first, count, rows = full->shape[0], covered = 0, width = full->pitch * dtype_bytes((dtype)full->type);
    shard_rows(&first, &count, rows, gather->where.group_size, gather->where.group_rank);
    for (int i = 0; i < p->count; i++) {
        const op *part = p->ops[i];
        const tensor *y = part->kind == product->kind ? part->out[0] : NULL;
        if (!y || tensor_root(part->out[0]) != tensor_root(product->out[0]) || part->phase != PHASE_FORWARD)
            continue;
        int64_t from = y->offset / (y->pitch * dtype_bytes((dtype)y->type)), n = y->shape[0];
        const tensor *in = part->in[0];
        bool own = in->base == (x->base ? x->base : x);
        if (part->in[1] != product->in[1] || part->in[2] != product->in[2] || in->shape[0] != n)
            return false;
        if (own ? from != first || n != count || in->offset != x->offset || covered > 0
                : in->base != full || in->offset != from * width || (count > 0 && covered == 0))
            return false;
        covered += n;
    }
    return covered == rows;
}

/* Of all transfers of the forward pass, those with parts beside them now: scatters and gathers. Fails where parts are
 * not the whole. */
static void count_cuts(int cut[2], const program *before, const program *after, const char *name)
{
    for (int i = 0; i < before->count; i++) {
        const op *o = before->ops[i], *next = i + 1 < before->count ? before->ops[i + 1] : o;
        bool there = false;
        for (int k = 0; k < after->count; k++)
            there |= after->ops[k] == o;
        if (there || o->kind == OP_reduce_scatter)
            continue;
        bool columns = is_forward_transfer(next) && next->kind == OP_reduce_scatter;
        if (columns ? !columns_are_whole(after, o, next) : !rows_are_whole(after, maker_of(before, o->in[0]), o))
            fail_msg("%s: the parts of %s are not the whole", name, o->label);
        cut[!columns]++;
    }
}

static void cut_all(replay_rank *r, program *before, const layout *l, int rank)
{
    program all = {0};
    compile_options o = options_of(l, rank, ORDER_HALVED_PARTS);
    assert_int_equal(replay_lower(r, &o), STATUS_OK);
    *before = copy_of(&r->p.list);
    for (int i = 0; i < before->count; i++)
        if (is_forward_transfer(before->ops[i]))
            program_append(&all, before->ops[i]);
    order_parts_cut(&r->p, &all);
    program_free(&all);
}

/* Of every layer both products before a scatter and both after a gather: none is too narrow. */
TEST(parts_are_the_whole)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int rank = 0; rank < ranks_of(&layouts[i]); rank++) {
            replay_rank r;
            program before;
            int cut[2] = {0};
            cut_all(&r, &before, &layouts[i], rank);
            count_cuts(cut, &before, &r.p.list, layouts[i].name);
            int layers = 4 * 4 / layouts[i].pipeline;
            print_message("%s, rank %d: %d scatters and %d gathers in parts\n", layouts[i].name, rank, cut[0], cut[1]);
            assert_int_equal(cut[0], 2 * layers);
            assert_int_equal(cut[1], 2 * layers);
            program_free(&before);
            replay_free(&r);
        }
}

static int find(const program *p, int from, op_kind kind)
{
    while (from < p->count && (p->ops[from]->kind != kind || p->ops[from]->phase != PHASE_FORWARD))
        from++;
    assert_true(from < p->count);
    return from;
}

/* The first scatter that was cut, and the first gather before it. */
static void first_cuts(const op *scatter[2], const op *gather[2], const program *before)
{
    int at = find(before, 0, OP_linear); /* attention's */
    gather[0] = before->ops[at - 1];
    gather[1] = before->ops[at];
    at = find(before, at + 1, OP_linear);
    scatter[0] = before->ops[at];
    scatter[1] = before->ops[at + 1];
}

/* A part of the wrong columns, rows of another rank, a part too few. */
TEST(parts_that_are_not_the_whole_are_noticed)
{
    replay_rank r;
    program before;
    const op *scatter[2], *gather[2];
    cut_all(&r, &before, &layouts[0], 1);
    first_cuts(scatter, gather, &before);
    assert_true(columns_are_whole(&r.p.list, scatter[0], scatter[1]));
    assert_true(rows_are_whole(&r.p.list, gather[0], gather[1]));

    op *copy = r.p.list.ops[find(&r.p.list, 0, OP_copy)];
    tensor *w = maker_of(&r.p.list, maker_of(&r.p.list, copy->in[0])->in[0])->in[1];
    w->offset += w->pitch * 2; /* a row of the weight further */
    assert_false(columns_are_whole(&r.p.list, scatter[0], scatter[1]));
    w->offset -= w->pitch * 2;
    copy->kind = OP_zero;
    assert_false(columns_are_whole(&r.p.list, scatter[0], scatter[1]));
    copy->kind = OP_copy;

    op *own = r.p.list.ops[find(&r.p.list, 0, OP_linear)];
    assert_ptr_not_equal(own->in[0]->base, gather[0]->out[0]);
    own->out[0]->offset = 0; /* rank 1's rows where rank 0's belong */
    assert_false(rows_are_whole(&r.p.list, gather[0], gather[1]));
    program_free(&before);
    replay_free(&r);
}

/* ---- all ranks --------------------------------------------------------------------------------------------------- */

static void check_ranks(const layout *l, compile_order how)
{
    replay_rank all[RANKS] = {0};
    char text[REPLAY_TEXT];
    int ranks = ranks_of(l);
    for (int i = 0; i < ranks; i++) {
        compile_options o = options_of(l, i, how);
        assert_int_equal(replay_compile(&all[i], &o, true, NULL, NULL), STATUS_OK);
        if (!replay_memory(text, &all[i]))
            fail_msg("%s, rank %d: %s", l->name, i, text);
    }
    if (!replay_messages(text, all, ranks))
        fail_msg("%s: %s", l->name, text);
    for (int i = 0; i < ranks; i++)
        replay_free(&all[i]);
}

/* Whatever rows and biases are their own. */
TEST(the_ranks_meet_and_find_their_bytes)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int how = ORDER_EARLY_PARTS; how < ORDER_COUNT; how++)
            check_ranks(&layouts[i], (compile_order)how);
}

static bool one_without(const layout *l, char text[REPLAY_TEXT], bool without)
{
    replay_rank all[RANKS] = {0};
    int ranks = ranks_of(l);
    for (int i = 0; i < ranks; i++) {
        compile_options o = options_of(l, i, without && i == 1 ? ORDER_HALVED : ORDER_HALVED_PARTS);
        assert_int_equal(replay_compile(&all[i], &o, false, NULL, NULL), STATUS_OK);
    }
    bool meet = replay_messages(text, all, ranks);
    for (int i = 0; i < ranks; i++)
        replay_free(&all[i]);
    return meet;
}

TEST(a_rank_without_parts_is_noticed)
{
    char text[REPLAY_TEXT];
    assert_true(one_without(&layouts[0], text, false));
    assert_false(one_without(&layouts[0], text, true));
    print_message("noticed: %s\n", text);
}

/* ---- what it is for
 * ----------------------------------------------------------------------------------------------- */

static const profile *h100(void)
{
    static profile p;
    p = profile_named("h100");
    return &p;
}

/* As many micro-batches as stages, of a model that is trained: nearly all forward passes come before the first backward
 * pass. */
static timing *timing_eight(compile_order how)
{
    enum { STAGES = 4 };
    static const layout wide = {"tensor 8 x stage 4", 8, STAGES, 1, 1, 8, false, false, 8192};
    timing *p = must_calloc(1, sizeof *p);
    timing_open(p, h100(), STAGES);
    for (int stage = 0; stage < STAGES; stage++) {
        compile_options o = options_of(&wide, 8 * stage, how);
        replay_rank r;
        o.shape.heads = 64;
        o.shape.hidden_size = 8192;
        o.shape.head_size = 128;
        o.shape.ffn_size = 28672;
        o.shape.max_sequence = o.sequence;
        assert_int_equal(replay_compile(&r, &o, false, NULL, NULL), STATUS_OK);
        timing_add(p, &r.c.options.grid, &r.p.list, r.p.requests);
        replay_free(&r);
    }
    assert_int_equal(timing_run(p), STATUS_OK);
    return p;
}

TEST(the_forward_pass_waits_for_less_and_the_step_is_shorter)
{
    timing *lowered = timing_eight(ORDER_AS_LOWERED), *halved = timing_eight(ORDER_HALVED),
           *parts = timing_eight(ORDER_HALVED_PARTS);
    print_message("a step %.2f, %.2f, %.2f ms as lowered, in halves, in parts too; waiting for tensor ranks %.2f, "
                  "%.2f, %.2f ms\n",
                  1e3 * lowered->seconds, 1e3 * halved->seconds, 1e3 * parts->seconds,
                  1e3 * lowered->exposed[AXIS_TENSOR], 1e3 * halved->exposed[AXIS_TENSOR],
                  1e3 * parts->exposed[AXIS_TENSOR]);
    assert_true(parts->seconds < 0.99 * halved->seconds && halved->seconds < lowered->seconds);
    assert_true(parts->exposed[AXIS_TENSOR] < lowered->exposed[AXIS_TENSOR] / 3);
    assert_true(halved->exposed[AXIS_TENSOR] > lowered->exposed[AXIS_TENSOR] / 3);
    timing *all[] = {lowered, halved, parts};
    for (int i = 0; i < 3; i++) {
        timing_free(all[i]);
        free(all[i]);
    }
}

/* Parts need no room to speak of: what a budget gives up first are the products that are held back. */
TEST(a_budget_gives_up_parts_last)
{
    compiled c;
    compile_options o = options_of(&layouts[0], 0, ORDER_HALVED_PARTS), other = options_of(&layouts[0], 1, o.order);
    assert_int_equal(compile(&c, &o), STATUS_OK);
    int64_t free_of = c.arena_bytes;
    bool seen[ORDER_COUNT] = {false};
    compile_free(&c);
    for (int i = 0; i < 7; i++) {
        o.budget = other.budget = free_of + free_of / 50 - i * free_of / 80;
        if (compile(&c, &o) != STATUS_OK)
            fail_msg("%d: %s", i, status_message());
        compile_order how = c.order;
        seen[how] = true;
        assert_true(c.arena_bytes <= o.budget);
        compile_free(&c);
        assert_int_equal(compile(&c, &other), STATUS_OK);
        assert_int_equal(c.order, how);
        compile_free(&c);
    }
    for (int i = 0; i < ORDER_COUNT; i++)
        if (seen[i])
            print_message("order %d\n", i);
    assert_true(seen[ORDER_HALVED_PARTS] && (seen[ORDER_FILLED_PARTS] || seen[ORDER_EARLY_PARTS]));
    assert_false(seen[ORDER_HALVED]);
}

TEST_MAIN(NULL, NULL)
