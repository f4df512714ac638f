#include "tests/jobs/runs.h"

#include <dirent.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/files/indexed.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/engine/files/tensors.h"

/* ---- data ------------------------------------------------------------------------------------------------------ */

static uint64_t draw(uint64_t *state)
{
    /* xorshift64* (1402.6246) */
    *state ^= *state >> 12;
    *state ^= *state << 25;
    *state ^= *state >> 27;
    return *state * 2685821657736338717u;
}

void runs_write_data(const char *prefix, int vocabulary, int64_t tokens, uint64_t seed)
{
    indexed_writer *w = NULL;
    status s = indexed_writer_open(&w, prefix, vocabulary);
    MUST(s == STATUS_OK, "%s", status_message());
    uint64_t random = seed * 1000003 + 12345;
    int32_t document[90], last = 0;
    while (tokens > 0 && s == STATUS_OK) {
        int count = 5 + (int)(draw(&random) >> 33) % 86;
        for (int i = 0; i < count; i++) {
            bool follows = (draw(&random) >> 33) % 4 != 0;
            last = follows ? (last * 7 + 3) % vocabulary : (int32_t)((draw(&random) >> 33) % (uint64_t)vocabulary);
            document[i] = last;
        }
        s = indexed_writer_document(w, document, count);
        tokens -= count;
    }
    MUST(s == STATUS_OK, "%s", status_message());
    s = indexed_writer_close(w);
    MUST(s == STATUS_OK, "%s", status_message());
}

void runs_write_text(const char *path, const char *text)
{
    FILE *f = fopen(path, "w");
    MUST(f && fputs(text, f) >= 0 && fclose(f) == 0, "cannot write %s", path);
}

void runs_write_small(const char *top, int64_t tokens, int steps, const char *train, const char *more)
{
    AUTO_FREE char *data = must_format("%s/data", top), *path = must_format("%s/run.yaml", top);
    AUTO_FREE char *text = must_format(
        "model: {architecture: llama, layers: 4, hidden_size: 48, heads: 4, ffn_size: 96, vocab_size: 131}\n"
        "data: {train: %s}\n"
        "train: {steps: %d, sequence: 32, precision: fp32, device: cpu, threads: 1, %s}\n"
        "evaluate: {every: 0}\n"
        "run: {folder: %s/run, tensorboard: false, hang_seconds: 60}\n"
        "%s",
        data, steps, train, top, more);
    runs_write_data(data, 131, tokens, 1);
    runs_write_text(path, text);
}

/* ---- metrics --------------------------------------------------------------------------------------------------- */

static double real(const json_t *line, const char *key)
{
    const json_t *value = json_object_get(line, key);
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static const char *const BESIDE[RUNS_BESIDE] = {"mtp_loss", "router_loss", "router_z_loss"};
static const char *const LOADS[RUNS_LOADS] = {"expert_load_max", "dead_experts", "expert_entropy"};

runs_metrics runs_read_metrics(const char *folder)
{
    runs_metrics m = {0};
    char *path = must_format("%s/metrics.jsonl", folder), *text = NULL;
    FILE *f = fopen(path, "r");
    size_t capacity = 0;
    while (f && getline(&text, &capacity, f) > 0) {
        if (!strchr(text, '\n'))
            break; /* torn by whatever ended the run */
        json_t *line = json_loads(text, 0, NULL);
        MUST(line, "%s: not a line of JSON: %s", path, text);
        int64_t step = json_integer_value(json_object_get(line, "step"));
        MUST(m.count < RUNS_MOST_STEPS && m.evaluations < RUNS_MOST_STEPS, "%s: more steps than expected", path);
        if (json_object_get(line, "eval_loss")) {
            m.evaluation[m.evaluations].step = step;
            m.evaluation[m.evaluations++].loss = real(line, "eval_loss");
        } else if (json_object_get(line, "undone") || json_object_get(line, "spike")) {
            m.events++;
        } else if (json_object_get(line, "loss")) {
            m.step[m.count].step = step;
            m.step[m.count].loss = real(line, "loss");
            for (int k = 0; k < RUNS_BESIDE; k++)
                m.step[m.count].beside[k] = real(line, BESIDE[k]);
            for (int k = 0; k < RUNS_LOADS; k++)
                m.step[m.count].loads[k] = real(line, LOADS[k]);
            m.step[m.count].norm = real(line, "grad_norm");
            m.step[m.count].lr = real(line, "lr");
            const char *hash = json_string_value(json_object_get(line, "weights_hash"));
            snprintf(m.step[m.count].hash, sizeof m.step->hash, "%s", hash ? hash : "");
            m.step[m.count++].skipped = json_is_true(json_object_get(line, "skipped"));
        }
        json_decref(line);
    }
    if (f)
        fclose(f);
    free(text);
    free(path);
    return m;
}

/* Written so that what is not a number is infinitely far. */
static double larger(double worst, double a, double b)
{
    double error = fabs(a - b) / fabs(b);
    return error <= worst ? worst : isfinite(error) ? error : INFINITY;
}

/* The same of a list of numbers, where both have none passing for equal. */
static double largest(double worst, const double *a, const double *b, int count)
{
    for (int k = 0; k < count; k++)
        if (a[k] != b[k] && !(isnan(a[k]) && isnan(b[k])))
            worst = larger(worst, a[k], b[k]);
    return worst;
}

double runs_loss_error(const runs_metrics *a, const runs_metrics *b)
{
    double worst = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++) {
        worst = a->step[i].step == b->step[i].step ? larger(worst, a->step[i].loss, b->step[i].loss) : INFINITY;
        worst = largest(worst, a->step[i].beside, b->step[i].beside, RUNS_BESIDE);
    }
    return worst;
}

double runs_norm_error(const runs_metrics *a, const runs_metrics *b)
{
    double worst = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++)
        worst = larger(worst, a->step[i].norm, b->step[i].norm);
    return worst;
}

double runs_loads_error(const runs_metrics *a, const runs_metrics *b)
{
    double worst = a->count == b->count && a->count > 0 ? 0 : INFINITY;
    for (int i = 0; i < a->count && i < b->count; i++)
        worst = largest(worst, a->step[i].loads, b->step[i].loads, RUNS_LOADS);
    return worst;
}

bool runs_same_metrics(const runs_metrics *a, const runs_metrics *b)
{
    bool same = a->count > 0 && a->count == b->count && a->evaluations == b->evaluations;
    for (int i = 0; i < a->count && same; i++)
        same = a->step[i].step == b->step[i].step && a->step[i].loss == b->step[i].loss &&
               a->step[i].lr == b->step[i].lr && a->step[i].norm == b->step[i].norm &&
               a->step[i].skipped == b->step[i].skipped && !strcmp(a->step[i].hash, b->step[i].hash);
    for (int i = 0; i < a->evaluations && same; i++)
        same = a->evaluation[i].step == b->evaluation[i].step && a->evaluation[i].loss == b->evaluation[i].loss;
    return same;
}

/* ---- gradients ------------------------------------------------------------------------------------------------- */

static safetensors *open_gradients(const char *folder)
{
    AUTO_FREE char *path = must_format("%s/gradients.safetensors", folder);
    safetensors *file = NULL;
    status s = safetensors_open(&file, path);
    if (s != STATUS_OK)
        file = NULL;
    return file;
}

static int64_t elements_of(const safetensors_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->dims; i++)
        n *= t->shape[i];
    return n;
}

/* Squares of g and of x - g; false if they are not the same tensor. */
static bool squares(double *of_g, double *of_difference, const safetensors *a, const safetensors_tensor *x,
                    const safetensors *b, const safetensors_tensor *g)
{
    *of_g = *of_difference = 0;
    if (!x || !g || x->dims != g->dims || memcmp(x->shape, g->shape, (size_t)x->dims * sizeof *x->shape) != 0 ||
        x->type != DTYPE_FP32 || g->type != DTYPE_FP32)
        return false;
    const char *p = safetensors_data(a, x), *q = safetensors_data(b, g);
    for (int64_t i = 0; i < elements_of(g); i++) {
        float left, right;
        memcpy(&left, p + 4 * i, 4);
        memcpy(&right, q + 4 * i, 4);
        *of_g += (double)right * right;
        *of_difference += ((double)left - right) * ((double)left - right);
    }
    return true;
}

runs_gradients runs_compare_gradients(const char *folder, const char *from)
{
    runs_gradients r = {.worst = 0};
    safetensors *a = open_gradients(folder), *b = open_gradients(from);
    int n = a && b && safetensors_count(a) == safetensors_count(b) ? safetensors_count(b) : 0;
    double all = 0, difference = 0, g, d;
    for (int i = 0; i < n; i++) {
        const safetensors_tensor *t = safetensors_at(b, i);
        if (!squares(&g, &d, a, tensors_find(a, t->name), b, t))
            n = 0;
        all += g;
        difference += d;
    }
    for (int i = 0; i < n; i++) {
        const safetensors_tensor *t = safetensors_at(b, i);
        squares(&g, &d, a, tensors_find(a, t->name), b, t);
        double share = sqrt(d) / fmax(1e-5 * sqrt(g), 1e-7 * sqrt(all));
        if (share <= r.worst)
            continue;
        r.worst = isfinite(share) ? share : INFINITY;
        snprintf(r.name, sizeof r.name, "%s", t->name);
    }
    r.tensors = n;
    r.norm = sqrt(all);
    r.relative = n && all > 0 ? sqrt(difference / all) : INFINITY;
    if (!n)
        r.worst = INFINITY;
    safetensors_close(a);
    safetensors_close(b);
    return r;
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------ */

static void *read_whole(checkpoint *c, const manifest_tensor *t, int64_t *bytes)
{
    rectangle all = box_whole(t->name, t->dims, t->global);
    box_memory to = {.type = t->type};
    box_row_major(to.stride, t->dims, t->global);
    *bytes = box_volume(t->dims, t->global) * dtype_bytes(t->type);
    void *data = to.data = must_calloc((unsigned long)*bytes + 1, 1);
    status s = checkpoint_read(c, t->section, &all, &to);
    MUST(s == STATUS_OK, "%s", status_message());
    return data;
}

static bool same_tensor(checkpoint *a, const manifest_tensor *x, checkpoint *b, const manifest_tensor *y)
{
    if (!x || !y || x->type != y->type || x->dims != y->dims ||
        memcmp(x->global, y->global, (size_t)x->dims * sizeof *x->global) != 0)
        return false;
    int64_t one, two;
    AUTO_FREE void *p = read_whole(a, x, &one), *q = read_whole(b, y, &two);
    return one == two && memcmp(p, q, (size_t)one) == 0;
}

int runs_compare_checkpoints(char *difference, int bytes, const char *run, const char *other)
{
    return runs_compare_section(difference, bytes, run, other, NULL);
}

int runs_compare_section(char *difference, int bytes, const char *run, const char *other, const char *section)
{
    checkpoint *a = NULL, *b = NULL;
    int equal = 0;
    difference[0] = 0;
    if (checkpoint_open(&a, run) != STATUS_OK || checkpoint_open(&b, other) != STATUS_OK) {
        snprintf(difference, (size_t)bytes, "%s", status_message());
        checkpoint_close(a);
        return 0;
    }
    if (checkpoint_tensors(a) != checkpoint_tensors(b))
        snprintf(difference, (size_t)bytes, "%d and %d tensors", checkpoint_tensors(a), checkpoint_tensors(b));
    for (int i = 0; i < checkpoint_tensors(a) && !*difference; i++) {
        const manifest_tensor *t = checkpoint_at(a, i);
        if (section && strcmp(t->section, section) != 0)
            continue;
        if (same_tensor(a, t, b, checkpoint_find(b, t->section, t->name)))
            equal++;
        else
            snprintf(difference, (size_t)bytes, "%s of %s", t->section, t->name);
    }
    checkpoint_close(a);
    checkpoint_close(b);
    return equal;
}

double runs_weights_error(char *name, int bytes, const char *run, const char *other)
{
    return runs_section_error(name, bytes, run, other, "model");
}

double runs_section_error(char *name, int bytes, const char *run, const char *other, const char *section)
{
    checkpoint *a = NULL, *b = NULL;
    const bool open = checkpoint_open(&a, run) == STATUS_OK && checkpoint_open(&b, other) == STATUS_OK;
    double worst = open && checkpoint_tensors(a) == checkpoint_tensors(b) ? 0 : INFINITY;
    int compared = 0;
    for (int i = 0; open && i < checkpoint_tensors(b); i++) {
        const manifest_tensor *t = checkpoint_at(b, i), *mine = checkpoint_find(a, t->section, t->name);
        if (strcmp(t->section, section) != 0 || t->type != DTYPE_FP32 || strstr(t->name, "k_proj.bias"))
            continue; /* scores' softmax does not see a key's bias, which is moved by rounding */
        int64_t size;
        AUTO_FREE float *want = read_whole(b, t, &size), *got = mine ? read_whole(a, mine, &size) : NULL;
        double all = 0, difference = 0;
        for (int64_t k = 0; got && k < size / 4; k++) {
            all += (double)want[k] * want[k];
            difference += ((double)got[k] - want[k]) * ((double)got[k] - want[k]);
        }
        const double error = got ? sqrt(difference / fmax(all, 1e-30)) : INFINITY;
        compared++;
        if (error <= worst)
            continue;
        worst = isfinite(error) ? error : INFINITY;
        snprintf(name, (size_t)bytes, "%s", t->name);
    }
    checkpoint_close(a);
    checkpoint_close(b);
    return compared > 0 ? worst : INFINITY;
}

int runs_compare_biases(char *difference, int bytes, const char *run, const char *other)
{
    static const char end[] = "e_score_correction_bias";
    checkpoint *a = NULL, *b = NULL;
    int equal = 0;
    difference[0] = 0;
    if (checkpoint_open(&a, run) == STATUS_OK && checkpoint_open(&b, other) == STATUS_OK)
        for (int i = 0; i < checkpoint_tensors(a); i++) {
            const manifest_tensor *t = checkpoint_at(a, i);
            size_t length = strlen(t->name);
            if (length < sizeof end || strcmp(t->name + length + 1 - sizeof end, end) != 0)
                continue;
            if (same_tensor(a, t, b, checkpoint_find(b, t->section, t->name)))
                equal++;
            else
                snprintf(difference, (size_t)bytes, "%s", t->name);
        }
    checkpoint_close(a);
    checkpoint_close(b);
    return equal;
}

/* ---- running ---------------------------------------------------------------------------------------------------- */

json_t *runs_read_summary(const char *folder)
{
    AUTO_FREE char *path = must_format("%s/summary.json", folder);
    return json_load_file(path, 0, NULL);
}

json_t *runs_last_line(const char *path)
{
    FILE *f = fopen(path, "r");
    char *text = NULL;
    size_t capacity = 0;
    json_t *last = NULL;
    while (f && getline(&text, &capacity, f) > 0)
        if (strchr(text, '\n')) {
            json_decref(last);
            last = json_loads(text, 0, NULL);
        }
    if (f)
        fclose(f);
    free(text);
    return last;
}

int runs_error_lines(const char *text)
{
    int lines = 0;
    for (const char *at = text; at && *at; at = strchr(at, '\n') ? strchr(at, '\n') + 1 : NULL)
        lines += !strncmp(at, "phalanx: ", 9);
    return lines;
}

launch *runs_start(double limit, int ranks, const char *arguments)
{
    char *mpirun = ranks > 1 ? launch_mpirun(ranks) : must_strdup(""), *program = launch_beside("../phalanx");
    launch *l = launch_start(limit, "exec %s %s train %s", mpirun, program, arguments);
    free(mpirun);
    free(program);
    return l;
}

launch_result runs_train(double limit, int ranks, const char *arguments)
{
    return launch_finish(runs_start(limit, ranks, arguments));
}

char *runs_train_well(double limit, int ranks, const char *format, ...)
{
    char arguments[2048];
    va_list list;
    va_start(list, format);
    vsnprintf(arguments, sizeof arguments, format, list);
    va_end(list);
    launch_result r = runs_train(limit, ranks, arguments);
    MUST(r.status == 0, "phalanx train %s: status %d: %s", arguments, r.status, r.err);
    char *out = must_strdup(r.out);
    launch_free(&r);
    return out;
}

/* Arguments or environment of a process as one string with spaces. */
static char *process_text(const char *pid, const char *what)
{
    char *path = must_format("/proc/%s/%s", pid, what), *text = must_calloc(65537, 1);
    FILE *f = fopen(path, "r");
    size_t got = f ? fread(text, 1, 65536, f) : 0;
    for (size_t i = 0; i < got; i++)
        text[i] = text[i] ? text[i] : ' ';
    if (f)
        fclose(f);
    free(path);
    return text;
}

static bool is_rank(const char *pid, const char *folder, int rank)
{
    AUTO_FREE char *command = process_text(pid, "cmdline"), *environment = NULL;
    AUTO_FREE char *wanted = must_format("OMPI_COMM_WORLD_RANK=%d ", rank),
                   *key = must_format("run.folder=%s ", folder);
    bool ours = strstr(command, "/phalanx train ") || strstr(command, "/phalanx server ");
    bool launches = strstr(command, "mpirun") || strstr(command, "prterun"); /* which Open MPI 5's becomes */
    bool found = ours && !launches && !strstr(command, " supervise ") && strstr(command, key);
    if (found) {
        environment = process_text(pid, "environ");
        found = strstr(environment, wanted) || (rank == 0 && !strstr(environment, "OMPI_COMM_WORLD_RANK="));
    }
    return found;
}

int runs_process(const char *folder, int rank)
{
    DIR *all = opendir("/proc");
    int pid = 0;
    for (struct dirent *e = all ? readdir(all) : NULL; e && !pid; e = readdir(all))
        if (e->d_name[0] >= '0' && e->d_name[0] <= '9' && is_rank(e->d_name, folder, rank))
            pid = atoi(e->d_name);
    if (all)
        closedir(all);
    return pid;
}

bool runs_wait_for_step(const char *folder, int64_t steps, double seconds)
{
    for (int i = 0; i < seconds * 100; i++) {
        AUTO_FREE char *path = must_format("%s/metrics.jsonl", folder),
                       *wanted = must_format("\"step\": %lld,", (long long)steps);
        FILE *f = fopen(path, "r");
        char line[1024];
        bool found = false;
        while (f && !found && fgets(line, sizeof line, f))
            found = strstr(line, wanted) && strchr(line, '\n');
        if (f)
            fclose(f);
        if (found)
            return true;
        nanosleep(&(struct timespec){.tv_nsec = 10000000}, NULL);
    }
    return false;
}
