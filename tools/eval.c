/* phalanx eval: measures the loss of a model on a data set or a text. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/files/safetensors.h"
#include "engine/infer/inference.h"
#include "engine/train/report/report.h"
#include "engine/text/documents.h"
#include "engine/data/stored.h"
#include "memory/clock.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "parallel/comm/agree.h"
#include "memory/scope.h"
#include "tools/options.h"
#include "tools/tools.h"

/* The logits of evaluated tokens go to a file. */

/* Tokens laid end to end in windows of `length`. Each is predicted from the earlier ones of its window and, if `begins`
 * is set (one byte a token: a document begins), of its document. */
typedef struct eval_windows {
    const int32_t *ids; /* [count] */
    const char *begins; /* [count], or NULL */
    int64_t count, length;
} eval_windows;

enum { LOGITS, INPUT_IDS, LABELS, TENSORS };

static double label_loss(const float *logits, int64_t vocabulary, int32_t label)
{
    double largest = logits[0], sum = 0;
    for (int64_t i = 1; i < vocabulary; i++)
        largest = logits[i] > largest ? logits[i] : largest;
    for (int64_t i = 0; i < vocabulary; i++)
        sum += exp(logits[i] - largest);
    return log(sum) + largest - logits[label];
}

/* Every rank decodes; the one with a writer writes. All ranks learn of a failed write at the next row. */
static status write_rows(double *loss, safetensors_writer *w, generator *g, comm *world, const eval_windows *of,
                         int64_t vocabulary)
{
    report_progress bar = report_progress_begin(stderr, "decoding", (double)(of->count - 1), false);
    status s = STATUS_OK;
    for (int64_t i = 0, position = -1; i + 1 < of->count && s == STATUS_OK; i++) {
        /* A position counts from the start of the window, or of the document within it. */
        bool begins = i % of->length == 0 || (of->begins && of->begins[i]);
        position = begins ? 0 : position + 1;
        generator_step(g, &of->ids[i], position);
        const float *row = generator_logits(g, 0);
        *loss += label_loss(row, vocabulary, of->ids[i + 1]);
        s = w ? safetensors_writer_data(w, row, vocabulary * (int64_t)sizeof *row) : STATUS_OK;
        s = comm_all_status(comm_world(world), s);
        if (w)
            report_progress_update(&bar, (double)(i + 1));
    }
    report_progress_end(&bar);
    return s;
}

static status write_tensors(double *loss, safetensors_writer *w, generator *g, comm *world, const eval_windows *of,
                            int64_t vocabulary)
{
    static const int as_written[TENSORS] = {LOGITS, INPUT_IDS, LABELS};
    const int *order = w ? safetensors_writer_order(w) : as_written;
    const int64_t bytes = (of->count - 1) * (int64_t)sizeof *of->ids;
    status s = STATUS_OK;
    for (int k = 0; k < TENSORS && s == STATUS_OK; k++)
        if (order[k] == LOGITS)
            s = write_rows(loss, w, g, world, of, vocabulary);
        else
            s = w ? safetensors_writer_data(w, of->ids + (order[k] == LABELS), bytes) : STATUS_OK;
    return s;
}

static status open_writer(safetensors_writer **out, const char *path, const eval_windows *of, int64_t vocabulary)
{
    const int64_t rows = of->count - 1;
    const safetensors_tensor tensors[TENSORS] = {
        [LOGITS] = {.name = "logits", .type = DTYPE_FP32, .dims = 2, .shape = {rows, vocabulary}},
        [INPUT_IDS] = {.name = "input_ids", .type = DTYPE_INT32, .dims = 1, .shape = {rows}},
        [LABELS] = {.name = "labels", .type = DTYPE_INT32, .dims = 1, .shape = {rows}}};
    return safetensors_writer_open(out, path, tensors, TENSORS, NULL);
}

/* Writes PATH as safetensors: "logits" fp32 [count - 1, vocab_size], with row i the model's logits of token i + 1;
 * "input_ids" and "labels" int32 [count - 1], tokens i and i + 1. Decodes tokens one by one through the key/value cache
 * and writes each row at once: memory does not grow with their number. *loss: the sum of -log softmax over the labels,
 * in double. Collective; rank 0 writes. STATUS_FAILED if the file cannot be written; no file exists then. */
static status eval_logits_write(double *loss, const char *path, weights *from, const inference_ranks *ranks,
                                precision_kind precision, const eval_windows *of)
{
    const int64_t vocabulary = weights_shape(from)->vocab_size;
    safetensors_writer *w = NULL;
    generator *g = NULL;
    bool writes = comm_rank(ranks->world) == 0;
    *loss = 0;
    status s = comm_all_status(comm_world(ranks->world), writes ? open_writer(&w, path, of, vocabulary) : STATUS_OK);
    if (s == STATUS_OK)
        s = generator_open(&g, from, ranks, precision, 1, of->length);
    if (s == STATUS_OK)
        s = comm_all_status(comm_world(ranks->world), write_tensors(loss, w, g, ranks->world, of, vocabulary));
    generator_close(g);
    if (w && s == STATUS_OK)
        s = safetensors_writer_close(w);
    else if (w)
        safetensors_writer_abandon(w);
    return comm_all_status(comm_world(ranks->world), s);
}

typedef struct settings {
    const char *checkpoint, *data, *text, *tokenizer, *logits;
    int64_t sequence, batch, limit, tensor, pipeline;
    int precision, device, begin;
    bool json;
} settings;

/* All tokens to be predicted, end to end. */
typedef struct evaluation {
    const settings *set;
    weights *from;
    buffer_ids tokens;
    buffer begins;          /* one byte a token: a document begins here */
    bool mask;              /* mask as in training: no attention across documents, positions restart */
    int64_t trained_length; /* train.sequence; 0: unknown */
    int64_t bytes;          /* bytes of the text; 0: unknown */
    inference model;
    double loss, seconds;
    int64_t counted;
} evaluation;

/* ---- tokens ----------------------------------------------------------------------------------------------------- */

/* Reads from a checkpoint how the model was trained. */
static status read_training(evaluation *e)
{
    const char *text = weights_config(e->from);
    if (!text)
        return STATUS_OK;
    RELEASED_BY(config_free) config c = {0};
    TRY(config_parse(&c, weights_folder(e->from), text, strlen(text), 0, NULL));
    e->mask = c.data.document_mask;
    e->trained_length = c.train.sequence;
    return STATUS_OK;
}

/* Marks the tokens after the last marked one as one document. */
static void mark_document(evaluation *e)
{
    for (int64_t first = e->begins.length; e->begins.length < e->tokens.count;)
        buffer_append(&e->begins, e->begins.length == first ? "\1" : "\0", 1);
}

/* Checks a text's ids, since a tokenizer may know more ids than the model. */
static status check_ids(const evaluation *e, const char *kind)
{
    int64_t vocabulary = weights_shape(e->from)->vocab_size;
    for (int64_t i = 0; i < e->tokens.count; i++)
        if (e->tokens.ids[i] >= vocabulary)
            return status_fail(STATUS_FAILED,
                               "%s: its %s tokenizer makes id %d of %s, outside the model's vocabulary of %lld: is it "
                               "another model's?",
                               weights_folder(e->from), kind, (int)e->tokens.ids[i], e->set->text,
                               (long long)vocabulary);
    return STATUS_OK;
}

static status read_text(evaluation *e)
{
    AUTO(tokenizer) *t = NULL;
    TRY(inference_tokenizer(&t, e->from, e->set->tokenizer, (tokenizer_begin)e->set->begin));
    AUTO(tokenizer_scratch) *scratch = tokenizer_scratch_open(t);
    AUTO(documents) *d = NULL;
    const documents_settings plain = {.format = DOCUMENTS_SNIFF};
    char *inputs[] = {(char *)(size_t)e->set->text};
    TRY(documents_open(&d, &plain, inputs, 1));
    RELEASED_BY(buffer_free) buffer raw_bytes = {0};
    RELEASED_BY(buffer_free) buffer made = {0};
    for (bool more = true;;) {
        documents_raw raw;
        const char *text;
        int64_t length;
        raw_bytes.length = 0;
        TRY(documents_next(d, &raw_bytes, &raw, &more));
        if (!more)
            return check_ids(e, tokenizer_kind(t));
        TRY(documents_text(d, &text, &length, &made, raw_bytes.bytes + raw.offset, &raw));
        /* The end of one document begins the next, as in a data set. */
        bool begun = e->tokens.count > 0 && tokenizer_begins_with(t) == TOKENIZER_BEGIN_END;
        TRY(tokenizer_encode(t, scratch, &e->tokens, text, length, begun ? 0 : TOKENIZER_FRAME));
        e->bytes += length;
        int32_t end = tokenizer_ids_of(t)->end_of_document;
        if (end >= 0)
            buffer_ids_append(&e->tokens, &end, 1);
        mark_document(e);
    }
}

static status read_data(evaluation *e)
{
    stored_reader from;
    TRY(stored_reader_open(&from, e->set->data));
    const indexed *x = from.data;
    int64_t count = indexed_tokens(x);
    if (e->set->limit > 0 && count > e->set->limit + 1)
        count = e->set->limit + 1;
    buffer_ids_reserve(&e->tokens, count);
    status s = indexed_read(x, e->tokens.ids, 0, count, weights_shape(e->from)->vocab_size);
    for (int64_t i = 0; i < indexed_documents(x) && e->tokens.count < count; i++) {
        int64_t end = indexed_document_start(x, i + 1);
        e->tokens.count = end < count ? end : count;
        mark_document(e);
    }
    stored_reader_close(&from);
    return s;
}

/* ---- losses ----------------------------------------------------------------------------------------------------- */

/* Fills windows of `length` tokens, each predicted from the earlier ones of its window; the last window is padded
 * with ignored targets. */
static void fill_windows(evaluation *e, int64_t first, int64_t length, int64_t batch)
{
    const layer_inputs *in = &e->model.compiled.values;
    int32_t *tokens = executor_at(e->model.executor, in->tokens),
            *targets = executor_at(e->model.executor, in->targets);
    int32_t *positions = executor_at(e->model.executor, in->positions);
    int32_t *starts = e->mask ? executor_at(e->model.executor, in->document_start) : NULL;
    int64_t begin = 0; /* start of the document within its window */
    for (int64_t i = 0; i < length * batch; i++) {
        int64_t at = first + i;
        if (i % length == 0 || (e->mask && at < e->tokens.count && e->begins.bytes[at]))
            begin = i % length;
        if (starts)
            starts[i] = (int32_t)begin;
        tokens[i] = at < e->tokens.count ? e->tokens.ids[at] : 0;
        targets[i] = at + 1 < e->tokens.count ? e->tokens.ids[at + 1] : -1;
        positions[i] = (int32_t)(i % length - begin);
    }
}

/* Chooses the tokens of a window; fails if the input has no token to predict. */
static status choose_length(int64_t *out, evaluation *e)
{
    const model_shape *shape = weights_shape(e->from);
    int64_t usual = shape->max_sequence < 1024 ? shape->max_sequence : 1024;
    int64_t length = e->set->sequence ? e->set->sequence : e->trained_length ? e->trained_length : usual;
    if (length > shape->max_sequence)
        return status_fail(STATUS_USAGE, "--sequence %lld is more than the model's max_sequence %lld",
                           (long long)length, (long long)shape->max_sequence);
    if (e->tokens.count < 2)
        return status_fail(STATUS_FAILED, "%s holds fewer than two tokens: nothing to predict",
                           e->set->text ? e->set->text : e->set->data);
    if (e->set->limit > 0 && e->tokens.count > e->set->limit + 1) {
        e->tokens.count = e->set->limit + 1;
        e->bytes = 0; /* the bytes of a part of the text are unknown */
    }
    *out = length;
    return STATUS_OK;
}

/* Data ranks take windows in turn; every rank gets the sum. */
static status evaluate_windows(evaluation *e, int64_t length, const inference_ranks *ranks)
{
    const compile_options options = {.precision = (precision_kind)e->set->precision,
                                     .sequence = length,
                                     .micro_batch = (int)e->set->batch,
                                     .document_mask = e->mask,
                                     .evaluate = true};
    TRY(inference_open(&e->model, e->from, ranks, &options));
    const grid *g = &e->model.compiled.options.grid;
    int64_t mine = length * e->set->batch, together = length * config_samples_together(g, e->set->batch),
            all = e->tokens.count - 1;
    double begun = clock_seconds();
    report_progress bar = report_progress_begin(stderr, "evaluating", (double)all, false);
    for (int64_t first = 0; first < all; first += together) {
        fill_windows(e, first + mine * grid_index(g, AXIS_SAMPLES), length, e->set->batch);
        e->counted = first + together < all ? first + together : all;
        executor_play(e->model.executor, &e->model.compiled.evaluation);
        e->loss += (double)*(float *)executor_at(e->model.executor, e->model.compiled.values.loss_total);
        if (comm_rank(ranks->world) == 0)
            report_progress_update(&bar, (double)e->counted);
    }
    report_progress_end(&bar);
    e->seconds = clock_seconds() - begun;
    return STATUS_OK;
}

/* Evaluates and keeps the logits of every token, which takes as long as decoding them. */
static status keep_logits(evaluation *e, int64_t length, const inference_ranks *ranks)
{
    const eval_windows of = {.ids = e->tokens.ids,
                             .begins = e->mask ? e->begins.bytes : NULL,
                             .count = e->tokens.count,
                             .length = length < e->tokens.count ? length : e->tokens.count};
    double begun = clock_seconds();
    TRY(eval_logits_write(&e->loss, e->set->logits, e->from, ranks, (precision_kind)e->set->precision, &of));
    e->counted = of.count - 1;
    e->seconds = clock_seconds() - begun;
    return STATUS_OK;
}

static void print_result(const evaluation *e)
{
    double loss = e->loss / (double)e->counted, speed = (double)e->counted / e->seconds;
    double per_byte = e->bytes > 0 ? e->loss / log(2) / (double)e->bytes : 0;
    long long tokens = (long long)e->counted;
    if (e->set->json) {
        printf("{\"loss\": %.9g, \"perplexity\": %.9g, \"tokens\": %lld, \"tokens_per_second\": %.4g", loss, exp(loss),
               tokens, speed);
        if (e->bytes > 0)
            printf(", \"bits_per_byte\": %.9g", per_byte);
        puts("}");
        return;
    }
    printf("loss %.9g, perplexity %.6g, %lld tokens, %.4g tokens/s", loss, exp(loss), tokens, speed);
    if (e->bytes > 0)
        printf(", %.6g bits a byte", per_byte);
    putchar('\n');
}

static status prepare_model(evaluation *e, int64_t *length)
{
    TRY(weights_open(&e->from, e->set->checkpoint));
    TRY(read_training(e));
    TRY(e->set->text ? read_text(e) : read_data(e));
    return choose_length(length, e);
}

/* Writes the facts of its inputs, which ranks must share: `latest` may move between their looks. */
static void write_inputs(FILE *out, const evaluation *e, int64_t length)
{
    AUTO_FREE char *model = weights_identity(e->from);
    agree_fact(out, "--checkpoint", "%s", model);
    agree_fact(out, e->set->text ? "--text" : "--data", "%lld tokens (sum %016llx), windows of %lld",
               (long long)e->tokens.count,
               (unsigned long long)bits_sum(e->tokens.ids, e->tokens.count * (int64_t)sizeof *e->tokens.ids, 1),
               (long long)length);
}

static status run_evaluation(evaluation *e, comm *world)
{
    int64_t length = 0;
    const inference_ranks ranks = {.world = world,
                                   .where = (inference_where)e->set->device,
                                   .tensor = e->set->tensor,
                                   .pipeline = e->set->pipeline,
                                   .data = !e->set->logits};
    status s = prepare_model(e, &length);
    AUTO_FREE char *facts = s == STATUS_OK ? MUST_PRINT(out, write_inputs(out, e, length)) : must_strdup("");
    TRY(agree_all(comm_world(world), s, facts, NULL));
    s = e->set->logits ? keep_logits(e, length, &ranks) : evaluate_windows(e, length, &ranks);
    if (s == STATUS_OK && comm_rank(world) == 0)
        print_result(e);
    inference_close(&e->model);
    return s;
}

int eval_main(int argc, char **argv)
{
    settings set = {.batch = 4};
    const options_row rows[] = {
        OPTION_TEXT("--checkpoint", "FOLDER", "a checkpoint, a run's folder (its latest) or a Hugging Face folder",
                    &set.checkpoint),
        OPTION_TEXT("--data", "PREFIX", "a data set: PREFIX.bin and PREFIX.idx, also s3://BUCKET/PREFIX", &set.data),
        OPTION_TEXT("--text", "FILE",
                    "a file of text or JSON-lines, packed or not; tokenized with the model's tokenizer", &set.text),
        OPTION_TEXT("--tokenizer", "bytes|FILE", "of --text, where the checkpoint has none", &set.tokenizer),
        OPTION_CHOICE("--begin", INFERENCE_BEGIN_HELP, &set.begin, tokenizer_begin_words),
        OPTION_INTEGER("--sequence", "N",
                       "tokens of a window (as trained; else the model's max_sequence, at most 1024)", &set.sequence, 1,
                       1e9),
        OPTION_INTEGER("--batch", "N", "windows at a time (4)", &set.batch, 1, 65536),
        OPTION_INTEGER("--limit", "N", "no more than so many predicted tokens; 0: all (0)", &set.limit, 0, 9e15),
        OPTION_CHOICE("--precision", "of weights and activations (fp32)", &set.precision, precision_words),
        OPTION_INTEGER("--tensor", "N", "under mpirun: ranks that share each layer (1)", &set.tensor, 1, 65536),
        OPTION_INTEGER("--pipeline", "N", "under mpirun: ranks that share the depth (1)", &set.pipeline, 1, 65536),
        OPTION_CHOICE("--device", "where to run; auto: cuda where there is one (auto)", &set.device, inference_devices),
        OPTION_TEXT("--logits", "FILE",
                    "write the logits of every predicted token, input_ids and labels as safetensors; a token at a time",
                    &set.logits),
        OPTION_FLAG("--json", "one JSON object", &set.json),
    };
    const options_command command = {
        .name = "eval",
        .operands = "",
        .summary =
            "Mean loss (nats a token), perplexity and speed of a model on a data set or a text. Under mpirun the\n"
            "ranks share the model as --tensor and --pipeline say, and what is left of them the data.",
        OPTION_ROWS(rows)};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!set.checkpoint || !set.data == !set.text) {
        log_error("eval needs --checkpoint FOLDER and either --data PREFIX or --text FILE");
        return STATUS_USAGE;
    }
    evaluation e = {.set = &set};
    comm *world = NULL;
    status s = comm_open(&world);
    if (s == STATUS_OK)
        s = options_agree(world, STATUS_OK, &(options_facts){.command = &command});
    if (s == STATUS_OK)
        s = run_evaluation(&e, world);
    if (s != STATUS_OK && (!world || comm_rank(world) == 0)) /* all ranks share the status */
        log_error("%s", status_message());
    buffer_ids_free(&e.tokens);
    buffer_free(&e.begins);
    weights_close(e.from);
    comm_close(world);
    return (int)s;
}
