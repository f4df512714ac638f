/* Looks at files and folders that fail, once or for good: nothing is removed, rewritten or taken to be done for it. */
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/system/mapping.h"
#include "engine/system/reading.h"
#include "engine/files/output.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* Which looks at a name fail, and how. */
static struct {
    const char *path;
    int error, times; /* times: that are left */
} fault;

/* What renames answer, one after another; 0: they are made. */
static int rename_errors[2];

static bool fails(const char *path)
{
    if (!fault.path || fault.times == 0 || strcmp(path, fault.path) != 0)
        return false;
    fault.times--;
    errno = fault.error;
    return true;
}

int stat(const char *path, struct stat *out)
{
    return fails(path) ? -1 : fstatat(AT_FDCWD, path, out, 0);
}

int lstat(const char *path, struct stat *out)
{
    return fails(path) ? -1 : fstatat(AT_FDCWD, path, out, AT_SYMLINK_NOFOLLOW);
}

int access(const char *path, int mode)
{
    return fails(path) ? -1 : faccessat(AT_FDCWD, path, mode, 0);
}

int rename(const char *from, const char *to)
{
    int error = rename_errors[0];
    rename_errors[0] = rename_errors[1];
    rename_errors[1] = 0;
    errno = error;
    return error ? -1 : renameat(AT_FDCWD, from, AT_FDCWD, to);
}

/* EACCES is tried three times, others eight; more than that is for good. */
static void fail_looks(const char *path, int error, int times)
{
    fault.path = path;
    fault.error = error;
    fault.times = times;
}

enum { FOR_GOOD = 1000 };

static const int passing[] = {EIO, ESTALE, EINTR};

static bool is_of_kind(const char *path, mode_t kind)
{
    struct stat info;
    return fstatat(AT_FDCWD, path, &info, AT_SYMLINK_NOFOLLOW) == 0 && (info.st_mode & S_IFMT) == kind;
}

TEST(a_link_in_a_folders_place_is_seen_at_the_second_look)
{
    AUTO_FREE char *path = workfolder_path(*state, "own"), *other = workfolder_path(*state, "other");
    assert_int_equal(mkdir(other, 0777), 0);
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        assert_int_equal(symlink(other, path), 0);
        fail_looks(path, passing[i], 1);
        assert_int_equal(atomic_make_own_folder(path), STATUS_OK);
        assert_true(is_of_kind(path, S_IFDIR) && is_of_kind(other, S_IFDIR));
        assert_int_equal(rmdir(path), 0);
    }
    assert_int_equal(symlink(other, path), 0);
    fail_looks(path, EACCES, FOR_GOOD);
    assert_int_equal(atomic_make_own_folder(path), STATUS_FAILED);
    assert_true(is_of_kind(path, S_IFLNK));
    workfolder_message_has(path);
    fail_looks(NULL, 0, 0);
}

TEST(a_pipe_that_is_seen_at_the_second_look_stays_one)
{
    char *path = workfolder_path(*state, "pipe"), got[8] = "";
    assert_int_equal(mkfifo(path, 0666), 0);
    int reader = open(path, O_RDONLY | O_NONBLOCK);
    assert_true(reader >= 0);
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        fail_looks(path, passing[i], 1);
        assert_int_equal(output_write(path, "text", 4), STATUS_OK);
        assert_int_equal(read(reader, got, sizeof got), 4);
        fail_looks(path, passing[i], 1);
        assert_int_equal(output_check(path), STATUS_OK);
        assert_true(is_of_kind(path, S_IFIFO));
    }
    fail_looks(path, EACCES, FOR_GOOD);
    assert_int_equal(output_write(path, "text", 4), STATUS_FAILED);
    assert_int_equal(output_check(path), STATUS_FAILED);
    fail_looks(NULL, 0, 0);
    assert_true(is_of_kind(path, S_IFIFO));
    close(reader);
    free(path);
}

/* The answer to the first try was lost: whether it had been made is only believed if it can be seen. */
/* A FIFO that nobody writes to, where a file should be: an open that waited would wait for ever. */
TEST(a_pipe_without_a_writer_is_not_waited_for)
{
    AUTO_FREE char *path = workfolder_path(*state, "silent");
    char text[8];
    int64_t got;
    mapping mapped;
    assert_int_equal(mkfifo(path, 0666), 0);
    assert_null(reading_stream(path));
    assert_int_equal(errno, EINVAL);
    assert_int_not_equal(reading_at(&got, text, path, 0, sizeof text), STATUS_OK);
    assert_int_not_equal(mapping_open(&mapped, path), STATUS_OK);
    workfolder_message_has(path);
}

TEST(a_rename_is_not_taken_to_be_done_unseen)
{
    AUTO_FREE char *from = workfolder_path(*state, "new"), *to = workfolder_path(*state, "old");
    workfolder_write(from, "new", 3);
    workfolder_write(to, "old", 3);
    rename_errors[0] = EIO;
    rename_errors[1] = ENOENT;
    fail_looks(from, EACCES, FOR_GOOD);
    assert_int_equal(atomic_rename(from, to), STATUS_FAILED);
    fail_looks(NULL, 0, 0);
    assert_int_equal(unlink(from), 0);
    rename_errors[0] = EIO;
    rename_errors[1] = ENOENT;
    assert_int_equal(atomic_rename(from, to), STATUS_OK);
}

/* A copy by hard links gets no line of the original's, also where the first look at the file fails. */
TEST(a_copy_by_links_is_seen_at_the_second_look)
{
    AUTO_FREE char *path = workfolder_path(*state, "metrics"), *copy = workfolder_path(*state, "copy");
    workfolder_write(path, "1\n", 2);
    assert_int_equal(link(path, copy), 0);
    for (size_t i = 0; i < sizeof passing / sizeof *passing; i++) {
        lines *l;
        int64_t bytes;
        fail_looks(path, passing[i], 1);
        assert_int_equal(lines_open(&l, path, NULL), STATUS_OK);
        assert_int_equal(lines_write(l, "2\n", 2, false), STATUS_OK);
        lines_close(l);
        AUTO_FREE char *text = (char *)workfolder_read(copy, &bytes);
        assert_string_equal(text, "1\n");
        assert_int_equal(unlink(path), 0);
        assert_int_equal(link(copy, path), 0);
    }
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
