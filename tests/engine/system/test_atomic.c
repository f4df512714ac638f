/* Whole files or none; folders made and removed. Faults are injected in test_checkpoint_faults. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/direct.h"
#include "engine/files/output.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

TEST(the_old_file_stands_until_the_new_one_is_whole)
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
TEST(large_files_keep_every_byte_in_order)
{
    const int64_t sizes[] = {0, 1, (4 << 20) - 1, 4 << 20, (4 << 20) + 1, 9000000},
                  pieces[] = {1000003, 4 << 20, 9000000};
    AUTO_FREE char *path = workfolder_path(*state, "large");
    AUTO_FREE uint8_t *data = must_alloc(9000000);
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
            AUTO_FREE uint8_t *back = workfolder_read(path, &bytes);
            assert_int_equal(bytes, sizes[s]);
            assert_true(memcmp(back, data, (size_t)bytes) == 0);
        }
}

TEST(removal_does_not_follow_links)
{
    AUTO_FREE char *top = workfolder_path(*state, "a"), *deep = workfolder_path(*state, "a//b/c/"),
                   *kept = workfolder_path(*state, "kept");
    AUTO_FREE char *file = workfolder_path(*state, "kept/file"), *link = workfolder_path(*state, "a/b/link");
    assert_int_equal(atomic_make_folders(deep), STATUS_OK);
    assert_int_equal(atomic_make_folders(deep), STATUS_OK);
    assert_int_equal(atomic_make_folders(kept), STATUS_OK);
    assert_int_equal(atomic_replace(file, "x", 1), STATUS_OK);
    assert_int_equal(symlink(kept, link), 0);
    assert_int_equal(atomic_remove(top), STATUS_OK);
    assert_false(atomic_exists(top));
    assert_true(atomic_exists(file));
    assert_int_equal(atomic_remove(top), STATUS_OK); /* gone already */
}

TEST(failures_name_the_path)
{
    AUTO_FREE char *file = workfolder_path(*state, "plain"), *below = workfolder_path(*state, "plain/below"),
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
}

/* ---- what stands in the way ---- */

static void expect_text(const char *path, const char *text)
{
    int64_t bytes;
    AUTO_FREE char *read = (char *)workfolder_read(path, &bytes);
    assert_string_equal(read, text);
}

/* Another user of a shared folder may put a link in the temporary file's place: what it names is not written to. */
TEST(a_link_in_the_temporary_files_place_is_not_followed)
{
    AUTO_FREE char *path = workfolder_path(*state, "shared"), *temporary = workfolder_path(*state, "shared.tmp");
    AUTO_FREE char *precious = workfolder_path(*state, "precious");
    assert_int_equal(atomic_replace(precious, "precious", 8), STATUS_OK);
    assert_int_equal(symlink(precious, temporary), 0);
    assert_int_equal(atomic_replace(path, "new", 3), STATUS_OK);
    expect_text(precious, "precious");
    expect_text(path, "new");
    struct stat info;
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISREG(info.st_mode));
}

TEST(a_link_in_a_files_place_is_not_followed)
{
    enum { BYTES = 4096 };
    AUTO_FREE char *path = workfolder_path(*state, "latest"), *precious = workfolder_path(*state, "treasure");
    AUTO_FREE char *buffer = aligned_alloc(DIRECT_ALIGNMENT, BYTES);
    direct out;
    assert_non_null(buffer);
    assert_int_equal(atomic_replace(precious, "precious", 8), STATUS_OK);
    assert_int_equal(symlink(precious, path), 0);
    assert_int_equal(direct_open(&out, path, buffer, BYTES), STATUS_OK);
    assert_int_equal(direct_close(&out, direct_write(&out, "new", 3, NULL)), STATUS_OK);
    expect_text(precious, "precious");
    expect_text(path, "new");
}

TEST(a_link_in_a_folders_place_is_not_followed)
{
    AUTO_FREE char *path = workfolder_path(*state, "deep/own"), *deep = workfolder_path(*state, "deep"),
                   *elsewhere = workfolder_path(*state, "elsewhere");
    struct stat info;
    assert_int_equal(atomic_make_folders(deep), STATUS_OK);
    assert_int_equal(atomic_make_folders(elsewhere), STATUS_OK);
    assert_int_equal(symlink(elsewhere, path), 0);
    for (int i = 0; i < 2; i++) { /* another rank has made it already */
        assert_int_equal(atomic_make_own_folder(path), STATUS_OK);
        assert_int_equal(lstat(path, &info), 0);
        assert_true(S_ISDIR(info.st_mode));
    }
    assert_true(atomic_exists(elsewhere));
}

/* A user may name a link, also one to a file that is not there yet, and one through another folder. */
TEST(an_output_that_is_a_link_is_followed)
{
    AUTO_FREE char *link = workfolder_path(*state, "link"), *target = workfolder_path(*state, "target");
    AUTO_FREE char *far_folder = workfolder_path(*state, "far"), *far = workfolder_path(*state, "far/link");
    assert_int_equal(symlink("target", link), 0);
    assert_int_equal(mkdir(far_folder, 0777), 0);
    assert_int_equal(symlink("../link", far), 0);
    assert_int_equal(output_write(link, "once", 4), STATUS_OK);
    expect_text(target, "once");
    assert_int_equal(output_write(far, "twice", 5), STATUS_OK);
    expect_text(target, "twice");
    struct stat info;
    assert_int_equal(lstat(link, &info), 0);
    assert_true(S_ISLNK(info.st_mode));
    assert_int_equal(unlink(target), 0);
    assert_int_equal(symlink("link", target), 0);
    assert_int_equal(output_write(link, "never", 5), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "link"));
}

/* Reads all of a pipe that is written to meanwhile. */
static void *read_pipe(void *path)
{
    char *text = must_calloc(1, 64);
    FILE *f = fopen(path, "r");
    assert_non_null(f);
    assert_true(fread(text, 1, 63, f) > 0);
    fclose(f);
    return text;
}

TEST(an_output_that_is_a_device_or_a_pipe_stays_one)
{
    char *path = workfolder_path(*state, "pipe");
    void *text;
    pthread_t reader;
    struct stat info;
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_int_equal(pthread_create(&reader, NULL, read_pipe, path), 0);
    assert_int_equal(output_write(path, "through", 7), STATUS_OK);
    pthread_join(reader, &text);
    assert_string_equal(text, "through");
    assert_int_equal(lstat(path, &info), 0);
    assert_true(S_ISFIFO(info.st_mode));
    free(text);
    free(path);
    assert_int_equal(output_check("/dev/null"), STATUS_OK);
    assert_int_equal(output_write("/dev/null", "x", 1), STATUS_OK);
    assert_int_equal(output_write("/dev/full", "x", 1), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "/dev/full: No space left"));
    assert_int_equal(lstat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    atomic_file *file = NULL;
    assert_int_equal(atomic_open(&file, "/dev/null"), STATUS_USAGE);
    assert_non_null(strstr(status_message(), "/dev/null is a device or a pipe"));
    assert_int_equal(lstat("/dev/null", &info), 0);
    assert_true(S_ISCHR(info.st_mode));
    AUTO_FREE char *missing = workfolder_path(*state, "missing/file");
    assert_int_equal(output_check(missing), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "missing/file"));
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
