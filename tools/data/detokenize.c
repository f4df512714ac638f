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
#include "memory/scope.h"
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
        if (id < 0 || id >= tokenizer_vocab_size(t))
            return status_fail(STATUS_FAILED, "standard input:%lld: the id %lld is outside the vocabulary of %d",
                               number, id, tokenizer_vocab_size(t));
        buffer_ids_append(ids, &(int32_t){(int32_t)id}, 1);
    }
}

static status detokenize_lines(const options *o, const tokenizer *t)
{
    AUTO_FREE char *line = NULL;
    size_t room = 0;
    RELEASED_BY(buffer_ids_free) buffer_ids ids = {0};
    RELEASED_BY(buffer_free) buffer text = {0};
    for (long long number = 1; getline(&line, &room, stdin) >= 0; number++) {
        TRY(read_line(&ids, t, line, number));
        text.length = 0;
        tokenizer_decode(t, &text, ids.ids, ids.count, o->skip_special);
        buffer_append(&text, "\n", 1);
        TRY(print_text(&text));
    }
    return STATUS_OK;
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
    RELEASED_BY(stored_reader_close) stored_reader from = {0};
    RELEASED_BY(buffer_ids_free) buffer_ids ids = {0};
    RELEASED_BY(buffer_free) buffer text = {0};
    int64_t first, end;
    TRY(stored_reader_open(&from, o->data));
    const indexed *x = from.data;
    TRY(parse_range(&first, &end, o->range, indexed_documents(x)));
    for (int64_t i = first; i < end; i++) {
        int64_t start = indexed_document_start(x, i), count = indexed_document_start(x, i + 1) - start;
        ids.count = text.length = 0;
        buffer_ids_reserve(&ids, count);
        TRY(indexed_read(x, ids.ids, start, count, tokenizer_vocab_size(t)));
        tokenizer_decode(t, &text, ids.ids, count, o->skip_special);
        buffer_append(&text, "\n", 1);
        TRY(print_text(&text));
    }
    return STATUS_OK;
}

static status run(const options *o)
{
    AUTO(tokenizer) *t = NULL;
    TRY(o->tokenizer ? tokenizer_files_open(&t, o->tokenizer) : tokenizer_files_open_beside(&t, o->data));
    TRY(o->data ? detokenize_data(o, t) : detokenize_lines(o, t));
    return fflush(stdout) == 0 ? STATUS_OK : status_fail(STATUS_FAILED, "standard output: %s", strerror(errno));
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
