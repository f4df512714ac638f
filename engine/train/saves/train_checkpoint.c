/* Saves of a run: checkpoints, gradients for inspection. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/islands/islands.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/files/safetensors.h"
#include "engine/state/rank/state.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/rank/train_meta.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "memory/arena.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "memory/units.h"
#include "models/names.h"

enum { HEADERS = 1 << 20 }; /* about the size of a share's headers and its fragment */

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Lists the extra files of a checkpoint, which make it self-contained: the tokenizer, and the autotuning table that
 * another run needs to continue identically. Returns their number, at most three. */
static int list_extras(checkpoint_extra out[3], training *t)
{
    int count = 0;
    if (t->data.tokenizer) {
        const tokenizer_source source = tokenizer_made_from(t->data.tokenizer);
        t->saves->extra_name = must_format("tokenizer.%s", tokenizer_suffix(t->data.tokenizer));
        out[count++] = (checkpoint_extra){t->saves->extra_name, source.file, source.length};
        if (source.config_length > 0)
            out[count++] = (checkpoint_extra){"tokenizer_config.json", source.config, source.config_length};
    }
    if (t->choices.count > 0) {
        t->saves->extra_choices = choices_text(&t->choices);
        out[count++] =
            (checkpoint_extra){CHOICES_FILE, t->saves->extra_choices, (int64_t)strlen(t->saves->extra_choices)};
    }
    return count;
}

/* Returns an island's outer state, which its checkpoints hold besides the training state. */
static const checkpoint_piece *list_more(int *count, const islands *o)
{
    *count = 0;
    return o ? islands_pieces(count, o) : NULL;
}

static int64_t save_bytes(const training *t, bool asynchronous)
{
    int count;
    const checkpoint_piece *more = list_more(&count, t->islands);
    return saver_bytes(&t->compiled, t->executor, more, count, asynchronous);
}

/* Checks that every node has memory for a copy of the state in addition to all else. */
static status check_memory(const training *t)
{
    int64_t bytes = save_bytes(t, true), there = arena_available();
    int ranks = comm_local_ranks(t->world);
    if (bytes <= there / ranks)
        return STATUS_OK;
    return status_fail(
        STATUS_FAILED,
        "checkpoint.asynchronous needs %s of host memory on this node for copies of the state, and %s are "
        "left: set checkpoint.asynchronous=false, or use more nodes",
        BYTES_TEXT((double)bytes * ranks), BYTES_TEXT(there));
}

/* Chooses asynchronous saves: if requested, they are made or fail; by default they are used if they fit. */
static status choose_asynchronous(bool *out, const training *t)
{
    bool asked = config_is_given(t->config, "checkpoint.asynchronous");
    *out = t->config->checkpoint.asynchronous;
    if (!*out)
        return STATUS_OK;
    status s = comm_all_status(comm_world(t->world), check_memory(t));
    if (s == STATUS_OK || asked)
        return s;
    *out = false;
    log_info("checkpoints are written while training waits: %s", status_message());
    return STATUS_OK;
}

static status may_publish(void *context)
{
    return training_check_folder(context, true);
}

static void note_published(void *context, const char *name)
{
    const training *t = context;
    if (t->saves->mirroring.thread)
        mirror_offer(t->saves->mirroring.thread, name);
}

static bool is_needed(void *context, const char *name)
{
    const training *t = context;
    return training_export_holds(t, name) || mirror_needs(t->saves->mirroring.thread, name);
}

training_saves *training_saves_make(void)
{
    training_saves *s = must_calloc(1, sizeof *s);
    s->mirroring.newest.step = -1;
    return s;
}

void training_saves_close(training_saves *s)
{
    saver_close(s->saver);
    mirror_close(s->mirroring.thread);
    training_export_close(s->exporter);
    node_copies_close(s->copies);
    free(s->origin);
    free(s->back);
    free(s->extra_name);
    free(s->extra_choices);
    free(s);
}

double training_saves_stall(training *t)
{
    double stall = saver_stall(t->saves->saver);
    t->saving.seconds += stall;
    return stall;
}

status training_save_open(training *t)
{
    comm_group *all = comm_world(t->world);
    bool first = comm_rank(t->world) == 0;
    checkpoint_extra extras[3];
    saver_options o = {.compiled = &t->compiled,
                       .executor = t->executor,
                       .folder = t->checkpoints,
                       .run = t->run,
                       .rank = comm_rank(t->world),
                       .ranks = comm_ranks(t->world),
                       .extras = extras,
                       .keep = t->config->checkpoint.keep,
                       .keep_every = t->config->checkpoint.keep_every,
                       .watchdog = t->watchdog,
                       .owner = t->lock,
                       .may_publish = may_publish,
                       .published = note_published,
                       .needs = is_needed,
                       .context = t};
    TRY(comm_all_status(all, first ? lock_check(t->lock) : STATUS_OK));
    TRY(comm_all_status(all, first ? checkpoint_tidy(t->checkpoints) : STATUS_OK));
    TRY(comm_all_status(all, first ? training_export_open(t) : STATUS_OK));
    TRY(choose_asynchronous(&o.asynchronous, t));
    o.more = list_more(&o.more_count, t->islands);
    o.extra_count = first ? list_extras(extras, t) : 0;
    t->saving.beside = o.asynchronous;
    t->saving.copy_bytes = save_bytes(t, o.asynchronous);
    TRY(comm_all_status(all, saver_open(&t->saves->saver, &o)));
    if (t->config->checkpoint.memory_every < 1)
        return STATUS_OK;
    int64_t state = save_bytes(t, true) - save_bytes(t, false);
    TRY(node_copies_begin(t->saves->copies, t->run, state + HEADERS));
    t->saving.memory_bytes = node_copies_bytes(t->saves->copies);
    return STATUS_OK;
}

/* ---- saving ---------------------------------------------------------------------------------------------------- */

static json_t *make_meta(const training *t)
{
    training_position m = t->at;
    if (!precision_row_of(t->config->train.precision)->scales_loss)
        m.loss_scale = 0; /* so that a continuation in fp16 begins with the configured scale */
    if (t->data.begin)    /* else as in the checkpoint that was resumed from */
        m.begin = t->data.begin;
    json_t *meta = train_meta_write(&m, t->config, t->data.train, t->data.validation);
    if (t->islands)
        json_object_set_new(meta, "outer", islands_meta(t->islands));
    if (*t->saves->mirroring.id)
        json_object_set_new(meta, "run_id", json_string(t->saves->mirroring.id));
    checkpoint_place_put(meta, &t->saves->branch.now);
    return meta;
}

/* Returns the step of the last save; training may be some steps further. */
static int64_t step_of_save(const training *t)
{
    return strtoll(saver_last(t->saves->saver)->name + strlen("step-"), NULL, 10);
}

/* Ends the run if a value of the state is not finite: it will not recover, and the previous checkpoint is good.
 * Collective; all ranks have the message in status_message(). */
static status judge_state(training *t)
{
    t->saves->refused |= comm_any(comm_world(t->world), saver_last(t->saves->saver)->refused);
    AUTO_FREE char *words = must_strdup(status_message());
    return t->saves->refused ? training_fail(t, INCIDENT_NUMBERS, "%s", words) : STATUS_OK;
}

/* Reports a failed save. The run continues if its state is good and the previous one is on disk, since the next save
 * may succeed. Collective. */
static status take_loss(training *t, status s)
{
    if (s == STATUS_LOST)
        return s;
    t->saving.lost++;
    training_event(t, "save failed", step_of_save(t), status_message());
    TRY(judge_state(t));
    if (comm_rank(t->world) == 0)
        log_warn("%s; the run goes on", status_message());
    return STATUS_OK;
}

/* Concludes a save that has ended on all ranks, with its status. */
static status conclude_save(training *t, status s)
{
    double began = clock_seconds();
    const saver_facts *last = saver_last(t->saves->saver);
    if (s != STATUS_OK)
        return s;
    if (!last->in_memory) {
        int64_t step = step_of_save(t);
        t->saving.published++;
        if (t->config->checkpoint.every == 0 || step % t->config->checkpoint.every == 0) {
            free(t->saves->back);
            t->saves->back = must_format("%s/%s", t->checkpoints, last->name);
        }
        training_event_saved(t, step, last->name);
        training_export_saved(t, step, last->name);
        log_info("saved %s/%s in %.2f s", t->checkpoints, last->name, last->seconds);
        return STATUS_OK;
    }
    s = node_copies_spread(t->saves->copies, last->name);
    t->saving.in_memory += s == STATUS_OK;
    t->saving.seconds += clock_seconds() - began;
    return s == STATUS_OK ? s : status_context(s, "%s is not copied in memory", last->name);
}

/* Waits for the save in progress on all ranks. */
static status finish_save(training *t)
{
    status s = STATUS_OK;
    for (bool over = saver_progress_of(t->saves->saver) == SAVER_IDLE; !over;) {
        saver_wait(t->saves->saver);
        s = comm_all_status(comm_world(t->world), saver_result(t->saves->saver));
        over = saver_next(t->saves->saver, false, s != STATUS_OK);
        if (over)
            s = conclude_save(t, s);
    }
    return s;
}

status training_save_advance(training *t, bool any_working, bool any_failed)
{
    if (!t->saves->saver || !saver_next(t->saves->saver, any_working, any_failed))
        return STATUS_OK;
    watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "ending a save");
    status s =
        conclude_save(t, any_failed ? comm_all_status(comm_world(t->world), saver_result(t->saves->saver)) : STATUS_OK);
    if (s != STATUS_OK)
        s = take_loss(t, s);
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "going on after a checkpoint");
    return s;
}

status training_save_finish(training *t)
{
    if (!t->saves->saver)
        return STATUS_OK;
    watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "waiting for a checkpoint");
    status s = finish_save(t);
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "going on after a checkpoint");
    return s;
}

status training_save(training *t, bool in_memory, bool last)
{
    const share_source *memory = in_memory ? node_copies_place(t->saves->copies) : NULL;
    if (!t->saving.beside)
        seal_open();
    watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "writing a checkpoint");
    status s = finish_save(t);
    if (s != STATUS_OK)
        TRY(take_loss(t, s));
    saver_begin(t->saves->saver, t->at.step, comm_rank(t->world) == 0 ? make_meta(t) : NULL, memory);
    s = last || !t->saving.beside ? finish_save(t) : STATUS_OK;
    if (s != STATUS_OK) {
        status judged = last ? judge_state(t) : take_loss(t, s);
        s = last && judged == STATUS_OK ? s : judged;
    }
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "going on after a checkpoint");
    if (!t->saving.beside && t->counts.trained_steps > 0) /* libraries allocate until the end of the first step */
        seal_close();
    return s;
}

/* ---- gradients -------------------------------------------------------------------------------------------------- */

/* Declares the tensors of a file of gradients, in the checkpoint's order, in Hugging Face shapes. */
static safetensors_tensor *declare_gradients(const checkpoint *from, const model_shape *shape)
{
    int n = checkpoint_tensors(from), count;
    safetensors_tensor *tensors = must_calloc((unsigned long)n, sizeof *tensors);
    names_tensor *names = names_list(&count, shape);
    for (int i = 0; i < n; i++) {
        const manifest_tensor *m = checkpoint_at(from, i);
        tensors[i] = (safetensors_tensor){.name = m->name, .type = DTYPE_FP32, .dims = m->dims};
        memcpy(tensors[i].shape, m->global, (size_t)m->dims * sizeof(int64_t));
        for (int k = 0; k < count; k++)
            if (names[k].stacked && strcmp(names[k].name, m->name) == 0)
                tensors[i].dims = names_file_shape(tensors[i].shape, &names[k]);
    }
    names_free(names, count);
    return tensors;
}

/* Copies a whole tensor, divided by the loss scale. */
static status copy_gradient(safetensors_writer *w, checkpoint *from, const manifest_tensor *m, float scale)
{
    int64_t elements = box_volume(m->dims, m->global);
    AUTO_FREE float *values = must_alloc((unsigned long)elements * sizeof *values);
    rectangle all = box_whole(m->name, m->dims, m->global);
    box_memory to = {.data = values, .type = DTYPE_FP32};
    box_row_major(to.stride, m->dims, m->global);
    status s = checkpoint_read(from, STATE_GRADIENT, &all, &to);
    for (int64_t i = 0; i < elements; i++)
        values[i] /= scale;
    if (s == STATUS_OK)
        s = safetensors_writer_data(w, values, elements * (int64_t)sizeof *values);
    return s;
}

/* Makes one safetensors file from a checkpoint of the gradients that all ranks wrote. */
static status gather_gradients(const char *pieces, const char *path, const model_shape *shape, float scale)
{
    AUTO(checkpoint) *from = NULL;
    TRY(checkpoint_open(&from, pieces));
    checkpoint_accept_any(from);
    int n = checkpoint_tensors(from);
    AUTO_FREE safetensors_tensor *tensors = declare_gradients(from, shape);
    AUTO(safetensors_writer) *w = NULL;
    TRY(safetensors_writer_open(&w, path, tensors, n, NULL));
    for (int k = 0; k < n; k++)
        TRY(copy_gradient(w, from, checkpoint_at(from, safetensors_writer_order(w)[k]), scale));
    return safetensors_writer_close(TAKE(w));
}

static status agree_on_status(void *context, status mine)
{
    const training *t = context;
    return comm_all_status(comm_world(t->world), mine);
}

status training_dump_gradients(training *t)
{
    const char *folder = t->config->debug.gradients;
    AUTO_FREE char *pieces = must_format("%s/.pieces", folder), *path = must_format("%s/gradients.safetensors", folder);
    const step_scalars *scalars = executor_at(t->executor, t->compiled.values.scalars);
    seal_open();
    watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "writing gradients");
    int count = 0;
    AUTO_FREE checkpoint_piece *own = NULL;
    state_pieces(&own, &count, &t->compiled, t->executor, STATE_GRADIENT, true);
    const checkpoint_share mine = {own, count, comm_rank(t->world), comm_ranks(t->world), t->run, true};
    status s = checkpoint_write(pieces, "step-00000000", &mine, NULL, agree_on_status, t);
    if (s == STATUS_OK && comm_rank(t->world) == 0) {
        s = gather_gradients(pieces, path, &t->compiled.model.shape, scalars->loss_scale);
        if (s == STATUS_OK)
            s = atomic_remove(pieces);
    }
    s = comm_all_status(comm_world(t->world), s);
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "going on after writing gradients");
    seal_close();
    return s;
}
