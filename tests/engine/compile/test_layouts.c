/* Every rank's program of some hundred layouts, replayed: what replay.h promises, over the matrix of parallelism. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile_find.h"
#include "engine/compile/compile.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cover.h"
#include "tests/engine/compile/step/replay.h"
#include "tests/test.h"

enum { LAYERS = 8, HIDDEN = 96, HEADS = 12, SEQUENCE = 64, VOCABULARY = 515, LAYOUTS = 192 };

typedef struct layout {
    int tensor, pipeline, data, chunks, microbatches, zero;
    schedule_kind kind;
    bool gather_each, reduce_each, sequence, gpt2;
    bool mtp; /* experts, and a block behind the last layer */
    compile_order order;
    recompute how;
    int kv_heads;
    int64_t bucket, window; /* 0: nothing is offloaded */
    precision_kind precision;
    bool divided;           /* the vocabulary, over the stages */
    compress_kind compress; /* of gradients, with ZeRO 0 and 1 */
} layout;

static model_shape shape_of(const layout *l)
{
    model_shape s = {.architecture = l->mtp    ? SHAPE_GLM4_MOE
                                     : l->gpt2 ? SHAPE_GPT2
                                               : SHAPE_LLAMA,
                     .experts = l->mtp ? 4 : 0,
                     .dense_layers = l->mtp,
                     .mtp_layers = l->mtp,
                     .layers = LAYERS,
                     .hidden_size = HIDDEN,
                     .heads = HEADS,
                     .kv_heads = l->kv_heads,
                     .ffn_size = 200,
                     .vocab_size = VOCABULARY,
                     .max_sequence = SEQUENCE,
                     .tied_embeddings = l->gpt2};
    shape_fill(&s);
    return s;
}

static compile_options options_of(const layout *l, int rank)
{
    compile_options o = {.shape = shape_of(l),
                         .precision = l->precision,
                         .sequence = SEQUENCE,
                         .micro_batch = 2,
                         .microbatches = l->microbatches,
                         .layout.schedule = l->kind,
                         .layout.virtual_stages = l->chunks,
                         .layout.sequence = l->sequence,
                         .layout.zero = l->zero,
                         .layout.vocabulary = l->divided,
                         .order = l->order,
                         .layout.bucket = l->bucket,
                         .layout.zero_gather = l->gather_each,
                         .layout.zero_reduce = l->reduce_each,
                         .recompute = l->how,
                         .threads = 1,
                         .offload = l->window > 0,
                         .window = l->window,
                         .compress = {l->compress, 0.05},
                         .backend = l->window ? NULL : &cpu_backend, /* the CPU offloads nothing */
                         .train = true};
    int ranks = l->tensor * l->pipeline * l->data;
    assert_int_equal(grid_make(&o.grid, ranks, rank, GRID_SIZES(l->tensor, 1, l->data, l->pipeline)), STATUS_OK);
    return o;
}

static const char *describe(char out[240], const layout *l)
{
    snprintf(out, 240,
             "tensor %d%s x pipeline %d (%s, %d chunks) x data %d (zero %d%s%s, buckets of %lld), %d micro-batches, "
             "recompute %d, order %d, "
             "%s%s%s%s%s",
             l->tensor, l->sequence ? "+sequence" : "", l->pipeline, schedule_name(l->kind), l->chunks, l->data,
             l->zero, l->gather_each ? ", gather each" : "", l->reduce_each ? ", reduce each" : "",
             (long long)l->bucket, l->microbatches, l->how, l->order,
             l->mtp    ? "glm4_moe with mtp"
             : l->gpt2 ? "gpt2"
                       : "llama",
             l->divided ? ", vocabulary divided" : "", l->window ? ", offloaded" : "",
             l->compress ? ", compressed: " : "", l->compress ? compress_words[l->compress] : "");
    return out;
}

/* ---- the matrix
 * ------------------------------------------------------------------------------------------------------ */

static uint64_t state_of_draws = 1;

static int draw(int n)
{
    state_of_draws = state_of_draws * 6364136223846793005u + 1442695040888963407u;
    return (int)((state_of_draws >> 33) % (uint64_t)n);
}

/* The first layouts walk through tensor x pipeline x data x ZeRO; the rest is drawn. */
static layout layout_number(int i)
{
    static const recompute ways[] = {RECOMPUTE_NONE, RECOMPUTE_SELECTIVE, RECOMPUTE_FULL};
    static const int kv[] = {12, 1, 12, 12};
    static const int64_t buckets[] = {0, 1 << 10, 100 << 10, 1 << 30};
    static const compile_order orders[] = {ORDER_FILLED, ORDER_HALVED_PARTS, ORDER_HALVED, ORDER_HALVED_PARTS,
                                           ORDER_AS_LOWERED};
    layout l = {.tensor = 1 + i % 4, .pipeline = 1 + i / 4 % 4, .data = 1 + i / 16 % 3, .zero = i / 48 % 4};
    l.kind = i % 40 == 13 ? SCHEDULE_AUTO : (schedule_kind)draw(SCHEDULE_KINDS); /* a search takes a second */
    bool two = l.kind == SCHEDULE_INTERLEAVED || l.kind == SCHEDULE_AUTO || schedule_kind_folds(l.kind);
    l.chunks = two && l.pipeline > 1 ? 2 : 1;
    l.microbatches = 1 + draw(8);
    l.gather_each = draw(2);
    l.reduce_each = draw(2);
    l.sequence = draw(3) > 0;
    l.gpt2 = draw(2);
    l.how = ways[draw(3)];
    l.kv_heads = l.gpt2 ? HEADS : kv[draw(4)];
    l.precision = draw(2) ? PRECISION_BF16 : PRECISION_FP32;
    l.bucket = buckets[draw(4)];
    l.window = i % 3 == 1 ? (int64_t)40 << (i % 2 * 8) << 10 : 0;
    l.divided = i % 7 < 3;
    l.order = orders[i % 5];
    l.mtp = i % 7 == 2; /* the vocabulary is divided */
    l.sequence |= l.mtp;
    return l;
}

typedef struct tally {
    int divided;               /* layouts whose vocabulary is divided over several stages */
    int layouts, ranks, above; /* ranks whose arena is above 1.02 x the bound */
    double worst;
    char worst_text[240];
} tally;

/* The ranks between the first and the last of an axis are like one of them. */
static bool is_corner(const grid *g)
{
    return (g->at[GRID_TENSOR] == 0 || g->at[GRID_TENSOR] == g->size[GRID_TENSOR] - 1) &&
           (g->at[GRID_DATA] == 0 || g->at[GRID_DATA] == g->size[GRID_DATA] - 1);
}

static double check_rank(tally *t, const replay_rank *r, const char *name)
{
    char text[REPLAY_TEXT];
    int rank = r->c.options.grid.rank;
    if (!replay_memory(text, r))
        fail_msg("%s, rank %d: %s", name, rank, text);
    double ratio = (double)r->p.transient_bytes / (double)r->p.lower_bound;
    t->ranks++;
    t->above += ratio > 1.02;
    if (ratio > t->worst) {
        t->worst = ratio;
        strcpy(t->worst_text, name);
    }
    if (!(ratio <= 1.1))
        fail_msg("%s, rank %d: %.3f times the lower bound", name, rank, ratio);
    return ratio;
}

/* The schedule of a layout that asks for one to be found, or NULL; freed by the caller. */
static const schedule *found_for(schedule *out, const layout *l)
{
    *out = (schedule){0};
    if (l->kind != SCHEDULE_AUTO || l->pipeline == 1)
        return NULL;
    compile_options o = options_of(l, 0);
    if (compile_find(out, &o) != STATUS_OK)
        fail_msg("%s", status_message());
    return out;
}

static void check_layout(tally *t, const layout *l)
{
    schedule found;
    const schedule *its = found_for(&found, l);
    char text[REPLAY_TEXT], name[240];
    int ranks = l->tensor * l->pipeline * l->data;
    replay_rank *all = must_calloc((unsigned long)ranks, sizeof *all);
    double largest = 1;
    describe(name, l);
    for (int i = 0; i < ranks; i++) {
        compile_options o = options_of(l, i);
        o.found = its;
        bool place = is_corner(&o.grid);
        if (replay_compile(&all[i], &o, place, NULL, NULL) != STATUS_OK)
            fail_msg("%s: %s", name, status_message());
        double ratio = place ? check_rank(t, &all[i], name) : 1;
        largest = ratio > largest ? ratio : largest;
    }
    if (largest > 1.02)
        print_message("  %.4f x the bound: %s\n", largest, name);
    if (!replay_messages(text, all, ranks))
        fail_msg("%s: %s", name, text);
    t->layouts++;
    t->divided += l->divided && l->pipeline > 1;
    for (int i = 0; i < ranks; i++)
        replay_free(&all[i]);
    free(all);
    schedule_free(&found);
}

/* What a covering third has to hold: every value of every axis, and of all that is drawn. */
static char *facts_of(const layout *l)
{
    return must_format(
        "tensor=%d pipeline=%d data=%d zero=%d %s chunks=%d gather=%d reduce=%d bucket=%lld how=%d order=%d gpt2=%d "
        "sequence=%d type=%d kv=%d divided=%d offload=%d",
        l->tensor, l->pipeline, l->data, l->zero, schedule_name(l->kind), l->chunks, l->gather_each, l->reduce_each,
        (long long)l->bucket, l->how, l->order, l->gpt2, l->sequence, l->precision, l->kv_heads, l->divided,
        l->window > 0);
}

TEST(every_read_finds_what_was_written_and_every_message_meets)
{
    static layout all[LAYOUTS];
    char *facts[LAYOUTS];
    bool takes[LAYOUTS];
    tally t = {.worst = 1};
    for (int i = 0; i < LAYOUTS; i++) {
        all[i] = layout_number(i);
        facts[i] = facts_of(&all[i]);
    }
    cover_take(takes, (const char *const *)facts, LAYOUTS, 3);
    int wanted = 0;
    for (int i = 0; i < LAYOUTS; i++) {
        wanted += takes[i];
        if (takes[i])
            check_layout(&t, &all[i]);
        free(facts[i]);
    }
    print_message("%d layouts, %d ranks; above 1.02 x the bound: %d, worst %.4f (%s)\n", t.layouts, t.ranks, t.above,
                  t.worst, t.worst_text);
    assert_int_equal(t.layouts, wanted);
    assert_true(3 * t.layouts >= LAYOUTS);
    assert_true(t.divided >= 16);
    assert_true(t.above * 100 <= t.ranks * 20); /* so small a model leaves little to fit into the gaps */
}

TEST(compressed_gradients_meet)
{
    tally t = {.worst = 1};
    for (int i = 0; i < 24; i++) {
        layout l = layout_number(i);
        l.tensor = 1 + i / 12;
        l.pipeline = 1 + i / 6 % 2;
        l.chunks = l.pipeline > 1 ? l.chunks : 1;
        l.kind = l.kind == SCHEDULE_AUTO ? SCHEDULE_1F1B : l.kind;
        l.data = 2 + 2 * (i / 3 % 2);
        l.zero = i % 2;
        l.kv_heads = HEADS;
        l.compress = (compress_kind)(COMPRESS_BF16 + i % (COMPRESS_KINDS - COMPRESS_BF16));
        check_layout(&t, &l);
    }
    assert_int_equal(t.layouts, 24);
}

/* replay_compile is compile() taken apart: both must give the same program. */
TEST(the_replayed_program_is_the_compiled_one)
{
    for (int i = 0; i < LAYOUTS; i += 19) {
        layout l = layout_number(i);
        compile_options o = options_of(&l, 0);
        schedule found;
        replay_rank r;
        compiled c;
        o.found = found_for(&found, &l);
        assert_int_equal(replay_compile(&r, &o, true, NULL, NULL), STATUS_OK);
        o.found = NULL; /* compile() finds the same */
        assert_int_equal(compile(&c, &o), STATUS_OK);
        assert_int_equal(r.p.list.count, c.training.list.count);
        assert_int_equal(r.p.transient_bytes, c.training.transient_bytes);
        for (int k = 0; k < r.p.list.count; k++) {
            const op *x = r.p.list.ops[k], *y = c.training.list.ops[k];
            assert_int_equal(x->kind, y->kind);
            for (int j = 0; j < OP_MAX_IN; j++)
                assert_int_equal(x->in[j] ? x->in[j]->address : 0, y->in[j] ? y->in[j]->address : 0);
            for (int j = 0; j < OP_MAX_OUT; j++)
                assert_int_equal(x->out[j] ? x->out[j]->address : 0, y->out[j] ? y->out[j]->address : 0);
        }
        replay_free(&r);
        compile_free(&c);
        schedule_free(&found);
    }
}

/* ---- mutants
 * --------------------------------------------------------------------------------------------------------- */

static const layout busy = {.tensor = 2,
                            .pipeline = 2,
                            .data = 2,
                            .chunks = 1,
                            .microbatches = 4,
                            .zero = 3,
                            .kind = SCHEDULE_1F1B,
                            .gather_each = true,
                            .reduce_each = true,
                            .sequence = true,
                            .order = ORDER_HALVED,
                            .how = RECOMPUTE_NONE,
                            .kv_heads = HEADS,
                            .precision = PRECISION_BF16};

/* The same with a vocabulary that all stages have a part of. */
static layout busy_divided(void)
{
    layout l = busy;
    l.divided = true;
    l.zero = 1;
    l.gather_each = l.reduce_each = false;
    return l;
}

static tensor *hidden_read;
static op *hidden_from;
static int hidden_slot;

/* The planner does not see the backward pass read an activation, whose life so seems to end with the forward pass. */
static void hide_a_read(replay_rank *r)
{
    for (int i = 0; i < r->p.list.count && !hidden_read; i++) {
        op *o = r->p.list.ops[i];
        for (int k = 0; k < OP_MAX_IN; k++)
            if (o->kind == OP_swiglu_grad && o->in[k] && o->in[k]->class == CLASS_KEPT && k == 1) {
                hidden_read = o->in[k];
                hidden_from = o;
                hidden_slot = k;
                o->in[k] = NULL;
                break;
            }
    }
}

static void show_the_read(replay_rank *r)
{
    (void)r;
    hidden_from->in[hidden_slot] = hidden_read;
}

TEST(a_shortened_lifetime_is_noticed)
{
    char text[REPLAY_TEXT];
    compile_options o = options_of(&busy, 0);
    replay_rank r;
    hidden_read = NULL;
    assert_int_equal(replay_compile(&r, &o, true, hide_a_read, show_the_read), STATUS_OK);
    assert_non_null(hidden_read);
    assert_false(replay_memory(text, &r));
    print_message("noticed: %s\n", text);
    replay_free(&r);
}

static bool is_collective(const op *o)
{
    return op_communicates(o) && o->kind != OP_send && o->kind != OP_receive;
}

enum { ROW = OP_MAX_IN + OP_MAX_OUT };

/* Moves the entry of a table with a row of ROW values an op from place `from` of `count` ops to place `to`. */
static void move_row(void *table, size_t each, int from, int to)
{
    char *rows = table;
    size_t bytes = ROW * each;
    AUTO_FREE char *moved = must_alloc(bytes);
    memcpy(moved, rows + (size_t)from * bytes, bytes);
    if (from < to)
        memmove(rows + (size_t)from * bytes, rows + ((size_t)from + 1) * bytes, (size_t)(to - from) * bytes);
    else
        memmove(rows + ((size_t)to + 1) * bytes, rows + (size_t)to * bytes, (size_t)(from - to) * bytes);
    memcpy(rows + (size_t)to * bytes, moved, bytes);
}

/* Moves an op to another place of the list, with all that the replay knows of its operands. */
static void move_op(replay_rank *r, int from, int to)
{
    op *moved = r->p.list.ops[from];
    if (from < to)
        memmove(&r->p.list.ops[from], &r->p.list.ops[from + 1], (size_t)(to - from) * sizeof(op *));
    else
        memmove(&r->p.list.ops[to + 1], &r->p.list.ops[to], (size_t)(from - to) * sizeof(op *));
    r->p.list.ops[to] = moved;
    move_row(r->roots, sizeof *r->roots, from, to);
    move_row(r->offsets, sizeof *r->offsets, from, to);
    move_row(r->pitches, sizeof *r->pitches, from, to);
}

/* Each wait in turn: without it an operand is used too early, overwritten too early, or the op is never waited for. */
static void drop_waits(const layout *l)
{
    char text[REPLAY_TEXT];
    compile_options o = options_of(l, 0);
    replay_rank r;
    int tried = 0;
    assert_int_equal(replay_compile(&r, &o, true, NULL, NULL), STATUS_OK);
    int last = r.p.list.count - 1;
    for (int i = 0; i <= last; i += 7) {
        if (!op_waits(r.p.list.ops[i]))
            continue;
        move_op(&r, i, last);
        r.p.list.count--;
        assert_false(replay_memory(text, &r));
        tried++;
        r.p.list.count++;
        move_op(&r, last, i);
    }
    assert_true(tried >= 10);
    assert_true(replay_memory(text, &r));
    replay_free(&r);
}

TEST(a_dropped_wait_is_noticed)
{
    layout offloaded = busy;
    offloaded.window = 40 << 10;
    layout divided = busy_divided();
    drop_waits(&busy);
    drop_waits(&divided);
    drop_waits(&offloaded);
}

static void swap_collectives(const layout *l)
{
    char text[REPLAY_TEXT];
    replay_rank all[8];
    int tried = 0;
    for (int i = 0; i < 8; i++) {
        compile_options o = options_of(l, i);
        assert_int_equal(replay_compile(&all[i], &o, true, NULL, NULL), STATUS_OK);
    }
    assert_true(replay_messages(text, all, 8));
    program *p = &all[3].p.list;
    for (int i = 0; i + 1 < p->count; i++) {
        op *a = p->ops[i];
        if (!is_collective(a))
            continue;
        int k = i + 1;
        while (k < p->count && !is_collective(p->ops[k]))
            k++;
        op *b = k < p->count ? p->ops[k] : NULL;
        if (!b || b->where.axis != a->where.axis || b->kind == a->kind)
            continue;
        p->ops[i] = b;
        p->ops[k] = a;
        assert_false(replay_messages(text, all, 8));
        tried++;
        p->ops[i] = a;
        p->ops[k] = b;
    }
    print_message("%d swaps, the last noticed as: %s\n", tried, text);
    assert_true(tried >= 5);
    assert_true(replay_messages(text, all, 8));
    for (int i = 0; i < 8; i++)
        replay_free(&all[i]);
}

TEST(a_swapped_collective_is_noticed)
{
    layout divided = busy_divided();
    swap_collectives(&busy);
    swap_collectives(&divided);
}

TEST(a_dropped_collective_is_noticed)
{
    char text[REPLAY_TEXT];
    replay_rank all[8];
    for (int i = 0; i < 8; i++) {
        compile_options o = options_of(&busy, i);
        assert_int_equal(replay_compile(&all[i], &o, true, NULL, NULL), STATUS_OK);
    }
    program *p = &all[5].p.list;
    for (int i = 0; i < p->count; i++)
        if (p->ops[i]->kind == OP_all_reduce) {
            p->ops[i]->kind = OP_zero;
            break;
        }
    assert_false(replay_messages(text, all, 8));
    for (int i = 0; i < 8; i++)
        replay_free(&all[i]);
}

TEST_MAIN(NULL, NULL)
