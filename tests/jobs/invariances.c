#include "tests/jobs/invariances.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/safetensors.h"
#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"

/* Tensors that hold a block for each of `count` along a dimension; count is a key of config.json. */
typedef struct turned {
    const char *end; /* of the name */
    int dim;
    const char *count;
    invariances_turn turn;
} turned;

#define HEADS   "num_attention_heads", INVARIANCES_HEADS
#define SHARED  "num_key_value_heads", INVARIANCES_HEADS
#define EXPERTS "experts", INVARIANCES_EXPERTS_BUT_ROUTERS
#define ROUTERS "experts", INVARIANCES_EXPERTS

static const turned table[] = {
    {".q_proj.weight", 0, HEADS},       {".q_proj.bias", 0, HEADS},
    {".k_proj.weight", 0, SHARED},      {".k_proj.bias", 0, SHARED},
    {".v_proj.weight", 0, SHARED},      {".v_proj.bias", 0, SHARED},
    {".o_proj.weight", 1, HEADS},       {".sinks", 0, HEADS},
    {".q_b_proj.weight", 0, HEADS},     {".kv_b_proj.weight", 0, HEADS},
    {".gate_up_proj", 0, EXPERTS},      {".gate_up_proj_bias", 0, EXPERTS},
    {".experts.down_proj", 0, EXPERTS}, {".down_proj_bias", 0, EXPERTS},
    {".gate.weight", 0, ROUTERS},       {".e_score_correction_bias", 0, ROUTERS},
    {".router.weight", 0, ROUTERS},     {".router.bias", 0, ROUTERS},
};

static bool ends_with(const char *text, const char *end)
{
    const size_t n = strlen(text), m = strlen(end);
    return n >= m && !strcmp(text + n - m, end);
}

/* ---- files ------------------------------------------------------------------------------------------------------- */

typedef struct tensors {
    int count;
    safetensors_tensor *of;
    char **name, **data;
} tensors;

static tensors read_all(const char *path)
{
    safetensors *file;
    MUST(safetensors_open(&file, path) == STATUS_OK, "%s", status_message());
    const int n = safetensors_count(file);
    tensors t = {n, must_calloc((unsigned long)n, sizeof *t.of), must_calloc((unsigned long)n, sizeof *t.name),
                 must_calloc((unsigned long)n, sizeof *t.data)};
    for (int i = 0; i < n; i++) {
        t.of[i] = *safetensors_at(file, i);
        t.name[i] = must_strdup(t.of[i].name);
        t.data[i] = must_alloc((unsigned long)t.of[i].bytes + 1);
        memcpy(t.data[i], safetensors_data(file, safetensors_at(file, i)), (size_t)t.of[i].bytes);
    }
    safetensors_close(file);
    return t;
}

/* Frees `t`. */
static void write_all(const char *path, tensors *t)
{
    safetensors_writer *w;
    for (int i = 0; i < t->count; i++)
        t->of[i].name = t->name[i];
    MUST(safetensors_writer_open(&w, path, t->of, t->count, NULL) == STATUS_OK, "%s", status_message());
    for (int k = 0; k < t->count; k++) {
        const int i = safetensors_writer_order(w)[k];
        MUST(safetensors_writer_data(w, t->data[i], t->of[i].bytes) == STATUS_OK, "%s", status_message());
    }
    MUST(safetensors_writer_close(w) == STATUS_OK, "%s", status_message());
    for (int i = 0; i < t->count; i++) {
        free(t->name[i]);
        free(t->data[i]);
    }
    free(t->of);
    free(t->name);
    free(t->data);
}

static json_t *configuration(const char *folder)
{
    AUTO_FREE char *path = must_format("%s/config.json", folder);
    json_t *root = json_load_file(path, 0, NULL);
    MUST(root, "cannot read %s", path);
    return root;
}

/* ---- reversing --------------------------------------------------------------------------------------------------- */

static int count_of(const json_t *root, const char *key)
{
    static const char *const experts[] = {"num_local_experts", "n_routed_experts", "num_experts"};
    const json_t *value = json_object_get(root, key);
    for (int i = 0; i < 3 && !value; i++)
        value = json_object_get(root, experts[i]);
    return (int)json_integer_value(value);
}

/* Reverses `blocks` along `dim` of rows of `inner` bytes: rows of the tensor, or within each of `outer` rows. */
static void reverse(char *data, int64_t outer, int64_t blocks, int64_t bytes)
{
    AUTO_FREE char *held = must_alloc((unsigned long)(blocks * bytes));
    for (int64_t o = 0; o < outer; o++) {
        char *at = data + o * blocks * bytes;
        memcpy(held, at, (size_t)(blocks * bytes));
        for (int64_t b = 0; b < blocks; b++)
            memcpy(at + b * bytes, held + (blocks - 1 - b) * bytes, (size_t)bytes);
    }
}

/* ".experts.2." becomes ".experts.5." of eight. */
static char *renamed(const char *name, int experts)
{
    static const char within[] = ".experts.";
    const char *at = strstr(name, within);
    char *rest;
    const long number = at ? strtol(at + strlen(within), &rest, 10) : 0;
    if (!at || rest == at + strlen(within))
        return must_strdup(name);
    return must_format("%.*s%s%ld%s", (int)(at - name), name, within, experts - 1 - number, rest);
}

void invariances_reverse(const char *to, const char *from, const char *folder, invariances_turn turn)
{
    json_t *root = configuration(folder);
    tensors t = read_all(from);
    for (int i = 0; i < t.count; i++) {
        for (size_t k = 0; k < sizeof table / sizeof *table; k++) {
            const turned *of = &table[k];
            const bool also = turn == INVARIANCES_EXPERTS && of->turn == INVARIANCES_EXPERTS_BUT_ROUTERS;
            if (!ends_with(t.name[i], of->end) || (of->turn != turn && !also))
                continue;
            const int64_t outer = of->dim ? t.of[i].shape[0] : 1, blocks = count_of(root, of->count);
            MUST(blocks > 0 && t.of[i].bytes % (outer * blocks) == 0, "%s has no %s", t.name[i], of->count);
            reverse(t.data[i], outer, blocks, t.of[i].bytes / outer / blocks);
        }
        if (turn == INVARIANCES_HEADS)
            continue;
        char *name = renamed(t.name[i], count_of(root, "experts"));
        free(t.name[i]);
        t.name[i] = name;
    }
    write_all(to, &t);
    json_decref(root);
}

/* ---- padding ----------------------------------------------------------------------------------------------------- */

static const float LOW = -1e4f;

void invariances_pad(const char *to, const char *folder, int more)
{
    AUTO_FREE char *from = must_format("%s/model.safetensors", folder), *path = must_format("%s/model.safetensors", to);
    AUTO_FREE char *json_path = must_format("%s/config.json", to);
    json_t *root = configuration(folder);
    tensors t = read_all(from);
    MUST(atomic_make_folders(to) == STATUS_OK, "%s", status_message());
    for (int i = 0; i < t.count; i++) {
        float *values = (void *)t.data[i];
        if (ends_with(t.name[i], "ln_f.weight"))
            values[0] = 0;
        if (ends_with(t.name[i], "ln_f.bias"))
            values[0] = 1;
        if (!ends_with(t.name[i], "wte.weight"))
            continue;
        const int64_t width = t.of[i].shape[1], row = width * 4;
        values = must_calloc((unsigned long)(t.of[i].bytes + more * row), 1);
        memcpy(values, t.data[i], (size_t)t.of[i].bytes);
        for (int k = 0; k < more; k++)
            values[(t.of[i].shape[0] + k) * width] = LOW;
        free(t.data[i]);
        t.data[i] = (void *)values;
        t.of[i].bytes += more * row;
        t.of[i].shape[0] += more;
        json_object_set_new(root, "vocab_size", json_integer(t.of[i].shape[0]));
    }
    write_all(path, &t);
    MUST(json_dump_file(root, json_path, 0) == 0, "cannot write %s", json_path);
    json_decref(root);
}

bool invariances_cut(const char *to, const char *from, int more)
{
    tensors t = read_all(from);
    bool zero = true;
    for (int i = 0; i < t.count; i++) {
        if (!ends_with(t.name[i], "wte.weight"))
            continue;
        const int64_t row = t.of[i].shape[1] * 4;
        t.of[i].shape[0] -= more;
        t.of[i].bytes -= more * row;
        for (int64_t k = 0; k < more * t.of[i].shape[1]; k++)
            zero &= ((const float *)(const void *)(t.data[i] + t.of[i].bytes))[k] == 0;
    }
    write_all(to, &t);
    return zero;
}
