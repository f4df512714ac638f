/* phalanx inspect: shows how phalanx reads a Hugging Face folder, by the readers that training starts from. */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "engine/data/tokenizer_files.h"
#include "engine/state/weights/weights.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/presets.h"
#include "tools/families.h"
#include "tools/inspect/inspect_parts.h"

/* ---- config.json ---- */

static json_t *make_row(const char *key, const json_t *value, const huggingface_meaning *m)
{
    return json_pack("{s:s, s:O, s:s, s:s}", "key", key, "value", value, "becomes", m->becomes, "meaning", m->meaning);
}

/* Returns the list that a key belongs to; the architecture may know a key that this reading did not need. */
static const char *list_of(const json_t *asked, const json_t *ever, const char *key, huggingface_role role)
{
    if (json_object_get(asked, key))
        return role == HUGGINGFACE_DEMANDED ? "demanded" : "taken";
    if (json_object_get(ever, key))
        return "overruled";
    return role == HUGGINGFACE_SILENT ? "silent" : "unread";
}

/* Sorts the keys of a config.json into taken, demanded, overruled by other keys, silent (without effect) and unread
 * ones. A null counts as an absent key. */
static void copy_keys(json_t *object, const json_t *root, const json_t *asked, shape_architecture a)
{
    static const char *const lists[] = {"taken", "demanded", "overruled", "unread", "silent"};
    json_auto_t *ever = families_keys(a);
    for (size_t i = 0; i < sizeof lists / sizeof *lists; i++)
        json_object_set_new(object, lists[i], json_array());
    for (void *i = json_object_iter((json_t *)(uintptr_t)root); i;
         i = json_object_iter_next((json_t *)(uintptr_t)root, i)) {
        const char *key = json_object_iter_key(i);
        const json_t *value = json_object_iter_value(i);
        huggingface_meaning m = huggingface_means(a, key);
        const char *list = list_of(asked, ever, key, m.role);
        if (strcmp(list, "unread") == 0)
            m.becomes = m.meaning = "";
        if (!json_is_null(value))
            json_array_append_new(json_object_get(object, list), make_row(key, value, &m));
    }
}

/* Tells whether the reader makes the shape with this config.json text from the root. */
static bool makes(const json_t *root, const char *shape_text)
{
    model_shape s;
    AUTO_FREE char *text = json_dumps(root, 0), *made = NULL;
    return huggingface_parse(&s, NULL, text, strlen(text), "config.json") == STATUS_OK &&
           huggingface_text(&made, &s, DTYPE_FP32, NULL) == STATUS_OK && strcmp(made, shape_text) == 0;
}

/* A value within a group such as rope_scaling. */
typedef struct group_value {
    json_t *group, *value;
    const char *key;
    char *path;
    bool outside; /* the root has its key, too */
} group_value;

typedef struct reading {
    json_t *object, *root;  /* gathered facts; config.json */
    const json_t *asked;    /* keys of the root that the reader asked for */
    const char *shape_text; /* config.json of the shape that the reader made */
    group_value *item;      /* [count] */
    int count;
} reading;

static void free_items(reading *r)
{
    for (int i = 0; i < r->count; i++) {
        json_decref(r->item[i].value);
        free(r->item[i].path);
    }
    free(r->item);
}

static void list_values(reading *r, json_t *group, const char *name)
{
    for (void *i = json_object_iter(group); i; i = json_object_iter_next(group, i)) {
        json_t *value = json_object_iter_value(i);
        const char *key = json_object_iter_key(i);
        /* transformers 4 wrote the type twice */
        bool twice = strcmp(key, "type") == 0 && json_equal(value, json_object_get(group, "rope_type"));
        bool outside = json_object_get(r->root, key) && json_object_get(r->asked, key);
        AUTO_FREE char *path = must_format("%s.%s", name, key);
        if (json_is_object(value)) {
            list_values(r, value, path);
        } else if (!json_is_null(value) && !twice) {
            r->item = must_realloc(r->item, ((unsigned long)r->count + 1) * sizeof *r->item);
            r->item[r->count++] = (group_value){group, json_incref(value), key, TAKE(path), outside};
        }
    }
}

/* Finds unread ones among the values [from, end): replacing them by objects changes no result, since their reader would
 * refuse that. Halves a range that is read, so that thousands of unread values cost few readings. The root is unchanged
 * afterwards. */
static void find_unread(const reading *r, int from, int end)
{
    const huggingface_meaning none = {HUGGINGFACE_UNKNOWN, "", "", {NULL}};
    if (from == end)
        return;
    for (int i = from; i < end; i++)
        json_object_set_new(r->item[i].group, r->item[i].key, json_object());
    bool unread = makes(r->root, r->shape_text);
    for (int i = from; i < end; i++) {
        const group_value *v = &r->item[i];
        json_object_set(v->group, v->key, v->value);
        if (unread)
            json_array_append_new(json_object_get(r->object, v->outside ? "overruled" : "unread"),
                                  make_row(v->path, v->value, &none));
    }
    if (unread || end - from == 1)
        return;
    find_unread(r, from, from + (end - from) / 2);
    find_unread(r, from + (end - from) / 2, end);
}

static void copy_groups(json_t *object, json_t *root, const json_t *asked, const model_shape *s)
{
    AUTO_FREE char *text = NULL;
    if (huggingface_text(&text, s, DTYPE_FP32, NULL) != STATUS_OK)
        return;
    RELEASED_BY(free_items) reading r = {.object = object, .root = root, .asked = asked, .shape_text = text};
    for (void *i = json_object_iter(root); i; i = json_object_iter_next(root, i))
        if (json_is_object(json_object_iter_value(i)) && json_object_get(asked, json_object_iter_key(i)))
            list_values(&r, json_object_iter_value(i), json_object_iter_key(i));
    find_unread(&r, 0, r.count);
}

/* Returns the preset with the same Hugging Face config.json, or NULL. */
static const char *find_preset(const model_shape *s)
{
    AUTO_FREE char *text = NULL;
    const char *found = NULL;
    if (huggingface_text(&text, s, DTYPE_FP32, NULL) != STATUS_OK)
        return NULL;
    for (int i = 0; i < presets_count() && !found; i++) {
        AUTO_FREE char *other = NULL;
        model_shape p = presets_at(i)->shape;
        shape_fill(&p);
        if (p.architecture == s->architecture && huggingface_text(&other, &p, DTYPE_FP32, NULL) == STATUS_OK)
            found = strcmp(text, other) == 0 ? presets_at(i)->name : NULL;
    }
    return found;
}

static status add_model_key(void *keys, const char *key, const char *value)
{
    static const char *const sources[] = {"model.preset", "model.from", "model.config", "model.upcycle"};
    bool of_model = strncmp(key, "model.", 6) == 0;
    for (size_t i = 0; i < sizeof sources / sizeof *sources; i++)
        of_model = of_model && strcmp(key, sources[i]) != 0;
    if (of_model)
        json_object_set_new(keys, key, json_string(value));
    return STATUS_OK;
}

/* Returns the model keys of a run's configuration. */
static json_t *model_keys(const model_shape *s)
{
    static const char text[] = "model: {config: config.json}\n";
    RELEASED_BY(config_free) config c = {0};
    json_t *keys = json_object();
    MUST(config_parse(&c, "inspect", text, sizeof text - 1, 0, NULL) == STATUS_OK, "%s", status_message());
    config_take_shape(&c, s);
    MUST(config_each(&c, add_model_key, keys) == STATUS_OK, "%s", status_message());
    return keys;
}

static status gather_config(json_t *object, model_shape *shape, const char *folder)
{
    AUTO_FREE char *path = must_format("%s/config.json", folder), *text = NULL;
    size_t bytes = 0;
    json_auto_t *asked = json_object();
    status s = config_read_file(&text, &bytes, path);
    if (s == STATUS_OK)
        s = huggingface_parse_asking(shape, NULL, asked, text, bytes, path);
    if (s == STATUS_OK) {
        json_auto_t *root = json_loadb(text, bytes, 0, NULL);
        const char *equal = find_preset(shape);
        json_object_set_new(object, "architecture", json_string(shape_traits_of(shape->architecture)->name));
        json_object_set_new(object, "class", json_string(shape_traits_of(shape->architecture)->causal));
        json_object_set_new(object, "parameters", json_integer(parts_parameters(shape)));
        json_object_set_new(object, "active_parameters", json_integer(parts_active_parameters(shape)));
        json_object_set_new(object, "tied", json_boolean(shape->tied_embeddings));
        json_object_set_new(object, "preset", equal ? json_string(equal) : json_null());
        json_object_set_new(object, "model", model_keys(shape));
        copy_keys(object, root, asked, shape->architecture);
        copy_groups(object, root, asked, shape);
    }
    return s;
}

/* ---- weights and tokenizer ---- */

static status gather_weights(json_t *object, const char *folder)
{
    AUTO(weights) *w = NULL;
    TRY(weights_open_names(&w, folder));
    json_t *types = json_object();
    int64_t bytes = 0;
    for (int i = 0; i < weights_count(w); i++) {
        const names_tensor *t = weights_at(w, i);
        const char *type = dtype_name(weights_type(w, i));
        int64_t elements = t->shape[0] * (t->dims == 2 ? t->shape[1] : 1);
        bytes += elements * dtype_bytes(weights_type(w, i));
        json_object_set_new(types, type, json_integer(inspect_get(types, type) + elements));
    }
    json_object_set_new(object, "weights",
                        json_pack("{s:i, s:i, s:I, s:o}", "files", weights_files(w), "tensors", weights_count(w),
                                  "bytes", (json_int_t)bytes, "elements", types));
    return STATUS_OK;
}

/* Gathers the tokenizer; a fault is only reported, since a model trains without one. */
static void gather_tokenizer(json_t *object, const char *folder, const model_shape *shape)
{
    AUTO(tokenizer) *t = NULL;
    if (!tokenizer_files_is_in(folder)) {
        json_object_set_new(object, "tokenizer", json_null());
        return;
    }
    if (tokenizer_files_open(&t, folder) != STATUS_OK) {
        json_object_set_new(object, "tokenizer", json_pack("{s:s}", "refused", status_message()));
        return;
    }
    json_object_set_new(object, "tokenizer",
                        json_pack("{s:s, s:s, s:i, s:b, s:i, s:i, s:i}", "type", tokenizer_kind(t), "file",
                                  tokenizer_suffix(t), "ids", tokenizer_vocab_size(t), "fits",
                                  tokenizer_data_size(t) <= shape->vocab_size, "bos", tokenizer_ids_of(t)->bos, "eos",
                                  tokenizer_ids_of(t)->eos, "end_of_document", tokenizer_ids_of(t)->end_of_document));
}

status inspect_gather_huggingface(json_t **out, const inspect_request *r)
{
    model_shape shape = {0};
    json_t *object = inspect_object("huggingface", r->path);
    status s = gather_config(object, &shape, r->path);
    if (s == STATUS_OK) {
        gather_tokenizer(object, r->path, &shape);
        s = gather_weights(object, r->path);
    }
    if (s != STATUS_OK)
        json_object_set_new(object, "refused", json_string(status_message()));
    *out = object;
    return s;
}

/* ---- for a person ---- */

static void print_keys(const json_t *object, const char *list, const char *title)
{
    const json_t *rows = json_object_get(object, list);
    if (json_array_size(rows))
        printf("  %s:\n", title);
    for (size_t i = 0; i < json_array_size(rows); i++) {
        const json_t *row = json_array_get(rows, i);
        const char *becomes = inspect_text(row, "becomes"), *meaning = inspect_text(row, "meaning");
        printf("    %s ", inspect_text(row, "key"));
        const json_t *value = json_object_get(row, "value");
        AUTO_FREE char *text = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(9));
        if (text && strlen(text) > 48)
            printf("%.45s...", text);
        else
            printf("%s", text ? text : "?");
        if (*becomes || *meaning)
            printf(" -> %s%s%s%s", becomes, *becomes && *meaning ? " (" : "", meaning, *becomes && *meaning ? ")" : "");
        printf("\n");
    }
}

static void print_weights(const json_t *object)
{
    const json_t *w = json_object_get(object, "weights"), *types = json_object_get(w, "elements");
    if (!w)
        return;
    printf("  weights: %" PRId64 " tensors in %" PRId64 " file%s, %s, ", inspect_get(w, "tensors"),
           inspect_get(w, "files"), inspect_get(w, "files") == 1 ? "" : "s", BYTES_IN_WORDS(inspect_get(w, "bytes")));
    const char *between = "";
    for (void *i = json_object_iter((json_t *)(uintptr_t)types); i;
         i = json_object_iter_next((json_t *)(uintptr_t)types, i), between = " and ")
        printf("%s%s", between, json_object_iter_key(i));
    printf("; %s\n", json_is_true(json_object_get(object, "tied")) ? "the head is the embedding's table"
                                                                   : "the head has weights of its own");
}

static void print_tokenizer(const json_t *object)
{
    const json_t *t = json_object_get(object, "tokenizer");
    if (!t)
        return;
    if (json_is_null(t))
        printf("  tokenizer: none; put tokenizer.json or tokenizer.model there to tokenize text and to generate\n");
    else if (inspect_text(t, "refused"))
        printf("  tokenizer: refused: %s\n", inspect_text(t, "refused"));
    else
        printf("  tokenizer: %s of %" PRId64 " ids (tokenizer.%s); bos %" PRId64 ", eos %" PRId64
               ", end of a document %" PRId64 "%s\n",
               inspect_text(t, "type"), inspect_get(t, "ids"), inspect_text(t, "file"), inspect_get(t, "bos"),
               inspect_get(t, "eos"), inspect_get(t, "end_of_document"),
               json_is_true(json_object_get(t, "fits")) ? "" : "; it makes ids that the model has no row for");
}

/* Tells whether a key of the run is without effect: scaling that is off, or absent sizes, norms or routers. */
static bool is_off(const char *key, const char *value, bool scales, bool routes)
{
    static const char *const nothing[] = {"0", "[]", "null"};
    bool off = false, no = strcmp(value, "false") == 0, of_scaling = strncmp(key, "model.rope_scaling.", 19) == 0;
    bool of_router = strncmp(key, "model.router_", 13) == 0 || strncmp(key, "model.expert_", 13) == 0;
    for (size_t i = 0; i < sizeof nothing / sizeof *nothing; i++)
        off = off || strcmp(value, nothing[i]) == 0;
    return off || (of_scaling && (!scales || no)) || (of_router && !routes) ||
           (no && (strcmp(key, "model.qk_norm") == 0 || strcmp(key, "model.attention_bias") == 0));
}

static void print_model(const json_t *object)
{
    json_t *keys = json_object_get(object, "model");
    if (inspect_text(object, "preset")) {
        printf("  a run has: model.preset=%s\n", inspect_text(object, "preset"));
        return;
    }
    bool scales = strcmp(inspect_text(keys, "model.rope_scaling.factor"), "0") != 0;
    bool routes = strcmp(inspect_text(keys, "model.experts"), "0") != 0;
    printf("  a run has:\n");
    for (void *i = json_object_iter(keys); i; i = json_object_iter_next(keys, i)) {
        const char *key = json_object_iter_key(i), *value = json_string_value(json_object_iter_value(i));
        if (!is_off(key, value, scales, routes))
            printf("    %s=%s\n", key, value);
    }
}

void inspect_print_huggingface(const json_t *object)
{
    char active[64];
    const char *path = inspect_text(object, "path"), *architecture = inspect_text(object, "architecture");
    printf("Hugging Face folder %s\n", path);
    if (architecture) {
        const json_t *keys = json_object_get(object, "model");
        printf("  model: %s (%s), %s layers of width %s, %s parameters (%" PRId64 ")%s\n", architecture,
               inspect_text(object, "class"), inspect_text(keys, "model.layers"),
               inspect_text(keys, "model.hidden_size"), COUNT_IN_WORDS(inspect_get(object, "parameters")),
               inspect_get(object, "parameters"), inspect_active(active, object));
    }
    print_weights(object);
    print_tokenizer(object);
    print_keys(object, "taken", "config.json, taken");
    print_keys(object, "demanded", "config.json, as it must be");
    print_keys(object, "overruled", "config.json, not asked for, since other keys decide");
    print_keys(object, "unread", "config.json, unknown here (compare logits if one of these changes what is computed)");
    if (architecture)
        print_model(object);
    if (inspect_text(object, "refused"))
        printf("  refused: %s\n  phalanx help families lists what config.json may say\n",
               inspect_text(object, "refused"));
    else
        printf("  to start from it: phalanx train CONFIG.yaml model.from=%s\n", path);
}
