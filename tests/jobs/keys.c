#include "tests/jobs/keys.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/compile/plan/plan.h"
#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/system/crc32c.h"
#include "engine/system/mapping.h"
#include "engine/train/train.h"
#include "engine/state/weights/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"

enum { SETTINGS = 128 };

static const char *const base =
    "model.architecture=llama model.layers=2 model.hidden_size=24 model.heads=4 model.kv_heads=2 model.ffn_size=40 "
    "model.vocab_size=131 model.max_sequence=32 data.train=TOP/data train.steps=3 train.sequence=16 "
    "train.micro_batch=2 "
    "train.global_batch=4 train.precision=fp32 train.device=cpu train.threads=1 train.seed=3 optimizer.lr=1e-2 "
    "optimizer.schedule=constant checkpoint.every=0 evaluate.every=0 evaluate.batches=1 run.folder=TOP/observed/run "
    "run.tensorboard=false";

/* ---- settings -------------------------------------------------------------------------------------------------- */

typedef struct settings {
    char *item[SETTINGS];
    int count;
} settings;

static void remove_item(settings *s, int i)
{
    free(s->item[i]);
    s->item[i] = s->item[--s->count];
}

static char *with_folder(const char *word, const char *top)
{
    const char *at = strstr(word, "TOP/");
    if (!at)
        return must_strdup(word);
    char *once = must_format("%.*s%s/%s", (int)(at - word), word, top, at + 4), *all = with_folder(once, top);
    free(once);
    return all;
}

static void set(settings *s, const char *word, const char *top)
{
    bool removes = word[0] == '-';
    size_t name = removes ? strlen(word) - 1 : strcspn(word, "=") + 1;
    for (int i = s->count - 1; i >= 0; i--)
        if (!strncmp(s->item[i], word + removes, name))
            remove_item(s, i);
    MUST(s->count < SETTINGS, "more than %d settings", SETTINGS);
    if (!removes)
        s->item[s->count++] = with_folder(word, top);
}

static void set_all(settings *s, const char *words, const char *top)
{
    char *copy = must_strdup(words), *at = NULL;
    for (char *word = strtok_r(copy, " ", &at); word; word = strtok_r(NULL, " ", &at))
        set(s, word, top);
    free(copy);
}

static void settings_free(settings *s)
{
    while (s->count > 0)
        remove_item(s, 0);
}

static status load(config *c, settings *s)
{
    TRY(config_parse(c, "keys", "", 0, s->count, s->item));
    return weights_configure(c);
}

/* ---- observers -------------------------------------------------------------------------------------------------- */

static status plan_into(FILE *out, settings *s)
{
    config c;
    compile_options o;
    compiled rank = {0};
    plan p = {0};
    grid g;
    TRY(load(&c, s));
    status ok = config_make_grid(&g, &c, 0, 0);
    if (ok == STATUS_OK)
        ok = compile_options_from(&o, &c, &g, &cpu_backend, c.train.threads);
    if (ok == STATUS_OK)
        ok = plan_make(&p, &o, (profile[]){profile_named("h100")}, true, -1);
    if (ok == STATUS_OK) {
        fact_writer f = {.out = out};
        facts_open(&f, "", '{');
        plan_text_facts(&f, &p);
        facts_close(&f, '}');
        fputc('\n', out);
        ok = compile(&rank, &o);
    }
    if (ok == STATUS_OK)
        plan_text_listing(out, &rank);
    compile_free(&rank);
    plan_free(&p);
    config_free(&c);
    return ok;
}

/* Into a file: what it says on both streams, without times. */
static status train_into(const char *screen, settings *s)
{
    config c;
    fflush(stdout);
    fflush(stderr);
    int out = dup(1), err = dup(2);
    FILE *file = fopen(screen, "w");
    MUST(file && out >= 0 && err >= 0, "cannot write %s", screen);
    dup2(fileno(file), 1);
    dup2(fileno(file), 2);
    comm *world = NULL;
    status ok = comm_open(&world);
    if (ok == STATUS_OK)
        ok = load(&c, s);
    if (ok == STATUS_OK) {
        bool stopped;
        ok = train_run(&stopped, &c, world, NULL, clock_seconds());
        config_free(&c);
    }
    comm_close(world);
    fflush(stdout);
    fflush(stderr);
    dup2(out, 1);
    dup2(err, 2);
    close(out);
    close(err);
    fclose(file);
    return ok;
}

static const char *run_folder(const settings *s)
{
    const char *folder = "";
    for (int i = 0; i < s->count; i++)
        if (!strncmp(s->item[i], "run.folder=", 11))
            folder = s->item[i] + 11;
    return folder;
}

static void put_metrics(FILE *out, const char *folder)
{
    runs_metrics m = runs_read_metrics(folder);
    for (int i = 0; i < m.count; i++)
        fprintf(out, "step %d loss %.17g norm %.17g lr %.17g%s\n", (int)m.step[i].step, m.step[i].loss, m.step[i].norm,
                m.step[i].lr, m.step[i].skipped ? " skipped" : "");
    for (int i = 0; i < m.evaluations; i++)
        fprintf(out, "evaluation after %d: %.17g\n", (int)m.evaluation[i].step, m.evaluation[i].loss);
    checkpoint *c = NULL;
    if (checkpoint_open(&c, folder) == STATUS_OK)
        fprintf(out, "loss scale %.17g\n", json_number_value(json_object_get(checkpoint_meta(c), "loss_scale")));
    checkpoint_close(c);
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

static void put_files(FILE *out, const char *folder, const char *name)
{
    struct dirent **all;
    struct stat about;
    AUTO_FREE char *path = must_format("%s/%s", folder, name);
    MUST(stat(path, &about) == 0, "%s cannot be looked at", path);
    if (S_ISDIR(about.st_mode)) {
        int count = scandir(path, &all, NULL, by_name);
        for (int i = 0; i < count; i++) {
            if (all[i]->d_name[0] != '.') {
                AUTO_FREE char *inner = must_format("%s/%s", name, all[i]->d_name);
                put_files(out, folder, inner);
            }
            free(all[i]);
        }
        free(all);
    } else if (strstr(name, "tfevents")) {
        fprintf(out, "events\n"); /* named after the time and the process */
    } else {
        mapping m;
        fputs(name, out);
        if (strstr(name, "gradients") && mapping_open(&m, path) == STATUS_OK) {
            fprintf(out, " %08x", crc32c(0, m.data, m.bytes));
            mapping_close(&m);
        }
        fputc('\n', out);
    }
}

/* Digits are times and rates, here. */
static void put_screen(FILE *out, const char *path)
{
    FILE *f = fopen(path, "r");
    for (int c; f && (c = fgetc(f)) != EOF;)
        if ((c < '0' || c > '9') && c != ' ' && c != '.')
            fputc(c, out);
    if (f)
        fclose(f);
}

static status observe_run(FILE *out, const char *top, keys_observer how, settings *s, const char *again)
{
    AUTO_FREE char *folder = must_format("%s/observed", top), *screen = must_format("%s/screen", top);
    free(keys_device_asked());
    MUST(atomic_remove(folder) == STATUS_OK && atomic_make_folders(folder) == STATUS_OK, "%s", status_message());
    status ok = train_into(screen, s);
    if (ok == STATUS_OK && again) {
        set_all(s, again, top);
        free(keys_device_asked());
        ok = train_into(screen, s);
    }
    AUTO_FREE char *asked = keys_device_asked();
    if (how == KEYS_TRAINED)
        put_metrics(out, run_folder(s));
    if (how == KEYS_FILES)
        put_files(out, top, "observed");
    if (how == KEYS_SCREEN)
        put_screen(out, screen);
    if (how == KEYS_DEVICE)
        fputs(asked, out);
    return ok;
}

char *keys_observe(const char *top, keys_observer how, const char *words, const char *again)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    settings s = {0};
    set_all(&s, base, top);
    set_all(&s, words, top);
    status ok = how == KEYS_PLANNED ? plan_into(out, &s) : observe_run(out, top, how, &s, again);
    if (ok != STATUS_OK)
        fprintf(out, "%s\n", status_message());
    fclose(out);
    settings_free(&s);
    return text;
}

void keys_prepare(const char *top)
{
    static const char *const names[] = {"data", "other", "held"};
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *prefix = must_format("%s/%s", top, names[i]);
        runs_write_data(prefix, 131, 3000, (uint64_t)i + 1);
    }
    free(keys_observe(top, KEYS_TRAINED, "run.folder=TOP/begun train.steps=1", NULL));
}
