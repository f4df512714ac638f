/* Ids equal those of Hugging Face's `tokenizers` and of `sentencepiece` on hard texts (tests/golden/text), scanners
 * equal their patterns, merging keeps its rule. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/merges.h"
#include "engine/tokenizer/pattern.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/text/unicode.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

static int digit(char c)
{
    return c <= '9' ? c - '0' : c - 'a' + 10;
}

static void from_hex(buffer *out, const char *hex, size_t length)
{
    out->length = 0;
    for (size_t i = 0; i + 1 < length; i += 2)
        buffer_append(out, &(char){(char)(digit(hex[i]) * 16 + digit(hex[i + 1]))}, 1);
}

static bool next_line(FILE *file, char **line, size_t *room, char *fields[4])
{
    ssize_t length = getline(line, room, file);
    if (length <= 0)
        return false;
    (*line)[strcspn(*line, "\n")] = 0;
    char *rest = *line;
    for (int i = 0; i < 4; i++)
        fields[i] = rest ? strsep(&rest, "\t") : NULL;
    return true;
}

static void expect_ids(const char *name, int line, const buffer_ids *got, const char *wanted)
{
    int64_t at = 0;
    for (char *end; *wanted; wanted = end + (*end == ' ')) {
        long id = strtol(wanted, &end, 10);
        if (at >= got->count || got->ids[at] != id)
            fail_msg("%s, line %d, id number %lld: %d instead of %ld", name, line, (long long)at,
                     at < got->count ? got->ids[at] : -1, id);
        at++;
    }
    if (at != got->count)
        fail_msg("%s, line %d: %lld ids instead of %lld", name, line, (long long)got->count, (long long)at);
}

/* Encode every case of the golden file; decoding gives the text back where nothing was replaced or normalized. */
static int check_golden(const char *name, const char *suffix)
{
    char path[256];
    snprintf(path, sizeof path, "tests/golden/text/%s.%s", name, suffix);
    tokenizer *t;
    if (tokenizer_files_open(&t, path) != STATUS_OK)
        fail_msg("%s", status_message());
    tokenizer_scratch *s = tokenizer_scratch_open(t);
    snprintf(path, sizeof path, "tests/golden/text/%s.golden", name);
    FILE *file = fopen(path, "r");
    assert_non_null(file);
    char *line = NULL, *fields[4];
    size_t room = 0;
    int lines = 0;
    buffer text = {0}, decoded = {0};
    buffer_ids ids = {0};
    while (next_line(file, &line, &room, fields)) {
        lines++;
        from_hex(&text, fields[1], strlen(fields[1]));
        for (int twice = 0; twice < 2; twice++) { /* the second time words are remembered */
            ids.count = 0;
            int flags = fields[0][0] == 'p' ? TOKENIZER_PLAIN : 0;
            status made = tokenizer_encode(t, s, &ids, text.bytes, text.length, flags);
            if (made != STATUS_OK)
                fail_msg("%s, line %d: %s", name, lines, status_message());
            expect_ids(name, lines, &ids, fields[2]);
        }
        if (fields[3]) {
            tokenizer_stream stream = {0};
            from_hex(&text, fields[3], strlen(fields[3]));
            decoded.length = 0;
            for (int64_t i = 0; i < ids.count; i++)
                tokenizer_stream_next(t, &stream, &decoded, ids.ids[i], false);
            tokenizer_stream_end(&stream, &decoded);
            if (decoded.length != text.length ||
                (text.length && memcmp(decoded.bytes, text.bytes, (size_t)text.length)))
                fail_msg("%s, line %d: decoded to \"%.*s\" instead of \"%.*s\"", name, lines, (int)decoded.length,
                         decoded.bytes, (int)text.length, text.bytes);
        }
    }
    fclose(file);
    free(line);
    buffer_free(&text);
    buffer_free(&decoded);
    buffer_ids_free(&ids);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
    return lines;
}

TEST(ids_equal_hugging_face_gpt2)
{
    assert_true(check_golden("gpt2", "json") > 100);
}

TEST(ids_equal_hugging_face_llama3)
{
    assert_true(check_golden("llama3", "json") > 100);
}

TEST(ids_equal_hugging_face_qwen)
{
    assert_true(check_golden("qwen", "json") > 100);
}

TEST(ids_equal_hugging_face_where_no_scanner_is_known)
{
    assert_true(check_golden("cased", "json") > 100);
}

/* Folders like those of Gemma 3, Llama 2, Phi-3, Phi-4, Pythia, SmolLM3, Granite and OLMo 2 (family_tokenizers.py). */
TEST(ids_and_texts_of_the_families_equal_autotokenizer)
{
    static const char *const families[] = {"gemma",  "llama2",  "phi3",    "phi4", "phi4-mini",
                                           "pythia", "smollm3", "granite", "olmo2"};
    for (size_t i = 0; i < sizeof families / sizeof *families; i++)
        assert_true(check_golden(families[i], "json") > 120);
}

TEST(ids_and_texts_equal_sentencepiece)
{
    assert_true(check_golden("unigram", "model") > 100);
    assert_true(check_golden("bpe", "model") > 100);
    assert_true(check_golden("mapped", "model") > 100);
}

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)((random_state >> 33) % n);
}

/* A text whose score falls far below what a float can add pieces to: the library counts anew on the way, and so must
 * we. */
TEST(ids_of_a_long_text_equal_sentencepiece)
{
    enum { LETTERS = 3000000 };
    buffer text = {0};
    buffer_reserve(&text, LETTERS);
    random_state = 5; /* encoded in two parts, this text has other ids */
    for (int i = 0; i < LETTERS; i++)
        text.bytes[text.length++] = "etaoinshr dlucmfw ypvbg "[random_below(24)];
    tokenizer *t;
    assert_int_equal(tokenizer_files_open(&t, "tests/golden/text/unigram.model"), STATUS_OK);
    tokenizer_scratch *s = tokenizer_scratch_open(t);
    buffer_ids ids = {0};
    assert_int_equal(tokenizer_encode(t, s, &ids, text.bytes, text.length, 0), STATUS_OK);
    uint64_t hash = 0xcbf29ce484222325U, expected;
    for (int64_t i = 0; i < ids.count; i++)
        hash = (hash ^ (uint64_t)ids.ids[i]) * 0x100000001b3U;
    long long count;
    FILE *file = fopen("tests/golden/text/long.golden", "r");
    assert_non_null(file);
    assert_int_equal(fscanf(file, "%lld %" SCNx64, &count, &expected), 2);
    fclose(file);
    assert_int_equal(ids.count, count);
    assert_true(hash == expected);
    buffer_free(&text);
    buffer_ids_free(&ids);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
}

/* Every character between marks of high and low class, after itself and before an accent: orders, decompositions and
 * compositions are those of Hugging Face's tables, which are older than utf8proc's. */
TEST(normal_forms_equal_hugging_face)
{
    FILE *file = fopen("tests/golden/text/normal.golden", "r");
    assert_non_null(file);
    buffer out = {0};
    for (int form = UNICODE_NFC; form <= UNICODE_NFKD; form++) {
        uint64_t hash = 0xcbf29ce484222325U, expected;
        for (uint32_t code = 1; code < 0x110000; code = code == 0xD7FF ? 0xE000 : code + 1) {
            char text[32] = "a\u0345";
            int length = 3 + unicode_encode(text + 3, code);
            memcpy(text + length, "\u0334", 2);
            length += 2 + unicode_encode(text + length + 2, code);
            memcpy(text + length, "\u0301", 2);
            assert_int_equal(unicode_normalize(&out, text, length + 2, (unicode_form)form), STATUS_OK);
            for (int64_t i = 0; i < out.length; i++)
                hash = (hash ^ (uint8_t)out.bytes[i]) * 0x100000001b3U;
        }
        assert_int_equal(fscanf(file, "%" SCNx64, &expected), 1);
        assert_true(hash == expected);
    }
    fclose(file);
    buffer_free(&out);
}

/* --- scanners against PCRE2 --------------------------------------------------------------------------------------- */

/* Characters that patterns tell apart, and some of every plane. */
static uint32_t random_code(void)
{
    static const uint32_t chosen[] = {' ',    ' ',     ' ',     '\n',     '\r',   '\t',    '\'',    's',    'S',
                                      't',    'r',     'E',     'v',      'e',    'l',     'L',     'm',    'd',
                                      0x17F,  'a',     'Z',     '1',      '9',    '.',     '-',     '/',    0xA0,
                                      0x85,   0x180E,  0x3000,  0x2028,   0x0301, 0x200D,  0xE9,    0x6211, 0x0663,
                                      0x2167, 0x1F600, 0x1D7D8, 0x10437,  0x0B,   0x0C,    0x200B,  0xFEFF, 0xBD,
                                      0x1680, 0xFFFD,  0xE000,  0x10FFFF, 0,      0x16D40, 0x1E5F1, 0x105C0};
    uint32_t way = random_below(20);
    if (way < 17)
        return chosen[random_below(sizeof chosen / sizeof *chosen)];
    uint32_t code = way == 17 ? random_below(0x300) : way == 18 ? random_below(0x3000) : random_below(0x20000);
    return code >= 0xD800 && code < 0xE000 ? 'x' : code;
}

TEST(scanners_equal_their_patterns)
{
    unicode_classes *classes = unicode_classes_open(false);
    pattern_scratch *scratch = pattern_scratch_open();
    buffer text = {0};
    int matches = 0;
    for (int which = 0; scanner_pattern(which); which++) {
        pattern *quick, *plain;
        assert_int_equal(pattern_open(&quick, scanner_pattern(which), classes, false, false), STATUS_OK);
        assert_int_equal(pattern_open(&plain, scanner_pattern(which), classes, false, true), STATUS_OK);
        random_state = 1;
        for (int round = 0; round < 20000; round++) {
            text.length = 0;
            for (uint32_t n = 1 + random_below(24); n; n--) {
                char bytes[4];
                uint32_t code = random_code();
                buffer_append(&text, bytes, unicode_encode(bytes, code));
            }
            int64_t start, stop, other_start, other_stop;
            for (int64_t at = 0; at < text.length; at = stop) {
                assert_int_equal(pattern_next(quick, scratch, &start, &stop, text.bytes, at, text.length), STATUS_OK);
                assert_int_equal(pattern_next(plain, scratch, &other_start, &other_stop, text.bytes, at, text.length),
                                 STATUS_OK);
                if (start != other_start || stop != other_stop)
                    fail_msg("pattern %d, \"%.*s\" from %lld: %lld-%lld, PCRE2 says %lld-%lld", which, (int)text.length,
                             text.bytes, (long long)at, (long long)start, (long long)stop, (long long)other_start,
                             (long long)other_stop);
                matches++;
            }
        }
        pattern_close(quick);
        pattern_close(plain);
    }
    assert_true(matches > 100000);
    buffer_free(&text);
    pattern_scratch_close(scratch);
    unicode_classes_close(classes);
}

/* What is said to be stable under NFC is, each character alone and after another. */
TEST(stable_text_is_left_alone_by_nfc)
{
    unicode_classes *classes = unicode_classes_open(true);
    buffer text = {0}, normal = {0};
    int stable = 0, changed = 0;
    random_state = 3;
    for (int round = 0; round < 300000; round++) {
        text.length = 0;
        for (int i = 0; i < 3; i++) {
            char bytes[4];
            uint32_t way = random_below(4), code = random_below(way == 0   ? 0x600
                                                                : way == 1 ? 0x3100
                                                                : way == 2 ? 0xFFFF
                                                                           : 0x2FFFF);
            code = code >= 0xD800 && code < 0xE000 ? 0x1100 + code % 256 : code;
            buffer_append(&text, bytes, unicode_encode(bytes, code));
        }
        assert_int_equal(unicode_normalize(&normal, text.bytes, text.length, UNICODE_NFC), STATUS_OK);
        bool same = normal.length == text.length && memcmp(normal.bytes, text.bytes, (size_t)text.length) == 0;
        bool claimed = unicode_is_stable(classes, text.bytes, text.length);
        if (claimed && !same)
            fail_msg("\"%.*s\" is not stable", (int)text.length, text.bytes);
        stable += claimed;
        changed += !same;
    }
    assert_true(stable > 100000 && changed > 5000);
    buffer_free(&text);
    buffer_free(&normal);
    unicode_classes_close(classes);
}

/* --- merging ------------------------------------------------------------------------------------------------------ */

/* The rule, as it is said. */
static int64_t merge_naively(int32_t *ids, int64_t count, uint32_t rank[8][8], int32_t merged[8][8])
{
    for (;;) {
        int64_t best = -1;
        uint32_t lowest = UINT32_MAX;
        for (int64_t i = 0; i + 1 < count; i++)
            if (rank[ids[i]][ids[i + 1]] < lowest) {
                lowest = rank[ids[i]][ids[i + 1]];
                best = i;
            }
        if (best < 0)
            return count;
        ids[best] = merged[ids[best]][ids[best + 1]];
        memmove(ids + best + 1, ids + best + 2, (size_t)(count - best - 2) * sizeof *ids);
        count--;
    }
}

TEST(merging_takes_the_lowest_rank_then_the_leftmost)
{
    random_state = 7;
    merges_scratch *scratch = merges_scratch_open();
    for (int round = 0; round < 400; round++) {
        uint32_t rank[8][8];
        int32_t merged[8][8], ids[300], copy[300];
        merges *m = merges_open(0);
        for (int i = 0; i < 64; i++) {
            bool there = random_below(3) == 0;
            rank[i / 8][i % 8] = there ? random_below(1000) * 64 + (uint32_t)i : UINT32_MAX;
            merged[i / 8][i % 8] = (int32_t)random_below(8);
            if (there)
                merges_add(m, i / 8, i % 8, rank[i / 8][i % 8], merged[i / 8][i % 8]);
        }
        int64_t count = 1 + random_below(round % 2 ? 299 : 64);
        for (int64_t i = 0; i < count; i++)
            ids[i] = copy[i] = (int32_t)random_below(8);
        buffer_ids out = {0};
        merges_apply(m, scratch, &out, ids, count);
        int64_t expected = merge_naively(copy, count, rank, merged);
        assert_int_equal(out.count, expected);
        assert_memory_equal(out.ids, copy, (size_t)expected * sizeof *copy);
        buffer_ids_free(&out);
        merges_close(m);
    }
    merges_scratch_close(scratch);
}

TEST(a_word_of_a_million_letters_takes_no_quadratic_time)
{
    tokenizer *t;
    assert_int_equal(tokenizer_files_open(&t, "tests/golden/text/gpt2.json"), STATUS_OK);
    tokenizer_scratch *s = tokenizer_scratch_open(t);
    int64_t length = 1000000;
    AUTO_FREE char *text = must_alloc((unsigned long)length);
    for (int64_t i = 0; i < length; i++)
        text[i] = "abcdefgh"[i * i % 8];
    buffer_ids ids = {0};
    buffer decoded = {0};
    assert_int_equal(tokenizer_encode(t, s, &ids, text, length, 0), STATUS_OK);
    tokenizer_decode(t, &decoded, ids.ids, ids.count, false);
    assert_int_equal(decoded.length, length);
    assert_memory_equal(decoded.bytes, text, (size_t)length);
    buffer_free(&decoded);
    buffer_ids_free(&ids);
    tokenizer_scratch_close(s);
    tokenizer_close(t);
}

TEST_MAIN(NULL, NULL)
