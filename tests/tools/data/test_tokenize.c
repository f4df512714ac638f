/* phalanx tokenize, split, merge and convert as commands: what they make, what they refuse in one line, and that
 * nothing half-written is left when they fail or a signal stops them. And what training makes of a data set's
 * tokenizer. */
#include <dirent.h>
#include <fcntl.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "engine/data/tokenizer_files.h"
#include "engine/text/buffer.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/names.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

#define MODEL "tests/golden/text/unigram.model"

/* Run `phalanx ARGUMENTS` in a shell and look at its exit status and at what it says on standard error, one line. */
static void expect(int status_code, const char *said, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void expect(int status_code, const char *said, const char *format, ...)
{
    char arguments[2000], *program = launch_beside("../phalanx");
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    launch_result r = launch_run(60, "%s %s", program, arguments);
    if (r.status != status_code)
        fail_msg("%s: exit status %d: %s%s", arguments, r.status, r.out, r.err);
    if (said && !strstr(r.err, said))
        fail_msg("%s: does not say \"%s\": %s", arguments, said, r.err);
    if (status_code && strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("%s: not one line: %s", arguments, r.err);
    launch_free(&r);
    free(program);
}

static int64_t documents_of(const char *folder, const char *name)
{
    AUTO_FREE char *prefix = workfolder_path(folder, name);
    indexed *x;
    if (indexed_open(&x, prefix) != STATUS_OK)
        fail_msg("%s", status_message());
    int64_t count = indexed_documents(x);
    indexed_close(x);
    return count;
}

/* How many files and folders are in the folder. */
static int entries(const char *folder)
{
    int count = 0;
    DIR *list = opendir(folder);
    assert_non_null(list);
    for (struct dirent *entry; (entry = readdir(list));)
        count += entry->d_name[0] != '.';
    closedir(list);
    return count;
}

static void put(const char *folder, const char *name, const char *text, int64_t bytes)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    workfolder_write(path, text, bytes < 0 ? (int64_t)strlen(text) : bytes);
}

/* ---- inputs and outputs ---- */

TEST(what_is_no_text_is_refused_and_leaves_nothing)
{
    const char *w = *state;
    put(w, "x.zip", "PK\3\4\x15\x04\x15", -1);
    put(w, "x.bin", "a\0b", 3);
    expect(1, "this is a zip archive", "tokenize --output %s/corpus/a --tokenizer bytes %s/x.zip", w, w);
    expect(1, "this is a binary file", "tokenize --output %s/corpus/a --tokenizer bytes - < %s/x.bin", w, w);
    AUTO_FREE char *corpus = workfolder_path(w, "corpus");
    assert_int_equal(entries(corpus), 0);
}

/* A file's name that clears a terminal's screen, and that begins a line of its own. */
TEST(names_of_files_do_not_reach_the_terminal_as_they_are)
{
    const char *w = *state;
    put(w, "x\033[2J\nphalanx: done.bin", "a\0b", 3);
    expect(1, "/x?[2J?phalanx: done.bin", "tokenize --output %s/corpus/a --tokenizer bytes %s/x*done.bin", w, w);
}

TEST(json_lines_come_by_standard_input_too)
{
    const char *w = *state;
    put(w, "lines", "{\"text\": \"one\"}\n{\"text\": \"two\"}\n", -1);
    expect(0, NULL, "tokenize --output %s/piped --tokenizer bytes - < %s/lines", w, w);
    assert_int_equal(documents_of(w, "piped"), 2);
    expect(0, NULL, "tokenize --output %s/text --format text --tokenizer bytes - < %s/lines", w, w);
    assert_int_equal(documents_of(w, "text"), 1);
}

TEST(folders_are_made_and_nothing_is_replaced_without_force)
{
    const char *w = *state;
    put(w, "a.txt", "one\n\ntwo\n\nthree", -1);
    expect(0, NULL, "tokenize --output %s/new/deep/a --tokenizer bytes --separator '\\n\\n' %s/a.txt", w, w);
    assert_int_equal(documents_of(w, "new/deep/a"), 3);
    expect(1, "a.idx is there already", "tokenize --output %s/new/deep/a --tokenizer bytes %s/a.txt", w, w);
    assert_int_equal(documents_of(w, "new/deep/a"), 3);
    expect(0, NULL, "tokenize --force --output %s/new/deep/a --tokenizer " MODEL " %s/a.txt", w, w);
    assert_int_equal(documents_of(w, "new/deep/a"), 1);
    char *old = workfolder_path(w, "new/deep/a.tokenizer.bytes");
    assert_false(atomic_exists(old)); /* the other tokenizer's copy went with the other data */
    free(old);
    expect(2, "names a folder", "tokenize --output %s/new/ --tokenizer bytes %s/a.txt", w, w);
    expect(1, "is there already", "tokenize --output %s/b --train-vocab 400 --tokenizer %s/a.txt %s/a.txt", w, w, w);

    expect(0, NULL, "tokenize --force --output %s/new/deep/a --tokenizer bytes --separator '\\n\\n' %s/a.txt", w, w);
    expect(0, NULL, "merge --output %s/merged/all %s/new/deep/a %s/new/deep/a", w, w, w);
    expect(1, "all.idx is there already", "merge --output %s/merged/all %s/new/deep/a", w, w);
    expect(0, NULL, "merge --force --output %s/merged/all %s/new/deep/a", w, w);
    assert_int_equal(documents_of(w, "merged/all"), 3);
    expect(0, NULL, "split --validation 0.3 --output %s/parts/ %s/new/deep/a", w, w);
    expect(1, "parts/train.idx is there already", "split --validation 0.3 --output %s/parts/ %s/new/deep/a", w, w);
    expect(0, NULL, "split --force --validation 0.3 --output %s/parts/ %s/new/deep/a", w, w);

    expect(0, NULL, "convert --from tests/golden/models/llama --to %s/model", w);
    expect(1, "--force", "convert --from tests/golden/models/llama --to %s/model", w);
    expect(0, NULL, "convert --force --from tests/golden/models/llama --to %s/model --dtype bf16", w);
    expect(1, "holds no model", "convert --force --from tests/golden/models/llama --to %s/parts", w);
    AUTO_FREE char *there = workfolder_path(w, "parts/train.idx"), *left = workfolder_path(w, "model.old");
    assert_true(atomic_exists(there));
    assert_false(atomic_exists(left));
}

/* The ids of a data set's first tokens, up to four. */
static void first_ids(int32_t ids[4], const char *folder, const char *name)
{
    AUTO_FREE char *prefix = workfolder_path(folder, name);
    AUTO(indexed) *x = NULL;
    assert_int_equal(indexed_open(&x, prefix), STATUS_OK);
    assert_int_equal(indexed_read(x, ids, 0, 4, 1 << 20), STATUS_OK);
}

static void expect_begin(const char *folder, const char *name, tokenizer_begin wanted)
{
    AUTO_FREE char *prefix = workfolder_path(folder, name);
    tokenizer_begin found;
    if (tokenizer_files_begin(&found, prefix) != STATUS_OK)
        fail_msg("%s", status_message());
    if (found != wanted)
        fail_msg("%s: documents begin with %s", name, tokenizer_begin_words[found]);
}

/* The ids are those of before unless --begin asks for more; what was written is said beside them, and kept. */
TEST(what_begins_documents_is_recorded)
{
    const char *w = *state;
    static const struct {
        const char *name, *flags;
        tokenizer_begin begin;
    } rows[] = {{"b-end", "", TOKENIZER_BEGIN_END},
                {"b-none", "--append-eod no", TOKENIZER_BEGIN_NOTHING},
                {"b-token", "--begin", TOKENIZER_BEGIN_TOKEN},
                {"b-only", "--begin --append-eod no", TOKENIZER_BEGIN_TOKEN}};
    put(w, "b.jsonl", "{\"text\": \"one two\"}\n{\"text\": \"\"}\n{\"text\": \"three four\"}\n", -1);
    int32_t ids[4][4];
    for (int i = 0; i < 4; i++) {
        expect(0, NULL, "tokenize --quiet --output %s/%s --tokenizer " MODEL " %s %s/b.jsonl", w, rows[i].name,
               rows[i].flags, w);
        expect_begin(w, rows[i].name, rows[i].begin);
        assert_int_equal(documents_of(w, rows[i].name), 2);
        first_ids(ids[i], w, rows[i].name);
    }
    assert_memory_equal(ids[0], ids[1], 2 * sizeof(int32_t));
    for (int i = 2; i < 4; i++) {
        assert_int_equal(ids[i][0], 1); /* <s> */
        assert_memory_equal(ids[i] + 1, ids[0], 2 * sizeof(int32_t));
    }
    expect(1, "no token that begins a text", "tokenize --begin --output %s/b-bytes --tokenizer bytes %s/b.jsonl", w, w);
    expect(0, NULL, "split --validation 0.5 --output %s/b-parts/ %s/b-token", w, w);
    expect_begin(w, "b-parts/train", TOKENIZER_BEGIN_TOKEN);
    expect_begin(w, "b-parts/validation", TOKENIZER_BEGIN_TOKEN);
    expect(0, NULL, "merge --output %s/b-all %s/b-end %s/b-end", w, w, w);
    expect_begin(w, "b-all", TOKENIZER_BEGIN_END);
    expect(1, "b-token: its documents begin with another token than those of the data sets before it (token, not end",
           "merge --force --output %s/b-all %s/b-end %s/b-token", w, w, w);
    AUTO_FREE char *facts = workfolder_path(w, "b-end.facts");
    remove(facts); /* as Megatron leaves it */
    expect(0, NULL, "merge --force --output %s/b-all %s/b-token %s/b-end", w, w, w);
    expect_begin(w, "b-all", TOKENIZER_BEGIN_UNKNOWN);
    put(w, "b-end.facts", "{\"document_begin\": \"\\u001b\"}", -1);
    expect(1, "b-end.facts is not {\"document_begin\":", "split --force --validation 0.5 --output %s/b-parts/ %s/b-end",
           w, w);
}

TEST(split_says_how_a_text_file_becomes_documents)
{
    const char *w = *state;
    put(w, "one.txt", "one\n\ntwo\n", -1);
    expect(0, NULL, "tokenize --output %s/one --tokenizer bytes %s/one.txt", w, w);
    expect(1, "phalanx tokenize --separator", "split --validation 0.1 %s/one", w);
    expect(1, "which phalanx tokenize makes of this file", "split --validation 0.1 %s/one.txt", w);
    expect(1, "which phalanx tokenize makes of text", "split --validation 0.1 %s/nowhere", w);
}

static int64_t bytes_of(const char *folder, const char *name)
{
    int64_t bytes;
    AUTO_FREE char *path = workfolder_path(folder, name);
    free(workfolder_read(path, &bytes));
    return bytes;
}

/* Documents of very different sizes: one that alone is three times what is asked for must not be taken because others
 * are too few. */
TEST(split_takes_the_share_that_was_asked_for)
{
    const char *w = *state;
    char text[40000];
    size_t used = 0;
    for (int i = 0; i < 60; i++) {
        int length = i % 20 == 7 ? 5000 : 100 + 7 * i;
        memset(text + used, 'a' + i % 26, (size_t)length);
        used += (size_t)length;
        used += (size_t)sprintf(text + used, "\n\n");
    }
    put(w, "uneven.txt", text, (int64_t)used);
    expect(0, NULL, "tokenize --output %s/uneven --tokenizer bytes --separator '\n\n' %s/uneven.txt", w, w);
    for (int seed = 1; seed <= 8; seed++) {
        expect(0, NULL, "split --force --seed %d --validation 0.05 %s/uneven", seed, w);
        double train = (double)bytes_of(w, "uneven-train.bin"),
               validation = (double)bytes_of(w, "uneven-validation.bin");
        double share = validation / (train + validation);
        if (!(share > 0.04 && share < 0.06))
            fail_msg("seed %d: %.1f%% instead of 5%%", seed, 100 * share);
    }
}

TEST(training_a_vocabulary_tells_its_stages)
{
    const char *w = *state;
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(120,
                                 "%s tokenize --output %s/own --tokenizer %s/vocab/own.model --train-vocab 400 "
                                 "tests/jobs/launch.c tests/jobs/launch.h",
                                 program, w, w);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    assert_non_null(strstr(r.out, "training a SentencePiece unigram model of 400 tokens"));
    assert_non_null(strstr(r.out, "MB of text read, training on it"));
    launch_free(&r);
}

/* ---- many files, bad records, parts ---- */

/* Whether two files of the folder hold the same bytes. */
static bool same_bytes(const char *folder, const char *a, const char *b)
{
    int64_t bytes, others;
    AUTO_FREE char *path = workfolder_path(folder, a), *other = workfolder_path(folder, b);
    AUTO_FREE uint8_t *x = workfolder_read(path, &bytes), *y = workfolder_read(other, &others);
    return bytes == others && memcmp(x, y, (size_t)bytes) == 0;
}

static bool is_there(const char *folder, const char *name)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    return atomic_exists(path);
}

static void make_texts(const char *w)
{
    static const char *const folders[] = {"texts/sub", "texts/.git", "texts/_tmp", "texts/0"};
    for (unsigned i = 0; i < sizeof folders / sizeof *folders; i++) {
        AUTO_FREE char *path = workfolder_path(w, folders[i]);
        assert_int_equal(atomic_make_folders(path), STATUS_OK);
    }
    put(w, "texts/b.jsonl",
        "{\"text\": \"two\"}\n{\"text\": null}\n{\"text\": \"\xff\"}\n{\"body\": 1}\n{\"text\": 1}\n[1]\n{\n"
        "{\"text\": \"three\"}\n",
        -1);
    put(w, "texts/sub/c.txt", "four", -1);
    put(w, "texts/0/a.md", "one", -1);
    put(w, "texts/LICENSE", "not this", -1);
    put(w, "texts/.git/config.txt", "nor this", -1);
    put(w, "texts/_tmp/x.txt", "nor this", -1);
}

TEST(a_folder_is_its_texts_sorted_and_a_list_names_files)
{
    const char *w = *state;
    make_texts(w);
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r =
        launch_run(60, "%s tokenize --output %s/folder --tokenizer bytes --skip-bad %s/bad %s/texts", program, w, w, w);
    if (r.status)
        fail_msg("%s%s", r.out, r.err);
    assert_non_null(strstr(r.out, "texts: 3 files; 1 of other kinds are left out, such as"));
    assert_non_null(strstr(r.out, "texts: 2 hidden files and folders (. and _) are left out"));
    assert_non_null(strstr(r.err, "6 bad records are left out"));
    launch_free(&r);
    assert_int_equal(documents_of(w, "folder"), 4);
    /* the same by a list, from a file and from standard input */
    expect(0, NULL,
           "tokenize --quiet --output %s/named --tokenizer bytes --skip-bad %s/bad2 %s/texts/0/a.md "
           "%s/texts/b.jsonl %s/texts/sub/c.txt",
           w, w, w, w, w);
    assert_true(same_bytes(w, "folder.bin", "named.bin") && same_bytes(w, "folder.idx", "named.idx"));
    expect(0, NULL,
           "tokenize --quiet --output %s/listed --tokenizer bytes --skip-bad %s/bad3 --files-from - "
           "%s/texts/0 <<END\n%s/texts/b.jsonl\n\n%s/texts/sub\nEND",
           w, w, w, w, w);
    assert_true(same_bytes(w, "folder.bin", "listed.bin") && same_bytes(w, "bad", "bad3"));
    expect(1, "--files-from", "tokenize --output %s/x --tokenizer bytes --files-from %s/nowhere", w, w);
    expect(2, "no input: name files or folders", "tokenize --output %s/x --tokenizer bytes", w);
    AUTO_FREE char *empty = workfolder_path(w, "texts/none");
    assert_int_equal(atomic_make_folders(empty), STATUS_OK);
    expect(1, "this folder has no file whose name says", "tokenize --output %s/x --tokenizer bytes %s", w, empty);
}

TEST(bad_records_are_left_out_and_listed)
{
    const char *w = *state;
    make_texts(w);
    expect(1, "b.jsonl:2: the field \"text\" is null (--field names another); --skip-bad FILE leaves",
           "tokenize --output %s/bads --tokenizer bytes %s/texts/b.jsonl", w, w);
    assert_false(is_there(w, "bads.bin") || is_there(w, "bads.idx"));
    for (int threads = 1; threads < 4; threads++) {
        expect(
            0, "6 bad records are left out",
            "tokenize --force --threads %d --output %s/bads --tokenizer bytes --skip-bad %s/bads.%d %s/texts/b.jsonl",
            threads, w, w, threads, w);
        assert_int_equal(documents_of(w, "bads"), 2);
    }
    assert_true(same_bytes(w, "bads.1", "bads.2") && same_bytes(w, "bads.1", "bads.3"));
    char *list = must_format("%s/texts/b.jsonl", w);
    char *wanted =
        must_format("%s:2: the field \"text\" is null (--field names another)\n"
                    "%s:3: column 10: unable to decode byte 0xff near '\"': each line must be one JSON object\n"
                    "%s:4: the field \"text\" is missing (--field names another)\n"
                    "%s:5: the field \"text\" is no string (--field names another)\n"
                    "%s:6: not a JSON object\n",
                    list, list, list, list, list);
    int64_t bytes;
    char *path = workfolder_path(w, "bads.1"), *got = (char *)workfolder_read(path, &bytes);
    if (strncmp(got, wanted, strlen(wanted)) != 0 || !strstr(got + strlen(wanted), "b.jsonl:7: column 1: "))
        fail_msg("%s instead of %s", got, wanted);
    free(got);
    free(path);
    free(wanted);
    free(list);
    /* nothing is replaced, least of all an input; a stream takes the list as it comes */
    expect(2, "this is one of the inputs",
           "tokenize --force --output %s/bads --tokenizer bytes --skip-bad %s/texts/b.jsonl %s/texts/b.jsonl", w, w, w);
    expect(1, "bads.1 is there already",
           "tokenize --output %s/more --tokenizer bytes --skip-bad %s/bads.1 %s/texts/b.jsonl", w, w, w);
    expect(0, NULL, "tokenize --quiet --output %s/more --tokenizer bytes --skip-bad - %s/texts/b.jsonl >%s/stream", w,
           w, w);
    assert_true(same_bytes(w, "bads.1", "stream"));
    /* a failure leaves no list either, nor does one of bad records alone */
    put(w, "zip", "PK\3\4", -1);
    expect(1, "a zip archive", "tokenize --output %s/none --tokenizer bytes --skip-bad %s/none %s/texts/b.jsonl %s/zip",
           w, w, w, w);
    put(w, "nulls.jsonl", "{\"text\": null}\n", -1);
    expect(1, "no text but 1 bad records",
           "tokenize --output %s/none --tokenizer bytes --skip-bad %s/none %s/nulls.jsonl", w, w, w);
    assert_false(is_there(w, "none") || is_there(w, "none.tmp") || is_there(w, "none.idx") || is_there(w, "none.bin"));
    /* training a vocabulary passes over them, too */
    expect(0, NULL,
           "tokenize --quiet --output %s/mine --tokenizer %s/mine.model --train-vocab 400 --skip-bad %s/mine.bad "
           "%s/nulls.jsonl tests/jobs/launch.c tests/jobs/launch.h",
           w, w, w, w);
    assert_true(is_there(w, "mine.bad"));
}

/* What seven machines make and merge is, byte for byte, what one makes: data set and list of bad records. */
TEST(parts_merged_are_the_whole)
{
    const char *w = *state;
    make_texts(w);
    buffer text = {0};
    for (int i = 0; i < 3000; i++) {
        char line[200];
        int length = i % 100 == 50 ? sprintf(line, "{\"text\": null}\n")
                                   : sprintf(line, "{\"id\": %d, \"text\": \"%.*s %d\"}\n", i, i % 97,
                                             "a line of text that is as long as its number says, more or less, as far "
                                             "as that goes, and no longer",
                                             i);
        buffer_append(&text, line, length);
    }
    put(w, "texts/0/many.jsonl", text.bytes, text.length);
    buffer_free(&text);
    expect(0, NULL, "tokenize --quiet --output %s/whole --tokenizer " MODEL " --skip-bad %s/whole.bad %s/texts", w, w,
           w);
    for (int part = 1; part <= 7; part++)
        expect(0, NULL,
               "tokenize --quiet --part %d/7 --output %s/part%d --tokenizer " MODEL
               " --skip-bad %s/part%d.bad %s/texts",
               part, w, part, w, part, w);
    expect(0, NULL, "merge --output %s/seven %s/part1 %s/part2 %s/part3 %s/part4 %s/part5 %s/part6 %s/part7", w, w, w,
           w, w, w, w, w);
    assert_true(same_bytes(w, "whole.bin", "seven.bin") && same_bytes(w, "whole.idx", "seven.idx"));
    launch_result r = launch_run(60, "cat %s/part?.bad >%s/seven.bad", w, w);
    assert_int_equal(r.status, 0);
    launch_free(&r);
    assert_true(same_bytes(w, "whole.bad", "seven.bad"));
    assert_true(documents_of(w, "part3") > 300); /* the parts are of about one size */
    /* more parts than bytes: some are empty, and merge as others do */
    put(w, "tiny.txt", "xy", -1);
    for (int part = 1; part <= 3; part++)
        expect(0, NULL, "tokenize --quiet --part %d/3 --output %s/tiny%d --tokenizer bytes %s/tiny.txt", part, w, part,
               w);
    expect(0, NULL, "merge --output %s/tiny %s/tiny1 %s/tiny2 %s/tiny3", w, w, w, w);
    assert_int_equal(documents_of(w, "tiny"), 1);
    static const char *const wrong[] = {"0/3", "4/3", "1", "1/2x", "-1/2", "1/0", "a/b"};
    for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++)
        expect(2, "is the I-th of N parts, counted from 1",
               "tokenize --part=%s --output %s/w --tokenizer bytes "
               "%s/tiny.txt",
               wrong[i], w, w);
    expect(2, "standard input has no parts", "tokenize --part 1/2 --output %s/w --tokenizer bytes - </dev/null", w);
    expect(2, "the parts need one vocabulary",
           "tokenize --part 1/2 --output %s/w --train-vocab 400 --tokenizer %s/w.model %s/tiny.txt", w, w, w);
}

/* ---- signals ---- */

static void nap(double seconds)
{
    nanosleep(
        &(struct timespec){.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))},
        NULL);
}

static void wait_for(const char *path)
{
    for (int i = 0; i < 4000 && !atomic_exists(path); i++)
        nap(0.005);
    if (!atomic_exists(path))
        fail_msg("%s does not appear", path);
}

static void stop(launch *l, int number)
{
    kill(launch_pid(l), number);
    launch_result r = launch_finish(l);
    if (r.status != 128 + number || r.timed_out)
        fail_msg("exit status %d after signal %d: %s%s", r.status, number, r.out, r.err);
    if (!strstr(r.err, "stopped by a signal: nothing was written"))
        fail_msg("it does not say that it was stopped: %s", r.err);
    launch_free(&r);
}

/* Tokenizing and training a vocabulary wait for a pipe that has some text and gets no more. */
TEST(a_signal_leaves_no_half_data_set)
{
    static const int numbers[] = {SIGINT, SIGTERM};
    const char *w = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *pipe_path = workfolder_path(w, "pipe"),
                   *out = workfolder_path(w, "out");
    AUTO_FREE char *written = workfolder_path(out, "a.bin.tmp");
    assert_int_equal(mkfifo(pipe_path, 0600), 0);
    for (int i = 0; i < 2; i++) {
        launch *l = launch_start(60, "exec %s tokenize --output %s/a --tokenizer bytes %s", program, out, pipe_path);
        int writer = open(pipe_path, O_WRONLY);
        assert_true(write(writer, "some text\n", 10) == 10);
        wait_for(written);
        stop(l, numbers[i]);
        close(writer);
        assert_int_equal(entries(out), 0);
    }
    launch *l = launch_start(60, "exec %s tokenize --output %s/a --tokenizer %s/a.model --train-vocab 400 %s", program,
                             out, out, pipe_path);
    int writer = open(pipe_path, O_WRONLY);
    assert_true(write(writer, "some text\n", 10) == 10);
    assert_true(launch_expect(l, "training a SentencePiece", 30));
    stop(l, SIGINT);
    close(writer);
    assert_int_equal(entries(out), 0);
}

/* A folder of a large model that takes no space: its tensors are a hole in the file. */
static void write_large_model(const char *folder)
{
    model_shape shape = {.architecture = SHAPE_LLAMA,
                         .layers = 1,
                         .hidden_size = 1024,
                         .heads = 8,
                         .kv_heads = 8,
                         .head_size = 128,
                         .ffn_size = 1024,
                         .vocab_size = 300000,
                         .max_sequence = 128,
                         .tied_embeddings = true,
                         .rope_theta = 10000.0,
                         .norm_epsilon = 1e-5};
    char *config, *path = workfolder_path(folder, "model.safetensors");
    json_t *header = json_object();
    int count;
    int64_t end = 0;
    assert_int_equal(atomic_make_folders(folder), STATUS_OK);
    if (huggingface_text(&config, &shape, DTYPE_FP32, NULL) != STATUS_OK)
        fail_msg("%s", status_message());
    put(folder, "config.json", config, -1);
    names_tensor *names = names_list(&count, &shape);
    for (int i = 0; i < count; i++) {
        int64_t begin = end;
        json_t *dims = json_array();
        end += 4 * names[i].shape[0] * (names[i].dims == 2 ? names[i].shape[1] : 1);
        for (int d = 0; d < names[i].dims; d++)
            json_array_append_new(dims, json_integer(names[i].shape[d]));
        json_object_set_new(header, names[i].name,
                            json_pack("{s:s, s:o, s:[I, I]}", "dtype", "F32", "shape", dims, "data_offsets",
                                      (json_int_t)begin, (json_int_t)end));
    }
    names_free(names, count);
    AUTO_FREE char *text = json_dumps(header, JSON_COMPACT);
    uint64_t length = strlen(text);
    AUTO_FREE char *file = must_alloc(8 + length);
    memcpy(file, &length, 8);
    memcpy(file + 8, text, length);
    workfolder_write(path, file, (int64_t)(8 + length));
    assert_int_equal(truncate(path, (off_t)(8 + (int64_t)length + end)), 0);
    free(config);
    free(path);
    json_decref(header);
}

TEST(a_signal_leaves_no_half_model)
{
    const char *w = *state;
    AUTO_FREE char *program = launch_beside("../phalanx"), *from = workfolder_path(w, "large"),
                   *out = workfolder_path(w, "stopped");
    AUTO_FREE char *temporary = workfolder_path(out, "model.tmp"),
                   *begun = workfolder_path(temporary, "model-00000.safetensors.tmp");
    write_large_model(from);
    launch *l = launch_start(60, "exec %s convert --from %s --to %s/model", program, from, out);
    wait_for(begun);
    stop(l, SIGINT);
    assert_int_equal(entries(out), 0);
}

/* ---- a data set's tokenizer in training ---- */

#define CONFIG                                                                                                         \
    "model: {architecture: llama, layers: 1, hidden_size: 16, heads: 2, ffn_size: 32, max_sequence: 16}\n"             \
    "train: {steps: 1, sequence: 16, micro_batch: 1, global_batch: 1, precision: fp32, device: cpu}\n"                 \
    "optimizer: {lr: 1e-3}\n"

TEST(a_missing_data_set_is_said_by_its_key_and_how_it_is_made)
{
    const char *w = *state;
    put(w, "config.yaml", CONFIG, -1);
    put(w, "b.txt", "some text that is longer than one sample of sixteen tokens", -1);
    expect(1, "data.train: there is no data set nowhere/train (nowhere/train.bin and .idx): phalanx tokenize",
           "train %s/config.yaml data.train=nowhere/train model.vocab_size=257 run.folder=%s/run", w, w);
    expect(0, NULL, "tokenize --output %s/b --tokenizer bytes %s/b.txt", w, w);
    expect(1, "data.validation: there is no data set nowhere",
           "train %s/config.yaml data.train=%s/b data.validation=nowhere model.vocab_size=257 run.folder=%s/run", w, w,
           w);
}

TEST(the_tokenizer_beside_the_data_tells_the_vocabulary)
{
    const char *w = *state;
    put(w, "config.yaml", CONFIG, -1);
    put(w, "c.txt", "some text that is longer than one sample of sixteen tokens", -1);
    expect(0, NULL, "tokenize --output %s/c --tokenizer bytes --append-eod no %s/c.txt", w, w);
    expect(2, "the tokenizer beside", "train %s/config.yaml data.train=%s/c model.vocab_size=200 run.folder=%s/r", w, w,
           w);
    expect(2, "makes 257 ids, model.vocab_size is 200",
           "train %s/config.yaml data.train=%s/c model.vocab_size=200 run.folder=%s/r", w, w, w);
    expect(0, NULL, "train %s/config.yaml data.train=%s/c run.folder=%s/told", w, w, w);
    AUTO_FREE char *path = workfolder_path(w, "told/config.yaml");
    int64_t bytes;
    AUTO_FREE char *text = (char *)workfolder_read(path, &bytes);
    assert_non_null(strstr(text, "vocab_size: 257"));
    expect(0, NULL, "plan %s/config.yaml data.train=%s/c", w, w);
    expect(2, "there is no data set", "train %s/config.yaml data.train=%s/nowhere run.folder=%s/r", w, w, w);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
