/* Samples as numbers: what is in each, how data sets are blended, and that a shuffled pass takes every sample once. */
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/data/samples.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { SETS = 3, LENGTH = 8, VOCABULARY = 1000 };

/* Data set k is documents of 1, 2, ... 20 tokens that count up from 0. */
static int write_sets(void **state)
{
    if (workfolder_setup(state))
        return -1;
    for (int k = 0; k < SETS; k++) {
        char *prefix = must_format("%s/set%d", (char *)*state, k);
        indexed_writer *w = NULL;
        if (indexed_writer_open(&w, prefix, VOCABULARY) != STATUS_OK)
            return -1;
        int32_t next = 0, document[20];
        for (int length = 1; length <= 20; length++) {
            for (int i = 0; i < length; i++)
                document[i] = next++;
            if (indexed_writer_document(w, document, length) != STATUS_OK)
                return -1;
        }
        if (indexed_writer_close(w) != STATUS_OK)
            return -1;
        free(prefix);
    }
    return 0;
}

static bool left_out; /* what samples_read says of it; nothing is, but where a test allows it */

static samples *open_sets(const char *folder, const double *weights, int count, bool shuffle)
{
    config_source item[SETS];
    char *path[SETS];
    for (int i = 0; i < count; i++) {
        path[i] = must_format("%s/set%d", folder, i);
        item[i] = (config_source){.path = path[i], .weight = weights[i]};
    }
    const config_sources sources = {.item = item, .count = count};
    samples *s = NULL;
    assert_int_equal(samples_open(&s, &sources, NULL, LENGTH, VOCABULARY, shuffle, 7), STATUS_OK);
    for (int i = 0; i < count; i++)
        free(path[i]);
    return s;
}

TEST(sample_i_is_the_next_stretch_of_tokens)
{
    samples *s = open_sets(*state, (const double[]){1}, 1, false);
    assert_int_equal(samples_count(s), (210 - 1) / LENGTH);
    int32_t tokens[LENGTH], targets[LENGTH], positions[LENGTH], documents[LENGTH], second[LENGTH];
    int32_t *all[INPUT_COUNT] = {[INPUT_tokens] = tokens,
                                 [INPUT_targets] = targets,
                                 [INPUT_positions] = positions,
                                 [INPUT_second_targets] = second};
    for (int64_t i = 0; i < samples_count(s); i++) {
        assert_int_equal(samples_read(s, &left_out, all, i), STATUS_OK);
        for (int k = 0; k < LENGTH; k++) {
            assert_int_equal(tokens[k], i * LENGTH + k);
            assert_int_equal(targets[k], i * LENGTH + k + 1);
            assert_int_equal(positions[k], k);
            assert_int_equal(second[k], k + 1 < LENGTH ? i * LENGTH + k + 2 : -1);
        }
    }
    /* tokens 8 to 15: the end of the document that begins at 6, the one of 10 to 14, the beginning of that from 15 */
    all[INPUT_document_start] = documents;
    assert_int_equal(samples_read(s, &left_out, all, 1), STATUS_OK);
    const int32_t position[] = {0, 1, 0, 1, 2, 3, 4, 0}, document[] = {0, 0, 2, 2, 2, 2, 2, 7};
    const int32_t after[] = {10, -1, 12, 13, 14, 15, -1, -1}; /* of the same document's next token */
    assert_memory_equal(second, after, sizeof after);
    assert_memory_equal(positions, position, sizeof position);
    assert_memory_equal(documents, document, sizeof document);
    samples_close(s);
}

TEST(a_shuffled_pass_takes_every_sample_once_and_the_next_in_another_order)
{
    samples *s = open_sets(*state, (const double[]){1}, 1, true);
    int64_t count = samples_count(s), sample;
    int which, moved = 0;
    AUTO_FREE char *seen = must_calloc((unsigned long)count, 1);
    for (int64_t i = 0; i < 2 * count; i++) {
        samples_locate(s, &which, &sample, i);
        assert_in_range(sample, 0, count - 1);
        assert_int_equal(seen[sample], i / count);
        seen[sample]++;
    }
    for (int64_t i = 0; i < count; i++) {
        int64_t later;
        samples_locate(s, &which, &sample, i);
        samples_locate(s, &which, &later, i + count);
        moved += sample != later;
    }
    assert_true(moved > count / 2);
    samples_close(s);
}

TEST(blends_follow_their_weights_and_leave_none_out)
{
    static const double weights[][SETS] = {{1, 1, 2}, {5, 3, 0.5}, {1e-6, 1e-6, 1}, {1e-9, 1, 1e-9}};
    for (int w = 0; w < 4; w++) {
        samples *s = open_sets(*state, weights[w], SETS, false);
        double total = weights[w][0] + weights[w][1] + weights[w][2];
        int64_t taken[SETS] = {0}, sample;
        for (int64_t i = 0; i < SAMPLES_PERIOD; i++) {
            int which;
            samples_locate(s, &which, &sample, i);
            assert_int_equal(sample, taken[which] % ((210 - 1) / LENGTH));
            taken[which]++;
        }
        for (int k = 0; k < SETS; k++) {
            double share = weights[w][k] / total * SAMPLES_PERIOD;
            if (taken[k] < 1 || (double)taken[k] > share + 2 || (double)taken[k] < share - 2)
                fail_msg("weights %d: data set %d has %lld of %.2f samples", w, k, (long long)taken[k], share);
        }
        samples_close(s);
    }
}

TEST_MAIN(write_sets, workfolder_teardown)
