#include "tools/tokenize.h"

#include <getopt.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "engine/files/atomic.h"
#include "engine/files/indexed.h"
#include "engine/text/corpus.h"
#include "engine/text/documents.h"
#include "engine/text/sentencepiece.h"
#include "engine/text/sentences.h"
#include "engine/text/tokenizer.h"
#include "memory/log.h"
#include "tools/arguments.h"

static const char help[] =
    "usage: phalanx tokenize --output PREFIX --tokenizer bytes|FILE [options] INPUT...|-\n"
    "\n"
    "Turns text into a data set, PREFIX.bin and PREFIX.idx (Megatron's format), and leaves a copy of the tokenizer\n"
    "beside it. Inputs are text files, or JSON-lines, plain or packed with gzip or zstd; - is standard input.\n"
    "\n"
    "  --output PREFIX         where to write; an older data set of that name is replaced at the end\n"
    "  --tokenizer bytes|FILE  the 256 bytes; a SentencePiece .model; a Hugging Face tokenizer.json (byte-level BPE);\n"
    "                          a folder that holds one\n"
    "  --train-vocab N         first train a SentencePiece model with N tokens on the inputs; it is written to FILE\n"
    "  --train-type TYPE       unigram (default) or bpe\n"
    "  --format FORMAT         text, jsonl, or auto (default): jsonl if --field is given or the file's name ends in\n"
    "                          .jsonl, .ndjson or .json (before .gz, .zst), else text\n"
    "  --field NAME            the field of a JSON line that holds the text (default text)\n"
    "  --separator TEXT        text files: what stands between documents, as in '\\n', '\\n\\n', '\\f' or\n"
    "                          '<|endoftext|>' (default: a file is one document)\n"
    "  --append-eod yes|no     put the end-of-document token behind each document (default yes)\n"
    "  --special-tokens WHAT   names of special tokens within the text: ids (default: each becomes its id, as\n"
    "                          Hugging Face does) or text (they are text like any other)\n"
    "  --threads N             threads that encode (default: the processors at hand); the result is the same\n"
    "  --quiet                 no progress\n"
    "  --help                  this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

typedef struct options {
    const char *output, *tokenizer;
    int64_t train_vocab, threads;
    int train_type, format, append_eod, special_text;
    bool quiet;
    char *separator;
    documents_settings documents;
    char *const *inputs;
    int count;
} options;

static const char *const types[] = {"unigram", "bpe", NULL};
static const char *const formats[] = {"auto", "text", "jsonl", NULL};
static const char *const no_yes[] = {"no", "yes", NULL};
static const char *const specials[] = {"ids", "text", NULL};

enum {
    OUTPUT = 256,
    TOKENIZER,
    TRAIN_VOCAB,
    TRAIN_TYPE,
    FORMAT,
    FIELD,
    SEPARATOR,
    APPEND,
    SPECIAL,
    THREADS,
    QUIET,
    HELP
};

static const struct option long_options[] = {
    {"output", required_argument, NULL, OUTPUT},
    {"tokenizer", required_argument, NULL, TOKENIZER},
    {"train-vocab", required_argument, NULL, TRAIN_VOCAB},
    {"train-type", required_argument, NULL, TRAIN_TYPE},
    {"format", required_argument, NULL, FORMAT},
    {"field", required_argument, NULL, FIELD},
    {"separator", required_argument, NULL, SEPARATOR},
    {"append-eod", required_argument, NULL, APPEND},
    {"special-tokens", required_argument, NULL, SPECIAL},
    {"threads", required_argument, NULL, THREADS},
    {"quiet", no_argument, NULL, QUIET},
    {"help", no_argument, NULL, HELP},
    {0},
};

static status parse_one(options *o, int option)
{
    switch (option) {
    case OUTPUT:
        o->output = optarg;
        return STATUS_OK;
    case TOKENIZER:
        o->tokenizer = optarg;
        return STATUS_OK;
    case TRAIN_VOCAB:
        return arguments_whole(&o->train_vocab, "--train-vocab", optarg, 300, 1 << 20);
    case TRAIN_TYPE:
        return arguments_choice(&o->train_type, "--train-type", optarg, types);
    case FORMAT:
        return arguments_choice(&o->format, "--format", optarg, formats);
    case FIELD:
        o->documents.field = optarg;
        return STATUS_OK;
    case SEPARATOR:
        free(o->separator);
        o->separator = NULL;
        return arguments_text(&o->separator, &o->documents.separator_length, "--separator", optarg);
    case APPEND:
        return arguments_choice(&o->append_eod, "--append-eod", optarg, no_yes);
    case SPECIAL:
        return arguments_choice(&o->special_text, "--special-tokens", optarg, specials);
    case THREADS:
        return arguments_whole(&o->threads, "--threads", optarg, 1, 1024);
    default:
        o->quiet = true;
        return STATUS_OK;
    }
}

/* *asked: help was wanted, and nothing else is to be done. */
static status parse(options *o, bool *asked, int argc, char **argv)
{
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        *asked = option == HELP;
        if (*asked)
            return STATUS_OK;
        if (option == '?' || option == ':')
            return arguments_unknown(argv, optind, option);
        TRY(parse_one(o, option));
    }
    o->inputs = argv + optind;
    o->count = argc - optind;
    if (!o->output || !o->tokenizer || o->count == 0)
        return status_fail(STATUS_USAGE, "%s is missing (--help explains)",
                           !o->output      ? "--output PREFIX"
                           : !o->tokenizer ? "--tokenizer bytes|FILE"
                                           : "the input");
    static const documents_format by_choice[] = {DOCUMENTS_BY_NAME, DOCUMENTS_TEXT, DOCUMENTS_JSON_LINES};
    o->documents.format = o->format == 0 && o->documents.field ? DOCUMENTS_JSON_LINES : by_choice[o->format];
    o->documents.separator = o->separator;
    if (o->train_vocab && strcmp(o->tokenizer, "bytes") == 0)
        return status_fail(STATUS_USAGE, "--train-vocab: the byte tokenizer is not trained; name a FILE to write");
    for (int i = 0; i < o->count; i++)
        if (o->train_vocab && strcmp(o->inputs[i], "-") == 0)
            return status_fail(STATUS_USAGE, "--train-vocab reads the input twice: standard input cannot be");
    return STATUS_OK;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static status train_vocabulary(const options *o)
{
    double start = now();
    documents *d;
    TRY(documents_open(&d, &o->documents, o->inputs, o->count));
    sentences *lines = sentences_open(d);
    sentencepiece_training how = {
        .vocab_size = o->train_vocab, .type = types[o->train_type], .most_sentences = 1000000, .threads = 4};
    if (!o->quiet)
        log_info("training a SentencePiece %s model of %lld tokens", how.type, (long long)how.vocab_size);
    buffer model = {0};
    status trained = sentencepiece_train(&model, &how, sentences_next, lines);
    status s = sentences_result(lines); /* a failure to read is the cause of what the trainer said */
    if (s == STATUS_OK)
        s = trained == STATUS_OK ? atomic_replace(o->tokenizer, model.bytes, model.length)
                                 : status_context(trained, "--train-vocab");
    if (s == STATUS_OK && !o->quiet)
        log_info("%s: %lld tokens from %.1f MB of text in %.1f s", o->tokenizer, (long long)how.vocab_size,
                 1e-6 * (double)sentences_bytes(lines), now() - start);
    buffer_free(&model);
    sentences_close(lines);
    documents_close(d);
    return s;
}

typedef struct work { /* what the sink and the ticks see */
    indexed_writer *writer;
    const documents *documents;
    double start, last;
    int64_t total; /* bytes of the input files; 0: unknown */
    bool shown;
} work;

static status take(void *context, const int32_t *ids, int64_t count)
{
    work *w = context;
    return indexed_writer_document(w->writer, ids, count);
}

static void show(void *context, const corpus_count *so_far)
{
    work *w = context;
    double time = now();
    if (time - w->last < 0.2)
        return;
    w->last = time;
    w->shown = true;
    double rate = 1e-6 * (double)so_far->bytes / (time - w->start + 1e-9);
    char share[32] = "";
    if (w->total > 0)
        snprintf(share, sizeof share, "%3.0f%%  ", 100.0 * (double)documents_consumed(w->documents) / (double)w->total);
    fprintf(stderr, "\r\033[K%s%.1f MB of text, %.1f MB/s, %lld documents, %.1f M tokens", share,
            1e-6 * (double)so_far->bytes, rate, (long long)so_far->documents, 1e-6 * (double)so_far->tokens);
}

static int64_t size_of_inputs(const options *o)
{
    int64_t total = 0;
    for (int i = 0; i < o->count; i++) {
        struct stat facts;
        if (strcmp(o->inputs[i], "-") == 0 || stat(o->inputs[i], &facts) != 0 || !S_ISREG(facts.st_mode))
            return 0;
        total += facts.st_size;
    }
    return total;
}

static status encode_all(const options *o, const tokenizer *t, corpus_count *done, work *w)
{
    documents *d;
    TRY(documents_open(&d, &o->documents, o->inputs, o->count));
    status s = indexed_writer_open(&w->writer, o->output, tokenizer_vocab_size(t));
    if (s == STATUS_OK) {
        corpus_settings settings = {.threads = (int)o->threads,
                                    .flags = o->special_text ? TOKENIZER_PLAIN : 0,
                                    .end_of_document = o->append_eod};
        w->documents = d;
        s = corpus_encode(t, d, &settings, done, take, !o->quiet && isatty(STDERR_FILENO) ? show : NULL, w);
        if (w->shown)
            fputs("\r\033[K", stderr);
        if (s == STATUS_OK && done->documents == 0)
            s = status_fail(STATUS_FAILED, "the input holds no text");
        if (s == STATUS_OK)
            s = tokenizer_save_beside(t, o->output);
        if (s == STATUS_OK)
            s = indexed_writer_close(w->writer);
        else
            indexed_writer_abandon(w->writer);
    }
    documents_close(d);
    return s;
}

static status run(options *o)
{
    if (o->train_vocab)
        TRY(train_vocabulary(o));
    tokenizer *t;
    TRY(tokenizer_open(&t, o->tokenizer));
    work w = {.start = now(), .total = size_of_inputs(o)};
    corpus_count done = {0};
    status s = encode_all(o, t, &done, &w);
    double seconds = now() - w.start;
    if (s == STATUS_OK && !o->quiet)
        log_info("%s: %lld documents, %.1f MB of text, %lld tokens of a vocabulary of %d (%.2f bytes a token), %.1f "
                 "MB/s",
                 o->output, (long long)done.documents, 1e-6 * (double)done.bytes, (long long)done.tokens,
                 tokenizer_vocab_size(t), (double)done.bytes / (double)done.tokens,
                 1e-6 * (double)done.bytes / (seconds + 1e-9));
    tokenizer_close(t);
    return s;
}

int tokenize_main(int argc, char **argv)
{
    options o = {.append_eod = 1};
    cpu_set_t processors;
    o.threads = sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
    bool asked = false;
    status s = parse(&o, &asked, argc, argv);
    if (asked)
        fputs(help, stdout);
    else if (s == STATUS_OK)
        s = run(&o);
    if (s != STATUS_OK)
        log_error("tokenize: %s", status_message());
    free(o.separator);
    return (int)s;
}
