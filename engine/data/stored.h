/* Data sets in an object store: PREFIX.idx is fetched whole, PREFIX.bin is read in blocks, ahead of who asks for its
 * tokens (engine/store/blocks/blocks.h), and either is the version that was there when the data set was opened.
 *
 * A `stored` is what a process's data sets share: the cache and its threads, which are made when the first data set is
 * opened. It is its caller's until stored_close, and outlives the data sets (indexed_close, then stored_close). They
 * are read by one thread at a time.
 */
#pragma once

#include "engine/config/config.h"
#include "engine/files/indexed.h"
#include "engine/store/blocks/blocks.h"

typedef struct stored stored;
typedef struct stored_set stored_set;

/* Is there a data set of that prefix in its store? */
status stored_look(bool *there, const char *prefix);
/* data.cache and data.cache_size of the configuration, which outlives the result; `sharers`: processes of this machine
 * that read ahead. Nothing is made or asked yet. */
stored *stored_open(const config *c, int sharers);
/* The same for a look at some of the bytes: nothing is kept on disk. */
stored *stored_open_once(void);
void stored_close(stored *r); /* NULL is accepted */

/* For who reads a data set from one token to the next: of this machine, or of a store, of which nothing is kept on disk
 * and the next blocks are fetched ahead. */
typedef struct stored_reader {
    indexed *data;
    stored *from; /* NULL: a data set of this machine */
} stored_reader;

status stored_reader_open(stored_reader *out, const char *prefix);
void stored_reader_close(stored_reader *r); /* one that is all zero is accepted */

/* `scattered`: its samples are read in random order. *set stays `r`'s. */
status stored_indexed(indexed **out, stored_set **set, stored *r, const char *prefix, bool scattered);
/* These tokens are read soon. false: enough is on its way; ask again after some have been read. */
bool stored_expect(stored_set *set, const indexed *data, int64_t first, int64_t count);
void stored_expect_nothing(stored *r);
/* Has a read failed, so that what a failure of indexed_read says is not about ids? */
bool stored_failed(const stored_set *set);

/* What the process has fetched and waited for; all 0 without a data set in a store. */
blocks_counts stored_counted(const stored *r);
/* The folder that blocks are kept in, or NULL. */
const char *stored_folder(const stored *r);
