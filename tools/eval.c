/* phalanx eval: the loss of a model on a data set or a text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <omp.h>

#include "engine/batch.h"
#include "engine/files/indexed.h"
#include "engine/report.h"
#include "engine/state.h"
#include "engine/text/documents.h"
#include "engine/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "tools/options.h"
#include "tools/tools.h"

static const char *const precisions[] = {"fp32", "bf16", "fp16", NULL};
static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

typedef struct settings {
    const char *checkpoint, *data, *text;
    int64_t sequence, batch, limit;
    int precision;
    bool json;
} settings;

/* All tokens to be predicted, end to end. */
typedef struct evaluation {
    const settings *set;
    weights *from;
    buffer_ids tokens;
    int64_t bytes; /* of a text; 0: unknown */
    compiled compiled;
    executor *executor;
    double loss, seconds;
    int64_t counted;
} evaluation;

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

static status read_text(evaluation *e)
{
    tokenizer *t = NULL;
    TRY(weights_tokenizer(&t, e->from));
    tokenizer_scratch *scratch = tokenizer_scratch_open(t);
    documents *d = NULL;
    const documents_settings plain = {.format = DOCUMENTS_BY_NAME};
    char *inputs[] = {(char *)(size_t)e->set->text};
    status s = documents_open(&d, &plain, inputs, 1);
    buffer raw_bytes = {0}, made = {0};
    bool more = s == STATUS_OK;
    while (more && s == STATUS_OK) {
        documents_raw raw;
        const char *text;
        int64_t length;
        raw_bytes.length = 0;
        s = documents_next(d, &raw_bytes, &raw, &more);
        if (s != STATUS_OK || !more)
            break;
        s = documents_text(d, &text, &length, &made, raw_bytes.bytes + raw.offset, &raw);
        if (s == STATUS_OK)
            s = tokenizer_encode(t, scratch, &e->tokens, text, length, TOKENIZER_FRAME);
        e->bytes += length;
        int32_t end = tokenizer_end_of_document(t);
        if (end >= 0)
            buffer_ids_append(&e->tokens, &end, 1);
    }
    buffer_free(&raw_bytes);
    buffer_free(&made);
    documents_close(d);
    tokenizer_scratch_close(scratch);
    tokenizer_close(t);
    return s;
}

static status read_data(evaluation *e)
{
    indexed *x = NULL;
    TRY(indexed_open(&x, e->set->data));
    int64_t count = indexed_tokens(x);
    if (e->set->limit > 0 && count > e->set->limit + 1)
        count = e->set->limit + 1;
    buffer_ids_reserve(&e->tokens, count);
    status s = indexed_read(x, e->tokens.ids, 0, count, weights_shape(e->from)->vocab_size);
    e->tokens.count = count;
    indexed_close(x);
    return s;
}

/* ---- losses ----------------------------------------------------------------------------------------------------- */

/* Windows of `sequence` tokens, each predicted from what stands before it in its window; the last is padded with
 * targets that count nothing. Returns the number of targets filled. */
static int64_t fill(evaluation *e, int64_t first, int64_t length, int64_t batch)
{
    const compiled_inputs *in = &e->compiled.inputs;
    int32_t *tokens = executor_at(e->executor, &in->tokens), *targets = executor_at(e->executor, &in->targets);
    int32_t *positions = executor_at(e->executor, &in->positions);
    int64_t counted = 0;
    for (int64_t i = 0; i < length * batch; i++) {
        int64_t at = first + i;
        tokens[i] = at < e->tokens.count ? e->tokens.ids[at] : 0;
        targets[i] = at + 1 < e->tokens.count ? e->tokens.ids[at + 1] : -1;
        positions[i] = (int32_t)(i % length);
        counted += targets[i] >= 0;
    }
    return counted;
}

static status evaluate(evaluation *e, comm *self)
{
    const model_shape *shape = weights_shape(e->from);
    int64_t length = e->set->sequence ? e->set->sequence : shape->max_sequence < 1024 ? shape->max_sequence : 1024;
    if (length > shape->max_sequence)
        return status_fail(STATUS_USAGE, "--sequence %lld is more than the model's max_sequence %lld",
                           (long long)length, (long long)shape->max_sequence);
    if (e->tokens.count < 2)
        return status_fail(STATUS_FAILED, "%s holds fewer than two tokens: nothing to predict",
                           e->set->text ? e->set->text : e->set->data);
    if (e->set->limit > 0 && e->tokens.count > e->set->limit + 1) {
        e->tokens.count = e->set->limit + 1;
        e->bytes = 0; /* of the part that is left */
    }
    compile_options options = {.shape = *shape,
                               .compute = types[e->set->precision],
                               .sequence = length,
                               .micro_batch = (int)e->set->batch,
                               .microbatches = 1,
                               .chunks = 1,
                               .gather_each = true,
                               .backend = &cpu_backend,
                               .threads = omp_get_max_threads(),
                               .evaluate = true};
    TRY(grid_make(&options.grid, 1, 0, 1, 1, 1, 1));
    TRY(compile(&e->compiled, &options));
    TRY(executor_open(&e->executor, &e->compiled, self, &cpu_backend, options.threads));
    TRY(state_load_weights(&e->compiled, e->executor, weights_read, e->from));
    batch_rope_table(&e->compiled, e->executor);
    double begun = clock_seconds();
    report_progress bar = report_progress_begin(stderr, "evaluating", (double)e->tokens.count, false);
    for (int64_t first = 0; first + 1 < e->tokens.count; first += length * e->set->batch) {
        e->counted += fill(e, first, length, e->set->batch);
        executor_play(e->executor, &e->compiled.evaluation);
        e->loss += (double)*(float *)executor_at(e->executor, &e->compiled.inputs.loss_total);
        report_progress_update(&bar, (double)e->counted);
    }
    report_progress_end(&bar);
    e->seconds = clock_seconds() - begun;
    return STATUS_OK;
}

static void print_result(const evaluation *e)
{
    double loss = e->loss / (double)e->counted, speed = (double)e->counted / e->seconds;
    double bits = e->bytes > 0 ? e->loss / log(2) / (double)e->bytes : 0;
    long long tokens = (long long)e->counted;
    if (e->set->json) {
        printf("{\"loss\": %.9g, \"perplexity\": %.9g, \"tokens\": %lld, \"tokens_per_second\": %.4g", loss, exp(loss),
               tokens, speed);
        if (e->bytes > 0)
            printf(", \"bits_per_byte\": %.9g", bits);
        puts("}");
        return;
    }
    printf("loss %.9g, perplexity %.6g, %lld tokens, %.4g tokens/s", loss, exp(loss), tokens, speed);
    if (e->bytes > 0)
        printf(", %.6g bits a byte", bits);
    putchar('\n');
}

static status run(evaluation *e)
{
    comm *self = NULL;
    TRY(weights_open(&e->from, e->set->checkpoint));
    TRY(e->set->text ? read_text(e) : read_data(e));
    TRY(comm_open(&self));
    status s = evaluate(e, self);
    if (s == STATUS_OK)
        print_result(e);
    executor_close(e->executor);
    compile_free(&e->compiled);
    comm_close(self);
    return s;
}

int eval_main(int argc, char **argv)
{
    settings set = {.batch = 4};
    const options_row rows[] = {
        {"--checkpoint", OPTIONS_TEXT, "FOLDER", "a checkpoint, a run's folder (its latest) or a Hugging Face folder",
         &set.checkpoint, 0, 0, NULL},
        {"--data", OPTIONS_TEXT, "PREFIX", "a data set: PREFIX.bin and PREFIX.idx", &set.data, 0, 0, NULL},
        {"--text", OPTIONS_TEXT, "FILE", "a text, JSON-lines, gzip or zstd file; tokenized with the model's tokenizer",
         &set.text, 0, 0, NULL},
        {"--sequence", OPTIONS_INTEGER, "N", "tokens of a window (the model's max_sequence, at most 1024)",
         &set.sequence, 1, 1e9, NULL},
        {"--batch", OPTIONS_INTEGER, "N", "windows at a time (4)", &set.batch, 1, 65536, NULL},
        {"--limit", OPTIONS_INTEGER, "N", "no more than so many predicted tokens; 0: all (0)", &set.limit, 0, 9e15,
         NULL},
        {"--precision", OPTIONS_CHOICE, NULL, "of weights and activations (fp32)", &set.precision, 0, 0, precisions},
        {"--json", OPTIONS_FLAG, NULL, "one JSON object", &set.json, 0, 0, NULL},
    };
    const options_command command = {
        .name = "eval",
        .operands = "",
        .summary = "Mean loss (nats a token), perplexity and speed of a model on a data set or a text.",
        .row = rows,
        .rows = sizeof rows / sizeof *rows};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!set.checkpoint || !set.data == !set.text) {
        log_error("eval needs --checkpoint FOLDER and either --data PREFIX or --text FILE");
        return STATUS_USAGE;
    }
    evaluation e = {.set = &set};
    status s = run(&e);
    buffer_ids_free(&e.tokens);
    weights_close(e.from);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    return (int)s;
}
