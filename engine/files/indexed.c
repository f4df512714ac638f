#include "engine/files/indexed.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "memory/dtype.h"
#include "memory/log.h"

_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the files are little-endian, and so is this code");

#define HEADER_BYTES 34
#define UINT16_VOCAB 65500 /* vocabularies below this are stored as u16 */

static const char magic[9] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0};

enum { CODE_INT32 = 4, CODE_UINT16 = 8, CODES = 9 };

/* Types by the header's type code. */
static const dtype types[CODES] = {
    [1] = DTYPE_UINT8, [2] = DTYPE_INT8, [3] = DTYPE_INT16, [CODE_INT32] = DTYPE_INT32,
    [5] = DTYPE_INT64, [6] = DTYPE_FP64, [7] = DTYPE_FP32,  [CODE_UINT16] = DTYPE_UINT16};

/* ---- writing ---- */

struct indexed_writer {
    char *bin_path, *idx_path;
    atomic_file *bin;
    int64_t vocab_size;
    bool is_uint16;   /* else i32 */
    int32_t *lengths; /* [documents] */
    int64_t documents;
};

status indexed_writer_open(indexed_writer **out, const char *prefix, int64_t vocab_size)
{
    AUTO_FREE char *path = must_format("%s.bin", prefix);
    atomic_file *bin;
    TRY(atomic_open(&bin, path));
    indexed_writer *w = must_calloc(1, sizeof *w);
    w->bin = bin;
    w->bin_path = TAKE(path);
    w->idx_path = must_format("%s.idx", prefix);
    w->vocab_size = vocab_size;
    w->is_uint16 = vocab_size < UINT16_VOCAB;
    *out = w;
    return STATUS_OK;
}

void indexed_writer_abandon(indexed_writer *w)
{
    if (!w)
        return;
    atomic_abandon(w->bin);
    free(w->bin_path);
    free(w->idx_path);
    free(w->lengths);
    free(w);
}

static status write_tokens(indexed_writer *w, const int32_t *tokens, int64_t count)
{
    if (!w->is_uint16)
        return atomic_write(w->bin, tokens, count * 4);
    uint16_t block[4096];
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < 4096 ? count - done : 4096;
        for (int64_t i = 0; i < now; i++)
            block[i] = (uint16_t)tokens[done + i];
        TRY(atomic_write(w->bin, block, now * 2));
    }
    return STATUS_OK;
}

status indexed_writer_document(indexed_writer *w, const int32_t *tokens, int64_t count)
{
    if (count > INT32_MAX)
        return status_fail(STATUS_FAILED,
                           "%s: document %lld has %lld tokens, more than the format can say (%d): split it",
                           w->bin_path, (long long)w->documents, (long long)count, INT32_MAX);
    for (int64_t i = 0; i < count; i++)
        if (tokens[i] < 0 || tokens[i] >= w->vocab_size)
            return status_fail(STATUS_FAILED, "%s: document %lld, token %lld: id %d is outside the vocabulary of %lld",
                               w->bin_path, (long long)w->documents, (long long)i, tokens[i], (long long)w->vocab_size);
    TRY(write_tokens(w, tokens, count));
    APPEND(w->lengths, w->documents) = (int32_t)count;
    return STATUS_OK;
}

static status write_index(const indexed_writer *w, atomic_file *idx)
{
    uint64_t version = 1, sequences = (uint64_t)w->documents, boundaries = sequences + 1;
    uint8_t code = w->is_uint16 ? CODE_UINT16 : CODE_INT32;
    TRY(atomic_write(idx, magic, sizeof magic));
    TRY(atomic_write(idx, &version, 8));
    TRY(atomic_write(idx, &code, 1));
    TRY(atomic_write(idx, &sequences, 8));
    TRY(atomic_write(idx, &boundaries, 8));
    TRY(atomic_write(idx, w->lengths, w->documents * 4));
    int64_t offset = 0;
    for (int64_t i = 0; i < w->documents; i++) {
        TRY(atomic_write(idx, &offset, 8));
        offset += (int64_t)w->lengths[i] * dtype_bytes(types[code]);
    }
    for (int64_t i = 0; i <= w->documents; i++)
        TRY(atomic_write(idx, &i, 8));
    return STATUS_OK;
}

/* Removes an old index first and writes the new one last: an index never belongs to another data set's tokens. */
status indexed_writer_close(indexed_writer *w)
{
    atomic_file *idx = NULL;
    status s = atomic_open(&idx, w->idx_path);
    if (s == STATUS_OK)
        s = write_index(w, idx);
    if (s == STATUS_OK)
        s = atomic_sync(idx);
    if (s == STATUS_OK)
        s = atomic_sync(w->bin);
    if (s == STATUS_OK)
        s = atomic_remove(w->idx_path);
    if (s == STATUS_OK) {
        s = atomic_commit(w->bin);
        w->bin = NULL;
    }
    if (s == STATUS_OK)
        s = atomic_commit(idx);
    else
        atomic_abandon(idx);
    indexed_writer_abandon(w);
    return s;
}

/* ---- reading ---- */

struct indexed {
    char *bin_path, *idx_path;
    mapping bin, idx;
    bool mapped;           /* mapped by indexed_open; else the caller owns the bytes */
    indexed_source source; /* reads .bin; read == NULL: `bin` has the bytes */
    dtype type;
    int64_t sequences, documents, tokens;
    const uint8_t *lengths, *offsets, *boundaries; /* arrays in the mapped index, unaligned */
    int64_t *starts; /* [sequences + 1] each one's first token; NULL if sequences are contiguous: offsets give it */
};

static int64_t load64(const uint8_t *array, int64_t i)
{
    int64_t value;
    memcpy(&value, array + 8 * i, sizeof value);
    return value;
}

static int32_t load32(const uint8_t *array, int64_t i)
{
    int32_t value;
    memcpy(&value, array + 4 * i, sizeof value);
    return value;
}

static status check_header(indexed *x)
{
    const char *path = x->idx_path;
    const uint8_t *head = x->idx.data;
    if (x->idx.bytes < HEADER_BYTES)
        return status_fail(STATUS_FAILED, "%s: %lld bytes are less than the header of an index (%d)", path,
                           (long long)x->idx.bytes, HEADER_BYTES);
    if (memcmp(head, magic, sizeof magic) != 0)
        return status_fail(STATUS_FAILED, "%s: offset 0: no indexed data set (it does not begin with MMIDIDX)", path);
    if (load64(head + 9, 0) != 1)
        return status_fail(STATUS_FAILED, "%s: offset 9: version %lld, only 1 is known", path,
                           (long long)load64(head + 9, 0));
    if (head[17] == 0 || head[17] >= CODES || dtype_is_float(types[head[17]]))
        return status_fail(STATUS_FAILED, "%s: offset 17: type code %d is none of token ids (1 to 5, 8)", path,
                           head[17]);
    x->type = types[head[17]];
    x->sequences = load64(head + 18, 0);
    int64_t boundaries = load64(head + 26, 0), rest = x->idx.bytes - HEADER_BYTES;
    bool fits = x->sequences >= 0 && x->sequences <= rest / 12 && boundaries >= 1;
    if (!fits || rest - 12 * x->sequences != (boundaries <= rest / 8 ? 8 * boundaries : -1))
        return status_fail(STATUS_FAILED,
                           "%s: %lld bytes do not hold the %lld sequences and %lld document boundaries it announces",
                           path, (long long)x->idx.bytes, (long long)x->sequences, (long long)boundaries);
    x->documents = boundaries - 1;
    x->lengths = head + HEADER_BYTES;
    x->offsets = x->lengths + 4 * x->sequences;
    x->boundaries = x->offsets + 8 * x->sequences;
    return STATUS_OK;
}

static status check_boundaries(const indexed *x)
{
    if (load64(x->boundaries, 0) != 0)
        return status_fail(STATUS_FAILED, "%s: the first document begins at sequence %lld, not at 0", x->idx_path,
                           (long long)load64(x->boundaries, 0));
    for (int64_t i = 0; i < x->documents; i++)
        if (load64(x->boundaries, i + 1) < load64(x->boundaries, i))
            return status_fail(STATUS_FAILED, "%s: document %lld ends at sequence %lld, before it begins (%lld)",
                               x->idx_path, (long long)i, (long long)load64(x->boundaries, i + 1),
                               (long long)load64(x->boundaries, i));
    if (load64(x->boundaries, x->documents) != x->sequences)
        return status_fail(STATUS_FAILED,
                           "%s: the last document ends at sequence %lld of %lld: the index is unfinished", x->idx_path,
                           (long long)load64(x->boundaries, x->documents), (long long)x->sequences);
    return STATUS_OK;
}

/* Checks that every sequence is within .bin and in order. */
static status check_sequences(indexed *x, bool *end_to_end)
{
    int64_t size = dtype_bytes(x->type), previous = 0;
    *end_to_end = true;
    for (int64_t i = 0; i < x->sequences; i++) {
        int64_t length = load32(x->lengths, i), offset = load64(x->offsets, i);
        if (length < 0)
            return status_fail(STATUS_FAILED, "%s: sequence %lld has length %lld", x->idx_path, (long long)i,
                               (long long)length);
        if (offset < previous)
            return status_fail(STATUS_FAILED,
                               "%s: sequence %lld begins at byte %lld, before the one ahead of it (%lld)", x->idx_path,
                               (long long)i, (long long)offset, (long long)previous);
        if (offset > x->bin.bytes || length * size > x->bin.bytes - offset)
            return status_fail(
                STATUS_FAILED,
                "%s: sequence %lld (%lld bytes at %lld) ends beyond the %lld bytes of %s: is it truncated?",
                x->idx_path, (long long)i, (long long)(length * size), (long long)offset, (long long)x->bin.bytes,
                x->bin_path);
        *end_to_end = *end_to_end && offset == x->tokens * size;
        x->tokens += length;
        previous = offset;
    }
    return STATUS_OK;
}

static status build_indexed(indexed **out, const mapping *idx, const mapping *bin, const indexed_source *source,
                            const char *prefix)
{
    AUTO(indexed) *x = must_calloc(1, sizeof *x);
    x->bin_path = must_format("%s.bin", prefix);
    x->idx_path = must_format("%s.idx", prefix);
    x->idx = *idx;
    x->bin = *bin;
    x->source = *source;
    bool end_to_end = true;
    TRY(check_header(x));
    TRY(check_boundaries(x));
    TRY(check_sequences(x, &end_to_end));
    if (!end_to_end) {
        x->starts = must_calloc((unsigned long)(x->sequences + 1), sizeof *x->starts);
        for (int64_t i = 0; i < x->sequences; i++)
            x->starts[i + 1] = x->starts[i] + load32(x->lengths, i);
    }
    *out = TAKE(x);
    return STATUS_OK;
}

status indexed_parse(indexed **out, const void *idx, int64_t idx_bytes, const void *bin, int64_t bin_bytes,
                     const char *prefix)
{
    return build_indexed(out, &(mapping){idx, idx_bytes}, &(mapping){bin, bin_bytes}, &(indexed_source){0}, prefix);
}

status indexed_parse_source(indexed **out, const void *idx, int64_t idx_bytes, const indexed_source *bin,
                            const char *prefix)
{
    return build_indexed(out, &(mapping){idx, idx_bytes}, &(mapping){NULL, bin->bytes}, bin, prefix);
}

status indexed_open(indexed **out, const char *prefix)
{
    RELEASED_BY(mapping_close) mapping idx = {0}, bin = {0};
    AUTO_FREE char *idx_path = must_format("%s.idx", prefix), *bin_path = must_format("%s.bin", prefix);
    TRY(mapping_open(&idx, idx_path));
    TRY(mapping_open(&bin, bin_path));
    TRY(indexed_parse(out, idx.data, idx.bytes, bin.data, bin.bytes, prefix));
    (*out)->mapped = true; /* takes ownership of both mappings */
    mapping_forget(&idx, 0, idx.bytes);
    idx = bin = (mapping){0};
    return STATUS_OK;
}

void indexed_close(indexed *x)
{
    if (!x)
        return;
    if (x->mapped) {
        mapping_close(&x->bin);
        mapping_close(&x->idx);
    }
    free(x->bin_path);
    free(x->idx_path);
    free(x->starts);
    free(x);
}

int64_t indexed_documents(const indexed *x)
{
    return x->documents;
}

int64_t indexed_tokens(const indexed *x)
{
    return x->tokens;
}

const char *indexed_dtype(const indexed *x)
{
    return dtype_name(x->type);
}

static int64_t sequence_start(const indexed *x, int64_t sequence)
{
    if (sequence == x->sequences)
        return x->tokens;
    return x->starts ? x->starts[sequence] : load64(x->offsets, sequence) / dtype_bytes(x->type);
}

int64_t indexed_document_start(const indexed *x, int64_t document)
{
    MUST(document >= 0 && document <= x->documents, "document %lld of %lld", (long long)document,
         (long long)x->documents);
    return sequence_start(x, load64(x->boundaries, document));
}

/* Returns the last i in [0, count) with start(i) <= token, by bisection; starts ascend, and empty items repeat one. */
static int64_t find_start(const indexed *x, int64_t count, int64_t token, int64_t (*start)(const indexed *, int64_t))
{
    int64_t low = 0, high = count; /* start(low) <= token < start(high) */
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (start(x, middle) <= token)
            low = middle;
        else
            high = middle;
    }
    return low;
}

int64_t indexed_document_of(const indexed *x, int64_t token)
{
    MUST(token >= 0 && token < x->tokens, "token %lld of %lld", (long long)token, (long long)x->tokens);
    return find_start(x, x->documents, token, indexed_document_start);
}

/* Converts ids to int32, clamped, so that ids beyond int32 stay outside of any vocabulary. */
static void convert_ids(int32_t *out, const uint8_t *from, dtype type, int64_t count)
{
    if (type != DTYPE_UINT16) {
        dtype_convert(out, DTYPE_INT32, from, type, count);
        return;
    }
    for (int64_t i = 0; i < count; i++) {
        uint16_t id;
        memcpy(&id, from + 2 * i, sizeof id);
        out[i] = id;
    }
}

/* Reads ids of a .bin that is not mapped, block by block. */
static status read_source(const indexed *x, int32_t *out, int64_t offset, int64_t count)
{
    enum { PIECE = 16 << 10 };
    uint64_t words[PIECE / sizeof(uint64_t)];
    int64_t size = dtype_bytes(x->type), most = PIECE / size;
    for (int64_t done = 0, now; done < count; done += now) {
        now = count - done < most ? count - done : most;
        TRY(x->source.read(x->source.context, words, offset + done * size, now * size));
        convert_ids(out + done, (const uint8_t *)words, x->type, now);
    }
    return STATUS_OK;
}

static status read_ids(const indexed *x, int32_t *out, int64_t offset, int64_t count, int64_t first, int64_t vocab_size)
{
    if (x->source.read)
        TRY(read_source(x, out, offset, count));
    else
        convert_ids(out, x->bin.data + offset, x->type, count);
    for (int64_t i = 0; i < count; i++)
        if (out[i] < 0 || out[i] >= vocab_size)
            return status_fail(
                STATUS_FAILED,
                "%s: token %lld (byte %lld, document %lld) has id %d, outside the vocabulary of %lld: the data set was "
                "made with another tokenizer, or is damaged",
                x->bin_path, (long long)(first + i), (long long)(offset + i * dtype_bytes(x->type)),
                (long long)indexed_document_of(x, first + i), out[i], (long long)vocab_size);
    return STATUS_OK;
}

status indexed_read(const indexed *x, int32_t *out, int64_t first, int64_t count, int64_t vocab_size)
{
    MUST(first >= 0 && count >= 0 && first <= x->tokens - count, "%s: tokens %lld to %lld of %lld", x->bin_path,
         (long long)first, (long long)(first + count), (long long)x->tokens);
    int64_t size = dtype_bytes(x->type);
    if (count == 0)
        return STATUS_OK;
    if (!x->starts)
        return read_ids(x, out, first * size, count, first, vocab_size);
    int64_t sequence = find_start(x, x->sequences, first, sequence_start);
    for (int64_t done = 0; done < count; sequence++) {
        int64_t within = first + done - x->starts[sequence],
                left = x->starts[sequence + 1] - x->starts[sequence] - within;
        int64_t now = left < count - done ? left : count - done;
        TRY(read_ids(x, out + done, load64(x->offsets, sequence) + within * size, now, first + done, vocab_size));
        done += now;
    }
    return STATUS_OK;
}

/* Returns the byte offset of a token. */
static int64_t token_offset(const indexed *x, int64_t token)
{
    int64_t size = dtype_bytes(x->type);
    if (!x->starts)
        return token * size;
    int64_t sequence = find_start(x, x->sequences, token, sequence_start);
    return load64(x->offsets, sequence) + (token - x->starts[sequence]) * size;
}

void indexed_byte_range(const indexed *x, int64_t *offset, int64_t *bytes, int64_t first, int64_t count)
{
    MUST(first >= 0 && count > 0 && first <= x->tokens - count, "%s: tokens %lld to %lld of %lld", x->bin_path,
         (long long)first, (long long)(first + count), (long long)x->tokens);
    *offset = token_offset(x, first);
    *bytes = token_offset(x, first + count - 1) + dtype_bytes(x->type) - *offset;
}

/* ---- identity ---- */

/* Computes a checksum over a file's ends and 64 evenly spaced pages between them: enough to tell data sets apart, and
 * fast for any size. */
static uint32_t sampled_checksum(const mapping *file, bool mapped)
{
    enum { END = 64 << 10, PAGE = 4096, PAGES = 64 };
    int64_t end = file->bytes < END ? file->bytes : END, between = file->bytes - PAGE;
    uint32_t crc = crc32c(0, file->data, end);
    crc = crc32c(crc, file->data + file->bytes - end, end);
    for (int i = 0; i < PAGES && file->bytes > 2 * END; i++)
        crc = crc32c(crc, file->data + between / PAGES * i, PAGE);
    if (mapped)
        mapping_forget(file, 0, file->bytes);
    return crc;
}

void indexed_identify(indexed_identity *out, const indexed *x)
{
    *out = (indexed_identity){.tokens = indexed_tokens(x),
                              .bin_bytes = x->bin.bytes,
                              .idx_bytes = x->idx.bytes,
                              .bin_crc32c = x->source.read ? x->source.version : sampled_checksum(&x->bin, x->mapped),
                              .idx_crc32c = sampled_checksum(&x->idx, x->mapped)};
}
