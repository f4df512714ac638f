/* Megatron's data sets: read and written byte for byte, and every damaged index refused by name. */
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/status.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static void write_file(const char *prefix, const char *ending, const void *data, int64_t bytes)
{
    AUTO_FREE char *path = must_format("%s%s", prefix, ending);
    workfolder_write(path, data, bytes);
}

static uint8_t *read_file(const char *prefix, const char *ending, int64_t *bytes)
{
    AUTO_FREE char *path = must_format("%s%s", prefix, ending);
    uint8_t *data = workfolder_read(path, bytes);
    return data;
}

/* An index of any content, valid or not. */
typedef struct index {
    int code, sequences, boundaries;
    int32_t lengths[8];
    int64_t offsets[8], bounds[8];
} index_content;

static void write_index(const char *prefix, const index_content *c)
{
    uint8_t out[512] = {'M', 'M', 'I', 'D', 'I', 'D', 'X'};
    uint64_t version = 1, s = (uint64_t)c->sequences, d = (uint64_t)c->boundaries;
    memcpy(out + 9, &version, 8);
    out[17] = (uint8_t)c->code;
    memcpy(out + 18, &s, 8);
    memcpy(out + 26, &d, 8);
    memcpy(out + 34, c->lengths, 4 * s);
    memcpy(out + 34 + 4 * s, c->offsets, 8 * s);
    memcpy(out + 34 + 12 * s, c->bounds, 8 * d);
    write_file(prefix, ".idx", out, (int64_t)(34 + 12 * s + 8 * d));
}

TEST(what_is_written_is_read)
{
    const int64_t vocabularies[] = {300, 65499, 65500, 128256};
    for (int v = 0; v < 4; v++) {
        AUTO_FREE char *prefix = workfolder_path(*state, "data");
        int32_t high = (int32_t)vocabularies[v] - 1, first[] = {0, high, 5}, third[] = {7};
        indexed_writer *w;
        assert_int_equal(indexed_writer_open(&w, prefix, vocabularies[v]), STATUS_OK);
        assert_int_equal(indexed_writer_document(w, first, 3), STATUS_OK);
        assert_int_equal(indexed_writer_document(w, NULL, 0), STATUS_OK);
        assert_int_equal(indexed_writer_document(w, third, 1), STATUS_OK);
        assert_int_equal(indexed_writer_close(w), STATUS_OK);

        indexed *x;
        int32_t out[4];
        assert_int_equal(indexed_open(&x, prefix), STATUS_OK);
        assert_string_equal(indexed_dtype(x), vocabularies[v] < 65500 ? "uint16" : "int32");
        assert_int_equal(indexed_documents(x), 3);
        assert_int_equal(indexed_tokens(x), 4);
        const int64_t starts[] = {0, 3, 3, 4}, of[] = {0, 0, 0, 2};
        for (int i = 0; i < 4; i++) {
            assert_int_equal(indexed_document_start(x, i), starts[i]);
            assert_int_equal(indexed_document_of(x, i), of[i]);
        }
        assert_int_equal(indexed_read(x, out, 0, 4, vocabularies[v]), STATUS_OK);
        assert_true(out[0] == 0 && out[1] == high && out[2] == 5 && out[3] == 7);
        assert_int_equal(indexed_read(x, out, 2, 2, vocabularies[v]), STATUS_OK);
        assert_true(out[0] == 5 && out[1] == 7);
        assert_int_equal(indexed_read(x, out, 0, 4, high), STATUS_FAILED);
        workfolder_message_has("token 1 ");
        workfolder_message_has("data.bin");
        indexed_close(x);
    }
}

/* Two sequences a document, a hole between them in .bin, misaligned: nothing our writer makes. */
TEST(sequences_need_not_be_documents_nor_touch)
{
    AUTO_FREE char *prefix = workfolder_path(*state, "odd");
    const uint16_t bin[] = {1, 2, 99, 3, 4, 5, 6};
    write_file(prefix, ".bin", bin, sizeof bin);
    write_index(prefix, &(index_content){8, 3, 3, {2, 3, 1}, {0, 6, 12}, {0, 2, 3}});
    indexed *x;
    assert_int_equal(indexed_open(&x, prefix), STATUS_OK);
    assert_int_equal(indexed_documents(x), 2);
    assert_int_equal(indexed_tokens(x), 6);
    assert_int_equal(indexed_document_start(x, 1), 5);
    for (int first = 0; first < 6; first++)
        for (int count = 0; count <= 6 - first; count++) {
            int32_t out[6];
            assert_int_equal(indexed_read(x, out, first, count, 7), STATUS_OK);
            for (int i = 0; i < count; i++)
                assert_int_equal(out[i], first + i + 1);
        }
    for (int token = 0; token < 6; token++)
        assert_int_equal(indexed_document_of(x, token), token >= 5);
    indexed_close(x);
}

TEST(every_integer_type_is_read)
{
    AUTO_FREE char *prefix = workfolder_path(*state, "types");
    const struct {
        int code, bytes;
        const char *name;
    } types[] = {{1, 1, "uint8"}, {2, 1, "int8"}, {3, 2, "int16"}, {4, 4, "int32"}, {5, 8, "int64"}, {8, 2, "uint16"}};
    for (int t = 0; t < 6; t++) {
        uint8_t bin[24] = {0};
        for (int i = 0; i < 3; i++)
            bin[i * types[t].bytes] = (uint8_t)(10 + i);
        write_file(prefix, ".bin", bin, 3 * types[t].bytes);
        write_index(prefix, &(index_content){types[t].code, 1, 2, {3}, {0}, {0, 1}});
        indexed *x;
        int32_t out[3];
        assert_int_equal(indexed_open(&x, prefix), STATUS_OK);
        assert_string_equal(indexed_dtype(x), types[t].name);
        assert_int_equal(indexed_read(x, out, 0, 3, 100), STATUS_OK);
        assert_true(out[0] == 10 && out[1] == 11 && out[2] == 12);
        indexed_close(x);
    }
    const int64_t wide[] = {1, 1LL << 40, -3}; /* must not wrap into the vocabulary */
    write_file(prefix, ".bin", wide, sizeof wide);
    write_index(prefix, &(index_content){5, 1, 2, {3}, {0}, {0, 1}});
    indexed *x;
    int32_t out[3];
    assert_int_equal(indexed_open(&x, prefix), STATUS_OK);
    assert_int_equal(indexed_read(x, out, 1, 1, 100), STATUS_FAILED);
    assert_int_equal(indexed_read(x, out, 2, 1, 100), STATUS_FAILED);
    indexed_close(x);
}

TEST(a_wrong_index_is_refused_by_name)
{
    AUTO_FREE char *prefix = workfolder_path(*state, "bad");
    const struct {
        index_content content;
        const char *part;
    } cases[] = {
        {{7, 1, 2, {2}, {0}, {0, 1}}, "type code 7"},
        {{0, 1, 2, {2}, {0}, {0, 1}}, "type code 0"},
        {{9, 1, 2, {2}, {0}, {0, 1}}, "type code 9"},
        {{8, 1, 0, {2}, {0}, {0}}, "document boundaries"},
        {{8, 1, 2, {-1}, {0}, {0, 1}}, "length -1"},
        {{8, 1, 2, {6}, {0}, {0, 1}}, "truncated"},
        {{8, 1, 2, {1}, {1LL << 62}, {0, 1}}, "truncated"},
        {{8, 1, 2, {1}, {-2}, {0, 1}}, "byte -2"},
        {{8, 2, 3, {1, 1}, {4, 2}, {0, 1, 2}}, "before the one ahead"},
        {{8, 2, 3, {1, 1}, {0, 2}, {1, 1, 2}}, "first document"},
        {{8, 2, 3, {1, 1}, {0, 2}, {0, 3, 2}}, "before it begins"},
        {{8, 2, 2, {1, 1}, {0, 2}, {0, 1}}, "unfinished"},
        {{8, 2, 2, {1, 1}, {0, 2}, {0, 3}}, "last document"},
    };
    write_file(prefix, ".bin", (uint16_t[]){1, 2, 3, 4, 5}, 10);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        indexed *x = NULL;
        write_index(prefix, &cases[i].content);
        assert_int_equal(indexed_open(&x, prefix), STATUS_FAILED);
        assert_null(x);
        workfolder_message_has(cases[i].part);
        workfolder_message_has("bad.idx");
    }
}

/* Golden files come from megatron-core's own writer (tests/engine/files/interop_indexed.py). */
TEST(megatron_s_own_files_are_read_and_rewritten_to_the_byte)
{
    const struct {
        const char *prefix;
        int64_t vocab_size;
    } golden[] = {{"tests/golden/megatron_u16", 50257}, {"tests/golden/megatron_i32", 128256}};
    for (int g = 0; g < 2; g++) {
        indexed *x;
        indexed_writer *w;
        AUTO_FREE char *copy = workfolder_path(*state, "copy");
        assert_int_equal(indexed_open(&x, golden[g].prefix), STATUS_OK);
        assert_int_equal(indexed_writer_open(&w, copy, golden[g].vocab_size), STATUS_OK);
        assert_true(indexed_documents(x) == 5);
        for (int64_t d = 0; d < indexed_documents(x); d++) {
            int32_t tokens[64];
            int64_t first = indexed_document_start(x, d), count = indexed_document_start(x, d + 1) - first;
            assert_in_range(count, 0, 64);
            assert_int_equal(indexed_read(x, tokens, first, count, golden[g].vocab_size), STATUS_OK);
            assert_int_equal(indexed_writer_document(w, tokens, count), STATUS_OK);
        }
        indexed_close(x);
        assert_int_equal(indexed_writer_close(w), STATUS_OK);
        for (int e = 0; e < 2; e++) {
            int64_t bytes, expected;
            uint8_t *ours = read_file(copy, e ? ".idx" : ".bin", &bytes);
            uint8_t *theirs = read_file(golden[g].prefix, e ? ".idx" : ".bin", &expected);
            assert_int_equal(bytes, expected);
            assert_memory_equal(ours, theirs, bytes);
            free(ours);
            free(theirs);
        }
    }
}

/* Whatever bit is flipped and wherever the file ends: refused with one line, or a data set that can be read. */
TEST(no_damage_to_an_index_reads_outside)
{
    int64_t bytes, bin_bytes;
    AUTO_FREE uint8_t *idx = read_file("tests/golden/megatron_u16", ".idx", &bytes);
    AUTO_FREE uint8_t *bin = read_file("tests/golden/megatron_u16", ".bin", &bin_bytes);
    int refused = 0, read = 0;
    indexed *x = NULL;
    for (int64_t i = 0; i < bytes * 8; i++) {
        idx[i / 8] ^= (uint8_t)(1 << i % 8);
        if (indexed_parse(&x, idx, bytes, bin, bin_bytes, "flip") == STATUS_OK) {
            AUTO_FREE int32_t *out = must_calloc((unsigned long)indexed_tokens(x), sizeof *out);
            (void)indexed_read(x, out, 0, indexed_tokens(x), 50257);
            indexed_close(x);
            read++;
        } else {
            workfolder_message_has("flip.");
            refused++;
        }
        idx[i / 8] ^= (uint8_t)(1 << i % 8);
    }
    assert_true(refused > bytes && read > 0);
    for (int64_t cut = 0; cut < bytes; cut++) {
        uint8_t *part = must_alloc((unsigned long)cut); /* exactly as large: reading beyond is seen by ASan */
        memcpy(part, idx, (size_t)cut);
        assert_int_equal(indexed_parse(&x, part, cut, bin, bin_bytes, "cut"), STATUS_FAILED);
        free(part);
    }
    for (int64_t cut = 0; cut < bin_bytes; cut++)
        assert_int_equal(indexed_parse(&x, idx, bytes, bin, cut, "cut"), STATUS_FAILED);
    assert_int_equal(indexed_parse(&x, idx, bytes, bin, bin_bytes, "whole"), STATUS_OK);
    indexed_close(x);
}

TEST(an_abandoned_or_refused_document_leaves_nothing)
{
    AUTO_FREE char *prefix = workfolder_path(*state, "none"), *bin = workfolder_path(*state, "none.bin"),
                   *temporary = workfolder_path(*state, "none.bin.tmp");
    indexed_writer *w;
    assert_int_equal(indexed_writer_open(&w, prefix, 10), STATUS_OK);
    assert_int_equal(indexed_writer_document(w, (int32_t[]){1, 10}, 2), STATUS_FAILED);
    workfolder_message_has("id 10 ");
    assert_int_equal(indexed_writer_document(w, (int32_t[]){-1}, 1), STATUS_FAILED);
    assert_true(atomic_exists(temporary));
    indexed_writer_abandon(w);
    assert_false(atomic_exists(temporary) || atomic_exists(bin));
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
