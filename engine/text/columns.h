/* The rows of one column of text in a Parquet or Arrow file, in order.
 *
 * What reads them is a shared object beside the program, libphalanx_parquet.so (arrow/rows.cc, on Apache's libparquet
 * and libarrow), loaded when a file wants it, so that the program depends on neither. It sees a file as a size and a
 * function that reads, and gives blocks of rows that point into its own memory. Of Parquet it holds a data page and a
 * dictionary at a time, packed and unpacked; of Arrow one record batch. A file that wants more than COLUMNS_MOST_BYTES
 * is refused.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "engine/text/source.h"
#include "memory/status.h"

typedef struct columns columns;

/* Whether a file that begins with these bytes is a Parquet file, an Arrow file or an Arrow stream. */
bool columns_recognise(const char *bytes, int64_t length);
/* Whether the reader is there; fails if it is, but cannot be loaded. */
status columns_available(bool *there);

/* The column that is called `field`, of a source that is seekable, stays the caller's and is read by nobody else until
 * columns_close. Its text is string, binary, large or view, in a dictionary or not; what else a column may be is
 * refused, and a missing one, with the columns that are there. */
status columns_open(columns **out, source *from, const char *field);
void columns_close(columns *c);
int64_t columns_rows(const columns *c); /* -1: the file does not say */
/* Read only rows first .. end-1 of those that columns_rows() says, before columns_next() is called. */
status columns_select(columns *c, int64_t first, int64_t end);
/* The next row, from 0: its bytes, valid until the next call, or NULL for null. *more is false at the end. */
status columns_next(columns *c, const char **text, int64_t *length, int64_t *row, bool *more);
double columns_done(const columns *c); /* the share of the file that has been read, 0 to 1 */
