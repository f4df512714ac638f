/* Sums of bits notice every flip, and do not depend on how the bytes are divided; bytes as text come back. */
#include <stdlib.h>
#include <string.h>

#include "memory/bits.h"
#include "memory/scope.h"
#include "tests/test.h"

enum { BYTES = 3 * (1 << 20) + 77 };

static unsigned char *make_data(void)
{
    unsigned char *data = malloc(BYTES);
    uint32_t random = 1;
    assert_non_null(data);
    for (int i = 0; i < BYTES; i++) {
        random = random * 1664525 + 1013904223;
        data[i] = (unsigned char)(random >> 24);
    }
    return data;
}

static uint64_t sum_in_pieces(const unsigned char *data, int64_t bytes, int64_t piece)
{
    bits b = {0};
    for (int64_t at = 0; at < bytes; at += piece)
        bits_add(&b, data + at, bytes - at < piece ? bytes - at : piece);
    return bits_end(&b);
}

TEST(every_flip_changes_the_sum)
{
    unsigned char *data = make_data();
    uint64_t whole = bits_sum(data, BYTES, 2), pieces = sum_in_pieces(data, 1000, 1000);
    for (int bit = 0; bit < 8000; bit++) {
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
        assert_true(sum_in_pieces(data, 1000, 1000) != pieces);
        data[bit / 8] ^= (unsigned char)(1 << bit % 8);
    }
    for (int i = 0; i < BYTES; i += 100003) {
        data[i] ^= 16;
        assert_true(bits_sum(data, BYTES, 2) != whole);
        data[i] ^= 16;
    }
    assert_true(bits_sum(data, BYTES, 2) == whole);
    free(data);
}

TEST(exchanged_words_and_lengths_count)
{
    uint64_t words[64] = {0};
    uint64_t empty = sum_in_pieces((unsigned char *)words, sizeof words, 8);
    assert_true(empty != sum_in_pieces((unsigned char *)words, sizeof words - 1, 8));
    words[3] = 1;
    uint64_t third = sum_in_pieces((unsigned char *)words, sizeof words, 8);
    words[3] = 0;
    for (int i = 0; i < 64; i++) {
        words[i] = 1;
        uint64_t other = sum_in_pieces((unsigned char *)words, sizeof words, 8);
        assert_true((other == third) == (i == 3));
        words[i] = 0;
    }
}

TEST(neither_pieces_nor_threads_matter)
{
    unsigned char *data = make_data();
    uint64_t once = sum_in_pieces(data, 100000, 100000);
    const int64_t sizes[] = {1, 7, 63, 64, 65, 1000, 99999};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        assert_true(sum_in_pieces(data, 100000, sizes[i]) == once);
    assert_true(bits_sum(data, BYTES, 1) == bits_sum(data, BYTES, 3));
    free(data);
}

TEST_MAIN(NULL, NULL)
