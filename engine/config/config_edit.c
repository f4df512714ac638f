#include "engine/config/config.h"

#include <stdlib.h>
#include <string.h>

#include "engine/config/config_table.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- one key ----------------------------------------------------------------------------------------------------- */

typedef struct editor {
    const char *text;
    yaml_document_t document;
} editor;

/* libyaml counts characters: the bytes before the so-manieth. */
static size_t byte_of(const editor *e, size_t index)
{
    const char *at = e->text;
    for (; *at && index > 0; index--)
        for (at++; (*at & 0xC0) == 0x80;)
            at++;
    return (size_t)(at - e->text);
}

static bool is_block(const yaml_node_t *n)
{
    return (n->type == YAML_MAPPING_NODE && n->data.mapping.style != YAML_FLOW_MAPPING_STYLE) ||
           (n->type == YAML_SEQUENCE_NODE && n->data.sequence.style != YAML_FLOW_SEQUENCE_STYLE);
}

/* The last node that stands in a block, or NULL. */
static yaml_node_t *last_of(editor *e, const yaml_node_t *n)
{
    if (n->type == YAML_MAPPING_NODE && n->data.mapping.pairs.top > n->data.mapping.pairs.start)
        return yaml_document_get_node(&e->document, n->data.mapping.pairs.top[-1].value);
    if (n->type == YAML_SEQUENCE_NODE && n->data.sequence.items.top > n->data.sequence.items.start)
        return yaml_document_get_node(&e->document, n->data.sequence.items.top[-1]);
    return NULL;
}

/* Returns where a node's own text ends; a block's end mark is at the next token, past comments that follow it. */
static size_t end_of(editor *e, yaml_node_t *n)
{
    for (yaml_node_t *last = n; is_block(n) && (last = last_of(e, n)) != NULL;)
        n = last;
    return byte_of(e, n->end_mark.index);
}

/* The text with bytes [begin, end) replaced. */
static char *splice_text(const editor *e, size_t begin, size_t end, const char *by)
{
    return must_format("%.*s%s%s", (int)begin, e->text, by, e->text + end);
}

/* "key: value", with the sections between: "section: {key: value}". */
static char *nest_key(const char *path, const char *value)
{
    const char *dot = strchr(path, '.');
    if (!dot)
        return must_format("%s: %s", path, value);
    AUTO_FREE char *rest = nest_key(dot + 1, value);
    return must_format("%.*s: {%s}", (int)(dot - path), path, rest);
}

static yaml_node_pair_t *find_pair(editor *e, const yaml_node_t *map, const char *name, size_t length)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(&e->document, p->key);
        if (key->type == YAML_SCALAR_NODE && key->data.scalar.length == length &&
            !memcmp(key->data.scalar.value, name, length))
            return p;
    }
    return NULL;
}

/* Appends a pair: on a line of its own below a block's last pair or, between braces, after the last pair. */
static char *append_pair(editor *e, yaml_node_t *map, const char *path, const char *value)
{
    AUTO_FREE char *pair = nest_key(path, value), *line = NULL;
    yaml_node_t *last = last_of(e, map);
    size_t at = last ? end_of(e, last) : byte_of(e, map->end_mark.index) - 1; /* the brace of {} */
    if (!is_block(map)) {
        line = must_format("%s%s", last ? ", " : "", pair);
    } else {
        const yaml_node_t *first = yaml_document_get_node(&e->document, map->data.mapping.pairs.start->key);
        at += strcspn(e->text + at, "\n");
        line = must_format("\n%*s%s", (int)first->start_mark.column, "", pair);
    }
    return splice_text(e, at, at, line);
}

/* Replaces a value; a block or an empty value is replaced right after the key's colon. */
static char *replace_value(editor *e, const yaml_node_t *key, yaml_node_t *value, const char *by)
{
    size_t begin = byte_of(e, value->start_mark.index), end = end_of(e, value), colon = byte_of(e, key->end_mark.index);
    if (!is_block(value) && end > begin)
        return splice_text(e, begin, end, by);
    colon += strcspn(e->text + colon, ":") + 1;
    AUTO_FREE char *spaced = must_format(" %s", by);
    return splice_text(e, colon, end > colon ? end : colon, spaced);
}

/* Appends a line to an empty document. */
static char *append_line(const editor *e, const char *path, const char *value)
{
    AUTO_FREE char *pair = nest_key(path, value);
    size_t length = strlen(e->text);
    return must_format("%s%s%s\n", e->text, length && e->text[length - 1] != '\n' ? "\n" : "", pair);
}

/* Descends as far as the text has the path's names, and edits there. NULL: there is no place. */
static char *edit_key(editor *e, const char *path, const char *value)
{
    yaml_node_t *map = yaml_document_get_root_node(&e->document);
    if (!map || config_value_is_null(map))
        return append_line(e, path, value);
    while (map->type == YAML_MAPPING_NODE) {
        size_t length = strcspn(path, ".");
        yaml_node_pair_t *p = find_pair(e, map, path, length);
        if (!p)
            return append_pair(e, map, path, value);
        yaml_node_t *key = yaml_document_get_node(&e->document, p->key),
                    *below = yaml_document_get_node(&e->document, p->value);
        if (!path[length])
            return replace_value(e, key, below, value);
        path += length + 1;
        if (config_value_is_null(below)) {
            AUTO_FREE char *pair = nest_key(path, value), *braces = must_format("{%s}", pair);
            return replace_value(e, key, below, braces);
        }
        map = below;
    }
    return NULL;
}

status config_edit(char **out, const char *name, const char *text, const char *key, const char *value)
{
    yaml_parser_t parser;
    editor e = {.text = text};
    MUST(yaml_parser_initialize(&parser), "out of host memory");
    yaml_parser_set_input_string(&parser, (const unsigned char *)text, strlen(text));
    yaml_parser_set_encoding(&parser, YAML_UTF8_ENCODING);
    bool loaded = yaml_parser_load(&parser, &e.document);
    *out = loaded ? edit_key(&e, key, value) : NULL;
    if (loaded)
        yaml_document_delete(&e.document);
    yaml_parser_delete(&parser);
    return *out ? STATUS_OK : status_fail(STATUS_USAGE, "%s: there is no place for %s: %s in it", name, key, value);
}

/* ---- differences ------------------------------------------------------------------------------------------------- */

/* Is the key one of the overrides', or below a section that one of them names? */
static bool is_said(const char *key, int overrides, char *const *override)
{
    for (int i = 0; i < overrides; i++) {
        size_t length = strcspn(override[i], "=");
        if (!strncmp(key, override[i], length) && (key[length] == 0 || key[length] == '.'))
            return true;
    }
    return false;
}

static bool is_below(const char *key, const char *const *sections)
{
    for (; *sections; sections++)
        if (!strncmp(key, *sections, strlen(*sections)))
            return true;
    return false;
}

/* Returns the first written key that differs, or NULL: keys filled in from the model's own files are not compared. */
static const char *differing_key(const config *a, const config *b)
{
    for (int i = 0; i < config_table_rows(); i++) {
        const char *key = config_table_row(i)->key;
        if (strncmp(key, "model.", 6) != 0 && !config_same(a, b, key))
            return key;
    }
    return NULL;
}

static status check_written(const char *name, const char *text, const config *to)
{
    config read;
    TRY(config_parse_users(&read, name, text, strlen(text)));
    const char *key = differing_key(&read, to);
    config_free(&read);
    return key ? status_fail(STATUS_FAILED, "%s, as it would be written, says another %s: set it by hand", name, key)
               : STATUS_OK;
}

status config_rewrite(char **out, const char *name, const config *from, const config *to, const char *const *sections,
                      int overrides, char *const *override)
{
    AUTO_FREE char *text = NULL;
    size_t bytes;
    *out = NULL;
    TRY(config_read_file(&text, &bytes, name));
    text[bytes] = 0;
    for (int i = 0; i < config_table_rows(); i++) {
        const config_row *row = config_table_row(i);
        if (!is_said(row->key, overrides, override) &&
            (!is_below(row->key, sections) || config_same(from, to, row->key)))
            continue;
        AUTO_FREE char *value = config_value_text(to, row), *before = TAKE(text);
        TRY(config_edit(&text, name, before, row->key, value));
    }
    TRY(check_written(name, text, to));
    *out = TAKE(text);
    return STATUS_OK;
}
