/* Whole files or none; folders made and removed. Faults are injected in test_checkpoint_faults. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/files/atomic.h"
#include "memory/log.h"
#include "tests/jobs/workfolder.h"

static void the_old_file_stands_until_the_new_one_is_whole(void **state)
{
    char *path = workfolder_path(*state, "file"), *temporary = workfolder_path(*state, "file.tmp"), *text;
    atomic_file *f;
    int64_t bytes;
    assert_int_equal(atomic_replace(path, "old", 3), STATUS_OK);
    for (int commit = 0; commit < 2; commit++) {
        assert_int_equal(atomic_open(&f, path), STATUS_OK);
        assert_int_equal(atomic_write(f, "new", 3), STATUS_OK);
        assert_int_equal(atomic_sync(f), STATUS_OK);
        assert_int_equal(atomic_write(f, "er", 2), STATUS_OK);
        assert_int_equal(atomic_position(f), 5);
        text = (char *)workfolder_read(path, &bytes);
        assert_string_equal(text, "old");
        free(text);
        if (commit)
            assert_int_equal(atomic_commit(f), STATUS_OK);
        else
            atomic_abandon(f);
        assert_false(atomic_exists(temporary));
    }
    text = (char *)workfolder_read(path, &bytes);
    assert_string_equal(text, "newer");
    free(text);
    free(temporary);
    free(path);
}

/* Around the size of the buffer, in pieces that straddle it. */
static void large_files_keep_every_byte_in_order(void **state)
{
    const int64_t sizes[] = {0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9000000},
                  pieces[] = {1000003, 4 << 20, 9000000};
    char *path = workfolder_path(*state, "large");
    uint8_t *data = must_alloc(9000000);
    for (int64_t i = 0; i < 9000000; i++)
        data[i] = (uint8_t)(i ^ i >> 8 ^ i >> 16);
    for (int s = 0; s < 6; s++)
        for (int p = 0; p < 3; p++) {
            atomic_file *f;
            int64_t bytes;
            assert_int_equal(atomic_open(&f, path), STATUS_OK);
            assert_int_equal(atomic_write(f, data, sizes[s] ? 1 : 0), STATUS_OK);
            for (int64_t done = sizes[s] ? 1 : 0, now; done < sizes[s]; done += now) {
                now = sizes[s] - done < pieces[p] ? sizes[s] - done : pieces[p];
                assert_int_equal(atomic_write(f, data + done, now), STATUS_OK);
            }
            assert_int_equal(atomic_commit(f), STATUS_OK);
            uint8_t *back = workfolder_read(path, &bytes);
            assert_int_equal(bytes, sizes[s]);
            assert_true(memcmp(back, data, (size_t)bytes) == 0);
            free(back);
        }
    free(data);
    free(path);
}

static void removal_does_not_follow_links(void **state)
{
    char *top = workfolder_path(*state, "a"), *deep = workfolder_path(*state, "a//b/c/"),
         *kept = workfolder_path(*state, "kept");
    char *file = workfolder_path(*state, "kept/file"), *link = workfolder_path(*state, "a/b/link");
    assert_int_equal(atomic_make_folders(deep), STATUS_OK);
    assert_int_equal(atomic_make_folders(deep), STATUS_OK);
    assert_int_equal(atomic_make_folders(kept), STATUS_OK);
    assert_int_equal(atomic_replace(file, "x", 1), STATUS_OK);
    assert_int_equal(symlink(kept, link), 0);
    assert_int_equal(atomic_remove(top), STATUS_OK);
    assert_false(atomic_exists(top));
    assert_true(atomic_exists(file));
    assert_int_equal(atomic_remove(top), STATUS_OK); /* gone already */
    free(link);
    free(file);
    free(kept);
    free(deep);
    free(top);
}

static void failures_name_the_path(void **state)
{
    char *file = workfolder_path(*state, "plain"), *below = workfolder_path(*state, "plain/below"),
         *missing = workfolder_path(*state, "missing/file");
    atomic_file *f = NULL;
    workfolder_write(file, "x", 1);
    assert_int_equal(atomic_make_folders(below), STATUS_FAILED);
    workfolder_message_has(file);
    assert_int_equal(atomic_make_folders(file), STATUS_FAILED);
    workfolder_message_has(file);
    assert_int_equal(atomic_open(&f, missing), STATUS_FAILED);
    workfolder_message_has(missing);
    assert_null(f);
    assert_int_equal(atomic_rename(missing, file), STATUS_FAILED);
    workfolder_message_has(missing);
    assert_int_equal(atomic_sync_folder(file), STATUS_FAILED);
    workfolder_message_has(file);
    free(missing);
    free(below);
    free(file);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_old_file_stands_until_the_new_one_is_whole),
        cmocka_unit_test(large_files_keep_every_byte_in_order),
        cmocka_unit_test(removal_does_not_follow_links),
        cmocka_unit_test(failures_name_the_path),
    };
    return cmocka_run_group_tests(tests, workfolder_setup, workfolder_teardown);
}
