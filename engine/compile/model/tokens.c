#include "engine/compile/model/tokens.h"

#include <math.h>

#include "kernels/token.h"

/* ---- the device that is compiled for ---- */

const devices_row *target_device(const compile_options *o)
{
    const char *word = o->backend ? o->backend->device : NULL;
    return o->device ? o->device : devices_named(word ? word : DEVICES_ASSUMED);
}

peak_kind target_peak(const compile_options *o)
{
    return precision_peak(precision_row_of(o->precision)->product, o->tf32);
}

double target_mfu(double flops_per_token, double tokens, double seconds, double peak, int ranks)
{
    return peak > 0 ? flops_per_token * tokens / (seconds * peak * ranks) : NAN;
}

double target_balance(const compile_options *o)
{
    return devices_balance(target_device(o), target_peak(o));
}

int64_t tokens_zigzag_run(int64_t sequence, int ranks)
{
    return sequence / ((int64_t)TOKEN_RUNS * ranks);
}

token_counts tokens_count(const compile_options *o)
{
    enum { MOST_BLOCK = 128 };
    const grid *g = &o->grid;
    token_counts n = {.micro_batch = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence};
    int context = o->decode_samples ? 1 : g->size[GRID_CONTEXT];
    int64_t first;
    n.rank = n.loss = n.between = n.micro_batch / context;
    /* a zig-zag shard, or the most of its tokens that make whole blocks: kernels read tiles of 64 and 128 queries */
    int64_t half = context > 1 ? tokens_zigzag_run(o->sequence, context) : 0;
    n.run = o->layout.balance != CONFIG_BALANCE_ZIGZAG && half > MOST_BLOCK ? MOST_BLOCK : half;
    while (n.run && half % n.run)
        n.run--;
    if (o->layout.sequence)
        shard_rows(&first, &n.between, n.rank, g->size[GRID_TENSOR], g->at[GRID_TENSOR]);
    return n;
}

int tokens_ranks_between(const config_layout *l)
{
    int ranks = 1;
    for (int i = 0; i < GRID_AXES; i++) {
        axis_divides what = axis_coordinates[i].divides;
        if (what == AXIS_DIVIDES_TOKENS || (what == AXIS_DIVIDES_WEIGHTS && l->sequence))
            ranks *= l->size[i];
    }
    return ranks;
}

/* ---- tokens per loss chunk ---- */

/* A chunk of c tokens costs three products of 2 c V h FLOPs (logits, their gradient's two uses; V: the rank's rows of
 * the vocabulary) and 8 V h bytes of the head's gradient, which a product's epilogue adds to after its sums: they
 * overlap with no computation. */

/* Logits of BYTES_ALWAYS always fit; libraries rarely see matrices of more than MOST_ELEMENTS elements; and chunks are
 * multiples of 64 tokens: products of odd depths are slow. */
enum { BYTES_ALWAYS = 48 << 20, MOST_ELEMENTS = INT32_MAX, MULTIPLE = 64 };

/* The loss may cost this factor more than in one piece; beyond it a chunk is doubled whatever memory it takes. */
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
    while (tokens < all && loss_chunk_seconds(o, tokens, balance, 1) > DEARER * whole) {
        int64_t next = MULTIPLE; /* the next size is a power of two times 64 */
        while (next <= tokens)
            next *= 2;
        tokens = next;
    }
    return tokens;
}

/* ---- the capacity ---- */

capacity_shape buckets_capacity(const compile_options *o)
{
    capacity_shape s = decoder_capacity(&o->shape);
    s.ranks = o->layout.expert > 1 ? o->layout.expert : 1;
    s.tokens = tokens_count(o).between * (o->transfers.slots ? 1 : s.ranks);
    return o->shape.experts > 0 ? s : (capacity_shape){0};
}

int compile_buckets(const compile_options *o)
{
    capacity_shape s = buckets_capacity(o);
    return s.experts > 0 ? capacity_buckets(&s) : 1;
}

int bucket_needed(const float over[CAPACITY_BUCKETS], int buckets)
{
    int i = 0;
    while (i < buckets - 1 && over[i] > 0)
        i++;
    return i;
}

void bucket_after(bucket_state *s, int needed)
{
    if (needed >= s->at) {
        *s = (bucket_state){.at = needed};
        return;
    }
    s->most = needed > s->most ? needed : s->most;
    if (++s->quiet == BUCKET_QUIET)
        *s = (bucket_state){.at = s->most};
}

int64_t compile_room(const compile_options *o)
{
    if (!o->shape.expert_drop || o->shape.experts == 0)
        return 0;
    const capacity_shape s = buckets_capacity(o);
    const capacity_passes w = capacity_passes_of(&s, 0);
    return capacity_rows(&w) * (o->transfers.slots ? s.ranks : 1);
}
