/* Files of lines whose folders are renamed, deleted or replaced while they are open: each line is there once. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "engine/system/lines.h"
#include "engine/system/lock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* What happens between two calls of the code under test: in front of the next open that may make a file. */
static struct {
    const char *from, *to;
} rename_before_open;

int open(const char *path, int flags, ...)
{
    va_list all;
    va_start(all, flags);
    mode_t mode = flags & O_CREAT ? va_arg(all, mode_t) : 0;
    va_end(all);
    if (flags & O_CREAT && rename_before_open.from) {
        assert_int_equal(rename(rename_before_open.from, rename_before_open.to), 0);
        rename_before_open.from = NULL;
    }
    return openat(AT_FDCWD, path, flags, mode);
}

/* A descriptor that a server has forgotten, and how often it says so. */
static int stale, stale_times;

int fstat(int file, struct stat *out)
{
    if (stale_times > 0 && file == stale) {
        stale_times--;
        errno = ESTALE;
        return -1;
    }
    return fstatat(file, "", out, AT_EMPTY_PATH);
}

/* While set, no write has room; a write finds `room` bytes of it. */
static bool is_full;
static size_t room;

ssize_t write(int file, const void *data, size_t bytes)
{
    size_t now = is_full && bytes > room ? room : bytes;
    if (is_full && now == 0) {
        errno = EDQUOT;
        return -1;
    }
    room -= is_full ? now : 0;
    return (ssize_t)syscall(SYS_write, file, data, now);
}

/* A folder with a file of lines under test, and other names for folders. */
typedef struct place {
    char *run, *away, *stray, *file;
    lines *out;
} place;

static void place_open(place *p, const char *top, const char *name)
{
    p->run = must_format("%s/%s", top, name);
    p->away = must_format("%s.away", p->run);
    p->stray = must_format("%s.stray", p->run);
    p->file = must_format("%s/lines", p->run);
    assert_int_equal(mkdir(p->run, 0777), 0);
    assert_int_equal(lines_open(&p->out, p->file, NULL), STATUS_OK);
}

static void place_close(place *p)
{
    lines_close(p->out);
    free(p->run);
    free(p->away);
    free(p->stray);
    free(p->file);
}

static void put(place *p, const char *text)
{
    assert_int_equal(lines_write(p->out, text, (int64_t)strlen(text), false), STATUS_OK);
}

/* A run that stood still while another one took its folder over. */
TEST(a_run_that_has_lost_its_lock_writes_no_line)
{
    AUTO_FREE char *run = workfolder_path(*state, "lost"), *path = workfolder_path(run, "lock"),
                   *file = workfolder_path(run, "lines");
    lock *first = NULL, *next = NULL;
    lines *l = NULL;
    int64_t bytes;
    assert_int_equal(mkdir(run, 0777), 0);
    assert_int_equal(lock_take(&first, path, "aaaa", 30), STATUS_OK);
    assert_int_equal(lines_open(&l, file, first), STATUS_OK);
    assert_int_equal(lines_write(l, "one\n", 4, false), STATUS_OK);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lock_take(&next, path, "bbbb", 30), STATUS_OK);
    assert_int_equal(lines_write(l, "two\n", 4, false), STATUS_LOST);
    AUTO_FREE char *all = (char *)workfolder_read(file, &bytes);
    assert_string_equal(all, "one\n");
    lines_close(l);
    l = NULL;
    assert_int_equal(unlink(file), 0);
    assert_int_equal(lines_open(&l, file, first), STATUS_LOST);
    assert_int_not_equal(access(file, F_OK), 0);
    lock_release(next);
    lock_release(first);
}

static void move(const char *from, const char *to)
{
    assert_int_equal(rename(from, to), 0);
}

static void holds(const char *folder, const char *text)
{
    AUTO_FREE char *path = workfolder_path(folder, "lines");
    int64_t bytes;
    AUTO_FREE char *all = (char *)workfolder_read(path, &bytes);
    assert_string_equal(all, text);
}

static void write_lines(const char *folder, const char *text)
{
    AUTO_FREE char *path = workfolder_path(folder, "lines");
    assert_int_equal(mkdir(folder, 0777), 0);
    workfolder_write(path, text, (int64_t)strlen(text));
}

TEST(a_folder_that_is_back_lacks_no_line)
{
    place p;
    place_open(&p, *state, "back");
    put(&p, "1\n");
    move(p.run, p.away);
    put(&p, "2\n");
    holds(p.run, "2\n");
    assert_true(lines_are_here(p.out, true));
    move(p.run, p.stray);
    move(p.away, p.run);
    put(&p, "3\n");
    holds(p.run, "1\n2\n3\n");
    holds(p.stray, "2\n");
    place_close(&p);
}

/* A run begins while its folder has another name, in a new one; then the old one, which has done more, is back. */
TEST(a_folder_of_other_lines_gets_none)
{
    place p;
    place_open(&p, *state, "other");
    put(&p, "1\n");
    write_lines(p.away, "1\n2\n3\n");
    move(p.run, p.stray);
    move(p.away, p.run);
    put(&p, "2\n");
    holds(p.run, "1\n2\n3\n");
    holds(p.stray, "1\n2\n");
    assert_false(lines_are_here(p.out, false));
    assert_false(lines_are_here(p.out, true));
    move(p.run, p.away);
    move(p.stray, p.run);
    put(&p, "3\n");
    holds(p.run, "1\n2\n3\n");
    holds(p.away, "1\n2\n3\n");
    assert_true(lines_are_here(p.out, true));
    place_close(&p);
}

/* The new folder is made, and makes way for the old one before there is a file in it. */
TEST(a_folder_that_is_back_at_once_gets_each_line_once)
{
    place p;
    place_open(&p, *state, "at-once");
    put(&p, "1\n");
    move(p.run, p.away);
    rename_before_open.from = p.away;
    rename_before_open.to = p.run;
    put(&p, "2\n");
    holds(p.run, "1\n2\n");
    put(&p, "3\n");
    holds(p.run, "1\n2\n3\n");
    place_close(&p);
}

TEST(a_folder_of_other_lines_that_comes_at_once_gets_none)
{
    place p;
    place_open(&p, *state, "other-at-once");
    put(&p, "1\n");
    write_lines(p.stray, "other\n");
    move(p.run, p.away);
    rename_before_open.from = p.stray;
    rename_before_open.to = p.run;
    put(&p, "2\n");
    put(&p, "3\n");
    holds(p.run, "other\n");
    holds(p.away, "1\n2\n3\n");
    place_close(&p);
}

/* An editor, or a person with sed -i, gives the folder's file another inode: it is the run's all the same. */
TEST(a_file_replaced_in_its_folder_gets_the_lines)
{
    place p;
    place_open(&p, *state, "edited");
    put(&p, "1\n");
    AUTO_FREE char *edited = workfolder_path(p.run, "edited");
    workfolder_write(edited, "one\n", 4);
    move(edited, p.file);
    put(&p, "2\n");
    holds(p.run, "one\n2\n");
    place_close(&p);
}

/* This process's descriptor of a file. */
static int descriptor_of(const char *path)
{
    struct stat file, one;
    int found = 3;
    assert_int_equal(stat(path, &file), 0);
    while (fstat(found, &one) != 0 || one.st_ino != file.st_ino)
        found++;
    return found;
}

/* A server that began anew knows the file by its name only; a folder that has taken the name meanwhile stays as it
 * is. */
TEST(a_file_whose_descriptor_is_stale_is_opened_again_by_its_name)
{
    place p;
    place_open(&p, *state, "stale");
    put(&p, "1\n");
    stale = descriptor_of(p.file);
    AUTO_FREE char *restored = workfolder_path(p.run, "restored");
    workfolder_write(restored, "1\n", 2);
    move(restored, p.file);
    stale_times = 1;
    put(&p, "2\n");
    assert_int_equal(stale_times, 0);
    holds(p.run, "1\n2\n");
    stale = descriptor_of(p.file);
    write_lines(p.stray, "other\n");
    move(p.run, p.away);
    move(p.stray, p.run);
    stale_times = 1;
    put(&p, "3\n");
    holds(p.run, "other\n");
    assert_false(lines_are_here(p.out, false));
    place_close(&p);
}

/* What has been published is where the name leads: the folder that was moved does not say that it has it. */
TEST(a_line_about_the_folder_is_in_that_folder_alone)
{
    place p;
    place_open(&p, *state, "here");
    put(&p, "1\n");
    move(p.run, p.away);
    assert_int_equal(lines_write(p.out, "saved\n", (int64_t)strlen("saved\n"), true), STATUS_OK);
    put(&p, "2\n");
    holds(p.run, "saved\n2\n");
    holds(p.away, "1\n2\n");
    place_close(&p);
}

TEST(lines_that_a_full_disk_refuses_are_written_later_in_order)
{
    enum { LINES = 600, FULL_FROM = 100, FULL_UNTIL = 318 };
    place p;
    place_open(&p, *state, "full");
    AUTO_FREE char *want = must_calloc(LINES, 8);
    for (int i = 0; i < LINES; i++) {
        char text[16];
        snprintf(text, sizeof text, "%d\n", i);
        strcat(want, text);
        is_full = i >= FULL_FROM && i < FULL_UNTIL;
        room = i % 3 ? 0 : 2; /* some tear a line */
        assert_int_equal(lines_write(p.out, text, (int64_t)strlen(text), i % 2), is_full ? STATUS_FAILED : STATUS_OK);
        assert_int_equal(lines_lost(p.out), is_full ? i + 1 - FULL_FROM : 0);
    }
    holds(p.run, want);
    is_full = true;
    room = 0;
    assert_int_equal(lines_write(p.out, "last\n", (int64_t)strlen("last\n"), false), STATUS_FAILED);
    is_full = false;
    lines_close(p.out); /* writes it */
    p.out = NULL;
    AUTO_FREE char *all = must_format("%slast\n", want);
    holds(p.run, all);
    place_close(&p);
}

TEST(sixteen_mebibytes_of_lines_are_kept_and_the_others_counted)
{
    enum { BYTES = 1 << 20, LINES = 20, KEPT = 16 };
    place p;
    place_open(&p, *state, "long");
    AUTO_FREE char *text = must_calloc(BYTES + 1, 1), *path = workfolder_path(p.run, "lines");
    memset(text, 'x', BYTES - 1);
    text[BYTES - 1] = '\n';
    is_full = true;
    for (int i = 0; i < LINES; i++)
        assert_int_equal(lines_write(p.out, text, (int64_t)strlen(text), false), STATUS_FAILED);
    assert_int_equal(lines_lost(p.out), LINES);
    is_full = false;
    put(&p, "after\n");
    assert_int_equal(lines_lost(p.out), LINES - KEPT);
    struct stat facts;
    assert_int_equal(stat(path, &facts), 0);
    assert_int_equal(facts.st_size, KEPT * BYTES + 6);
    place_close(&p);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
