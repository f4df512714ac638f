#include "engine/run/shard.h"

#include <stdlib.h>

#include "kernels/token.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Counts the keys that the token at a position sees. */
static int64_t keys_of(const shard_shape *d, const int32_t *document_start, int64_t place)
{
    const int32_t position = (int32_t)token_position(place, (int32_t)d->sequence);
    return position + 1 -
           token_first_key(position, token_window(d->window, d->sequence), document_start ? document_start[place] : 0);
}

void shard_zigzag(int32_t *out, const shard_shape *d)
{
    for (int rank = 0; rank < d->ranks; rank++)
        for (int half = 0; half < TOKEN_RUNS; half++)
            for (int64_t sample = 0; sample < d->samples; sample++) {
                int64_t first = sample * d->sequence + token_zigzag(rank, d->ranks, half) * d->run;
                for (int64_t i = 0; i < d->run; i++)
                    *out++ = (int32_t)(first + i);
            }
}

typedef struct block {
    int64_t cost;
    int32_t number; /* index in order of position */
    int32_t rank;
} block;

/* Sorts the most expensive block first; equal ones by position. */
static int compare_costs(const void *a, const void *b)
{
    const block *x = a, *y = b;
    if (x->cost != y->cost)
        return x->cost < y->cost ? 1 : -1;
    return (x->number > y->number) - (x->number < y->number);
}

static int compare_numbers(const void *a, const void *b)
{
    const block *x = a, *y = b;
    return (x->number > y->number) - (x->number < y->number);
}

static void assign_blocks(block *blocks, int64_t count, int ranks)
{
    AUTO_FREE int64_t *load = must_calloc((unsigned long)ranks, sizeof *load),
                      *held = must_calloc((unsigned long)ranks, sizeof *held);
    for (int64_t i = 0; i < count; i++) {
        int least = -1;
        for (int rank = 0; rank < ranks; rank++)
            if (held[rank] < count / ranks && (least < 0 || load[rank] < load[least]))
                least = rank;
        blocks[i].rank = least;
        load[least] += blocks[i].cost;
        held[least]++;
    }
}

void shard_documents(int32_t *out, const shard_shape *d, const int32_t *document_start)
{
    int64_t count = d->samples * d->sequence / d->run;
    MUST(count % d->ranks == 0, "%lld blocks for %d ranks", (long long)count, d->ranks);
    AUTO_FREE block *blocks = must_alloc((unsigned long)count * sizeof *blocks);
    for (int64_t i = 0; i < count; i++) {
        blocks[i] = (block){.number = (int32_t)i};
        for (int64_t k = 0; k < d->run; k++)
            blocks[i].cost += keys_of(d, document_start, i * d->run + k);
    }
    qsort(blocks, (size_t)count, sizeof *blocks, compare_costs);
    assign_blocks(blocks, count, d->ranks);
    qsort(blocks, (size_t)count, sizeof *blocks, compare_numbers);
    for (int rank = 0; rank < d->ranks; rank++)
        for (int64_t i = 0; i < count; i++)
            for (int64_t k = 0; blocks[i].rank == rank && k < d->run; k++)
                *out++ = (int32_t)(blocks[i].number * d->run + k);
}

double shard_imbalance(const int32_t *token_positions, const shard_shape *d, const int32_t *document_start)
{
    int64_t each = d->samples * d->sequence / d->ranks, most = 0, all = 0;
    for (int rank = 0; rank < d->ranks; rank++) {
        int64_t own = 0;
        for (int64_t i = 0; i < each; i++)
            own += keys_of(d, document_start, token_positions[rank * each + i]);
        most = own > most ? own : most;
        all += own;
    }
    return (double)most * d->ranks / (double)all;
}

int64_t shard_unseen(const int32_t *token_positions, const shard_shape *d, const int32_t *document_start, int rank)
{
    int64_t all = d->samples * d->sequence, each = all / d->ranks, unseen = 0, open = 0;
    AUTO_FREE int32_t *change = must_calloc((unsigned long)all + 1, sizeof *change); /* deltas of a key's query count */
    for (int64_t i = rank * each; i < (rank + 1) * each; i++) {
        change[token_positions[i] + 1 - keys_of(d, document_start, token_positions[i])]++;
        change[token_positions[i] + 1]--;
    }
    for (int64_t i = 0; i < all; i++) {
        open += change[i];
        unseen += open == 0;
    }
    return unseen;
}
