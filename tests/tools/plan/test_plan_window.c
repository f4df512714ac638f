/* What `phalanx plan` says of context ranks where layers have a sliding window: the bytes that no query sees, with
 * figures that are calculated by hand. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static int setup(void **state)
{
    if (workfolder_setup(state))
        return -1;
    AUTO_FREE char *path = workfolder_path(*state, "run.yaml");
    runs_write_text(path, "model: {layers: 2, hidden_size: 32, heads: 4, kv_heads: 2, ffn_size: 64, vocab_size: 300, "
                          "max_sequence: 64}\n"
                          "data: {train: none}\n"
                          "train: {steps: 6, sequence: 64, micro_batch: 2, global_batch: 4, precision: fp32}\n");
    return 0;
}

static launch_result plan(const char *top, const char *keys)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "%s plan %s/run.yaml --device cpu %s", phalanx, top, keys);
    if (r.status)
        fail_msg("%s: %s", keys, r.err);
    return r;
}

/* Keys of 2 heads of 8 fp32 numbers, 2 samples of 64 tokens. Of 2 ranks each sends the 64 tokens that it has, 4,096
 * bytes, for k and for v, and as much of their gradients back: 16 KiB a layer and micro-batch, of which there are 2.
 *
 * Rank 0 has the tokens 0..15 and 48..63 of a sample. A window of 8 reaches from 48 back to 41: of the 32 that the
 * other one has, 7 are seen. Rank 1 has 16..47, whose window begins at 9: again 7. So 25 in 32 are not.
 *
 * Of 4 ranks a run has 8 tokens. Rank 0 has 0..7 and 56..63, and sees 49..55; rank 1 has 8..15 and 48..55, and sees
 * 1..7 and 41..47; rank 2 16..23 and 40..47, sees 9..15 and 33..39; rank 3 24..39, sees 17..23. Of the 48 that others
 * have 7, 14, 14 and 7 are seen, so on average 37.5 are not; a rank sends three times the 2,048 bytes that it has. */
static const struct {
    const char *keys;
    json_int_t sent, unseen; /* 0: nothing is said */
} cases[] = {
    {"model.architecture=mistral model.sliding_window=8 parallel.context=2 --ranks 2", 65536, 51200},
    {"model.architecture=mistral model.sliding_window=8 parallel.context=4 --ranks 4", 2 * 2 * 2 * 2 * 3 * 2048, 76800},
    {"model.architecture=mistral model.sliding_window=8 parallel.context=2 parallel.data=2", 32768, 25600},
    {"model.architecture=mistral model.sliding_window=8 parallel.context=2 parallel.tensor=2 --ranks 4", 32768, 25600},
    /* The first layer sees all tokens. */
    {"model.architecture=qwen2 model.sliding_window=8 model.full_first=1 parallel.context=2 --ranks 2", 32768, 25600},
    {"model.architecture=mistral model.sliding_window=64 parallel.context=2 --ranks 2", 0, 0},
    {"model.architecture=mistral model.sliding_window=8", 0, 0},
    {"model.architecture=llama parallel.context=2 --ranks 2", 0, 0},
};

TEST(what_no_query_sees_is_counted)
{
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char keys[256];
        strcpy(keys, cases[i].keys);
        launch_result r = plan(*state, strcat(keys, " --json"));
        json_t *root = json_loads(r.out, JSON_REJECT_DUPLICATES, NULL),
               *said = json_object_get(root, "context_windows");
        assert_non_null(root);
        json_int_t sent = json_integer_value(json_object_get(said, "bytes_sent")),
                   unseen = json_integer_value(json_object_get(said, "unseen_bytes"));
        if ((said != NULL) != (cases[i].sent > 0) || sent != cases[i].sent || unseen != cases[i].unseen)
            fail_msg("%s: %lld bytes sent, %lld unseen", cases[i].keys, (long long)sent, (long long)unseen);
        json_decref(root);
        launch_free(&r);
    }
}

TEST(a_person_reads_what_to_do)
{
    launch_result r = plan(*state, cases[0].keys);
    assert_non_null(strstr(r.out, "50.0 KiB (78%) are of no use to the receiver, whose queries see 8 tokens"));
    assert_non_null(strstr(r.out, "parallel.tensor instead"));
    launch_free(&r);
    r = plan(*state, cases[7].keys);
    assert_null(strstr(r.out, "of no use"));
    launch_free(&r);
}

TEST_MAIN(setup, workfolder_teardown)
