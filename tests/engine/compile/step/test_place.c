/* Columns of a matrix in place: an output takes the columns of the view that it is made from where nobody reads them
 * later, and an input is made in the columns that are to hold the result. Never where the bytes are still wanted. */
#include <stdlib.h>

#include "engine/compile/step/place.h"
#include "kernels/record/program.h"
#include "memory/log.h"
#include "tests/test.h"

enum { TOKENS = 8, HEADS = 4, KV_HEADS = 2, SIZE = 16, Q = HEADS * SIZE, K = KV_HEADS * SIZE, ROW = Q + 2 * K };

/* A program by hand. */
typedef struct hand {
    compiled_program p;
    compiled c;
    tensor *positions, *table;
} hand;

static tensor *matrix(hand *h, const char *name, dtype type, int64_t rows, int64_t columns)
{
    tensor *t = pool_alloc(&h->p.pool, sizeof *t);
    tensor_describe(t, name, CLASS_TEMPORARY, type, columns ? 2 : 1, (int64_t[]){rows, columns});
    return t;
}

static tensor *columns_of(hand *h, tensor *of, int64_t first, int64_t count)
{
    tensor *t = pool_alloc(&h->p.pool, sizeof *t);
    *t = *of;
    t->base = of;
    t->offset = first * dtype_bytes((dtype)of->type);
    t->shape[1] = count;
    return t;
}

static op *append(hand *h, op like, unsigned outputs, tensor *const *into)
{
    like.label = op_row_of(&like)->name;
    op *o = op_make(&h->p.pool, &like, outputs, into);
    program_append(&h->p.list, o);
    return o;
}

static void open_hand(hand *h)
{
    *h = (hand){0};
    h->positions = matrix(h, "positions", DTYPE_INT32, TOKENS, 0);
    h->table = matrix(h, "table", DTYPE_FP32, TOKENS, SIZE);
    h->positions->class = h->table->class = CLASS_INPUT; /* persistent: not placed */
    h->positions->address = h->table->address = 0;
}

static void close_hand(hand *h)
{
    program_free(&h->p.list);
    pool_free(&h->p.pool);
}

static op turning(const hand *h, tensor *q, tensor *k)
{
    return (op){.kind = OP_rope, .in = {q, k, h->positions, h->table}, .at = {.heads = {HEADS, KV_HEADS, SIZE}}};
}

/* A product's row; q and k of it turned; then `reads` of what was turned, and of the row's own columns where asked. */
typedef struct forward {
    tensor *row, *q, *k, *v, *turned_q, *turned_k;
} forward;

static forward make_forward(hand *h, bool q_is_read_later)
{
    forward f = {
        .row = append(h, (op){.kind = OP_zero, .out = {matrix(h, "row", DTYPE_BF16, TOKENS, ROW)}}, 0, NULL)->out[0]};
    f.q = columns_of(h, f.row, 0, Q);
    f.k = columns_of(h, f.row, Q, K);
    f.v = columns_of(h, f.row, Q + K, K);
    op *rope = append(h, turning(h, f.q, f.k), 3, NULL);
    f.turned_q = rope->out[0];
    f.turned_k = rope->out[1];
    append(h,
           (op){.kind = OP_attention,
                .in = {f.turned_q, f.turned_k, f.v},
                .at = {.heads = {HEADS, KV_HEADS, SIZE}, .attention = {.sequence = TOKENS, .scale = 1}}},
           3, NULL);
    if (q_is_read_later)
        append(h, (op){.kind = OP_copy, .in = {columns_of(h, f.row, 0, SIZE)}}, 1, NULL);
    return f;
}

static bool shares(const tensor *a, const tensor *b)
{
    return a->address == b->address && a->pitch == b->pitch;
}

static bool apart(const tensor *a, const tensor *b)
{
    return a->address + tensor_bytes(a) <= b->address || b->address + tensor_bytes(b) <= a->address;
}

TEST(an_output_takes_columns_that_nobody_reads_later)
{
    hand h;
    open_hand(&h);
    forward f = make_forward(&h, false);
    place_transients(&h.p, &h.c, false);
    assert_true(shares(f.turned_q, f.q) && shares(f.turned_k, f.k));
    assert_int_equal(f.turned_q->pitch, ROW);
    assert_int_equal(f.v->address, f.row->address + 2 * (Q + K)); /* the base is where it was, with v in it */
    close_hand(&h);
}

/* Some of q's columns are read after it has been turned: k may be turned in place, q may not. */
TEST(columns_that_are_read_later_are_left)
{
    hand h;
    open_hand(&h);
    forward f = make_forward(&h, true);
    place_transients(&h.p, &h.c, false);
    assert_true(apart(f.turned_q, f.row));
    assert_int_equal(f.turned_q->pitch, Q);
    assert_true(shares(f.turned_k, f.k));
    close_hand(&h);
}

/* A kernel that takes no rows with gaps would read them: then what it reads stays a matrix of its own. */
TEST(who_reads_it_must_take_rows_with_gaps)
{
    hand h;
    open_hand(&h);
    forward f = make_forward(&h, false);
    tensor *w = matrix(&h, "w", DTYPE_BF16, Q, 0);
    w->class = CLASS_WEIGHT;
    append(&h, (op){.kind = OP_rmsnorm, .in = {f.turned_q, w}}, 3, NULL);
    append(&h, (op){.kind = OP_copy, .in = {f.v}}, 1, NULL); /* so long the base lives anyway */
    place_transients(&h.p, &h.c, false);
    assert_true(apart(f.turned_q, f.row));
    assert_true(shares(f.turned_k, f.k));
    close_hand(&h);
}

/* Gradients: attention's go into the columns of one row, those of q and k by way of an op that turns them back. */
typedef struct backward {
    tensor *row, *dq, *dk, *turned_q, *turned_k;
} backward;

static backward make_backward(hand *h, bool row_is_used)
{
    backward b = {.row = matrix(h, "gradient", DTYPE_BF16, TOKENS, ROW)};
    tensor *q = matrix(h, "q", DTYPE_BF16, TOKENS, Q), *k = matrix(h, "k", DTYPE_BF16, TOKENS, K),
           *v = matrix(h, "v", DTYPE_BF16, TOKENS, K), *y = matrix(h, "y", DTYPE_BF16, TOKENS, Q);
    tensor *lse = matrix(h, "lse", DTYPE_FP32, HEADS, TOKENS);
    tensor *into[OP_MAX_OUT] = {NULL, NULL, columns_of(h, b.row, Q + K, K)};
    op *grad = append(h,
                      (op){.kind = OP_attention_grad,
                           .in = {y, q, k, v, y, lse},
                           .at = {.heads = {HEADS, KV_HEADS, SIZE}, .attention.sequence = TOKENS}},
                      7, into);
    b.turned_q = grad->out[0];
    b.turned_k = grad->out[1];
    if (row_is_used) /* q's columns hold something else in between */
        append(h, (op){.kind = OP_zero, .out = {columns_of(h, b.row, 0, Q)}}, 0, NULL);
    tensor *to[OP_MAX_OUT] = {columns_of(h, b.row, 0, Q), columns_of(h, b.row, Q, K)};
    op *rope = append(h, turning(h, b.turned_q, b.turned_k), 3, to);
    b.dq = rope->out[0];
    b.dk = rope->out[1];
    append(h, (op){.kind = OP_copy, .in = {b.row}}, 1, NULL);
    return b;
}

TEST(an_input_is_made_in_the_columns_of_the_result)
{
    hand h;
    open_hand(&h);
    backward b = make_backward(&h, false);
    place_transients(&h.p, &h.c, false);
    assert_true(shares(b.turned_q, b.dq) && shares(b.turned_k, b.dk));
    assert_int_equal(b.dq->address, b.row->address);
    assert_int_equal(b.dk->address, b.row->address + 2 * Q);
    close_hand(&h);
}

TEST(an_input_stays_out_of_columns_that_are_in_use)
{
    hand h;
    open_hand(&h);
    backward b = make_backward(&h, true);
    place_transients(&h.p, &h.c, false);
    assert_true(apart(b.turned_q, b.row));
    assert_true(shares(b.turned_k, b.dk));
    close_hand(&h);
}

TEST_MAIN(NULL, NULL)
