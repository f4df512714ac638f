#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/data/stored.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct options {
    const char *tokenizer, *data, *range;
    bool skip_special;
} options;

static status print_text(const buffer *text)
{
    if (text->length && fwrite(text->bytes, 1, (size_t)text->length, stdout) != (size_t)text->length)
        return status_fail(STATUS_FAILED, "standard output: %s", strerror(errno));
    return STATUS_OK;
}

static status check_id(const tokenizer *t, long long id, const char *where, long long line)
{
    if (id >= 0 && id < tokenizer_vocab_size(t))
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "%s:%lld: the id %lld is outside the vocabulary of %d", where, line, id,
                       tokenizer_vocab_size(t));
}

static status read_line(buffer_ids *ids, const tokenizer *t, const char *line, long long number)
{
    ids->count = 0;
    for (char *end;; line = end) {
        line += strspn(line, " \t\r\n,");
        if (!*line)
            return STATUS_OK;
        errno = 0;
        long long id = strtoll(line, &end, 10);
        if (end == line || errno)
            return status_fail(STATUS_FAILED, "standard input:%lld: \"%.20s\" is no whole number", number, line);
        TRY(check_id(t, id, "standard input", number));
        buffer_ids_append(ids, &(int32_t){(int32_t)id}, 1);
    }
}

static status detokenize_lines(const options *o, const tokenizer *t)
{
    char *line = NULL;
    size_t room = 0;
    buffer_ids ids = {0};
    buffer text = {0};
    status s = STATUS_OK;
    for (long long number = 1; s == STATUS_OK && getline(&line, &room, stdin) >= 0; number++) {
        s = read_line(&ids, t, line, number);
        text.length = 0;
        tokenizer_decode(t, &text, ids.ids, ids.count, o->skip_special);
        buffer_append(&text, "\n", 1);
        if (s == STATUS_OK)
            s = print_text(&text);
    }
    free(line);
    buffer_ids_free(&ids);
    buffer_free(&text);
    return s;
}

static status parse_range(int64_t *first, int64_t *end, const char *range, int64_t documents)
{
    long long from, to;
    int used = 0;
    *first = 0;
    *end = documents;
    if (!range)
        return STATUS_OK;
    if (sscanf(range, "%lld:%lld%n", &from, &to, &used) != 2 || range[used])
        return status_fail(STATUS_USAGE, "--documents %s: expected FIRST:END", range);
    if (from < 0 || to < from || to > documents)
        return status_fail(STATUS_USAGE, "--documents %s: the data set has the documents 0:%lld", range,
                           (long long)documents);
    *first = from;
    *end = to;
    return STATUS_OK;
}

static status detokenize_data(const options *o, const tokenizer *t)
{
    stored_reader from;
    int64_t first, end;
    TRY(stored_reader_open(&from, o->data));
    const indexed *x = from.data;
    status s = parse_range(&first, &end, o->range, indexed_documents(x));
    buffer_ids ids = {0};
    buffer text = {0};
    for (int64_t i = first; s == STATUS_OK && i < end; i++) {
        int64_t start = indexed_document_start(x, i), count = indexed_document_start(x, i + 1) - start;
        ids.count = text.length = 0;
        buffer_ids_reserve(&ids, count);
        s = indexed_read(x, ids.ids, start, count, tokenizer_vocab_size(t));
        if (s != STATUS_OK)
            break;
        tokenizer_decode(t, &text, ids.ids, count, o->skip_special);
        buffer_append(&text, "\n", 1);
        s = print_text(&text);
    }
    buffer_ids_free(&ids);
    buffer_free(&text);
    stored_reader_close(&from);
    return s;
}

static status run(const options *o)
{
    tokenizer *t;
    TRY(o->tokenizer ? tokenizer_files_open(&t, o->tokenizer) : tokenizer_files_open_beside(&t, o->data));
    status s = o->data ? detokenize_data(o, t) : detokenize_lines(o, t);
    tokenizer_close(t);
    if (s == STATUS_OK && fflush(stdout) != 0)
        s = status_fail(STATUS_FAILED, "standard output: %s", strerror(errno));
    return s;
}

int detokenize_main(int argc, char **argv)
{
    options o = {0};
    const options_row rows[] = {
        OPTION_TEXT("--tokenizer", "bytes|FILE", "as for tokenize (with --data: the copy stored with the data set)",
                    &o.tokenizer),
        OPTION_TEXT("--data", "PREFIX", "decode this data set, also s3://BUCKET/PREFIX, instead of standard input",
                    &o.data),
        OPTION_TEXT("--documents", "FIRST:END", "only these, from 0; END is not among them (all)", &o.range),
        OPTION_FLAG("--skip-special", "leave out special tokens such as the end of a document", &o.skip_special),
    };
    const options_command command = {.name = "detokenize",
                                     .operands = "",
                                     .summary = "Turns token ids into text: each line of whole numbers on standard "
                                                "input, or the documents of a data\nset, each followed by a line end.",
                                     OPTION_ROWS(rows)};
    int operands, parsed = options_parse(&command, &operands, argc, argv);
    if (parsed != OPTIONS_GO_ON)
        return parsed;
    status s = o.tokenizer || o.data ? STATUS_OK : status_fail(STATUS_USAGE, "--tokenizer or --data is missing");
    if (s == STATUS_OK && o.range && !o.data)
        s = status_fail(STATUS_USAGE, "--documents goes with --data");
    if (s == STATUS_OK)
        s = run(&o);
    if (s != STATUS_OK)
        log_error("detokenize: %s", status_message());
    return (int)s;
}
