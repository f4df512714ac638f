#include "engine/compile/model/tokens.h"

#include "kernels/token.h"

/* A run of halves, or the most of its tokens that make whole blocks: kernels read tiles of 64 and 128 queries. */
static int64_t run_of(int64_t half, config_balance balance)
{
    enum { MOST_BLOCK = 128 };
    if (balance == CONFIG_BALANCE_HALVES)
        return half;
    int64_t block = half < MOST_BLOCK ? half : MOST_BLOCK;
    while (half % block)
        block--;
    return block;
}

int64_t tokens_half_run(int64_t sequence, int ranks)
{
    return sequence / ((int64_t)TOKEN_HALVES * ranks);
}

token_counts tokens_count(const compile_options *o)
{
    const grid *g = &o->grid;
    token_counts n = {.micro_batch = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence};
    int context = o->decode_samples ? 1 : g->size[GRID_CONTEXT];
    int64_t first;
    n.rank = n.loss = n.between = n.micro_batch / context;
    n.run = context > 1 ? run_of(tokens_half_run(o->sequence, context), o->layout.balance) : 0;
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
