#include "engine/text/columns.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/text/columns_reader.h"
#include "memory/beside.h"
#include "memory/log.h"
#include "memory/scope.h"

struct columns {
    const columns_reader *reader;
    source *from;
    int64_t place; /* where the source is; -1: elsewhere */
    bool failed;   /* the source has, and its message is that of the thread */
    columns_file bytes;
    void *rows_of;    /* the reader's own */
    int64_t rows, at; /* at: of the block, rows taken */
    columns_block block;
};

bool columns_recognise(const char *bytes, int64_t length)
{
    uint32_t metadata;
    if (length >= 4 && memcmp(bytes, "PAR1", 4) == 0)
        return true;
    if (length >= 6 && memcmp(bytes, "ARROW1", 6) == 0)
        return true;
    /* a stream's first message: a mark that no UTF-8 has, and the bytes of a schema */
    if (length < 8 || memcmp(bytes, "\xFF\xFF\xFF\xFF", 4) != 0)
        return false;
    memcpy(&metadata, bytes + 4, sizeof metadata);
    return metadata > 0 && metadata % 8 == 0 && metadata < 1U << 28;
}

/* NULL: there is none. The object stays loaded. */
static status find_reader(const columns_reader **out)
{
    const columns_reader *found = dlsym(RTLD_DEFAULT, "columns_arrow");
    AUTO_FREE char *path = beside_program("parquet");
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

status columns_available(bool *there)
{
    const columns_reader *reader = NULL;
    TRY(find_reader(&reader));
    *there = reader != NULL;
    return STATUS_OK;
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

/* What a library says of a file that may be anybody's, as one line that a terminal can show. */
static status fail_as(const columns *c, char *message)
{
    if (c->failed)
        return STATUS_FAILED;
    message[COLUMNS_MESSAGE_BYTES - 1] = 0;
    message[strcspn(message, "\r\n")] = 0;
    log_make_printable(message);
    return status_fail(STATUS_FAILED, "%s: %s", source_name(c->from), message);
}

status columns_open(columns **out, source *from, const char *field)
{
    char message[COLUMNS_MESSAGE_BYTES] = "";
    columns *c = must_calloc(1, sizeof *c);
    c->from = from;
    c->place = -1;
    c->bytes = (columns_file){.context = c, .size = source_bytes(from), .read = read_bytes};
    status s = find_reader(&c->reader);
    MUST(s != STATUS_OK || c->reader, "columns_available() says that there is a reader");
    if (s == STATUS_OK && c->reader->open(&c->rows_of, &c->rows, &c->bytes, field, message))
        s = fail_as(c, message);
    if (s == STATUS_OK)
        *out = c;
    else
        columns_close(c);
    return s;
}

void columns_close(columns *c)
{
    if (!c)
        return;
    if (c->rows_of)
        c->reader->close(c->rows_of);
    free(c);
}

int64_t columns_rows(const columns *c)
{
    return c->rows;
}

status columns_select(columns *c, int64_t first, int64_t end)
{
    char message[COLUMNS_MESSAGE_BYTES] = "";
    MUST(first >= 0 && first <= end && end <= c->rows, "%s: rows %lld to %lld of %lld", source_name(c->from),
         (long long)first, (long long)end, (long long)c->rows);
    return c->reader->select(c->rows_of, first, end, message) ? fail_as(c, message) : STATUS_OK;
}

status columns_next(columns *c, const char **text, int64_t *length, int64_t *row, bool *more)
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

double columns_done(const columns *c)
{
    return c->block.done;
}
