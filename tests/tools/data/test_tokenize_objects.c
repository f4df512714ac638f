/* phalanx tokenize, split, merge and detokenize of objects of a store: byte for byte what they make of the same files,
 * whatever the network does. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/store/s3_server.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { LINES = 300000 }; /* of 60 bytes or so: more than one block that is fetched */

static s3_server *server;

/* In a file and as an object of the same name. */
static void put_both(const char *folder, const char *name, const char *text, int64_t bytes)
{
    AUTO_FREE char *path = workfolder_path(folder, name), *key = must_format("data/%s", name);
    workfolder_write(path, text, bytes);
    s3_server_put(server, key, text, bytes);
}

static char *make_lines(int64_t *bytes, int lines, unsigned seed)
{
    char *text = must_alloc((unsigned long)lines * 80 + 1), *at = text;
    for (int i = 0; i < lines; i++)
        at += sprintf(at, "{\"id\": %d, \"text\": \"line %u of a text, and its number is %d\"}\n", i, seed,
                      i % 1000 * 7919 % 100003);
    *bytes = at - text;
    return text;
}

static launch_result tokenize(const char *folder, const char *output, const char *words)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r =
        launch_run(120, "cd %s && %s tokenize --tokenizer bytes --output %s %s", folder, program, output, words);
    return r;
}

static void make(const char *folder, const char *output, const char *words)
{
    launch_result r = tokenize(folder, output, words);
    if (r.status != 0)
        fail_msg("%s: %s", words, r.err);
    if (strstr(r.err, S3_SERVER_SECRET) || strstr(r.out, S3_SERVER_SECRET))
        fail_msg("a secret: %s%s", r.out, r.err);
    launch_free(&r);
}

static void assert_same(const char *folder, const char *a, const char *b)
{
    launch_result r = launch_run(20, "cd %s && cmp %s.bin %s.bin && cmp %s.idx %s.idx", folder, a, b, a, b);
    if (r.status != 0)
        fail_msg("%s is not %s: %s", b, a, r.out);
    launch_free(&r);
}

TEST(objects_give_the_same_data_set_as_files)
{
    const char *w = *state;
    int64_t bytes;
    char *text = make_lines(&bytes, LINES, 1);
    put_both(w, "large.jsonl", text, bytes);
    put_both(w, "small.txt", "one text\n", 9);
    put_both(w, "empty.txt", "", 0);
    free(text);
    launch_result r = launch_run(60, "cd %s && gzip -k large.jsonl", w);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    char *path = workfolder_path(w, "large.jsonl.gz");
    uint8_t *packed = workfolder_read(path, &bytes);
    s3_server_put(server, "data/large.jsonl.gz", packed, bytes);
    free(packed);
    free(path);
    make(w, "files", "large.jsonl large.jsonl.gz small.txt empty.txt");
    make(w, "objects",
         "s3://bucket/data/large.jsonl s3://bucket/data/large.jsonl.gz s3://bucket/data/small.txt "
         "s3://bucket/data/empty.txt");
    assert_same(w, "files", "objects");
    s3_server_faults(server, "HEAD:503 HEAD:reset GET:cut=1000000 GET:503 GET:reset GET:cut=17 GET:500 GET:cut=3000000 "
                             "GET:lost GET:html");
    make(w, "troubled",
         "s3://bucket/data/large.jsonl large.jsonl.gz s3://bucket/data/small.txt "
         "s3://bucket/data/empty.txt");
    assert_same(w, "files", "troubled");
    assert_true(s3_server_faults_done(server));
    s3_server_faults(server, "GET:damage"); /* of a block, of which a store says no checksum */
    r = tokenize(w, "damaged", "--format text s3://bucket/data/large.jsonl");
    assert_int_not_equal(r.status, 0);
    assert_non_null(strstr(r.err, "do not have the checksum"));
    launch_free(&r);
}

/* As objects below a prefix; hidden ones, those of other kinds and markers of folders are left out. */
TEST(a_prefix_stands_for_its_objects)
{
    const char *w = *state;
    int64_t bytes;
    static const char *const names[] = {"b.jsonl", "a.jsonl", "c/d.jsonl"};
    launch_result r = launch_run(20, "mkdir -p %s/tree/c", w);
    launch_free(&r);
    for (unsigned i = 0; i < 3; i++) {
        AUTO_FREE char *text = make_lines(&bytes, 2000, i), *path = must_format("%s/tree/%s", w, names[i]);
        AUTO_FREE char *key = must_format("tree/%s", names[i]);
        workfolder_write(path, text, bytes);
        s3_server_put(server, key, text, bytes);
    }
    static const char *const others[] = {"tree/",      "tree/c/",    "tree/_SUCCESS", "tree/c/.hidden.txt",
                                         "tree/x.png", "treetop.txt"};
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        s3_server_put(server, others[i], "x", strchr(others[i], '.') ? 1 : 0);
    s3_server_be(server, (s3_server_traits){.page = 2});
    make(w, "tree-files", "tree");
    r = tokenize(w, "tree-objects", "s3://bucket/tree/");
    assert_int_equal(r.status, 0);
    assert_non_null(
        strstr(r.out, "s3://bucket/tree/: 3 files; 1 of other kinds are left out, such as s3://bucket/tree/x.png"));
    launch_free(&r);
    assert_same(w, "tree-files", "tree-objects");
    make(w, "part-1", "--part 1/3 s3://bucket/tree/");
    make(w, "part-2", "--part 2/3 s3://bucket/tree/");
    make(w, "part-3", "--part 3/3 s3://bucket/tree/");
    AUTO_FREE char *program = launch_beside("../phalanx");
    r = launch_run(60, "cd %s && %s merge --output merged part-1 part-2 part-3", w, program);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    assert_same(w, "tree-files", "merged");
    s3_server_be(server, (s3_server_traits){0});
}

/* Parquet is read from both ends. */
TEST(parquet_objects_are_read_in_ranges)
{
    const char *w = *state;
    static const char *const names[] = {"pyarrow-snappy.parquet", "pyarrow-file.arrow"};
    char *reader = launch_beside("../libphalanx_parquet.so");
    bool there = atomic_exists(reader);
    free(reader);
    if (!there)
        skip_because("no libphalanx_parquet.so: pip install pyarrow, then make PYTHON=... or ARROW=its folder");
    for (int i = 0; i < 2; i++) {
        AUTO_FREE char *path = workfolder_path("tests/golden/parquet", names[i]),
                       *objects = must_format("s3://bucket/data/%s", names[i]);
        int64_t bytes;
        AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
        put_both(w, names[i], (const char *)data, bytes);
        make(w, "rows-files", names[i]);
        s3_server_faults(server, "GET:cut=100 GET:503");
        launch_result r = tokenize(w, "rows-objects", objects);
        assert_int_equal(r.status, 0);
        launch_free(&r);
        assert_same(w, "rows-files", "rows-objects");
        r = launch_run(10, "cd %s && rm rows-*", w);
        launch_free(&r);
    }
}

static void assert_refused(const char *w, const char *words, const char *said)
{
    launch_result r = tokenize(w, "refused", words);
    if (r.status == 0 || !strstr(r.err, said) || strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("%s: exit status %d, %s", words, r.status, r.err);
    if (strstr(r.err, S3_SERVER_SECRET) || strstr(r.err, S3_SERVER_ID))
        fail_msg("a secret: %s", r.err);
    launch_free(&r);
}

TEST(what_cannot_be_read_is_said_in_a_line)
{
    const char *w = *state;
    s3_server_put(server, "data/cut.gz", "\x1F\x8B\x08\0\0\0\0\0\0\3abc", 13);
    assert_refused(w, "s3://bucket/data/none.txt", "s3://bucket/data/none.txt: there is no such object");
    assert_refused(w, "s3://bucket/data", "as a folder, ends in /");
    assert_refused(w, "s3://bucket/nothing/", "s3://bucket/nothing/: there is no object below it");
    assert_refused(w, "s3://elsewhere/x.txt", "NoSuchBucket");
    assert_refused(w, "s3://", "s3://BUCKET/KEY");
    assert_refused(w, "s3://bucket/data/cut.gz", "s3://bucket/data/cut.gz");
    s3_server_set_secret(server, "another", false);
    assert_refused(w, "s3://bucket/data/small.txt", "secret key of AWS_ACCESS_KEY_ID");
    s3_server_set_secret(server, S3_SERVER_SECRET, false);
    setenv("AWS_ACCESS_KEY_ID", "", 1);
    setenv("AWS_SECRET_ACCESS_KEY", "", 1);
    assert_refused(w, "s3://bucket/data/small.txt", "no credentials for s3://");
    setenv("AWS_ACCESS_KEY_ID", S3_SERVER_ID, 1);
    setenv("AWS_SECRET_ACCESS_KEY", S3_SERVER_SECRET, 1);
}

/* ---- data sets and tokenizers ---- */

static launch_result command(const char *folder, const char *words)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(120, "cd %s && %s %s", folder, program, words);
    if (strstr(r.err, S3_SERVER_SECRET) || strstr(r.out, S3_SERVER_SECRET))
        fail_msg("a secret: %s%s", r.out, r.err);
    return r;
}

static char *do_well(const char *folder, const char *words)
{
    launch_result r = command(folder, words);
    if (r.status != 0)
        fail_msg("%s: %s", words, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

static void put_file(const char *folder, const char *name, const char *key)
{
    int64_t bytes;
    AUTO_FREE char *path = workfolder_path(folder, name);
    AUTO_FREE uint8_t *data = workfolder_read(path, &bytes);
    s3_server_put(server, key, data, bytes);
}

/* A data set of some blocks, and the tokenizer beside it. */
static void put_set(const char *w)
{
    static const char *const suffixes[] = {"bin", "idx", "tokenizer.bytes"};
    int64_t bytes;
    AUTO_FREE char *text = make_lines(&bytes, 60000, 5), *path = workfolder_path(w, "set.jsonl");
    workfolder_write(path, text, bytes);
    make(w, "set", "set.jsonl");
    for (size_t i = 0; i < sizeof suffixes / sizeof *suffixes; i++) {
        AUTO_FREE char *name = must_format("set.%s", suffixes[i]), *key = must_format("sets/%s", name);
        put_file(w, name, key);
    }
}

TEST(data_sets_are_read_where_they_are)
{
    const char *w = *state;
    put_set(w);
    free(do_well(w, "split --validation 0.1 --output here set"));
    s3_server_faults(server, "HEAD:503 GET:reset GET:503 GET:cut=100000 GET:lost");
    free(do_well(w, "split --validation 0.1 --output there s3://bucket/sets/set"));
    assert_true(s3_server_faults_done(server));
    assert_same(w, "here-train", "there-train");
    assert_same(w, "here-validation", "there-validation");
    free(do_well(w, "merge --output twice set set"));
    free(do_well(w, "merge --output twice-there s3://bucket/sets/set set"));
    assert_same(w, "twice", "twice-there");
    free(do_well(w, "detokenize --data set >set.text && ls twice-there.tokenizer.bytes"));
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "cd %s && %s detokenize --data s3://bucket/sets/set | cmp - set.text", w, program);
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
}

/* A tokenizer of a few merges, as an object and in a folder; a vocabulary is trained here. */
TEST(tokenizers_are_read_where_they_are)
{
    const char *w = *state;
    int64_t bytes;
    uint8_t *text = workfolder_read("README.md", &bytes);
    put_both(w, "few.txt", (const char *)text, bytes);
    free(text);
    AUTO_FREE char *program = launch_beside("../phalanx");
    free(do_well(w, "tokenize --tokenizer vocabulary.model --train-vocab 600 --output own few.txt"));
    put_file(w, "vocabulary.model", "models/vocabulary.model");
    put_file(w, "vocabulary.model", "models/words/tokenizer.model");
    free(do_well(w, "tokenize --tokenizer s3://bucket/models/vocabulary.model --output object few.txt"));
    free(do_well(w, "tokenize --tokenizer s3://bucket/models/words/ --output folder few.txt"));
    assert_same(w, "own", "object");
    assert_same(w, "own", "folder");
    launch_result r = launch_run(60,
                                 "cd %s && %s detokenize --tokenizer s3://bucket/models/words/ --data own >a && %s "
                                 "detokenize --data own >b && cmp a b",
                                 w, program, program);
    if (r.status != 0)
        fail_msg("%s%s", r.out, r.err);
    launch_free(&r);
}

/* All objects of a set are the files of another, and nothing is left below $TMPDIR. */
static void assert_stored(const char *folder, const char *local, const char *key)
{
    static const char *const suffixes[] = {"bin", "idx", "tokenizer.json"};
    for (int i = 0; i < 3; i++) {
        int64_t bytes, stored;
        AUTO_FREE char *name = must_format("%s.%s", local, suffixes[i]), *path = workfolder_path(folder, name),
                       *there = must_format("%s.%s", key, suffixes[i]), *got = s3_server_get(server, there, &stored);
        AUTO_FREE uint8_t *file = i == 2 && !atomic_exists(path) ? NULL : workfolder_read(path, &bytes);
        if (!file != !got || (file && (bytes != stored || memcmp(file, got, (size_t)bytes) != 0)))
            fail_msg("%s is not %s", there, path);
    }
    launch_result r = launch_run(10, "ls %s/temporary", folder);
    assert_string_equal(r.out, "");
    launch_free(&r);
}

static launch_result write_stored(const char *folder, const char *words)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    return launch_run(60, "cd %s && TMPDIR=%s/temporary %s %s", folder, folder, program, words);
}

static void write_well(const char *folder, const char *words)
{
    launch_result r = write_stored(folder, words);
    if (r.status != 0 || strstr(r.err, S3_SERVER_SECRET) || strstr(r.out, S3_SERVER_SECRET))
        fail_msg("%s: status %d: %s%s", words, r.status, r.out, r.err);
    launch_free(&r);
}

/* The index comes last and goes first, so that a set is there whole or not at all; its parts are removed. */
TEST(data_sets_are_written_to_a_store)
{
    const char *w = *state;
    int64_t bytes;
    AUTO_FREE char *text = make_lines(&bytes, 150000, 5), *temporary = workfolder_path(w, "temporary");
    put_both(w, "written.jsonl", text, bytes);
    assert_int_equal(atomic_make_folders(temporary), STATUS_OK);
    make(w, "local", "written.jsonl");
    s3_server_faults(server, "PUT:503 PUT:lost PUT:reset POST:503");
    write_well(w, "tokenize --tokenizer bytes --output s3://bucket/out/set written.jsonl");
    assert_stored(w, "local", "out/set");
    write_well(w, "merge --output s3://bucket/out/two s3://bucket/out/set local");
    write_well(w, "merge --output two local local");
    assert_stored(w, "two", "out/two");
    write_well(w, "split --validation 0.1 s3://bucket/out/set");
    write_well(w, "split --validation 0.1 local");
    assert_stored(w, "local-train", "out/set-train");
    assert_stored(w, "local-validation", "out/set-validation");
    launch_result r = write_stored(w, "tokenize --tokenizer bytes --output s3://bucket/out/set written.jsonl");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "s3://bucket/out/set.idx is there already"));
    launch_free(&r);
    s3_server_faults(server, "PUT:403"); /* the first part: an older set goes, too */
    r = write_stored(w, "tokenize --force --tokenizer bytes --output s3://bucket/out/set written.jsonl");
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "AccessDenied"));
    launch_free(&r);
    AUTO_FREE char *index = s3_server_get(server, "out/set.idx", &bytes);
    assert_null(index);
    assert_int_equal(s3_server_open_uploads(server), 0);
    write_well(w, "tokenize --force --tokenizer bytes --output s3://bucket/out/set written.jsonl");
    assert_stored(w, "local", "out/set");
}

/* The next command removes the parts of one that was killed. */
TEST(parts_of_a_killed_upload_are_removed)
{
    const char *w = *state;
    AUTO_FREE char *program = launch_beside("../phalanx");
    s3_server_faults(server, "PUT:hang PUT:hang PUT:hang PUT:hang PUT:hang PUT:hang PUT:hang PUT:hang");
    launch *l = launch_start(60,
                             "cd %s && TMPDIR=%s/temporary exec %s tokenize --tokenizer bytes --output "
                             "s3://bucket/killed/set written.jsonl",
                             w, w, program);
    while (s3_server_open_uploads(server) == 0 && !launch_ended(l))
        clock_nap(0.01);
    kill(launch_pid(l), SIGKILL);
    launch_result r = launch_finish(l);
    launch_free(&r);
    r = launch_run(10, "rm -rf %s/temporary/*", w);
    launch_free(&r);
    s3_server_faults(server, "");
    assert_int_equal(s3_server_open_uploads(server), 1);
    write_well(w, "tokenize --tokenizer bytes --output s3://bucket/killed/set written.jsonl");
    assert_int_equal(s3_server_open_uploads(server), 0);
    assert_stored(w, "local", "killed/set");
}

TEST(commands_refuse_in_a_line)
{
    static const struct {
        const char *words, *said;
        int status;
    } cases[] = {
        {"tokenize --tokenizer bytes --output s3://bucket few.txt", "--output s3://bucket names a bucket: add", 2},
        {"tokenize --tokenizer bytes --output s3://bucket/x/ few.txt", "--output s3://bucket/x/ names a folder", 2},
        {"tokenize --tokenizer s3://bucket/v.model --train-vocab 300 --output x few.txt", "is written to this machine",
         2},
        {"tokenize --tokenizer bytes --skip-bad s3://bucket/bad --output x few.txt", "--skip-bad s3://bucket/bad", 2},
        {"tokenize --tokenizer s3://bucket/none --output x few.txt", "there is no object s3://bucket/none (a folder",
         1},
        {"tokenize --tokenizer s3://bucket/none/ --output x few.txt", "there is no object s3://bucket/none/tok", 1},
        {"merge --output s3://bucket/sets/set set", "s3://bucket/sets/set.idx is there already: name another", 1},
        {"merge --output x s3://bucket/none", "s3://bucket/none.idx", 1},
        {"split --validation 0.1 --output s3://none/x set", "NoSuchBucket", 1},
        {"split --validation 0.1 --output x s3://bucket/none", "s3://bucket/none.idx", 1},
        {"detokenize --data s3://bucket/none --tokenizer bytes", "s3://bucket/none.idx", 1},
        {"detokenize --data s3://bucket/none", "s3://bucket/none.tokenizer.json", 1},
    };
    const char *w = *state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        launch_result r = command(w, cases[i].words);
        if (r.status != cases[i].status || !strstr(r.err, cases[i].said) ||
            strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
            fail_msg("%s: exit status %d, %s", cases[i].words, r.status, r.err);
        launch_free(&r);
    }
    AUTO_FREE char *made = workfolder_path(w, "s3:");
    assert_false(atomic_exists(made));
}

static int begin_all(void **state)
{
    server = s3_server_start();
    return workfolder_setup(state);
}

static int end_all(void **state)
{
    s3_server_stop(server);
    return workfolder_teardown(state);
}

TEST_MAIN(begin_all, end_all)
