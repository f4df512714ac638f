/* checkpoint.export: Hugging Face folders of some of the run's checkpoints. Rank 0's. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/checkpoint/checkpoint_find.h"
#include "engine/system/reading.h"
#include "engine/state/save/exporter.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"
#include "models/huggingface.h"
#include "models/parts.h"

enum { TAIL = 1 << 20 }; /* bytes of metrics.jsonl that are looked at */

/* ---- the model card ---------------------------------------------------------------------------------------------- */

/* What the run has written of a step; NAN or 0: it is not known. */
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

/* By the end of metrics.jsonl. */
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

static char *write_card(void *context, int64_t step)
{
    const training *t = context;
    const config *c = t->config;
    char *text = NULL, parameters[UNITS_TEXT];
    size_t bytes;
    const step_facts f = find_facts(t->folder, step);
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    units_count(parameters, (double)parts_parameters(&c->model.shape));
    fprintf(out,
            "---\nlibrary_name: transformers\npipeline_tag: text-generation\ntags:\n- pretrained\n- phalanx\n---\n\n"
            "# %s, %s parameters, after step %lld\n\nA language model that phalanx has pretrained and exported. Its "
            "licence is left open: whoever publishes it says under which it is, and what its data allow.\n\n| | |\n| "
            "--- | --- |\n| architecture | %s |\n| steps | %lld of %lld |\n",
            shape_traits_of(c->model.shape.architecture)->name, parameters, (long long)step,
            shape_traits_of(c->model.shape.architecture)->name, (long long)step, (long long)c->train.steps);
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
    fclose(out);
    return text;
}

/* ---- exports ----------------------------------------------------------------------------------------------------- */

static bool is_due(const training *t, int64_t step)
{
    return step % t->config->checkpoint.export_every == 0 || step >= t->config->train.steps;
}

static void tell(void *context, const char *name, double seconds, const char *failure)
{
    const training *t = context;
    if (failure)
        log_warn("%s is not exported: %s; the run goes on", name, failure);
    else
        log_info("exported %s/%s in %.2f s", t->saves->exports, name, seconds);
}

/* What a start that was killed has not come to. */
static status add_missing(training *t)
{
    RELEASED_BY(checkpoint_offers_free) checkpoint_offers own = {0};
    TRY(checkpoint_offers_find(&own, t->checkpoints));
    status s = STATUS_OK;
    for (int i = own.count - 1; i >= 0 && s == STATUS_OK; i--) {
        const char *name = strrchr(own.folder[i], '/') + 1;
        int64_t step = mirror_prefix_step(name);
        if (step > 0 && step <= t->at.step && is_due(t, step))
            s = exporter_add_missing(t->saves->exporter, name);
    }
    return s;
}

status training_export_open(training *t)
{
    AUTO_FREE char *unused = NULL;
    if (t->config->checkpoint.export_every == 0)
        return STATUS_OK;
    /* what cannot be said in a config.json is refused before the long work */
    status s = huggingface_text(&unused, &t->config->model.shape, DTYPE_FP32, NULL);
    if (s != STATUS_OK)
        return status_context(s, "checkpoint.export");
    t->saves->exports = must_format("%s/exports", t->folder);
    const exporter_options o = {
        .checkpoints = t->checkpoints, .exports = t->saves->exports, .card = write_card, .tell = tell, .context = t};
    TRY(exporter_open(&t->saves->exporter, &o));
    if (t->config->checkpoint.mirror)
        log_info(
            "exports stay in %s: checkpoint.mirror uploads checkpoints, of which phalanx convert --from %s makes the "
            "same folders",
            t->saves->exports, t->config->checkpoint.mirror);
    return add_missing(t);
}

void training_export_saved(training *t, int64_t step, const char *name)
{
    if (t->saves->exporter && is_due(t, step))
        exporter_add(t->saves->exporter, name);
}

bool training_export_holds(const training *t, const char *name)
{
    return t->saves->exporter && exporter_holds(t->saves->exporter, name);
}

void training_export_finish(training *t)
{
    if (t->saves->exporter)
        exporter_wait(t->saves->exporter);
}
