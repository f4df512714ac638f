/* Documents come whole and in order from text, JSON-lines and packed files; encoding them by many threads changes
 * nothing; what is damaged is refused by file and line. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <cmocka.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <zlib.h>
#include <zstd.h>

#include "engine/files/atomic.h"
#include "engine/text/corpus.h"
#include "engine/text/documents.h"
#include "engine/text/sentences.h"
#include "engine/text/tokenizer.h"
#include "engine/tokenizer_files.h"
#include "memory/log.h"
#include "tests/jobs/workfolder.h"

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

/* gzip's format, by zlib; two streams one behind the other. */
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

static void text_files_and_separators_give_their_documents(void **state)
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
static void long_files_are_cut_at_every_separator(void **state)
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

static void json_lines_give_the_field(void **state)
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

static void packed_files_are_what_was_packed(void **state)
{
    int64_t length = 1 << 20, room = 2 << 20;
    char *text = make_text(length), *packed = must_alloc((unsigned long)room);
    for (int kind = 0; kind < 2; kind++) {
        buffer got = {0};
        int64_t bytes = kind ? pack_zstd(packed, room, text, length) : pack_gzip(packed, room, text, length);
        char *path = make_file(state, "packed", packed, bytes);
        assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_OK);
        assert_int_equal(got.length, length + 1);
        assert_memory_equal(got.bytes, text, (size_t)length);
        /* cut off anywhere but between the two streams: refused */
        for (int64_t keep = 8; keep < bytes; keep += bytes / 7) {
            workfolder_write(path, packed, keep);
            assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
            workfolder_message_has("packed: the packed text ends in the middle");
        }
        /* a byte changed in the middle of the data: refused (gzip's checksum, zstd's structure) */
        int refused = 0;
        for (int64_t at = 20; at < bytes; at += bytes / 19) {
            packed[at] = (char)(packed[at] ^ 0x55);
            workfolder_write(path, packed, bytes);
            refused += read_all(&got, &(documents_settings){0}, &path, 1) != STATUS_OK;
            packed[at] = (char)(packed[at] ^ 0x55);
        }
        assert_true(refused >= (kind ? 1 : 19));
        free(path);
        buffer_free(&got);
    }
    free(text);
    free(packed);
}

static void what_is_missing_is_said_in_one_line(void **state)
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

static void many_threads_give_what_one_gives(void **state)
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
        assert_int_equal(one.ids.ids[at - 1], tokenizer_end_of_document(t));
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

static void a_failure_ends_the_whole_and_is_the_first_in_order(void **state)
{
    char *text = make_text(4 << 20);
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
    free(text);
}

static void sentences_are_all_lines_and_long_ones_in_parts(void **state)
{
    int64_t length = 20000;
    char *text = make_text(length);
    for (int64_t i = 5000; i < 15000; i++)
        if (text[i] == '\n')
            text[i] = 'n';
    char *path = make_file(state, "lines", text, length);
    documents *d;
    assert_int_equal(documents_open(&d, &(documents_settings){0}, &path, 1), STATUS_OK);
    sentences *s = sentences_open(d);
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
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(text_files_and_separators_give_their_documents, workfolder_setup,
                                        workfolder_teardown),
        cmocka_unit_test_setup_teardown(long_files_are_cut_at_every_separator, workfolder_setup, workfolder_teardown),
        cmocka_unit_test_setup_teardown(json_lines_give_the_field, workfolder_setup, workfolder_teardown),
        cmocka_unit_test_setup_teardown(packed_files_are_what_was_packed, workfolder_setup, workfolder_teardown),
        cmocka_unit_test_setup_teardown(what_is_missing_is_said_in_one_line, workfolder_setup, workfolder_teardown),
        cmocka_unit_test_setup_teardown(many_threads_give_what_one_gives, workfolder_setup, workfolder_teardown),
        cmocka_unit_test_setup_teardown(a_failure_ends_the_whole_and_is_the_first_in_order, workfolder_setup,
                                        workfolder_teardown),
        cmocka_unit_test_setup_teardown(sentences_are_all_lines_and_long_ones_in_parts, workfolder_setup,
                                        workfolder_teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
