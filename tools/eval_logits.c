#include "tools/eval_logits.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/files/safetensors.h"
#include "engine/infer/generator.h"
#include "engine/train/report/report.h"

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

/* Every rank decodes; the one that has a writer writes. What cannot be written is known to all at the next row. */
static status write_rows(double *loss, safetensors_writer *w, generator *g, comm *world, const eval_windows *of,
                         int64_t vocabulary)
{
    report_progress bar = report_progress_begin(stderr, "decoding", (double)(of->count - 1), false);
    status s = STATUS_OK;
    for (int64_t i = 0, position = -1; i + 1 < of->count && s == STATUS_OK; i++) {
        /* Where token `at` stands in its window, or in its document there; `before`: where the one before it stood. */
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

status eval_logits_write(double *loss, const char *path, weights *from, const inference_ranks *ranks,
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
