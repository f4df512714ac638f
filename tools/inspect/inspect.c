/* phalanx inspect: shows the contents of a checkpoint, a Hugging Face or run folder, a data set, a safetensors file or
 * a configuration. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/data/stored.h"
#include "engine/system/atomic.h"
#include "engine/store/object.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/inspect/inspect_parts.h"
#include "tools/options.h"
#include "tools/tools.h"

typedef struct kind {
    bool (*is)(const char *path);
    status (*gather)(json_t **out, const inspect_request *r);
    void (*print)(const json_t *object);
} kind;

static bool is_data(const char *path)
{
    AUTO_FREE char *index = must_format("%s.idx", path);
    bool yes = inspect_ends_with(path, ".idx") || inspect_ends_with(path, ".bin") || object_is_url(path) ||
               atomic_exists(index);
    return yes;
}

static bool is_folder(const char *path)
{
    struct stat info;
    return stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

static bool is_file(const char *path)
{
    return atomic_exists(path) && !is_folder(path);
}

static bool is_config(const char *path)
{
    return is_file(path) && (inspect_ends_with(path, ".yaml") || inspect_ends_with(path, ".yml"));
}

static bool is_run(const char *path)
{
    return !inspect_has(path, "manifest.json") &&
           (inspect_has(path, "metrics.jsonl") || inspect_has(path, "config.yaml") || inspect_has(path, "checkpoints"));
}

static bool is_huggingface(const char *path)
{
    return inspect_has(path, "config.json") && !inspect_has(path, "manifest.json");
}

/* Tells whether the path is .../manifest.json, which stands for its folder. */
static bool is_manifest(const char *path)
{
    return inspect_ends_with(path, "/manifest.json") && is_file(path);
}

static status gather_manifest(json_t **out, const inspect_request *r)
{
    inspect_request folder = *r;
    AUTO_FREE char *path = must_strdup(r->path);
    *strrchr(path, '/') = 0;
    folder.path = path;
    return inspect_gather_checkpoint(out, &folder);
}

static const kind kinds[] = {
    {is_manifest, gather_manifest, inspect_print_checkpoint},
    {is_data, inspect_gather_data, inspect_print_data},
    {is_config, inspect_gather_config, inspect_print_config},
    {is_file, inspect_gather_safetensors, inspect_print_safetensors},
    {is_huggingface, inspect_gather_huggingface, inspect_print_huggingface},
    {is_run, inspect_gather_run, inspect_print_run},
    {is_folder, inspect_gather_checkpoint, inspect_print_checkpoint},
};

/* Inspects a path. `shown`: the path as given, if it is a folder of a store. */
static status inspect(const inspect_request *r, const char *shown)
{
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        if (kinds[i].is(r->path)) {
            json_t *object = NULL; /* a refused path may set it, too */
            status s = kinds[i].gather(&object, r);
            if (object && object_is_url(shown))
                json_object_set_new(object, "path", json_string(shown));
            if (object && r->json) {
                json_dumpf(object, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(17));
                printf("\n");
            } else if (object)
                kinds[i].print(object);
            json_decref(object);
            return s;
        }
    return status_fail(STATUS_FAILED,
                       "%s: there is no such folder or file, nor a data set %s.idx: give a checkpoint, a run folder, a "
                       "Hugging Face folder, a safetensors file, a configuration or a data set's prefix",
                       r->path, r->path);
}

int inspect_main(int argc, char **argv)
{
    inspect_request r = {.samples = 3, .ids = 16};
    const options_row rows[] = {
        OPTION_FLAG("--json", "print all of it as one JSON object", &r.json),
        OPTION_FLAG("--verify", "also read everything: a checkpoint's checksums, every token of a data set", &r.verify),
        OPTION_INTEGER("--samples", "N", "documents of a data set to show (default 3)", &r.samples, 0, 1e6),
        OPTION_INTEGER("--ids", "N", "token ids to show of each document (default 16)", &r.ids, 1, 1e6),
    };
    const options_command command = {
        .name = "inspect",
        .operands = "PATH",
        .summary =
            "Shows what PATH holds: a checkpoint (its folder, or a checkpoints folder: the latest), a data set (the\n"
            "prefix of .bin and .idx, also s3://BUCKET/PREFIX), a safetensors file, a configuration (.yaml), a run "
            "folder, or a Hugging Face "
            "folder:\n"
            "what training from it has, which keys of its config.json were taken and which not, or why it is refused.",
        .least = 1,
        .most = 1,
        OPTION_ROWS(rows),
    };
    int operands, exit_status = options_parse(&command, &operands, argc, argv);
    if (exit_status != OPTIONS_GO_ON)
        return exit_status;
    AUTO_FREE char *folder = NULL;
    bool data = false; /* the path is a data set of a store */
    status s = folder_local(&folder, argv[1], r.verify ? FOLDER_WHOLE : FOLDER_HEADERS);
    if (s != STATUS_OK && object_is_url(argv[1])) {
        AUTO_FREE char *words = must_strdup(status_message());
        s = stored_look(&data, argv[1]) == STATUS_OK && data ? STATUS_OK : status_fail(s, "%s", words);
    }
    r.path = data ? argv[1] : folder;
    if (s == STATUS_OK)
        s = inspect(&r, argv[1]);
    return options_exit(s);
}
