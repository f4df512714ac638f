#include "engine/compile/model/tokens.h"

token_counts tokens_count(const compile_options *o)
{
    const grid *g = &o->grid;
    token_counts n = {.micro_batch = o->decode_samples ? o->decode_samples : o->micro_batch * o->sequence,
                      .sample = o->decode_samples ? 1 : o->sequence};
    int64_t first;
    n.rank = n.loss = n.between = n.micro_batch;
    if (o->layout.sequence)
        shard_rows(&first, &n.between, n.rank, g->size[GRID_TENSOR], g->at[GRID_TENSOR]);
    return n;
}

int tokens_ranks_between(const config_layout *l)
{
    return l->sequence ? l->size[GRID_TENSOR] : 1;
}
