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
 * spread evenly (each number goes to the data set furthest behind its share).
 */
#pragma once

#include "engine/config/config.h"
#include "engine/data/stored.h"
#include "engine/files/indexed.h"
#include "layers/layer.h"

enum { SAMPLES_PERIOD = 4096 };

typedef struct samples samples;

/* Data sets of `sources`; ids must lie in [0, vocab_size). A data set too short for one sample is refused. `from`,
 * which outlives the result: for prefixes in an object store; NULL: they are refused. */
status samples_open(samples **out, const config_sources *sources, stored *from, int64_t sequence, int64_t vocab_size,
                    bool shuffle, uint64_t seed);
void samples_close(samples *s);
AUTO_CLOSES(samples, samples_close)

/* From now on sample i is what was slot + slots i: the share of one of several jobs. */
void samples_interleave(samples *s, int slot, int slots);

/* Samples first .. first + count - 1 are read soon: what lies in a store is fetched ahead, in this order. Runs of
 * samples may follow one another; false: as many are known as may be, this one is not taken. */
bool samples_expect(samples *s, int64_t first, int64_t count);
void samples_expect_nothing(samples *s);
bool samples_are_remote(const samples *s); /* any of them */

/* From now on a sample that holds an id outside the vocabulary is no failure: `told` hears why, and samples_read says
 * *left_out. */
void samples_leave_out(samples *s, void (*told)(void *context, const char *words), void *context);

/* Sample `index`: its ids [sequence], of each row of layers/inputs.def into into[row]. NULL: not wanted; tokens and
 * targets always are. Second targets are the targets moved on by one, -1 at a sample's end, and where document_start is
 * wanted at a document's. Positions are those in the document where document_start is wanted, else in the sample. A
 * sample that is left out has all targets -1: none of them counts. */
status samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index);

/* Samples in one pass over everything. */
int64_t samples_count(const samples *s);
/* How often the data set that is repeated most has been passed over when the next sample is number `index`. */
double samples_epoch(const samples *s, int64_t index);
/* Of sample `index`: which data set, and which of its samples. */
void samples_locate(const samples *s, int *source, int64_t *sample, int64_t index);
/* How often data set number `source` has been seen when so many samples have been taken. */
double samples_epochs(const samples *s, int source, double taken);
/* What data set number `source` is, as long as nobody replaces it. */
void samples_identify(indexed_identity *out, const samples *s, int source);
