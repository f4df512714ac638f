/* The keyed checksum is SipHash-2-4 with 128 bits: the values are those of the reference implementation. */

#include "engine/checkpoint/share.h"
#include "tests/test.h"

/* Key 00 01 .. 0f, data 00 01 .. n-1. */
TEST(the_checksum_is_the_reference_s)
{
    static const struct {
        int64_t bytes;
        const char *result;
    } known[] = {{0, "a3817f04ba25a8e66df67214c7550293"},  {1, "da87c1d86b99af44347659119b22fc45"},
                 {7, "a1f1ebbed8dbc153c0b84aa61ff08239"},  {8, "3b62a9ba6258f5610f83e264f31497b4"},
                 {15, "5493e99933b0a8117e08ec0f97cfc3d9"}, {16, "6ee2a4ca67b054bbfd3315bf85230577"},
                 {63, "5150d1772f50834a503e069a973fbd7c"}};
    uint8_t key[SHARE_SECRET], data[64];
    char text[SHARE_SUM];
    for (int i = 0; i < SHARE_SECRET; i++)
        key[i] = (uint8_t)i;
    for (int i = 0; i < 64; i++)
        data[i] = (uint8_t)i;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++) {
        share_sum(text, key, data, known[i].bytes);
        assert_string_equal(text, known[i].result);
    }
}

/* One bit of the data, the key or the length, and nearly half of the result's bits differ. */
TEST(every_bit_counts)
{
    uint8_t key[SHARE_SECRET] = {7}, data[40] = {0};
    char before[SHARE_SUM], after[SHARE_SUM];
    share_sum(before, key, data, 39);
    for (int bit = 0; bit < 8 * (39 + SHARE_SECRET); bit++) {
        uint8_t *byte = bit < 8 * 39 ? &data[bit / 8] : &key[bit / 8 - 39];
        *byte ^= (uint8_t)(1 << bit % 8);
        share_sum(after, key, data, 39);
        *byte ^= (uint8_t)(1 << bit % 8);
        int different = 0;
        for (int i = 0; i < 32; i++)
            different += before[i] != after[i];
        assert_true(different > 16);
    }
    share_sum(after, key, data, 40);
    assert_string_not_equal(before, after);
}

TEST_MAIN(NULL, NULL)
