/* The order of a step's ops: nothing is used before it is there, the ranks agree, transfers overlap with products. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/order/order.h"
#include "engine/compile/time/timing.h"
#include "engine/compile/step/recompute.h"
#include "memory/log.h"
#include "tests/engine/compile/step/replay.h"
#include "tests/test.h"

typedef struct layout {
    const char *name;
    int tensor, pipeline, data, chunks, microbatches, zero;
    schedule_kind kind;
    bool each, whole_tokens, gpt2;
    recompute how;
    int kv_heads;
} layout;

static const layout layouts[] = {
    {"tensor 2", 2, 1, 1, 1, 3, 0, SCHEDULE_1F1B, false, false, false, RECOMPUTE_NONE, 12},
    {"tensor 2, whole tokens", 2, 1, 1, 1, 3, 0, SCHEDULE_1F1B, false, true, false, RECOMPUTE_NONE, 12},
    {"tensor 3 x stage 2, copies of heads", 3, 2, 1, 1, 4, 1, SCHEDULE_1F1B, false, false, false, RECOMPUTE_SELECTIVE,
     1},
    {"tensor 4, uneven, biases", 4, 1, 1, 1, 2, 0, SCHEDULE_1F1B, false, false, true, RECOMPUTE_FULL, 12},
    {"tensor 2 x stage 2 x data 2, zb-h1", 2, 2, 2, 1, 4, 1, SCHEDULE_ZB_H1, false, false, true, RECOMPUTE_NONE, 12},
    {"tensor 2 x stage 2 x data 2, interleaved", 2, 2, 2, 2, 4, 2, SCHEDULE_INTERLEAVED, true, false, false,
     RECOMPUTE_NONE, 12},
    {"tensor 2 x data 2, zero 3 each", 2, 1, 2, 1, 3, 3, SCHEDULE_1F1B, true, false, false, RECOMPUTE_SELECTIVE, 12},
    {"data 3, zero 3", 1, 1, 3, 1, 2, 3, SCHEDULE_1F1B, true, false, false, RECOMPUTE_NONE, 12},
};

enum { LAYOUTS = sizeof layouts / sizeof *layouts, RANKS = 8 };

static int ranks_of(const layout *l)
{
    return l->tensor * l->pipeline * l->data;
}

static compile_options options_of(const layout *l, int rank)
{
    compile_options o = {.shape = {.architecture = l->gpt2 ? SHAPE_GPT2 : SHAPE_LLAMA,
                                   .layers = 4,
                                   .hidden_size = 96,
                                   .heads = 12,
                                   .kv_heads = l->kv_heads,
                                   .ffn_size = 200,
                                   .vocab_size = 515,
                                   .max_sequence = 32,
                                   .tied_embeddings = l->gpt2},
                         .precision = PRECISION_BF16,
                         .sequence = 32,
                         .micro_batch = 2,
                         .microbatches = l->microbatches,
                         .layout.schedule = l->kind,
                         .layout.virtual_stages = l->chunks,
                         .layout.sequence = !l->whole_tokens,
                         .layout.zero = l->zero,
                         .order = ORDER_HALVED,
                         .layout.bucket = 1 << 14,
                         .layout.zero_gather = l->each,
                         .layout.zero_reduce = l->each,
                         .recompute = l->how,
                         .threads = 1,
                         .train = true};
    shape_fill(&o.shape);
    assert_int_equal(grid_make(&o.grid, ranks_of(l), rank, GRID_SIZES(l->tensor, 1, l->data, l->pipeline)), STATUS_OK);
    return o;
}

static void lower(replay_rank *r, const layout *l, int rank)
{
    compile_options o = options_of(l, rank);
    assert_int_equal(replay_lower(r, &o), STATUS_OK);
}

static program copy_of(const program *p)
{
    program copy = {0};
    for (int i = 0; i < p->count; i++)
        program_append(&copy, p->ops[i]);
    return copy;
}

/* ---- dependences ------------------------------------------------------------------------------------------------ */

static const tensor *operand(const op *o, int k)
{
    return k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN];
}

/* May they share a byte? Transient tensors have none yet: those of one base may. */
static bool meet(const tensor *a, const tensor *b)
{
    const tensor *x = a, *y = b;
    while (x->base)
        x = x->base;
    while (y->base)
        y = y->base;
    if (!tensor_persistent(x) || !tensor_persistent(y))
        return x == y;
    return a->address < b->address + tensor_bytes(b) && b->address < a->address + tensor_bytes(a);
}

static bool depend(const op *a, const op *b)
{
    for (int i = 0; i < ORDER_OPERANDS; i++)
        for (int k = 0; k < ORDER_OPERANDS; k++)
            if ((i >= OP_MAX_IN || k >= OP_MAX_IN) && operand(a, i) && operand(b, k) &&
                meet(operand(a, i), operand(b, k)))
                return true;
    return false;
}

/* Compares every pair of ops with the order as lowered, sharing no code with it. Returns how many ops have moved. */
static int check_pairs(const program *before, const program *after, const char *name)
{
    int moved = 0;
    for (int i = 0; i < before->count; i++) {
        moved += before->ops[i] != after->ops[i];
        before->ops[i]->index = i;
    }
    for (int i = 0; i < after->count; i++)
        for (int k = i + 1; k < after->count; k++)
            if (after->ops[i]->index > after->ops[k]->index && depend(after->ops[i], after->ops[k]))
                fail_msg("%s: %s and %s have changed places", name, after->ops[k]->label, after->ops[i]->label);
    return moved;
}

static void check_order(const layout *l, compile_order how)
{
    replay_rank r;
    program whole = {0};
    lower(&r, l, ranks_of(l) - 1);
    if (how == ORDER_HALVED)
        whole = order_halve(&r.p);
    program before = copy_of(&r.p.list);
    order_list(&r.p.list, how);
    assert_int_equal(order_check(&before, &r.p.list), STATUS_OK);
    int moved = check_pairs(&before, &r.p.list, l->name);
    print_message("%s: %d ops, %d at another place\n", l->name, before.count, moved);
    assert_true(moved > 0);
    program_free(&before);
    program_free(&whole);
    replay_free(&r);
}

TEST(every_dependence_is_kept)
{
    for (int i = 0; i < LAYOUTS; i++)
        for (int how = ORDER_EARLY; how <= ORDER_HALVED; how++)
            check_order(&layouts[i], (compile_order)how);
}

/* ---- the ranks agree -------------------------------------------------------------------------------------------- */

static bool is_collective(const op *o)
{
    return op_communicates(o) && o->kind != OP_send && o->kind != OP_receive;
}

static bool is_product(const op *o)
{
    return o->kind == OP_linear_grad_weight || o->kind == OP_linear_grad_input || o->kind == OP_linear;
}

/* Not the gathers that come before all: one rank may have a bias more than another. */
static int next_of_note(const program *p, int from)
{
    while (from < p->count &&
           ((!is_collective(p->ops[from]) && !is_product(p->ops[from])) || p->ops[from]->phase == PHASE_BEGIN))
        from++;
    return from;
}

static void check_alike(const program *a, const program *b, const char *name)
{
    int i = next_of_note(a, 0), k = next_of_note(b, 0);
    for (; i < a->count && k < b->count; i = next_of_note(a, i + 1), k = next_of_note(b, k + 1))
        if (a->ops[i]->kind != b->ops[k]->kind || a->ops[i]->microbatch != b->ops[k]->microbatch ||
            strcmp(a->ops[i]->label, b->ops[k]->label) != 0)
            fail_msg("%s: one rank has %s where another has %s", name, a->ops[i]->label, b->ops[k]->label);
    assert_true(i == a->count && k == b->count);
}

/* Products and collectives: other rows and biases of its own change no rank's order. */
TEST(all_ranks_of_a_stage_have_one_order)
{
    for (int i = 0; i < LAYOUTS; i++) {
        replay_rank first[RANKS] = {0}, r;
        for (int rank = 0; rank < ranks_of(&layouts[i]); rank++) {
            lower(&r, &layouts[i], rank);
            order_micro_batches(&r.p, ORDER_HALVED);
            int stage = r.c.options.grid.at[GRID_PIPELINE];
            if (!first[stage].p.list.count) {
                first[stage] = r;
                continue;
            }
            check_alike(&first[stage].p.list, &r.p.list, layouts[i].name);
            replay_free(&r);
        }
        for (int stage = 0; stage < layouts[i].pipeline; stage++)
            replay_free(&first[stage]);
    }
}

/* ---- what it is for --------------------------------------------------------------------------------------------- */

/* Collectives of the tensor ranks of one phase whose first user comes with no product in between. */
static int bare(const program *p, phase when)
{
    int count = 0;
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        if (!is_collective(o) || o->where.axis != AXIS_TENSOR || o->phase != when)
            continue;
        bool beside = false;
        int k = i + 1;
        for (; k < p->count && !depend(o, p->ops[k]); k++)
            beside |= is_product(p->ops[k]) || p->ops[k]->kind == OP_attention_grad;
        count += !beside;
    }
    return count;
}

static int bare_after(const layout *l, compile_order how, phase when)
{
    replay_rank r;
    lower(&r, l, 0);
    order_micro_batches(&r.p, how);
    int count = bare(&r.p.list, when);
    replay_free(&r);
    return count;
}

/* Four layers, three micro-batches: of the six collectives of a layer's backward pass none is waited for at once, but
 * for those of the loss and the embedding and the first of each micro-batch. */
TEST(transfers_of_the_backward_pass_have_products_beside_them)
{
    int lowered = bare_after(&layouts[0], ORDER_AS_LOWERED, PHASE_BACKWARD);
    int early = bare_after(&layouts[0], ORDER_EARLY, PHASE_BACKWARD);
    int filled = bare_after(&layouts[0], ORDER_FILLED, PHASE_BACKWARD);
    int whole = bare_after(&layouts[1], ORDER_FILLED, PHASE_BACKWARD);
    print_message(
        "waited for at once: %d of the backward pass as lowered, %d launched early, %d filled (whole tokens: %d)\n",
        lowered, early, filled, whole);
    assert_int_equal(lowered, 3 * (4 * 6 + 1));
    assert_int_equal(early, 3 * (4 * 2 + 1));
    assert_true(filled <= 3);
    assert_true(whole <= 3);
}

/* The first of three micro-batches has no backward pass before it. */
TEST(halves_are_left_for_the_forward_pass)
{
    int lowered = bare_after(&layouts[0], ORDER_AS_LOWERED, PHASE_FORWARD);
    int filled = bare_after(&layouts[0], ORDER_FILLED, PHASE_FORWARD);
    int halved = bare_after(&layouts[0], ORDER_HALVED, PHASE_FORWARD);
    int backward = bare_after(&layouts[0], ORDER_HALVED, PHASE_BACKWARD);
    print_message(
        "waited for at once: %d of the forward pass as lowered, %d filled, %d in halves; %d of the backward pass\n",
        lowered, filled, halved, backward);
    assert_true(filled > lowered * 3 / 4);
    assert_true(halved <= lowered / 3 + lowered / 10);
    assert_true(backward <= 3);
}

/* Four data ranks, layers of a size that is trained. Lowered or in order, until its waits are placed. */
static void compile_gathers(replay_rank *r, int zero, compile_order how)
{
    static const layout four = {"data 4", 1, 1, 4, 1, 2, 0, SCHEDULE_1F1B, false, false, false, RECOMPUTE_NONE, 12};
    layout l = four;
    l.zero = zero;
    compile_options o = options_of(&l, 1);
    o.shape.hidden_size = 1536;
    o.shape.head_size = 128;
    o.shape.ffn_size = 4096;
    o.shape.max_sequence = o.sequence = 1024;
    o.shape.tied_embeddings = true; /* the head, too, reads what is gathered for the embedding */
    o.order = how;
    assert_int_equal(replay_compile(r, &o, false, NULL, NULL), STATUS_OK);
}

static int wait_of(const program *p, const op *launch)
{
    int i = 0;
    while (i < p->count && (!op_waits(p->ops[i]) || p->ops[i]->where.request != launch->where.request))
        i++;
    assert_true(i < p->count);
    return i;
}

/* Counts gathers of updated weights with a product between launch and wait; all launch before anything computes. */
static int gathers_beside_products(int *gathers, const program *p)
{
    int beside = 0, i = 0;
    for (*gathers = 0; p->ops[i]->kind == OP_all_gather || op_waits(p->ops[i]); i++) {
        bool product = false;
        int end = op_waits(p->ops[i]) ? 0 : wait_of(p, p->ops[i]);
        for (int k = i; k < end; k++)
            product |= is_product(p->ops[k]);
        beside += product;
        *gathers += end > 0;
    }
    for (; i < p->count; i++)
        assert_true(p->ops[i]->kind != OP_all_gather);
    return beside;
}

/* Seconds for which a step on h100s waits for them. */
static double exposed_gathers(const replay_rank *r)
{
    timing p;
    timing_open(&p, (profile[]){profile_named("h100")}, 1);
    timing_add(&p, &r->c.options.grid, &r->p.list, r->p.requests);
    assert_int_equal(timing_run(&p), STATUS_OK);
    double seconds = timing_seconds(&p, 0, PHASE_BEGIN);
    timing_free(&p);
    return seconds;
}

/* With ZeRO 1 and 2, weights are gathered while the first layers of the next step compute. */
TEST(updated_weights_are_gathered_behind_the_first_layers)
{
    for (int zero = 1; zero <= 2; zero++) {
        replay_rank lowered, ordered;
        int gathers, first_layers;
        compile_gathers(&lowered, zero, ORDER_AS_LOWERED);
        compile_gathers(&ordered, zero, ORDER_HALVED);
        assert_int_equal(gathers_beside_products(&gathers, &lowered.p.list), 0);
        first_layers = gathers - gathers_beside_products(&gathers, &ordered.p.list);
        double before = exposed_gathers(&lowered), after = exposed_gathers(&ordered);
        print_message("zero %d: %d gathers, %d of them without a product beside them; waited for %.3f ms as lowered, "
                      "%.3f ms in order\n",
                      zero, gathers, first_layers, 1e3 * before, 1e3 * after);
        assert_true(gathers > 4 * 4);
        assert_int_equal(first_layers, 3); /* the embedding; norm and projection before the first product */
        assert_true(before > 0 && after < before / 2);
        replay_free(&lowered);
        replay_free(&ordered);
    }
}

/* Where the two halves of a product are: the rows of its gradient, once each, and the columns that they are made of. */
TEST(halves_are_the_whole)
{
    replay_rank r;
    lower(&r, &layouts[3], 3);
    program whole = order_halve(&r.p);
    int products = 0, i = 0;
    for (int k = 0; k < whole.count; k++) {
        const op *o = whole.ops[k], *first = r.p.list.ops[i++];
        if (o->kind != OP_linear_grad_weight) {
            assert_ptr_equal(o, first);
            continue;
        }
        const op *second = r.p.list.ops[i++];
        const tensor *dw = o->out[0], *a = first->out[0], *b = second->out[0], *dy = o->in[0];
        int64_t rows = a->shape[0], width = dtype_bytes((dtype)dy->type);
        assert_true(rows > 0 && b->shape[0] > 0);
        assert_int_equal(rows + b->shape[0], dw->shape[0]);
        assert_true(a->address == dw->address && b->address == dw->address + rows * dw->pitch * 4);
        assert_true(first->in[0]->shape[1] == rows && second->in[0]->shape[1] == b->shape[0]);
        assert_true(first->in[0]->offset == dy->offset && second->in[0]->offset == dy->offset + rows * width);
        assert_true(first->in[0]->pitch == dy->pitch && second->in[0]->pitch == dy->pitch);
        assert_true(first->in[1] == o->in[1] && second->in[1] == o->in[1]);
        assert_true(first->at.accumulate == o->at.accumulate && second->at.accumulate == o->at.accumulate);
        products++;
    }
    assert_true(products > 20 && i == r.p.list.count);
    order_join(&r.p.list, &whole); /* nothing has moved: all are joined */
    assert_int_equal(r.p.list.count, whole.count);
    for (int k = 0; k < whole.count; k++)
        assert_ptr_equal(r.p.list.ops[k], whole.ops[k]);
    program_free(&whole);
    replay_free(&r);
}

/* ---- mutants ---------------------------------------------------------------------------------------------------- */

static void move(program *p, int from, int to)
{
    op *o = p->ops[from];
    int step = to > from ? 1 : -1;
    for (int i = from; i != to; i += step)
        p->ops[i] = p->ops[i + step];
    p->ops[to] = o;
}

static int find(const program *p, int from, bool (*is)(const op *o))
{
    while (from < p->count && !is(p->ops[from]))
        from++;
    assert_true(from < p->count);
    return from;
}

static bool is_reduce_scatter(const op *o)
{
    return o->kind == OP_reduce_scatter;
}

static bool is_weight_product(const op *o)
{
    return o->kind == OP_linear_grad_weight;
}

static bool is_send(const op *o)
{
    return o->kind == OP_send;
}

static void refused(const program *before, const program *after, const char *why)
{
    assert_int_equal(order_check(before, after), STATUS_FAILED);
    print_message("refused: %s\n", status_message());
    assert_non_null(strstr(status_message(), why));
}

TEST(mutants_of_the_order_are_refused)
{
    replay_rank r;
    lower(&r, &layouts[4], 0);
    const program before = r.p.list;
    program p = copy_of(&before);

    int launch = find(&p, 0, is_reduce_scatter); /* before the op that makes its operand */
    move(&p, launch, launch - 1);
    refused(&before, &p, "reads another value");
    move(&p, launch - 1, launch);

    int product = find(&p, 0, is_weight_product), other = product; /* after the next one that adds to its gradient */
    do
        other = find(&p, other + 1, is_weight_product);
    while (p.ops[other]->out[0] != p.ops[product]->out[0]);
    move(&p, product, other);
    refused(&before, &p, "writes in another turn");
    move(&p, other, product);

    int send = find(&p, 0, is_send), after = find(&p, send, is_collective); /* past a message */
    op *alone = p.ops[after];
    memset(alone->in, 0, sizeof alone->in);
    memset(alone->out, 0, sizeof alone->out);
    move(&p, after, send);
    refused(&before, &p, "passed a message");
    move(&p, send, after);

    p.ops[product] = p.ops[other];
    refused(&before, &p, "twice");
    program_free(&p);
    replay_free(&r);
}

/* An op of the part that is read must be read before it is overwritten. */
TEST(an_early_overwrite_is_refused)
{
    replay_rank r;
    lower(&r, &layouts[0], 0);
    program p = copy_of(&r.p.list);
    int reader = find(&p, 0, is_weight_product);
    op overwrite = {.kind = OP_zero, .label = "overwrite", .out = {p.ops[reader]->in[0]}};
    program before = {0};
    for (int i = 0; i < p.count; i++) {
        program_append(&before, p.ops[i]);
        if (i == reader)
            program_append(&before, &overwrite);
    }
    program after = copy_of(&before);
    assert_int_equal(order_check(&before, &after), STATUS_OK);
    move(&after, reader + 1, reader);
    refused(&before, &after, "");
    program_free(&p);
    program_free(&before);
    program_free(&after);
    replay_free(&r);
}

/* Of a program with waits, in order: each wait in turn after the op that it is for. */
TEST(a_wait_too_late_is_noticed)
{
    char text[REPLAY_TEXT];
    compile_options o = options_of(&layouts[0], 0);
    replay_rank r;
    int tried = 0;
    assert_int_equal(replay_compile(&r, &o, true, NULL, NULL), STATUS_OK);
    assert_true(replay_memory(text, &r));
    for (int i = 0; i + 1 < r.p.list.count; i++) {
        size_t row = OP_MAX_IN + OP_MAX_OUT;
        if (!op_waits(r.p.list.ops[i]) || op_waits(r.p.list.ops[i + 1]))
            continue;
        for (int back = 0; back < 2; back++) {
            move(&r.p.list, i, i + 1);
            for (size_t k = 0; k < row; k++) {
                size_t a = (size_t)i * row + k, b = a + row;
                int root = r.roots[a];
                int64_t offset = r.offsets[a], pitch = r.pitches[a];
                r.roots[a] = r.roots[b], r.offsets[a] = r.offsets[b], r.pitches[a] = r.pitches[b];
                r.roots[b] = root, r.offsets[b] = offset, r.pitches[b] = pitch;
            }
            assert_true(replay_memory(text, &r) == (back == 1));
            tried += back;
        }
    }
    print_message("%d waits moved behind the op that they are for: each noticed\n", tried);
    assert_true(tried > 100);
    replay_free(&r);
}

/* Two ranks, which share no group, in the order in which their ops were lowered, the other two not: each waits for
 * another. */
TEST(two_ranks_in_another_order_are_noticed)
{
    char text[REPLAY_TEXT];
    replay_rank all[4];
    for (int other = 0; other < 2; other++) {
        for (int i = 0; i < 4; i++) {
            compile_options o = options_of(&layouts[6], i);
            o.order = !other || i == 0 || i == 3 ? ORDER_HALVED : ORDER_AS_LOWERED;
            assert_int_equal(replay_compile(&all[i], &o, false, NULL, NULL), STATUS_OK);
        }
        assert_true(replay_messages(text, all, 4) == (other == 0));
        for (int i = 0; i < 4; i++)
            replay_free(&all[i]);
    }
    print_message("noticed: %s\n", text);
}

/* ---- memory ----------------------------------------------------------------------------------------------------- */

static int64_t arena_with(compile_order *how, const layout *l, int rank, int64_t budget, bool order)
{
    compiled c;
    compile_options o = options_of(l, rank);
    o.order = order ? ORDER_HALVED : ORDER_AS_LOWERED;
    o.budget = budget;
    o.layout.zero = 0;
    if (compile(&c, &o) != STATUS_OK)
        fail_msg("%s", status_message());
    int64_t bytes = c.arena_bytes;
    *how = c.order;
    compile_free(&c);
    return bytes;
}

/* Products that move keep their operands alive, in memory that is left. All ranks of the stage decide alike. */
TEST(the_order_keeps_to_the_budget)
{
    const layout *l = &layouts[2];
    compile_order how, other;
    int64_t lowered = arena_with(&how, l, 0, 0, false);
    assert_int_equal(how, ORDER_AS_LOWERED);
    int64_t filled = arena_with(&how, l, 0, 0, true);
    assert_int_equal(how, ORDER_HALVED);
    bool seen[ORDER_HALVED + 1] = {false};
    for (int i = 0; i < 8; i++) {
        int64_t budget = filled + filled / 50 - i * filled / 80;
        assert_true(arena_with(&how, l, 0, budget, true) <= budget);
        assert_true(arena_with(&other, l, 1, budget, true) <= budget);
        assert_int_equal(how, other);
        seen[how] = true;
    }
    print_message("%lld bytes as lowered, %lld in order\n", (long long)lowered, (long long)filled);
    assert_true(seen[ORDER_HALVED] && seen[ORDER_FILLED] && seen[ORDER_EARLY]);
}

TEST_MAIN(NULL, NULL)
