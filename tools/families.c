#include "tools/families.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/presets.h"

static const char *const traits[TRAIT_COUNT] = {
#define TRAIT(name, meaning) [TRAIT_##name] = meaning,
#include "models/architectures.def"
};

static const char *const keys[KEY_COUNT] = {
#define KEY(name, meaning) [KEY_##name] = meaning,
#include "models/architectures.def"
};

/* ---- the reader's keys ---- */

/* Returns the config.json of a small model, as phalanx writes it, with those of these sizes that the architecture has;
 * the caller owns it. */
static json_t *specimen(shape_architecture a)
{
    model_shape s = {.architecture = a,
                     .layers = 8,
                     .heads = 4,
                     .kv_heads = 4,
                     .head_size = 32,
                     .hidden_size = 128,
                     .ffn_size = 256,
                     .vocab_size = 512,
                     .max_sequence = 128,
                     .experts = 4,
                     .kv_lora_rank = 24,
                     .rope_head_size = 8};
    shape_fill(&s);
    AUTO_FREE char *text = NULL;
    MUST(huggingface_text(&text, &s, DTYPE_FP32, NULL) == STATUS_OK, "%s", status_message());
    return json_loads(text, 0, NULL);
}

static status parse(json_t *asked, const json_t *root)
{
    model_shape s;
    AUTO_FREE char *text = json_dumps(root, 0);
    return huggingface_parse_asking(&s, NULL, asked, text, strlen(text), "config.json");
}

/* Tells whether the key can be left out; `asked` collects the keys that the reader asks for in its stead. */
static bool is_optional(json_t *asked, const json_t *root, const char *key)
{
    json_auto_t *without = json_copy((json_t *)(uintptr_t)root);
    json_object_del(without, key);
    return parse(asked, without) == STATUS_OK;
}

json_t *families_keys(shape_architecture architecture)
{
    json_t *root = specimen(architecture), *asked = json_object();
    MUST(parse(asked, root) == STATUS_OK, "%s", status_message());
    for (void *i = json_object_iter(root); i; i = json_object_iter_next(root, i))
        (void)is_optional(asked, root, json_object_iter_key(i));
    json_decref(root);
    return asked;
}

/* ---- the page ---- */

static bool is_taken(const json_t *root, const char *kind)
{
    json_auto_t *scaled = json_deep_copy(root);
    json_object_set_new(scaled, "rope_scaling", json_pack("{s:s}", "rope_type", kind));
    bool refused = parse(NULL, scaled) != STATUS_OK && strstr(status_message(), "rope_scaling.rope_type is ");
    return !refused;
}

/* Prints the sentence up to "; else", since other rows say the rest. */
static void print_meaning(FILE *out, const char *before, const char *meaning)
{
    const char *end = strstr(meaning, "; else ");
    fprintf(out, "- %s%.*s\n", before, end ? (int)(end - meaning) : (int)strlen(meaning), meaning);
}

/* Prints a row of the table. */
static void describe_key(FILE *out, shape_architecture a, const json_t *root, const char *key)
{
    huggingface_meaning m = huggingface_means(a, key);
    MUST(m.role != HUGGINGFACE_UNKNOWN, "models/keys.def has no row for %s", key);
    fprintf(out, "| `%s` | ", key);
    /* Turns "model.a, model.b" into "`model.a`, `model.b`". */
    for (const char *at = m.becomes; *at;) {
        size_t length = strcspn(at, ",");
        fprintf(out, "%s`%.*s`", at == m.becomes ? "" : ", ", (int)length, at);
        at += length;
        at += strspn(at, ", ");
    }
    const char *needed = is_optional(NULL, root, key) ? "" : "required";
    fprintf(out, " | %s%s%s", needed, *needed && *m.meaning ? "; " : "", m.meaning);
    if (m.role == HUGGINGFACE_DEMANDED)
        fprintf(out, "anything but %s%s%s is refused", m.only[0] ? m.only[0] : "null", m.only[1] ? " or " : "",
                m.only[1] ? m.only[1] : "");
    fputs(" |\n", out);
}

/* Returns an object with the rows of an architecture by key; the caller owns it. */
static json_t *describe_keys(shape_architecture a)
{
    json_auto_t *root = specimen(a), *asked = families_keys(a);
    json_t *rows = json_object();
    for (void *i = json_object_iter(asked); i; i = json_object_iter_next(asked, i)) {
        AUTO_FREE char *row = MUST_PRINT(out, describe_key(out, a, root, json_object_iter_key(i)));
        json_object_set_new(rows, json_object_iter_key(i), json_string(row));
    }
    return rows;
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Prints the rows but those in `but`, in alphabetical order, which is independent of the reader's order. */
static void print_rows(FILE *out, json_t *rows, const json_t *but)
{
    size_t count = 0;
    const char **names = must_alloc(json_object_size(rows) * sizeof *names);
    for (void *i = json_object_iter(rows); i; i = json_object_iter_next(rows, i))
        if (!json_object_get(but, json_object_iter_key(i)))
            names[count++] = json_object_iter_key(i);
    qsort(names, count, sizeof *names, compare_names);
    fputs("\n| key of config.json | becomes | |\n| --- | --- | --- |\n", out);
    for (size_t i = 0; i < count; i++)
        fputs(json_string_value(json_object_get(rows, names[i])), out);
    free(names);
}

static void print_architecture(FILE *out, shape_architecture a)
{
    const shape_traits *row = shape_traits_of(a);
    fprintf(out, "\n## %s\n\n%s, or %s.", row->name, row->causal, row->bare);
    int count = 0;
    for (int i = 0; i < presets_count(); i++)
        if (presets_at(i)->shape.architecture == a)
            fprintf(out, "%s%s", count++ ? ", " : " Presets: ", presets_at(i)->name);
    if (count)
        fputs(".", out);
    fputs("\n\n", out);
    for (int i = 0; i < TRAIT_COUNT; i++)
        if (row->traits & UINT64_C(1) << i)
            print_meaning(out, "", traits[i]);
    for (int i = 0; i < KEY_COUNT; i++)
        if (row->keys & UINT64_C(1) << i)
            print_meaning(out, "config.json: ", keys[i]);
    if (row->traits & UINT64_C(1) << TRAIT_ROTARY) {
        json_auto_t *root = specimen(a);
        fputs("\nScaling of rotary frequencies (`rope_type`): default", out);
        for (int k = 0; shape_rope_words[k]; k++)
            if (is_taken(root, shape_rope_words[k]))
                fprintf(out, ", %s", shape_rope_words[k]);
        fputs("; any other is refused.\n", out);
    }
}

static const char head[] =
    "# Families\n\n"
    "`build/phalanx help families >models/FAMILIES.md` makes this page from the tables of `models/`: change those, "
    "and\n"
    "run it again.\n\n"
    "A folder of one of these architectures, as transformers saves it, is what `model.from` starts from and `phalanx\n"
    "convert` reads and writes; `model.config` takes the sizes of a config.json alone, `model.preset` those of a "
    "model\n"
    "that people know. `phalanx inspect FOLDER` says what becomes of a folder: which keys were taken, and as what, "
    "which\n"
    "no reader knows, and what is refused. Absent keys mean what they mean to transformers.\n\n"
    "## Every architecture\n";

static const char tail[] = "\n## Keys that are passed over\n\n"
                           "These say nothing about what a forward pass computes. `phalanx inspect` names a key that "
                           "is neither here nor in a\n"
                           "table above.\n\n";

void families_print(FILE *out)
{
    json_t *rows[SHAPE_ARCHITECTURES];
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++)
        rows[a] = describe_keys((shape_architecture)a);
    json_t *common = json_copy(rows[0]); /* rows that are the same for every architecture */
    for (void *i = json_object_iter(rows[0]); i; i = json_object_iter_next(rows[0], i))
        for (int a = 1; a < SHAPE_ARCHITECTURES; a++)
            if (!json_equal(json_object_get(rows[a], json_object_iter_key(i)), json_object_iter_value(i)))
                json_object_del(common, json_object_iter_key(i));
    fputs(head, out);
    print_rows(out, common, NULL);
    for (int a = 0; a < SHAPE_ARCHITECTURES; a++) {
        print_architecture(out, (shape_architecture)a);
        print_rows(out, rows[a], common);
        json_decref(rows[a]);
    }
    json_decref(common);
    fputs(tail, out);
    for (int i = 0; huggingface_silent(i); i++)
        fprintf(out, "%s`%s`", i % 4 ? ", " : i ? ",\n" : "", huggingface_silent(i));
    fputs("\n", out);
}
