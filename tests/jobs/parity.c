#include "tests/jobs/parity.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"

static const double LOSS = PARITY_LOSS, NORM = 5e-6, BF16 = 1.5;

/* ---- running ---------------------------------------------------------------------------------------------------- */

char *parity_model_folder(const char *top, const char *model)
{
    return must_format("%s/one-%s", top, model);
}

static void run_alone(const char *top, const layouts_model *m)
{
    AUTO_FREE char *data = workfolder_path(top, "data"), *yaml = layouts_yaml(m, data),
                   *folder = parity_model_folder(top, m->name);
    AUTO_FREE char *file = must_format("%s/%s.yaml", top, m->name);
    runs_write_text(file, yaml);
    AUTO_FREE char *arguments =
        must_format("%s %s run.folder=%s debug.gradients=%s/gradients", file, m->extra, folder, folder);
    launch_result r = runs_train(60, 1, arguments);
    if (r.status)
        fprintf(stderr, "%s: %s", m->name, r.err);
    launch_free(&r);
}

int parity_setup(void **state, bool rounded)
{
    if (workfolder_setup(state))
        return -1;
    AUTO_FREE char *data = workfolder_path(*state, "data");
    runs_write_data(data, LAYOUTS_VOCABULARY, 20000, 1);
    for (int i = 0; i < layouts_models(); i++)
        if (rounded || !layouts_model_at(i)->exact)
            run_alone(*state, layouts_model_at(i));
    return 0;
}

FILE *parity_open_list(const char *top, const char *name)
{
    AUTO_FREE char *path = workfolder_path(top, name);
    FILE *list = fopen(path, "w");
    MUST(list, "cannot write %s", path);
    return list;
}

/* Bytes of the arena of the rank that needs most, by `phalanx plan`. */
static int64_t planned_bytes(const char *top, const layouts_row *row, const char *keys, const char *how)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(60, "exec %s plan %s/%s.yaml %s parallel.data=%d memory.recompute=%s --json", program,
                                 top, row->model, keys, row->data, how);
    json_auto_t *plan = json_loads(r.out, 0, NULL);
    MUST(plan, "cannot plan %s %s: %s", row->model, keys, r.err);
    size_t i;
    json_t *rank;
    int64_t most = 0;
    json_array_foreach(json_object_get(plan, "ranks"), i, rank)
    {
        int64_t bytes = json_integer_value(json_object_get(rank, "arena_bytes"));
        most = bytes > most ? bytes : most;
    }
    launch_free(&r);
    return most;
}

/* The row's overrides, with the bytes of a budget that is LAYOUTS_HALF. */
static char *overrides(const char *top, const layouts_row *row)
{
    char *keys = layouts_overrides(row), *half = strstr(keys, "memory.budget=" LAYOUTS_HALF);
    if (!half)
        return keys;
    AUTO_FREE char *before = must_format("%.*s", (int)(half - keys), keys);
    AUTO_FREE char *rest = must_format("%s %s", before, half + strlen("memory.budget=" LAYOUTS_HALF));
    free(keys);
    int64_t budget = (planned_bytes(top, row, rest, "none") + planned_bytes(top, row, rest, "full")) / 2;
    return must_format("%s memory.budget=%lld", rest, (long long)budget);
}

/* One line of a playlist; `before`: "" or what comes before the configuration. */
void parity_put_line(FILE *list, const char *top, const char *before, const layouts_row *row, char *folder)
{
    AUTO_FREE char *keys = overrides(top, row);
    fprintf(list, "%s%s/%s.yaml %s run.folder=%s debug.gradients=%s/gradients\n", before, top, row->model, keys, folder,
            folder);
    free(folder);
}

void parity_play(const char *top, const char *program_name, int ranks, const char *playlist, int count)
{
    AUTO_FREE char *mpirun = launch_mpirun(ranks), *program = launch_beside(program_name);
    launch_result r = launch_run(400, "exec %s %s %s/%s", mpirun, program, top, playlist);
    if (r.status || *r.err)
        fprintf(stderr, "%d ranks: status %d: %s", ranks, r.status, r.err);
    printf("%d layouts on %d ranks in %.1f s\n", count, ranks, r.seconds);
    launch_free(&r);
}

/* ---- comparing --------------------------------------------------------------------------------------------------- */

static runs_gradients gradients(const char *folder, const char *from)
{
    AUTO_FREE char *a = must_format("%s/gradients", folder), *b = must_format("%s/gradients", from);
    runs_gradients r = runs_compare_gradients(a, b);
    return r;
}

parity_outcome parity_compare(const char *folder, const char *one)
{
    runs_metrics mine = runs_read_metrics(folder), its = runs_read_metrics(one);
    runs_gradients g = gradients(folder, one);
    parity_outcome o = {
        .gradient = g.worst, .loss = runs_loss_error(&mine, &its), .norm = runs_norm_error(&mine, &its)};
    char bias[sizeof o.tensor];
    o.biases = runs_compare_biases(bias, sizeof bias, folder, one);
    snprintf(o.tensor, sizeof o.tensor, "%s", *bias ? bias : g.name);
    o.good =
        g.tensors > 0 && its.count == LAYOUTS_STEPS && o.gradient <= 1 && o.loss <= LOSS && o.norm <= NORM && !*bias;
    return o;
}

/* bf16: distances to the fp32 run of the same model, as multiples of one rank's. */
parity_outcome parity_compare_rounded(const char *folder, const char *one, const char *exact)
{
    runs_metrics mine = runs_read_metrics(folder), its = runs_read_metrics(one);
    runs_gradients a = gradients(folder, exact), b = gradients(one, exact);
    parity_outcome o = {.gradient = a.relative / b.relative,
                        .loss = runs_loss_error(&mine, &its),
                        .norm = runs_norm_error(&mine, &its)};
    o.good = a.tensors > 0 && b.tensors > 0 && b.relative > 0 && o.gradient <= BF16 && o.loss <= 1;
    return o;
}
