/* Rank 0's checkpoint.export: Hugging Face folders of some of the run's checkpoints. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/lock.h"
#include "engine/system/reading.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"
#include "models/huggingface.h"
#include "models/parts.h"
#include "engine/system/atomic.h"
#include "engine/system/worker.h"
#include "engine/state/weights/weights_copy.h"
#include "memory/clock.h"

enum { TAIL = 1 << 20 }; /* bytes read from the end of metrics.jsonl */

/* ---- the model card ---------------------------------------------------------------------------------------------- */

/* Facts of a step from the run's files; NAN or 0: unknown. */
typedef struct step_facts {
    double loss, evaluation;
    int64_t evaluated, tokens;
} step_facts;

static void note_line(step_facts *f, const json_t *line, int64_t step)
{
    const json_t *loss = json_object_get(line, "loss"), *held = json_object_get(line, "eval_loss");
    int64_t at = json_integer_value(json_object_get(line, "step"));
    if (json_is_real(loss) && at == step) {
        f->loss = json_real_value(loss);
        f->tokens = json_integer_value(json_object_get(line, "tokens"));
    }
    if (json_is_real(held) && at <= step) {
        f->evaluation = json_real_value(held);
        f->evaluated = at;
    }
}

/* Finds them at the end of metrics.jsonl. */
static step_facts find_facts(const char *folder, int64_t step)
{
    step_facts f = {.loss = NAN, .evaluation = NAN};
    AUTO_FREE char *path = must_format("%s/metrics.jsonl", folder), *text = must_alloc(TAIL);
    struct stat about;
    bool there;
    int64_t got = 0;
    if (reading_look(&there, &about, path) == STATUS_OK && there) {
        int64_t from = about.st_size > TAIL ? (int64_t)about.st_size - TAIL : 0;
        if (reading_at(&got, text, path, from, TAIL) != STATUS_OK)
            got = 0;
    }
    const char *line = text;
    for (const char *end; got > 0 && (end = memchr(line, '\n', (size_t)(text + got - line))); line = end + 1) {
        json_auto_t *object = json_loadb(line, (size_t)(end - line), 0, NULL);
        note_line(&f, object, step);
    }
    return f;
}

static void put_sources(FILE *out, const char *what, const config_sources *all)
{
    fprintf(out, "| %s |", what);
    for (int i = 0; i < all->count; i++) {
        const char *path = all->item[i].path, *slash = strrchr(path, '/');
        fprintf(out, "%s %s", i ? "," : "", slash && slash[1] ? slash + 1 : path);
        if (all->count > 1)
            fprintf(out, " (weight %g)", all->item[i].weight);
    }
    fputs(all->count ? " |\n" : " none |\n", out);
}

static void print_card(FILE *out, const training *t, int64_t step)
{
    const config *c = t->config;
    const step_facts f = find_facts(t->folder, step);
    fprintf(out,
            "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- pretrained\n- phalanx\n---\n\n"
            "# %s, %s parameters, after step %lld\n\nA language model that phalanx has pretrained and exported. Its "
            "licence is left open: whoever publishes it says under which it is, and what its data allow.\n\n| | |\n| "
            "--- | --- |\n| architecture | %s |\n| steps | %lld of %lld |\n",
            shape_traits_of(c->model.shape.architecture)->name, COUNT_TEXT(parts_parameters(&c->model.shape)),
            (long long)step, shape_traits_of(c->model.shape.architecture)->name, (long long)step,
            (long long)c->train.steps);
    if (f.tokens > 0)
        fprintf(out, "| tokens | %lld |\n", (long long)f.tokens);
    fprintf(out, "| batch | %d sequences of %lld tokens |\n", c->train.global_batch, (long long)c->train.sequence);
    put_sources(out, "training data", &c->data.train);
    put_sources(out, "validation data", &c->data.validation);
    if (isfinite(f.loss))
        fprintf(out, "| training loss of that step, nats a token | %.4f |\n", f.loss);
    if (isfinite(f.evaluation))
        fprintf(out, "| validation loss after step %lld, nats a token | %.4f (perplexity %.4g) |\n",
                (long long)f.evaluated, f.evaluation, exp(f.evaluation));
    fprintf(out, "| optimizer | %s, learning rate %g, %s |\n", config_word(c, "optimizer.name"), c->optimizer.lr,
            config_word(c, "optimizer.schedule"));
    fprintf(out, "| precision | weights and activations %s, sums fp32 |\n", config_word(c, "train.precision"));
    if (c->model.from)
        fputs("| began from | another model's weights (model.from) |\n", out);
    fputs("\nNothing was done about what the model says: it repeats what its data say, true or not.\n", out);
}

/* ---- the exporter ------------------------------------------------------------------------------------------------ */

/* A thread that reads a published checkpoint of any layout and writes exports/step-XXXXXXXX atomically; then
 * exports/latest leads to it, and both go to the mirror. An export that fails (a full disk) is tried again with the
 * next save and at the run's end. Pruning keeps checkpoints that wait for export. The thread allocates memory while it
 * works: the manifest, and the few buffers of weights_copy and of an upload. */
enum { MOST_WAITING = 256, NAME = 32, TRIES = 5 };

typedef struct waiting_export {
    char name[NAME];
    int tries;
    bool resting; /* has failed, and waits for the next save */
} waiting_export;

typedef struct exporter {
    training *run;
    char *folder; /* folder of exports */
    worker worker;
    waiting_export waiting[MOST_WAITING];
    int count, now; /* now: the one in progress */
    bool last;      /* its last try */
    bool ending;    /* no save follows */
} exporter;

/* ---- one export -------------------------------------------------------------------------------------------------- */

static status go_on(void *context, int64_t done, int64_t total)
{
    const exporter *e = context;
    (void)done, (void)total;
    TRY(lock_check(e->run->lock));
    return atomic_load(&e->worker.stop) ? status_fail(STATUS_FAILED, "the run ends") : STATUS_OK;
}

/* Makes exports/latest a link to the folder of that name, which from_pretrained() follows; on storage without links,
 * exports/latest.txt holds the name. A text file of an older run's is replaced. */
static status name_latest(const char *exports, const char *name)
{
    AUTO_FREE char *latest = must_format("%s/latest", exports), *aside = must_format("%s.tmp", latest);
    if ((unlink(aside) == 0 || errno == ENOENT) && symlink(name, aside) == 0)
        return atomic_rename(aside, latest);
    AUTO_FREE char *text = must_format("%s.txt", latest), *line = must_format("%s\n", name);
    return atomic_replace(text, line, (int64_t)strlen(line));
}

/* Uploads an export to MIRROR/exports/NAME, its config.json last, and then its name to MIRROR/exports/latest. */
static status mirror_export(exporter *e, const char *folder, const char *name)
{
    const training *t = e->run;
    const object_limits limits = {.patience = MIRROR_PATIENCE, .stop = &e->worker.stop};
    RELEASED_BY(mirror_prefix_free) mirror_prefix p = {0};
    AUTO(object_store) *s = NULL;
    mirror_holder holder;
    if (!t->config->checkpoint.mirror)
        return STATUS_OK;
    TRY(mirror_prefix_make(&p, t->config->checkpoint.mirror));
    TRY(object_open(&s, p.bucket, &limits));
    TRY(mirror_prefix_confirm(&holder, s, &p, t->run));
    if (holder == MIRROR_OTHERS) {
        log_warn("the export %s is not mirrored: another start of this run has taken %s over", name, p.url);
        return STATUS_OK;
    }
    if (holder != MIRROR_MINE)
        return status_fail(STATUS_FAILED, "%s was emptied, and has not been taken again yet", p.url);
    AUTO_FREE char *root = must_format("%sexports/%s/", p.root, name), *line = must_format("%s\n", name),
                   *latest = mirror_prefix_key(&p, "exports", "latest");
    TRY(upload_folder(&(upload_target){.bucket = p.bucket, .root = root, .limits = limits}, folder, "config.json"));
    return object_put(s, latest, line, (int64_t)strlen(line));
}

static status make_export(exporter *e, const char *name)
{
    AUTO_FREE char *from = must_format("%s/%s", e->run->checkpoints, name), *to = must_format("%s/%s", e->folder, name),
                   *card = MUST_PRINT(out, print_card(out, e->run, strtoll(name + strlen("step-"), NULL, 10)));
    const weights_copy_options o = {.format = WEIGHTS_HUGGINGFACE,
                                    .type = WEIGHTS_KEEP,
                                    .replace = true,
                                    .card = card,
                                    .progress = go_on,
                                    .context = e};
    AUTO(weights) *w = NULL;
    TRY(weights_open(&w, from));
    TRY(lock_check(e->run->lock));
    TRY(atomic_make_folders(e->folder));
    TRY(weights_copy(w, to, &o));
    TRY(lock_check(e->run->lock));
    TRY(name_latest(e->folder, name));
    status s = mirror_export(e, to, name);
    return s == STATUS_OK ? s : status_context(s, "checkpoint.mirror");
}

/* Waits for the next one; false: the thread ends. */
static bool take_next(exporter *e)
{
    WORKER_HELD(&e->worker);
    for (;;) {
        for (e->now = 0; e->now < e->count && e->waiting[e->now].resting; e->now++)
            continue;
        e->last = e->ending && e->now < e->count && e->waiting[e->now].tries > 0;
        if (e->now < e->count || !worker_wait(&e->worker))
            return !atomic_load(&e->worker.stop);
    }
}

/* Removes the one in progress from the list, or lets it wait for another try. */
static void conclude_export(exporter *e, status s)
{
    WORKER_HELD(&e->worker);
    waiting_export *at = e->waiting + e->now;
    bool again = s != STATUS_OK && s != STATUS_LOST && !e->last && ++at->tries < TRIES;
    if (s != STATUS_OK && s != STATUS_LOST && !atomic_load(&e->worker.stop))
        log_warn("%s is not exported: %s; %s", at->name, status_message(),
                 !again      ? "the run's next start tries again"
                 : e->ending ? "tries once more"
                             : "the run goes on, and tries again with the next save");
    at->resting = again && !e->ending;
    if (!again)
        memmove(at, at + 1, (size_t)(--e->count - e->now) * sizeof *at);
    if (again && e->ending)
        (void)worker_wait_until(&e->worker, clock_seconds() + 1);
    worker_tell(&e->worker);
}

static void export_all(void *context)
{
    exporter *e = context;
    while (take_next(e)) {
        double began = clock_seconds();
        const char *name = e->waiting[e->now].name; /* only this thread removes entries */
        status s = make_export(e, name);
        if (s == STATUS_OK)
            log_info("exported %s/%s in %.2f s", e->folder, name, clock_seconds() - began);
        conclude_export(e, s);
    }
}

/* ---- start of the exporter --------------------------------------------------------------------------------------- */

/* Removes "step-00000100.tmp" and "step-00000100.old", the latter unless it is the only copy of the export. */
static status remove_leftovers(const char *exports)
{
    RELEASED_BY(reading_names_free) reading_names all = {0};
    TRY(reading_folder(&all, exports));
    for (int i = 0; i < all.count; i++) {
        char *name = all.name[i], *dot = strrchr(name, '.');
        if (strncmp(name, "step-", 5) != 0 || !dot || (strcmp(dot, ".tmp") != 0 && strcmp(dot, ".old") != 0))
            continue;
        AUTO_FREE char *path = must_format("%s/%s", exports, name);
        AUTO_FREE char *whole = must_format("%s/%.*s", exports, (int)(dot - name), name);
        bool there = true;
        if (strcmp(dot, ".old") == 0)
            TRY(atomic_look(&there, whole));
        TRY(there ? atomic_remove(path) : atomic_rename(path, whole));
    }
    return STATUS_OK;
}

static void add_export(exporter *e, const char *name)
{
    WORKER_HELD(&e->worker);
    while (e->count == MOST_WAITING) /* the storage is far too slow: training waits, as for checkpoints */
        worker_wait(&e->worker);
    e->waiting[e->count] = (waiting_export){0};
    snprintf(e->waiting[e->count++].name, NAME, "%s", name);
    worker_tell(&e->worker);
}

void training_export_close(exporter *e)
{
    if (!e)
        return;
    worker_close(&e->worker);
    free(e->folder);
    free(e);
}

/* ---- exports ----------------------------------------------------------------------------------------------------- */

static bool is_due(const training *t, int64_t step)
{
    return step % t->config->checkpoint.export_every == 0 || step >= t->config->train.steps;
}

/* Queues exports that a killed start did not make. */
static status add_missing(training *t, exporter *e)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers own = {0};
    TRY(checkpoint_offers_find(&own, t->checkpoints));
    for (int i = own.count - 1; i >= 0; i--) {
        const char *name = strrchr(own.folder[i], '/') + 1;
        int64_t step = mirror_prefix_step(name);
        bool there = true;
        AUTO_FREE char *path = must_format("%s/%s", e->folder, name);
        if (step > 0 && step <= t->at.step && is_due(t, step))
            TRY(atomic_look(&there, path));
        if (!there)
            add_export(e, name);
    }
    return STATUS_OK;
}

status training_export_open(training *t)
{
    AUTO_FREE char *unused = NULL, *folder = must_format("%s/exports", t->folder);
    if (t->config->checkpoint.export_every == 0)
        return STATUS_OK;
    /* Rejects a model that config.json cannot describe before the long work. */
    status s = huggingface_text(&unused, &t->config->model.shape, DTYPE_FP32, NULL);
    if (s != STATUS_OK)
        return status_context(s, "checkpoint.export");
    TRY(remove_leftovers(folder));
    exporter *e = t->saves->exporter = must_calloc(1, sizeof *e);
    e->run = t;
    e->folder = TAKE(folder);
    worker_init(&e->worker);
    TRY(worker_start(&e->worker, export_all, e, "exports checkpoints"));
    return add_missing(t, e);
}

static void retry_failed(exporter *e, bool ending)
{
    WORKER_HELD(&e->worker);
    e->ending = ending;
    for (int i = 0; i < e->count; i++)
        e->waiting[i].resting = false;
    worker_tell(&e->worker);
}

void training_export_saved(training *t, int64_t step, const char *name)
{
    if (!t->saves->exporter)
        return;
    if (is_due(t, step))
        add_export(t->saves->exporter, name);
    retry_failed(t->saves->exporter, false);
}

bool training_export_holds(const training *t, const char *name)
{
    exporter *e = t->saves->exporter;
    bool held = false;
    if (!e)
        return false;
    WORKER_HELD(&e->worker);
    for (int i = 0; i < e->count; i++)
        held = held || strcmp(e->waiting[i].name, name) == 0;
    return held;
}

void training_export_finish(training *t)
{
    exporter *e = t->saves->exporter;
    if (!e)
        return;
    retry_failed(e, true);
    WORKER_HELD(&e->worker);
    while (e->count > 0)
        worker_wait(&e->worker);
}
