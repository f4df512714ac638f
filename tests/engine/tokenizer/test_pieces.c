/* Our own encoding by SentencePiece models gives the library's ids: with BPE always, with unigram models where rounding
 * of sums decides nothing, which rounded scores see to. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/tokenizer/pieces.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/text/unicode.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define FOLDER "tests/golden/text/"

typedef struct both {
    sentencepiece_model *model;
    sentencepiece_processor *library;
    pieces *own;
    pieces_scratch *scratch;
} both;

static uint64_t random_state;

static uint32_t random_below(uint32_t n)
{
    random_state = random_state * 6364136223846793005U + 1442695040888963407U;
    return (uint32_t)((random_state >> 33) % n);
}

static both open_both(const char *path, bool rounded)
{
    both b;
    int64_t bytes;
    AUTO_FREE uint8_t *file = workfolder_read(path, &bytes);
    if (rounded)
        assert_int_equal(sentencepiece_model_round(file, bytes, path), STATUS_OK);
    if (sentencepiece_model_open(&b.model, file, bytes, path) != STATUS_OK ||
        sentencepiece_open(&b.library, file, bytes, path) != STATUS_OK)
        fail_msg("%s", status_message());
    b.own = pieces_open(b.model);
    assert_non_null(b.own);
    b.scratch = pieces_scratch_open();
    return b;
}

static void close_both(both *b)
{
    pieces_scratch_close(b->scratch);
    pieces_close(b->own);
    sentencepiece_close(b->library);
    sentencepiece_model_close(b->model);
}

/* Runs of one character, where many paths are equally good; words; letters of every script, some of them unknown. */
static void random_text(buffer *out, int parts)
{
    static const char *const words[] = {"the",          " of ",       " and ",   "  ",   "\n",
                                        "\t",           "12",         "foo(x);", "\xC3", "\xE2\x96\x81",
                                        "\xE6\x88\x91", "na\xC3\xAF", "ing",     "<s>",  "<0x41>"};
    buffer raw = {0};
    for (int i = 0; i < parts; i++) {
        uint32_t kind = random_below(4);
        char bytes[4];
        if (kind == 0) {
            uint32_t repeats = 1 + random_below(40);
            char c = " a=-#*0\n"[random_below(8)];
            for (uint32_t k = 0; k < repeats; k++)
                buffer_append(&raw, &c, 1);
        } else if (kind == 1) {
            uint32_t code = random_below(0x3000);
            buffer_append(&raw, bytes, unicode_encode(bytes, code ? code : 1));
        } else if (kind == 2) {
            for (uint32_t k = random_below(9); k; k--)
                buffer_append(&raw, &"etaoinshr dlu"[random_below(13)], 1);
        } else {
            const char *word = words[random_below(sizeof words / sizeof *words)];
            buffer_append(&raw, word, (int64_t)strlen(word));
        }
    }
    out->length = 0;
    unicode_repair(out, raw.bytes, raw.length);
    buffer_free(&raw);
}

/* How many of the texts have other ids by the library than by us. */
static int count_different(both *b, int texts, int parts)
{
    buffer text = {0};
    buffer_ids ours = {0}, theirs = {0};
    int different = 0;
    random_state = 1;
    for (int i = 0; i < texts; i++) {
        random_text(&text, parts);
        ours.count = theirs.count = 0;
        pieces_encode(b->own, b->scratch, &ours, text.bytes, text.length);
        assert_int_equal(sentencepiece_encode(b->library, &theirs, text.bytes, text.length), STATUS_OK);
        different += ours.count != theirs.count ||
                     (ours.count && memcmp(ours.ids, theirs.ids, (size_t)ours.count * sizeof *ours.ids) != 0);
    }
    buffer_free(&text);
    buffer_ids_free(&ours);
    buffer_ids_free(&theirs);
    return different;
}

TEST(bpe_ids_are_the_library_s)
{
    both b = open_both(FOLDER "bpe.model", false);
    assert_int_equal(count_different(&b, 3000, 30), 0);
    assert_int_equal(count_different(&b, 10, 3000), 0);
    close_both(&b);
}

TEST(unigram_ids_are_the_library_s_when_scores_are_rounded)
{
    both b = open_both(FOLDER "unigram.model", true);
    for (int32_t id = 0; id < vocabulary_size(b.model->pieces); id++)
        assert_true(b.model->scores[id] * 128.0F == rintf(b.model->scores[id] * 128.0F));
    assert_int_equal(count_different(&b, 3000, 30), 0);
    assert_int_equal(count_different(&b, 100, 1000), 0); /* longer ones fall below -131072, where old libraries round */
    close_both(&b);
    b = open_both(FOLDER "unigram.model", false);
    int different = count_different(&b, 100, 1000);
    print_message("unrounded: %d of 100 texts differ\n",
                  different); /* by the library's version: 0.2.3 counts as we do */
    close_both(&b);
}

/* A character map, spaces that are removed, unknown characters in one. */
TEST(a_character_map_is_followed_as_the_library_does)
{
    both b = open_both(FOLDER "mapped.model", true);
    assert_true(b.model->map.length > 0 && b.model->remove_extra && !b.model->byte_fallback);
    assert_int_equal(count_different(&b, 5000, 30), 0);
    assert_int_equal(count_different(&b, 5000, 4), 0);
    close_both(&b);
}

TEST_MAIN(NULL, NULL)
