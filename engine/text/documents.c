#include "engine/text/documents.h"

#include <dlfcn.h>
#include <fnmatch.h>
#include <jansson.h>
#include <math.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/columns_reader.h"
#include "engine/text/sniff.h"
#include "engine/text/source.h"
#include "engine/text/unicode.h"
#include "memory/machine.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/status.h"

#define MOST_BYTES      ((int64_t)INT32_MAX - 1)
#define BLOCK_BYTES     (1 << 18)
#define GIVEN_BYTES     (4 << 20)   /* a longer rest of a file is handed over, not copied */
#define LONGEST_SNIFFED (64 << 20)  /* limit in bytes of a first line that is examined whole */
#define LONGEST_LINE    (128 << 20) /* limit in bytes of a JSON line: parsing takes several times its size */

/* The rows of one column of text in a Parquet or Arrow file, in order.
 *
 * They are read by a shared object beside the program, libphalanx_parquet.so (arrow/rows.cc, on Apache's libparquet and
 * libarrow), loaded when a file needs it, so that the program depends on neither. It sees a file as a size and a
 * function that reads, and gives blocks of rows that point into its own memory. Of Parquet it holds a data page and a
 * dictionary at a time, packed and unpacked; of Arrow one record batch. A file that wants more than COLUMNS_MOST_BYTES
 * is refused.
 */
typedef struct columns {
    const columns_reader *reader;
    source *from;
    int64_t place; /* position of the source; -1: unknown */
    bool failed;   /* the source has failed, and its message is the thread's */
    columns_file bytes;
    void *rows_of;    /* the reader's state */
    int64_t rows, at; /* rows: in the file, -1: unknown; at: rows taken of the block */
    columns_block block;
} columns;

/* True if a file that begins with these bytes is a Parquet file, an Arrow file or an Arrow stream. */
static bool columns_recognise(const char *bytes, int64_t length)
{
    uint32_t metadata;
    if (length >= 4 && memcmp(bytes, "PAR1", 4) == 0)
        return true;
    if (length >= 6 && memcmp(bytes, "ARROW1", 6) == 0)
        return true;
    /* a stream's first message: a mark invalid in UTF-8, and the size of a schema */
    if (length < 8 || memcmp(bytes, "\xFF\xFF\xFF\xFF", 4) != 0)
        return false;
    memcpy(&metadata, bytes + 4, sizeof metadata);
    return metadata > 0 && metadata % 8 == 0 && metadata < 1U << 28;
}

/* Finds the reader; NULL: there is none. The object stays loaded. */
static status find_reader(const columns_reader **out)
{
    const columns_reader *found = dlsym(RTLD_DEFAULT, "columns_arrow");
    AUTO_FREE char *path = machine_object("parquet");
    status s = STATUS_OK;
    if (!found && access(path, R_OK) == 0) {
        void *object = dlopen(path, RTLD_NOW | RTLD_LOCAL);
        found = object ? dlsym(object, "columns_arrow") : NULL;
        if (!found)
            s = status_fail(STATUS_FAILED, "%s cannot be loaded: %s: build it again (make), or remove it", path,
                            dlerror());
    }
    if (found && found->version != COLUMNS_VERSION)
        s = status_fail(STATUS_FAILED, "%s is of another build (interface %d, not %d): build it again", path,
                        found->version, COLUMNS_VERSION);
    if (s == STATUS_OK)
        *out = found;
    return s;
}

static status read_source(columns *c, char *out, int64_t offset, int64_t bytes)
{
    if (c->place != offset)
        TRY(source_seek(c->from, offset));
    c->place = -1;
    for (int64_t done = 0, got; done < bytes; done += got) {
        TRY(source_read(c->from, out + done, &got, bytes - done));
        if (got == 0)
            return status_fail(STATUS_FAILED, "%s: the file has become shorter", source_name(c->from));
    }
    c->place = offset + bytes;
    return STATUS_OK;
}

static int read_bytes(void *context, void *out, int64_t offset, int64_t bytes)
{
    columns *c = context;
    c->failed = c->failed || read_source(c, out, offset, bytes) != STATUS_OK;
    return c->failed;
}

/* Reports a library's failure on a stranger's file, as one printable line. */
static status fail_as(const columns *c, char *message)
{
    if (c->failed)
        return STATUS_FAILED;
    message[COLUMNS_MESSAGE_BYTES - 1] = 0;
    message[strcspn(message, "\r\n")] = 0;
    log_make_printable(message);
    return status_fail(STATUS_FAILED, "%s: %s", source_name(c->from), message);
}

static void columns_close(columns *c)
{
    if (!c)
        return;
    if (c->rows_of)
        c->reader->close(c->rows_of);
    free(c);
}

AUTO_CLOSES(columns, columns_close)

/* Opens the column `field` of a seekable source, which stays the caller's and has no other reader until columns_close.
 * The type is string, binary, large or view, in a dictionary or not; another type, or a missing column, is refused with
 * a list of the columns. */
static status columns_open(columns **out, source *from, const char *field)
{
    char message[COLUMNS_MESSAGE_BYTES] = "";
    AUTO(columns) *c = must_calloc(1, sizeof *c);
    c->from = from;
    c->place = -1;
    c->bytes = (columns_file){.context = c, .size = source_bytes(from), .read = read_bytes};
    TRY(find_reader(&c->reader));
    MUST(c->reader, "find_reader() has found one before");
    if (c->reader->open(&c->rows_of, &c->rows, &c->bytes, field, message))
        return fail_as(c, message);
    *out = TAKE(c);
    return STATUS_OK;
}

/* Reads only rows first .. end-1 of the `rows`, before columns_next() is called. */
static status columns_select(columns *c, int64_t first, int64_t end)
{
    char message[COLUMNS_MESSAGE_BYTES] = "";
    MUST(first >= 0 && first <= end && end <= c->rows, "%s: rows %lld to %lld of %lld", source_name(c->from),
         (long long)first, (long long)end, (long long)c->rows);
    return c->reader->select(c->rows_of, first, end, message) ? fail_as(c, message) : STATUS_OK;
}

/* Returns the next row, from 0: its bytes, valid until the next call, or NULL for null. *more is false at the end. */
static status columns_next(columns *c, const char **text, int64_t *length, int64_t *row, bool *more)
{
    char message[COLUMNS_MESSAGE_BYTES] = "";
    if (c->at == c->block.rows) {
        c->at = c->block.rows = 0;
        if (c->reader->next(c->rows_of, &c->block, message))
            return fail_as(c, message);
    }
    *more = c->block.rows > 0;
    if (!*more)
        return STATUS_OK;
    *text = c->block.text[c->at];
    *length = *text ? c->block.length[c->at] : 0;
    *row = c->block.first + c->at++;
    return STATUS_OK;
}

struct documents {
    documents_settings settings;
    char *const *inputs;
    int count, current; /* current: the input that is open, or the next to open */
    source *source;     /* NULL: none is open */
    columns *columns;   /* the rows of the open one; NULL: it is text */
    bool json;          /* the open one is JSON-lines */
    bool sniffed;       /* ... by content only */
    bool ended;         /* the open one has no more bytes than those in `ahead` */
    int64_t line;       /* lines of the open one taken so far */
    int64_t closed;     /* bytes of the closed ones */
    _Atomic int64_t consumed;
    buffer ahead; /* bytes read but not taken; taken: those before `at` */
    int64_t at;
    int64_t base;       /* offset in the open one at which `ahead` begins */
    int64_t limit;      /* records that begin there or later are another part's */
    int64_t *begins;    /* [count + 1] start of each input, laid end to end; NULL: there are no parts */
    int64_t first, end; /* range of this part, in the same bytes */
    /* the input that this part cuts, and the offset there; the lines before it: -1 until a message needs them */
    int cut_input;
    int64_t cut_offset, lines_before;
    pthread_mutex_t counting;
    atomic_bool stop;
};

static status lay_inputs(documents *d)
{
    int64_t parts = d->settings.parts, part = d->settings.part;
    d->begins = must_calloc((unsigned long)d->count + 1, sizeof *d->begins);
    for (int i = 0; i < d->count; i++) {
        int64_t bytes;
        const char *path = d->inputs[i];
        if (strcmp(path, "-") == 0)
            return status_fail(STATUS_USAGE, "standard input has no parts: name files");
        TRY(source_size(&bytes, path));
        d->begins[i + 1] = d->begins[i] + bytes;
    }
    int64_t total = d->begins[d->count], each = total / parts, rest = total % parts;
    d->first = each * part + rest * part / parts;
    d->end = each * (part + 1) + rest * (part + 1) / parts;
    return STATUS_OK;
}

status documents_open(documents **out, const documents_settings *settings, char *const *inputs, int count)
{
    MUST(!settings->separator || settings->separator_length > 0, "an empty separator");
    AUTO(documents) *d = must_calloc(1, sizeof *d);
    d->settings = *settings;
    if (!d->settings.field)
        d->settings.field = "text";
    d->inputs = inputs;
    d->count = count;
    d->cut_input = -1;
    pthread_mutex_init(&d->counting, NULL);
    if (d->settings.parts)
        TRY(lay_inputs(d));
    *out = TAKE(d);
    return STATUS_OK;
}

void documents_close(documents *d)
{
    if (!d)
        return;
    columns_close(d->columns);
    source_close(d->source);
    buffer_free(&d->ahead);
    pthread_mutex_destroy(&d->counting);
    free(d->begins);
    free(d);
}

void documents_stop(documents *d)
{
    atomic_store(&d->stop, true);
}

int64_t documents_consumed(const documents *d)
{
    return atomic_load(&d->consumed);
}

static status read_ahead(documents *d)
{
    if (d->at > 0) {
        d->ahead.length -= d->at;
        d->base += d->at;
        memmove(d->ahead.bytes, d->ahead.bytes + d->at, (size_t)d->ahead.length);
        d->at = 0;
    }
    if (d->ahead.length > MOST_BYTES)
        return status_fail(STATUS_FAILED, "%s: a document of more than 2 GiB: divide it (--separator)",
                           source_name(d->source));
    int64_t block = d->ahead.length > BLOCK_BYTES ? d->ahead.length : BLOCK_BYTES, got;
    buffer_reserve(&d->ahead, block);
    TRY(source_read(d->source, d->ahead.bytes + d->ahead.length, &got, block));
    d->ahead.length += got;
    d->ended = got == 0;
    atomic_store(&d->consumed, d->closed + source_consumed(d->source));
    return STATUS_OK;
}

/* Reads on until `bytes` are there, or the end. */
static status read_until(documents *d, int64_t bytes)
{
    while (!d->ended && d->ahead.length - d->at < bytes)
        TRY(read_ahead(d));
    return STATUS_OK;
}

/* Checks whether the first line that is not blank is a JSON object. */
static status begins_with_object(documents *d, bool *object)
{
    const char *line, *end = NULL;
    int64_t there = 0;
    *object = false;
    if (!sniff_may_be_json_lines(d->ahead.bytes + d->at, d->ahead.length - d->at))
        return STATUS_OK;
    for (;;) {
        line = d->ahead.bytes + d->at;
        there = d->ahead.length - d->at;
        line = memchr(line, '{', (size_t)there);
        end = memchr(line, '\n', (size_t)(d->ahead.bytes + d->ahead.length - line));
        if (end || d->ended || there > LONGEST_SNIFFED)
            break;
        TRY(read_ahead(d));
    }
    int64_t length = (end ? end : d->ahead.bytes + d->ahead.length) - line;
    json_auto_t *value = there > LONGEST_SNIFFED ? NULL : json_loadb(line, (size_t)length, JSON_ALLOW_NUL, NULL);
    *object = there > LONGEST_SNIFFED || json_is_object(value);
    return STATUS_OK;
}

static status sniff_format(documents *d, const char *path)
{
    const documents_settings *set = &d->settings;
    const char *name = source_name(d->source);
    bool zeros = set->separator && memchr(set->separator, 0, (size_t)set->separator_length);
    TRY(read_until(d, SNIFF_BYTES));
    const char *bytes = d->ahead.bytes + d->at;
    int64_t length = d->ahead.length - d->at;
    TRY(sniff_check(name, bytes, length, zeros));
    if (sniff_is_json_array(bytes, length))
        return status_fail(STATUS_FAILED,
                           "%s: this is a JSON array: each line must be one JSON object: jq -c '.[]' %s > x.jsonl "
                           "(--format text takes it as it is)",
                           name, name);
    d->json = fnmatch("*.@(jsonl|ndjson|json)?(.gz|.zst|.zstd|.xz|.bz2)", path, FNM_EXTMATCH) == 0;
    if (!d->json) {
        TRY(begins_with_object(d, &d->json));
        d->sniffed = d->json;
    }
    return STATUS_OK;
}

static const char *separator_of(const documents *d, int64_t *length)
{
    *length = d->json ? 1 : d->settings.separator_length;
    return d->json ? "\n" : d->settings.separator;
}

/* Skips to after the next separator; skips all if none follows. */
static status pass_separator(documents *d, const char *separator, int64_t length)
{
    for (;;) {
        int64_t there = d->ahead.length - d->at;
        const char *from = d->ahead.bytes + d->at,
                   *found = there > 0 ? memmem(from, (size_t)there, separator, (size_t)length) : NULL;
        if (found || d->ended) {
            d->at = found ? found + length - d->ahead.bytes : d->ahead.length;
            return STATUS_OK;
        }
        d->at = there >= length ? d->ahead.length - length + 1 : d->at; /* a block may end within a separator */
        TRY(read_ahead(d));
    }
}

/* True if a separator, such as two line ends, may begin within another; which do depends on all the bytes before. */
static bool overlaps_itself(const char *separator, int64_t length)
{
    for (int64_t i = 1; i < length; i++)
        if (memcmp(separator, separator + i, (size_t)(length - i)) == 0)
            return true;
    return false;
}

/* Returns the first row at or after a share of the file; two parts that meet there find the same one. */
static int64_t row_at(int64_t rows, int64_t byte, int64_t bytes)
{
    if (byte <= 0)
        return 0;
    return byte >= bytes ? rows : (int64_t)ceil((double)rows * ((double)byte / (double)bytes));
}

/* Restricts the opened input to this part's share. */
static status take_share(documents *d)
{
    int64_t begin = d->first - d->begins[d->current], end = d->end - d->begins[d->current], length;
    int64_t bytes = d->begins[d->current + 1] - d->begins[d->current];
    const char *separator = separator_of(d, &length);
    if (begin <= 0 && end >= bytes)
        return STATUS_OK;
    int64_t rows = d->columns ? d->columns->rows : -1;
    if (rows >= 0)
        return columns_select(d->columns, row_at(rows, begin, bytes), row_at(rows, end, bytes));
    if (d->columns || !separator || overlaps_itself(separator, length) || !source_seekable(d->source)) {
        d->limit = begin <= 0 ? INT64_MAX : 0;
        return STATUS_OK;
    }
    int64_t at = d->base + d->at; /* not 0 after a byte order mark, where the first record begins all the same */
    d->limit = end > at ? end : at + 1;
    if (begin <= 0)
        return STATUS_OK;
    d->base = begin > length ? begin - length : 0;
    d->at = d->ahead.length = 0;
    d->ended = false;
    TRY(source_seek(d->source, d->base));
    TRY(pass_separator(d, separator, length));
    d->cut_input = d->current;
    d->cut_offset = d->base + d->at;
    d->lines_before = -1;
    return STATUS_OK;
}

static status open_columns(documents *d, const char *path)
{
    if (!source_seekable(d->source) || strcmp(path, "-") == 0)
        return status_fail(STATUS_FAILED,
                           "%s: Parquet and Arrow are read from files that are not packed as a whole: unpack it, and "
                           "name the file",
                           source_name(d->source));
    return columns_open(&d->columns, d->source, d->settings.field);
}

/* Determines the format of the open one, unless the settings do. */
static status recognise_format(documents *d, const char *path)
{
    documents_format format = d->settings.format;
    d->json = format == DOCUMENTS_JSON_LINES || format == DOCUMENTS_FIELDS;
    if (format == DOCUMENTS_TEXT || format == DOCUMENTS_JSON_LINES)
        return STATUS_OK;
    TRY(read_until(d, SNIFF_BYTES));
    const char *bytes = d->ahead.bytes + d->at;
    int64_t length = d->ahead.length - d->at;
    if (columns_recognise(bytes, length)) {
        const columns_reader *reader = NULL;
        TRY(find_reader(&reader));
        d->json = false;
        return reader ? open_columns(d, path) : sniff_check(source_name(d->source), bytes, length, false);
    }
    return format == DOCUMENTS_SNIFF ? sniff_format(d, path) : STATUS_OK;
}

static status open_next(documents *d)
{
    const char *path = d->inputs[d->current];
    TRY(source_open(&d->source, path, &d->stop));
    d->json = d->ended = d->sniffed = false;
    d->line = d->at = d->base = d->ahead.length = 0;
    d->limit = INT64_MAX;
    TRY(read_until(d, 3));
    if (d->ahead.length >= 3 && memcmp(d->ahead.bytes, "\xEF\xBB\xBF", 3) == 0) /* a byte order mark is not text */
        d->at = 3;
    TRY(recognise_format(d, path));
    return d->begins ? take_share(d) : STATUS_OK;
}

/* Takes the next row; *more is false if there is none. */
static status take_row(documents *d, buffer *bytes, documents_raw *raw, bool *more)
{
    const char *text = NULL;
    TRY(columns_next(d->columns, &text, &raw->length, &raw->row, more));
    raw->null = *more && !text;
    if (*more && text)
        buffer_append(bytes, text, raw->length);
    atomic_store(&d->consumed, d->closed + (int64_t)(d->columns->block.done * (double)source_bytes(d->source)));
    return STATUS_OK;
}

/* Appends all that is left to `bytes` by handing over its memory, so that there is one copy of a long document. */
static void give_ahead(documents *d, buffer *bytes)
{
    int64_t before = bytes->length, taken = d->ahead.length - d->at;
    buffer_reserve(&d->ahead, before);
    memmove(d->ahead.bytes + before, d->ahead.bytes + d->at, (size_t)taken);
    if (before > 0)
        memcpy(d->ahead.bytes, bytes->bytes, (size_t)before);
    d->base += d->ahead.length;
    d->at = 0;
    const buffer given = d->ahead;
    d->ahead = *bytes;
    d->ahead.length = 0;
    *bytes = given;
    bytes->length = before + taken;
}

/* Takes the bytes up to the next separator, or all that is left if none follows. */
static status take_part(documents *d, buffer *bytes, documents_raw *raw)
{
    int64_t searched = 0, length;
    const char *separator = separator_of(d, &length);
    for (;;) {
        const char *from = d->ahead.bytes + d->at;
        int64_t there = d->ahead.length - d->at;
        if (d->json && there > LONGEST_LINE && !memchr(from, '\n', LONGEST_LINE)) {
            raw->too_long = true;
            return pass_separator(d, "\n", 1);
        }
        const char *found =
            separator ? memmem(from + searched, (size_t)(there - searched), separator, (size_t)length) : NULL;
        if (!found && !d->ended) {
            searched = there >= length ? there - length + 1 : 0; /* a separator may be cut by the end of the block */
            TRY(read_ahead(d));
            continue;
        }
        int64_t taken = found ? found - from : there;
        raw->length = taken;
        if (!found && taken > GIVEN_BYTES) {
            give_ahead(d, bytes);
            return STATUS_OK;
        }
        buffer_append(bytes, from, taken);
        d->at += taken + (found ? length : 0);
        return STATUS_OK;
    }
}

static bool is_blank(const char *text, int64_t length)
{
    for (int64_t i = 0; i < length; i++)
        if (text[i] != ' ' && text[i] != '\t' && text[i] != '\r')
            return false;
    return true;
}

status documents_next(documents *d, buffer *bytes, documents_raw *raw, bool *more)
{
    for (;;) {
        if (!d->source) {
            for (const int64_t *b = d->begins; b && d->current < d->count; d->current++)
                if (b[d->current + 1] > d->first &&
                    b[d->current] < d->end) /* else its size shows that it is not ours */
                    break;
            *more = d->current < d->count;
            if (!*more)
                return STATUS_OK;
            TRY(open_next(d));
        }
        *raw = (documents_raw){.offset = bytes->length, .input = d->current, .row = -1, .sniffed = d->sniffed};
        bool there = d->base + d->at < d->limit && (d->columns || !d->ended || d->at < d->ahead.length);
        if (there && d->columns)
            TRY(take_row(d, bytes, raw, &there));
        else if (there)
            TRY(take_part(d, bytes, raw));
        if (!there) {
            d->closed += d->columns ? source_bytes(d->source) : source_consumed(d->source);
            columns_close(d->columns);
            source_close(d->source);
            d->columns = NULL;
            d->source = NULL;
            d->current++;
            continue;
        }
        raw->line = d->json ? ++d->line : 0;
        bool empty = raw->length == 0 || (d->json && is_blank(bytes->bytes + raw->offset, raw->length));
        if (empty && !raw->too_long && !raw->null) {
            bytes->length = raw->offset;
            continue;
        }
        *more = true;
        return STATUS_OK;
    }
}

/* Returns the value of an escape like \\ud83d; -1: it is another escape, or none. */
static int escaped_unit(const char *text, int64_t length)
{
    char digits[5] = "";
    if (length < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

/* Replaces a surrogate without its other half (Python writes them) by U+FFFD. Returns the bytes that belong to the
 * escape at `text`, a backslash. */
static int64_t mend_escape(char *text, int64_t length)
{
    int unit = escaped_unit(text, length), low = unit < 0 ? -1 : escaped_unit(text + 6, length - 6);
    if (unit < 0)
        return 2;
    if (unit >= 0xd800 && unit < 0xdc00 && low >= 0xdc00 && low <= 0xdfff)
        return 12;
    if (unit >= 0xd800 && unit <= 0xdfff)
        memcpy(text + 2, "fffd", 4);
    return 6;
}

/* Replaces a number beyond fp64 by 0: only texts are read. Returns its bytes. */
static int64_t mend_number(char *text, int64_t length)
{
    int64_t bytes = 0;
    while (bytes < length && memchr("0123456789+-.eE", text[bytes], 15))
        bytes++;
    AUTO_FREE char *copy = must_format("%.*s", (int)bytes, text);
    if (isinf(strtod(copy, NULL))) {
        memset(text, ' ', (size_t)bytes);
        text[0] = '0';
    }
    return bytes;
}

/* Repairs in place the JSON that other programs write and jansson refuses. */
static void mend_line(char *text, int64_t length)
{
    bool in_string = false;
    for (int64_t i = 0; i < length;) {
        char c = text[i];
        in_string ^= c == '"';
        if (in_string && c == '\\')
            i += mend_escape(text + i, length - i);
        else if (!in_string && (c == '-' || (c >= '0' && c <= '9')))
            i += mend_number(text + i, length - i);
        else
            i++;
    }
}

/* Parses a line as JSON, unchanged, or, if that fails, repaired. The error is that of the unchanged line. */
static json_t *parse_line(const char *bytes, int64_t length, json_error_t *error)
{
    json_t *object = json_loadb(bytes, (size_t)length, JSON_ALLOW_NUL, error);
    if (object)
        return object;
    AUTO_FREE char *copy = must_alloc((unsigned long)length + 1);
    memcpy(copy, bytes, (size_t)length);
    copy[length] = 0;
    mend_line(copy, length);
    return json_loadb(copy, (size_t)length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, NULL);
}

/* Counts the lines before `offset`. */
static status count_lines(int64_t *lines, const char *path, int64_t offset)
{
    AUTO(source) *s = NULL;
    char block[1 << 14];
    *lines = 0;
    TRY(source_open(&s, path, NULL));
    for (int64_t at = 0, got = 1; at < offset && got > 0; at += got) {
        int64_t room = offset - at < (int64_t)sizeof block ? offset - at : (int64_t)sizeof block;
        TRY(source_read(s, block, &got, room));
        for (int64_t i = 0; i < got; i++)
            *lines += block[i] == '\n';
    }
    return STATUS_OK;
}

/* Returns the line number in the file. A part that begins within a file counts from there, and reads the earlier lines
 * only for a message. */
static status line_in_file(documents *d, int64_t *line, const documents_raw *raw)
{
    *line = raw->line;
    if (raw->input != d->cut_input)
        return STATUS_OK;
    pthread_mutex_lock(&d->counting);
    status s = STATUS_OK;
    if (d->lines_before < 0)
        s = count_lines(&d->lines_before, d->inputs[raw->input], d->cut_offset);
    *line += d->lines_before;
    pthread_mutex_unlock(&d->counting);
    return s;
}

/* Reports a record of JSON-lines without text, and the reason. */
static status fail_line(documents *d, const documents_raw *raw, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

static status fail_line(documents *d, const documents_raw *raw, const char *format, ...)
{
    char why[1000];
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(why, sizeof why, format, arguments);
    va_end(arguments);
    const char *path = d->inputs[raw->input];
    int64_t line;
    TRY(line_in_file(d, &line, raw));
    return status_fail(STATUS_FAILED, "%s:%lld: %s%s", strcmp(path, "-") == 0 ? "standard input" : path,
                       (long long)line, why, raw->sniffed ? "; --format text takes the file as text" : "");
}

static status take_field(documents *d, buffer *text, const documents_raw *raw, const json_t *object)
{
    const json_t *value = json_object_get(object, d->settings.field);
    if (!json_is_object(object))
        return fail_line(d, raw, "not a JSON object");
    if (!json_is_string(value))
        return fail_line(d, raw, "the field \"%s\" is %s (--field names another)", d->settings.field,
                         !value                ? "missing"
                         : json_is_null(value) ? "null"
                                               : "no string");
    text->length = 0;
    buffer_append(text, json_string_value(value), (int64_t)json_string_length(value));
    return STATUS_OK;
}

/* Checks that the text of a row is UTF-8, as in JSON-lines. */
static status check_row(const documents *d, const char *bytes, const documents_raw *raw)
{
    const char *path = d->inputs[raw->input], *field = d->settings.field;
    if (raw->null)
        return status_fail(STATUS_FAILED, "%s:row %lld: the column \"%s\" is null", path, (long long)raw->row, field);
    int64_t good = unicode_check(bytes, raw->length);
    if (good < raw->length)
        return status_fail(STATUS_FAILED, "%s:row %lld: the column \"%s\" is not UTF-8: byte %lld is 0x%02x", path,
                           (long long)raw->row, field, (long long)good, (uint8_t)bytes[good]);
    return STATUS_OK;
}

status documents_text(documents *d, const char **text, int64_t *length, buffer *scratch, const char *bytes,
                      const documents_raw *raw)
{
    *text = bytes;
    *length = raw->length;
    if (raw->row >= 0)
        return check_row(d, bytes, raw);
    if (raw->line == 0)
        return STATUS_OK;
    if (raw->too_long)
        return fail_line(d, raw, "a JSON line of more than %d MiB: divide its text over several lines",
                         LONGEST_LINE >> 20);
    json_error_t error;
    json_auto_t *object = parse_line(bytes, raw->length, &error);
    if (!object)
        return fail_line(d, raw, "column %d: %s: each line must be one JSON object", error.column, error.text);
    status s = take_field(d, scratch, raw, object);
    *text = scratch->length ? scratch->bytes : "";
    *length = scratch->length;
    return s;
}
