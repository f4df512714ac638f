/* Rank 0's output of a run. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "engine/compile/model/flops.h"
#include "engine/compile/model/tokens.h"
#include "engine/guard/pace.h"
#include "engine/islands/islands.h"
#include "engine/mirror/mirror.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/host/incident_log.h"
#include "engine/train/report/training_report.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/outlet.h"
#include "memory/scope.h"
#include "memory/seal.h"
#include "models/parts.h"

static bool prints_lines(const training *t)
{
    return comm_rank(t->world) == 0;
}

static int64_t peak_resident(void)
{
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (int64_t)usage.ru_maxrss * 1024;
}

/* ---- the run's folder ------------------------------------------------------------------------------------------ */

/* Drops lines from metrics.jsonl of steps that a resumed run will redo. Keeps unreadable lines. */
static status keep_lines(const char *path, int64_t step)
{
    AUTO_FREE char *all = NULL;
    int64_t bytes, used = 0;
    TRY(reading_file(&all, &bytes, path));
    if (!all)
        return STATUS_OK;
    for (char *line = all, *end; (end = memchr(line, '\n', (size_t)(all + bytes - line))); line = end + 1) {
        AUTO_FREE char *text = must_format("%.*s", (int)(end - line), line);
        const char *at = strstr(text, "\"step\"");
        long long number = -1;
        if (!at || sscanf(at, "\"step\"%*[: ]%lld", &number) != 1 || number > step)
            continue;
        memmove(all + used, line, (size_t)(end + 1 - line));
        used += end + 1 - line;
    }
    return atomic_replace(path, all, used);
}

static status open_kept(lines **out, const training *t, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", t->folder, name);
    TRY(lock_check(t->lock));
    TRY(keep_lines(path, t->at.step));
    return lines_open(out, path, t->lock);
}

/* Opens the files of lines and events per step. */
static status open_steps(training *t)
{
    if (t->report->tracker) /* held while lines are dropped from metrics.jsonl */
        TRY(tracker_hold(t->report->tracker, t->at.step));
    TRY(open_kept(&t->report->metrics, t, "metrics.jsonl"));
    if (t->report->tracker)
        TRY(tracker_go_on(t->report->tracker));
    if (t->report->loads && t->config->run.loads_every > 0)
        TRY(open_kept(&t->report->load_lines, t, "loads.jsonl"));
    if (t->config->run.tensorboard)
        TRY(tensorboard_open(&t->report->board, t->folder, t->at.step + 1, report_time(), t->lock));
    return STATUS_OK;
}

static status open_files(training *t)
{
    TRY(training_check_folder(t, true));
    AUTO_FREE char *text = config_text(t->config), *path = must_format("%s/config.yaml", t->folder),
                   *events = must_format("%s/events.jsonl", t->folder),
                   *chosen = must_format("%s/" CHOICES_FILE, t->folder);
    TRY(atomic_replace(path, text, (int64_t)strlen(text)));
    t->report->loads = loads_open(&t->config->model.shape, t->compiled.around.group[AXIS_EXPERT].ranks);
    TRY(training_tracking_open(t));
    TRY(open_steps(t));
    TRY(lines_open(&t->report->events, events, t->lock));
    return t->choices.count > 0 ? choices_write(&t->choices, chosen) : STATUS_OK;
}

/* Appends an event. Unlike metrics they are not trimmed: they show repeated work. metrics_done reports a full disk. */
static void write_event(training *t, report_happening what)
{
    what.run = t->run;
    if (t->report->events)
        (void)report_happened(t->report->events, &what, report_time());
}

void training_event(training *t, const char *event, int64_t step, const char *words)
{
    write_event(t, (report_happening){.event = event, .step = step, .words = words});
}

void training_event_saved(training *t, int64_t step, const char *name)
{
    AUTO_FREE char *path = must_format("%s/%s", t->checkpoints, name);
    bool there = true;
    if (t->report->events && atomic_look(&there, path) == STATUS_OK && !there) {
        log_warn("%s is not there any more: its folder has been moved or replaced", path);
        training_event(t, "saved, then moved", step, name);
    } else
        write_event(t, (report_happening){.event = "saved", .step = step, .words = name, .here = true});
}

/* Records an incident of a GPU of this host, perhaps another rank's, which reports it itself, but less clearly. */
static void tell_of_gpu(void *context, const char *words)
{
    training *t = context;
    watchdog_text text;
    incident what = training_make_incident(t, &text, INCIDENT_FROZEN, words, -1);
    log_warn("%s: %s", watchdog_host(t->watchdog), words);
    (void)incident_log_append(t->folder, &what);
}

/* Opens the resources on the first rank of each host. A failure does not stop training. */
static void open_resources(training *t)
{
    const config *c = t->config;
    if (comm_local_rank(t->world) > 0 || c->run.resource_seconds == 0)
        return;
    AUTO_FREE char *folder = must_format("%s/hosts/%s", t->folder, watchdog_host(t->watchdog));
    const resources_options options = {.folder = folder,
                                       .root = "",
                                       .every = c->run.resource_seconds,
                                       .owner = t->lock,
                                       .tensorboard = c->run.tensorboard,
                                       .first_step = t->at.step + 1,
                                       .tell = tell_of_gpu,
                                       .context = t};
    if (resources_open(&t->report->resources, &options) != STATUS_OK)
        log_warn("%s; the run goes on without this host's resources", status_message());
}

status training_check_folder(const training *t, bool look)
{
    reading_place place = PLACE_SAME;
    if (look && !t->report->metrics)
        TRY(reading_place_of(&place, t->place, t->folder));
    if (place == PLACE_FREE || place == PLACE_TAKEN)
        return status_fail(STATUS_FAILED, "%s has been moved or replaced while the run began: start it again",
                           t->folder);
    if (!t->report->metrics || lines_are_here(t->report->metrics, look))
        return lock_check(t->lock);
    return status_fail(STATUS_FAILED,
                       "%s is another folder than the one in which this run began, which was moved: it ends, and the "
                       "next start goes on from what is there now",
                       t->folder);
}

status training_report_open(training *t)
{
    t->report->peak_flops = executor_peak(t->executor) * comm_ranks(t->world);
    t->report->flops_per_token = flops_per_token(&t->config->model.shape, t->config->train.sequence);
    TRY(comm_all_status(comm_world(t->world), prints_lines(t) ? open_files(t) : STATUS_OK));
    const devices_row *row = t->device->row(comm_local_rank(t->world));
    write_event(t, (report_happening){NULL, t->at.step > 0 ? "resumed" : "started", t->at.step, t->fell_back,
                                      row ? row->word : NULL, comm_ranks(t->world), false});
    open_resources(t);
    return STATUS_OK;
}

/* ---- the header ------------------------------------------------------------------------------------------------- */

static void say_choices(const training *t)
{
    const choices *k = &t->choices;
    if (k->used > 0 && k->added == 0)
        printf("  choices     %d from " CHOICES_FILE "\n", k->used);
    else if (k->used > 0 && !t->config->train.tune)
        printf("  choices     %d as the library guesses (train.tune=false)\n", k->added);
    else if (k->used > 0)
        printf("  choices     %d timed in %.2f s, kept in " CHOICES_FILE "\n", k->added, k->seconds);
}

static void say_memory(const training *t, const device_facts *f)
{
    const double gib = 1 << 30;
    int communicators = executor_communicators(t->executor);
    if (t->device->communication)
        printf(
            "  GPU memory  %.2f GiB arena, %.2f GiB beside it (CUDA, libraries, %d communicator%s; %.2f GiB %s), %.2f "
            "GiB free\n",
            (double)t->compiled.arena_bytes / gib, (double)f->beside / gib, communicators,
            communicators == 1 ? "" : "s", (double)t->expected_beside / gib,
            t->choices.reserves ? "as measured before" : "assumed", (double)f->free_memory / gib);
}

void training_header(const training *t)
{
    const config *c = t->config;
    const compiled *k = &t->compiled;
    /* shows the plan of the largest rank */
    int64_t largest = (int64_t)comm_all_max(comm_world(t->world), (double)k->arena_bytes);
    if (!prints_lines(t))
        return;
    const model_shape *s = &c->model.shape;
    AUTO_FREE char *model =
        must_format("%s: %d layers, hidden %lld, %d heads (%d key/value) of %d, ffn %lld, vocabulary %lld",
                    shape_traits_of(s->architecture)->name, s->layers, (long long)s->hidden_size, s->heads, s->kv_heads,
                    s->head_size, (long long)s->ffn_size, (long long)s->vocab_size);
    device_facts facts;
    executor_facts(&facts, t->executor);
    AUTO_FREE char *where = t->device == &device_cpu ? must_format("cpu, %d thread%s a rank", k->options.threads,
                                                                   k->options.threads == 1 ? "" : "s")
                                                     : must_format("%s, one a rank", facts.name);
    char sizes[GRID_WORDS];
    grid_words(sizes, t->grid.size, grid_shown(t->grid.size), " x ", NULL);
    AUTO_FREE char *experts = c->parallel.expert > 1 ? must_format("%d", c->parallel.expert) : must_strdup("");
    AUTO_FREE char *layout =
        comm_ranks(t->world) == 1
            ? NULL
            : must_format("%s, %s, ZeRO %d%s%s", sizes, config_word(c, "parallel.schedule"), c->parallel.zero,
                          c->parallel.expert > 1 ? ", experts over " : "", experts);
    report_run run = {.model = model,
                      .device = where,
                      .precision = config_word(c, "train.precision"),
                      .layout = layout,
                      .folder = t->folder,
                      .parameters = parts_parameters(s),
                      .steps = c->train.steps,
                      .tokens_per_step = config_step_tokens(c),
                      .tokens = training_samples_at(t, c->train.steps) * c->train.sequence,
                      .expert_room = compile_room(&k->options),
                      .flops_per_token = t->report->flops_per_token,
                      .peak_flops = t->report->peak_flops,
                      .arena_bytes = largest,
                      .lower_bound_bytes = k->persistent_bytes + k->training.lower_bound};
    run.memory.weights = k->class_bytes[CLASS_WEIGHT];
    run.memory.gradients = k->class_bytes[CLASS_GRADIENT];
    run.memory.optimizer = k->class_bytes[CLASS_OPTIMIZER];
    run.memory.kept = k->training.peak_kept;
    run.memory.temporary = k->training.peak_temporary;
    report_header(stdout, &run);
    training_say_data(t);
    say_memory(t, &facts);
    int64_t wanted = (int64_t)c->evaluate.batches * c->train.global_batch;
    for (int i = 0; i < t->data.set_count && c->evaluate.every > 0; i++)
        if (training_evaluation_samples(t, i) < wanted)
            printf("  evaluation  all %lld sequences of %s of data.validation: fewer than evaluate.batches asks for\n",
                   (long long)training_evaluation_samples(t, i), c->data.validation.item[i].path);
    if (c->optimizer.warmup >= c->train.steps)
        printf("  rate        optimizer.warmup %lld is all of train.steps: the learning rate only rises\n",
               (long long)c->optimizer.warmup);
    if (t->saving.beside)
        printf("  checkpoints written beside training, from a copy of %s a rank\n", BYTES_TEXT(t->saving.copy_bytes));
    if (t->saving.memory_bytes > 0)
        printf("  copies      every %d steps in the memory of nodes, at most %s a rank\n",
               t->config->checkpoint.memory_every, BYTES_TEXT(t->saving.memory_bytes));
    say_choices(t);
    printf("  first step  under way: memory is touched and kernels are %s, so it takes longer than the others\n",
           t->device == &device_cpu ? "prepared" : "loaded and timed");
    if (c->run.log_format == CONFIG_LOG_PLAIN)
        report_columns(stdout);
    fflush(stdout);
}

/* ---- steps ------------------------------------------------------------------------------------------------------ */

static status write_events(training *t, const report_step *s)
{
    tensorboard_value values[] = {
#define METRIC(kind, name, when, tag, ...) {(when) ? tag : NULL, (double)s->name},
#include "engine/train/report/metrics.def"
    };
    int count = 0;
    if (!t->report->board)
        return STATUS_OK;
    for (size_t i = 0; i < sizeof values / sizeof *values; i++)
        if (values[i].tag)
            values[count++] = values[i];
    return tensorboard_write(t->report->board, values, count, s->step, s->time);
}

/* Reports a failure to write metrics once: lines are kept for a while, and the next line retries. */
static void metrics_done(training *t, status s)
{
    if (s == STATUS_LOST || (s != STATUS_OK) == t->report->metrics_failing)
        return;
    t->report->metrics_failing = s != STATUS_OK;
    if (!t->report->metrics_failing) {
        log_warn("metrics are written again, with the lines since; %lld lines are missing",
                 lines_lost(t->report->metrics));
        return;
    }
    log_warn("%s; the run goes on without its metrics", status_message());
    AUTO_FREE char *words = must_strdup(status_message());
    incident_log_say(t->folder, t->watchdog, INCIDENT_STORAGE, false, words);
}

/* Reports a lost reader of the screen (a dead tee, a closed terminal) once: training continues. */
static void screen_done(training *t, int error)
{
    if (t->report->stdout_failed || !ferror(stdout))
        return;
    t->report->stdout_failed = true;
    AUTO_FREE char *words =
        must_format("standard output cannot be written to: %s; the run goes on without it", strerror(error));
    log_warn("%s; its lines are in %s/metrics.jsonl", words, t->folder);
    incident_log_say(t->folder, t->watchdog, INCIDENT_STORAGE, false, words);
}

/* Adds the distribution of the step's tokens over the experts; a step without samples has none. */
static void add_loads(report_step *r, training *t, training_outcome outcome)
{
    const config *c = t->config;
    if (!t->report->loads || outcome == TRAINING_NO_SAMPLE)
        return;
    const int32_t *counts = executor_at(t->executor, t->compiled.values.choices);
    loads_facts f = loads_judge(t->report->loads, counts);
    r->expert_load_max = f.expert_max;
    r->expert_load_max_layer = f.layer;
    r->rank_load_max = f.rank_max;
    r->dead_experts = f.dead;
    r->expert_entropy = f.entropy;
    AUTO_FREE char *words = loads_warn(t->report->loads, counts);
    if (words) {
        log_warn("step %lld: %s", (long long)t->at.step, words);
        training_event(t, "experts", t->at.step, words);
    }
    bool last = t->at.step == c->train.steps;
    if (t->report->load_lines && (last || t->at.step % c->run.loads_every == 0)) {
        const char *line = loads_line(t->report->loads, counts, t->at.step);
        metrics_done(t, lines_write(t->report->load_lines, line, (int64_t)strlen(line), false));
    }
}

/* Divides a step's time by cause. A device waits for messages on its own queues, which the host cannot time. */
static void divide_seconds(report_step *r, training *t, double stalled)
{
    bool seen = t->device == &device_cpu;
    double waited = comm_waited(t->world) - t->now.waited_before;
    r->data_seconds = t->now.data_seconds;
    r->context_imbalance = t->now.batch.imbalance;
    r->context_imbalance_of_halves = t->now.batch.imbalance_of_zigzag;
    const mirror_facts *mirrored = t->saving.mirror;
    r->mirrors = mirrored;
    r->mirror_behind_bytes = mirrored ? mirrored->behind_bytes : 0;
    r->mirrored_step = mirrored ? mirrored->step : 0;
    r->communication_seconds = seen ? waited : -1;
    r->checkpoint_seconds = t->now.stalled_before + stalled;
    r->compute_seconds = fmax(0, r->step_seconds - t->now.data_seconds - stalled - (seen ? waited : 0));
}

static void report_resources(training *t, bool now)
{
    if (!t->report->resources)
        return;
    watchdog_enter(t->watchdog, DURING_STEP, true, t->at.step, "writing this host's resources");
    status s = resources_look(t->report->resources, t->at.step, now);
    if (s != STATUS_OK && s != STATUS_LOST && !t->report->resources_failing)
        log_warn("%s; the run goes on without this host's resources", status_message());
    t->report->resources_failing = s != STATUS_OK;
}

void training_report_step(training *t, const training_figures *f)
{
    static const char *const skips[] = {[TRAINING_UPDATED] = NULL,
                                        [TRAINING_NOT_FINITE] = "a gradient is not finite",
                                        [TRAINING_NO_SAMPLE] = "every sample of its batch is left out"};
    report_resources(t, false);
    if (!prints_lines(t))
        return;
    watchdog_enter(t->watchdog, DURING_STEP, true, t->at.step, "writing metrics");
    const config *c = t->config;
    double tokens = (double)training_batch(t, t->at.step - 1) * (double)c->train.sequence;
    report_step r = {.step = t->at.step,
                     .steps = c->train.steps,
                     .loss = f->loss,
                     .grad_norm = f->norm,
                     .lr = f->rate,
                     .step_seconds = f->seconds,
                     .hash = *t->now.hash ? t->now.hash : NULL,
                     .skipped = skips[f->outcome],
                     .tokens_per_second = tokens / f->seconds,
                     .time = report_time(),
                     .tokens = t->at.samples * c->train.sequence,
                     .epoch = samples_epoch(t->data.train, t->at.samples),
                     .loss_scale = t->at.loss_scale,
                     .mtp_loss = t->now.mtp_loss,
                     .attention_logit_max = t->now.attention_logit_max,
                     .router_loss = t->now.router_loss,
                     .router_z_loss = t->now.router_z_loss,
                     .buckets = compile_buckets(&t->compiled.options),
                     .drops = compile_room(&t->compiled.options) > 0,
                     .dropped_share = t->now.dropped_share,
                     .rung = t->now.bucket,
                     .replays = t->now.replays,
                     .skipped_steps = t->at.step - t->at.updates,
                     .resident_bytes = peak_resident()};
    r.slowest_rank = -1;
    r.wait_seconds = t->guards.judge ? pace_waited(t->guards.judge) : 0;
    for (int i = 0; t->guards.judge && i < comm_ranks(t->world); i++)
        if (pace_ratio(t->guards.judge, i) > r.slowest_ratio) {
            r.slowest_ratio = pace_ratio(t->guards.judge, i);
            r.slowest_rank = i;
        }
    add_loads(&r, t, f->outcome);
    training_report_fetched(&r, t);
    divide_seconds(&r, t, f->stalled);
    r.tflops = r.tokens_per_second * t->report->flops_per_token / 1e12;
    r.mfu = target_mfu(t->report->flops_per_token, r.tokens_per_second, 1, t->report->peak_flops, 1);
    double each =
        t->counts.trained_steps > 1 ? t->counts.trained_seconds / (double)(t->counts.trained_steps - 1) : f->seconds;
    r.left_seconds = each * (double)(c->train.steps - t->at.step);
    if (c->run.log_every > 0 && (t->at.step % c->run.log_every == 0 || t->at.step == c->train.steps || r.skipped))
        report_line(stdout, &r, c->run.log_format == CONFIG_LOG_JSON);
    screen_done(t, errno);
    status s = report_metrics(t->report->metrics, &r), events = write_events(t, &r);
    metrics_done(t, s == STATUS_OK ? events : s);
}

static status write_evaluation_events(training *t, const report_result *r)
{
    tensorboard_value value = {"validation/loss", r->loss};
    if (!t->report->board)
        return STATUS_OK;
    status s = tensorboard_write(t->report->board, &value, 1, r->step, r->time);
    for (int i = 0; r->sets > 1 && i < r->sets; i++) {
        AUTO_FREE char *tag = must_format("validation/%s", r->name[i]);
        value = (tensorboard_value){tag, r->losses[i]};
        s = tensorboard_write(t->report->board, &value, 1, r->step, r->time);
    }
    return s;
}

/* Returns the last part of a data set's path, or all of it if two ends are equal. */
static const char *name_of_set(const config_sources *all, int set)
{
    const char *path = all->item[set].path;
    for (int i = 0; i < all->count; i++)
        if (i != set && !strcmp(basename(path), basename(all->item[i].path)))
            return path;
    return basename(path);
}

void training_report_evaluation(training *t, const double *losses, double seconds)
{
    const config_sources *all = &t->config->data.validation;
    double sum = 0, weights = 0;
    if (!prints_lines(t))
        return;
    AUTO_FREE const char **names = must_calloc((unsigned long)t->data.set_count, sizeof *names);
    for (int i = 0; i < t->data.set_count; i++) {
        names[i] = name_of_set(all, i);
        sum += all->item[i].weight * losses[i];
        weights += all->item[i].weight;
    }
    report_result r = {.step = t->at.step,
                       .loss = t->data.set_count > 1 ? sum / weights : losses[0],
                       .seconds = seconds,
                       .time = report_time(),
                       .sets = t->data.set_count,
                       .name = names,
                       .losses = losses};
    if (t->report->best_step == 0 || r.loss < t->report->best_loss) {
        t->report->best_step = r.step;
        t->report->best_loss = r.loss;
    }
    watchdog_enter(t->watchdog, DURING_EVALUATION, true, t->at.step, "writing metrics");
    report_evaluation(stdout, &r, t->config->run.log_format == CONFIG_LOG_JSON);
    screen_done(t, errno);
    status s = report_metrics_evaluation(t->report->metrics, &r), events = write_evaluation_events(t, &r);
    metrics_done(t, s == STATUS_OK ? events : s);
}

void training_report_event(training *t, const report_event *what)
{
    if (prints_lines(t))
        metrics_done(t, report_metrics_event(t->report->metrics, what, report_time()));
}

void training_report_disagreement(training *t, double apart)
{
    if (prints_lines(t))
        metrics_done(t, report_metrics_disagreement(t->report->metrics, t->at.step, apart, report_time()));
}

/* Closes the files of open_steps(). */
static void close_steps(training *t)
{
    lines_close(t->report->metrics);
    lines_close(t->report->load_lines);
    tensorboard_close(t->report->board);
    t->report->metrics = t->report->load_lines = NULL;
    t->report->board = NULL;
}

void training_report_close(training *t)
{
    close_steps(t);
    lines_close(t->report->events);
    loads_close(t->report->loads);
    tracker_close(t->report->tracker);
    mlflow_login_wipe(&t->report->login);
}

status training_report_undone(training *t, const report_event *what)
{
    seal_open();
    close_steps(t); /* reopens the files like a new process */
    TRY(comm_all_status(comm_world(t->world), prints_lines(t) ? open_steps(t) : STATUS_OK));
    training_report_event(t, what);
    if (t->counts.trained_steps > 0)
        seal_close();
    return STATUS_OK;
}

/* ---- the closing line -------------------------------------------------------------------------------------------- */

void training_say_done(const training *t)
{
    const config *c = t->config;
    char best[96] = "";
    int64_t count = (t->at.samples - train_past_omitted(&t->at.past)) * c->train.sequence;
    if (!prints_lines(t))
        return;
    if (t->report->best_step > 0)
        snprintf(best, sizeof best, "; best validation %.4f at step %lld", t->report->best_loss,
                 (long long)t->report->best_step);
    log_info("done: %lld steps, %s tokens in all, this start took %s%s", (long long)t->at.step, COUNT_TEXT(count),
             DURATION_TEXT(clock_seconds() - t->began), best);
    log_info("next: phalanx generate --checkpoint %s --prompt TEXT; phalanx eval --checkpoint %s --text FILE;",
             t->folder, t->folder);
    log_info("      phalanx report %s --output report.html; the same command with more train.steps goes on", t->folder);
}

/* ---- the end of a run -------------------------------------------------------------------------------------------- */

/* Returns the end of the arena in use, from the ops' operands, independent of the planner. */
static int64_t arena_used(const compiled *c)
{
    int64_t used = c->before + c->before_bytes;
    for (int k = 0; k < COMPILE_PROGRAMS; k++)
        for (int i = 0; i < compile_program_at(c, k)->list.count; i++) {
            const op *o = compile_program_at(c, k)->list.ops[i];
            tensor *const *operands[] = {o->in, o->out, &o->scratch};
            const int counts[] = {OP_MAX_IN, OP_MAX_OUT, 1};
            for (int list = 0; list < 3; list++)
                for (int j = 0; j < counts[list]; j++) {
                    const tensor *x = operands[list][j];
                    int64_t end = x ? x->address + tensor_bytes(x) : 0;
                    used = end > used ? end : used;
                }
        }
    return used;
}

status training_summary(training *t, bool stopped)
{
    report_resources(t, true);
    training_event(t, stopped ? "stopped" : "done", t->at.step, NULL);
    training_tracking_end(t, stopped ? TRAINING_STOPPED : TRAINING_DONE);
    report_rank mine = {.rank = comm_rank(t->world),
                        .arena_bytes = t->compiled.arena_bytes,
                        .arena_used_bytes = arena_used(&t->compiled),
                        .peak_resident_bytes = peak_resident(),
                        .copy_bytes = t->saving.copy_bytes,
                        .memory_copy_bytes = t->saving.memory_bytes};
    snprintf(mine.host, sizeof mine.host, "%s", watchdog_host(t->watchdog));
    for (int i = 0; i < GRID_AXES; i++)
        mine.at[i] = t->grid.at[i];
    for (int a = 0; a < AXIS_COUNT; a++)
        executor_sent(t->executor, &mine.bytes_sent[a], &mine.messages_sent[a], (axis)a);
    AUTO_FREE report_rank *all = must_alloc((unsigned long)comm_ranks(t->world) * sizeof *all);
    comm_all_gather_bytes(comm_world(t->world), all, &mine, sizeof mine);
    islands_counts counted = {0};
    if (t->islands)
        counted = islands_counted(t->islands);
    if (counted.elapsed > 0)
        log_info("islands: %.1f%% of %.4g s was spent training; merges took the other %.3g s, of which %.3g s were "
                 "waits for other islands",
                 100 * report_computing(&counted), counted.elapsed, counted.stood, fmin(counted.waited, counted.stood));
    tracker_counts tracked = {0};
    if (t->report->tracker)
        tracked = tracker_counted(t->report->tracker);
    status s = STATUS_OK;
    if (prints_lines(t) && (s = lock_check(t->lock)) == STATUS_OK) {
        AUTO_FREE char *path = must_format("%s/summary.json", t->folder);
        report_summary_values values = {.remote = training_has_remote(t),
                                        .buckets = compile_buckets(&t->compiled.options),
                                        .plays = t->counts.plays,
                                        .tracked = t->report->tracker ? &tracked : NULL,
                                        .islands = t->islands ? &counted : NULL,
                                        .mirror = t->saving.mirror,
                                        .ranks = comm_ranks(t->world),
                                        .rank = all};
#define SUMMARY(kind, name, when, from) values.name = from;
#include "engine/train/report/summary.def"
        s = report_summary(path, &values);
    }
    return comm_all_status(comm_world(t->world), s);
}
