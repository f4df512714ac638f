/* Megatron's indexed data set: PREFIX.bin holds only token ids, PREFIX.idx says where they lie.
 *
 * An `indexed` maps both files, or reads .bin from a caller's source, and has checked every field of the index against
 * their lengths, so that reading needs no check but that of the ids. It is the caller's until indexed_close. A writer
 * is the caller's until indexed_writer_close or indexed_writer_abandon; the data set appears whole, at close, and
 * replaces an older one.
 *
 * The .idx file, little-endian, S sequences, D document boundaries (documents + 1):
 *
 *      0  9 bytes  "MMIDIDX\0\0"            34       i32[S]  lengths in tokens
 *      9  u64      version = 1              34+4S    i64[S]  byte offsets into .bin
 *     17  u8       code of the token type   34+12S   i64[D]  boundaries, in sequences: first 0, last S
 *     18  u64      S                        34+12S+8D        end of file
 *     26  u64      D
 */
#pragma once

#include <stdint.h>

#include "memory/scope.h"
#include "memory/status.h"

typedef struct indexed_writer indexed_writer;

/* Stores tokens as u16 if vocab_size < 65500, else as i32 (Megatron's own rule). */
status indexed_writer_open(indexed_writer **out, const char *prefix, int64_t vocab_size);
/* Writes one document, stored as one sequence; an id outside [0, vocab_size) is refused. */
status indexed_writer_document(indexed_writer *w, const int32_t *tokens, int64_t count);
/* Writes the index, fsyncs, renames both files. Frees `w`, also on failure. */
status indexed_writer_close(indexed_writer *w);
void indexed_writer_abandon(indexed_writer *w);

typedef struct indexed indexed;

status indexed_open(indexed **out, const char *prefix);

/* Reads the bytes of a .bin that is not mapped. */
typedef struct indexed_source {
    status (*read)(void *context, void *to, int64_t offset, int64_t bytes);
    void *context; /* outlives the data set */
    int64_t bytes;
    uint32_t version; /* replaces the checksum of its bytes */
} indexed_source;

/* Opens an index in memory that outlives the result, with tokens read on demand. */
status indexed_parse_source(indexed **out, const void *idx, int64_t idx_bytes, const indexed_source *bin,
                            const char *prefix);
/* Opens both in memory that outlives the result; `prefix` is for messages. */
status indexed_parse(indexed **out, const void *idx, int64_t idx_bytes, const void *bin, int64_t bin_bytes,
                     const char *prefix);
void indexed_close(indexed *x);
AUTO_CLOSES(indexed, indexed_close)
int64_t indexed_documents(const indexed *x);
int64_t indexed_tokens(const indexed *x);
/* Returns the first token of a document, documents laid end to end; document == documents: the number of tokens. */
int64_t indexed_document_start(const indexed *x, int64_t document);
/* Returns the document that holds a token. */
int64_t indexed_document_of(const indexed *x, int64_t token);
/* Reads tokens first .. first+count-1, which must lie within the data set. An id outside [0, vocab_size) is a failure
 * that names file, position and id. */
status indexed_read(const indexed *x, int32_t *out, int64_t first, int64_t count, int64_t vocab_size);
/* Finds the range of these tokens in .bin: from the first one's first byte to the last one's last. */
void indexed_byte_range(const indexed *x, int64_t *offset, int64_t *bytes, int64_t first, int64_t count);
/* Returns the name of the stored type: "uint16", ... */
const char *indexed_dtype(const indexed *x);

/* Identifies a data set among others of its name: sizes, and checksums of some of its bytes. */
typedef struct indexed_identity {
    int64_t tokens, bin_bytes, idx_bytes, bin_crc32c, idx_crc32c;
} indexed_identity;

void indexed_identify(indexed_identity *out, const indexed *x);
