/* Checkpoints: any layout loads what any other saved, and what is not whole is refused by name. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/files/atomic.h"
#include "engine/files/checkpoint.h"
#include "engine/files/crc32c.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "tests/engine/files/savers.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"

static void any_layout_loads_what_any_other_saved(void **state)
{
    const savers_layout layouts[] = {{1, 0, false}, {2, 0, false}, {3, 1, true},
                                     {4, 2, false}, {8, 0, true},  {5, 3, true}};
    char *folder = workfolder_path(*state, "layouts");
    for (int save = 0; save < 6; save++) {
        assert_int_equal(savers_write(folder, "step-00000001", save, layouts[save]), STATUS_OK);
        for (int load = 0; load < 6; load++)
            assert_int_equal(savers_load(folder, save, layouts[load], load % 2 ? DTYPE_FP32 : DTYPE_BF16), STATUS_OK);
        assert_int_equal(savers_load(folder, save + 1, layouts[0], DTYPE_FP32),
                         STATUS_USAGE); /* the oracle sees values */
    }
    free(folder);
}

static void run_checkpoints_and_step_folders_open_alike(void **state)
{
    char *run = workfolder_path(*state, "run"), *folder = workfolder_path(run, "checkpoints");
    char *first = workfolder_path(folder, "step-00000001"), *latest = workfolder_path(folder, "latest");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){2, 0, false}), STATUS_OK);
    assert_int_equal(savers_write(folder, "step-00000002", 2, (savers_layout){3, 0, false}), STATUS_OK);
    assert_int_equal(savers_identify(run), 2);
    assert_int_equal(savers_identify(folder), 2);
    assert_int_equal(savers_identify(first), 1);
    int64_t bytes;
    char *text = (char *)workfolder_read(latest, &bytes);
    assert_string_equal(text, "step-00000002\n");
    checkpoint *c;
    assert_int_equal(checkpoint_open(&c, run), STATUS_OK);
    assert_int_equal(checkpoint_ranks(c), 3);
    assert_int_equal(checkpoint_tensors(c), 8);
    assert_non_null(checkpoint_find(c, "moment1", "scale"));
    assert_null(checkpoint_find(c, "model", "scale"));
    assert_int_equal(checkpoint_verify(c), STATUS_OK);
    checkpoint_close(c);
    assert_int_equal(checkpoint_open(&c, *state), STATUS_FAILED);
    workfolder_message_has("holds no checkpoint");
    const char *const bad[] = {"", "../etc\n", "a b", ".tmp-x", "step-00000009\n"};
    for (int i = 0; i < 5; i++) {
        workfolder_write(latest, bad[i], (int64_t)strlen(bad[i]));
        assert_int_equal(checkpoint_open(&c, run), STATUS_FAILED);
        workfolder_message_has(latest);
    }
    free(text);
    free(latest);
    free(first);
    free(folder);
    free(run);
}

/* One rank's "model" file is what other programs load: whole tensors under their own names. */
static void one_rank_s_model_is_a_plain_safetensors_file(void **state)
{
    char *folder = workfolder_path(*state, "plain"),
         *path = workfolder_path(folder, "step-00000001/model-00000.safetensors");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){1, 0, true}), STATUS_OK);
    safetensors *s;
    assert_int_equal(safetensors_open(&s, path), STATUS_OK);
    assert_int_equal(safetensors_count(s), 5);
    const safetensors_tensor *t = tensors_find(s, "h.0.attn.weight");
    assert_true(t && t->type == DTYPE_BF16 && t->dims == 2 && t->shape[0] == 6 && t->shape[1] == 16);
    assert_null(tensors_find(s, "scale"));
    safetensors_close(s);
    free(path);
    free(folder);
}

static void tensors_that_are_missing_or_foreign_are_named(void **state)
{
    char *folder = workfolder_path(*state, "expect");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){2, 0, false}), STATUS_OK);
    checkpoint *c;
    assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
    const char *const names[] = {"wte.weight", "scale", "other"};
    assert_int_equal(checkpoint_expect(c, "moment1", names, 2), STATUS_OK);
    assert_int_equal(checkpoint_expect(c, "moment1", names, 3), STATUS_FAILED);
    workfolder_message_has("moment1/other is missing");
    assert_int_equal(checkpoint_expect(c, "moment1", names, 1), STATUS_FAILED);
    workfolder_message_has("moment1/scale is none");
    float out[64];
    const int64_t stride[] = {5, 1}, wrong[] = {7, 6}, start[] = {0, 0}, size[] = {1, 1};
    assert_int_equal(checkpoint_read(c, "model", "wte.weight", DTYPE_FP32, out, stride, 2, wrong, start, size),
                     STATUS_FAILED);
    workfolder_message_has("model/wte.weight has shape [7, 5], the model's is [7, 6]");
    assert_int_equal(checkpoint_read(c, "model", "wte.weight", DTYPE_FP32, out, stride, 1, wrong, start, size),
                     STATUS_FAILED);
    assert_int_equal(checkpoint_read(c, "model", "other", DTYPE_FP32, out, stride, 2, wrong, start, size),
                     STATUS_FAILED);
    workfolder_message_has("model/other is missing");
    checkpoint_close(c);
    free(folder);
}

static status write_two(const char *folder, checkpoint_piece *pieces)
{
    return checkpoint_write(folder, "step-00000001", pieces, 2, NULL, 0, 1, NULL, NULL);
}

/* Pieces that do not cover their tensor once are refused when written: nothing of it is left. */
static void gaps_and_overlaps_are_never_published(void **state)
{
    char *folder = workfolder_path(*state, "cover"), *latest = workfolder_path(folder, "latest"),
         *final = workfolder_path(folder, "step-00000001");
    const float data[64] = {0};
    checkpoint_piece two[2];
    for (int i = 0; i < 2; i++)
        two[i] = (checkpoint_piece){.section = "model",
                                    .name = "w",
                                    .type = DTYPE_FP32,
                                    .dims = 2,
                                    .global = {4, 4},
                                    .start = {2 * i, 0},
                                    .size = {2, 4},
                                    .data = data,
                                    .stride = {4, 1}};
    two[1].start[0] = 1;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w: two of its pieces overlap");
    two[1].start[0] = 2;
    two[1].size[1] = 3;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w has a gap");
    two[1].size[1] = 4;
    two[1].global[0] = 5;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w");
    assert_false(atomic_exists(latest) || atomic_exists(final));
    two[1].global[0] = 4;
    assert_int_equal(write_two(folder, two), STATUS_OK);
    assert_true(atomic_exists(latest) && atomic_exists(final));
    free(final);
    free(latest);
    free(folder);
}

static void a_rank_that_fails_fails_all_and_leaves_the_older_one(void **state)
{
    char *folder = workfolder_path(*state, "peers"), *block = workfolder_path(folder, ".tmp-step-00000002");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){3, 0, false}), STATUS_OK);
    workfolder_write(block, "a file that prepare removes", 5);
    assert_int_equal(savers_write(folder, "step-00000002", 2, (savers_layout){3, 0, false}), STATUS_OK);
    assert_int_equal(savers_identify(folder), 2);
    char *latest = workfolder_path(folder, "latest.tmp"); /* a folder there makes the last step of rank 0 fail */
    assert_int_equal(atomic_make_folders(latest), STATUS_OK);
    assert_int_equal(savers_write(folder, "step-00000003", 3, (savers_layout){3, 0, false}), STATUS_FAILED);
    workfolder_message_has("rank 0: ");
    workfolder_message_has("step-00000003 not saved");
    assert_int_equal(savers_identify(folder), 2);
    free(latest);
    free(block);
    free(folder);
}

static void prune_keeps_the_newest_and_the_latest(void **state)
{
    char *folder = workfolder_path(*state, "prune"), *latest = workfolder_path(folder, "latest");
    const char *const names[] = {"step-00000001", "step-00000002", "step-00000010", "step-99999999", "step-100000000"};
    for (int i = 0; i < 5; i++)
        assert_int_equal(savers_write(folder, names[i], i, (savers_layout){1, 0, false}), STATUS_OK);
    workfolder_write(latest, "step-00000001\n", 14);
    assert_int_equal(checkpoint_prune(folder, 0), STATUS_OK);
    assert_int_equal(checkpoint_prune(folder, 2), STATUS_OK);
    const bool kept[] = {true, false, false, true, true};
    for (int i = 0; i < 5; i++) {
        char *path = workfolder_path(folder, names[i]);
        assert_int_equal(atomic_exists(path), kept[i]);
        free(path);
    }
    assert_int_equal(savers_identify(folder), 0);
    free(latest);
    free(folder);
}

static void checksums_agree_with_the_standard(void **state)
{
    (void)state;
    uint8_t bytes[4096];
    assert_int_equal(crc32c(0, "123456789", 9), 0xe3069283); /* RFC 3720 and its appendix B.4 */
    memset(bytes, 0, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x8a9136aa);
    memset(bytes, 0xff, 32);
    assert_int_equal(crc32c(0, bytes, 32), 0x62a8ab43);
    for (int i = 0; i < 4096; i++)
        bytes[i] = (uint8_t)(i * i >> 3);
    for (int length = 0; length < 300; length++) {
        uint32_t whole = crc32c(0, bytes + length % 7, length);
        assert_int_equal(crc32c_software(0, bytes + length % 7, length), whole);
        assert_int_equal(
            crc32c(crc32c(0, bytes + length % 7, length / 3), bytes + length % 7 + length / 3, length - length / 3),
            whole);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_layout_loads_what_any_other_saved),
        cmocka_unit_test(run_checkpoints_and_step_folders_open_alike),
        cmocka_unit_test(one_rank_s_model_is_a_plain_safetensors_file),
        cmocka_unit_test(tensors_that_are_missing_or_foreign_are_named),
        cmocka_unit_test(gaps_and_overlaps_are_never_published),
        cmocka_unit_test(a_rank_that_fails_fails_all_and_leaves_the_older_one),
        cmocka_unit_test(prune_keeps_the_newest_and_the_latest),
        cmocka_unit_test(checksums_agree_with_the_standard),
    };
    return cmocka_run_group_tests(tests, workfolder_setup, workfolder_teardown);
}
