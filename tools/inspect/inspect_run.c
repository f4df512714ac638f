/* phalanx inspect: shows run folders. */
#include "tools/inspect/inspect_parts.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/system/atomic.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/system/mapping.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Returns the last complete line of metrics.jsonl that has `key`, or NULL. */
static json_t *last_line_with(const mapping *file, const char *key)
{
    int64_t end = file->bytes;
    while (end > 0) {
        int64_t start = end;
        while (start > 0 && file->data[start - 1] != '\n')
            start--;
        json_t *line = json_loadb((const char *)file->data + start, (size_t)(end - start), 0, NULL);
        if (json_object_get(line, key))
            return line;
        json_decref(line); /* another kind of line, or one being written */
        end = start - 1;
    }
    return NULL;
}

static int is_checkpoint(const struct dirent *entry)
{
    return strncmp(entry->d_name, "step-", 5) == 0;
}

static json_t *list_checkpoints(const char *run)
{
    json_t *list = json_array();
    AUTO_FREE struct dirent **entries = NULL;
    AUTO_FREE char *folder = must_format("%s/checkpoints", run);
    int count = scandir(folder, &entries, is_checkpoint, alphasort);
    for (int i = 0; i < count; i++) {
        AUTO_FREE char *path = must_format("%s/%s", folder, entries[i]->d_name);
        if (inspect_has(path, "manifest.json"))
            json_array_append_new(list, json_string(entries[i]->d_name));
        free(entries[i]);
    }
    return list;
}

status inspect_gather_run(json_t **out, const inspect_request *r)
{
    json_auto_t *object = inspect_object("run", r->path);
    AUTO_FREE char *metrics = must_format("%s/metrics.jsonl", r->path),
                   *summary = must_format("%s/summary.json", r->path);
    mapping file = {0};
    status s = atomic_exists(metrics) ? mapping_open(&file, metrics) : STATUS_OK;
    json_t *last = last_line_with(&file, "loss"), *evaluation = last_line_with(&file, "eval_loss");
    if (last)
        json_object_set_new(object, "last", last);
    if (evaluation)
        json_object_set_new(object, "last_evaluation", evaluation);
    mapping_close(&file);
    json_t *whole = json_load_file(summary, 0, NULL);
    if (whole)
        json_object_set_new(object, "summary", whole);
    json_object_set_new(object, "checkpoints", list_checkpoints(r->path));
    checkpoint *c;
    if (inspect_has(r->path, "checkpoints/latest")) { /* checks that it names a whole checkpoint */
        status opened = checkpoint_open(&c, r->path);
        json_object_set_new(object, opened == STATUS_OK ? "latest" : "latest_error",
                            json_string(opened == STATUS_OK ? checkpoint_folder(c) : status_message()));
        if (opened == STATUS_OK && r->verify)
            s = checkpoint_verify(c);
        if (opened == STATUS_OK)
            checkpoint_close(c);
    }
    if (s == STATUS_OK)
        *out = TAKE(object);
    return s;
}

static void print_number(const char *before, const json_t *line, const char *key, int digits, const char *after)
{
    const json_t *value = json_object_get(line, key);
    if (json_is_number(value))
        printf("%s%.*g%s", before, digits, json_number_value(value), after);
}

void inspect_print_run(const json_t *object)
{
    const json_t *last = json_object_get(object, "last"), *evaluation = json_object_get(object, "last_evaluation");
    const json_t *list = json_object_get(object, "checkpoints"), *summary = json_object_get(object, "summary");
    printf("run %s\n", inspect_text(object, "path"));
    if (json_object_get(summary, "parameters"))
        printf("  parameters: %s\n", COUNT_IN_WORDS(inspect_get(summary, "parameters")));
    if (last) {
        print_number("  last step ", last, "step", 15, ":");
        print_number(" loss ", last, "loss", 9, "");
        print_number(", gradient norm ", last, "grad_norm", 6, "");
        print_number(", ", last, "tokens_per_second", 6, " tokens/s");
        print_number(", mfu ", last, "mfu", 3, "");
        print_number(", the most work of a context rank ", last, "context_imbalance", 4, " x the mean");
        printf("\n");
    } else
        printf("  no step has been recorded\n");
    print_number("  last evaluation, step ", evaluation, "step", 15, ":");
    print_number(" loss ", evaluation, "eval_loss", 9, "\n");
    printf("  checkpoints: %zu\n", json_array_size(list));
    for (size_t i = 0; i < json_array_size(list); i++)
        printf("    %s\n", json_string_value(json_array_get(list, i)));
    if (inspect_text(object, "latest"))
        printf("  latest: %s\n", inspect_text(object, "latest"));
    if (inspect_text(object, "latest_error"))
        printf("  latest cannot be loaded: %s\n", inspect_text(object, "latest_error"));
}
