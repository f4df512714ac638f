#include "engine/config/config_read.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "engine/config/config_value.h"

enum { KEY_BYTES = 128, FILE_BYTES = 1 << 20 };

/* One source of values: a file, or all overrides together. */
typedef struct reader {
    config *config;
    yaml_document_t *document;
    const char *file; /* NULL: overrides */
    int argument;
    int seen[CONFIG_MAX_KEYS]; /* where each row was said in this source: line or argument; 0: not yet */
} reader;

static int place(const reader *r, const yaml_node_t *node)
{
    return r->file ? (int)node->start_mark.line + 1 : r->argument;
}

/* Put the place before the message of the failure at hand. */
static status at(const reader *r, int position, status s)
{
    if (s == STATUS_OK)
        return s;
    return r->file ? status_context(s, "%s:%d", r->file, position) : status_context(s, "argument %d", position);
}

static status unknown(const reader *r, const char *key, const yaml_node_t *node)
{
    char quoted[CONFIG_VALUE_QUOTE];
    config_value_quote(quoted, key);
    const char *meant = config_table_nearest(key);
    status s = meant ? status_fail(STATUS_USAGE, "unknown key %s; did you mean %s?", quoted, meant)
                     : status_fail(STATUS_USAGE, "unknown key %s; `phalanx train --help` lists all keys", quoted);
    return at(r, place(r, node), s);
}

static status set(reader *r, int row, const yaml_node_t *key, yaml_node_t *value)
{
    const char *name = config_table_row(row)->key;
    if (r->seen[row])
        return at(r, place(r, key),
                  status_fail(STATUS_USAGE, "%s is given twice (first in %s %d); keep one", name,
                              r->file ? "line" : "argument", r->seen[row]));
    r->seen[row] = place(r, key);
    status s = config_value_set(r->config, config_table_row(row), r->document, value);
    if (s != STATUS_OK)
        return at(r, place(r, key), status_context(s, "%s", name));
    r->config->given[row] = true;
    return STATUS_OK;
}

static status walk(reader *r, const char *path, const yaml_node_t *key, yaml_node_t *value);

/* "section" + "key" -> "section.key"; cut, which no key of the table is. */
static void join(char out[KEY_BYTES], const char *path, const yaml_node_t *key)
{
    const char *name = key->type == YAML_SCALAR_NODE ? (const char *)key->data.scalar.value : "";
    if (!*name || strlen(name) != key->data.scalar.length)
        name = "(not a word)";
    snprintf(out, KEY_BYTES, "%s%s%s", path, *path ? "." : "", name);
}

static status walk_map(reader *r, const char *path, yaml_node_t *map)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(r->document, p->key);
        char name[KEY_BYTES];
        join(name, path, key);
        TRY(walk(r, name, key, yaml_document_get_node(r->document, p->value)));
    }
    return STATUS_OK;
}

/* Ends, even on a document that contains itself: a path is a key or the beginning of one, so it cannot grow. */
static status walk(reader *r, const char *path, const yaml_node_t *key, yaml_node_t *value)
{
    int row = config_table_find(path);
    if (row >= 0)
        return set(r, row, key, value);
    if (!config_table_is_section(path))
        return unknown(r, path, key);
    if (value->type == YAML_MAPPING_NODE)
        return walk_map(r, path, value);
    if (config_value_is_null(value))
        return STATUS_OK; /* a section whose keys are all commented out */
    const char *what = *path ? path : "a configuration";
    return at(r, place(r, key), status_fail(STATUS_USAGE, "%s is a section: expected keys with values under it", what));
}

/* libyaml gives wrong bytes by offset, everything else by line. */
static int line_of_error(const yaml_parser_t *parser, const char *text, size_t bytes)
{
    if (parser->error != YAML_READER_ERROR)
        return (int)parser->problem_mark.line + 1;
    int line = 1;
    for (size_t i = 0; i < bytes && i < parser->problem_offset; i++)
        line += text[i] == '\n';
    return line;
}

static status syntax(const reader *r, const yaml_parser_t *parser, const char *text, size_t bytes)
{
    status s = status_fail(STATUS_USAGE, "not valid YAML: %s%s%s", parser->context ? parser->context : "",
                           parser->context ? ", " : "", parser->problem ? parser->problem : "");
    if (parser->error == YAML_MEMORY_ERROR || !parser->problem) /* it does not always say so */
        return status_fail(STATUS_FAILED, "out of memory reading YAML");
    return at(r, r->file ? line_of_error(parser, text, bytes) : r->argument, s);
}

/* Load the next document of the parser and walk over it from `path`. */
static status read_document(reader *r, yaml_parser_t *parser, const char *path, const char *text, size_t bytes)
{
    yaml_document_t document, rest;
    if (!yaml_parser_load(parser, &document))
        return syntax(r, parser, text, bytes);
    r->document = &document;
    yaml_node_t *root = yaml_document_get_root_node(&document);
    status s = STATUS_OK;
    if (root)
        s = walk(r, path, root, root);
    else if (!r->file)
        s = at(r, r->argument, status_fail(STATUS_USAGE, "%s: no value after the =", path));
    if (s == STATUS_OK && root) {
        if (!yaml_parser_load(parser, &rest)) {
            s = syntax(r, parser, text, bytes);
        } else {
            yaml_node_t *second = yaml_document_get_root_node(&rest);
            if (second)
                s = at(r, place(r, second), status_fail(STATUS_USAGE, "a second document begins here; keep one"));
            yaml_document_delete(&rest);
        }
    }
    yaml_document_delete(&document);
    r->document = NULL;
    return s;
}

/* Sections in sections, lists of lists: no key needs as many. libyaml's time grows with the square of the depth. */
static status check_depth(reader *r, const char *text, size_t bytes)
{
    enum { DEEPEST = 32 };
    yaml_parser_t parser;
    yaml_event_t event;
    MUST(yaml_parser_initialize(&parser), "out of host memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    int depth = 0, line = 1;
    for (bool ended = false; !ended && depth <= DEEPEST;) {
        if (!yaml_parser_parse(&parser, &event)) /* said where it is loaded */
            break;
        depth += event.type == YAML_MAPPING_START_EVENT || event.type == YAML_SEQUENCE_START_EVENT;
        depth -= event.type == YAML_MAPPING_END_EVENT || event.type == YAML_SEQUENCE_END_EVENT;
        ended = event.type == YAML_STREAM_END_EVENT;
        line = (int)event.start_mark.line + 1;
        yaml_event_delete(&event);
    }
    yaml_parser_delete(&parser);
    return depth <= DEEPEST
               ? STATUS_OK
               : at(r, r->file ? line : r->argument,
                    status_fail(STATUS_USAGE, "nested more than %d deep: this is no configuration", DEEPEST));
}

static status read_yaml(reader *r, const char *path, const char *text, size_t bytes)
{
    yaml_parser_t parser;
    TRY(check_depth(r, text, bytes));
    MUST(yaml_parser_initialize(&parser), "out of host memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, bytes);
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    status s = read_document(r, &parser, path, text, bytes);
    yaml_parser_delete(&parser);
    return s;
}

status config_read_text(config *c, const char *name, const char *text, size_t bytes)
{
    reader r = {.config = c, .file = name};
    return read_yaml(&r, "", text, bytes);
}

static status read_override(reader *r, const char *text)
{
    const char *equals = strchr(text, '=');
    char quoted[CONFIG_VALUE_QUOTE], path[KEY_BYTES];
    config_value_quote(quoted, text);
    if (!equals || equals == text || text[0] == '-')
        return at(r, r->argument, status_fail(STATUS_USAGE, "expected section.key=value, not %s", quoted));
    size_t length = (size_t)(equals - text);
    if (length >= KEY_BYTES)
        length = KEY_BYTES - 1;
    memcpy(path, text, length);
    path[length] = 0;
    if (config_table_find(path) < 0 && !config_table_is_section(path)) {
        static const yaml_node_t nowhere;
        return unknown(r, path, &nowhere);
    }
    /* "key=" is an empty value, which YAML calls no document at all. */
    const char *value = equals[1 + strspn(equals + 1, " ")] ? equals + 1 : "null";
    return read_yaml(r, path, value, strlen(value));
}

status config_read_overrides(config *c, int count, char *const *override)
{
    reader r = {.config = c};
    for (int i = 0; i < count; i++) {
        r.argument = i + 1;
        TRY(read_override(&r, override[i]));
    }
    return STATUS_OK;
}

status config_read_file(char **text, size_t *bytes, const char *path)
{
    FILE *in = fopen(path, "rb");
    if (!in)
        return status_fail(STATUS_USAGE, "%s: cannot open the configuration: %s", path, strerror(errno));
    char *buffer = must_alloc(FILE_BYTES + 1);
    size_t length = fread(buffer, 1, FILE_BYTES + 1, in);
    int error = ferror(in) ? errno : 0;
    fclose(in);
    if (error || length > FILE_BYTES) {
        free(buffer);
        return error ? status_fail(STATUS_USAGE, "%s: cannot read the configuration: %s", path, strerror(error))
                     : status_fail(STATUS_USAGE, "%s: larger than 1 MiB: this is no configuration", path);
    }
    *text = buffer;
    *bytes = length;
    return STATUS_OK;
}
