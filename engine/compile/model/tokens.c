#include "engine/compile/model/tokens.h"

token_counts tokens_count(const compile_options *o)
{
    const grid *g = &o->grid;
    token_counts n = {.micro_batch = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence};
    int context = o->decode_samples ? 1 : g->size[GRID_CONTEXT];
    int64_t first;
    n.rank = n.loss = n.between = n.micro_batch / context;
    n.run = context > 1 ? o->sequence / (TOKENS_RUNS * context) : 0;
    if (o->layout.sequence)
        shard_rows(&first, &n.between, n.rank, g->size[GRID_TENSOR], g->at[GRID_TENSOR]);
    return n;
}

int tokens_run_of(int ranks, int rank, int run)
{
    return run == 0 ? rank : TOKENS_RUNS * ranks - 1 - rank;
}

int tokens_ranks_between(const config_layout *l)
{
    return l->sequence ? l->size[GRID_TENSOR] : 1;
}
