/* What a run leaves: checkpoints, gradients for inspection. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/files/atomic.h"
#include "engine/files/checkpoint.h"
#include "engine/files/checkpoint_find.h"
#include "engine/files/safetensors.h"
#include "engine/state.h"
#include "engine/tokenizer_files.h"
#include "engine/train_meta.h"
#include "engine/training.h"
#include "memory/log.h"
#include "memory/seal.h"

static status barrier(void *context, status mine)
{
    const training *t = context;
    return comm_all_status(comm_world(t->world), mine);
}

/* ---- saving ---------------------------------------------------------------------------------------------------- */

static json_t *make_meta(const training *t)
{
    train_meta m = {.step = t->step,
                    .updates = t->updates,
                    .samples = t->samples,
                    .good_steps = t->good_steps,
                    .skipped = t->skipped,
                    /* 0: none, so that going on in fp16 begins with the configured scale */
                    .loss_scale = t->config->train.precision == CONFIG_FP16 ? t->loss_scale : 0};
    return train_meta_write(&m, t->config, t->train, t->validation);
}

static status write_sections(training *t, const char *folder, const char *name, const state_section *sections,
                             int count)
{
    checkpoint_piece *all = NULL;
    int total = 0;
    for (int i = 0; i < count; i++) {
        int n;
        checkpoint_piece *pieces = state_pieces(&n, &t->compiled, t->executor, sections[i], true);
        all = must_realloc(all, (unsigned long)(total + n) * sizeof *all);
        memcpy(all + total, pieces, (size_t)n * sizeof *all);
        total += n;
        free(pieces);
    }
    json_t *meta = comm_rank(t->world) == 0 ? make_meta(t) : NULL;
    status s =
        checkpoint_write(folder, name, all, total, meta, comm_rank(t->world), comm_ranks(t->world), "", barrier, t);
    json_decref(meta);
    free(all);
    return s;
}

/* A checkpoint is of use by itself: the tokenizer goes with it, and the choices that another run needs to go on alike. */
static status save_company(const training *t, const char *name)
{
    char *folder = must_format("%s/%s", t->checkpoints, name), *path = must_format("%s/" CHOICES_FILE, folder);
    status s = t->tokenizer ? tokenizer_files_save(t->tokenizer, folder) : STATUS_OK;
    if (s == STATUS_OK && t->choices.count > 0)
        s = choices_write(&t->choices, path);
    free(path);
    free(folder);
    return s;
}

status training_save(training *t)
{
    state_section sections[STATE_SECTIONS];
    int count = state_sections(sections, &t->compiled);
    char name[64];
    snprintf(name, sizeof name, "step-%08lld", (long long)t->step);
    seal_open();
    watchdog_suspend(t->watchdog);
    status s = write_sections(t, t->checkpoints, name, sections, count);
    if (s == STATUS_OK && comm_rank(t->world) == 0) {
        s = save_company(t, name);
        if (s == STATUS_OK)
            s = checkpoint_prune(t->checkpoints, t->config->checkpoint.keep, 0);
        if (s == STATUS_OK)
            log_info("saved %s/%s", t->checkpoints, name);
    }
    s = comm_all_status(comm_world(t->world), s);
    watchdog_resume(t->watchdog);
    seal_close();
    return s;
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* One safetensors file from a checkpoint of the gradients that all ranks wrote; loss scaling taken out. */
static status gather_gradients(const char *pieces, const char *path, float scale)
{
    checkpoint *from = NULL;
    TRY(checkpoint_open(&from, pieces));
    int n = checkpoint_tensors(from);
    safetensors_tensor *tensors = must_calloc((unsigned long)n, sizeof *tensors);
    for (int i = 0; i < n; i++) {
        const manifest_tensor *m = checkpoint_at(from, i);
        tensors[i] = (safetensors_tensor){.name = m->name, .type = DTYPE_FP32, .dims = m->dims};
        memcpy(tensors[i].shape, m->global, (size_t)m->dims * sizeof(int64_t));
    }
    safetensors_writer *w = NULL;
    status s = safetensors_writer_open(&w, path, tensors, n, NULL);
    for (int k = 0; k < n && s == STATUS_OK; k++) {
        const safetensors_tensor *x = &tensors[safetensors_writer_order(w)[k]];
        int64_t stride[SAFETENSORS_DIMS], start[SAFETENSORS_DIMS] = {0}, elements = 1;
        for (int d = x->dims - 1; d >= 0; d--) {
            stride[d] = elements;
            elements *= x->shape[d];
        }
        float *values = must_alloc((unsigned long)elements * sizeof *values);
        s = checkpoint_read(from, STATE_GRADIENT, x->name, DTYPE_FP32, values, stride, x->dims, x->shape, start,
                            x->shape);
        for (int64_t i = 0; i < elements; i++)
            values[i] /= scale;
        if (s == STATUS_OK)
            s = safetensors_writer_data(w, values, elements * (int64_t)sizeof *values);
        free(values);
    }
    if (s == STATUS_OK)
        s = safetensors_writer_close(w);
    else
        safetensors_writer_abandon(w);
    free(tensors);
    checkpoint_close(from);
    return s;
}

status training_dump_gradients(training *t)
{
    const char *folder = t->config->debug.gradients;
    char *pieces = must_format("%s/.pieces", folder), *path = must_format("%s/gradients.safetensors", folder);
    const state_section section = STATE_GRADIENT;
    const step_scalars *scalars = executor_at(t->executor, t->compiled.inputs.scalars);
    seal_open();
    watchdog_suspend(t->watchdog);
    status s = write_sections(t, pieces, "step-00000000", &section, 1);
    if (s == STATUS_OK && comm_rank(t->world) == 0) {
        s = gather_gradients(pieces, path, scalars->loss_scale);
        if (s == STATUS_OK)
            s = atomic_remove(pieces);
    }
    s = comm_all_status(comm_world(t->world), s);
    watchdog_resume(t->watchdog);
    seal_close();
    free(pieces);
    free(path);
    return s;
}
