/* Training data as numbered samples: sample i is a pure function of (data sets, weights, seed, i), the same on every
 * rank.
 *
 * A sample is `sequence` inputs and the same moved on by one as targets, cut from the documents of one data set laid
 * end to end. Several data sets are blended in the proportion of their weights. There is no state: resuming is asking
 * for the next number, and any division of samples over ranks and micro-batches gives the same training.
 *
 * Order. Without shuffling data set j's k-th sample is tokens k L .. k L + L. With it, epoch e of a data set visits its
 * samples in the order of a keyed permutation (a Feistel network walked until it lands inside; Black and Rogaway 2002).
 * Blending. In every run of SAMPLES_PERIOD numbers each data set has as many as its weight says (largest remainder),
 * spread evenly (each number goes to the data set that lacks most of its share).
 */
#pragma once

#include "engine/config/config.h"
#include "engine/data/stored.h"
#include "engine/files/indexed.h"
#include "layers/layer.h"

enum { SAMPLES_PERIOD = 4096 };

typedef struct samples samples;

/* Opens the data sets of `sources`; ids must lie in [0, vocab_size). A data set too short for one sample is refused.
 * `from`, which outlives the result, reads prefixes in an object store; NULL: they are refused. */
status samples_open(samples **out, const config_sources *sources, stored *from, int64_t sequence, int64_t vocab_size,
                    bool shuffle, uint64_t seed);
void samples_close(samples *s);
AUTO_CLOSES(samples, samples_close)

/* Renumbers: sample i is from now on the former slot + slots i, so that several jobs share the samples. */
void samples_interleave(samples *s, int slot, int slots);

/* Announces samples first .. first + count - 1, so that they are fetched ahead from a store, in this order. Runs may
 * follow one another; false: too many are pending, and this one is not taken. */
bool samples_expect(samples *s, int64_t first, int64_t count);
void samples_expect_nothing(samples *s);
bool samples_are_remote(const samples *s); /* any of them is */

/* Leaves out later samples that hold an id outside the vocabulary: `told` hears why, and samples_read sets
 * *left_out. */
void samples_leave_out(samples *s, void (*told)(void *context, const char *words), void *context);

/* Reads sample `index`: ids [sequence] of each row of layers/inputs.def into into[row]; NULL skips a row, but not
 * tokens and targets. Second targets are the targets moved on by one, -1 at a sample's end, and where document_start is
 * wanted at a document's. Positions count in the document where document_start is wanted, else in the sample. A sample
 * that is left out has all targets -1, which do not count. */
status samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index);

/* Returns the number of samples in one pass over everything. */
int64_t samples_count(const samples *s);
/* Returns the passes over the most repeated data set before sample `index`. */
double samples_epoch(const samples *s, int64_t index);
/* Finds the data set of sample `index`, and its number in that data set. */
void samples_locate(const samples *s, int *source, int64_t *sample, int64_t index);
/* Returns the passes over data set `source` after `taken` samples. */
double samples_epochs(const samples *s, int source, double taken);
/* Identifies data set `source`, as long as its files are not replaced. */
void samples_identify(indexed_identity *out, const samples *s, int source);
