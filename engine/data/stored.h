/* Data sets in an object store: PREFIX.idx is fetched whole, PREFIX.bin is read in blocks, ahead of its reader
 * (engine/store/blocks/blocks.h), and both stay at the version that was there when the data set was opened.
 *
 * A `stored` is shared by a process's data sets: the cache and its threads, which are made when the first data set is
 * opened. It is its caller's until stored_close, and outlives the data sets (indexed_close, then stored_close). They
 * are read by one thread at a time.
 */
#pragma once

#include "engine/config/config.h"
#include "engine/files/indexed.h"
#include "engine/store/blocks/blocks.h"

typedef struct stored stored;
typedef struct stored_set stored_set;

/* Checks whether a data set of that prefix is in its store. */
status stored_look(bool *there, const char *prefix);
/* Uses data.cache and data.cache_size of the configuration, which outlives the result; `sharers`: processes of this
 * machine that read ahead. Makes no cache and sends no request yet. */
stored *stored_open(const config *c, int sharers);
/* Opens it to read a few bytes, without a cache on disk. */
stored *stored_open_once(void);
void stored_close(stored *r); /* accepts NULL */

/* A sequential reader of a data set of this machine, or of a store: there it fetches the next blocks ahead, and caches
 * none on disk. */
typedef struct stored_reader {
    indexed *data;
    stored *from; /* NULL: a data set of this machine */
} stored_reader;

status stored_reader_open(stored_reader *out, const char *prefix);
void stored_reader_close(stored_reader *r); /* accepts one that is all zero */

/* Opens a data set; `scattered`: its samples are read in random order. *set stays `r`'s. */
status stored_indexed(indexed **out, stored_set **set, stored *r, const char *prefix, bool scattered);
/* Announces that tokens are read soon. false: enough is on its way; ask again after some have been read. */
bool stored_expect(stored_set *set, const indexed *data, int64_t first, int64_t count);
void stored_expect_nothing(stored *r);
/* True if a read has failed, so that a failure of indexed_read is not about ids. */
bool stored_failed(const stored_set *set);

/* Counts the process's fetches and waits; all 0 without a data set in a store. */
blocks_counts stored_counted(const stored *r);
/* Returns the folder of cached blocks, or NULL. */
const char *stored_folder(const stored *r);
