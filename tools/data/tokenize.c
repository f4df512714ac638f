#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "engine/train/report/report.h"
#include "engine/data/corpus.h"
#include "engine/store/object.h"
#include "engine/text/documents.h"
#include "engine/text/source.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/data/tokenizer_files.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/data/dataset.h"
#include "tools/data/tokenize_parts.h"
#include "tools/options.h"
#include "tools/stop.h"
#include "tools/tools.h"

typedef struct options {
    const char *output, *tokenizer, *separator, *skip_bad, *files_from, *part;
    int64_t train_vocab, threads;
    int train_type, format, append_eod, special_text;
    bool quiet, force, begin;
    documents_settings documents;
    inputs inputs;
    dataset_output place;
} options;

static const char *const types[] = {"unigram", "bpe", NULL};
static const char *const formats[] = {"auto", "text", "jsonl", NULL};
static const char *const no_yes[] = {"no", "yes", NULL};
static const char *const specials[] = {"ids", "text", NULL};

static void more_help(FILE *out)
{
    fputs(
        "Inputs are files, packed with gzip, zstd, xz or bzip2 or not, and folders, which stand for all files below\n"
        "them with names of these kinds (.txt, .md, .jsonl, .parquet, ...; no hidden ones), sorted; so are objects of\n"
        "a store, s3://BUCKET/KEY, and s3://BUCKET/PREFIX/ (phalanx help storage). --format auto looks at each file:\n"
        "Parquet or Arrow by its first bytes (`phalanx help data`: they want libphalanx_parquet.so beside phalanx);\n"
        "JSON-lines if the first line is a JSON object or the name ends in .jsonl, .ndjson or .json (before .gz and\n"
        "so on) or --field is given; else UTF-8 text. Anything else (archives, other encodings) is refused with what\n"
        "to do; --format text takes it as it is. Without --separator a text file is one document; TEXT may have \\n\n"
        "\\t \\f \\r \\0 \\xHH, as in '\\n\\n' or '<|endoftext|>'. Documents without text are passed over. A bad "
        "record\n"
        "(no valid JSON, the field missing, null or no string, a row that is null) is an error that names its line or\n"
        "row; --skip-bad leaves such records out and lists them. --part I/N reads the I-th of N equal parts of the\n"
        "inputs' bytes, from 1, on as many machines: packed files are whole in one part, others divided between\n"
        "records; `phalanx merge` of the parts' data sets in order is, byte for byte, what one machine makes. A\n"
        "tokenizer FILE is a SentencePiece .model, a Hugging Face tokenizer.json of byte-level BPE, or a folder that\n"
        "holds one; a copy of it is stored with the data set. A store's data set is first made below $TMPDIR, then\n"
        "uploaded, its index last. The result is the same for any --threads.\n",
        out);
}

/* Unescapes the text of --separator into bytes that the caller frees. */
static status unescape(char **out, int64_t *length, const char *text)
{
    static const char letters[] = "nrtf0\\", bytes[] = "\n\r\t\f\0\\";
    char *made = must_alloc(strlen(text) + 1);
    int64_t used = 0;
    for (const char *at = text; *at; at++) {
        if (*at != '\\') {
            made[used++] = *at;
            continue;
        }
        at++;
        const char *letter = *at ? strchr(letters, *at) : NULL;
        if (letter) {
            made[used++] = bytes[letter - letters];
        } else if (*at == 'x' && isxdigit((unsigned char)at[1]) && isxdigit((unsigned char)at[2])) {
            made[used++] = (char)strtol((char[]){at[1], at[2], 0}, NULL, 16);
            at += 2;
        } else {
            free(made);
            return status_fail(STATUS_USAGE, "--separator %s: a backslash is followed by n, r, t, f, 0, xHH or another",
                               text);
        }
    }
    *out = made;
    *length = used;
    return used ? STATUS_OK : status_fail(STATUS_USAGE, "--separator: the text is empty");
}

/* Reads "3/16": the third part of sixteen. */
static status read_part(documents_settings *d, const char *text)
{
    long long part, parts;
    int end = 0;
    if (sscanf(text, "%lld/%lld%n", &part, &parts, &end) != 2 || text[end] || part < 1 || part > parts ||
        parts > 1000000)
        return status_fail(STATUS_USAGE, "--part %s: I/N is the I-th of N parts, counted from 1, as in 1/16 to 16/16",
                           text);
    d->part = part - 1;
    d->parts = parts;
    return STATUS_OK;
}

static status check_inputs(const options *o)
{
    bool standard = false;
    for (int i = 0; i < o->inputs.count; i++)
        standard |= strcmp(o->inputs.paths[i], "-") == 0;
    if (o->inputs.count == 0)
        return status_fail(STATUS_USAGE, "no input: name files or folders, --files-from FILE, or - (standard input)");
    if (standard && o->files_from && strcmp(o->files_from, "-") == 0)
        return status_fail(STATUS_USAGE, "--files-from -: standard input cannot be a list and an input, too");
    if (standard && o->train_vocab)
        return status_fail(STATUS_USAGE, "--train-vocab reads the input twice: standard input cannot be");
    if (o->part && o->train_vocab)
        return status_fail(STATUS_USAGE,
                           "--part and --train-vocab: the parts need one vocabulary: train it first, from all inputs");
    return STATUS_OK;
}

/* Checks the rules that the table of options cannot express. */
static status check_options(options *o, char **separator)
{
    static const documents_format by_choice[] = {DOCUMENTS_SNIFF, DOCUMENTS_TEXT, DOCUMENTS_JSON_LINES};
    if (!o->output || !o->tokenizer)
        return status_fail(STATUS_USAGE, "%s is missing; `phalanx tokenize --help` explains",
                           o->output ? "--tokenizer" : "--output");
    o->documents.format = o->format == 0 && o->documents.field ? DOCUMENTS_FIELDS : by_choice[o->format];
    if (o->separator)
        TRY(unescape(separator, &o->documents.separator_length, o->separator));
    o->documents.separator = *separator;
    if (o->part)
        TRY(read_part(&o->documents, o->part));
    if (o->train_vocab && strcmp(o->tokenizer, "bytes") == 0)
        return status_fail(STATUS_USAGE, "--train-vocab: the byte tokenizer is not trained; name a FILE to write");
    if (o->train_vocab)
        TRY(dataset_is_here("--tokenizer with --train-vocab:", o->tokenizer));
    if (o->skip_bad)
        TRY(dataset_is_here("--skip-bad", o->skip_bad));
    return check_inputs(o);
}

static status train_tokenizer(const options *o, int64_t total)
{
    const train_vocab_options how = {.output = o->tokenizer,
                                     .type = types[o->train_type],
                                     .vocab_size = o->train_vocab,
                                     .total = total,
                                     .skip_bad = o->skip_bad != NULL,
                                     .quiet = o->quiet};
    AUTO(documents) *d = NULL;
    TRY(documents_open(&d, &o->documents, o->inputs.paths, o->inputs.count));
    return train_vocab(&how, d);
}

typedef struct work { /* context of the sink and of the ticks */
    indexed_writer *writer;
    rejects *rejects; /* NULL: a bad record is a failure */
    const documents *documents;
    report_progress bar;
    bool quiet;
} work;

static status take_ids(void *context, const int32_t *ids, int64_t count)
{
    work *w = context;
    return indexed_writer_document(w->writer, ids, count);
}

static status add_reject(void *context, const char *list, int64_t length)
{
    work *w = context;
    return rejects_add(w->rejects, list, length);
}

static status show_progress(void *context, const corpus_count *so_far)
{
    work *w = context;
    (void)so_far;
    if (!w->quiet)
        report_progress_update(&w->bar, (double)documents_consumed(w->documents));
    return stop_asked();
}

/* Sums the bytes to be read, for the progress bar; 0: unknown. Asks for each object's size, unless there are many. */
static status sum_input_bytes(int64_t *out, const options *o)
{
    enum { MANY = 100 };
    int64_t total = 0;
    *out = 0;
    for (int i = 0; i < o->inputs.count; i++) {
        int64_t bytes = 0;
        const char *path = o->inputs.paths[i];
        if (strcmp(path, "-") == 0 || (object_is_url(path) && o->inputs.count > MANY))
            return STATUS_OK;
        status s = source_size(&bytes, path);
        if (s != STATUS_OK)
            return object_is_url(path) ? s : STATUS_OK; /* a later open reports a missing file */
        total += bytes;
    }
    *out = o->documents.parts ? total / o->documents.parts : total;
    return STATUS_OK;
}

/* Encodes all documents into the writer of `w`. */
static status encode_documents(const options *o, const tokenizer *t, corpus_count *done, work *w, documents *d)
{
    const corpus_settings settings = {.threads = (int)o->threads,
                                      .flags = o->special_text ? TOKENIZER_PLAIN : 0,
                                      .begin = o->begin,
                                      .end_of_document = o->append_eod,
                                      .reject = w->rejects ? add_reject : NULL};
    w->documents = d;
    status s = corpus_encode(t, d, &settings, done, take_ids, show_progress, w);
    report_progress_end(&w->bar);
    if (s != STATUS_OK && done->bad && !w->rejects) {
        AUTO_FREE char *message = must_strdup(status_message());
        s = status_fail(s, "%s; --skip-bad FILE leaves bad records out and lists them there", message);
    }
    if (s == STATUS_OK && done->documents == 0 && !o->part)
        s = status_fail(STATUS_FAILED,
                        done->bad ? "the input holds no text but %lld bad records" : "the input holds no text",
                        (long long)done->bad);
    return s;
}

/* Publishes the output, the index last, or removes it. */
static status publish_outputs(const options *o, const tokenizer *t, work *w, status s)
{
    if (s == STATUS_OK)
        s = tokenizer_files_save_beside(t, o->place.prefix);
    if (s == STATUS_OK)
        s = tokenizer_files_save_begin(o->place.prefix, o->begin        ? TOKENIZER_BEGIN_TOKEN
                                                        : o->append_eod ? TOKENIZER_BEGIN_END
                                                                        : TOKENIZER_BEGIN_NOTHING);
    if (s == STATUS_OK && w->rejects) {
        s = rejects_close(w->rejects);
        w->rejects = NULL;
    }
    rejects_abandon(w->rejects);
    return dataset_finish(s, w->writer);
}

static status encode_all(const options *o, const tokenizer *t, corpus_count *done, int64_t total)
{
    AUTO(documents) *d = NULL;
    work w = {.quiet = o->quiet, .bar = report_progress_begin(stderr, "tokenizing", (double)total, true)};
    TRY(documents_open(&d, &o->documents, o->inputs.paths, o->inputs.count));
    status s = indexed_writer_open(&w.writer, o->place.prefix, tokenizer_vocab_size(t));
    if (s == STATUS_OK) {
        s = o->skip_bad ? rejects_open(&w.rejects, o->skip_bad) : STATUS_OK;
        if (s == STATUS_OK)
            s = encode_documents(o, t, done, &w, d);
        s = publish_outputs(o, t, &w, s);
    }
    return s;
}

static void print_counts(const options *o, const tokenizer *t, const corpus_count *done, double seconds)
{
    if (!o->quiet)
        log_info("%s: %lld documents, %.1f MB of text, %lld tokens of a vocabulary of %d (%.2f bytes a token), %.1f "
                 "MB/s",
                 o->output, (long long)done->documents, 1e-6 * (double)done->bytes, (long long)done->tokens,
                 tokenizer_vocab_size(t), (double)done->bytes / (double)(done->tokens ? done->tokens : 1),
                 1e-6 * (double)done->bytes / (seconds + 1e-9));
    if (done->bad)
        log_warn("%lld bad records are left out: %s says which and why", (long long)done->bad, o->skip_bad);
    if (done->malformed)
        log_warn("%lld of the documents are not all UTF-8: what is not became U+FFFD", (long long)done->malformed);
}

static status check_outputs(options *o)
{
    TRY(dataset_output_open(&o->place, o->output, o->force));
    if (o->skip_bad)
        TRY(rejects_check(o->skip_bad, o->inputs.paths, o->inputs.count, o->force));
    bool there = false;
    if (o->train_vocab && !o->force)
        TRY(atomic_look(&there, o->tokenizer));
    if (there)
        return status_fail(STATUS_FAILED,
                           "%s is there already: use it without --train-vocab, or replace it with --force",
                           o->tokenizer);
    return o->train_vocab ? dataset_make_parent(o->tokenizer) : STATUS_OK;
}

static status tokenize(options *o)
{
    int64_t total;
    TRY(sum_input_bytes(&total, o));
    TRY(check_outputs(o));
    if (o->train_vocab)
        TRY(train_tokenizer(o, total));
    AUTO(tokenizer) *t = NULL;
    TRY(tokenizer_files_open(&t, o->tokenizer));
    double start = clock_seconds();
    corpus_count done = {0};
    status s = dataset_output_end(&o->place, encode_all(o, t, &done, total));
    if (s == STATUS_OK)
        print_counts(o, t, &done, clock_seconds() - start);
    return s;
}

int tokenize_main(int argc, char **argv)
{
    cpu_set_t processors;
    options o = {.append_eod = 1};
    o.threads = sched_getaffinity(0, sizeof processors, &processors) == 0 ? CPU_COUNT(&processors) : 1;
    const options_row rows[] = {
        OPTION_TEXT("--output", "PREFIX", "write PREFIX.bin and PREFIX.idx, here or to s3://BUCKET/PREFIX", &o.output),
        OPTION_TEXT("--tokenizer", "bytes|FILE", "the 256 bytes, or what FILE holds", &o.tokenizer),
        OPTION_INTEGER("--train-vocab", "N", "first train a SentencePiece model of N tokens, written to FILE",
                       &o.train_vocab, 300, 1 << 20),
        OPTION_CHOICE("--train-type", "what kind of model (unigram)", &o.train_type, types),
        OPTION_CHOICE("--format", "what the inputs are (auto)", &o.format, formats),
        OPTION_TEXT("--field", "NAME", "field of a JSON line, or column, that holds the text (text)",
                    &o.documents.field),
        OPTION_TEXT("--separator", "TEXT", "what separates the documents of a text file", &o.separator),
        OPTION_CHOICE("--append-eod", "end each document with the tokenizer's end (yes)", &o.append_eod, no_yes),
        OPTION_FLAG("--begin", "begin each document with the tokenizer's bos (else the end before it does)", &o.begin),
        OPTION_CHOICE("--special-tokens", "names of special tokens within the text become (ids)", &o.special_text,
                      specials),
        OPTION_TEXT("--skip-bad", "FILE", "leave bad records out and list them in FILE: place and reason", &o.skip_bad),
        OPTION_TEXT("--files-from", "FILE", "read the inputs' names from FILE (-: standard input), one a line",
                    &o.files_from),
        OPTION_TEXT("--part", "I/N", "read only the I-th (from 1) of N parts of the inputs", &o.part),
        OPTION_INTEGER("--threads", "N", "threads that encode (the processors at hand)", &o.threads, 1, 1024),
        OPTION_FLAG("--force", "replace a data set or a vocabulary that is there", &o.force),
        OPTION_FLAG("--quiet", "say nothing but what fails", &o.quiet),
    };
    const options_command command = {.name = "tokenize",
                                     .operands = "INPUT...|-|--files-from FILE",
                                     .summary =
                                         "Turns text, JSON-lines or Parquet into a data set of token ids (Megatron's "
                                         ".bin/.idx); - is standard input.",
                                     .least = 0,
                                     .most = -1,
                                     OPTION_ROWS(rows),
                                     .more_help = more_help};
    int count, parsed = options_parse(&command, &count, argc, argv);
    if (parsed != OPTIONS_GO_ON)
        return parsed;
    AUTO_FREE char *separator = NULL;
    stop_catch();
    o.inputs.quiet = o.quiet;
    status s = STATUS_OK;
    for (int i = 1; i <= count && s == STATUS_OK; i++)
        s = inputs_add(&o.inputs, argv[i]);
    if (s == STATUS_OK && o.files_from)
        s = inputs_add_list(&o.inputs, o.files_from);
    if (s == STATUS_OK)
        s = check_options(&o, &separator);
    if (s == STATUS_OK)
        s = dataset_output_end(&o.place, tokenize(&o));
    if (s != STATUS_OK)
        log_error("tokenize: %s", status_message());
    inputs_free(&o.inputs);
    return stop_exit(s);
}
