#include "engine/files/mlflow.h"

#include <ctype.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/system/reading.h"
#include "memory/log.h"

enum { MOST_METRICS = 64, ID = 32, LONGEST_VALUE = 6000 };

struct mlflow {
    char *folder, *run, *name; /* absolute: the store, the run in it */
    char id[ID + 1];
    int64_t begun; /* milliseconds */
    int count;
    struct {
        char *name;
        lines *to;
    } metric[MOST_METRICS];
};

static int64_t milliseconds(double time)
{
    return (int64_t)(time * 1000);
}

/* ---- meta.yaml ---- */

/* As a YAML scalar in single quotes. */
static void put_quoted(FILE *out, const char *key, const char *text, const char *more)
{
    fprintf(out, "%s: '", key);
    for (const char *c = text; *c; c++)
        fputs(*c == '\'' ? "''" : (char[2]){*c, 0}, out);
    fprintf(out, "%s'\n", more);
}

static status replace(const char *folder, const char *name, char *text)
{
    char *path = must_format("%s/%s", folder, name);
    status s = atomic_replace(path, text, (int64_t)strlen(text));
    free(path);
    free(text);
    return s;
}

static status write_experiment(const mlflow *m)
{
    char *text = NULL, *folder = must_format("%s/0", m->folder);
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    put_quoted(out, "artifact_location", m->folder, "/0");
    fprintf(out,
            "creation_time: %lld\nexperiment_id: '0'\nlast_update_time: %lld\nlifecycle_stage: active\nname: Default\n",
            (long long)m->begun, (long long)m->begun);
    fclose(out);
    status s = replace(folder, "meta.yaml", text);
    free(folder);
    return s;
}

static status write_run(const mlflow *m, mlflow_state state, int64_t ended)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    put_quoted(out, "artifact_uri", m->run, "/artifacts");
    if (ended > 0)
        fprintf(out, "end_time: %lld\n", (long long)ended);
    else
        fputs("end_time: null\n", out);
    fprintf(out, "entry_point_name: ''\nexperiment_id: '0'\nlifecycle_stage: active\nrun_id: '%s'\n", m->id);
    put_quoted(out, "run_name", m->name, "");
    fprintf(out,
            "run_uuid: '%s'\nsource_name: ''\nsource_type: 4\nsource_version: ''\nstart_time: %lld\nstatus: %d\ntags: "
            "[]\nuser_id: ''\n",
            m->id, (long long)m->begun, (int)state);
    fclose(out);
    return replace(m->run, "meta.yaml", text);
}

/* ---- going on ---- */

static bool is_id(const char *name)
{
    return strlen(name) == ID && strspn(name, "0123456789abcdef") == ID;
}

/* Takes over the run of folder `name`, if its meta.yaml says when it began. */
static status take_run(bool *found, mlflow *m, const char *top, const char *name)
{
    char *path = must_format("%s/%s/meta.yaml", top, name), *text = NULL;
    int64_t bytes;
    long long begun;
    status s = reading_file(&text, &bytes, path);
    for (const char *line = text; line; line = (line = strchr(line, '\n')) ? line + 1 : NULL)
        if (sscanf(line, "start_time: %lld", &begun) == 1) {
            memcpy(m->id, name, sizeof m->id);
            m->begun = begun;
            *found = true;
        }
    free(text);
    free(path);
    return s;
}

/* The run that the store has, and when it began. */
static status find_run(mlflow *m)
{
    char *top = must_format("%s/0", m->folder);
    reading_names all;
    bool found = false;
    status s = reading_folder(&all, top);
    for (int i = 0; i < all.count && s == STATUS_OK && !found; i++)
        if (is_id(all.name[i]))
            s = take_run(&found, m, top, all.name[i]);
    reading_names_free(&all);
    free(top);
    return s;
}

/* Drops the lines of a metric from `first_step` on. */
static status trim(const char *path, int64_t first_step)
{
    char *all;
    int64_t bytes, used = 0;
    TRY(reading_file(&all, &bytes, path));
    for (char *line = all, *end; line && (end = memchr(line, '\n', (size_t)(all + bytes - line))); line = end + 1) {
        long long step;
        if (sscanf(line, "%*d %*s %lld", &step) != 1 || step >= first_step)
            continue;
        memmove(all + used, line, (size_t)(end + 1 - line));
        used += end + 1 - line;
    }
    status s = all ? atomic_replace(path, all, used) : STATUS_OK;
    free(all);
    return s;
}

/* Metrics are files in folders of folders: their names have slashes. */
static status trim_all(const char *folder, int64_t first_step)
{
    reading_names all;
    status s = reading_folder(&all, folder);
    for (int i = 0; i < all.count && s == STATUS_OK; i++) {
        struct stat about;
        bool there;
        char *path = must_format("%s/%s", folder, all.name[i]);
        s = reading_look(&there, &about, path);
        if (s == STATUS_OK && there && *all.name[i] != '.')
            s = S_ISDIR(about.st_mode) ? trim_all(path, first_step) : trim(path, first_step);
        free(path);
    }
    reading_names_free(&all);
    return s;
}

/* ---- */

static status make_folders(const mlflow *m)
{
    static const char *const names[] = {"artifacts", "metrics", "params", "tags"};
    status s = STATUS_OK;
    for (int i = 0; i < 4 && s == STATUS_OK; i++) {
        char *path = must_format("%s/%s", m->run, names[i]);
        s = atomic_make_folders(path);
        free(path);
    }
    return s;
}

static status begin(mlflow *m, int64_t first_step)
{
    char *metrics = must_format("%s/metrics", m->run), *tags = must_format("%s/tags", m->run);
    status s = make_folders(m);
    if (s == STATUS_OK)
        s = write_experiment(m);
    if (s == STATUS_OK)
        s = write_run(m, MLFLOW_RUNNING, 0);
    if (s == STATUS_OK)
        s = replace(tags, "mlflow.runName", must_strdup(m->name));
    if (s == STATUS_OK)
        s = trim_all(metrics, first_step);
    free(tags);
    free(metrics);
    return s;
}

status mlflow_open(mlflow **out, const char *folder, const char *id, const char *name, int64_t first_step, double time)
{
    TRY(atomic_make_folders(folder));
    mlflow *m = must_calloc(1, sizeof *m);
    char *whole = NULL;
    status s = reading_real_path(&whole, folder);
    m->folder = whole ? whole : must_strdup(folder);
    m->name = must_strdup(name);
    m->begun = milliseconds(time);
    snprintf(m->id, sizeof m->id, "%s", id);
    if (s == STATUS_OK)
        s = find_run(m);
    m->run = must_format("%s/0/%s", m->folder, m->id);
    if (s == STATUS_OK)
        s = begin(m, first_step);
    if (s != STATUS_OK) {
        mlflow_close(m);
        return s;
    }
    *out = m;
    return STATUS_OK;
}

/* MLflow refuses more. */
status mlflow_parameter(mlflow *m, const char *key, const char *value)
{
    char *folder = must_format("%s/params", m->run);
    status s = replace(folder, key, must_format("%.*s", (int)LONGEST_VALUE, value));
    free(folder);
    return s;
}

/* Letters, digits, and - _ . / between parts that are not empty: what MLflow takes as a name. The caller's. */
static char *allowed(const char *name)
{
    char *out = must_calloc(strlen(name) + 1, 1);
    size_t n = 0;
    for (const char *c = name; *c; c++) {
        bool start = n == 0 || out[n - 1] == '/';
        if (*c == '/' && start)
            continue;
        out[n++] = (char)(isalnum((unsigned char)*c) || *c == '-' || *c == '/' || (*c == '.' && !start) ? *c : '_');
    }
    return out;
}

static status find_metric(lines **out, mlflow *m, const char *name)
{
    for (int i = 0; i < m->count; i++)
        if (!strcmp(m->metric[i].name, name)) {
            *out = m->metric[i].to;
            return STATUS_OK;
        }
    MUST(m->count < MOST_METRICS, "more than %d metrics", MOST_METRICS);
    char *own = allowed(name), *path = must_format("%s/metrics/%s", m->run, own), *slash = strrchr(path, '/');
    *slash = 0;
    status s = atomic_make_folders(path);
    *slash = '/';
    if (s == STATUS_OK)
        s = lines_open(out, path);
    if (s == STATUS_OK) {
        m->metric[m->count].name = must_strdup(name);
        m->metric[m->count++].to = *out;
    }
    free(path);
    free(own);
    return s;
}

status mlflow_write(mlflow *m, const tensorboard_value *values, int count, int64_t step, double time)
{
    for (int i = 0; i < count; i++) {
        lines *to = NULL;
        char line[96];
        TRY(find_metric(&to, m, values[i].tag));
        snprintf(line, sizeof line, "%lld %.9g %lld\n", (long long)milliseconds(time), values[i].value,
                 (long long)step);
        TRY(lines_write(to, line));
    }
    return STATUS_OK;
}

status mlflow_end(mlflow *m, mlflow_state state, double time)
{
    return write_run(m, state, milliseconds(time));
}

void mlflow_close(mlflow *m)
{
    if (!m)
        return;
    for (int i = 0; i < m->count; i++) {
        free(m->metric[i].name);
        lines_close(m->metric[i].to);
    }
    free(m->folder);
    free(m->run);
    free(m->name);
    free(m);
}
