/* Nothing half-written is ever loadable: failing disks, full disks, lying disks, kills and power losses at every call
 * of a save, and every damaged byte.
 *
 * This program supplies its own open, read, write, access, fsync, rename, mkdir, unlink and unlinkat. While a fault is
 * armed they count calls and misbehave at one of them; they also keep the journal that a power loss needs: which files
 * have bytes that no fsync has made durable, and which renames no fsync of their folder. (New folders count as durable
 * at once.) Its nanosleep counts and does not wait: what may pass is tried again at once.
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/checkpoint/savers.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* One call fails for good; one call fails for a moment; every call fails from then on; writes find no space from then
 * on; nothing has an effect from then on; one write stores another byte than it was given (only writes are counted:
 * ranks save in parallel, and which call is the k-th changes from save to save). */
enum { NONE, FAIL, PASS, LAST, FULL, STOP, LIE };

typedef struct entry {
    char from[512], to[512], backup[512]; /* backup: a link to what the rename replaced, or "" */
    bool durable;
} entry;

static struct {
    int mode, at, calls, naps;
    bool sync_is_lost; /* the mutant: an fsync that does nothing */
    ino_t dirty[64];
    int dirty_count;
    entry renames[32];
    int rename_count;
    const char *folder; /* where backups go */
    pthread_mutex_t lock;
} fault = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* true: this call fails, with errno set */
static bool misbehaves(bool is_write)
{
    if (fault.mode == LIE && !is_write)
        return false;
    pthread_mutex_lock(&fault.lock);
    int call = ++fault.calls;
    pthread_mutex_unlock(&fault.lock);
    errno = fault.mode == FULL ? ENOSPC : fault.mode == PASS || fault.mode == LAST ? EIO : EROFS;
    return ((fault.mode == FAIL || fault.mode == PASS) && call == fault.at) ||
           (fault.mode == FULL && call >= fault.at && is_write) ||
           ((fault.mode == STOP || fault.mode == LAST) && call >= fault.at) || (fault.mode == LIE && call == fault.at);
}

int nanosleep(const struct timespec *wanted, struct timespec *left)
{
    (void)wanted;
    (void)left;
    fault.naps++;
    return 0;
}

static ino_t inode_of(int descriptor)
{
    struct stat info;
    return fstat(descriptor, &info) == 0 ? info.st_ino : 0;
}

static void set_dirty(ino_t inode, bool dirty)
{
    pthread_mutex_lock(&fault.lock);
    int i = 0;
    while (i < fault.dirty_count && fault.dirty[i] != inode)
        i++;
    if (dirty && i == fault.dirty_count && i < 64)
        fault.dirty[fault.dirty_count++] = inode;
    if (!dirty && i < fault.dirty_count)
        fault.dirty[i] = fault.dirty[--fault.dirty_count];
    pthread_mutex_unlock(&fault.lock);
}

int open(const char *path, int flags, ...)
{
    va_list arguments;
    va_start(arguments, flags);
    mode_t mode = flags & O_CREAT ? va_arg(arguments, mode_t) : 0;
    va_end(arguments);
    if (fault.mode != NONE && misbehaves(false))
        return -1;
    return (int)syscall(SYS_openat, AT_FDCWD, path, flags, mode);
}

static ssize_t write_wrong(int descriptor, const void *data, size_t bytes)
{
    uint8_t *copy;
    assert_int_equal(posix_memalign((void **)&copy, 4096, bytes), 0); /* as O_DIRECT wants it */
    memcpy(copy, data, bytes);
    copy[bytes / 2] ^= 4;
    set_dirty(inode_of(descriptor), true);
    ssize_t wrote = syscall(SYS_write, descriptor, copy, bytes);
    free(copy);
    return wrote;
}

ssize_t write(int descriptor, const void *data, size_t bytes)
{
    bool fails = fault.mode != NONE && misbehaves(true);
    int error = errno;
    if (fails && fault.mode == LIE)
        return write_wrong(descriptor, data, bytes);
    if (fails && fault.mode == STOP && fault.calls > fault.at)
        return -1;
    if (fault.mode != NONE)
        set_dirty(inode_of(descriptor), true);
    ssize_t wrote = syscall(SYS_write, descriptor, data, fails ? bytes / 2 : bytes); /* torn where it fails */
    errno = error;
    return fails ? -1 : wrote;
}

ssize_t read(int descriptor, void *data, size_t bytes)
{
    return fault.mode != NONE && misbehaves(false) ? -1 : syscall(SYS_read, descriptor, data, bytes);
}

int access(const char *path, int mode)
{
    return fault.mode != NONE && misbehaves(false) ? -1 : (int)syscall(SYS_access, path, mode);
}

static void sync_folder(int descriptor)
{
    char link[64], path[512];
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t length = readlink(link, path, sizeof path - 1);
    for (int i = 0; i < fault.rename_count && length > 0; i++)
        if (!strncmp(fault.renames[i].to, path, (size_t)length) && fault.renames[i].to[length] == '/' &&
            !strchr(fault.renames[i].to + length + 1, '/'))
            fault.renames[i].durable = true;
}

int fsync(int descriptor)
{
    if (fault.mode == NONE)
        return 0; /* durability is modelled, not awaited */
    if (misbehaves(false))
        return -1;
    if (!fault.sync_is_lost) {
        set_dirty(inode_of(descriptor), false);
        sync_folder(descriptor);
    }
    return 0;
}

int rename(const char *from, const char *to)
{
    if (fault.mode != NONE && misbehaves(false))
        return -1;
    if (fault.mode != NONE) {
        pthread_mutex_lock(&fault.lock);
        assert_true(fault.rename_count < 32);
        entry *e = &fault.renames[fault.rename_count];
        *e = (entry){0};
        snprintf(e->backup, sizeof e->backup, "%s/backup-%d", fault.folder, fault.rename_count++);
        snprintf(e->from, sizeof e->from, "%s", from);
        char *real = realpath(from, NULL), *slash = strrchr(real, '/');
        *slash = 0;
        snprintf(e->to, sizeof e->to, "%s%s", real, strrchr(to, '/')); /* all our renames stay in their folder */
        free(real);
        if (linkat(AT_FDCWD, to, AT_FDCWD, e->backup, 0) != 0)
            e->backup[0] = 0;
        pthread_mutex_unlock(&fault.lock);
    }
    return (int)syscall(SYS_rename, from, to);
}

int mkdir(const char *path, mode_t mode)
{
    return fault.mode != NONE && misbehaves(false) ? -1 : (int)syscall(SYS_mkdir, path, mode);
}

int unlink(const char *path)
{
    return fault.mode != NONE && misbehaves(false) ? -1 : (int)syscall(SYS_unlink, path);
}

int unlinkat(int folder, const char *path, int flags)
{
    return fault.mode != NONE && misbehaves(false) ? -1 : (int)syscall(SYS_unlinkat, folder, path, flags);
}

static void arm(int mode, int at, const char *folder)
{
    fault.at = at;
    fault.calls = fault.dirty_count = fault.rename_count = fault.naps = 0;
    fault.folder = folder;
    fault.mode = mode;
}

static int cut_if_dirty(const char *path, const struct stat *info, int kind, struct FTW *where)
{
    (void)where;
    for (int i = 0; i < fault.dirty_count; i++)
        if (kind == FTW_F && fault.dirty[i] == info->st_ino)
            assert_int_equal(truncate(path, info->st_size / 2), 0);
    return 0;
}

/* What was not made durable is lost: renames are undone, newest first, and files keep half of their bytes. */
static void lose_power(const char *folder)
{
    fault.mode = NONE;
    assert_int_equal(nftw(folder, cut_if_dirty, 16, FTW_PHYS), 0);
    for (int i = fault.rename_count - 1; i >= 0; i--) {
        entry *e = &fault.renames[i];
        if (e->durable)
            continue;
        (void)rename(e->to, e->from);
        if (e->backup[0])
            (void)rename(e->backup, e->to);
    }
}

/* The state before the save: checkpoint 1, `latest` naming it. */
static void start_afresh(const char *folder)
{
    fault.mode = NONE;
    assert_int_equal(atomic_remove(folder), STATUS_OK);
    assert_int_equal(savers_write(folder, "step-00000001", 1, (savers_layout){2, 0, false}), STATUS_OK);
}

static int is_temporary(const struct dirent *file)
{
    size_t length = strlen(file->d_name);
    return !strncmp(file->d_name, ".tmp-", 5) || (length > 4 && !strcmp(file->d_name + length - 4, ".tmp"));
}

static bool has_temporaries(const char *folder)
{
    struct dirent **entries;
    int count = scandir(folder, &entries, is_temporary, alphasort);
    assert_true(count >= 0);
    for (int i = 0; i < count; i++)
        free(entries[i]);
    free(entries);
    return count > 0;
}

typedef struct outcome {
    int saves, wrong; /* saves tried; times the oracle objected */
    int older, newer; /* what was found in its place */
    int naps;         /* saves in which something was tried again */
} outcome;

/* Save over and over, with the fault one call later each time, until the save is through before the fault. */
static outcome every_call(const char *folder, const char *name, int mode, int ranks, bool power)
{
    outcome o = {0};
    char *older = workfolder_path(folder, "step-00000001");
    for (int k = 1;; k++) {
        start_afresh(folder);
        char *side = must_format("%s/side", folder);
        assert_int_equal(atomic_make_folders(side), STATUS_OK);
        arm(mode, k, side);
        status s = savers_write(folder, name, 2, (savers_layout){ranks, 0, false});
        int calls = fault.calls;
        fault.mode = NONE;
        if (power)
            lose_power(folder);
        int found = savers_identify(folder);
        bool right = found == 2 || (found == 1 && s != STATUS_OK);
        if (mode == FAIL && s != STATUS_OK) /* one fault is repaired: the older one is under its own name again */
            right = right && atomic_exists(older);
        if (mode == PASS || mode == LIE) /* noticed, and made good */
            right = s == STATUS_OK && found == 2 && !has_temporaries(folder);
        o.naps += fault.naps > 0;
        if (mode == FULL && s != STATUS_OK)
            right = right && found == 1 && !has_temporaries(folder) && strstr(status_message(), "No space left");
        o.saves++;
        o.wrong += !right;
        o.older += found == 1;
        o.newer += found == 2;
        free(side);
        if (calls < k) {
            o.wrong += s != STATUS_OK;
            printf("fault %d, %d ranks%s: %d saves, %d wrong, older %d, newer %d, tried again %d\n", mode, ranks,
                   power ? ", power lost" : "", o.saves, o.wrong, o.older, o.newer, o.naps);
            free(older);
            return o;
        }
    }
}

TEST(latest_is_whole_whichever_call_fails)
{
    AUTO_FREE char *folder = workfolder_path(*state, "fails");
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        outcome o = every_call(folder, "step-00000002", FAIL, ranks, false);
        assert_int_equal(o.wrong, 0);
        assert_true(o.saves > 40 && o.older > 20 && o.newer >= 1);
        o = every_call(folder, "step-00000001", FAIL, ranks, false); /* the very one that latest names */
        assert_int_equal(o.wrong, 0);
        assert_true(o.saves > 40 && o.older > 20 && o.newer >= 1);
    }
}

/* An error that passes is nothing but a pause, whichever call it hits; nor is a disk that stores something else. */
TEST(what_passes_is_tried_again_and_what_is_stored_wrong_is_stored_again)
{
    AUTO_FREE char *folder = workfolder_path(*state, "passes");
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        outcome o = every_call(folder, "step-00000002", PASS, ranks, false);
        assert_int_equal(o.wrong, 0);
        assert_true(o.saves > 40 && o.naps >= o.saves - 2); /* each fault was met */
        o = every_call(folder, "step-00000001", PASS, ranks, false);
        assert_int_equal(o.wrong, 0);
        o = every_call(folder, "step-00000002", LIE, ranks, false);
        assert_int_equal(o.wrong, 0);
        assert_true(o.naps >= 3 * ranks + 2);  /* three sections each, the manifest, `latest`; fragments */
        assert_int_equal(o.naps, o.saves - 1); /* each lie was noticed */
    }
}

TEST(latest_is_whole_when_the_disk_is_gone_for_good)
{
    AUTO_FREE char *folder = workfolder_path(*state, "gone"), *older = workfolder_path(folder, "step-00000001");
    for (int k = 1; k < 60; k += 9) {
        start_afresh(folder);
        arm(LAST, k, folder);
        status s = savers_write(folder, "step-00000002", 2, (savers_layout){1, 0, false});
        fault.mode = NONE;
        assert_int_equal(s, STATUS_FAILED);
        workfolder_message_has("Input/output error");
        int found = savers_identify(folder);
        assert_true(found == 1 || found == 2);
        assert_true(atomic_exists(older));
    }
}

TEST(latest_is_whole_wherever_the_process_is_killed)
{
    AUTO_FREE char *folder = workfolder_path(*state, "killed");
    outcome o = every_call(folder, "step-00000002", STOP, 1, false);
    assert_int_equal(o.wrong, 0);
    assert_true(o.saves > 40 && o.older > 20 && o.newer >= 1);
    o = every_call(folder, "step-00000001", STOP, 1, false); /* replacing the very checkpoint that latest names */
    assert_int_equal(o.wrong, 0);
    assert_true(o.saves > 40 && o.older > 20 && o.newer >= 1);
}

TEST(latest_is_whole_wherever_the_power_fails)
{
    AUTO_FREE char *folder = workfolder_path(*state, "power");
    const char *const names[] = {"step-00000002", "step-00000001"};
    for (int i = 0; i < 2; i++) {
        outcome o = every_call(folder, names[i], STOP, 1, true);
        assert_int_equal(o.wrong, 0);
        assert_true(o.saves > 40 && o.older > 20 && o.newer >= 1);
    }
    fault.sync_is_lost = true; /* the mutant: the same oracle must object to files that are not fsynced */
    assert_true(every_call(folder, names[0], STOP, 1, true).wrong > 0);
    fault.sync_is_lost = false;
}

TEST(a_full_disk_leaves_the_older_one_and_no_litter)
{
    AUTO_FREE char *folder = workfolder_path(*state, "full");
    for (int ranks = 1; ranks <= 3; ranks += 2) {
        outcome o = every_call(folder, "step-00000002", FULL, ranks, false);
        assert_int_equal(o.wrong, 0);
        assert_true(o.older > 20 && o.newer >= 1);
    }
}

TEST(after_any_interrupted_save_the_next_one_succeeds)
{
    AUTO_FREE char *folder = workfolder_path(*state, "again");
    for (int k = 1; k < 100; k += 3) {
        start_afresh(folder);
        arm(STOP, k, folder);
        (void)savers_write(folder, k % 2 ? "step-00000001" : "step-00000002", 2, (savers_layout){1, 0, false});
        fault.mode = NONE;
        assert_int_equal(savers_write(folder, "step-00000003", 3, (savers_layout){2, 0, false}), STATUS_OK);
        assert_int_equal(savers_identify(folder), 3);
        assert_false(has_temporaries(folder));
    }
}

/* ---- damage ---- */

TEST(every_flipped_bit_of_a_manifest_is_refused)
{
    AUTO_FREE char *folder = workfolder_path(*state, "flip");
    start_afresh(folder);
    AUTO_FREE char *path = workfolder_path(folder, "step-00000001/manifest.json");
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(path, &bytes);
    for (int64_t i = 0; i < bytes * 8; i++) {
        manifest *m = NULL;
        text[i / 8] ^= (char)(1 << i % 8);
        assert_int_equal(manifest_parse(&m, text, bytes, "manifest.json"), STATUS_FAILED);
        assert_null(m);
        workfolder_message_has("manifest.json");
        text[i / 8] ^= (char)(1 << i % 8);
    }
    for (int64_t cut = 0; cut < bytes; cut++) {
        manifest *m = NULL;
        assert_int_equal(manifest_parse(&m, text, cut, "manifest.json"), STATUS_FAILED);
    }
    manifest *m;
    assert_int_equal(manifest_parse(&m, text, bytes, "manifest.json"), STATUS_OK);
    manifest_free(m);
}

/* Every byte of every data file: flipped, the load is refused or, in what is not read (the header), still right. */
TEST(every_flipped_or_missing_byte_of_the_data_is_noticed)
{
    AUTO_FREE char *folder = workfolder_path(*state, "data");
    start_afresh(folder);
    const char *const names[] = {"model-00000", "model-00001", "master-00000", "moment1-00001"};
    for (int f = 0; f < 4; f++) {
        AUTO_FREE char *path = must_format("%s/step-00000001/%s.safetensors", folder, names[f]);
        int64_t bytes;
        AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
        uint64_t header;
        memcpy(&header, data, 8);
        for (int64_t i = 0; i < bytes; i += i < 8 + (int64_t)header ? 11 : 1) {
            data[i] ^= (uint8_t)(1 << i % 8);
            workfolder_write(path, data, bytes);
            data[i] ^= (uint8_t)(1 << i % 8);
            int found = savers_identify(folder);
            assert_int_equal(found, i < 8 + (int64_t)header ? 1 : -1);
            if (found == -1)
                workfolder_message_has(names[f]);
        }
        for (int64_t cut = 0; cut < bytes; cut += cut < bytes - 9 ? 37 : 1) {
            workfolder_write(path, data, cut);
            assert_int_equal(savers_identify(folder), -1);
            workfolder_message_has(names[f]);
        }
        assert_int_equal(unlink(path), 0);
        assert_int_equal(savers_identify(folder), -1);
        workfolder_message_has(names[f]);
        workfolder_write(path, data, bytes);
        assert_int_equal(savers_identify(folder), 1);
    }
}

TEST(another_rank_s_file_is_refused)
{
    AUTO_FREE char *folder = workfolder_path(*state, "swap"),
                   *a = workfolder_path(folder, "step-00000001/master-00000.safetensors"),
                   *b = workfolder_path(folder, "step-00000001/master-00001.safetensors");
    int64_t bytes;
    start_afresh(folder);
    AUTO_FREE uint8_t *data = workfolder_read(b, &bytes);
    workfolder_write(a, data, bytes);
    assert_int_equal(savers_identify(folder), -1);
    workfolder_message_has("master-00000.safetensors");
    workfolder_message_has("master/wte.weight");
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
