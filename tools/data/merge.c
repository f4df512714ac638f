#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

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

static status merge_tokenizers(const char *output, char *const *prefixes, int count)
{
    tokenizer *first = NULL, *other = NULL;
    status s = STATUS_OK;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        s = dataset_tokenizer(&other, prefixes[i]);
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
        s = tokenizer_files_save_beside(first, output);
    tokenizer_close(first);
    return s;
}

/* Finds the beginning of all inputs' documents; unknown if one does not record it. */
static status merge_begins(tokenizer_begin *out, char *const *prefixes, int count)
{
    tokenizer_begin each;
    TRY(tokenizer_files_begin(out, prefixes[0]));
    for (int i = 1; i < count; i++) {
        TRY(tokenizer_files_begin(&each, prefixes[i]));
        if (*out && each && each != *out)
            return status_fail(STATUS_FAILED,
                               "%s: its documents begin with another token than those of the data sets before it (%s, "
                               "not %s: phalanx help data): list them in data.train instead",
                               prefixes[i], tokenizer_begin_words[each], tokenizer_begin_words[*out]);
        *out = each ? *out : each;
    }
    return STATUS_OK;
}

static status merge_inputs(const char *output, const stored_reader *from, int count)
{
    indexed_writer *w;
    AUTO_FREE indexed **inputs = must_alloc((unsigned long)count * sizeof *inputs);
    for (int i = 0; i < count; i++)
        inputs[i] = from[i].data;
    TRY(indexed_writer_open(&w, output, dataset_room(inputs, count)));
    RELEASED_BY(buffer_ids_free) buffer_ids ids = {0};
    status s = STATUS_OK;
    for (int i = 0; i < count; i++)
        for (int64_t k = 0; k < indexed_documents(from[i].data) && s == STATUS_OK; k++)
            s = dataset_copy(w, &ids, from[i].data, k);
    return dataset_finish(s, w);
}

static status merge(const char *output, char *const *prefixes, int count, bool force)
{
    AUTO_FREE stored_reader *inputs = must_calloc((unsigned long)count, sizeof *inputs);
    status s = merge_tokenizers(NULL, prefixes, count);
    tokenizer_begin begin = TOKENIZER_BEGIN_UNKNOWN;
    if (s == STATUS_OK)
        s = merge_begins(&begin, prefixes, count);
    dataset_output to = {0};
    int64_t documents = 0, tokens = 0;
    for (int i = 0; i < count && s == STATUS_OK; i++) {
        if (strcmp(prefixes[i], output) == 0)
            s = status_fail(STATUS_USAGE, "--output %s is one of the inputs", output);
        else
            s = stored_reader_open(&inputs[i], prefixes[i]);
        if (s == STATUS_OK) {
            documents += indexed_documents(inputs[i].data);
            tokens += indexed_tokens(inputs[i].data);
        }
    }
    if (s == STATUS_OK)
        s = dataset_output_open(&to, output, force);
    if (s == STATUS_OK)
        s = merge_inputs(to.prefix, inputs, count);
    if (s == STATUS_OK)
        s = merge_tokenizers(to.prefix, prefixes, count);
    if (s == STATUS_OK)
        s = tokenizer_files_save_begin(to.prefix, begin);
    s = dataset_output_end(&to, s);
    if (s == STATUS_OK)
        log_info("%s: %lld documents, %lld tokens", output, (long long)documents, (long long)tokens);
    for (int i = 0; i < count; i++)
        stored_reader_close(&inputs[i]);
    return s;
}

int merge_main(int argc, char **argv)
{
    const char *output = NULL;
    bool force = false;
    const options_row rows[] = {
        OPTION_TEXT("--output", "PREFIX", "write PREFIX.bin and PREFIX.idx, here or to s3://BUCKET/PREFIX", &output),
        OPTION_FLAG("--force", "replace a data set that is there", &force),
    };
    stop_catch();
    const options_command command = {
        .name = "merge",
        .operands = "PREFIX...",
        .summary =
            "Writes the documents of several data sets (.bin/.idx), one set after the other, into one. Copies of\n"
            "the tokenizer stored with the inputs must be equal; one is stored with the result. Inputs may be a "
            "store's,\n"
            "s3://BUCKET/PREFIX.",
        .least = 1,
        .most = -1,
        OPTION_ROWS(rows)};
    int count, parsed = options_parse(&command, &count, argc, argv);
    if (parsed != OPTIONS_GO_ON)
        return parsed;
    status s = output ? merge(output, argv + 1, count, force) : status_fail(STATUS_USAGE, "--output is missing");
    if (s != STATUS_OK)
        log_error("merge: %s", status_message());
    return stop_exit(s);
}
