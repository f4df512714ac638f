#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/files/indexed.h"
#include "engine/text/buffer.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/data/stored.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/data/dataset.h"
#include "tools/options.h"
#include "tools/stop.h"
#include "tools/tools.h"

typedef struct options {
    const char *prefix, *output;
    double fraction;
    int64_t seed;
    bool force;
} options;

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

/* splitmix64 of (seed, document): a document's lot depends on these two alone */
static uint64_t mix(uint64_t seed, uint64_t document)
{
    uint64_t z = (seed * 0xD1342543DE82EF95U ^ document) + 0x9E3779B97F4A7C15U;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9U;
    z = (z ^ z >> 27) * 0x94D049BB133111EBU;
    return z ^ z >> 31;
}

static int64_t tokens_of(const indexed *x, int64_t document)
{
    return indexed_document_start(x, document + 1) - indexed_document_start(x, document);
}

/* Marks the documents for validation: in the order of their lots, each that brings the tokens nearer to the wanted
 * number. If every document is too large for that, the smallest is taken; one always remains for training. */
static char *draw(const indexed *x, const options *o)
{
    int64_t documents = indexed_documents(x), taken = 0, count = 0, smallest = 0;
    char *chosen = must_calloc((unsigned long)documents, 1);
    AUTO_FREE lot *lots = must_alloc((unsigned long)documents * sizeof *lots);
    for (int64_t i = 0; i < documents; i++)
        lots[i] = (lot){mix((uint64_t)o->seed, (uint64_t)i), i};
    qsort(lots, (size_t)documents, sizeof *lots, by_number);
    double wanted = o->fraction * (double)indexed_tokens(x);
    for (int64_t i = 0; i < documents && count + 1 < documents; i++) {
        int64_t document = lots[i].document, tokens = tokens_of(x, document);
        if (tokens < tokens_of(x, smallest))
            smallest = document;
        if ((double)taken + (double)tokens / 2 > wanted)
            continue;
        chosen[document] = 1;
        taken += tokens;
        count++;
    }
    if (count == 0)
        chosen[smallest] = 1;
    return chosen;
}

/* Writes one of the parts; ends its output. */
static status write_part(dataset_output *to, indexed *x, const tokenizer *t, tokenizer_begin begin, const char *chosen,
                         int wanted)
{
    indexed_writer *w;
    const char *name = to->name;
    TRY(indexed_writer_open(&w, to->prefix, dataset_room(&x, 1)));
    RELEASED_BY(buffer_ids_free) buffer_ids ids = {0};
    status s = STATUS_OK;
    int64_t documents = 0, tokens = 0;
    for (int64_t i = 0; i < indexed_documents(x) && s == STATUS_OK; i++)
        if (chosen[i] == wanted) {
            s = dataset_copy(w, &ids, x, i);
            documents++;
            tokens += tokens_of(x, i);
        }
    s = dataset_finish(s, w);
    if (s == STATUS_OK && t)
        s = tokenizer_files_save_beside(t, to->prefix);
    if (s == STATUS_OK)
        s = tokenizer_files_save_begin(to->prefix, begin);
    s = dataset_output_end(to, s);
    if (s == STATUS_OK)
        log_info("%s: %lld documents, %lld tokens", name, (long long)documents, (long long)tokens);
    return s;
}

static char *part_path(const options *o, int part)
{
    static const char *const names[2] = {"train", "validation"};
    const char *base = o->output ? o->output : o->prefix;
    const char *between = *base && base[strlen(base) - 1] == '/' ? "" : "-";
    return must_format("%s%s%s", base, between, names[part]);
}

static status check_input(const options *o)
{
    if (object_is_url(o->prefix))
        return STATUS_OK; /* a store reports itself which file it lacks */
    AUTO_FREE char *index = must_format("%s.idx", o->prefix);
    bool there = atomic_exists(index);
    if (there)
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "%s.idx is not there: split divides a data set, which phalanx tokenize makes of %s", o->prefix,
                       atomic_exists(o->prefix) ? "this file" : "text");
}

static status open_input(stored_reader *from, const options *o)
{
    TRY(check_input(o));
    TRY(stored_reader_open(from, o->prefix));
    long long documents = indexed_documents(from->data);
    if (documents >= 2)
        return STATUS_OK;
    return status_fail(STATUS_FAILED,
                       "%s has %lld document%s, which cannot be divided in two: a text file is one document unless "
                       "phalanx tokenize --separator says what is between two (as '\\n\\n')",
                       o->prefix, documents, documents == 1 ? "" : "s");
}

static status split(const options *o)
{
    stored_reader from = {0};
    AUTO(tokenizer) *t = NULL;
    tokenizer_begin begin = TOKENIZER_BEGIN_UNKNOWN;
    status s = open_input(&from, o);
    indexed *x = from.data;
    if (s == STATUS_OK)
        s = dataset_tokenizer(&t, o->prefix);
    if (s == STATUS_OK)
        s = tokenizer_files_begin(&begin, o->prefix);
    AUTO_FREE char *training = part_path(o, 0), *validation = part_path(o, 1);
    dataset_output to[2] = {0};
    for (int part = 0; part < 2 && s == STATUS_OK; part++)
        s = dataset_output_open(&to[part], part ? validation : training, o->force);
    AUTO_FREE char *chosen = s == STATUS_OK ? draw(x, o) : NULL;
    for (int part = 0; part < 2 && s == STATUS_OK; part++)
        s = write_part(&to[part], x, t, begin, chosen, part);
    for (int part = 0; part < 2; part++)
        s = dataset_output_end(&to[part], s);
    stored_reader_close(&from);
    return s;
}

int split_main(int argc, char **argv)
{
    options o = {0};
    const options_row rows[] = {
        OPTION_NUMBER("--validation", "FRACTION", "share of the tokens for validation", &o.fraction, 0, 1),
        OPTION_TEXT("--output", "BASE", "write BASE-train and BASE-validation; of BASE/: BASE/train, ... (PREFIX)",
                    &o.output),
        OPTION_FLAG("--force", "replace data sets that are there", &o.force),
        OPTION_INTEGER("--seed", "N", "another N draws other documents (0)", &o.seed, 0, 1e15),
    };
    const options_command command = {
        .name = "split",
        .operands = "PREFIX",
        .summary =
            "Divides a data set's documents into one for training and one for validation: documents drawn at random\n"
            "until they hold the fraction of the tokens, in their old order, at least one in either. PREFIX may be a "
            "store's,\n"
            "s3://BUCKET/PREFIX; so may BASE.",
        .least = 1,
        .most = 1,
        OPTION_ROWS(rows)};
    int count, parsed = options_parse(&command, &count, argc, argv);
    if (parsed != OPTIONS_GO_ON)
        return parsed;
    o.prefix = argv[1];
    stop_catch();
    bool sound = o.fraction > 0 && o.fraction < 1;
    status s = sound ? split(&o) : status_fail(STATUS_USAGE, "--validation wants a number between 0 and 1");
    if (s != STATUS_OK)
        log_error("split: %s", status_message());
    return stop_exit(s);
}
