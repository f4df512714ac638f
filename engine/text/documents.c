#include "engine/text/documents.h"

#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/sniff.h"
#include "engine/text/source.h"
#include "memory/log.h"

#define MOST_BYTES      ((int64_t)INT32_MAX - 1)
#define BLOCK_BYTES     (1 << 18)
#define LONGEST_SNIFFED (64 << 20)  /* bytes of a first line that is looked at whole */
#define LONGEST_LINE    (128 << 20) /* bytes of a JSON line: looking into it takes several times its size of memory */

struct documents {
    documents_settings settings;
    char *const *inputs;
    int count, current; /* current: the input that is open, or the next to open */
    source *source;     /* NULL: none is open */
    bool json;          /* the open one is JSON-lines */
    bool sniffed;       /* ... by content only */
    bool ended;         /* the open one has no more bytes than those in `ahead` */
    int64_t line;       /* of the open one, lines taken so far */
    int64_t closed;     /* bytes of those that are closed */
    _Atomic int64_t consumed;
    buffer ahead; /* bytes read but not taken; taken: those before `at` */
    int64_t at;
    atomic_bool stop;
};

static bool ends_in(const char *name, size_t length, const char *ending)
{
    size_t tail = strlen(ending);
    return length >= tail && memcmp(name + length - tail, ending, tail) == 0;
}

/* x.jsonl, x.jsonl.gz, ... */
static bool is_named_json(const char *name)
{
    static const char *const packed[] = {".gz", ".zst", ".zstd", ".xz", ".bz2"};
    static const char *const json[] = {".jsonl", ".ndjson", ".json"};
    size_t length = strlen(name);
    for (unsigned i = 0; i < sizeof packed / sizeof *packed; i++)
        if (ends_in(name, length, packed[i])) {
            length -= strlen(packed[i]);
            break;
        }
    for (unsigned i = 0; i < sizeof json / sizeof *json; i++)
        if (ends_in(name, length, json[i]))
            return true;
    return false;
}

status documents_open(documents **out, const documents_settings *settings, char *const *inputs, int count)
{
    MUST(!settings->separator || settings->separator_length > 0, "an empty separator");
    documents *d = must_calloc(1, sizeof *d);
    d->settings = *settings;
    if (!d->settings.field)
        d->settings.field = "text";
    d->inputs = inputs;
    d->count = count;
    *out = d;
    return STATUS_OK;
}

void documents_close(documents *d)
{
    if (!d)
        return;
    source_close(d->source);
    buffer_free(&d->ahead);
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

/* Read on until so much is there, or the end. */
static status read_until(documents *d, int64_t bytes)
{
    while (!d->ended && d->ahead.length - d->at < bytes)
        TRY(read_ahead(d));
    return STATUS_OK;
}

/* Whether the first line that is not blank is a JSON object. */
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
    *object = there > LONGEST_SNIFFED || sniff_is_json_object(line, length);
    return STATUS_OK;
}

static status sniff(documents *d, const char *path)
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
    d->json = is_named_json(path);
    if (!d->json) {
        TRY(begins_with_object(d, &d->json));
        d->sniffed = d->json;
    }
    return STATUS_OK;
}

static status open_next(documents *d)
{
    const char *path = d->inputs[d->current];
    TRY(source_open(&d->source, path, &d->stop));
    d->json = d->settings.format == DOCUMENTS_JSON_LINES;
    d->ended = d->sniffed = false;
    d->line = d->at = d->ahead.length = 0;
    TRY(read_until(d, 3));
    if (d->ahead.length >= 3 && memcmp(d->ahead.bytes, "\xEF\xBB\xBF", 3) == 0) /* a byte order mark is no text */
        d->at = 3;
    return d->settings.format == DOCUMENTS_SNIFF ? sniff(d, path) : STATUS_OK;
}

/* Take what comes before the next separator, or all that is left where none follows. */
static status take_part(documents *d, buffer *bytes, documents_raw *raw, const char *separator, int64_t length)
{
    int64_t searched = 0;
    for (;;) {
        const char *from = d->ahead.bytes + d->at;
        if (d->json && d->ahead.length - d->at > LONGEST_LINE && !memchr(from, '\n', LONGEST_LINE))
            return status_fail(STATUS_FAILED,
                               "%s:%lld: a JSON line of more than %d MiB: divide its text over several lines",
                               source_name(d->source), (long long)d->line + 1, LONGEST_LINE >> 20);
        int64_t there = d->ahead.length - d->at;
        const char *found =
            separator ? memmem(from + searched, (size_t)(there - searched), separator, (size_t)length) : NULL;
        if (!found && !d->ended) {
            searched = there >= length ? there - length + 1 : 0; /* a separator may be cut by the end of the block */
            TRY(read_ahead(d));
            continue;
        }
        int64_t taken = found ? found - from : there;
        raw->offset = bytes->length;
        raw->length = taken;
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
            *more = d->current < d->count;
            if (!*more)
                return STATUS_OK;
            TRY(open_next(d));
        }
        if (d->ended && d->at == d->ahead.length) {
            d->closed += source_consumed(d->source);
            source_close(d->source);
            d->source = NULL;
            d->current++;
            continue;
        }
        if (d->json)
            TRY(take_part(d, bytes, raw, "\n", 1));
        else
            TRY(take_part(d, bytes, raw, d->settings.separator, d->settings.separator_length));
        raw->input = d->current;
        raw->line = d->json ? ++d->line : 0;
        raw->sniffed = d->sniffed;
        if (raw->length == 0 || (d->json && is_blank(bytes->bytes + raw->offset, raw->length))) {
            bytes->length = raw->offset;
            continue;
        }
        *more = true;
        return STATUS_OK;
    }
}

/* The value of an escape like \\ud83d; -1: it is another escape, or none. */
static int escaped_unit(const char *text, int64_t length)
{
    char digits[5] = "";
    if (length < 6 || text[0] != '\\' || text[1] != 'u')
        return -1;
    memcpy(digits, text + 2, 4);
    return strspn(digits, "0123456789abcdefABCDEF") == 4 ? (int)strtol(digits, NULL, 16) : -1;
}

/* A surrogate without its other half (Python writes them) becomes U+FFFD. Returns the bytes that belong to the escape
 * at `text`, a backslash. */
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

/* A number beyond fp64 becomes 0: only texts are read. Returns its bytes. */
static int64_t mend_number(char *text, int64_t length)
{
    int64_t bytes = 0;
    while (bytes < length && memchr("0123456789+-.eE", text[bytes], 15))
        bytes++;
    char *copy = must_format("%.*s", (int)bytes, text);
    if (isinf(strtod(copy, NULL))) {
        memset(text, ' ', (size_t)bytes);
        text[0] = '0';
    }
    free(copy);
    return bytes;
}

/* In place: what other programs write and jansson refuses. */
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

/* A line as JSON: as it is, or, if that fails, mended. The error is that of the line as it is. */
static json_t *parse_line(const char *bytes, int64_t length, json_error_t *error)
{
    json_error_t again;
    json_t *object = json_loadb(bytes, (size_t)length, JSON_ALLOW_NUL, error);
    if (object)
        return object;
    char *copy = must_alloc((unsigned long)length + 1);
    memcpy(copy, bytes, (size_t)length);
    copy[length] = 0;
    mend_line(copy, length);
    object = json_loadb(copy, (size_t)length, JSON_ALLOW_NUL | JSON_DECODE_INT_AS_REAL, &again);
    free(copy);
    return object;
}

status documents_text(const documents *d, const char **text, int64_t *length, buffer *scratch, const char *bytes,
                      const documents_raw *raw)
{
    *text = bytes;
    *length = raw->length;
    if (raw->line == 0)
        return STATUS_OK;
    const char *name = strcmp(d->inputs[raw->input], "-") == 0 ? "standard input" : d->inputs[raw->input];
    const char *or_text = raw->sniffed ? "; --format text takes the file as text" : "";
    long long line = raw->line;
    json_error_t error;
    json_t *object = parse_line(bytes, raw->length, &error);
    if (!object)
        return status_fail(STATUS_FAILED, "%s:%lld: column %d: %s: each line must be one JSON object%s", name, line,
                           error.column, error.text, or_text);
    const json_t *value = json_object_get(object, d->settings.field);
    status s = STATUS_OK;
    if (json_is_string(value)) {
        scratch->length = 0;
        buffer_append(scratch, json_string_value(value), (int64_t)json_string_length(value));
        *text = scratch->length ? scratch->bytes : "";
        *length = scratch->length;
    } else if (!json_is_object(object)) {
        s = status_fail(STATUS_FAILED, "%s:%lld: not a JSON object%s", name, line, or_text);
    } else {
        s = status_fail(STATUS_FAILED, "%s:%lld: the field \"%s\" is %s (--field names another)%s", name, line,
                        d->settings.field, value ? "no string" : "missing", or_text);
    }
    json_decref(object);
    return s;
}
