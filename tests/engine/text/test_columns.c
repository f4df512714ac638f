/* Documents from columns, on a reader that stands in for libphalanx_parquet.so: what the host does with rows, nulls,
 * failures and parts, on any machine. Its files begin with PAR1 (rows known) or ARROW1 (not known) and a line end; each
 * further line is a row, \N a null one, !WORDS a failure. (tests/tools/data/test_parquet.c has the real one.) */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/text/columns_reader.h"
#include "engine/text/documents.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

/* ---- the reader that stands in ---- */

enum { STANDIN_BLOCK = 3 };

typedef struct standin {
    char *bytes, *at;
    int64_t rows, row, end;
    const char *text[STANDIN_BLOCK];
    int64_t length[STANDIN_BLOCK];
} standin;

static int alive; /* readers that are open */

static char *next_line(standin *s)
{
    char *line = s->at, *end = strchr(line, '\n');
    if (!end)
        return NULL;
    *end = 0;
    s->at = end + 1;
    return line;
}

static int standin_open(void **out, int64_t *rows, const columns_file *file, const char *field, char *message)
{
    if (strcmp(field, "text") != 0) {
        snprintf(message, COLUMNS_MESSAGE_BYTES, "no column \"%s\"\nand more", field);
        return 1;
    }
    standin *s = must_calloc(1, sizeof *s);
    s->at = s->bytes = must_calloc(1, (unsigned long)file->size + 1);
    int error = file->read(file->context, s->bytes, 0, file->size);
    MUST(!error, "the file cannot be read");
    for (int64_t i = 0; i < file->size; i++)
        s->rows += s->bytes[i] == '\n';
    s->end = --s->rows;
    *rows = strncmp(s->bytes, "PAR1", 4) == 0 ? s->rows : -1;
    next_line(s);
    alive++;
    *out = s;
    return 0;
}

static int standin_select(void *reader, int64_t first, int64_t end, char *message)
{
    standin *s = reader;
    (void)message;
    for (; s->row < first; s->row++)
        next_line(s);
    s->end = end;
    return 0;
}

static int standin_next(void *reader, columns_block *block, char *message)
{
    standin *s = reader;
    int64_t count = 0;
    block->first = s->row;
    for (char *line; count < STANDIN_BLOCK && s->row < s->end && (line = next_line(s)); s->row++, count++) {
        if (*line == '!') {
            snprintf(message, COLUMNS_MESSAGE_BYTES, "%s", line + 1);
            return 1;
        }
        s->text[count] = strcmp(line, "\\N") == 0 ? NULL : line;
        s->length[count] = (int64_t)strlen(line);
    }
    *block = (columns_block){count, block->first, s->text, s->length, (double)s->row / (double)(s->rows + 1)};
    return 0;
}

static void standin_close(void *reader)
{
    AUTO_FREE standin *s = reader;
    alive--;
    free(s->bytes);
}

const columns_reader columns_arrow = {COLUMNS_VERSION, standin_open, standin_select, standin_next, standin_close};

/* ---- what documents make of it ---- */

static char *make_file(void **state, const char *name, const char *text)
{
    char *path = workfolder_path(*state, name);
    workfolder_write(path, text, (int64_t)strlen(text));
    return path;
}

/* All documents, each followed by '|'; of a bad record what is said of it, behind the folder's name. */
static status read_all(buffer *out, const documents_settings *settings, char *const *paths, int count)
{
    documents *d;
    buffer bytes = {0}, scratch = {0};
    bool more = true;
    status s = documents_open(&d, settings, paths, count);
    assert_int_equal(s, STATUS_OK);
    while (s == STATUS_OK) {
        documents_raw raw;
        const char *text;
        int64_t length;
        bytes.length = 0;
        s = documents_next(d, &bytes, &raw, &more);
        if (s != STATUS_OK || !more)
            break;
        if (documents_text(d, &text, &length, &scratch, bytes.bytes + raw.offset, &raw) != STATUS_OK) {
            text = strrchr(status_message(), '/') + 1;
            length = (int64_t)strlen(text);
        }
        buffer_append(out, text, length);
        buffer_append(out, "|", 1);
    }
    documents_close(d);
    buffer_free(&bytes);
    buffer_free(&scratch);
    assert_int_equal(alive, 0);
    return s;
}

static void expect(buffer *got, const char *wanted)
{
    buffer_append(got, "", 1);
    assert_string_equal(got->bytes, wanted);
    got->length = 0;
}

TEST_WITH(rows_are_documents_and_nulls_bad_records, workfolder_setup, workfolder_teardown)
{
    buffer got = {0};
    char *paths[] = {make_file(state, "a.parquet", "PAR1\none\n\ntwo\n\\N\nfour\n\xE9t\xE9\nsix\n"),
                     make_file(state, "b.txt", "plain"), make_file(state, "c.arrow", "ARROW1\n{\"text\": 1}\n"),
                     make_file(state, "d.parquet", "PAR1\n")};
    const documents_settings sniffing = {0}, by_field = {.format = DOCUMENTS_FIELDS, .field = "text"};
    assert_int_equal(read_all(&got, &sniffing, paths, 4), STATUS_OK);
    expect(&got,
           "one|two|a.parquet:row 3: the column \"text\" is null|four|a.parquet:row 5: the column \"text\" is not "
           "UTF-8: byte 0 is 0xe9|six|plain|{\"text\": 1}|");
    assert_int_equal(read_all(&got, &by_field, paths, 1), STATUS_OK);
    assert_true(got.length > 0);
    got.length = 0;
    assert_int_equal(read_all(&got, &(documents_settings){.format = DOCUMENTS_TEXT}, paths + 2, 1), STATUS_OK);
    expect(&got, "ARROW1\n{\"text\": 1}\n|");
    for (int i = 0; i < 4; i++)
        free(paths[i]);
    buffer_free(&got);
}

TEST_WITH(failures_are_one_line_with_the_files_name, workfolder_setup, workfolder_teardown)
{
    buffer got = {0};
    char *path = make_file(state, "x.parquet", "PAR1\none\ntwo\nthree\nfour\n!page 7 is \033[31mdamaged\n");
    assert_int_equal(read_all(&got, &(documents_settings){0}, &path, 1), STATUS_FAILED);
    workfolder_message_has("x.parquet: page 7 is ?[31mdamaged");
    expect(&got, "one|two|three|");
    assert_int_equal(read_all(&got, &(documents_settings){.field = "body"}, &path, 1), STATUS_FAILED);
    workfolder_message_has("x.parquet: no column \"body\"");
    free(path);
    buffer_free(&got);
}

TEST_WITH(parts_are_divided_between_rows, workfolder_setup, workfolder_teardown)
{
    buffer got = {0}, wanted = {0};
    char *paths[] = {make_file(state, "a.parquet", "PAR1\none\ntwo\n\\N\nfour\nfive\nsix\nseven\n"),
                     make_file(state, "b.arrow", "ARROW1\nwhole\nin one part\n"),
                     make_file(state, "c.parquet", "PAR1\neight\nnine\n")};
    assert_int_equal(read_all(&wanted, &(documents_settings){0}, paths, 3), STATUS_OK);
    int most = 0;
    for (int64_t parts = 1; parts < 120; parts++) {
        int filled = 0;
        got.length = 0;
        for (int64_t part = 0; part < parts; part++) {
            int64_t before = got.length;
            documents_settings settings = {.part = part, .parts = parts};
            assert_int_equal(read_all(&got, &settings, paths, 3), STATUS_OK);
            filled += got.length > before;
        }
        most = filled > most ? filled : most;
        assert_int_equal(got.length, wanted.length);
        assert_memory_equal(got.bytes, wanted.bytes, (size_t)got.length);
    }
    assert_int_equal(most, 10); /* each row of the two, and the other file */
    for (int i = 0; i < 3; i++)
        free(paths[i]);
    buffer_free(&got);
    buffer_free(&wanted);
}

TEST_WITH(a_vocabulary_is_trained_on_rows, workfolder_setup, workfolder_teardown)
{
    char *path = make_file(state, "a.parquet", "PAR1\none two\n\\N\nthree\n");
    documents *d;
    const char *line;
    int64_t length, total = 0;
    assert_int_equal(documents_open(&d, &(documents_settings){0}, &path, 1), STATUS_OK);
    sentences *s = sentences_open(d, true);
    while (sentences_next(s, &line, &length))
        total += length;
    assert_int_equal(sentences_result(s), STATUS_OK);
    assert_int_equal(total, 12);
    sentences_close(s);
    documents_close(d);
    assert_int_equal(documents_open(&d, &(documents_settings){0}, &path, 1), STATUS_OK);
    s = sentences_open(d, false);
    while (sentences_next(s, &line, &length))
        continue;
    assert_int_equal(sentences_result(s), STATUS_FAILED);
    workfolder_message_has("a.parquet:row 1: the column \"text\" is null");
    sentences_close(s);
    documents_close(d);
    free(path);
}

TEST_MAIN(NULL, NULL)
