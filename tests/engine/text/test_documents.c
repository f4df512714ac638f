/* Documents come whole and in order from text, JSON-lines and packed files; encoding them by many threads changes
 * nothing; what is damaged is refused by file and line. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <bzlib.h>
#include <lzma.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/system/atomic.h"
#include "engine/data/corpus.h"
#include "engine/text/documents.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static char *make_file(void **state, const char *name, const void *data, int64_t bytes)
{
    char *path = workfolder_path(*state, name);
    workfolder_write(path, data, bytes);
    return path;
}

/* All documents of the paths, each followed by '|'. */
static status read_all(buffer *out, const documents_settings *settings, char *const *paths, int count)
{
    documents *d;
    bool more = true;
    buffer bytes = {0}, scratch = {0};
    out->length = 0;
    assert_int_equal(documents_open(&d, settings, paths, count), STATUS_OK);
    status s = STATUS_OK;
    while (s == STATUS_OK) {
        documents_raw raw;
        const char *text;
        int64_t length;
        bytes.length = 0;
        s = documents_next(d, &bytes, &raw, &more);
        if (s != STATUS_OK || !more)
            break;
        s = documents_text(d, &text, &length, &scratch, bytes.bytes + raw.offset, &raw);
        if (s != STATUS_OK)
            break;
        buffer_append(out, text, length);
        buffer_append(out, "|", 1);
    }
    documents_close(d);
    buffer_free(&bytes);
    buffer_free(&scratch);
    return s;
}

static void expect(const buffer *got, const char *wanted)
{
    assert_int_equal(got->length, strlen(wanted));
    assert_memory_equal(got->bytes, wanted, strlen(wanted));
}

/* gzip's format, by zlib; two streams one after the other. */
static int64_t pack_gzip(char *out, int64_t room, const char *text, int64_t length)
{
    int64_t used = 0, half = length / 2;
    for (int part = 0; part < 2; part++) {
        z_stream z = {0};
        assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, 15 + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
        z.next_in = (Bytef *)(uintptr_t)(text + part * half);
        z.avail_in = (uInt)(part ? length - half : half);
        z.next_out = (Bytef *)(out + used);
        z.avail_out = (uInt)(room - used);
        assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
        used = room - z.avail_out;
        deflateEnd(&z);
    }
    return used;
}

static int64_t pack_zstd(char *out, int64_t room, const char *text, int64_t length)
{
    int64_t half = length / 2;
    size_t first = ZSTD_compress(out, (size_t)room, text, (size_t)half, 3);
    size_t second = ZSTD_compress(out + first, (size_t)room - first, text + half, (size_t)(length - half), 3);
    assert_false(ZSTD_isError(first) || ZSTD_isError(second));
    return (int64_t)(first + second);
}

static int64_t pack_xz(char *out, int64_t room, const char *text, int64_t length)
{
    size_t used = 0, half = (size_t)length / 2;
    for (size_t part = 0; part < 2; part++)
        assert_int_equal(lzma_easy_buffer_encode(3, LZMA_CHECK_CRC64, NULL, (const uint8_t *)text + part * half,
                                                 part ? (size_t)length - half : half, (uint8_t *)out, &used,
                                                 (size_t)room),
                         LZMA_OK);
    return (int64_t)used;
}

static int64_t pack_bzip2(char *out, int64_t room, const char *text, int64_t length)
{
    int64_t used = 0, half = length / 2;
    for (int part = 0; part < 2; part++) {
        unsigned bytes = (unsigned)(room - used);
        assert_int_equal(BZ2_bzBuffToBuffCompress(out + used, &bytes, (char *)(uintptr_t)(text + part * half),
                                                  (unsigned)(part ? length - half : half), 1, 0, 0),
                         BZ_OK);
        used += bytes;
    }
    return used;
}

TEST_WITH(text_files_and_separators_give_their_documents, workfolder_setup, workfolder_teardown)
{
    buffer got = {0};
    char *paths[] = {make_file(state, "a.txt", "one\n\ntwo\r\n", 10), make_file(state, "empty", "", 0),
                     make_file(state, "b.txt", "\xEF\xBB\xBFthree\n\n\n\nfour", 16)};
    assert_int_equal(read_all(&got, &(documents_settings){0}, paths, 3), STATUS_OK);
    expect(&got, "one\n\ntwo\r\n|three\n\n\n\nfour|");
    assert_int_equal(read_all(&got, &(documents_settings){.separator = "\n\n", .separator_length = 2}, paths, 3),
                     STATUS_OK);
    expect(&got, "one|two\r\n|three|four|");
    assert_int_equal(read_all(&got, &(documents_settings){.separator = "\n", .separator_length = 1}, paths, 3),
                     STATUS_OK);
    expect(&got, "one|two\r|three|four|");
    for (int i = 0; i < 3; i++)
        free(paths[i]);
    buffer_free(&got);
}

/* A separator that lies across the borders of the blocks that are read. */
TEST_WITH(long_files_are_cut_at_every_separator, workfolder_setup, workfolder_teardown)
{
    int64_t length = 3 << 20, parts = 1;
    char *text = must_alloc((unsigned long)length), *path;
    memset(text, 'x', (size_t)length);
    for (int64_t at = 100; at + 4 < length; at += 4099, parts++)
        memcpy(text + at, "<EOD>", 5);
    buffer got = {0};
    path = make_file(state, "long", text, length);
    assert_int_equal(read_all(&got, &(documents_settings){.separator = "<EOD>", .separator_length = 5}, &path, 1),
                     STATUS_OK);
    assert_int_equal(got.length, length - 5 * (parts - 1) + parts);
    assert_null(memmem(got.bytes, (size_t)got.length, "<", 1));
    free(path);
    free(text);
    buffer_free(&got);
}

TEST_WITH(json_lines_give_the_field, workfolder_setup, workfolder_teardown)
{
    static const char lines[] = "{\"text\": \"one \\u20ac \\\"q\\\"\\n\", \"n\": [1, {\"text\": 2}]}\n\n  "
                                "\r\n{\"body\":\"x\",\"text\":\"two\"}\r\n"
                                "{\"text\":\"\"}\n{\"text\":\"last\\u0000\",\"body\":\"y\"}";
    buffer got = {0};
    char *path = make_file(state, "a.jsonl", lines, sizeof lines - 1);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_OK);
    assert_int_equal(got.length, 24);
    assert_memory_equal(got.bytes, "one \xE2\x82\xAC \"q\"\n|two||last\0|", 24);
    assert_int_equal(read_all(&got, &(documents_settings){.field = "body"}, &path, 1), STATUS_FAILED);
    workfolder_message_has("a.jsonl:1: the field \"body\" is missing");
    free(path);
    path = make_file(state, "b.jsonl", "{\"text\":\"x\"}\n{\"text\":1}\n", 24);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("b.jsonl:2: the field \"text\" is no string");
    free(path);
    path = make_file(state, "n.jsonl", "{\"text\": null}\n", 15);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("n.jsonl:1: the field \"text\" is null");
    free(path);
    path = make_file(state, "c.jsonl", "{\"text\":\"x\"}\n{\"text\":\"", 22);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("c.jsonl:2: column");
    free(path);
    path = make_file(state, "d.txt", "[1]\n", 4);
    assert_int_equal(read_all(&got, &(documents_settings){.format = DOCUMENTS_JSON_LINES}, &path, 1), STATUS_FAILED);
    workfolder_message_has("d.txt:1: not a JSON object");
    free(path);
    buffer_free(&got);
}

/* Random text with some order in it, so that it packs. */
static char *make_text(int64_t length)
{
    char *text = must_alloc((unsigned long)length + 1);
    uint32_t r = 1;
    for (int64_t i = 0; i < length; i++) {
        r = r * 1664525 + 1013904223;
        text[i] = r >> 28 == 0 ? '\n' : r >> 28 < 4 ? ' ' : (char)('a' + (r >> 20) % 20);
    }
    text[length] = 0;
    return text;
}

/* Each in two streams, one after the other, as parallel packers write them. */
static const struct {
    int64_t (*pack)(char *out, int64_t room, const char *text, int64_t length);
    int caught; /* of 20 changed bytes at least: zstd has no checksum here */
} packers[] = {{pack_gzip, 19}, {pack_zstd, 1}, {pack_xz, 19}, {pack_bzip2, 19}};

TEST_WITH(packed_files_are_what_was_packed, workfolder_setup, workfolder_teardown)
{
    int64_t length = 1 << 20, room = 2 << 20;
    AUTO_FREE char *text = make_text(length), *packed = must_alloc((unsigned long)room);
    for (unsigned kind = 0; kind < sizeof packers / sizeof *packers; kind++) {
        buffer got = {0};
        int64_t bytes = packers[kind].pack(packed, room, text, length);
        char *path = make_file(state, "packed", packed, bytes);
        if (read_all(&got, &(documents_settings){0}, &path, 1) != STATUS_OK)
            fail_msg("%s", status_message());
        assert_int_equal(got.length, length + 1);
        assert_memory_equal(got.bytes, text, (size_t)length);
        /* cut off anywhere but between the two streams: refused */
        for (int64_t keep = 8; keep < bytes; keep += bytes / 7) {
            workfolder_write(path, packed, keep);
            assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
            workfolder_message_has("packed: the packed text ends in the middle");
        }
        /* a byte changed in the middle of the data: refused (checksums, zstd's structure) */
        int refused = 0;
        for (int64_t at = 20; at < bytes; at += bytes / 19) {
            packed[at] = (char)(packed[at] ^ 0x55);
            workfolder_write(path, packed, bytes);
            refused += read_all(&got, &(documents_settings){0}, &path, 1) != STATUS_OK;
            packed[at] = (char)(packed[at] ^ 0x55);
        }
        assert_true(refused >= packers[kind].caught);
        free(path);
        buffer_free(&got);
    }
}

/* What would make garbage is refused by what it is and with what to do; asked for as text, it is text. */
TEST_WITH(what_is_not_text_is_refused_with_what_to_do, workfolder_setup, workfolder_teardown)
{
    static char tar[512] = "notes.txt";
    memcpy(tar + 257, "ustar", 6);
    static char noise[3000];
    uint32_t r = 1;
    for (unsigned i = 0; i < sizeof noise; i++) {
        r = r * 1664525 + 1013904223;
        noise[i] = (char)(r >> 24 ? r >> 24 : 1);
    }
    const struct {
        const char *name, *data;
        int64_t bytes; /* -1: a string */
        const char *what, *todo;
    } cases[] = {
        {"x.parquet", "PAR1\x15\x04\x15", 7, "this is a Parquet file", "x.parquet | phalanx tokenize ... -; or build"},
        {"x.arrow", "ARROW1\0\0", 8, "an Arrow file", "pyarrow.ipc.open_file(sys.argv[1])"},
        {"stream.arrow", "\xFF\xFF\xFF\xFF\x80\0\0\0", 8, "an Arrow stream", "pyarrow.ipc.open_stream("},
        {"old.feather", "FEA1\0\0", 6, "a Feather file of version 1", "f.write_feather("},
        {"x.zip", "PK\3\4abc", 7, "a zip archive", "unpack it"},
        {"x.7z", "7z\xBC\xAF\x27\x1C..", 8, "a 7z archive", "unpack it"},
        {"x.tar", tar, sizeof tar, "a tar archive", "name the files in it"},
        {"x.idx", "MMIDIDX\0\0", 9, "tokenized already", "data.train="},
        {"x.pdf", "%PDF-1.7\n", 9, "a PDF", "pdftotext "},
        {"utf16", "\xFF\xFEh\0i\0", 6, "UTF-16", "iconv -f UTF-16 -t UTF-8"},
        {"latin1",
         "caf\xE9 na\xEFve fa\xE7"
         "ade\n",
         18, "another encoding", "iconv -f ISO-8859-1"},
        {"zeros", "one\0two\0", 8, "a binary file", "--format text"},
        {"noise", noise, sizeof noise, "another encoding, or binary", "--format text"},
        {"array.json", " [ {\"text\": \"a\"} ]", -1, "a JSON array", "jq -c '.[]'"},
        {"array", "[{\"text\": \"a\"}]", -1, "a JSON array", "jq -c '.[]'"},
    };
    buffer got = {0};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        int64_t length = cases[i].bytes < 0 ? (int64_t)strlen(cases[i].data) : cases[i].bytes;
        char *path = make_file(state, cases[i].name, cases[i].data, length);
        if (read_all(&got, &(documents_settings){0}, &path, 1) == STATUS_OK)
            fail_msg("%s was taken", cases[i].name);
        workfolder_message_has(cases[i].name);
        workfolder_message_has(cases[i].what);
        workfolder_message_has(cases[i].todo);
        assert_int_equal(read_all(&got, &(documents_settings){.format = DOCUMENTS_TEXT}, &path, 1), STATUS_OK);
        assert_int_equal(got.length, length + 1);
        free(path);
    }
    /* the same within a packed file, and what is text all the same */
    static char packed[4096];
    int64_t bytes = pack_gzip(packed, sizeof packed, tar, sizeof tar);
    char *path = make_file(state, "x.tar.gz", packed, bytes);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("a tar archive");
    free(path);
    path = make_file(state, "print0", "one\0two\0", 8);
    assert_int_equal(read_all(&got, &(documents_settings){.separator = "\0", .separator_length = 1}, &path, 1),
                     STATUS_OK);
    expect(&got, "one|two|");
    free(path);
    static char long_text[4000];
    memset(long_text, 'x', sizeof long_text);
    memcpy(long_text + 100, "\xE9 \xE9", 3); /* damage, not an encoding */
    path = make_file(state, "damaged.txt", long_text, sizeof long_text);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_OK);
    assert_int_equal(got.length, sizeof long_text + 1);
    free(path);
    buffer_free(&got);
}

/* What Python and others write and a strict reader refuses: numbers beyond 64 bits, halves of surrogate pairs. */
TEST_WITH(json_lines_of_other_writers_are_read, workfolder_setup, workfolder_teardown)
{
    static const char lines[] = "{\"id\": 123456789012345678901, \"x\": [-1e400, 1E+999], \"text\": \"a 1e400\"}\n"
                                "{\"text\": \"b\\ud800c\\\\ud800\\ud83d\\ude00\\udc00\\ud83dd\"}\n";
    static const char text[] = "b\xEF\xBF\xBD"
                               "c\\ud800\xF0\x9F\x98\x80\xEF\xBF\xBD\xEF\xBF\xBD"
                               "d";
    char *path = make_file(state, "others.jsonl", lines, sizeof lines - 1);
    documents_settings settings = {.format = DOCUMENTS_JSON_LINES};
    documents *d;
    assert_int_equal(documents_open(&d, &settings, &path, 1), STATUS_OK);
    static const char *const wanted[] = {"a 1e400", text};
    buffer bytes = {0}, scratch = {0};
    for (int i = 0; i < 2; i++) {
        documents_raw raw;
        bool more = false;
        const char *got;
        int64_t length;
        bytes.length = 0;
        assert_int_equal(documents_next(d, &bytes, &raw, &more), STATUS_OK);
        assert_true(more);
        assert_int_equal(documents_text(d, &got, &length, &scratch, bytes.bytes + raw.offset, &raw), STATUS_OK);
        assert_int_equal(length, strlen(wanted[i]));
        assert_memory_equal(got, wanted[i], (size_t)length);
    }
    buffer_free(&bytes);
    buffer_free(&scratch);
    documents_close(d);
    free(path);
}

TEST_WITH(a_json_line_that_would_take_gigabytes_is_refused, workfolder_setup, workfolder_teardown)
{
    static const char next[] = "\n{\"text\": \"next\"}";
    enum { BYTES = 129 << 20, NEXT = sizeof next - 1 };
    AUTO_FREE char *text = must_alloc(BYTES);
    memset(text, 'a', BYTES);
    memcpy(text, "{\"text\": \"", 10);
    memcpy(text + BYTES - NEXT, next, NEXT);
    char *path = make_file(state, "long.jsonl", text, BYTES);
    documents_settings settings = {.format = DOCUMENTS_JSON_LINES};
    documents *d;
    buffer bytes = {0}, scratch = {0};
    documents_raw raw;
    bool more = false;
    const char *found;
    int64_t length;
    assert_int_equal(documents_open(&d, &settings, &path, 1), STATUS_OK);
    assert_int_equal(documents_next(d, &bytes, &raw, &more), STATUS_OK);
    assert_true(more && raw.too_long);
    assert_int_equal(documents_text(d, &found, &length, &scratch, bytes.bytes, &raw), STATUS_FAILED);
    workfolder_message_has("long.jsonl:1: a JSON line of more than 128 MiB: divide its text over several lines");
    /* the line behind it is a record again */
    assert_int_equal(documents_next(d, &bytes, &raw, &more), STATUS_OK);
    assert_int_equal(documents_text(d, &found, &length, &scratch, bytes.bytes + raw.offset, &raw), STATUS_OK);
    assert_int_equal(length, 4);
    assert_memory_equal(found, "next", 4);
    assert_int_equal(documents_next(d, &bytes, &raw, &more), STATUS_OK);
    assert_false(more);
    buffer_free(&scratch);
    buffer_free(&bytes);
    documents_close(d);
    free(path);
}

/* ---- parts of the inputs, for several machines ---- */

/* All parts' documents and messages of bad records, one part after the other; also counts parts that gave any. */
static int read_parts(buffer *got, const documents_settings *how, char *const *paths, int count, int64_t parts)
{
    int filled = 0;
    buffer bytes = {0}, scratch = {0};
    documents_settings settings = *how;
    settings.parts = parts;
    got->length = 0;
    for (settings.part = 0; settings.part < parts || (parts == 0 && settings.part == 0); settings.part++) {
        documents *d;
        documents_raw raw;
        int64_t before = got->length;
        assert_int_equal(documents_open(&d, &settings, paths, count), STATUS_OK);
        for (bool more = true; more;) {
            const char *text;
            int64_t length;
            bytes.length = 0;
            if (documents_next(d, &bytes, &raw, &more) != STATUS_OK)
                fail_msg("%s", status_message());
            if (more && documents_text(d, &text, &length, &scratch, bytes.bytes + raw.offset, &raw) != STATUS_OK) {
                text = status_message();
                length = (int64_t)strlen(text);
            }
            if (more) {
                buffer_append(got, text, length);
                buffer_append(got, "|", 1);
            }
        }
        documents_close(d);
        filled += got->length > before;
    }
    buffer_free(&bytes);
    buffer_free(&scratch);
    return filled;
}

/* For few parts, many, and more than there are bytes: each record is in one part, and the line of a bad record
 * is the file's. */
TEST_WITH(parts_together_are_the_whole, workfolder_setup, workfolder_teardown)
{
    static const char lines[] = "\xEF\xBB\xBF{\"text\":\"one\"}\n\n{\"text\":null}\r\n{\"text\":\"two\"}\n"
                                "{\"text\":3}\n{\"text\":\"three\"}";
    static const char text[] = "a<EOD>b<EOD><EOD>long<EOD";
    static char packed[400];
    int64_t packed_bytes = pack_gzip(packed, sizeof packed, lines + 3, sizeof lines - 4);
    char *paths[] = {make_file(state, "a.jsonl", lines, sizeof lines - 1), make_file(state, "empty", "", 0),
                     make_file(state, "b.txt", text, sizeof text - 1),
                     make_file(state, "c.jsonl.gz", packed, packed_bytes),
                     make_file(state, "d.jsonl", "\n\n{\"text\":\"end\"}\n", 17)};
    const documents_settings divided = {.separator = "<EOD>", .separator_length = 5},
                             overlapping = {.separator = "aba", .separator_length = 3}, whole = {0};
    const documents_settings *const ways[] = {&divided, &overlapping, &whole};
    buffer wanted = {0}, got = {0};
    for (unsigned way = 0; way < sizeof ways / sizeof *ways; way++) {
        read_parts(&wanted, ways[way], paths, 5, 0);
        int most = 0;
        for (int64_t parts = 1; parts < 500; parts += parts < 30 ? 1 : 59) {
            int filled = read_parts(&got, ways[way], paths, 5, parts);
            most = filled > most ? filled : most;
            if (got.length != wanted.length || memcmp(got.bytes, wanted.bytes, (size_t)got.length) != 0)
                fail_msg("%lld parts: %.*s instead of %.*s", (long long)parts, (int)got.length, got.bytes,
                         (int)wanted.length, wanted.bytes);
        }
        assert_int_equal(most, ways[way] == &divided ? 10 : 8);
    }
    assert_non_null(memmem(wanted.bytes, (size_t)wanted.length, "a.jsonl:5: the field \"text\" is no string", 38));
    char *pipe_path = (char *)(uintptr_t) "-", *gone = workfolder_path(*state, "gone");
    documents *d;
    documents_settings half = {.part = 1, .parts = 2};
    assert_int_equal(documents_open(&d, &half, &pipe_path, 1), STATUS_USAGE);
    workfolder_message_has("standard input has no parts");
    assert_int_equal(documents_open(&d, &half, &gone, 1), STATUS_FAILED);
    workfolder_message_has("gone: No such file");
    free(gone);
    for (int i = 0; i < 5; i++)
        free(paths[i]);
    buffer_free(&wanted);
    buffer_free(&got);
}

/* Borders within blocks of what is read at once, and records longer than a part. */
TEST_WITH(long_files_are_divided_between_records, workfolder_setup, workfolder_teardown)
{
    int64_t length = 3 << 20;
    AUTO_FREE char *text = make_text(length);
    for (int64_t i = 1 << 20; i < (1 << 20) + (1 << 19); i++)
        text[i] = text[i] == '\n' ? ' ' : text[i];
    char *path = make_file(state, "long.txt", text, length);
    const documents_settings by_line = {.separator = "\n", .separator_length = 1};
    static const int64_t parts[] = {2, 3, 7, 64, 1000};
    buffer wanted = {0}, got = {0};
    read_parts(&wanted, &by_line, &path, 1, 0);
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++) {
        int filled = read_parts(&got, &by_line, &path, 1, parts[i]);
        assert_int_equal(got.length, wanted.length);
        assert_memory_equal(got.bytes, wanted.bytes, (size_t)got.length);
        assert_true(filled >= 5 * parts[i] / 6 && filled <= parts[i]); /* a sixth of the file is one line */
    }
    free(path);
    buffer_free(&wanted);
    buffer_free(&got);
}

TEST_WITH(json_lines_are_known_by_their_content, workfolder_setup, workfolder_teardown)
{
    static const char lines[] = "\n {\"text\": \"one\"}\n{\"text\":\"two\"}\n";
    static const struct {
        const char *name, *data, *wanted;
    } cases[] = {
        {"lines", lines, "one|two|"},
        {"lines.txt", lines, "one|two|"},
        {"single", "{\"text\":\"one\"}", "one|"},
        {"code", "{ int x; }\n{\"a\"}\n", "{ int x; }\n{\"a\"}\n|"},
        {"pretty", "{\n  \"text\": \"one\"\n}\n", "{\n  \"text\": \"one\"\n}\n|"},
        {"array", "[1, 2]\n", "[1, 2]\n|"},
    };
    buffer got = {0};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *path = make_file(state, cases[i].name, cases[i].data, (int64_t)strlen(cases[i].data));
        if (read_all(&got, &(documents_settings){0}, &path, 1) != STATUS_OK)
            fail_msg("%s", status_message());
        expect(&got, cases[i].wanted);
        free(path);
    }
    /* a first line longer than what is read at once */
    int64_t length = 1 << 20;
    char *line = make_text(length), *whole;
    for (int64_t i = 0; i < length; i++)
        line[i] = line[i] == '\n' ? 'n' : line[i];
    whole = must_format("{\"text\":\"%s\"}\n{\"text\":\"two\"}", line);
    char *path = make_file(state, "long", whole, (int64_t)strlen(whole));
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_OK);
    assert_int_equal(got.length, length + 5);
    workfolder_write(path, "{\"body\":\"one\"}\n", 15);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("long:1: the field \"text\" is missing (--field names another); --format text");
    workfolder_write(path, "{\"text\":\"one\"}\nprose\n", 21);
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("long:2: column ");
    workfolder_message_has("--format text takes the file as text");
    free(path);
    free(line);
    free(whole);
    buffer_free(&got);
}

TEST_WITH(what_is_missing_is_said_in_one_line, workfolder_setup, workfolder_teardown)
{
    buffer got = {0};
    char *path = workfolder_path(*state, "nowhere.txt");
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("nowhere.txt: No such file");
    free(path);
    char *folder = *state;
    assert_int_equal(read_all(&got, &(documents_settings){0}, &folder, 1), STATUS_FAILED);
    workfolder_message_has("this is a folder");
    buffer_free(&got);
}

/* --- encoding by many threads ------------------------------------------------------------------------------------- */

typedef struct received {
    buffer_ids ids, counts;
} received;

static status receive(void *context, const int32_t *ids, int64_t count)
{
    received *r = context;
    buffer_ids_append(&r->ids, ids, count);
    buffer_ids_append(&r->counts, &(int32_t){(int32_t)count}, 1);
    return STATUS_OK;
}

static status encode(received *r, corpus_count *count, const tokenizer *t, char *const *paths, int files, int threads)
{
    documents *d;
    r->ids.count = r->counts.count = 0;
    assert_int_equal(documents_open(&d, &(documents_settings){.separator = "\n", .separator_length = 1}, paths, files),
                     STATUS_OK);
    corpus_settings settings = {.threads = threads, .end_of_document = true};
    status s = corpus_encode(t, d, &settings, count, receive, NULL, r);
    documents_close(d);
    return s;
}

TEST_WITH(many_threads_give_what_one_gives, workfolder_setup, workfolder_teardown)
{
    char *text = make_text(6 << 20), *more = make_text(1000);
    char *paths[] = {make_file(state, "first", text, 6 << 20), make_file(state, "second", more, 1000)};
    tokenizer *t;
    assert_int_equal(tokenizer_files_open(&t, "tests/golden/text/gpt2.json"), STATUS_OK);
    received one = {0}, many = {0};
    corpus_count count, other;
    assert_int_equal(encode(&one, &count, t, paths, 2, 1), STATUS_OK);
    assert_int_equal(encode(&many, &other, t, paths, 2, 7), STATUS_OK);
    assert_int_equal(one.counts.count, count.documents);
    assert_int_equal(one.ids.count, count.tokens);
    assert_memory_equal(&count, &other, sizeof count);
    assert_int_equal(one.ids.count, many.ids.count);
    assert_memory_equal(one.ids.ids, many.ids.ids, (size_t)one.ids.count * sizeof(int32_t));
    assert_memory_equal(one.counts.ids, many.counts.ids, (size_t)one.counts.count * sizeof(int32_t));
    /* every line that holds text, decoded, is the input again */
    buffer decoded = {0};
    int64_t at = 0, lines = 0;
    for (char *line = text, *end; line < text + (6 << 20); line = end + 1) {
        end = strchrnul(line, '\n');
        if (end == line)
            continue;
        decoded.length = 0;
        tokenizer_decode(t, &decoded, one.ids.ids + at, one.counts.ids[lines], true);
        assert_int_equal(decoded.length, end - line);
        assert_memory_equal(decoded.bytes, line, (size_t)(end - line));
        at += one.counts.ids[lines++];
        assert_int_equal(one.ids.ids[at - 1], tokenizer_ids_of(t)->end_of_document);
    }
    buffer_free(&decoded);
    buffer_ids_free(&one.ids);
    buffer_ids_free(&one.counts);
    buffer_ids_free(&many.ids);
    buffer_ids_free(&many.counts);
    tokenizer_close(t);
    for (int i = 0; i < 2; i++)
        free(paths[i]);
    free(text);
    free(more);
}

static status refuse(void *context, const int32_t *ids, int64_t count)
{
    (void)ids, (void)count;
    return --*(int *)context ? STATUS_OK : status_fail(STATUS_FAILED, "the disk is full");
}

TEST_WITH(a_failure_ends_the_whole_and_is_the_first_in_order, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *text = make_text(4 << 20);
    char *paths[] = {make_file(state, "first", text, 4 << 20), workfolder_path(*state, "nowhere"),
                     workfolder_path(*state, "nor here")};
    tokenizer *t;
    assert_int_equal(tokenizer_files_open(&t, "bytes"), STATUS_OK);
    received r = {0};
    corpus_count count;
    for (int threads = 1; threads < 6; threads += 2) {
        assert_int_equal(encode(&r, &count, t, paths, 3, threads), STATUS_FAILED);
        workfolder_message_has("nowhere: No such file");
    }
    documents *d;
    int until = 1000;
    documents_settings lines = {.separator = "\n", .separator_length = 1};
    assert_int_equal(documents_open(&d, &lines, paths, 1), STATUS_OK);
    corpus_settings settings = {.threads = 3};
    assert_int_equal(corpus_encode(t, d, &settings, &count, refuse, NULL, &until), STATUS_FAILED);
    workfolder_message_has("the disk is full");
    documents_close(d);
    buffer_ids_free(&r.ids);
    buffer_ids_free(&r.counts);
    tokenizer_close(t);
    for (int i = 0; i < 3; i++)
        free(paths[i]);
}

TEST_WITH(sentences_are_all_lines_and_long_ones_in_parts, workfolder_setup, workfolder_teardown)
{
    int64_t length = 20000;
    AUTO_FREE char *text = make_text(length);
    for (int64_t i = 5000; i < 15000; i++)
        if (text[i] == '\n')
            text[i] = 'n';
    char *path = make_file(state, "lines", text, length);
    documents *d;
    assert_int_equal(documents_open(&d, &(documents_settings){0}, &path, 1), STATUS_OK);
    sentences *s = sentences_open(d, false);
    const char *line;
    int64_t bytes, total = 0, letters = 0, sum = 0;
    while (sentences_next(s, &line, &bytes)) {
        assert_true(bytes > 0 && bytes <= 4000);
        assert_null(memchr(line, '\n', (size_t)bytes));
        for (int64_t i = 0; i < bytes; i++)
            sum += line[i];
        total += bytes;
    }
    assert_int_equal(sentences_result(s), STATUS_OK);
    for (int64_t i = 0; i < length; i++) {
        letters += text[i] != '\n';
        sum -= text[i] != '\n' ? text[i] : 0;
    }
    assert_int_equal(total, letters);
    assert_int_equal(sum, 0);
    sentences_close(s);
    documents_close(d);
    free(path);
}

static int64_t resident_bytes(void)
{
    long pages = 0;
    FILE *in = fopen("/proc/self/statm", "r");
    assert_int_equal(fscanf(in, "%*s %ld", &pages), 1);
    fclose(in);
    return pages * sysconf(_SC_PAGESIZE);
}

/* A file that is one document is in memory once, also behind a short one, and read on after it. */
TEST_WITH(a_long_document_is_in_memory_once, workfolder_setup, workfolder_teardown)
{
    enum { LONG = 96 << 20 };
    AUTO_FREE char *text = must_alloc(LONG);
    for (int64_t i = 0; i < LONG; i++)
        text[i] = (char)('a' + i * i % 23);
    char *paths[] = {make_file(state, "short", "short", 5), make_file(state, "long", text, LONG),
                     make_file(state, "last", "last", 4)};
    documents *d;
    documents_raw raw;
    buffer bytes = {0};
    bool more;
    assert_int_equal(documents_open(&d, &(documents_settings){.format = DOCUMENTS_TEXT}, paths, 3), STATUS_OK);
    const int64_t before = resident_bytes();
    for (int i = 0; i < 3; i++) {
        assert_int_equal(documents_next(d, &bytes, &raw, &more), STATUS_OK);
        assert_true(more);
        assert_int_equal(raw.input, i);
        assert_int_equal(raw.length, i == 1 ? LONG : 5 - i / 2);
    }
#ifdef __SANITIZE_ADDRESS__ /* it keeps what is freed for a while */
    assert_true(before > 0);
#else
    assert_in_range(resident_bytes() - before, LONG, LONG + LONG / 4);
#endif
    assert_memory_equal(bytes.bytes, "short", 5);
    assert_memory_equal(bytes.bytes + 5, text, LONG);
    assert_memory_equal(bytes.bytes + 5 + (int64_t)LONG, "last", 4);
    documents_close(d);
    buffer_free(&bytes);
    for (int i = 0; i < 3; i++)
        free(paths[i]);
}

TEST_MAIN(NULL, NULL)
