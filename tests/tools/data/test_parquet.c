/* Parquet and Arrow by libphalanx_parquet.so: files of five writers give what the same records give as JSON lines;
 * damaged ones are refused in one line. Skipped where the object is not built. The files are made by
 * tests/golden/parquet/make.py. */
#include <dirent.h>
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/system/atomic.h"
#include "engine/text/documents.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

#define GOLDEN "tests/golden/parquet/"

static const char *const files[] = {"pyarrow-snappy.parquet",
                                    "pyarrow-zstd-pages2.parquet",
                                    "pyarrow-gzip-groups.parquet",
                                    "pyarrow-lz4-checksums.parquet",
                                    "pyarrow-dictionary.parquet",
                                    "pyarrow-delta_byte_array.parquet",
                                    "pyarrow-delta_length_byte_array.parquet",
                                    "pyarrow-coded.parquet",
                                    "pyarrow-required.parquet",
                                    "pyarrow-binary.parquet",
                                    "pandas.parquet",
                                    "fastparquet.parquet",
                                    "polars.parquet",
                                    "duckdb.parquet",
                                    "pyarrow-file.arrow",
                                    "pyarrow-coded.arrow",
                                    "pyarrow-large.arrow",
                                    "pyarrow-stream.arrow",
                                    "pyarrow-zstd.feather",
                                    "polars-views.arrow"};
enum { FILES = sizeof files / sizeof *files };

/* The reader's object is loaded for all programs of this process, since it is not beside this one. */
static void need_reader(void)
{
    char *path = launch_beside("../libphalanx_parquet.so");
    if (!atomic_exists(path)) {
        free(path);
        skip_because("no libphalanx_parquet.so: pip install pyarrow, then make PYTHON=... or ARROW=its folder");
    }
    if (!dlopen(path, RTLD_NOW | RTLD_GLOBAL))
        fail_msg("%s", dlerror());
    free(path);
}

/* `phalanx ARGUMENTS` ends with that status; on failure it says one line, which has `said`. */
static void run(int status_code, const char *said, const char *format, ...) __attribute__((format(printf, 3, 4)));

static void run(int status_code, const char *said, const char *format, ...)
{
    char arguments[2000], *program = launch_beside("../phalanx");
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    launch_result r = launch_run(120, "%s %s", program, arguments);
    if (r.status != status_code || (said && !strstr(r.err, said)))
        fail_msg("%s: exit status %d, and no \"%s\": %s%s", arguments, r.status, said ? said : "", r.out, r.err);
    if (status_code && strchr(r.err, '\n') != r.err + strlen(r.err) - 1)
        fail_msg("%s: not one line: %s", arguments, r.err);
    launch_free(&r);
    free(program);
}

static void must_be_same(const char *folder, const char *a, const char *b, const char *what)
{
    int64_t bytes, others;
    AUTO_FREE char *path = workfolder_path(folder, a), *other = workfolder_path(folder, b);
    AUTO_FREE uint8_t *x = workfolder_read(path, &bytes), *y = workfolder_read(other, &others);
    if (bytes != others || memcmp(x, y, (size_t)bytes) != 0)
        fail_msg("%s: %s and %s differ", what, a, b);
}

TEST_WITH(columns_of_all_writers_give_what_json_lines_give, workfolder_setup, workfolder_teardown)
{
    need_reader();
    const char *w = *state;
    run(0, NULL, "tokenize --quiet --output %s/lines --tokenizer tests/golden/text/unigram.model " GOLDEN "texts.jsonl",
        w);
    for (int i = 0; i < FILES; i++) {
        run(0, NULL,
            "tokenize --quiet --force --output %s/rows --tokenizer tests/golden/text/unigram.model " GOLDEN "%s", w,
            files[i]);
        must_be_same(w, "lines.bin", "rows.bin", files[i]);
        must_be_same(w, "lines.idx", "rows.idx", files[i]);
    }
}

/* All files together, divided among some machines. */
TEST_WITH(parts_of_columns_merge_to_the_whole, workfolder_setup, workfolder_teardown)
{
    need_reader();
    const char *w = *state;
    run(0, NULL, "tokenize --quiet --output %s/one --tokenizer bytes --skip-bad %s/one.bad " GOLDEN, w, w);
    static const int counts[] = {2, 13};
    for (unsigned i = 0; i < sizeof counts / sizeof *counts; i++) {
        char *prefixes = must_strdup(""), *lists = must_strdup("");
        for (int part = 1; part <= counts[i]; part++) {
            run(0, NULL,
                "tokenize --quiet --force --part %d/%d --output %s/part%d --tokenizer bytes --skip-bad "
                "%s/bad%d " GOLDEN,
                part, counts[i], w, part, w, part);
            char *more = must_format("%s %s/part%d", prefixes, w, part),
                 *list = must_format("%s %s/bad%d", lists, w, part);
            free(prefixes);
            free(lists);
            prefixes = more;
            lists = list;
        }
        run(0, NULL, "merge --force --output %s/all%s", w, prefixes);
        must_be_same(w, "one.bin", "all.bin", "parts");
        must_be_same(w, "one.idx", "all.idx", "parts");
        launch_result r = launch_run(60, "cat%s >%s/all.bad", lists, w);
        assert_int_equal(r.status, 0);
        launch_free(&r);
        must_be_same(w, "one.bad", "all.bad", "lists of bad records");
        free(prefixes);
        free(lists);
    }
}

TEST_WITH(bad_rows_and_wrong_columns_are_named, workfolder_setup, workfolder_teardown)
{
    need_reader();
    const char *w = *state;
    static const char *const bad[] = {"nulls.parquet", "nulls.arrow"};
    for (int i = 0; i < 2; i++) {
        char *said = must_format("%s:row 2: the column \"text\" is null; --skip-bad FILE leaves", bad[i]);
        run(1, said, "tokenize --force --output %s/bad --tokenizer bytes " GOLDEN "%s", w, bad[i]);
        free(said);
        run(0, "2 bad records are left out",
            "tokenize --force --output %s/bad --tokenizer bytes --skip-bad %s/list " GOLDEN "%s", w, w, bad[i]);
        AUTO_FREE char *wanted = must_format(GOLDEN "%s:row 2: the column \"text\" is null\n" GOLDEN
                                                    "%s:row 4: the column \"text\" is not UTF-8: byte 0 is 0xff\n",
                                             bad[i], bad[i]);
        int64_t bytes;
        AUTO_FREE char *path = workfolder_path(w, "list"), *got = (char *)workfolder_read(path, &bytes);
        assert_string_equal(got, wanted);
    }
    static const struct {
        const char *field, *file, *said;
    } cases[] = {
        {"tags", "pyarrow-snappy.parquet",
         "the column \"tags\" is nested: a list, no text (--field names another); it "
         "has \"id\" (INT64), \"text\" (String), \"tags\" (nested: a list), "},
        {"source", "pyarrow-snappy.parquet", "the column \"source\" is nested: a struct, no text"},
        {"id", "pyarrow-snappy.parquet", "the column \"id\" is INT64, no text"},
        {"body", "pyarrow-snappy.parquet", "no column \"body\" (--field names another); it has \"id\" (INT64), "},
        {"tags", "pyarrow-file.arrow", "the column \"tags\" is nested: list<"},
        {"source", "pyarrow-stream.arrow", "no column \"source\" (--field names another); it has \"text\" ("},
        {"score", "pyarrow-zstd.feather", "the column \"score\" is double, no text"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
        run(1, cases[i].said, "tokenize --field %s --output %s/c --tokenizer bytes " GOLDEN "%s", cases[i].field, w,
            cases[i].file);
    run(1, "read from files that are not packed as a whole",
        "tokenize --output %s/c --tokenizer bytes - <" GOLDEN "duckdb.parquet", w);
    run(1, "read from files that are not packed as a whole",
        "tokenize --output %s/c --tokenizer bytes %s/packed.gz $(gzip -c <" GOLDEN "duckdb.parquet >%s/packed.gz)", w,
        w, w);
    AUTO_FREE char *left = workfolder_path(w, "c.idx");
    assert_false(atomic_exists(left));
}

/* ---- files that are not as they should be, read in this process, where a crash is this test's ---- */

/* The number of documents; -1: it was refused, in one line, with the file's name. */
static int read_documents(const char *path)
{
    documents *d;
    documents_raw raw;
    buffer bytes = {0}, scratch = {0};
    bool more = true;
    int count = 0;
    char *input = (char *)(uintptr_t)path;
    status s = documents_open(&d, &(documents_settings){.format = DOCUMENTS_FIELDS}, &input, 1);
    while (s == STATUS_OK) {
        const char *text;
        int64_t length;
        bytes.length = 0;
        s = documents_next(d, &bytes, &raw, &more);
        if (s != STATUS_OK || !more)
            break;
        if (documents_text(d, &text, &length, &scratch, bytes.bytes + raw.offset, &raw) == STATUS_OK)
            count++;
    }
    if (s != STATUS_OK)
        workfolder_message_has("hostile");
    documents_close(d);
    buffer_free(&bytes);
    buffer_free(&scratch);
    return s == STATUS_OK ? count : -1;
}

/* A file cut off anywhere, and one with a byte changed anywhere: refused or read, in little memory. (In data pages
 * without a checksum a changed letter is another letter.) */
TEST_WITH(damaged_files_are_refused_in_one_line, workfolder_setup, workfolder_teardown)
{
    need_reader();
    AUTO_FREE char *path = workfolder_path(*state, "hostile");
    int refused = 0, tried = 0;
    for (int i = 0; i < FILES; i++) {
        int64_t bytes;
        AUTO_FREE char *name = must_format(GOLDEN "%s", files[i]);
        AUTO_FREE uint8_t *data = workfolder_read(name, &bytes);
        bool stream = strstr(files[i], "stream") != NULL;
        for (int64_t keep = 8; keep < bytes; keep += bytes / 11) {
            workfolder_write(path, data, keep);
            int count = read_documents(path);
            if (count >= 0 && !stream) /* a stream may end after any batch */
                fail_msg("%s: %lld of its %lld bytes were taken", files[i], (long long)keep, (long long)bytes);
        }
        for (int64_t at = 6 + i % 5; at < bytes; at += bytes / 60 + 1, tried++) {
            uint8_t was = data[at];
            data[at] = (uint8_t)(was ^ (at % 3 ? 0xFF : 0x10));
            workfolder_write(path, data, bytes);
            refused += read_documents(path) < 0;
            data[at] = was;
        }
    }
    print_message("%d of %d files with a changed byte were refused\n", refused, tried);
    assert_true(refused > tried / 4);
    struct rusage used;
    assert_int_equal(getrusage(RUSAGE_SELF, &used), 0);
    assert_true(used.ru_maxrss < 1 << 20); /* KiB: no size that a file announces was taken at its word */
}

/* Put `insert` in place of `gone` bytes at `at`. */
static void write_changed(const char *path, const uint8_t *data, int64_t bytes, int64_t at, int64_t gone,
                          const void *insert, int64_t length)
{
    buffer made = {0};
    buffer_append(&made, data, at);
    buffer_append(&made, insert, length);
    buffer_append(&made, data + at + gone, bytes - at - gone);
    workfolder_write(path, made.bytes, made.length);
    buffer_free(&made);
}

TEST_WITH(sizes_beyond_the_file_are_not_believed, workfolder_setup, workfolder_teardown)
{
    need_reader();
    int64_t bytes;
    AUTO_FREE char *path = workfolder_path(*state, "hostile");
    uint8_t *data = workfolder_read(GOLDEN "pyarrow-required.parquet", &bytes);
    /* the footer's length, and the magic behind it */
    write_changed(path, data, bytes, bytes - 8, 4, "\xF0\xFF\xFF\x7F", 4);
    assert_int_equal(read_documents(path), -1);
    write_changed(path, data, bytes, bytes - 4, 4, "PAR2", 4);
    assert_int_equal(read_documents(path), -1);
    /* the first page's header, after the magic: 15 00 (a data page), 15 and its bytes unpacked, 15 and packed */
    assert_memory_equal(data + 4, "\x15\x00\x15", 3);
    int64_t unpacked = data[7] & 0x80 ? 2 : 1, packed = data[8 + unpacked] & 0x80 ? 2 : 1;
    static const char huge[] = "\xFE\xFF\xFF\xFF\x0F"; /* 2^31 - 1 */
    write_changed(path, data, bytes, 7, unpacked, huge, 5);
    assert_int_equal(read_documents(path), -1);
    assert_non_null(strstr(status_message(), "MiB a file may take"));
    write_changed(path, data, bytes, 8 + unpacked, packed, huge, 5);
    assert_int_equal(read_documents(path), -1);
    /* a length of a record batch in Arrow: the first message's body */
    free(data);
    data = workfolder_read(GOLDEN "pyarrow-stream.arrow", &bytes);
    write_changed(path, data, bytes, 4, 4, "\xF8\xFF\xFF\x0F", 4);
    assert_int_equal(read_documents(path), -1);
    struct rusage used;
    assert_int_equal(getrusage(RUSAGE_SELF, &used), 0);
    assert_true(used.ru_maxrss < 1 << 20);
    free(data);
}

TEST_MAIN(NULL, NULL)
