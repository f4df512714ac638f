#include "tools/planning.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/run/choices.h"
#include "kernels/device.h"
#include "kernels/table/devices.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/series.h"
#include "tools/threads.h"

planning_run planning_run_of(const char *folder)
{
    planning_run run = {0};
    char *path = must_format("%s/events.jsonl", folder);
    json_t *events = series_lines(path, "ranks"), *last = json_array_get(events, json_array_size(events) - 1);
    const char *word = json_string_value(json_object_get(last, "device"));
    run.ranks = (int)json_integer_value(json_object_get(last, "ranks"));
    if (word && devices_named(word))
        snprintf(run.device, sizeof run.device, "%s", word);
    json_decref(events);
    free(path);
    if (run.ranks > 0)
        return run;
    path = must_format("%s/summary.json", folder);
    json_auto_t *summary = json_load_file(path, 0, NULL);
    run.ranks = (int)json_array_size(json_object_get(summary, "ranks"));
    free(path);
    return run;
}

const char *planning_device(const config *c, const planning_run *run)
{
    if (run && *run->device)
        return run->device;
    return c->train.device == CONFIG_CPU ? "cpu" : DEVICES_ASSUMED;
}

const op_backend *planning_backend(const config *c, const planning_run *run)
{
    const device_interface *cuda;
    bool on_gpu = run && *run->device && strcmp(run->device, "cpu") != 0;
    if (c->train.device != CONFIG_CUDA && !on_gpu)
        return &cpu_backend;
    return device_load(&cuda, "cuda") == STATUS_OK ? cuda->backend : NULL;
}

status planning_options(compile_options *out, const config *c, const grid *g, const planning_run *run, int node_ranks)
{
    TRY(compile_options_from(out, c, g, planning_backend(c, run), threads_of_rank(c, g->ranks, node_ranks)));
    out->evaluate = c->data.validation.count > 0 && c->evaluate.every > 0;
    return STATUS_OK;
}

status planning_reserve(reserve *out, const char *folder)
{
    choices known = {0};
    AUTO_FREE char *path = must_format("%s/" CHOICES_FILE, folder);
    *out = reserve_assumed;
    status s = choices_read(&known, path);
    choices_take_reserve(out, &known);
    choices_free(&known);
    return s;
}
