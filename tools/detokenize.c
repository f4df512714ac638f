#include "tools/detokenize.h"

#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/text/tokenizer.h"
#include "memory/log.h"
#include "tools/arguments.h"

static const char help[] =
    "usage: phalanx detokenize --tokenizer bytes|FILE < IDS\n"
    "       phalanx detokenize --data PREFIX [--documents FIRST:END] [--tokenizer bytes|FILE]\n"
    "\n"
    "Turns token ids into text on standard output: each line of whole numbers on standard input into one text and a\n"
    "line end; or the documents of a data set, with a line end behind each.\n"
    "\n"
    "  --tokenizer bytes|FILE  as for tokenize (default with --data: the copy beside the data set)\n"
    "  --data PREFIX           the data set PREFIX.bin, PREFIX.idx\n"
    "  --documents FIRST:END   only these, counted from 0; END is not among them (default: all)\n"
    "  --skip-special          leave out special tokens such as the end of a document\n"
    "  --help                  this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

typedef struct options {
    const char *tokenizer, *data, *range;
    bool skip_special;
} options;

enum { TOKENIZER = 256, DATA, DOCUMENTS, SKIP, HELP };

static const struct option long_options[] = {
    {"tokenizer", required_argument, NULL, TOKENIZER},
    {"data", required_argument, NULL, DATA},
    {"documents", required_argument, NULL, DOCUMENTS},
    {"skip-special", no_argument, NULL, SKIP},
    {"help", no_argument, NULL, HELP},
    {0},
};

static status parse(options *o, bool *asked, int argc, char **argv)
{
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        *asked = option == HELP;
        if (*asked)
            return STATUS_OK;
        if (option == '?' || option == ':')
            return arguments_unknown(argv, optind, option);
        if (option == TOKENIZER)
            o->tokenizer = optarg;
        if (option == DATA)
            o->data = optarg;
        if (option == DOCUMENTS)
            o->range = optarg;
        o->skip_special |= option == SKIP;
    }
    if (optind < argc)
        return status_fail(STATUS_USAGE, "unexpected %s (--help explains)", argv[optind]);
    if (!o->tokenizer && !o->data)
        return status_fail(STATUS_USAGE, "--tokenizer bytes|FILE is missing (--help explains)");
    return o->range && !o->data ? status_fail(STATUS_USAGE, "--documents goes with --data") : STATUS_OK;
}

static status put(const buffer *text)
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
            s = put(&text);
    }
    free(line);
    buffer_ids_free(&ids);
    buffer_free(&text);
    return s;
}

static status parse_range(int64_t *first, int64_t *end, const char *range, int64_t documents)
{
    *first = 0;
    *end = documents;
    if (!range)
        return STATUS_OK;
    char *copy = must_strdup(range), *colon = strchr(copy, ':');
    status s = STATUS_OK;
    if (!colon)
        s = status_fail(STATUS_USAGE, "--documents %s: wanted is FIRST:END", range);
    else {
        *colon = 0;
        if (*copy)
            s = arguments_whole(first, "--documents", copy, 0, documents);
        if (s == STATUS_OK && colon[1])
            s = arguments_whole(end, "--documents", colon + 1, *first, documents);
    }
    free(copy);
    return s;
}

static status detokenize_data(const options *o, const tokenizer *t)
{
    indexed *x;
    int64_t first, end;
    TRY(indexed_open(&x, o->data));
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
        s = put(&text);
    }
    buffer_ids_free(&ids);
    buffer_free(&text);
    indexed_close(x);
    return s;
}

static status run(const options *o)
{
    tokenizer *t;
    TRY(o->tokenizer ? tokenizer_open(&t, o->tokenizer) : tokenizer_open_beside(&t, o->data));
    status s = o->data ? detokenize_data(o, t) : detokenize_lines(o, t);
    tokenizer_close(t);
    if (s == STATUS_OK && fflush(stdout) != 0)
        s = status_fail(STATUS_FAILED, "standard output: %s", strerror(errno));
    return s;
}

int detokenize_main(int argc, char **argv)
{
    options o = {0};
    bool asked = false;
    status s = parse(&o, &asked, argc, argv);
    if (asked)
        fputs(help, stdout);
    else if (s == STATUS_OK)
        s = run(&o);
    if (s != STATUS_OK)
        log_error("detokenize: %s", status_message());
    return (int)s;
}
