/* The interface of libphalanx_parquet.so: functions that C calls, and that let no C++ exception pass. Every message is
 * a sentence without the file's name. */
#pragma once

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum {
    COLUMNS_VERSION = 1,         /* interface version; an object of another is refused */
    COLUMNS_MESSAGE_BYTES = 1500 /* room for a message with its end */
};
#define COLUMNS_MOST_BYTES ((int64_t)2 << 30)

typedef struct columns_file {
    void *context;
    int64_t size; /* bytes */
    /* Reads bytes offset .. offset+bytes-1, which lie within the file, into `out`. 0, or else the host has the reason;
     * called in the thread that calls the reader. */
    int (*read)(void *context, void *out, int64_t offset, int64_t bytes);
} columns_file;

typedef struct columns_block {
    int64_t rows, first;     /* first: the number of the block's first row in the file; rows 0: the end */
    const char *const *text; /* [rows]; NULL: null */
    const int64_t *length;   /* [rows] */
    double done;             /* the share of the file that lies before the block's end, 0 to 1 */
} columns_block;

/* Each int is 0 for success, else `message` has the failure. */
typedef struct columns_reader {
    int version; /* COLUMNS_VERSION */
    /* *rows: -1 if the file does not say. The reader keeps `file`, not `field`. */
    int (*open)(void **out, int64_t *rows, const columns_file *file, const char *field, char *message);
    /* Allowed only if the number of rows is known, and before `next`. */
    int (*select)(void *reader, int64_t first, int64_t end, char *message);
    /* The block is valid until the next call. */
    int (*next)(void *reader, columns_block *block, char *message);
    void (*close)(void *reader);
} columns_reader;

extern __attribute__((visibility("default"))) const columns_reader columns_arrow; /* the symbol to look up */

#ifdef __cplusplus
}
#endif
