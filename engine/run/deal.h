/* Which tokens of a micro-batch each context rank has. A place is a token's index within the micro-batch, whose samples
 * lie end to end; a deal names the places of all ranks, rank after rank, each rank having equally many.
 *
 * Halves (2407.21783): a sample is 2c runs, of which rank i of c has the i-th and the i-th last, first the one run of
 * every sample, then the other. Under a causal mask all have equal work. Where documents are masked they have not:
 * there blocks of tokens are dealt by what they cost, the dearest first, each to the rank with the least so far that
 * has room (longest processing time first; Graham 1969). A deal is a function of the batch alone.
 */
#pragma once

#include <stdint.h>

typedef struct deal {
    int64_t samples, sequence;
    int ranks;
    int64_t run;    /* tokens of a run or of a block: all of a rank's are in whole ones */
    int64_t window; /* of attention; 0: none */
} deal;

/* out[samples sequence]: the places. */
void deal_halves(int32_t *out, const deal *d);
/* The same by cost; document_start [samples sequence]: of each token in the order of the places, as layers/inputs.def
 * has it. */
void deal_documents(int32_t *out, const deal *d, const int32_t *document_start);
/* The most that a rank has to attend to, over the mean: 1 where all have the same. `document_start` NULL: one document
 * a sample. */
double deal_imbalance(const int32_t *places, const deal *d, const int32_t *document_start);
/* Tokens of other ranks whose keys no query of `rank` sees, of one micro-batch. `document_start` as above. */
int64_t deal_unseen(const int32_t *places, const deal *d, const int32_t *document_start, int rank);
