#include "engine/text/source.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "memory/log.h"

#define INPUT_BYTES (1 << 18)

struct source {
    char *name;
    int file;
    status (*read)(source *s, char *out, int64_t *got, int64_t room);
    uint8_t *input; /* [INPUT_BYTES]; at .. filled is not used yet */
    int64_t at, filled, consumed;
    bool ended;    /* the file has no more */
    bool complete; /* a packed stream may end here */
    z_stream gzip;
    ZSTD_DStream *zstd;
};

/* Read on behind what is in the input buffer. */
static status fill(source *s)
{
    if (s->at == s->filled)
        s->at = s->filled = 0;
    while (!s->ended && s->filled < INPUT_BYTES) {
        ssize_t got = read(s->file, s->input + s->filled, (size_t)(INPUT_BYTES - s->filled));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
        s->ended = got == 0;
        s->filled += got;
        s->consumed += got;
        if (s->filled - s->at >= 4) /* enough to tell what it is; a pipe may have no more for now */
            break;
    }
    return STATUS_OK;
}

static status read_plain(source *s, char *out, int64_t *got, int64_t room)
{
    int64_t there = s->filled - s->at;
    *got = there < room ? there : room;
    memcpy(out, s->input + s->at, (size_t)*got);
    s->at += *got;
    return STATUS_OK;
}

/* A gzip file is one or more streams; zeros may follow the last. */
static status read_gzip(source *s, char *out, int64_t *got, int64_t room)
{
    z_stream *z = &s->gzip;
    if (s->complete) {
        if (s->input[s->at] == 0x1F)
            (void)inflateReset(z);
        else if (s->input[s->at] != 0)
            return status_fail(STATUS_FAILED, "%s: bytes that are not gzip's follow the packed text", s->name);
        else {
            s->at++;
            return STATUS_OK;
        }
        s->complete = false;
    }
    z->next_in = s->input + s->at;
    z->avail_in = (uInt)(s->filled - s->at);
    z->next_out = (Bytef *)out;
    z->avail_out = (uInt)(room < 1 << 30 ? room : 1 << 30);
    int64_t before = z->avail_out;
    int result = inflate(z, Z_NO_FLUSH);
    s->at = s->filled - z->avail_in;
    *got = before - z->avail_out;
    s->complete = result == Z_STREAM_END;
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR)
        return status_fail(STATUS_FAILED, "%s: damaged gzip data before byte %lld: %s", s->name,
                           (long long)(s->consumed - (s->filled - s->at)), z->msg ? z->msg : "unknown");
    return STATUS_OK;
}

static status read_zstd(source *s, char *out, int64_t *got, int64_t room)
{
    ZSTD_inBuffer in = {s->input + s->at, (size_t)(s->filled - s->at), 0};
    ZSTD_outBuffer unpacked = {out, (size_t)room, 0};
    size_t result = ZSTD_decompressStream(s->zstd, &unpacked, &in);
    s->at += (int64_t)in.pos;
    *got = (int64_t)unpacked.pos;
    if (ZSTD_isError(result))
        return status_fail(STATUS_FAILED, "%s: damaged zstd data before byte %lld: %s", s->name,
                           (long long)(s->consumed - (s->filled - s->at)), ZSTD_getErrorName(result));
    s->complete = result == 0;
    return STATUS_OK;
}

static status begin(source *s)
{
    static const uint8_t zstd_magic[4] = {0x28, 0xB5, 0x2F, 0xFD};
    struct stat facts;
    if (s->file < 0)
        return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
    if (fstat(s->file, &facts) == 0 && S_ISDIR(facts.st_mode))
        return status_fail(STATUS_FAILED, "%s: this is a folder: name the files in it", s->name);
    TRY(fill(s));
    s->read = read_plain;
    s->complete = true;
    if (s->filled >= 2 && s->input[0] == 0x1F && s->input[1] == 0x8B) {
        s->read = read_gzip;
        s->complete = false;
        MUST(inflateInit2(&s->gzip, 15 + 16) == Z_OK, "zlib does not start");
    } else if (s->filled >= 4 && memcmp(s->input, zstd_magic, 4) == 0) {
        s->read = read_zstd;
        s->complete = false;
        s->zstd = ZSTD_createDStream();
        MUST(s->zstd, "out of host memory");
    }
    return STATUS_OK;
}

status source_open(source **out, const char *path)
{
    bool standard = strcmp(path, "-") == 0;
    source *s = must_calloc(1, sizeof *s);
    s->name = must_strdup(standard ? "standard input" : path);
    s->input = must_alloc(INPUT_BYTES);
    s->file = standard ? STDIN_FILENO : open(path, O_RDONLY | O_CLOEXEC);
    status begun = begin(s);
    if (begun != STATUS_OK) {
        source_close(s);
        return begun;
    }
    *out = s;
    return STATUS_OK;
}

void source_close(source *s)
{
    if (!s)
        return;
    if (s->file > STDIN_FILENO)
        close(s->file);
    if (s->read == read_gzip)
        inflateEnd(&s->gzip);
    ZSTD_freeDStream(s->zstd);
    free(s->name);
    free(s->input);
    free(s);
}

const char *source_name(const source *s)
{
    return s->name;
}

int64_t source_consumed(const source *s)
{
    return s->consumed;
}

status source_read(source *s, char *out, int64_t *got, int64_t room)
{
    *got = 0;
    while (*got == 0) {
        if (s->at == s->filled)
            TRY(fill(s));
        bool dry = s->at == s->filled;
        if (dry && s->complete)
            return STATUS_OK;
        TRY(s->read(s, out, got, room)); /* without input, too: a packed stream may hold text back */
        if (dry && *got == 0 && !s->complete)
            return status_fail(STATUS_FAILED, "%s: the packed text ends in the middle", s->name);
    }
    return STATUS_OK;
}
