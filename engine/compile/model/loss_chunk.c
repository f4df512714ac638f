/* A chunk of c tokens costs three products of 2 c V h FLOPs (logits, their gradient's two uses; V: the rank's rows of
 * the vocabulary) and 8 V h bytes of the head's gradient, which a product's epilogue adds to when its sums are done:
 * nothing hides them. */
#include "engine/compile/model/loss_chunk.h"

#include "engine/compile/model/target.h"
#include "engine/compile/model/tokens.h"

/* Logits of so many bytes are never too many; libraries see few matrices of more elements; and no chunk is a fraction
 * of 64 tokens: products of odd depths are slow. */
enum { BYTES_ALWAYS = 48 << 20, MOST_ELEMENTS = INT32_MAX, MULTIPLE = 64 };

/* By how much the loss may cost more than in one piece, before a chunk is doubled whatever memory it takes. */
static const double DEARER = 1.125;

static int64_t rows_of(const compile_options *o)
{
    return decoder_vocabulary_rows(&o->shape, o->grid.size[GRID_TENSOR], grid_group_size(&o->grid, AXIS_GRADIENT));
}

static int64_t row_bytes(const compile_options *o)
{
    return rows_of(o) * dtype_bytes(precision_compute(o->precision));
}

static int64_t least_of(const compile_options *o)
{
    int64_t tokens = BYTES_ALWAYS / row_bytes(o) / MULTIPLE * MULTIPLE;
    return tokens < MULTIPLE ? MULTIPLE : tokens;
}

double loss_chunk_seconds(const compile_options *o, int64_t tokens, double flops, double memory)
{
    int64_t of = tokens_count(o).loss;
    const int64_t pieces = (of + tokens - 1) / tokens;
    double all = (double)of, chunks = (double)pieces;
    double weights = (double)rows_of(o) * (double)o->shape.hidden_size;
    return weights * (6 * all / flops + 8 * chunks / memory);
}

int64_t loss_chunk_bytes(const compile_options *o, int64_t tokens)
{
    return tokens * row_bytes(o);
}

/* The next size: a power of two times 64 above the least. */
static int64_t larger(int64_t tokens)
{
    int64_t next = MULTIPLE;
    while (next <= tokens)
        next *= 2;
    return next;
}

int64_t loss_chunk_below(const compile_options *o, int64_t tokens)
{
    int64_t next = MULTIPLE, least = least_of(o);
    if (tokens <= least)
        return 0;
    while (next * 2 < tokens)
        next *= 2;
    return next < least ? least : next;
}

int64_t loss_chunk_largest(const compile_options *o)
{
    int64_t tokens = tokens_count(o).loss;
    while (tokens > MULTIPLE && tokens * rows_of(o) > MOST_ELEMENTS)
        tokens = loss_chunk_below(o, tokens);
    return tokens;
}

int64_t loss_chunk_by_price(const compile_options *o)
{
    int64_t all = tokens_count(o).loss, tokens = least_of(o);
    double balance = target_balance(o);
    double whole = loss_chunk_seconds(o, all, balance, 1);
    while (tokens < all && loss_chunk_seconds(o, tokens, balance, 1) > DEARER * whole)
        tokens = larger(tokens);
    return tokens;
}
