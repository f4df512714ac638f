#include "engine/train/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "engine/guard/verify.h"
#include "engine/run/batch.h"
#include "engine/run/trace.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/host/incident_log.h"
#include "engine/state/rank/state.h"
#include "engine/train/training_loop.h"
#include "engine/train/report/report.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "kernels/table/op.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "parallel/watch/signals.h"
#include "engine/islands/islands.h"

/* Returns the tokens of the global batch; `counted`: only tokens with a label that counts. */
static double batch_tokens(const training *t, bool counted)
{
    int64_t of = training_batch(t, t->at.step) - (counted ? t->now.batch.left_out : 0);
    return (double)of * (double)t->config->train.sequence;
}

static void fill_scalars(training *t, double rate)
{
    int64_t first = batch_first(&t->compiled.options, t->at.samples, training_microbatches(t, t->at.step));
    const batch_step at = {.step = t->at.step,
                           .updates = t->at.updates,
                           .moments = t->at.updates - t->at.moments + 1,
                           .first_sample = first + ((int64_t)t->slot << 40),
                           .rate = rate,
                           .loss_scale = t->at.loss_scale,
                           .loss_tokens = batch_tokens(t, true),
                           .batch_tokens = batch_tokens(t, false)};
    batch_scalars(&t->compiled, t->executor, t->config, &at, t->now.batch.second_targets);
}

/* ---- blocks of data in an object store, fetched before steps and evaluations read them ---- */

/* Longest time by which blocks are prefetched, in seconds. */
static const double AHEAD_SECONDS = 120;

/* Restarts prefetching at the run's position if it is not the expected one: the run has begun, or gone back. */
static void follow_run(training *t)
{
    training_fetched *f = &t->fetched;
    if (!f->known || f->next_step != t->at.step || f->next_samples != t->at.samples) {
        bool there = t->now.ahead == t->at.samples; /* this step's batch has been read */
        samples_expect_nothing(t->data.train);
        f->step = t->at.step + there;
        f->samples = t->at.samples + (there ? training_batch(t, t->at.step) : 0);
    }
    f->known = true;
    f->next_step = t->at.step + 1;
    f->next_samples = t->at.samples + training_batch(t, t->at.step);
}

/* Prefetches blocks of later steps from the store before this step's batch is read. */
static void fetch_ahead(training *t)
{
    training_fetched *f = &t->fetched;
    int64_t steps = t->counts.trained_steps - 1;
    double each = steps > 0 ? t->counts.trained_seconds / (double)steps : 0;
    if (!samples_are_remote(t->data.train))
        return;
    follow_run(t);
    while (f->step < t->config->train.steps &&
           (f->step <= t->at.step + 1 || each * (double)(f->step - t->at.step) < AHEAD_SECONDS)) {
        int count = training_microbatches(t, f->step);
        if (!samples_expect(t->data.train, batch_first(&t->compiled.options, f->samples, count),
                            (int64_t)count * t->config->train.micro_batch))
            break;
        f->samples += training_batch(t, f->step++);
    }
}

/* A rank's message before a step. */
typedef struct readiness {
    int failed, asked, saves;
    uint32_t assignment;
    int64_t left_out, second_targets;
    blocks_counts fetched;
    pace_figures lately;
} readiness;

/* Collects the waits for blocks: the slowest rank's time, and the blocks of all ranks. */
static void add_fetched(training *t, const readiness *all)
{
    training_fetched *f = &t->fetched;
    f->stall = 0;
    f->misses = f->fetched = 0;
    for (int i = 0; i < comm_ranks(t->world); i++) {
        f->stall = fmax(f->stall, all[i].fetched.stall);
        f->misses += all[i].fetched.misses;
        f->fetched += all[i].fetched.fetched;
    }
    t->counts.stall_seconds += f->stall;
    t->counts.cache_misses += f->misses;
    t->counts.fetched_bytes += f->fetched;
}

/* Returns the rank with a different token assignment than the first rank of the same samples; -1: none. */
static int find_other_assignment(int *like, const training *t, const readiness *all)
{
    for (int i = 0; i < comm_ranks(t->world); i++) {
        grid g = grid_for_rank(&t->grid, i);
        int at[GRID_AXES] = {0};
        at[GRID_DATA] = g.at[GRID_DATA];
        *like = grid_rank_at(&g, at);
        if (all[i].assignment != all[*like].assignment)
            return i;
    }
    return -1;
}

/* Returns the request to this rank. A lock that somebody removed asks to stop: it may have been for another run. */
static signals_request requested(const training *t)
{
    return lock_removed(t->lock) ? SIGNALS_STOP : signals_pending();
}

/* Exchanges the ranks' readiness once before a step: failures, requested signals, samples left out, the tokens'
 * assignment, and progress of the save. */
static status sync_ranks(training *t, signals_request *asked, batch_facts *batch, pace_figures lately, status mine)
{
    int ranks = comm_ranks(t->world), first = -1, like = 0;
    blocks_counts now = stored_counted(t->data.remote), *told = &t->fetched.told;
    readiness here = {mine != STATUS_OK,
                      (int)requested(t),
                      (int)saver_progress_of(t->saves->saver),
                      batch->assignment,
                      batch->left_out,
                      batch->second_targets,
                      {.fetched = now.fetched - told->fetched,
                       .misses = now.misses - told->misses,
                       .stall = now.stall - told->stall},
                      lately},
              *all = must_alloc((unsigned long)ranks * sizeof *all);
    bool saving = false, lost = false;
    *told = now;
    comm_all_gather_bytes(comm_world(t->world), all, &here, sizeof here);
    *asked = SIGNALS_NONE;
    batch->left_out = batch->second_targets = 0;
    for (int i = 0; i < ranks; i++) {
        first = all[i].failed && first < 0 ? i : first;
        *asked = (int)*asked < all[i].asked ? (signals_request)all[i].asked : *asked;
        batch->left_out += all[i].left_out;
        batch->second_targets += all[i].second_targets;
        saving |= all[i].saves == SAVER_WORKING;
        lost |= all[i].saves == SAVER_FAILED;
    }
    training_judge_pace(t, &all->lately, sizeof *all);
    add_fetched(t, all);
    int other = first < 0 ? find_other_assignment(&like, t, all) : -1;
    free(all);
    TRY(training_save_advance(t, saving, lost));
    if (other >= 0)
        return training_fail(t, INCIDENT_DATA,
                             "step %lld: rank %d on %s has read or dealt other tokens than rank %d on %s, which has "
                             "the same samples: are data.train and data.validation the same files on both?",
                             (long long)t->at.step + 1, other, t->hosts[other], like, t->hosts[like]);
    /* The ranks of one model read the same samples. */
    batch->left_out /= ranks / grid_group_size(&t->grid, AXIS_SAMPLES);
    batch->second_targets /= ranks / grid_group_size(&t->grid, AXIS_SAMPLES);
    if (first < 0)
        return STATUS_OK;
    if (first == comm_rank(t->world)) {
        watchdog_text text;
        incident what = watchdog_incident(t->watchdog, &text, INCIDENT_DATA, status_message());
        incident_log_hold(&t->ending, &what);
    }
    t->ending.known = true;
    return comm_all_status(comm_world(t->world), mine);
}

/* Returns the batch of this step: read ahead during the previous step, or read now. */
static status take_batch(training *t, batch_facts *out)
{
    bool there = t->now.ahead == t->at.samples;
    t->now.ahead = -1;
    *out = t->now.ahead_batch;
    watchdog_enter(t->watchdog, DURING_STEP, true, t->at.step + 1, "reading the batch");
    if (!there)
        return batch_fill(out, &t->compiled, t->executor, t->data.train, t->at.samples,
                          training_microbatches(t, t->at.step), false);
    executor_swap_batches(t->executor);
    return STATUS_OK;
}

/* Prepares a step on every rank. */
static status ready_step(training *t, signals_request *asked)
{
    executor_set_step(t->executor, t->at.step + 1);
    status ready = training_check_folder(t, false);
    t->evicted = ready != STATUS_OK;
    if (!t->evicted) {
        fetch_ahead(t);
        ready = take_batch(t, &t->now.batch);
    }
    t->now.data_seconds = clock_seconds() - t->now.began;
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step + 1, "agreeing that all ranks are ready");
    return sync_ranks(t, asked, &t->now.batch, pace_take(t->guards.pace), ready);
}

static bool is_due(int every, int64_t step)
{
    return every > 0 && step % every == 0;
}

/* Skips a batch with every sample left out: only the data position changes. train.max_skipped of them in a row end the
 * run, before the last of them, so that a restart comes no further. The same on all ranks. */
static status pass_over(training *t)
{
    const config *c = t->config;
    double rate = learning_rate_at(&t->schedule, t->at.updates + 1 - t->at.schedule_updates);
    if (t->at.skipped + 1 >= c->train.max_skipped)
        return training_fail(t, INCIDENT_DATA,
                             "step %lld: every sample of %lld steps in a row is left out (data.skip_bad, "
                             "train.max_skipped): is data.train of another tokenizer than this model's, of "
                             "model.vocab_size %lld?",
                             (long long)t->at.step + 1, (long long)t->at.skipped + 1,
                             (long long)c->model.shape.vocab_size);
    t->at.samples += training_batch(t, t->at.step);
    t->at.step++;
    t->at.skipped++;
    training_report_step(t, &(training_figures){NAN, NAN, rate, clock_seconds() - t->now.began, training_saves_stall(t),
                                                TRAINING_NO_SAMPLE});
    return STATUS_OK;
}

/* Records the routers' losses of the step, as in the gradient; 0: none. */
static void note_router_losses(training *t)
{
    const layer_inputs *v = &t->compiled.values;
    const double *coefficient[] = {&v->router_loss, &v->router_z_loss};
    double *to[] = {&t->now.router_loss, &t->now.router_z_loss};
    for (int i = 0; i < 2; i++) {
        bool pooled = i == 0 && v->router_over == LAYER_BALANCE_POOLED;
        *to[i] = 0;
        if (v->routers > 0 && *coefficient[i] > 0)
            *to[i] = *coefficient[i] / (pooled ? v->routers : 1) / batch_tokens(t, false) *
                     (double)((const float *)executor_at(t->executor, v->router_total))[i];
    }
}

/* Runs the step's program, and traces it if requested. */
static void play_once(training *t, bool again)
{
    const compiled_program *p =
        compile_program_of(&t->compiled, training_microbatches(t, t->at.step), (int)t->at.bucket.at);
    const int *traced = t->config->run.trace.item;
    bool tracing = t->trace && t->at.step + 1 >= traced[0] && t->at.step + 1 <= traced[1];
    if (tracing)
        trace_begin(t->trace);
    executor_launch(t->executor, p);
    t->counts.plays[t->at.bucket.at]++;
    if (!again) {
        /* Reads the next batch while the device works. The next step retries a failed read, and reports it. */
        int64_t next = t->at.samples + training_batch(t, t->at.step);
        bool last = t->at.step + 1 == t->config->train.steps;
        if (!last && executor_reads_ahead(t->executor) &&
            batch_fill(&t->now.ahead_batch, &t->compiled, t->executor, t->data.train, next,
                       training_microbatches(t, t->at.step + 1), true) == STATUS_OK)
            t->now.ahead = next;
    }
    executor_finish(t->executor);
    if (tracing)
        trace_end(t->trace, p, t->at.step + 1);
}

/* Runs the step; if an expert capacity overflowed, the step has changed no state and is rerun on the same batch and
 * scalars in a larger capacity bucket. */
static void play_program(training *t)
{
    const int buckets = compile_buckets(&t->compiled.options);
    t->now.replays = 0;
    play_once(t, false);
    if (buckets == 1)
        return;
    const float *over = executor_at(t->executor, t->compiled.values.over);
    int needed = bucket_needed(over, buckets);
    while (needed > t->at.bucket.at) {
        t->at.bucket.at = needed;
        t->now.replays++;
        play_once(t, true);
        needed = bucket_needed(over, buckets);
    }
    t->now.bucket = (int)t->at.bucket.at;
    bucket_after(&t->at.bucket, needed);
}

/* Hashes the weights of all ranks, if this step's line tells of them (run.hash_every). */
static void hash_weights(training *t)
{
    *t->now.hash = 0;
    if (!is_due(t->config->run.hash_every, t->at.step))
        return;
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "hashing the weights");
    AUTO_FREE uint64_t *all = must_alloc((unsigned long)comm_ranks(t->world) * sizeof *all);
    uint64_t sum = state_hash(&t->compiled, t->executor);
    comm_all_gather_bytes(comm_world(t->world), all, &sum, sizeof sum);
    sum = 0;
    for (int i = 0; i < comm_ranks(t->world); i++)
        sum += all[i];
    snprintf(t->now.hash, sizeof t->now.hash, "%016llx", (unsigned long long)sum);
}

/* Makes one optimizer step; *undone: it and earlier ones back to a checkpoint have been undone. */
static status play_step(training *t, bool *undone)
{
    double rate = learning_rate_at(&t->schedule, t->at.updates + 1 - t->at.schedule_updates);
    fill_scalars(t, rate);
    if (t->at.step + 1 == t->config->profile.start)
        executor_profile(t->executor, true);
    if (t->guards.verify)
        verify_step(t->guards.verify, t->at.step + 1);
    play_program(t);
    if (t->at.step + 1 == t->config->profile.stop)
        executor_profile(t->executor, false);

    const float *control = executor_at(t->executor, t->compiled.values.control);
    const float *loss = executor_at(t->executor, t->compiled.values.loss_total);
    bool skipped = control[CONTROL_SKIP] > 0;
    const tensor *total = t->compiled.values.mtp_total;
    t->now.mtp_loss =
        tensor_elements(total) > 0 && t->now.batch.second_targets > 0
            ? (double)*(const float *)executor_at(t->executor, total) / (double)t->now.batch.second_targets
            : 0;
    note_router_losses(t);
    const tensor *peak = t->compiled.values.max_logit;
    if (tensor_elements(peak) > 0)
        t->now.attention_logit_max = (double)*(const float *)executor_at(t->executor, peak);
    if (compile_room(&t->compiled.options) > 0) { /* share of the expert assignments */
        const model_shape *shape = &t->config->model.shape;
        const float *over = executor_at(t->executor, t->compiled.values.over);
        t->now.dropped_share =
            (double)over[0] / (batch_tokens(t, false) * shape->experts_per_token * shape_routers(shape));
    }
    double mean = (double)*loss / batch_tokens(t, true);
    /* A step with gradients that are not finite changes only the data position; fp16 also lowers the loss scale. */
    const config *c = t->config;
    t->at.samples += training_batch(t, t->at.step);
    t->at.step++;
    t->at.updates += !skipped;
    t->at.skipped = skipped ? t->at.skipped + 1 : 0;
    if (precision_row_of(c->train.precision)->scales_loss)
        loss_scale_after(&t->at.loss_scale, &t->at.good_steps, skipped, c->train.loss_scale_window);
    double seconds = clock_seconds() - t->now.began;
    if (t->counts.trained_steps++ == 0)
        t->counts.first_step_seconds = clock_seconds() - t->began - t->choices.seconds;
    else
        t->counts.trained_seconds += seconds;
    training_watch_first(t, rate, skipped);
    hash_weights(t);
    training_report_step(t, &(training_figures){mean, (double)control[CONTROL_NORM], rate, seconds,
                                                training_saves_stall(t),
                                                skipped ? TRAINING_NOT_FINITE : TRAINING_UPDATED});
    if (t->config->debug.gradients && t->at.step == t->config->debug.at_step)
        TRY(training_dump_gradients(t));
    TRY(training_judge(undone, t, mean, (double)control[CONTROL_NORM], skipped));
    return !*undone && is_due(t->config->run.verify_every, t->at.step) ? training_verify(undone, t) : STATUS_OK;
}

/* Returns the mean loss over one data set: the same samples in every layout, evaluate.batches global batches, or all
 * samples once. */
static status evaluate_set(double *loss, training *t, signals_request *asked, int set)
{
    double sum = 0;
    const compile_options *o = &t->compiled.options;
    int64_t together = config_samples_together(&t->grid, o->micro_batch);
    int64_t end = training_evaluation_samples(t, set), missing = 0;
    report_progress bar = report_progress_begin(stderr, "evaluating", (double)end, false);
    status ready = STATUS_OK;
    int64_t mine = o->micro_batch, at = mine * grid_index(&t->grid, AXIS_SAMPLES);
    for (int64_t first = 0; first < end && samples_expect(t->data.sets[set], first + at, mine); first += together)
        ; /* requests blocks ahead until too many are pending */
    for (int64_t first = 0; first < end; first += together) {
        batch_facts batch = {0};
        watchdog_enter(t->watchdog, DURING_EVALUATION, true, t->at.step, "reading a batch");
        ready = batch_fill_evaluation(&batch, &t->compiled, t->executor, t->data.sets[set], first, end);
        watchdog_enter(t->watchdog, DURING_EVALUATION, false, t->at.step, "agreeing that all ranks are ready");
        ready = sync_ranks(t, asked, &batch, (pace_figures){0}, ready);
        if (ready != STATUS_OK || *asked == SIGNALS_STOP)
            break;
        executor_play(t->executor, &t->compiled.evaluation);
        if (comm_rank(t->world) == 0)
            report_progress_update(&bar, (double)first);
        sum += (double)*(float *)executor_at(t->executor, t->compiled.values.loss_total);
        missing += batch.left_out;
    }
    report_progress_end(&bar);
    if (ready != STATUS_OK || *asked == SIGNALS_STOP)
        return ready;
    if (missing == end)
        return training_fail(t, INCIDENT_DATA,
                             "data.validation %s: each of its %lld samples is left out (data.skip_bad): is it of "
                             "another tokenizer than this model's, of model.vocab_size %lld?",
                             t->config->data.validation.item[set].path, (long long)end, (long long)o->shape.vocab_size);
    *loss = sum / ((double)(end - missing) * (double)o->sequence);
    return STATUS_OK;
}

/* Evaluates; a request to stop cancels it: the sender may not wait long, and a checkpoint matters more. */
static status evaluate_model(training *t, signals_request *asked)
{
    double began = clock_seconds();
    AUTO_FREE double *losses = must_calloc((unsigned long)t->data.set_count, sizeof *losses);
    status s = STATUS_OK;
    watchdog_enter(t->watchdog, DURING_EVALUATION, false, t->at.step, "gathering the weights");
    executor_play(t->executor, &t->compiled.gathers);
    for (int i = 0; i < t->data.set_count && s == STATUS_OK && *asked != SIGNALS_STOP; i++)
        s = evaluate_set(&losses[i], t, asked, i);
    if (s == STATUS_OK && *asked != SIGNALS_STOP)
        training_report_evaluation(t, losses, clock_seconds() - began);
    return s;
}

/* ---- islands: the outer loop's collective calls; other jobs make none ---- */

/* Takes the position of the island that this one's model came from. */
static void take_position(training *t, const islands_position *p)
{
    if (!p->fresh_moments)
        return;
    t->at.step = p->step;
    t->at.updates = t->at.moments = p->updates;
    t->at.samples = training_samples_at(t, p->step) + train_past_omitted(&t->at.past);
    t->now.ahead = -1;
}

static status run_islands(training *t, islands_moment when)
{
    islands_position p = {t->at.step, t->at.updates, false};
    if (!t->islands)
        return STATUS_OK;
    status s = islands_step(t->islands, &p, when);
    take_position(t, &p);
    return s;
}

static status join_islands(training *t)
{
    islands_position p = {t->at.step, t->at.updates, false};
    if (!t->islands)
        return STATUS_OK;
    TRY(islands_join(t->islands, &p, &t->slot));
    take_position(t, &p);
    if (!t->config->outer.private_data)
        samples_interleave(t->data.train, t->slot, t->config->outer.slots);
    return STATUS_OK;
}

static status step_islands(training *t)
{
    int64_t before = 0, after = 0;
    if (t->islands)
        (void)islands_disagreement(&before, t->islands);
    TRY(run_islands(t, ISLANDS_AFTER_STEP));
    double apart = t->islands ? islands_disagreement(&after, t->islands) : 0;
    if (after != before)
        training_report_disagreement(t, apart);
    return STATUS_OK;
}

static status leave_islands(training *t)
{
    if (!t->islands)
        return STATUS_OK;
    TRY(training_save_finish(t)); /* the save in progress has the previous state */
    return run_islands(t, ISLANDS_LEAVING);
}

/* Saves the state unless it is saved; `last` also waits for it. A state that fails verification is not saved: the run
 * has gone back then. */
static status save_state(training *t, bool last)
{
    bool undone;
    if (t->at.step == t->saved)
        return STATUS_OK;
    TRY(training_verify(&undone, t));
    if (undone)
        return STATUS_OK;
    TRY(run_islands(t, ISLANDS_BEFORE_SAVE));
    TRY(training_save(t, false, last));
    t->saved = t->at.step;
    return STATUS_OK;
}

/* Saves the good state of a run that cannot continue, and then returns its failure `why`. */
static status save_anyway(training *t, status why)
{
    if (why == STATUS_OK)
        return why;
    comm_broadcast_bytes(comm_world(t->world), &t->evicted, sizeof t->evicted, 0); /* only rank 0 looks */
    if (t->at.step == t->saved || t->evicted || t->saves->refused)
        return why;
    AUTO_FREE char *words = must_strdup(status_message());
    log_warn("the run cannot go on; the state after step %lld is good, and is saved", (long long)t->at.step);
    status s = save_state(t, true);
    s = s == STATUS_OK ? status_fail(why, "%s", words) : status_context(s, "%s; and then", words);
    return s;
}

static status train_loop(training *t, signals_request *asked)
{
    const config *c = t->config;
    while (t->at.step < c->train.steps) {
        training_upload_look(t);
        t->now.began = clock_seconds();
        t->now.waited_before = comm_waited(t->world);
        t->now.stalled_before = training_saves_stall(t);
        TRY(save_anyway(t, ready_step(t, asked)));
        int64_t before = t->at.step;
        if (*asked == SIGNALS_STOP)
            TRY(leave_islands(t));
        if (*asked != SIGNALS_NONE)
            TRY(save_state(t, *asked == SIGNALS_STOP));
        if (*asked == SIGNALS_STOP)
            break;
        if (t->at.step != before) /* undone: the batch belongs to another step */
            continue;
        if (*asked == SIGNALS_SAVE)
            signals_saved();
        bool undone = false, unsealed = t->counts.trained_steps == 0;
        bool empty = t->now.batch.left_out == training_batch(t, t->at.step);
        TRY(empty ? save_anyway(t, pass_over(t)) : play_step(t, &undone));
        if (undone)
            continue;
        TRY(step_islands(t));
        bool last = t->at.step == c->train.steps;
        if (t->data.validation && c->evaluate.every > 0 && (is_due(c->evaluate.every, t->at.step) || last))
            TRY(save_anyway(t, evaluate_model(t, asked)));
        if (*asked == SIGNALS_STOP)
            TRY(leave_islands(t));
        bool saving = is_due(c->checkpoint.every, t->at.step) || is_due(c->checkpoint.export_every, t->at.step);
        if (saving || last || *asked == SIGNALS_STOP)
            TRY(save_state(t, last || *asked == SIGNALS_STOP));
        else if (is_due(c->checkpoint.memory_every, t->at.step)) {
            TRY(run_islands(t, ISLANDS_BEFORE_SAVE));
            TRY(training_save(t, true, false));
        }
        if (*asked == SIGNALS_STOP)
            break;
        bool captured = c->train.cuda_graph && t->counts.trained_steps == 2;
        if ((unsealed && t->counts.trained_steps > 0) || captured) {
            if (captured)
                seal_open();
            training_measure_reserve(t);
            seal_close();
        }
    }
    seal_open();
    return STATUS_OK;
}

/* Finishes a complete run: its files stay as they are. Completes the work that a killed process left at its end. */
static status complete_run(training *t)
{
    const config *c = t->config;
    log_info("nothing left to do: %lld steps are done, and train.steps is %lld; raise it to go on",
             (long long)t->at.step, (long long)c->train.steps);
    TRY(comm_all_status(comm_world(t->world), lock_check(t->lock)));
    TRY(comm_all_status(comm_world(t->world), training_upload_open(t)));
    training_upload_finish(t, false);
    AUTO_FREE char *summary = must_format("%s/summary.json", t->folder);
    bool there = false;
    status s =
        comm_all_status(comm_world(t->world), comm_rank(t->world) == 0 ? atomic_look(&there, summary) : STATUS_OK);
    comm_broadcast_bytes(comm_world(t->world), &there, sizeof there, 0);
    if (s == STATUS_OK && there && !t->new_stage) {
        bool first = comm_rank(t->world) == 0; /* rank 0 knows the remaining uploads and exports */
        s = first ? training_tracking_catch_up(t) : s;
        s = first && s == STATUS_OK ? training_export_open(t) : s;
        watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "waiting for an export");
        if (first && s == STATUS_OK)
            training_export_finish(t);
        s = comm_all_status(comm_world(t->world), s);
    }
    if (s != STATUS_OK || there || t->new_stage)
        return s;
    if (comm_rank(t->world) == 0)
        s = checkpoint_tidy(t->checkpoints);
    if (comm_rank(t->world) == 0 && s == STATUS_OK)
        s = checkpoint_name_latest(t->checkpoints);
    if (comm_rank(t->world) == 0 && s == STATUS_OK)
        s = checkpoint_prune(t->checkpoints, c->checkpoint.keep, c->checkpoint.keep_every, NULL);
    if (s != STATUS_OK)
        log_warn("%s", status_message());
    node_copies_forget(t->saves->copies);
    TRY(training_report_open(t));
    (void)training_saves_stall(t);
    return training_summary(t, false);
}

/* Warns of steps to be looked at to which this start does not come. */
static void warn_of_other_steps(const training *t)
{
    const config *c = t->config;
    const int *traced = c->run.trace.item;
    long long done = (long long)t->at.step;
    if (comm_rank(t->world) > 0)
        return;
    if (c->debug.gradients && c->debug.at_step <= done)
        log_warn("debug.at_step %lld is done, this start goes on after step %lld: no gradients are written",
                 (long long)c->debug.at_step, done);
    if (c->run.trace.count && (traced[1] <= done || traced[0] > c->train.steps))
        log_warn("run.trace [%d, %d]: this start runs steps %lld to %lld, so that nothing is traced", traced[0],
                 traced[1], done + 1, (long long)c->train.steps);
}

static status train_on(training *t, bool *stopped)
{
    warn_of_other_steps(t);
    signals_request asked = SIGNALS_NONE;
    if (t->at.step >= t->config->train.steps)
        return complete_run(t);
    TRY(training_open_verify(t));
    TRY(training_report_open(t));
    TRY(training_save_open(t));
    TRY(comm_all_status(comm_world(t->world), training_upload_open(t)));
    training_header(t);
    if (t->guards.verify)
        verify_begin(t->guards.verify);
    t->saved = t->at.step;
    status s = train_loop(t, &asked);
    if (s != STATUS_OK) { /* failed on all ranks: the save in progress is good */
        AUTO_FREE char *words = must_strdup(status_message());
        (void)training_save_finish(t);
        (void)status_fail(s, "%s", words);
        return s;
    }
    TRY(training_save_finish(t));
    if (t->config->checkpoint.memory_every > 0)
        node_copies_forget(t->saves->copies);
    *stopped = asked == SIGNALS_STOP && t->at.step < t->config->train.steps;
    training_upload_finish(t, *stopped);
    watchdog_enter(t->watchdog, DURING_SAVE, true, t->at.step, "waiting for an export");
    if (!*stopped) /* else the next start makes the remaining exports */
        training_export_finish(t);
    if (*stopped)
        log_info("stopped by %s after step %lld; the run resumes from here",
                 lock_removed(t->lock) ? "the loss of its lock, which nobody is known to have held since"
                                       : signals_name(),
                 (long long)t->at.step);
    watchdog_enter(t->watchdog, DURING_END, true, t->at.step, "writing the summary");
    (void)training_saves_stall(t);
    TRY(training_summary(t, *stopped));
    if (!*stopped)
        training_say_done(t);
    return STATUS_OK;
}

watchdog_limits train_limits(const config *c)
{
    return (watchdog_limits){.phase = {[DURING_START] = c->run.setup_seconds,
                                       [DURING_SETUP] = c->run.setup_seconds,
                                       [DURING_LOAD] = c->run.load_seconds,
                                       [DURING_STEP] = c->run.hang_seconds,
                                       [DURING_EVALUATION] = c->run.evaluation_seconds,
                                       [DURING_SAVE] = c->run.save_seconds,
                                       [DURING_END] = c->run.setup_seconds},
                             .silent = c->run.silent_seconds < c->run.hang_seconds ? c->run.silent_seconds
                                                                                   : c->run.hang_seconds};
}

status train_run(bool *stopped, const config *c, comm *world, watchdog *w, double began)
{
    RELEASED_BY(training_close) training t = {0};
    *stopped = false;
    status s = training_open(&t, c, world, w, began);
    if (s == STATUS_OK)
        s = training_restore(&t);
    if (s == STATUS_OK && t.at.step < c->train.steps)
        s = join_islands(&t);
    if (s == STATUS_OK)
        s = train_on(&t, stopped);
    if (s != STATUS_OK) {
        AUTO_FREE char *words = must_strdup(status_message());
        incident_log_say_held(t.folder, &t.ending);
        training_tracking_end(&t, TRAINING_FAILED);
        (void)status_fail(s, "%s", words);
    }
    if (t.ending.known)
        (void)comm_all_status(comm_world(world), STATUS_OK); /* written before rank 0 looks for the others' incidents */
    return s;
}
