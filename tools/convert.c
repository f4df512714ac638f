/* phalanx convert: converts between Hugging Face folders and phalanx checkpoints. */
#include <stdlib.h>
#include <string.h>

#include "engine/train/report/report.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "models/parts.h"
#include "tools/options.h"
#include "tools/stop.h"
#include "tools/tools.h"

static const char *const formats[] = {"huggingface", "phalanx", "other", NULL};
static const char *const types[] = {"keep", "fp32", "bf16", "fp16", NULL};
enum { OTHER = 2 };

static status show_progress(void *context, int64_t done, int64_t total)
{
    (void)total;
    report_progress_update(context, (double)done);
    return stop_asked();
}

static status convert_folder(const char *from, const char *to, int format, int type, int64_t shard_bytes, bool force)
{
    weights *w;
    TRY(weights_open(&w, from));
    int64_t bytes = 0;
    for (int i = 0; i < weights_count(w); i++) {
        const names_tensor *t = weights_at(w, i);
        dtype stored = weights_type(w, i);
        if (type)
            dtype_find(&stored, types[type]);
        bytes += t->shape[0] * (t->dims == 2 ? t->shape[1] : 1) * dtype_bytes(stored);
    }
    report_progress bar = report_progress_begin(stderr, "converting", (double)bytes, true);
    weights_copy_options o = {
        .type = WEIGHTS_KEEP, .shard_bytes = shard_bytes, .replace = force, .progress = show_progress, .context = &bar};
    dtype chosen;
    if (type && dtype_find(&chosen, types[type]))
        o.type = (int)chosen;
    o.format = format != OTHER             ? (weights_format)format
               : weights_is_huggingface(w) ? WEIGHTS_PHALANX
                                           : WEIGHTS_HUGGINGFACE;
    double begun = clock_seconds();
    status s = weights_copy(w, to, &o);
    double seconds = clock_seconds() - begun;
    report_progress_end(&bar);
    const model_shape *shape = weights_shape(w);
    if (s == STATUS_OK)
        log_info("%s: %s, %s parameters, %s in %.1f s (%s/s)", to, shape_traits_of(shape->architecture)->name,
                 COUNT_TEXT(parts_parameters(shape)), BYTES_TEXT(bytes), seconds,
                 BYTES_TEXT((double)bytes / (seconds > 1e-9 ? seconds : 1e-9)));
    weights_close(w);
    return s;
}

int convert_main(int argc, char **argv)
{
    const char *from = NULL, *to = NULL;
    int format = OTHER, type = 0, operands;
    int64_t shard_bytes = 0;
    bool force = false;
    const options_row rows[] = {
        OPTION_TEXT("--from", "FOLDER", "a Hugging Face folder, a checkpoint, or a run (its latest checkpoint)", &from),
        OPTION_TEXT("--to", "FOLDER", "a new folder", &to),
        OPTION_FLAG("--force", "replace a model's folder that is there", &force),
        OPTION_CHOICE("--format", "of the new folder (default: the other one)", &format, formats),
        OPTION_CHOICE("--dtype", "of the new weights (default: keep)", &type, types),
        OPTION_INTEGER("--shard-bytes", "N", "tensors of one file (default: 5000000000)", &shard_bytes, 1, 1e18),
    };
    const options_command command = {
        .name = "convert",
        .operands = "",
        .summary =
            "Turns a Hugging Face folder (config.json, model.safetensors or its index) into a phalanx checkpoint, or "
            "a\n"
            "checkpoint into a Hugging Face folder, which transformers loads. Tokenizer files are copied along; a "
            "Hugging\n"
            "Face folder also gets what AutoTokenizer needs to give the same ids. With --dtype fp32 a checkpoint's "
            "master\n"
            "weights are taken. Such a checkpoint holds no optimizer state: train starts from it, or from a\n"
            "Hugging Face folder itself, with model.from=FOLDER.",
        OPTION_ROWS(rows),
    };
    int code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!from || !to) {
        log_error("convert needs %s FOLDER; phalanx convert --help lists all", from ? "--to" : "--from");
        return STATUS_USAGE;
    }
    stop_catch();
    status s = convert_folder(from, to, format, type, shard_bytes, force);
    if (s != STATUS_OK)
        log_error("%s", status_message());
    return stop_exit(s);
}
