/* The table of keys as a JSON schema, by which editors complete and check a configuration while it is written. */
#include "engine/config/config.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config_table.h"
#include "memory/scope.h"
#include "models/presets.h"

/* YAML 1.1 libraries, which editors use, take 3e-4 for a string: it has no point. */
#define NUMBER_PATTERN "^[-+]?[0-9.]+([eE][-+]?[0-9]+)?$"
#define SIZE_PATTERN   "^[0-9.]+ *([KkMmGgTt][Ii]?[Bb]|[Bb])?$"

static json_t *any_of(json_t *one, json_t *other)
{
    return json_pack("{s:[o, o]}", "anyOf", one, other);
}

static json_t *nothing(void)
{
    return json_pack("{s:s}", "type", "null");
}

static json_t *list_of(json_t *items)
{
    return json_pack("{s:s, s:o}", "type", "array", "items", items);
}

/* Whole numbers that a double holds exactly are written as such. */
static json_t *integer_of(const config_row *row)
{
    return json_pack("{s:s, s:I, s:I}", "type", "integer", "minimum", (json_int_t)row->low, "maximum",
                     (json_int_t)row->high);
}

static json_t *number_of(const config_row *row)
{
    return any_of(json_pack("{s:s, s:f, s:f}", "type", "number", "minimum", row->low, "maximum", row->high),
                  json_pack("{s:s, s:s}", "type", "string", "pattern", NUMBER_PATTERN));
}

static json_t *size_of(const config_row *row)
{
    (void)row;
    return any_of(json_pack("{s:s, s:i}", "type", "integer", "minimum", 0),
                  json_pack("{s:s, s:s}", "type", "string", "pattern", SIZE_PATTERN));
}

static json_t *bool_of(const config_row *row)
{
    (void)row;
    return json_pack("{s:s}", "type", "boolean");
}

static json_t *word_of(const config_row *row)
{
    json_t *words = json_array();
    for (int i = 0; row->word[i]; i++)
        json_array_append_new(words, json_string(row->word[i]));
    return json_pack("{s:o}", "enum", words);
}

static json_t *string_of(const config_row *row)
{
    (void)row;
    return json_pack("{s:[s, s, s, s]}", "type", "string", "number", "boolean", "null");
}

static json_t *preset_of(const config_row *row)
{
    (void)row;
    json_t *names = json_array();
    for (int i = 0; i < presets_count(); i++)
        json_array_append_new(names, json_string(presets_at(i)->name));
    json_array_append_new(names, json_null());
    return json_pack("{s:o}", "enum", names);
}

static json_t *sources_of(const config_row *row)
{
    static const config_row weight = {.low = 1e-12, .high = 1e12};
    json_t *map = json_pack("{s:s, s:{s:o, s:o}, s:[s], s:b}", "type", "object", "properties", "path", string_of(row),
                            "weight", number_of(&weight), "required", "path", "additionalProperties", 0);
    return any_of(string_of(row), list_of(any_of(string_of(row), map)));
}

static json_t *integers_of(const config_row *row)
{
    return any_of(nothing(), list_of(integer_of(row)));
}

static json_t *factors_of(const config_row *row)
{
    return any_of(nothing(), list_of(number_of(row)));
}

static json_t *pairs_of(const config_row *row)
{
    json_t *pair =
        json_pack("{s:s, s:o, s:i, s:i}", "type", "array", "items", integer_of(row), "minItems", 2, "maxItems", 2);
    return any_of(nothing(), list_of(pair));
}

static json_t *(*const makers[CONFIG_TYPES])(const config_row *) = {
    [CONFIG_TYPE_INT] = integer_of,       [CONFIG_TYPE_LONG] = integer_of,      [CONFIG_TYPE_SIZE] = size_of,
    [CONFIG_TYPE_NUMBER] = number_of,     [CONFIG_TYPE_BOOL] = bool_of,         [CONFIG_TYPE_WORD] = word_of,
    [CONFIG_TYPE_STRING] = string_of,     [CONFIG_TYPE_PRESET] = preset_of,     [CONFIG_TYPE_SOURCES] = sources_of,
    [CONFIG_TYPE_ADDRESSES] = sources_of, [CONFIG_TYPE_INTEGERS] = integers_of, [CONFIG_TYPE_FACTORS] = factors_of,
    [CONFIG_TYPE_PAIRS] = pairs_of,
};

/* Returns a key's property: type, meaning, and default as YAML reads it. */
static json_t *property_of(const config_row *row)
{
    json_t *out = makers[row->type](row);
    json_object_set_new(out, "description",
                        json_sprintf("%s [%s]", row->doc, row->fallback ? row->fallback : row->otherwise));
    if (!row->fallback)
        return out;
    json_t *value = json_loads(row->fallback, JSON_DECODE_ANY, NULL);
    json_object_set_new(out, "default", value ? value : json_string(row->fallback));
    return out;
}

static json_t *new_section(void)
{
    return json_pack("{s:[s, s], s:{}, s:b}", "type", "object", "null", "properties", "additionalProperties", 0);
}

/* Puts a key's property below its sections, and creates missing sections. */
static void add_key(json_t *root, const config_row *row)
{
    char name[64];
    const char *key = row->key;
    json_t *section = root;
    for (const char *dot; (dot = strchr(key, '.')); key = dot + 1) {
        json_t *properties = json_object_get(section, "properties");
        snprintf(name, sizeof name, "%.*s", (int)(dot - key), key);
        if (!json_object_get(properties, name))
            json_object_set_new(properties, name, new_section());
        section = json_object_get(properties, name);
    }
    json_object_set_new(json_object_get(section, "properties"), key, property_of(row));
}

void config_schema(FILE *out)
{
    json_auto_t *root = new_section();
    json_object_set_new(root, "$schema", json_string("https://json-schema.org/draft/2020-12/schema"));
    json_object_set_new(root, "title", json_string("configuration of phalanx"));
    json_t *properties = json_object_get(root, "properties");
    json_t *include = any_of(json_pack("{s:s}", "type", "string"), list_of(json_pack("{s:s}", "type", "string")));
    json_object_set_new(include, "description",
                        json_string("files, seen from this one's folder, whose keys this one's override"));
    json_object_set_new(properties, "include", include);
    for (int i = 0; i < config_table_rows(); i++)
        add_key(root, config_table_row(i));
    AUTO_FREE char *text = json_dumps(root, JSON_INDENT(1));
    fprintf(out, "%s\n", text);
}
