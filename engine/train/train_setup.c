/* Sets up a rank from a configuration: layout, compilation, arena, data, watchdog. */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

#include "engine/guard/verify.h"
#include "engine/islands/islands.h"
#include "engine/run/batch.h"
#include "engine/compile/model/groups.h"
#include "engine/compile/time/prices.h"
#include "engine/compile/time/profile.h"
#include "engine/run/trace.h"
#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint_find.h"
#include "engine/data/tokenizer_files.h"
#include "engine/host/incident_log.h"
#include "engine/store/object.h"
#include "engine/system/lock.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/train/training_loop.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "memory/bits.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "engine/system/reading.h"
#include "parallel/comm/agree.h"

enum { NAMED_LEFT_OUT = 4 }; /* samples reported one by one */

/* Reports samples left out, on one of the ranks that read the same samples. A corpus may be bad as a whole, so it
 * reports the first few samples, and then each doubling of their number. */
static void say_left_out(void *context, const char *words)
{
    training *t = context;
    if (!grid_is_first(&t->grid, AXIS_SAMPLES))
        return;
    int64_t count = ++t->now.told_left_out;
    if (count > NAMED_LEFT_OUT && (count & (count - 1)) != 0)
        return;
    AUTO_FREE char *copy =
        count > NAMED_LEFT_OUT
            ? must_format("%lld samples have been left out by this rank so far (data.skip_bad), the last: %s",
                          (long long)count, words)
            : must_format("%s; its sample is left out (data.skip_bad)", words);
    log_warn("%s", copy);
    incident_log_say(t->folder, t->watchdog, INCIDENT_DATA, false, copy);
}

/* Fails, by key, if files are missing or ids exceed the model's vocabulary, judged by the tokenizer stored beside the
 * data. */
static status check_sources(const config_sources *sources, const char *key, int64_t vocabulary, int rank)
{
    for (int i = 0; i < sources->count; i++) {
        const char *prefix = sources->item[i].path;
        AUTO_FREE char *index = must_format("%s.idx", prefix);
        bool there = true;
        if (!object_is_url(prefix)) /* a store is queried when opened */
            TRY(atomic_look(&there, index));
        if (!there)
            return status_fail(STATUS_FAILED,
                               "%s: there is no data set %s (%s.bin and .idx): phalanx tokenize --output %s "
                               "--tokenizer FILE TEXT... makes it",
                               key, prefix, prefix, prefix);
        AUTO(tokenizer) *t = NULL;
        if (rank == 0 && tokenizer_files_is_beside(prefix))
            TRY(tokenizer_files_open_beside(&t, prefix));
        tokenizer_begin begin = TOKENIZER_BEGIN_UNKNOWN;
        if (t)
            TRY(tokenizer_files_begin(&begin, prefix));
        if (t)
            tokenizer_begin_with(t, begin);
        int64_t ids = t ? tokenizer_data_size(t) : 0;
        if (ids > vocabulary)
            return status_fail(
                STATUS_USAGE,
                "%s: the tokenizer beside %s makes %lld ids, model.vocab_size is %lld: set it to %lld, or "
                "tokenize with the model's tokenizer",
                key, prefix, (long long)ids, (long long)vocabulary, (long long)ids);
    }
    return STATUS_OK;
}

/* Opens the validation sets: if there are several, also each by itself for its own loss. */
static status open_validation(training *t, int64_t vocabulary)
{
    const config *c = t->config;
    int count = c->data.validation.count;
    TRY(samples_open(&t->data.validation, &c->data.validation, t->data.remote, c->train.sequence, vocabulary, false,
                     0));
    t->data.sets = must_calloc((unsigned long)count, sizeof(samples *));
    for (int i = 0; i < count && count > 1; i++) {
        const config_sources one = {.count = 1, .item = &c->data.validation.item[i]};
        TRY(samples_open(&t->data.sets[i], &one, t->data.remote, c->train.sequence, vocabulary, false, 0));
        t->data.set_count++;
    }
    if (count == 1)
        t->data.sets[t->data.set_count++] = t->data.validation;
    for (int i = 0; c->data.skip_bad && i < count; i++)
        samples_leave_out(t->data.sets[i], say_left_out, t);
    return STATUS_OK;
}

static status open_data(training *t)
{
    const config *c = t->config;
    int64_t vocabulary = c->model.shape.vocab_size;
    if (c->data.train.count == 0)
        return status_fail(STATUS_USAGE,
                           "data.train is not set: the prefix of a .bin/.idx pair (phalanx tokenize makes one)");
    t->data.remote = stored_open(c, comm_local_ranks(t->world));
    TRY(check_sources(&c->data.train, "data.train", vocabulary, comm_rank(t->world)));
    TRY(check_sources(&c->data.validation, "data.validation", vocabulary, comm_rank(t->world)));
    TRY(samples_open(&t->data.train, &c->data.train, t->data.remote, c->train.sequence, vocabulary, c->data.shuffle,
                     (uint64_t)c->train.seed));
    if (c->data.validation.count > 0)
        TRY(open_validation(t, vocabulary));
    if (c->data.skip_bad)
        samples_leave_out(t->data.train, say_left_out, t);
    return STATUS_OK;
}

/* Finds the beginning of documents in training. Where data sets differ, the larger weight decides, or of equals the
 * first; unknown ones do not count. */
static status find_begin(training *t)
{
    const config *c = t->config;
    double weight[TOKENIZER_BEGINS] = {0}, sum = 0;
    tokenizer_begin most = TOKENIZER_BEGIN_UNKNOWN, each;
    for (int i = 0; i < c->data.train.count; i++) {
        TRY(tokenizer_files_begin(&each, c->data.train.item[i].path));
        weight[each] += c->data.train.item[i].weight;
        sum += each ? c->data.train.item[i].weight : 0;
        if (each && weight[each] > weight[most])
            most = each;
    }
    if (weight[most] < sum)
        log_warn("data.train: its data sets differ in what begins a document: prompts to this model will begin with "
                 "\"%s\", as documents of most of the weight do (phalanx help data)",
                 tokenizer_begin_words[most]);
    /* A mask hides the end of the document before. */
    t->data.begin = most == TOKENIZER_BEGIN_END && c->data.document_mask ? TOKENIZER_BEGIN_NOTHING : most;
    return STATUS_OK;
}

/* Opens the tokenizer that made the data: named by the configuration, or stored beside the data; it may be absent. */
static status open_tokenizer(training *t)
{
    const config *c = t->config;
    if (comm_rank(t->world) > 0)
        return STATUS_OK;
    TRY(find_begin(t));
    if (c->data.tokenizer) {
        status s = tokenizer_files_open(&t->data.tokenizer, c->data.tokenizer);
        return s == STATUS_OK ? s : status_context(s, "data.tokenizer");
    }
    const char *beside = c->data.train.item[0].path;
    return tokenizer_files_is_beside(beside) ? tokenizer_files_open_beside(&t->data.tokenizer, beside) : STATUS_OK;
}

/* Checks that all ranks see one run folder: rank 0, which holds its lock, writes a file that the others look for.
 * Removes such files of earlier starts. */
static status check_shared_folder(training *t)
{
    AUTO_FREE char *name = must_format("%s/.shared-%s", t->folder, t->run);
    comm_group *all = comm_world(t->world);
    bool first = comm_rank(t->world) == 0, there = false;
    status s = first ? lock_check(t->lock) : STATUS_OK;
    if (first && t->lock && s == STATUS_OK)
        s = atomic_remove_all(t->folder, ".shared-");
    if (first && s == STATUS_OK) {
        AUTO_CLOSE file = atomic_create(name, 0666);
        if (file < 0)
            s = status_fail(STATUS_FAILED, "%s cannot be written to: %s; check run.folder", t->folder, strerror(errno));
    }
    TRY(comm_all_status(all, s));
    s = atomic_look(&there, name);
    if (s == STATUS_OK && !there)
        s = status_fail(STATUS_FAILED,
                        "run.folder %s is not the folder that rank 0 sees: it must be on a file system shared "
                        "by all nodes",
                        t->folder);
    s = comm_all_status(all, s);
    if (first)
        unlink(name);
    return s;
}

static status open_rank(training *t, const devices_row *row)
{
    const config *c = t->config;
    compile_options options;
    int cores = omp_get_num_procs() / comm_local_ranks(t->world);
    int threads = c->train.threads > 0 ? c->train.threads : cores > 0 ? cores : 1;
    omp_set_num_threads(threads);
    TRY(config_make_grid(&t->grid, c, comm_ranks(t->world), comm_rank(t->world)));
    const op_backend *backend = t->device->backend ? t->device->backend : &cpu_backend;
    TRY(compile_options_from(&options, c, &t->grid, backend, threads));
    options.device = row;
    transfer_choose(&options, row);
    options.evaluate = c->data.validation.count > 0 && c->evaluate.every > 0;
    watchdog_enter(t->watchdog, DURING_SETUP, false, 0, "compiling the step");
    TRY(compile(&t->compiled, &options));
    watchdog_enter(t->watchdog, DURING_SETUP, true, 0, "opening the data");
    TRY(open_data(t));
    TRY(open_tokenizer(t));
    watchdog_enter(t->watchdog, DURING_SETUP, false, 0, "waiting for all ranks to be set up");
    /* Opening is collective: a rank that failed before keeps the others from it. */
    return STATUS_OK;
}

/* ---- facts that ranks share, compared again once the model's sizes and the data are known ---- */

static void write_sets(FILE *out, const char *key, const config_sources *sources, const samples *s)
{
    for (int i = 0; s && i < sources->count; i++) {
        indexed_identity x;
        char name[64];
        samples_identify(&x, s, i);
        snprintf(name, sizeof name, "%s[%d]", key, i);
        agree_fact(out, name, "%lld tokens of weight %g, .bin of %lld bytes (sum %llx), .idx of %lld (sum %llx)",
                   (long long)x.tokens, sources->item[i].weight, (long long)x.bin_bytes,
                   (unsigned long long)x.bin_crc32c, (long long)x.idx_bytes, (unsigned long long)x.idx_crc32c);
    }
}

/* Each rank finds the schedule from prices, which may be a file of its own. */
static void write_schedule(FILE *out, const schedule *s)
{
    bits sum = {0};
    for (int stage = 0; stage < s->stages; stage++)
        for (int i = 0; i < s->counts[stage]; i++) {
            const action *a = &s->actions[stage][i];
            bits_add(&sum, (const int32_t[]){a->kind, a->chunk, a->microbatch}, 3 * sizeof(int32_t));
        }
    agree_fact(out, "the schedule of parallel.schedule_for", "sum %016llx", (unsigned long long)bits_end(&sum));
}

static void write_same(FILE *out, const training *t)
{
    const config *c = t->config;
    config_write_shared(out, c);
    if (t->compiled.found)
        write_schedule(out, t->compiled.found);
    write_sets(out, "data.train", &c->data.train, t->data.train);
    write_sets(out, "data.validation", &c->data.validation, t->data.validation);
}

static void write_alike(FILE *out, const training *t)
{
    const devices_row *row = t->device->row(comm_local_rank(t->world));
    agree_fact(out, "the device", "%s", row ? row->gpu : "unknown");
    if (t->device == &device_cpu) { /* bits depend on these as well */
        char code[128];
        cpu_backend.words(code, sizeof code);
        agree_fact(out, "train.threads", "%d", t->compiled.options.threads);
        agree_fact(out, "the code", "%s", code);
    }
}

/* Joins the ranks' statuses, and fails on all of them if they would not train the same model on the same data. */
static status check_alike(const training *t, status mine)
{
    AUTO_FREE char *same = mine == STATUS_OK ? MUST_PRINT(out, write_same(out, t)) : must_strdup(""),
                   *alike = mine == STATUS_OK ? MUST_PRINT(out, write_alike(out, t)) : NULL;
    return agree_all(comm_world(t->world), mine, same, alike);
}

/* Warns if a host's ranks are not neighbours: layouts and prices take consecutive ranks for a host's. */
static void check_hosts(const training *t)
{
    int ranks = comm_ranks(t->world);
    for (int i = 0; i < ranks; i++)
        for (int k = i + 2; k < ranks; k++)
            if (!strcmp(t->hosts[i], t->hosts[k]) && strcmp(t->hosts[i], t->hosts[k - 1]) != 0) {
                if (comm_rank(t->world) == 0)
                    log_warn("ranks %d and %d are on host %s, rank %d between them is on %s: ranks that share a layer "
                             "(parallel.tensor) are meant to be neighbours on a host; start ranks host by host (mpirun "
                             "--map-by slot, srun --distribution=block)",
                             i, k, t->hosts[i], k - 1, t->hosts[k - 1]);
                return;
            }
}

/* Returns the checkpoint that the run begins from, which the caller frees; NULL: none. The one that checkpoint.resume
 * names may be gone once a stage that began from it has checkpoints of its own. */
static status find_origin(char **out, const training *t)
{
    const char *resume = t->resume;
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers own = {0};
    bool within = false, alone = !strcmp(resume, "auto");
    *out = NULL;
    if ((alone && !t->config->checkpoint.mirror) || !strcmp(resume, "never"))
        return STATUS_OK;
    if (!alone)
        TRY(checkpoint_is_of_run(&within, resume, t->folder));
    if (!within)
        TRY(checkpoint_offers_find(&own, t->checkpoints));
    if (own.count > 0)
        *out = TAKE(own.folder[0]);
    return own.count > 0 || alone ? STATUS_OK : checkpoint_resolve(out, resume);
}

/* Reads the autotuning tables of the run and of the checkpoint that it begins from. */
static status read_choices(training *t)
{
    AUTO_FREE char *own = must_format("%s/" CHOICES_FILE, t->folder), *origin = NULL, *first = NULL;
    bool there;
    TRY(atomic_look(&there, own));
    if (!there)
        TRY(find_origin(&origin, t));
    first = origin ? must_format("%s/" CHOICES_FILE, origin) : NULL;
    return choices_read(&t->choices, first ? first : own);
}

/* Notes the largest reserve among ranks with equally many communicators, with the graphs' size if measured. */
static void note_reserve(training *t, choices_reserve mine)
{
    int ranks = comm_ranks(t->world);
    AUTO_FREE choices_reserve *all = must_alloc((unsigned long)ranks * sizeof *all);
    comm_all_gather_bytes(comm_world(t->world), all, &mine, sizeof mine);
    for (int i = 0; i < ranks; i++) {
        for (int k = 0; k < ranks; k++) {
            if (all[k].communicators != all[i].communicators)
                continue;
            all[i].bytes = all[k].bytes > all[i].bytes ? all[k].bytes : all[i].bytes;
            if (all[k].graph_bytes * all[i].graph_nodes > all[i].graph_bytes * all[k].graph_nodes) {
                all[i].graph_bytes = all[k].graph_bytes;
                all[i].graph_nodes = all[k].graph_nodes;
            }
        }
        choices_note_reserve(&t->choices, &all[i]);
    }
    AUTO_FREE char *path = must_format("%s/" CHOICES_FILE, t->folder);
    if (comm_rank(t->world) == 0 && (lock_check(t->lock) != STATUS_OK || choices_write(&t->choices, path) != STATUS_OK))
        log_warn("%s", status_message());
}

/* Measures the GPU bytes used outside the arena, for later plans: step 1 has loaded the libraries' code, and step 2 has
 * captured the graph, where supported. */
void training_measure_reserve(training *t)
{
    const char *shared = getenv(DEVICE_SHARE_ENVIRONMENT);
    if (!t->device->communication || (shared && !strcmp(shared, "1")))
        return;
    device_facts f;
    executor_facts(&f, t->executor);
    choices_reserve mine = {.communicators = executor_communicators(t->executor)};
    executor_graphs(t->executor, &mine.graph_nodes, &mine.graph_bytes);
    mine.bytes = f.beside - mine.graph_bytes;
    memcpy(mine.device, f.name, sizeof mine.device);
    note_reserve(t, mine);
}

/* Collective. Gives the first member's table to all. */
static void share_choices(choices *c, comm_group *all)
{
    comm_broadcast_bytes(all, &c->count, sizeof c->count, 0);
    c->item = must_realloc(c->item, (unsigned long)(c->count + 1) * sizeof *c->item);
    comm_broadcast_bytes(all, c->item, (int64_t)c->count * (int64_t)sizeof *c->item, 0);
    comm_broadcast_bytes(all, &c->reserves, sizeof c->reserves, 0);
    c->reserve = must_realloc(c->reserve, (unsigned long)(c->reserves + 1) * sizeof *c->reserve);
    comm_broadcast_bytes(all, c->reserve, (int64_t)c->reserves * (int64_t)sizeof *c->reserve, 0);
}

static status open_executor(training *t)
{
    comm_group *all = comm_world(t->world);
    watchdog_enter(t->watchdog, DURING_SETUP, comm_rank(t->world) == 0, 0, "reading what was chosen by timing");
    TRY(comm_all_status(all, comm_rank(t->world) == 0 ? read_choices(t) : STATUS_OK));
    watchdog_enter(t->watchdog, DURING_SETUP, false, 0, "opening the device and its communication");
    share_choices(&t->choices, all);
    if (t->device->communication) { /* bytes of the GPU: measured by an earlier run on such a GPU, or assumed */
        RELEASED_BY(groups_free) groups g = {0};
        groups_find(&g, &t->compiled);
        reserve known = reserve_assumed;
        choices_take_reserve(&known, &t->choices);
        t->expected_beside = reserve_bytes(&known, groups_communicators(&g), compile_graph_nodes(&t->compiled));
    }
    const executor_options options = {.device = t->device,
                                      .backend = t->compiled.options.backend,
                                      .threads = t->compiled.options.threads,
                                      .tf32 = t->config->train.tf32,
                                      .varies = !t->config->train.deterministic,
                                      .timing = t->config->train.tune,
                                      .choices = &t->choices,
                                      .beside = t->expected_beside,
                                      .graph = t->config->train.cuda_graph};
    return executor_open(&t->executor, &t->compiled, t->world, &options);
}

/* Chooses the CPU or the GPU: `auto` takes the GPU only if every rank has one. */
static status choose_device(training *t)
{
    const device_interface *cuda;
    t->device = &device_cpu;
    if (t->config->train.device == CONFIG_CPU)
        return STATUS_OK;
    status s = comm_all_status(comm_world(t->world), device_find(&cuda, "cuda"));
    if (s == STATUS_OK)
        t->device = cuda;
    return t->config->train.device == CONFIG_AUTO ? STATUS_OK : s;
}

/* Locks the folder against other runs: rank 0 holds the lock, the others ask whether it does. A lock is stale if its
 * remote holder is silent for longer than the lease. */
static status take_lock(training *t)
{
    static const double LEASE = 30; /* seconds */
    bool first = comm_rank(t->world) == 0;
    AUTO_FREE char *path = must_format("%s/lock", t->folder);
    status s = first ? atomic_make_folders(t->folder) : STATUS_OK;
    if (first && s == STATUS_OK)
        t->place = open(t->folder, O_PATH | O_DIRECTORY | O_CLOEXEC);
    if (first && s == STATUS_OK && t->config->run.lock) {
        s = lock_take(&t->lock, path, t->run, LEASE);
        if (s != STATUS_OK)
            (void)status_context(s, "run.folder (run.lock=false would not look)");
    }
    TRY(comm_all_status(comm_world(t->world), s));
    if (!first && t->config->run.lock)
        t->lock = lock_join(path, t->run, LEASE);
    return STATUS_OK;
}

/* ---- moving an earlier run aside (checkpoint.resume=never), so that the two are not confused ---- */

/* Files that runs write. All other files stay in the folder; so does tuning.json, which describes the machine. */
static const char *const written[] = {"checkpoints", CHECKPOINT_ORIGIN, "mirror",         "exports",
                                      "mlflow.json", "wandb.json",      "metrics.jsonl",  "events.jsonl",
                                      "hosts",       "mlruns",          "summary.json",   "trace",
                                      "config.yaml", INCIDENTS_FILE,    "flight-*.jsonl", "events.out.tfevents*"};

/* Makes FOLDER/earlier-N, the first N that is free. */
static status make_aside(char **out, const char *folder)
{
    bool there = true;
    for (int n = 1; there; n++) {
        free(*out);
        *out = must_format("%s/earlier-%d", folder, n);
        TRY(atomic_look(&there, *out));
    }
    return atomic_make_folders(*out);
}

/* Sorts "checkpoints" first: if this is interrupted, no run resumes from them by accident. */
static int by_name(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

static status move_aside(const char *folder)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    AUTO_FREE char *aside = NULL;
    TRY(reading_folder(&all, folder));
    if (all.count > 0)
        qsort(all.name, (size_t)all.count, sizeof *all.name, by_name);
    for (int i = 0; i < all.count; i++) {
        bool ours = false;
        for (size_t k = 0; k < sizeof written / sizeof *written; k++)
            ours |= fnmatch(written[k], all.name[i], 0) == 0;
        if (!ours)
            continue;
        if (!aside)
            TRY(make_aside(&aside, folder));
        AUTO_FREE char *from = must_format("%s/%s", folder, all.name[i]),
                       *to = must_format("%s/%s", aside, all.name[i]);
        TRY(atomic_rename(from, to));
    }
    if (aside)
        log_info("the run that was in %s is in %s now (checkpoint.resume=never)", folder, aside);
    return STATUS_OK;
}

/* Locks the folder, checks that all ranks see it, and fetches from its mirror. */
static status open_folder(training *t)
{
    watchdog_enter(t->watchdog, DURING_SETUP, true, 0, "looking at the run's folder");
    TRY(take_lock(t));
    TRY(check_shared_folder(t));
    watchdog_enter(t->watchdog, DURING_LOAD, true, 0, "looking at the run's mirror");
    return training_mirror_begin(t, false);
}

status training_open(training *t, const config *c, comm *world, watchdog *w, double began)
{
    *t = (training){.config = c,
                    .world = world,
                    .watchdog = w,
                    .began = began,
                    .at = {.loss_scale = 1},
                    .now = {.ahead = -1},
                    .saves = training_saves_make(),
                    .report = must_calloc(1, sizeof(training_report)),
                    .place = -1};
    t->schedule = config_learning_rate(c);
    if (precision_row_of(c->train.precision)->scales_loss)
        t->at.loss_scale = c->train.loss_scale;
    t->folder = must_strdup(c->run.folder);
    watchdog_name_folder(w, t->folder);
    t->checkpoints = must_format("%s/checkpoints", t->folder);
    t->resume = must_strdup(c->checkpoint.resume);
    comm_group *all = comm_world(world);
    TRY(comm_all_status(all, training_tracking_login(t)));
    /* The start's unique 128-bit id: the watchdog's, or, without one, drawn. */
    snprintf(t->run, sizeof t->run, "%s", watchdog_run(t->watchdog));
    TRY(comm_all_status(comm_world(t->world), *t->run ? STATUS_OK : manifest_draw_run_id(t->run)));
    comm_broadcast_bytes(comm_world(t->world), t->run, sizeof t->run, 0);
    watchdog_enter(w, DURING_SETUP, false, 0, "finding the device");
    TRY(choose_device(t));
    /* Collective decisions use the device of rank 0. */
    int number = devices_number(t->device->row(comm_local_rank(world)));
    comm_broadcast_bytes(all, &number, sizeof number, 0);
    const devices_row *row = devices_numbered(number);
    TRY(check_alike(t, open_rank(t, row)));
    bool early = c->checkpoint.mirror || object_is_url(c->checkpoint.resume); /* a checkpoint brings its table */
    if (early)
        TRY(open_folder(t));
    TRY(comm_all_status(all, open_executor(t)));
    /* Describes this rank's device in a few words. */
    device_facts facts;
    char text[INCIDENT_DEVICE];
    executor_facts(&facts, t->executor);
    snprintf(text, sizeof text, "%s%s%s", facts.name, *facts.identity ? ", " : "", facts.identity);
    watchdog_name_device(t->watchdog, text);
    if (!early)
        TRY(open_folder(t));
    bool anew = strcmp(c->checkpoint.resume, "never") == 0;
    status moved = anew && comm_rank(world) == 0 ? lock_check(t->lock) : STATUS_OK;
    if (anew && comm_rank(world) == 0 && moved == STATUS_OK)
        moved = move_aside(t->folder);
    if (moved != STATUS_OK)
        (void)status_context(moved, "moving an earlier run aside (checkpoint.resume=never)");
    TRY(comm_all_status(all, moved));
    if (early && !strcmp(t->resume, "never"))
        TRY(training_mirror_begin(t, true));
    watchdog_enter(w, DURING_SETUP, false, 0, "preparing");
    batch_rope_table(&t->compiled, t->executor);
    executor_watch(t->executor, w);
    if (c->outer.every > 0)
        TRY(islands_open(&t->islands, c, &t->compiled, t->executor, world, w));

    char host[INCIDENT_HOST] = {0};
    t->hosts = must_calloc((unsigned long)comm_ranks(world), sizeof *t->hosts);
    snprintf(host, sizeof host, "%s", watchdog_host(w));
    comm_all_gather_bytes(all, t->hosts, host, sizeof host);
    check_hosts(t);
    if (comm_ranks(world) > 1 && c->run.slow_ratio > 0) { /* finds the rank and host that compute slowly */
        t->guards.pace = pace_open(&t->compiled, t->executor, world);
        t->guards.judge = comm_rank(world) == 0 ? pace_judge_open(comm_ranks(world)) : NULL;
    }
    return c->run.trace.count ? trace_open(&t->trace, &t->compiled, t->executor, world, t->folder, t->lock) : STATUS_OK;
}

void training_close(training *t)
{
    training_first_close(t);
    verify_close(t->guards.verify);
    free(t->guards.pairs);
    pace_close(t->guards.pace);
    trace_close(t->trace);
    pace_judge_close(t->guards.judge);
    free(t->hosts);
    training_report_close(t);
    tokenizer_close(t->data.tokenizer);
    training_saves_close(t->saves);
    islands_close(t->islands);
    if (t->place >= 0)
        close(t->place);
    executor_close(t->executor);
    choices_free(&t->choices);
    samples_close(t->data.train);
    for (int i = 0; i < t->data.set_count && t->data.set_count > 1; i++)
        samples_close(t->data.sets[i]);
    free(t->data.sets);
    samples_close(t->data.validation);
    stored_close(t->data.remote);
    resources_close(t->report->resources); /* it may report on a GPU until here */
    lock_release(t->lock);                 /* all files are closed */
    free(t->report);
    compile_free(&t->compiled);
    free(t->folder);
    free(t->checkpoints);
    free(t->resume);
    free(t->fell_back);
    free(t->stage);
    *t = (training){0};
}
