/* phalanx inspect: shows checkpoints and safetensors files. */
#include "tools/inspect/inspect_parts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/checkpoint/checkpoint.h"
#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"

static void count_tensor(json_t *total, int64_t elements, int64_t bytes)
{
    json_object_set_new(total, "tensors", json_integer(inspect_get(total, "tensors") + 1));
    json_object_set_new(total, "elements", json_integer(inspect_get(total, "elements") + elements));
    json_object_set_new(total, "bytes", json_integer(inspect_get(total, "bytes") + bytes));
}

/* Appends a tensor to object.tensors and counts it in its section and in object.total. */
static void add_tensor(json_t *object, const char *section, const char *name, dtype type, const int64_t *shape,
                       int dims, int64_t pieces)
{
    json_int_t elements = 1, bytes;
    json_t *sizes = json_array();
    for (int d = 0; d < dims; d++) {
        elements *= shape[d];
        json_array_append_new(sizes, json_integer(shape[d]));
    }
    bytes = elements * dtype_bytes(type);
    json_array_append_new(json_object_get(object, "tensors"),
                          json_pack("{s:s, s:s, s:s, s:o, s:I, s:I}", "section", section, "name", name, "dtype",
                                    dtype_name(type), "shape", sizes, "bytes", bytes, "pieces", (json_int_t)pieces));
    json_t *sections = json_object_get(object, "sections");
    if (!json_object_get(sections, section))
        json_object_set_new(sections, section, json_pack("{s:i, s:i, s:i}", "tensors", 0, "elements", 0, "bytes", 0));
    count_tensor(json_object_get(sections, section), elements, bytes);
    count_tensor(json_object_get(object, "total"), elements, bytes);
}

/* Compares by section, then by name with numbers in the order of their values: layer 2 comes before layer 10. */
static int compare_tensors(const void *a, const void *b)
{
    const json_t *x = *(json_t *const *)a, *y = *(json_t *const *)b;
    int order = strcmp(inspect_text(x, "section"), inspect_text(y, "section"));
    return order ? order : strverscmp(inspect_text(x, "name"), inspect_text(y, "name"));
}

static void sort_tensors(json_t *object)
{
    json_t *tensors = json_object_get(object, "tensors"), *sorted = json_array();
    size_t count = json_array_size(tensors);
    AUTO_FREE json_t **list = must_alloc(count * sizeof *list);
    for (size_t i = 0; i < count; i++)
        list[i] = json_array_get(tensors, i);
    qsort(list, count, sizeof *list, compare_tensors);
    for (size_t i = 0; i < count; i++)
        json_array_append(sorted, list[i]);
    json_object_set_new(object, "tensors", sorted);
}

static void print_tensor(const json_t *t, int width)
{
    const json_t *shape = json_object_get(t, "shape");
    char text[256] = "[";
    size_t used = 1;
    for (size_t d = 0; d < json_array_size(shape) && used < 200; d++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%lld", d ? ", " : "",
                                 (long long)json_integer_value(json_array_get(shape, d)));
    snprintf(text + used, sizeof text - used, "]");
    printf("  %-*s  %-8s  %-20s  %11s", width, inspect_text(t, "section"), inspect_text(t, "dtype"), text,
           BYTES_IN_WORDS(inspect_get(t, "bytes")));
    if (inspect_get(t, "pieces") > 1)
        printf("  in %" PRId64 " pieces", inspect_get(t, "pieces"));
    printf("  %s\n", inspect_text(t, "name"));
}

static void print_total(const char *section, int width, const json_t *total)
{
    printf("  %-*s  %8" PRId64 "  %14s  %12s\n", width, section, inspect_get(total, "tensors"),
           COUNT_IN_WORDS(inspect_get(total, "elements")), BYTES_IN_WORDS(inspect_get(total, "bytes")));
}

static void print_tensors(const json_t *object)
{
    json_t *sections = json_object_get(object, "sections"), *tensors = json_object_get(object, "tensors");
    int width = 7;
    for (void *i = json_object_iter(sections); i; i = json_object_iter_next(sections, i)) {
        int length = (int)strlen(json_object_iter_key(i));
        width = length > width ? length : width;
    }
    printf("\n  %-*s  %8s  %14s  %12s\n", width, "section", "tensors", "elements", "size");
    for (void *i = json_object_iter(sections); i; i = json_object_iter_next(sections, i))
        print_total(json_object_iter_key(i), width, json_object_iter_value(i));
    print_total("total", width, json_object_get(object, "total"));
    printf("\n");
    for (size_t i = 0; i < json_array_size(tensors); i++)
        print_tensor(json_array_get(tensors, i), width);
}

static json_t *make_tensor_object(const char *kind, const char *path)
{
    json_t *object = inspect_object(kind, path);
    json_object_set_new(object, "total", json_pack("{s:i, s:i, s:i}", "tensors", 0, "elements", 0, "bytes", 0));
    json_object_set_new(object, "sections", json_object());
    json_object_set_new(object, "tensors", json_array());
    return object;
}

/* Prints a line for each key; a long text (the configuration) shows its length only. */
static void print_meta(const json_t *meta)
{
    for (void *i = json_object_iter((json_t *)(uintptr_t)meta); i;
         i = json_object_iter_next((json_t *)(uintptr_t)meta, i)) {
        const char *key = json_object_iter_key(i);
        AUTO_FREE char *value =
            json_dumps(json_object_iter_value(i), JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (value && strlen(value) > 160)
            printf("  %s: %zu characters (--json shows them)\n", key, strlen(value));
        else
            printf("  %s: %s\n", key, value ? value : "?");
    }
}

status inspect_gather_checkpoint(json_t **out, const inspect_request *r)
{
    AUTO(checkpoint) *c = NULL;
    TRY(checkpoint_open(&c, r->path));
    if (r->verify)
        TRY(checkpoint_verify(c));
    json_t *object = make_tensor_object("checkpoint", checkpoint_folder(c));
    json_object_set_new(object, "ranks", json_integer(checkpoint_manifest(c)->ranks));
    json_object_set_new(object, "run", json_string(checkpoint_manifest(c)->run));
    json_object_set(object, "meta", checkpoint_meta(c));
    for (int i = 0; i < checkpoint_tensors(c); i++) {
        const manifest_tensor *t = checkpoint_at(c, i);
        add_tensor(object, t->section, t->name, t->type, t->global, t->dims, t->count);
    }
    sort_tensors(object);
    *out = object;
    return STATUS_OK;
}

void inspect_print_checkpoint(const json_t *object)
{
    const char *run = inspect_text(object, "run");
    printf("checkpoint %s\n  saved by %" PRId64 " rank%s%s%s\n", inspect_text(object, "path"),
           inspect_get(object, "ranks"), inspect_get(object, "ranks") == 1 ? "" : "s", *run ? " of run " : "", run);
    print_meta(json_object_get(object, "meta"));
    print_tensors(object);
}

status inspect_gather_safetensors(json_t **out, const inspect_request *r)
{
    safetensors *s;
    TRY(safetensors_open(&s, r->path));
    json_t *object = make_tensor_object("safetensors", r->path);
    if (safetensors_metadata(s))
        json_object_set_new(object, "meta", json_deep_copy(safetensors_metadata(s)));
    for (int i = 0; i < safetensors_count(s); i++) {
        const safetensors_tensor *t = safetensors_at(s, i);
        add_tensor(object, "all", t->name, t->type, t->shape, t->dims, 1);
    }
    safetensors_close(s);
    sort_tensors(object);
    *out = object;
    return STATUS_OK;
}

void inspect_print_safetensors(const json_t *object)
{
    printf("safetensors file %s\n", inspect_text(object, "path"));
    print_meta(json_object_get(object, "meta"));
    print_tensors(object);
}
