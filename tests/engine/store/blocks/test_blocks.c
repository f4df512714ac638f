/* Objects read in blocks through a folder: what is read is what the store has, whatever the network, the disk and
 * other processes do; the folder stays within its size, and no block is fetched twice. Beside the stand-in, these
 * tests run against a real store where PHALANX_S3_REAL names a bucket of it (interop_s3.py). */
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/system/reading.h"
#include "engine/store/blocks/blocks.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/stores.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { BLOCK = 128 << 10, BYTES = 20 * BLOCK + 12345, BLOCKS = 21 };

static s3_server *server; /* NULL: a real store */
static const char *bucket = S3_SERVER_BUCKET;
static char *data;        /* of the object */
static double other_wait; /* for other processes' fetches; 0: as a job waits */

/* ---- helpers ----------------------------------------------------------------------------------------------------- */

static void put(const char *key, const void *bytes, int64_t count)
{
    object_store *s = stores_open(bucket, 20);
    stores_assert_ok(object_put(s, key, bytes, count));
    object_close(s);
}

static char *url_of(const char *key)
{
    return must_format("s3://%s/%s", bucket, key);
}

static blocks *open_in(const char *folder, int64_t bytes)
{
    blocks *b = NULL;
    stores_assert_ok(blocks_open(&b, &(blocks_settings){.folder = folder,
                                                        .bytes = bytes,
                                                        .sharers = 1,
                                                        .wait = other_wait,
                                                        .limits = {.patience = 20, .first_pause = 0.001}}));
    return b;
}

static blocks_object *find(blocks *b, const char *key)
{
    blocks_object *o = NULL;
    AUTO_FREE char *url = url_of(key);
    stores_assert_ok(blocks_find(&o, b, url, BLOCK));
    return o;
}

/* All bytes in pieces of an odd length, backward, so that each chunk is looked for anew. */
static bool reads_all(blocks_object *o)
{
    enum { PIECE = 50021 };
    static char got[PIECE];
    int64_t bytes = blocks_bytes(o);
    for (int64_t at = (bytes - 1) / PIECE * PIECE; at >= 0; at -= PIECE) {
        int64_t now = bytes - at < PIECE ? bytes - at : PIECE;
        if (blocks_read(o, got, at, now) != STATUS_OK || memcmp(got, data + at, (size_t)now) != 0)
            return false;
    }
    return true;
}

/* Bytes of the files in a folder, and how many; `unfinished`: those whose names end in .tmp. */
static int64_t folder_bytes(int *files, int *unfinished, const char *folder)
{
    reading_names names;
    int64_t sum = 0;
    *files = *unfinished = 0;
    assert_int_equal(reading_folder(&names, folder), STATUS_OK);
    for (int i = 0; i < names.count; i++) {
        struct stat facts;
        AUTO_FREE char *path = workfolder_path(folder, names.name[i]);
        if (strcmp(names.name[i], "lock") != 0 && stat(path, &facts) == 0) {
            size_t length = strlen(names.name[i]);
            sum += facts.st_size;
            ++*files;
            *unfinished += length > 4 && !strcmp(names.name[i] + length - 4, ".tmp");
        }
    }
    reading_names_free(&names);
    return sum;
}

/* What it says on standard error while `run` runs. */
static char *said_by(void (*run)(void *context), void *context)
{
    char path[] = "/tmp/blocks-said-XXXXXX";
    int file = mkstemp(path), kept = dup(STDERR_FILENO);
    int64_t bytes;
    fflush(stderr);
    dup2(file, STDERR_FILENO);
    run(context);
    fflush(stderr);
    dup2(kept, STDERR_FILENO);
    close(kept);
    close(file);
    char *text = (char *)workfolder_read(path, &bytes);
    unlink(path);
    return text;
}

static int count_of(const char *text, const char *part)
{
    int n = 0;
    for (const char *at = text; (at = strstr(at, part)); at++)
        n++;
    return n;
}

static void needs_the_standin(void)
{
    if (!server)
        skip_because("only the stand-in does this");
}

/* ---- what every store does --------------------------------------------------------------------------------------- */

TEST_WITH(what_is_read_is_what_the_store_has_and_is_fetched_once, workfolder_setup, workfolder_teardown)
{
    const char *folder = *state;
    int files, unfinished;
    blocks *b = open_in(folder, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    assert_int_equal(blocks_counted(b).fetched, BYTES);
    assert_int_equal(blocks_counted(b).misses, BLOCKS);
    assert_true(blocks_counted(b).stall > 0);
    blocks_close(b);
    folder_bytes(&files, &unfinished, folder);
    assert_int_equal(files, BLOCKS);
    assert_int_equal(unfinished, 0);

    b = open_in(folder, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    assert_int_equal(blocks_counted(b).fetched, 0);
    assert_int_equal(blocks_counted(b).misses, 0);
    blocks_close(b);
}

TEST_WITH(what_is_expected_is_there_when_it_is_read, workfolder_setup, workfolder_teardown)
{
    blocks *b = open_in(*state, 1 << 30);
    blocks_object *o = find(b, "data");
    assert_true(blocks_expect(o, 0, BYTES));
    for (double until = clock_seconds() + 20; blocks_counted(b).fetched < BYTES && clock_seconds() < until;)
        clock_nap(0.005);
    assert_int_equal(blocks_counted(b).fetched, BYTES);
    clock_nap(0.05); /* the last file takes its name */
    assert_true(reads_all(o));
    assert_int_equal(blocks_counted(b).misses, 0);
    assert_true(blocks_counted(b).stall == 0);
    blocks_close(b);
}

TEST_WITH(a_folder_stays_within_its_size, workfolder_setup, workfolder_teardown)
{
    enum { MOST = 6 * BLOCK };
    const char *folder = *state;
    int files, unfinished;
    blocks *b = open_in(folder, MOST);
    blocks_object *o = find(b, "data");
    static char got[BLOCK];
    for (int i = 0; i < 3 * BLOCKS; i++) {
        int64_t at = (int64_t)(i * 8 % BLOCKS) * BLOCK, now = BYTES - at < BLOCK ? BYTES - at : BLOCK;
        blocks_expect(o, (at + BLOCK) % BYTES, 1); /* beside */
        stores_assert_ok(blocks_read(o, got, at, now));
        assert_memory_equal(got, data + at, now);
        assert_true(folder_bytes(&files, &unfinished, folder) <= MOST);
    }
    assert_true(files >= 3);
    blocks_close(b);
    b = open_in(folder, 2 * BLOCK + 1000); /* less than is there */
    assert_true(folder_bytes(&files, &unfinished, folder) <= 2 * BLOCK + 1000);
    assert_true(reads_all(find(b, "data")));
    assert_true(folder_bytes(&files, &unfinished, folder) <= 2 * BLOCK + 1000);
    blocks_close(b);
}

TEST_WITH(a_changed_object_is_not_mixed_with_the_old_one, workfolder_setup, workfolder_teardown)
{
    char *other = stores_bytes(BYTES, 77), byte;
    put("changing", data, BYTES);
    blocks *b = open_in(*state, 1 << 30);
    blocks_object *old = find(b, "changing");
    stores_assert_ok(blocks_read(old, &byte, 5, 1));
    uint32_t version = blocks_version(old);
    put("changing", other, BYTES);
    stores_assert_ok(blocks_read(old, &byte, 70000, 1)); /* what was fetched is of the old one */
    assert_int_equal(byte, data[70000]);
    stores_assert_failed(blocks_read(old, &byte, 3 * BLOCK, 1), "changing|replaced");
    blocks_object *now = find(b, "changing");
    assert_true(blocks_version(now) != version);
    stores_assert_ok(blocks_read(now, &byte, 5, 1));
    assert_int_equal(byte, other[5]);
    blocks_close(b);
    free(other);
}

TEST_WITH(whole_objects_are_files_that_are_mapped, workfolder_setup, workfolder_teardown)
{
    blocks_file f = {0};
    AUTO_FREE char *url = url_of("data"), *missing = url_of("none");
    for (int again = 0; again < 2; again++) {
        blocks *b = open_in(*state, 1 << 30);
        stores_assert_ok(blocks_whole(&f, b, url));
        assert_int_equal(f.bytes, BYTES);
        assert_memory_equal(f.data, data, BYTES);
        assert_true(f.map.data && !f.memory);
        assert_int_equal(blocks_counted(b).fetched, again ? 0 : BYTES);
        stores_assert_failed(blocks_whole(&(blocks_file){0}, b, missing), "there is no object|none");
        blocks_file_close(&f);
        blocks_close(b);
    }
    blocks *b = open_in(NULL, 1);
    stores_assert_ok(blocks_whole(&f, b, url));
    assert_true(f.memory && memcmp(f.data, data, BYTES) == 0);
    blocks_file_close(&f);
    blocks_close(b);
}

/* ---- several processes ------------------------------------------------------------------------------------------- */

static pid_t start_reader(const char *folder, int64_t bytes, bool ahead)
{
    pid_t child = fork();
    if (child != 0)
        return child;
    alarm(100);
    blocks *b = open_in(folder, bytes);
    blocks_object *o = find(b, "data");
    if (ahead)
        blocks_expect(o, 0, BYTES);
    bool good = reads_all(o);
    int64_t fetched = blocks_counted(b).fetched;
    blocks_close(b);
    _exit(!good ? 255 : (int)(fetched / BLOCK)); /* whole blocks; one process fetches the last one, which is shorter */
}

TEST_WITH(processes_share_a_folder_and_fetch_no_block_twice, workfolder_setup, workfolder_teardown)
{
    enum { PROCESSES = 4 };
    pid_t child[PROCESSES];
    int sum = 0;
    for (int i = 0; i < PROCESSES; i++)
        child[i] = start_reader(*state, 1 << 30, i % 2);
    for (int i = 0; i < PROCESSES; i++) {
        int ended;
        assert_int_equal(waitpid(child[i], &ended, 0), child[i]);
        assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) < 255);
        sum += WEXITSTATUS(ended);
    }
    assert_int_equal(sum, BLOCKS - 1);
}

/* A stopped process holds the locks of all blocks that are not there yet. */
TEST_WITH(a_frozen_process_costs_one_wait_and_not_one_a_block, workfolder_setup, workfolder_teardown)
{
    other_wait = 0.3;
    blocks *b = open_in(*state, 1 << 30);
    other_wait = 0;
    blocks_object *o = find(b, "data");
    char byte;
    stores_assert_ok(blocks_read(o, &byte, 0, 1));
    AUTO_FREE char *path = workfolder_path(*state, "lock");
    AUTO_CLOSE frozen = open(path, O_RDWR | O_CLOEXEC);
    assert_int_equal(fcntl(frozen, F_OFD_SETLK, &(struct flock){.l_type = F_WRLCK, .l_start = 1}), 0);
    assert_true(blocks_expect(o, 5 * BLOCK, 8 * BLOCK)); /* four threads wait, too, and meanwhile */
    assert_true(reads_all(o));
    assert_true(blocks_counted(b).stall < 2); /* a wait for each block would be six seconds */
    blocks_close(b);
}

TEST_WITH(processes_that_have_little_room_read_the_truth_too, workfolder_setup, workfolder_teardown)
{
    enum { PROCESSES = 3, MOST = 4 * BLOCK };
    pid_t child[PROCESSES];
    int files, unfinished, ended, left = PROCESSES;
    for (int i = 0; i < PROCESSES; i++)
        child[i] = start_reader(*state, MOST, true);
    while (left > 0) {
        pid_t who = waitpid(-1, &ended, WNOHANG);
        if (who > 0) {
            left--;
            assert_true(WIFEXITED(ended) && WEXITSTATUS(ended) < 255);
        }
        assert_true(folder_bytes(&files, &unfinished, *state) <= MOST);
        clock_nap(0.002);
    }
    (void)child;
}

TEST_WITH(a_process_that_is_killed_leaves_nothing_that_is_believed, workfolder_setup, workfolder_teardown)
{
    int files, unfinished, ended;
    if (server)
        s3_server_be(server, (s3_server_traits){.rate = 3e6});
    for (int i = 0; i < 6; i++) {
        pid_t child = start_reader(*state, 1 << 30, true);
        clock_nap(0.05 + 0.04 * i);
        kill(child, SIGKILL);
        assert_int_equal(waitpid(child, &ended, 0), child);
    }
    if (server)
        s3_server_be(server, (s3_server_traits){0});
    char *left = must_format("%s/%032d-3.tmp", (char *)*state, 7); /* as one in the middle of a block leaves it */
    workfolder_write(left, data, 1000);
    blocks *b = open_in(*state, 1 << 30);
    folder_bytes(&files, &unfinished, *state);
    assert_int_equal(unfinished, 0);
    assert_true(reads_all(find(b, "data")));
    blocks_close(b);
    free(left);
}

/* ---- faults ------------------------------------------------------------------------------------------------------ */

TEST_WITH(faults_of_the_network_change_nothing_that_is_read, workfolder_setup, workfolder_teardown)
{
    needs_the_standin();
    s3_server_faults(server, "GET:503 GET:cut=1000 GET:reset GET:slow=200000 GET:503/1 GET:garbage GET:cut=0 GET:500 "
                             "GET:429 GET:cut=99999 GET:hang");
    blocks *b = open_in(*state, 1 << 30);
    blocks_object *o = find(b, "data");
    blocks_expect(o, 0, BYTES);
    assert_true(reads_all(o));
    blocks_close(b);
    assert_true(s3_server_faults_done(server));
    b = open_in(*state, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    assert_int_equal(blocks_counted(b).fetched, 0);
    blocks_close(b);
}

TEST_WITH(a_store_that_says_no_fails_with_its_words, workfolder_setup, workfolder_teardown)
{
    needs_the_standin();
    char byte;
    blocks *b = open_in(*state, 1 << 30);
    blocks_object *o = find(b, "data");
    s3_server_faults(server, "GET:403");
    stores_assert_failed(blocks_read(o, &byte, 0, 1), "data|AccessDenied");
    stores_assert_ok(blocks_read(o, &byte, 0, 1));
    assert_int_equal(byte, data[0]);
    blocks_close(b);
}

TEST_WITH(whole_objects_that_come_damaged_are_fetched_again, workfolder_setup, workfolder_teardown)
{
    needs_the_standin();
    blocks_file f = {0};
    AUTO_FREE char *url = url_of("data");
    s3_server_faults(server, "GET:damage GET:damage");
    blocks *b = open_in(*state, 1 << 30);
    stores_assert_ok(blocks_whole(&f, b, url));
    assert_memory_equal(f.data, data, BYTES);
    assert_true(s3_server_faults_done(server));
    blocks_file_close(&f);
    blocks_close(b);
}

/* A byte of each file is another one; or there is a pipe in its place, which nobody writes to. */
static void damage_files(const char *folder)
{
    reading_names names;
    assert_int_equal(reading_folder(&names, folder), STATUS_OK);
    for (int i = 0; i < names.count; i++) {
        int64_t bytes;
        AUTO_FREE char *path = workfolder_path(folder, names.name[i]);
        if (strcmp(names.name[i], "lock") != 0) {
            AUTO_FREE uint8_t *text = workfolder_read(path, &bytes);
            text[(unsigned)i * 7919 % bytes] ^= 0x10;
            workfolder_write(path, text, i % 5 == 4 ? bytes / 2 : bytes);
            assert_true(i % 5 != 3 || (unlink(path) == 0 && mkfifo(path, 0600) == 0));
        }
    }
    reading_names_free(&names);
}

static void read_all(void *context)
{
    blocks *b = open_in(context, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    assert_true(blocks_counted(b).damaged > 0);
    assert_true(blocks_counted(b).fetched > 0);
    blocks_close(b);
}

TEST_WITH(damaged_files_are_fetched_again_and_said, workfolder_setup, workfolder_teardown)
{
    blocks *b = open_in(*state, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    blocks_close(b);
    damage_files(*state);
    AUTO_FREE char *said = said_by(read_all, *state);
    assert_int_equal(count_of(said, "is damaged: the block is fetched again"), 1);
    b = open_in(*state, 1 << 30);
    assert_true(reads_all(find(b, "data")));
    blocks_close(b);
}

TEST_WITH(damaged_whole_files_are_fetched_again, workfolder_setup, workfolder_teardown)
{
    blocks_file f = {0};
    AUTO_FREE char *url = url_of("data");
    for (int i = 0; i < 2; i++) {
        blocks *b = open_in(*state, 1 << 30);
        stores_assert_ok(blocks_whole(&f, b, url));
        assert_memory_equal(f.data, data, BYTES);
        assert_int_equal(blocks_counted(b).fetched, BYTES);
        blocks_file_close(&f);
        blocks_close(b);
        damage_files(*state);
    }
}

static void read_without_a_folder(void *context)
{
    blocks *b = open_in(context, 1 << 30);
    blocks_object *o = find(b, "data");
    blocks_expect(o, 0, BYTES);
    assert_true(reads_all(o));
    assert_true(reads_all(o));
    blocks_close(b);
}

TEST_WITH(without_a_folder_blocks_are_read_into_memory_and_one_line_says_so, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *file = workfolder_path(*state, "file"), *below = must_format("%s/below", file);
    workfolder_write(file, "x", 1);
    char *const folders[] = {NULL, below, file};
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *said = said_by(read_without_a_folder, folders[i]);
        assert_int_equal(count_of(said, "\n"), 1);
        assert_int_equal(count_of(said, "blocks are read from the store into memory"), 1);
    }
}

/* The folder goes while it is used. */
static void read_and_lose_the_folder(void *context)
{
    char byte;
    blocks *b = open_in(context, 1 << 30);
    blocks_object *o = find(b, "data");
    stores_assert_ok(blocks_read(o, &byte, 0, 1));
    assert_int_equal(atomic_remove(context), STATUS_OK);
    assert_true(reads_all(o));
    assert_true(reads_all(o));
    blocks_close(b);
}

TEST_WITH(a_folder_that_fails_meanwhile_is_done_without, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *folder = workfolder_path(*state, "going");
    AUTO_FREE char *said = said_by(read_and_lose_the_folder, folder);
    assert_int_equal(count_of(said, "\n"), 1);
    assert_int_equal(count_of(said, "cannot be written to"), 1);
}

TEST_WITH(other_files_of_a_folder_are_left_alone, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *path = workfolder_path(*state, "0123456789abcdef0123456789abcdef-x"),
                   *other = workfolder_path(*state, "mine");
    workfolder_write(path, data, 4 * BLOCK);
    workfolder_write(other, data, 4 * BLOCK);
    blocks *b = open_in(*state, 3 * BLOCK);
    assert_true(reads_all(find(b, "data")));
    blocks_close(b);
    assert_true(atomic_exists(path) && atomic_exists(other));
}

static int begin_all(void **state)
{
    (void)state;
    if (getenv("PHALANX_S3_REAL"))
        bucket = getenv("PHALANX_S3_REAL");
    else
        server = s3_server_start();
    data = stores_bytes(BYTES, 3);
    put("data", data, BYTES);
    return 0;
}

static int end_all(void **state)
{
    (void)state;
    if (server)
        s3_server_stop(server);
    free(data);
    return 0;
}

TEST_MAIN(begin_all, end_all)
