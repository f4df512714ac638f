#include "engine/train.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/batch.h"
#include "engine/loss_scale.h"
#include "engine/training.h"
#include "kernels/op.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/seal.h"
#include "parallel/signals.h"

/* Muon's rate follows the same schedule as the others'. */
static float muon_rate(const config *c, double rate)
{
    return (float)(c->optimizer.lr > 0 ? rate * (c->optimizer.muon_lr / c->optimizer.lr) : 0);
}

static void fill_scalars(training *t, double rate)
{
    const config *c = t->config;
    step_scalars *s = executor_at(t->executor, t->compiled.inputs.scalars);
    double updates = (double)(t->updates - t->moments) + 1; /* of the moments */
    *s = (step_scalars){.seed = (uint64_t)c->train.seed,
                        .step = t->step + 1,
                        .updates = t->updates + 1,
                        .lr = (float)rate,
                        .beta1 = (float)c->optimizer.beta1,
                        .beta2 = (float)c->optimizer.beta2,
                        .epsilon = (float)c->optimizer.epsilon,
                        .weight_decay = (float)c->optimizer.weight_decay,
                        .muon_lr = muon_rate(c, rate),
                        .momentum = (float)c->optimizer.momentum,
                        .clip = (float)c->optimizer.clip,
                        .loss_scale = (float)t->loss_scale,
                        .first_sample = batch_first(&t->compiled.options, t->samples) + ((int64_t)t->slot << 40),
                        .loss_tokens = (float)c->train.global_batch * (float)c->train.sequence,
                        .momentum_correction = (float)(1 - pow(c->optimizer.beta1, updates)),
                        .variance_correction = (float)(1 - pow(c->optimizer.beta2, updates))};
}

/* A step whose gradients are not finite changed nothing but the data position; with fp16 the scale comes down. */
static status after_update(training *t, bool skipped)
{
    const config *c = t->config;
    t->step++;
    t->samples += c->train.global_batch;
    t->updates += !skipped;
    t->skipped = skipped ? t->skipped + 1 : 0;
    if (c->train.precision == CONFIG_FP16)
        loss_scale_after(&t->loss_scale, &t->good_steps, skipped, c->train.loss_scale_window);
    if (c->train.max_skipped > 0 && t->skipped >= c->train.max_skipped)
        return status_fail(STATUS_FAILED,
                           "step %lld: gradients were not finite for %d steps in a row (train.max_skipped): "
                           "lower optimizer.lr, or look at the data of these steps",
                           (long long)t->step, t->skipped);
    return STATUS_OK;
}

/* Before anything is computed: did it work everywhere, was any rank asked to stop, and how far is the save under way? One
 * exchange for all. */
static status agree(training *t, bool *stop, status mine)
{
    int ranks = comm_ranks(t->world);
    int here[3] = {mine != STATUS_OK, signals_pending() != 0, (int)saver_progress_of(t->saver)};
    int(*all)[3] = must_alloc((unsigned long)ranks * sizeof *all);
    bool failed = false, saving = false, lost = false;
    comm_all_gather_bytes(comm_world(t->world), all, here, sizeof here);
    for (int i = 0; i < ranks; i++) {
        failed |= all[i][0] != 0;
        *stop |= all[i][1] != 0;
        saving |= all[i][2] == SAVER_WORKING;
        lost |= all[i][2] == SAVER_FAILED;
    }
    free(all);
    training_save_advance(t, saving, lost);
    return failed ? comm_all_status(comm_world(t->world), mine) : STATUS_OK;
}

/* The batch of this step: read ahead while the last one was played, or read now. */
static status take_batch(training *t)
{
    bool there = t->ahead == t->samples;
    t->ahead = -1;
    if (!there)
        return batch_fill(&t->compiled, t->executor, t->train, t->samples);
    executor_turn(t->executor);
    return STATUS_OK;
}

/* While the device plays this step, the next one's batch. What cannot be read is tried again by that step, which says so. */
static void read_ahead(training *t)
{
    int64_t next = t->samples + t->config->train.global_batch;
    bool last = t->step + 1 == t->config->train.steps;
    if (!last && executor_reads_ahead(t->executor) &&
        batch_read_ahead(&t->compiled, t->executor, t->train, next) == STATUS_OK)
        t->ahead = next;
}

/* One optimizer step; none, and *stop, if any rank was asked to stop before it. */
static status train_step(training *t, bool *stop)
{
    double began = clock_seconds();
    double rate = learning_rate_at(&t->schedule, t->updates + 1);
    executor_set_step(t->executor, t->step + 1);
    status ready = t->reported;
    if (ready == STATUS_OK && t->lock && lock_lost(t->lock))
        ready = status_fail(STATUS_FAILED, "%s/lock has been taken by another run: this one ends", t->folder);
    if (ready == STATUS_OK)
        ready = take_batch(t);
    TRY(agree(t, stop, ready));
    if (*stop)
        return STATUS_OK;
    fill_scalars(t, rate);

    if (t->step + 1 == t->config->profile.start)
        executor_profile(t->executor, true);
    executor_launch(t->executor, &t->compiled.training);
    read_ahead(t);
    executor_finish(t->executor);
    if (t->step + 1 == t->config->profile.stop)
        executor_profile(t->executor, false);

    const float *control = executor_at(t->executor, t->compiled.results.control);
    const float *loss = executor_at(t->executor, t->compiled.results.loss_total);
    bool skipped = control[CONTROL_SKIP] > 0;
    double mean = (double)*loss / ((double)t->config->train.global_batch * (double)t->config->train.sequence);
    status s = after_update(t, skipped);
    if (t->reported == STATUS_OK)
        t->reported =
            training_report_step(t, mean, (double)control[CONTROL_NORM], rate, clock_seconds() - began, skipped);
    if (t->config->debug.gradients && t->step == t->config->debug.at_step)
        TRY(training_dump_gradients(t));
    return s;
}

/* The same samples in every layout: evaluate.batches global batches, or one pass over what there is.
 * When asked to stop it is given up: whoever asks may not wait for long, and a checkpoint is worth more. */
static status evaluate(training *t, bool *stop)
{
    double began = clock_seconds(), sum = 0;
    const compile_options *o = &t->compiled.options;
    int64_t together = (int64_t)o->micro_batch * grid_group_size(&t->grid, AXIS_SAMPLES);
    int64_t end = training_evaluation_samples(t);
    for (int64_t first = 0; first < end; first += together) {
        TRY(agree(t, stop, batch_fill_evaluation(&t->compiled, t->executor, t->validation, first, end)));
        if (*stop)
            return STATUS_OK;
        executor_play(t->executor, &t->compiled.evaluation);
        sum += (double)*(float *)executor_at(t->executor, t->compiled.results.loss_total);
    }
    double loss = sum / ((double)end * (double)o->sequence);
    if (t->reported == STATUS_OK)
        t->reported = training_report_evaluation(t, loss, clock_seconds() - began);
    return STATUS_OK;
}

static bool due(int every, int64_t step)
{
    return every > 0 && step % every == 0;
}

static outer_position position_of(const training *t)
{
    return (outer_position){t->step, t->updates, false};
}

static void take_position(training *t, const outer_position *p)
{
    t->step = p->step;
    t->updates = p->updates;
    t->samples = p->step * t->config->train.global_batch;
    if (p->fresh_moments)
        t->moments = t->updates;
}

/* One of the outer loop's calls, for a job that is an island. */
static status outside(training *t, status (*call)(outer *o, outer_position *p))
{
    outer_position p = position_of(t);
    if (!t->outer)
        return STATUS_OK;
    status s = call(t->outer, &p);
    take_position(t, &p);
    return s;
}

static status join(training *t)
{
    outer_position p = position_of(t);
    if (!t->outer)
        return STATUS_OK;
    TRY(outer_join(t->outer, &p, &t->slot));
    take_position(t, &p);
    if (!t->config->outer.private_data)
        samples_interleave(t->train, t->slot, t->config->outer.slots);
    return STATUS_OK;
}

/* Before the last save: what is on its way to the disk is the state before. */
static status leave(training *t)
{
    if (!t->outer)
        return STATUS_OK;
    TRY(training_save_finish(t));
    return outside(t, outer_part);
}

static status train_loop(training *t)
{
    const config *c = t->config;
    bool stop = false;
    int64_t saved = t->step;
    while (t->step < c->train.steps && !stop) {
        TRY(train_step(t, &stop));
        if (!stop)
            TRY(outside(t, outer_step));
        if (!stop && t->validation &&
            (due(c->evaluate.every, t->step) || (t->step == c->train.steps && c->evaluate.every > 0)))
            TRY(evaluate(t, &stop));
        if (stop)
            TRY(leave(t));
        bool last = t->step == c->train.steps || stop;
        if ((due(c->checkpoint.every, t->step) || last) && t->step != saved) {
            TRY(outside(t, outer_before_save));
            TRY(training_save(t, last));
            saved = t->step;
        }
        if (t->trained_steps == 1)
            seal_close();
    }
    seal_open();
    TRY(comm_all_status(comm_world(t->world), t->reported));
    if (stop)
        log_info("stopped by a signal after step %lld; the run resumes from here", (long long)t->step);
    return STATUS_OK;
}

static status train_on(training *t)
{
    /* The files of a run that is complete stay as they are. */
    if (t->step >= t->config->train.steps) {
        log_info("nothing left to do: %lld steps are done, and train.steps is %lld; raise it to go on",
                 (long long)t->step, (long long)t->config->train.steps);
        return STATUS_OK;
    }
    TRY(training_report_open(t));
    TRY(training_save_open(t));
    training_header(t);
    status s = train_loop(t);
    if (s != STATUS_OK) { /* on all ranks: what is being saved is good */
        char *words = must_strdup(status_message());
        (void)training_save_finish(t);
        (void)status_fail(s, "%s", words);
        free(words);
        return s;
    }
    TRY(training_save_finish(t));
    return training_summary(t);
}

status train_run(const config *c, comm *world, double began)
{
    training t;
    signals_install();
    status s = training_open(&t, c, world, began);
    if (s == STATUS_OK)
        s = training_restore(&t);
    if (s == STATUS_OK && t.step < c->train.steps)
        s = join(&t);
    if (s == STATUS_OK)
        s = train_on(&t);
    training_close(&t);
    return s;
}
