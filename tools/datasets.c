#include "tools/datasets.h"

#include <getopt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/text/tokenizer.h"
#include "memory/log.h"
#include "tools/arguments.h"

static const char merge_help[] =
    "usage: phalanx merge --output PREFIX PREFIX...\n"
    "\n"
    "Writes the documents of several data sets (.bin/.idx), one set behind the other, into one. The sets must come "
    "from\n"
    "one tokenizer: where copies of it stand beside them, they must be equal, and one is put beside the result.\n"
    "\n"
    "  --output PREFIX  where to write PREFIX.bin and PREFIX.idx\n"
    "  --help           this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

static const char split_help[] =
    "usage: phalanx split PREFIX --validation FRACTION [--output BASE] [--seed N]\n"
    "\n"
    "Divides a data set's documents into one for training and one for validation: documents drawn at random until "
    "they\n"
    "hold the fraction of the tokens, in their old order. At least one document goes to either.\n"
    "\n"
    "  --validation FRACTION  share of the tokens for validation, between 0 and 1\n"
    "  --output BASE          writes BASE-train and BASE-validation; BASE/ writes BASE/train and BASE/validation\n"
    "                         (default: PREFIX)\n"
    "  --seed N               another N draws other documents (default 0)\n"
    "  --help                 this text\n"
    "\n"
    "Exit status: 0 done, 1 failed, 2 wrong usage.\n";

#define ANY_ID ((int64_t)INT32_MAX + 1) /* a vocabulary in which every stored id lies */

/* The vocabulary size by which a writer chooses the narrowest type that all inputs fit. */
static int64_t room_of(indexed *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(indexed_dtype(inputs[i]), "uint16") != 0 && strcmp(indexed_dtype(inputs[i]), "uint8") != 0)
            return ANY_ID - 1;
    return 65499;
}

static status copy_document(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document)
{
    int64_t start = indexed_document_start(x, document), count = indexed_document_start(x, document + 1) - start;
    ids->count = 0;
    buffer_ids_reserve(ids, count + 1);
    TRY(indexed_read(x, ids->ids, start, count, ANY_ID));
    return indexed_writer_document(w, ids->ids, count);
}

static status finish(status s, indexed_writer *w)
{
    if (s == STATUS_OK)
        return indexed_writer_close(w);
    indexed_writer_abandon(w);
    return s;
}

/* The tokenizer beside a data set; NULL when there is none. One that is there but damaged is a failure. */
static status find_tokenizer(tokenizer **out, const char *prefix)
{
    *out = NULL;
    return tokenizer_is_beside(prefix) ? tokenizer_open_beside(out, prefix) : STATUS_OK;
}

/* --- merge -------------------------------------------------------------------------------------------------------- */

static status merge_tokenizers(const char *output, char *const *prefixes, int count)
{
    tokenizer *first = NULL, *other = NULL;
    status s = STATUS_OK;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        s = find_tokenizer(&other, prefixes[i]);
        if (s == STATUS_OK && first && other && !tokenizer_equal(first, other))
            s = status_fail(STATUS_FAILED, "%s comes from another tokenizer than the data sets before it", prefixes[i]);
        if (!first) {
            first = other;
            other = NULL;
        }
        tokenizer_close(other);
        other = NULL;
    }
    if (s == STATUS_OK && first && output)
        s = tokenizer_save_beside(first, output);
    tokenizer_close(first);
    return s;
}

static status merge_inputs(const char *output, indexed *const *inputs, int count)
{
    indexed_writer *w;
    TRY(indexed_writer_open(&w, output, room_of(inputs, count)));
    buffer_ids ids = {0};
    status s = STATUS_OK;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < indexed_documents(inputs[i]) && s == STATUS_OK; k++)
            s = copy_document(w, &ids, inputs[i], k);
    buffer_ids_free(&ids);
    return finish(s, w);
}

static status merge(const char *output, char *const *prefixes, int count)
{
    indexed **inputs = must_calloc((unsigned long)count, sizeof *inputs);
    status s = merge_tokenizers(NULL, prefixes, count);
    int64_t documents = 0, tokens = 0;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        if (strcmp(prefixes[i], output) == 0)
            s = status_fail(STATUS_USAGE, "--output %s is one of the inputs", output);
        else
            s = indexed_open(&inputs[i], prefixes[i]);
        if (s == STATUS_OK) {
            documents += indexed_documents(inputs[i]);
            tokens += indexed_tokens(inputs[i]);
        }
    }
    if (s == STATUS_OK)
        s = merge_inputs(output, inputs, count);
    if (s == STATUS_OK)
        s = merge_tokenizers(output, prefixes, count);
    if (s == STATUS_OK)
        log_info("%s: %lld documents, %lld tokens", output, (long long)documents, (long long)tokens);
    for (int i = 0; i < count; i++)
        indexed_close(inputs[i]);
    free(inputs);
    return s;
}

enum { OUTPUT = 256, VALIDATION, SEED, HELP };

int datasets_merge_main(int argc, char **argv)
{
    static const struct option long_options[] = {
        {"output", required_argument, NULL, OUTPUT}, {"help", no_argument, NULL, HELP}, {0}};
    const char *output = NULL;
    status s = STATUS_OK;
    optind = 0;
    for (int option; s == STATUS_OK && (option = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        if (option == HELP) {
            fputs(merge_help, stdout);
            return 0;
        }
        if (option == OUTPUT)
            output = optarg;
        else
            s = arguments_unknown(argv, optind, option);
    }
    if (s == STATUS_OK && (!output || optind == argc))
        s = status_fail(STATUS_USAGE, "%s is missing (--help explains)", output ? "the input" : "--output PREFIX");
    if (s == STATUS_OK)
        s = merge(output, argv + optind, argc - optind);
    if (s != STATUS_OK)
        log_error("merge: %s", status_message());
    return (int)s;
}

/* --- split -------------------------------------------------------------------------------------------------------- */

typedef struct split_options {
    const char *prefix, *output;
    double fraction;
    int64_t seed;
} split_options;

typedef struct lot {
    uint64_t number;
    int64_t document;
} lot;

static int by_number(const void *left, const void *right)
{
    const lot *a = left, *b = right;
    if (a->number != b->number)
        return a->number < b->number ? -1 : 1;
    return (a->document > b->document) - (a->document < b->document);
}

/* splitmix64 of (seed, document): a document's lot depends on nothing else */
static uint64_t mix(uint64_t seed, uint64_t document)
{
    uint64_t z = (seed * 0xD1342543DE82EF95U ^ document) + 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

/* Which documents are for validation. */
static char *draw(const indexed *x, const split_options *o)
{
    int64_t documents = indexed_documents(x), taken = 0;
    char *chosen = must_calloc((unsigned long)documents, 1);
    lot *lots = must_alloc((unsigned long)documents * sizeof *lots);
    for (int64_t i = 0; i < documents; i++)
        lots[i] = (lot){mix((uint64_t)o->seed, (uint64_t)i), i};
    qsort(lots, (size_t)documents, sizeof *lots, by_number);
    double wanted = o->fraction * (double)indexed_tokens(x);
    for (int64_t i = 0; i + 1 < documents && (i == 0 || (double)taken < wanted); i++) {
        int64_t document = lots[i].document;
        chosen[document] = 1;
        taken += indexed_document_start(x, document + 1) - indexed_document_start(x, document);
    }
    free(lots);
    return chosen;
}

static status write_part(const char *path, indexed *x, const char *chosen, int wanted)
{
    indexed_writer *w;
    TRY(indexed_writer_open(&w, path, room_of(&x, 1)));
    buffer_ids ids = {0};
    status s = STATUS_OK;
    int64_t documents = 0, tokens = 0;
    for (int64_t i = 0; i < indexed_documents(x) && s == STATUS_OK; i++)
        if (chosen[i] == wanted) {
            s = copy_document(w, &ids, x, i);
            documents++;
            tokens += indexed_document_start(x, i + 1) - indexed_document_start(x, i);
        }
    buffer_ids_free(&ids);
    s = finish(s, w);
    if (s == STATUS_OK)
        log_info("%s: %lld documents, %lld tokens", path, (long long)documents, (long long)tokens);
    return s;
}

static status split(const split_options *o)
{
    static const char *const names[2] = {"train", "validation"};
    indexed *x;
    tokenizer *t = NULL;
    TRY(indexed_open(&x, o->prefix));
    status s = find_tokenizer(&t, o->prefix);
    if (s == STATUS_OK && indexed_documents(x) < 2)
        s = status_fail(STATUS_FAILED, "%s has %lld documents: they cannot be divided in two", o->prefix,
                        (long long)indexed_documents(x));
    char *chosen = s == STATUS_OK ? draw(x, o) : NULL;
    const char *base = o->output ? o->output : o->prefix;
    const char *between = *base && base[strlen(base) - 1] == '/' ? "" : "-";
    for (int part = 0; part < 2 && s == STATUS_OK; part++) {
        char *path = must_format("%s%s%s", base, between, names[part]);
        s = write_part(path, x, chosen, part);
        if (s == STATUS_OK && t)
            s = tokenizer_save_beside(t, path);
        free(path);
    }
    free(chosen);
    tokenizer_close(t);
    indexed_close(x);
    return s;
}

static status parse_split(split_options *o, bool *asked, int argc, char **argv)
{
    static const struct option long_options[] = {{"output", required_argument, NULL, OUTPUT},
                                                 {"validation", required_argument, NULL, VALIDATION},
                                                 {"seed", required_argument, NULL, SEED},
                                                 {"help", no_argument, NULL, HELP},
                                                 {0}};
    optind = 0;
    for (int option; (option = getopt_long(argc, argv, ":", long_options, NULL)) != -1;) {
        *asked = option == HELP;
        if (*asked)
            return STATUS_OK;
        if (option == OUTPUT)
            o->output = optarg;
        else if (option == VALIDATION)
            TRY(arguments_fraction(&o->fraction, "--validation", optarg));
        else if (option == SEED)
            TRY(arguments_whole(&o->seed, "--seed", optarg, 0, INT64_MAX));
        else
            return arguments_unknown(argv, optind, option);
    }
    if (argc - optind != 1)
        return status_fail(STATUS_USAGE, "wanted is one PREFIX, not %d (--help explains)", argc - optind);
    o->prefix = argv[optind];
    return o->fraction > 0 ? STATUS_OK : status_fail(STATUS_USAGE, "--validation FRACTION is missing");
}

int datasets_split_main(int argc, char **argv)
{
    split_options o = {0};
    bool asked = false;
    status s = parse_split(&o, &asked, argc, argv);
    if (asked)
        fputs(split_help, stdout);
    else if (s == STATUS_OK)
        s = split(&o);
    if (s != STATUS_OK)
        log_error("split: %s", status_message());
    return (int)s;
}
