#include "engine/text/source.h"

#include <bzlib.h>
#include <errno.h>
#include <fcntl.h>
#include <lzma.h>
#include <poll.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/store/blocks/blocks.h"
#include "memory/log.h"

#define INPUT_BYTES (1 << 18)
#define MAGIC_BYTES 6 /* enough to recognise any format */

/* A compressed format: its magic bytes, and how it is opened and unpacked. */
typedef struct packing {
    const char *name;
    const char *magic;
    void (*begin)(source *s);
    /* Unpacks into `out`; also called without input, when the stream may hold text back. */
    status (*read)(source *s, char *out, int64_t *got, int64_t room);
    void (*end)(source *s);
} packing;

struct source {
    char *name;
    int file;
    blocks_object *remote; /* an object of a store in place of a file; NULL: none */
    int64_t place;         /* offset in the object of the next fetch */
    bool waits;            /* reading may block: not a regular file */
    const atomic_bool *stop;
    const packing *packing;
    uint8_t *input; /* [INPUT_BYTES]; at .. filled is not used yet */
    int64_t at, filled, consumed;
    bool ended;    /* the file has no more */
    bool complete; /* a packed stream may end here */
    union {
        z_stream gzip;
        ZSTD_DStream *zstd;
        lzma_stream xz;
        bz_stream bzip2;
    } of;
};

/* Waits until there are bytes to read. */
static status wait_for_input(const source *s)
{
    struct pollfd ready = {.fd = s->file, .events = POLLIN};
    for (;;) {
        if (s->stop && atomic_load(s->stop))
            return status_fail(STATUS_FAILED, "%s: stopped", s->name);
        int found = s->waits ? poll(&ready, 1, 100) : 1;
        if (found > 0 || (found < 0 && errno != EINTR)) /* poll() is repeated after a signal */
            return STATUS_OK;
    }
}

/* Reads more of an object of a store. */
static status fetch_more(source *s)
{
    int64_t left = blocks_bytes(s->remote) - s->place, room = INPUT_BYTES - s->filled;
    int64_t bytes = left < room ? left : room;
    TRY(blocks_read(s->remote, s->input + s->filled, s->place, bytes));
    s->ended = bytes == left;
    s->place += bytes;
    s->filled += bytes;
    s->consumed += bytes;
    return STATUS_OK;
}

/* Reads more into the input buffer, after its content. */
static status fill_input(source *s)
{
    if (s->at == s->filled)
        s->at = s->filled = 0;
    if (s->remote)
        return fetch_more(s);
    while (!s->ended && s->filled < INPUT_BYTES) {
        TRY(wait_for_input(s));
        ssize_t got = read(s->file, s->input + s->filled, (size_t)(INPUT_BYTES - s->filled));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
        s->ended = got == 0;
        s->filled += got;
        s->consumed += got;
        if (s->filled - s->at >= MAGIC_BYTES) /* enough to recognise it; a pipe may have no more for now */
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

static status fail_damaged(const source *s, const char *why)
{
    return status_fail(STATUS_FAILED, "%s: damaged %s data before byte %lld: %s", s->name, s->packing->name,
                       (long long)(s->consumed - (s->filled - s->at)), why);
}

static void begin_gzip(source *s)
{
    MUST(inflateInit2(&s->of.gzip, 15 + 16) == Z_OK, "zlib does not start: out of host memory?");
}

static void end_gzip(source *s)
{
    inflateEnd(&s->of.gzip);
}

/* A gzip file is one or more streams; zeros may follow the last. */
static status read_gzip(source *s, char *out, int64_t *got, int64_t room)
{
    z_stream *z = &s->of.gzip;
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
        return fail_damaged(s, z->msg ? z->msg : "unknown");
    return STATUS_OK;
}

static void begin_zstd(source *s)
{
    s->of.zstd = ZSTD_createDStream();
    MUST(s->of.zstd, "out of host memory");
}

static void end_zstd(source *s)
{
    ZSTD_freeDStream(s->of.zstd);
}

static status read_zstd(source *s, char *out, int64_t *got, int64_t room)
{
    ZSTD_inBuffer in = {s->input + s->at, (size_t)(s->filled - s->at), 0};
    ZSTD_outBuffer unpacked = {out, (size_t)room, 0};
    size_t result = ZSTD_decompressStream(s->of.zstd, &unpacked, &in);
    s->at += (int64_t)in.pos;
    *got = (int64_t)unpacked.pos;
    if (ZSTD_isError(result))
        return fail_damaged(s, ZSTD_getErrorName(result));
    s->complete = result == 0;
    return STATUS_OK;
}

static void begin_xz(source *s)
{
    s->of.xz = (lzma_stream)LZMA_STREAM_INIT;
    lzma_ret result = lzma_stream_decoder(&s->of.xz, UINT64_MAX, LZMA_CONCATENATED);
    MUST(result == LZMA_OK, "liblzma does not start: out of host memory?");
}

static void end_xz(source *s)
{
    lzma_end(&s->of.xz);
}

/* A file may hold several streams. liblzma says whether the last one is whole only when told that no input follows. */
static status read_xz(source *s, char *out, int64_t *got, int64_t room)
{
    lzma_stream *z = &s->of.xz;
    z->next_in = s->input + s->at;
    z->avail_in = (size_t)(s->filled - s->at);
    z->next_out = (uint8_t *)out;
    z->avail_out = (size_t)room;
    lzma_ret result = lzma_code(z, s->ended && z->avail_in == 0 ? LZMA_FINISH : LZMA_RUN);
    s->at = s->filled - (int64_t)z->avail_in;
    *got = room - (int64_t)z->avail_out;
    s->complete = result == LZMA_STREAM_END;
    if (result == LZMA_OK || result == LZMA_STREAM_END || result == LZMA_BUF_ERROR)
        return STATUS_OK;
    return fail_damaged(s, result == LZMA_MEM_ERROR       ? "out of memory"
                           : result == LZMA_OPTIONS_ERROR ? "packed with options that this liblzma does not know"
                                                          : "liblzma cannot unpack it");
}

static void begin_bzip2(source *s)
{
    s->of.bzip2 = (bz_stream){0};
    MUST(BZ2_bzDecompressInit(&s->of.bzip2, 0, 0) == BZ_OK, "libbz2 does not start: out of host memory?");
}

static void end_bzip2(source *s)
{
    BZ2_bzDecompressEnd(&s->of.bzip2);
}

/* A bzip2 file, too, is one or more streams. */
static status read_bzip2(source *s, char *out, int64_t *got, int64_t room)
{
    bz_stream *z = &s->of.bzip2;
    if (s->complete) {
        end_bzip2(s);
        begin_bzip2(s);
        s->complete = false;
    }
    z->next_in = (char *)s->input + s->at;
    z->avail_in = (unsigned)(s->filled - s->at);
    z->next_out = out;
    z->avail_out = (unsigned)(room < 1 << 30 ? room : 1 << 30);
    int64_t before = z->avail_out;
    int result = BZ2_bzDecompress(z);
    s->at = s->filled - z->avail_in;
    *got = before - z->avail_out;
    s->complete = result == BZ_STREAM_END;
    if (result != BZ_OK && result != BZ_STREAM_END)
        return fail_damaged(s, "libbz2 cannot unpack it");
    return STATUS_OK;
}

static const packing plain = {.name = "plain", .read = read_plain};

static const packing packings[] = {
    {"gzip", "\x1F\x8B", begin_gzip, read_gzip, end_gzip},
    {"zstd", "\x28\xB5\x2F\xFD", begin_zstd, read_zstd, end_zstd},
    {"xz",
     "\xFD"
     "7zXZ",
     begin_xz, read_xz, end_xz},
    {"bzip2", "BZh", begin_bzip2, read_bzip2, end_bzip2},
};

static const packing *packing_of(const source *s)
{
    for (unsigned i = 0; i < sizeof packings / sizeof *packings; i++) {
        const packing *p = &packings[i];
        size_t length = strlen(p->magic);
        bool level = strcmp(p->magic, "BZh") != 0 || (s->filled >= 4 && s->input[3] >= '1' && s->input[3] <= '9');
        if (s->filled >= (int64_t)length && memcmp(s->input, p->magic, length) == 0 && level)
            return p;
    }
    return &plain;
}

static status look_at_file(source *s)
{
    struct stat facts;
    if (s->file < 0)
        return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
    if (fstat(s->file, &facts) != 0)
        return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
    if (S_ISDIR(facts.st_mode))
        return status_fail(STATUS_FAILED, "%s: this is a folder: name the files in it", s->name);
    s->waits = !S_ISREG(facts.st_mode);
    return STATUS_OK;
}

static status begin_file(source *s, const char *path)
{
    TRY(object_is_url(path) ? blocks_open_one(&s->remote, path, s->stop) : look_at_file(s));
    TRY(fill_input(s));
    s->packing = packing_of(s);
    s->complete = s->packing == &plain;
    if (s->packing->begin)
        s->packing->begin(s);
    return STATUS_OK;
}

status source_size(int64_t *bytes, const char *path)
{
    struct stat facts;
    if (object_is_url(path))
        return blocks_look(bytes, path);
    if (stat(path, &facts) != 0)
        return status_fail(STATUS_FAILED, "%s: %s", path, strerror(errno));
    if (!S_ISREG(facts.st_mode))
        return status_fail(STATUS_FAILED, "%s: no regular file, so that nothing tells which part holds what", path);
    *bytes = facts.st_size;
    return STATUS_OK;
}

status source_open(source **out, const char *path, const atomic_bool *stop)
{
    bool standard = strcmp(path, "-") == 0;
    source *s = must_calloc(1, sizeof *s);
    s->name = must_strdup(standard ? "standard input" : path);
    s->stop = stop;
    s->input = must_alloc(INPUT_BYTES);
    s->file = standard ? STDIN_FILENO : object_is_url(path) ? -1 : open(path, O_RDONLY | O_CLOEXEC);
    status begun = begin_file(s, path);
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
    blocks_close_one(s->remote);
    if (s->packing && s->packing->end)
        s->packing->end(s);
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

bool source_seekable(const source *s)
{
    return s->packing == &plain && !s->waits;
}

int64_t source_bytes(const source *s)
{
    struct stat facts;
    if (s->remote)
        return blocks_bytes(s->remote);
    return fstat(s->file, &facts) == 0 ? facts.st_size : 0;
}

status source_seek(source *s, int64_t offset)
{
    MUST(source_seekable(s), "%s: its bytes come one after the other", s->name);
    if (s->remote)
        s->place = offset < blocks_bytes(s->remote) ? offset : blocks_bytes(s->remote);
    else if (lseek(s->file, offset, SEEK_SET) < 0)
        return status_fail(STATUS_FAILED, "%s: %s", s->name, strerror(errno));
    s->consumed -= s->filled - s->at; /* drops bytes that were read beyond the old position */
    s->at = s->filled = 0;
    s->ended = false;
    return STATUS_OK;
}

status source_read(source *s, char *out, int64_t *got, int64_t room)
{
    *got = 0;
    while (*got == 0) {
        if (s->at == s->filled)
            TRY(fill_input(s));
        bool dry = s->at == s->filled;
        if (dry && s->complete)
            return STATUS_OK;
        TRY(s->packing->read(s, out, got, room)); /* also called without input: a packed stream may hold text back */
        if (dry && *got == 0 && !s->complete)
            return status_fail(STATUS_FAILED, "%s: the packed text ends in the middle", s->name);
    }
    return STATUS_OK;
}
