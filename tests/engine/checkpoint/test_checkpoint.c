/* Checkpoints: any layout loads what any other saved, and what is not whole is refused by name. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/system/crc32c.h"
#include "engine/system/lock.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/checkpoint/savers.h"
#include "tests/jobs/workfolder.h"
#include "tests/engine/files/tensors.h"
#include "tests/test.h"

TEST(any_layout_loads_what_any_other_saved)
{
    const savers_layout layouts[] = {{1, 0, false}, {2, 0, false}, {3, 1, true},
                                     {4, 2, false}, {8, 0, true},  {5, 3, true}};
    AUTO_FREE char *folder = workfolder_path(*state, "layouts");
    for (int save = 0; save < 6; save++) {
        assert_int_equal(savers_write(folder, "step-00000001", save, layouts[save]), STATUS_OK);
        for (int load = 0; load < 6; load++)
            assert_int_equal(savers_load(folder, save, layouts[load], load % 2 ? DTYPE_FP32 : DTYPE_BF16), STATUS_OK);
        assert_int_equal(savers_load(folder, save + 1, layouts[0], DTYPE_FP32),
                         STATUS_USAGE); /* the oracle sees values */
    }
}

TEST(run_checkpoints_and_step_folders_open_alike)
{
    AUTO_FREE char *run = workfolder_path(*state, "run"), *folder = workfolder_path(run, "checkpoints");
    AUTO_FREE char *first = workfolder_path(folder, "step-00000001"), *latest = workfolder_path(folder, "latest");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){2, 0, false}), STATUS_OK);
    assert_int_equal(savers_write(folder, "step-00000002", 2, (savers_layout){3, 0, false}), STATUS_OK);
    assert_int_equal(savers_identify(run), 2);
    assert_int_equal(savers_identify(folder), 2);
    assert_int_equal(savers_identify(first), 1);
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(latest, &bytes);
    assert_string_equal(text, "step-00000002\n");
    checkpoint *c;
    assert_int_equal(checkpoint_open(&c, run), STATUS_OK);
    assert_int_equal(checkpoint_manifest(c)->ranks, 3);
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
}

/* One rank's "model" file is what other programs load: whole tensors under their own names. */
TEST(one_rank_s_model_is_a_plain_safetensors_file)
{
    AUTO_FREE char *folder = workfolder_path(*state, "plain"),
                   *path = workfolder_path(folder, "step-00000001/model-00000.safetensors");
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){1, 0, true}), STATUS_OK);
    safetensors *s;
    assert_int_equal(safetensors_open(&s, path), STATUS_OK);
    assert_int_equal(safetensors_count(s), 5);
    const safetensors_tensor *t = tensors_find(s, "h.0.attn.weight");
    assert_true(t && t->type == DTYPE_BF16 && t->dims == 2 && t->shape[0] == 6 && t->shape[1] == 16);
    assert_null(tensors_find(s, "scale"));
    safetensors_close(s);
}

TEST(tensors_that_are_missing_or_foreign_are_named)
{
    AUTO_FREE char *folder = workfolder_path(*state, "expect");
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
    const box_memory to = {out, DTYPE_FP32, {5, 1}};
    rectangle wrong = {"wte.weight", 2, {7, 6}, {{0, 0}, {1, 1}}};
    assert_int_equal(checkpoint_read(c, "model", &wrong, &to), STATUS_FAILED);
    workfolder_message_has("model/wte.weight has shape [7, 5], the model's is [7, 6]");
    wrong.dims = 1;
    assert_int_equal(checkpoint_read(c, "model", &wrong, &to), STATUS_FAILED);
    wrong.name = "other";
    assert_int_equal(checkpoint_read(c, "model", &wrong, &to), STATUS_FAILED);
    workfolder_message_has("model/other is missing");
    checkpoint_close(c);
}

static status write_two(const char *folder, checkpoint_piece *pieces)
{
    return checkpoint_write(folder, "step-00000001", &(checkpoint_share){pieces, 2, 0, 1, "", false}, NULL, NULL, NULL);
}

/* One wild value in the middle of a tensor of three buffers, of each type that weights have. */
TEST(values_that_are_not_finite_are_neither_saved_nor_read)
{
    enum { COUNT = 3 << 20 };
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    AUTO_FREE char *folder = workfolder_path(*state, "wild");
    AUTO_FREE float *values = must_calloc(COUNT, sizeof *values);
    AUTO_FREE char *stored = must_calloc(COUNT, sizeof *values);
    for (int i = 0; i < 3; i++)
        for (int wild = 0; wild < 3; wild++) {
            values[2 * COUNT / 3 + 1] = wild == 0 ? 1.5f : wild == 1 ? NAN : -INFINITY;
            dtype_convert(stored, types[i], values, DTYPE_FP32, COUNT);
            checkpoint_piece piece = {
                .section = "moment1", .of = box_whole("w", 1, (int64_t[]){COUNT}), .at = {stored, types[i], {1}}};
            checkpoint_share share = {&piece, 1, 0, 1, "", false};
            status s = checkpoint_write(folder, "step-00000001", &share, NULL, NULL, NULL);
            assert_int_equal(s, wild ? STATUS_FAILED : STATUS_OK);
            if (wild)
                workfolder_message_has("tensor moment1/w has values that are not finite");
            share.any_values = true;
            assert_int_equal(checkpoint_write(folder, "step-00000001", &share, NULL, NULL, NULL), STATUS_OK);
            checkpoint *c;
            assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
            s = checkpoint_read(c, "moment1", &piece.of, &(box_memory){values, DTYPE_FP32, {1}});
            assert_int_equal(s, wild ? STATUS_FAILED : STATUS_OK);
            if (wild)
                workfolder_message_has("tensor moment1/w has values that are not finite");
            checkpoint_accept_any(c);
            assert_int_equal(checkpoint_read(c, "moment1", &piece.of, &(box_memory){values, DTYPE_FP32, {1}}),
                             STATUS_OK);
            checkpoint_close(c);
        }
}

/* Pieces that do not cover their tensor once are refused when written: nothing of it is left. */
TEST(gaps_and_overlaps_are_never_published)
{
    AUTO_FREE char *folder = workfolder_path(*state, "cover"), *latest = workfolder_path(folder, "latest"),
                   *final = workfolder_path(folder, "step-00000001");
    float data[64] = {0};
    checkpoint_piece two[2];
    for (int i = 0; i < 2; i++)
        two[i] = (checkpoint_piece){
            .section = "model", .of = {"w", 2, {4, 4}, {{2 * i, 0}, {2, 4}}}, .at = {data, DTYPE_FP32, {4, 1}}};
    two[1].of.part.start[0] = 1;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w: two of its pieces overlap");
    two[1].of.part.start[0] = 2;
    two[1].of.part.size[1] = 3;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w has a gap");
    two[1].of.part.size[1] = 4;
    two[1].of.global[0] = 5;
    assert_int_equal(write_two(folder, two), STATUS_FAILED);
    workfolder_message_has("model/w");
    assert_false(atomic_exists(latest) || atomic_exists(final));
    two[1].of.global[0] = 4;
    assert_int_equal(write_two(folder, two), STATUS_OK);
    assert_true(atomic_exists(latest) && atomic_exists(final));
}

TEST(a_rank_that_fails_fails_all_and_leaves_the_older_one)
{
    AUTO_FREE char *folder = workfolder_path(*state, "peers"), *block = workfolder_path(folder, ".tmp-step-00000002");
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
}

static void assert_verified(const char *folder, const char *words)
{
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
    assert_int_equal(checkpoint_verify(c), words ? STATUS_FAILED : STATUS_OK);
    if (words)
        workfolder_message_has(words);
    checkpoint_close(c);
}

/* Two runs that save into one folder at once: rank 0 of one and rank 1 of the other are no checkpoint. */
TEST(shares_of_two_runs_are_never_published_together)
{
    AUTO_FREE char *folder = workfolder_path(*state, "two-runs"), *latest = workfolder_path(folder, "latest");
    char *buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    static const char *const runs[] = {"aaaa", "bbbb"};
    float data[8] = {0};
    for (int second = 0; second < 2; second++) {
        for (int rank = 0; rank < 2; rank++) {
            checkpoint_piece piece = {
                .section = "model", .of = {"w", 1, {16}, {{8 * rank}, {8}}}, .at = {data, DTYPE_FP32, {1}}};
            checkpoint_writer *w = checkpoint_writer_open(&(checkpoint_writer_options){
                .share = {&piece, 1, rank, 2, runs[rank == 1 ? second : 0], false}, .buffer = buffer});
            assert_int_equal(checkpoint_writer_share(w, folder, "step-00000001"), STATUS_OK);
            checkpoint_writer_close(w);
        }
        checkpoint_publisher *p = checkpoint_publisher_open(2, runs[0], buffer, NULL);
        status s = checkpoint_publisher_publish(p, folder, "step-00000001", NULL);
        assert_int_equal(s, second ? STATUS_FAILED : STATUS_OK);
        checkpoint_publisher_close(p);
        if (second)
            workfolder_message_has("fragment-00001 is not of this run's save");
    }
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
    assert_string_equal(checkpoint_manifest(c)->run, "aaaa");
    assert_int_equal(checkpoint_verify(c), STATUS_OK);
    checkpoint_close(c);
    free(buffer);
}

/* A run that stood still while another one took its folder over: it writes no share, and publishes none. */
TEST(a_run_that_has_lost_its_lock_saves_nothing)
{
    AUTO_FREE char *folder = workfolder_path(*state, "lost"), *path = workfolder_path(folder, "lock"),
                   *third = workfolder_path(folder, ".tmp-step-00000003");
    char *buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    float data[8] = {0};
    lock *first = NULL, *next = NULL;
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    assert_int_equal(lock_take(&first, path, "aaaa", 30), STATUS_OK);
    checkpoint_piece piece = {
        .section = "model", .of = box_whole("w", 1, (int64_t[]){8}), .at = {data, DTYPE_FP32, {1}}};
    checkpoint_writer *w = checkpoint_writer_open(
        &(checkpoint_writer_options){.share = {&piece, 1, 0, 1, "aaaa", false}, .buffer = buffer, .owner = first});
    checkpoint_publisher *p = checkpoint_publisher_open(1, "aaaa", buffer, first);
    assert_int_equal(checkpoint_writer_share(w, folder, "step-00000001"), STATUS_OK);
    assert_int_equal(checkpoint_publisher_publish(p, folder, "step-00000001", NULL), STATUS_OK);
    assert_int_equal(checkpoint_writer_share(w, folder, "step-00000002"), STATUS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lock_take(&next, path, "bbbb", 30), STATUS_OK);
    assert_int_equal(checkpoint_publisher_publish(p, folder, "step-00000002", NULL), STATUS_LOST);
    assert_int_equal(checkpoint_writer_share(w, folder, "step-00000003"), STATUS_LOST);
    assert_false(atomic_exists(third));
    checkpoint *c = NULL;
    assert_int_equal(checkpoint_open(&c, folder), STATUS_OK);
    assert_non_null(strstr(checkpoint_folder(c), "step-00000001"));
    checkpoint_close(c);
    checkpoint_writer_close(w);
    checkpoint_publisher_close(p);
    lock_release(next);
    lock_release(first);
    free(buffer);
}

/* What is not a tensor's bytes: another run's file under a manifest that fits, a header, a file that goes with the
 * weights. */
TEST(verifying_covers_runs_headers_and_companions)
{
    AUTO_FREE char *folder = workfolder_path(*state, "verify"), *step = workfolder_path(folder, "step-00000001");
    AUTO_FREE char *path = workfolder_path(step, "manifest.json"),
                   *model = workfolder_path(step, "model-00000.safetensors"),
                   *tokenizer = workfolder_path(step, "tokenizer.json");
    char *buffer = aligned_alloc(DIRECT_ALIGNMENT, CHECKPOINT_WRITER_BUFFER);
    float data[8] = {1, 2, 3};
    checkpoint_piece piece = {
        .section = "model", .of = box_whole("w", 1, (int64_t[]){8}), .at = {data, DTYPE_FP32, {1}}};
    const checkpoint_extra extra = {"tokenizer.json", "{\"a\": 1}", 8};
    checkpoint_writer *w = checkpoint_writer_open(&(checkpoint_writer_options){
        .share = {&piece, 1, 0, 1, "aaaa", false}, .extras = &extra, .extra_count = 1, .buffer = buffer});
    checkpoint_publisher *p = checkpoint_publisher_open(1, "aaaa", buffer, NULL);
    assert_int_equal(checkpoint_writer_share(w, folder, "step-00000001"), STATUS_OK);
    assert_int_equal(checkpoint_publisher_publish(p, folder, "step-00000001", NULL), STATUS_OK);
    checkpoint_writer_close(w);
    checkpoint_publisher_close(p);
    free(buffer);

    assert_verified(folder, NULL);
    const struct {
        const char *path, *words;
    } files[] = {{model, "model-00000.safetensors"}, {tokenizer, "tokenizer.json is damaged"}};
    for (int f = 0; f < 2; f++) {
        int64_t bytes;
        AUTO_FREE uint8_t *text = workfolder_read(files[f].path, &bytes);
        for (int64_t i = 0; i < bytes; i++) {
            text[i] ^= 1;
            workfolder_write(files[f].path, text, bytes);
            assert_verified(folder, files[f].words);
            text[i] ^= 1;
        }
        workfolder_write(files[f].path, text, bytes);
    }
    assert_verified(folder, NULL);

    manifest *m = NULL;
    assert_int_equal(manifest_read(&m, path), STATUS_OK);
    strcpy(m->run, "bbbb");
    assert_int_equal(manifest_write(m, path), STATUS_OK);
    manifest_free(m);
    assert_verified(folder, "was written by run aaaa, the manifest beside it by run bbbb");
}

/* Where a run may go on from: never "nowhere" while there is something, or while nobody can tell. */
TEST(offers_are_what_latest_names_then_the_older_ones)
{
    AUTO_FREE char *folder = workfolder_path(*state, "offers"), *latest = workfolder_path(folder, "latest");
    checkpoint_offers o;
    assert_int_equal(checkpoint_offers_find(&o, folder), STATUS_OK); /* the folder is not there */
    assert_int_equal(o.count, 0);
    const char *const names[] = {"step-00000002", "step-00000010", "step-00000030"};
    for (int i = 0; i < 3; i++)
        assert_int_equal(savers_write(folder, names[i], i, (savers_layout){1, 0, false}), STATUS_OK);
    static const struct {
        const char *latest; /* NULL: no such file */
        int count;
        const char *first, *trouble;
    } cases[] = {
        {"step-00000030", 3, "step-00000030", NULL},
        {"step-00000010", 2, "step-00000010", NULL}, /* 30 is of another course of the run */
        {"step-00000002", 1, "step-00000002", NULL},
        {"step-00000020", 2, "step-00000010", "names step-00000020, which is not there"},
        {"", 3, "step-00000030", "does not hold the name"},
        {"../../x", 3, "step-00000030", "does not hold the name"},
        {NULL, 3, "step-00000030", "latest is missing"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        unlink(latest);
        if (cases[i].latest)
            workfolder_write(latest, cases[i].latest, (int64_t)strlen(cases[i].latest));
        assert_int_equal(checkpoint_offers_find(&o, folder), STATUS_OK);
        assert_int_equal(o.count, cases[i].count);
        assert_string_equal(strrchr(o.folder[0], '/') + 1, cases[i].first);
        assert_true(!cases[i].trouble == !o.trouble && (!o.trouble || strstr(o.trouble, cases[i].trouble)));
        checkpoint_offers_free(&o);
    }
    assert_int_equal(symlink("latest", latest), 0); /* ELOOP, whoever asks */
    assert_int_equal(checkpoint_offers_find(&o, folder), STATUS_OK);
    assert_true(o.count == 3 && strstr(o.trouble, "symbolic links"));
    checkpoint_offers_free(&o);
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *path = workfolder_path(folder, names[i]);
        assert_int_equal(atomic_remove(path), STATUS_OK);
    }
    assert_int_equal(checkpoint_offers_find(&o, folder), STATUS_FAILED); /* something was there: not to begin anew */
    workfolder_message_has("nothing was changed");
    unlink(latest);
    workfolder_write(latest, "step-00000030\n", 14);
    assert_int_equal(checkpoint_offers_find(&o, folder), STATUS_FAILED);
    workfolder_message_has("names step-00000030, which is not there");
}

/* `latest` goes back to step 100: what comes behind it may be reached again, and is neither removed nor counted. */
TEST(prune_keeps_the_newest_up_to_latest_and_the_multiples)
{
    AUTO_FREE char *folder = workfolder_path(*state, "prune"), *latest = workfolder_path(folder, "latest");
    const char *const names[] = {"step-00000001", "step-00000002", "step-00000010", "step-00000040",
                                 "step-00000099", "step-00000100", "step-99999999", "step-100000000"};
    for (int i = 0; i < 8; i++)
        assert_int_equal(savers_write(folder, names[i], i, (savers_layout){1, 0, false}), STATUS_OK);
    workfolder_write(latest, "step-00000100\n", 14);
    static const struct {
        int keep, keep_every;
        const char *kept;
    } rounds[] = {{0, 0, "11111111"}, {4, 0, "00111111"}, {2, 10, "00111111"}, {1, 20, "00010111"}, {1, 0, "00000111"}};
    for (size_t k = 0; k < sizeof rounds / sizeof *rounds; k++) {
        assert_int_equal(checkpoint_prune(folder, rounds[k].keep, rounds[k].keep_every, NULL), STATUS_OK);
        for (int i = 0; i < 8; i++) {
            AUTO_FREE char *path = workfolder_path(folder, names[i]);
            assert_int_equal(atomic_exists(path), rounds[k].kept[i] == '1');
        }
    }
    assert_int_equal(savers_identify(folder), 5);
}

/* A save that failed while the folder had another name has left its files. One of a later step may be at work. */
TEST(prune_removes_what_interrupted_saves_have_left)
{
    static const char *const left[] = {".tmp-step-00000004", ".tmp-step-00000009", ".tmp-step-00000012", ".tmp-other"};
    AUTO_FREE char *folder = workfolder_path(*state, "leftovers");
    assert_int_equal(savers_write(folder, "step-00000010", 1, (savers_layout){1, 0, false}), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        AUTO_FREE char *path = workfolder_path(folder, left[i]), *file = workfolder_path(path, "fragment-00000");
        assert_int_equal(atomic_make_folders(path), STATUS_OK);
        workfolder_write(file, "x", 1);
    }
    assert_int_equal(checkpoint_prune(folder, 0, 0, NULL), STATUS_OK);
    for (int i = 0; i < 4; i++) {
        AUTO_FREE char *path = workfolder_path(folder, left[i]);
        assert_int_equal(atomic_exists(path), i >= 2);
    }
    assert_int_equal(savers_identify(folder), 1);
}

TEST(checksums_agree_with_the_standard)
{
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
        assert_int_equal(
            crc32c_combine(crc32c(0, bytes, length / 3), crc32c(0, bytes + length / 3, length * 2), length * 2),
            crc32c(0, bytes, length / 3 + length * 2));
    }
    uint8_t *large = must_alloc(50000); /* longer than three lanes of the processor's instruction */
    for (int i = 0; i < 50000; i++)
        large[i] = (uint8_t)((unsigned)i * (unsigned)i >> 5);
    for (int length = 12000; length < 50000; length += 997)
        assert_int_equal(crc32c(7, large, length), crc32c_software(7, large, length));
    free(large);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
