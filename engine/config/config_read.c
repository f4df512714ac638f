/* Reads YAML files, their includes and command-line overrides into a config; failures name file and line. */
#include "engine/config/config.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "engine/config/config_table.h"

enum { KEY_BYTES = 128, FILE_BYTES = 1 << 20 };
static const char include_key[] = "include";

/* Keys that no longer exist. */
static const struct {
    const char *key, *gone, *instead, *now;
} retired[] = {
    {"run.export", "run.export is gone, and with it MLflow's file store, which MLflow 3 refuses",
     "give run.mlflow the address of an MLflow server",
     "nothing is written there any more; run.mlflow sends metrics to an MLflow server"},
    {"debug.merges", "debug.merges is gone", "leave it out", "merges are not written any more"},
};

/* One source of values: a file, or all overrides together. */
typedef struct reader {
    config *config;
    yaml_document_t *document;
    const char *file; /* NULL: overrides */
    bool stored;      /* phalanx has written it: no includes, no variables */
    const char *key;  /* key of the override being read */
    const struct reader *includer;
    int seen[CONFIG_MAX_KEYS]; /* line of each row in this source; 0: not yet seen */
} reader;

static int line_of(const yaml_node_t *node)
{
    return (int)node->start_mark.line + 1;
}

/* Prefixes a failure's message with "FILE:LINE". That of an override names its key: where it was typed is nobody's
 * count. */
static status at_line(const reader *r, int line, status s)
{
    if (s == STATUS_OK)
        return s;
    return r->file ? status_context(s, "%s:%d", r->file, line) : status_context(s, "command line");
}

/* The same for a text that is not understood, in which no key has been read. */
static status at_text(const reader *r, int line, status s)
{
    return at_line(r, line, r->file ? s : status_context(s, "%s", r->key));
}

static status fail_unknown_key(const reader *r, const char *key, const yaml_node_t *node)
{
    char quoted[CONFIG_VALUE_QUOTE];
    config_value_quote(quoted, key);
    const char *meant = config_table_nearest(key);
    status s = meant ? status_fail(STATUS_USAGE, "unknown key %s; did you mean %s?", quoted, meant)
                     : status_fail(STATUS_USAGE, "unknown key %s; `phalanx train --help` lists all keys", quoted);
    return at_line(r, line_of(node), s);
}

/* ---- ${VARIABLE} in paths ---------------------------------------------------------------------------------------- */

/* Appends the named variable's value, and sets *after past the closing brace. Keeps the braces of a stored text. */
static status append_variable(FILE *out, const reader *r, const char *name, const char **after)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_";
    int length = (int)strspn(name, letters);
    char quoted[CONFIG_VALUE_QUOTE];
    if (r->stored) {
        fputs("${", out);
        *after = name;
        return STATUS_OK;
    }
    config_value_quote(quoted, name);
    if (length == 0 || name[length] != '}')
        return status_fail(STATUS_USAGE,
                           "${%s is no variable of the environment: write ${NAME}, or $${ for these "
                           "characters themselves",
                           quoted);
    AUTO_FREE char *variable = must_format("%.*s", length, name);
    const char *value = getenv(variable);
    status s = value && *value ? STATUS_OK
                               : status_fail(STATUS_USAGE, "${%s} is %s in the environment: export it first", variable,
                                             value ? "empty" : "not set");
    fputs(value ? value : "", out);
    *after = name + length + 1;
    return s;
}

/* Replaces ${NAME} in a scalar's text by the environment's value, and $${ by ${. */
static status expand_scalar(const reader *r, yaml_node_t *node)
{
    const char *text = (const char *)node->data.scalar.value;
    if (strlen(text) != node->data.scalar.length || !strstr(text, "${"))
        return STATUS_OK;
    AUTO_FREE char *expanded = NULL;
    size_t bytes;
    FILE *out = open_memstream(&expanded, &bytes);
    MUST(out, "out of host memory");
    status s = STATUS_OK;
    while (*text && s == STATUS_OK)
        if (!strncmp(text, "$${", 3)) {
            fputs("${", out);
            text += 3;
        } else if (!strncmp(text, "${", 2)) {
            s = append_variable(out, r, text + 2, &text);
        } else {
            fputc(*text++, out);
        }
    MUST(fclose(out) == 0, "out of host memory");
    if (s == STATUS_OK) {
        free(node->data.scalar.value); /* libyaml's allocator is malloc */
        node->data.scalar.value = (yaml_char_t *)expanded;
        node->data.scalar.length = bytes;
        expanded = NULL;
    }
    return s;
}

/* Expands a value that holds paths: the scalar itself, a list's items, and the values of maps in that list. */
static status expand_value(const reader *r, yaml_node_t *node, int depth)
{
    yaml_document_t *d = r->document;
    if (node->type == YAML_SCALAR_NODE)
        return expand_scalar(r, node);
    if (node->type == YAML_SEQUENCE_NODE && depth < 2)
        for (yaml_node_item_t *i = node->data.sequence.items.start; i < node->data.sequence.items.top; i++)
            TRY(expand_value(r, yaml_document_get_node(d, *i), depth + 1));
    if (node->type == YAML_MAPPING_NODE && depth < 2)
        for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++)
            TRY(expand_value(r, yaml_document_get_node(d, p->value), depth + 1));
    return STATUS_OK;
}

/* ---- keys and sections ------------------------------------------------------------------------------------------- */

static status set_key(reader *r, int row, const yaml_node_t *key, yaml_node_t *value)
{
    const char *name = config_table_row(row)->key;
    config_type type = config_table_row(row)->type;
    if (r->seen[row])
        return at_line(
            r, line_of(key),
            r->file ? status_fail(STATUS_USAGE, "%s is given twice (first in line %d); keep one", name, r->seen[row])
                    : status_fail(STATUS_USAGE, "%s is given twice; keep one", name));
    r->seen[row] = line_of(key);
    status s = STATUS_OK;
    if (type == CONFIG_TYPE_STRING ||
        type == CONFIG_TYPE_SOURCES) /* addresses would put a password into the run's files */
        s = expand_value(r, value, 0);
    if (s == STATUS_OK)
        s = config_value_set(r->config, config_table_row(row), r->document, value);
    if (s != STATUS_OK)
        return at_line(r, line_of(key), status_context(s, "%s", name));
    r->config->given[row] = true;
    return STATUS_OK;
}

/* True for a text that a run wrote: the configuration in a checkpoint, or a config.yaml beside metrics.jsonl. */
static bool is_of_run(const reader *r)
{
    const char *slash = r->file ? strrchr(r->file, '/') : NULL, *name = slash ? slash + 1 : r->file;
    if (r->stored || !name || strcmp(name, "config.yaml") != 0)
        return r->stored;
    AUTO_FREE char *metrics = must_format("%.*smetrics.jsonl", (int)(name - r->file), r->file);
    return access(metrics, F_OK) == 0;
}

static int find_retired(const char *path)
{
    int i = (int)(sizeof retired / sizeof *retired) - 1;
    while (i >= 0 && strcmp(path, retired[i].key) != 0)
        i--;
    return i;
}

/* Skips a retired key that is null or [], as older runs wrote it; warns in a run's own text; refuses it elsewhere. */
static status skip_retired(const reader *r, int i, const yaml_node_t *key, const yaml_node_t *value)
{
    bool none = value->type == YAML_SEQUENCE_NODE && value->data.sequence.items.top == value->data.sequence.items.start;
    if (none || config_value_is_null(value))
        return STATUS_OK;
    if (!is_of_run(r))
        return at_line(r, line_of(key), status_fail(STATUS_USAGE, "%s: %s", retired[i].gone, retired[i].instead));
    log_warn("%s: %s: %s", r->file, retired[i].gone, retired[i].now);
    return STATUS_OK;
}

static status read_node(reader *r, const char *path, const yaml_node_t *key, yaml_node_t *value);

/* Writes "section.key", truncated to KEY_BYTES, which exceeds every key of the table. Messages show only words of a
 * file that may be keys: it may be another file than meant, and hold a secret. */
static void join_path(char out[KEY_BYTES], const char *path, const yaml_node_t *key)
{
    static const char letters[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-.";
    enum { LONGEST = 64 };
    const char *name = key->type == YAML_SCALAR_NODE ? (const char *)key->data.scalar.value : "";
    size_t length = strspn(name, letters);
    if (length == 0 || length > LONGEST || key->data.scalar.length != length)
        name = "(not a word)";
    snprintf(out, KEY_BYTES, "%s%s%s", path, *path ? "." : "", name);
}

static status read_map(reader *r, const char *path, yaml_node_t *map)
{
    for (yaml_node_pair_t *p = map->data.mapping.pairs.start; p < map->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(r->document, p->key);
        char name[KEY_BYTES];
        join_path(name, path, key);
        TRY(read_node(r, name, key, yaml_document_get_node(r->document, p->value)));
    }
    return STATUS_OK;
}

/* Terminates even on a document that contains itself: a path must be a key or a section, so that it cannot grow. */
static status read_node(reader *r, const char *path, const yaml_node_t *key, yaml_node_t *value)
{
    int row = config_table_find(path);
    if (row >= 0)
        return set_key(r, row, key, value);
    if (!r->stored && r->file && !strcmp(path, include_key))
        return STATUS_OK; /* read_included has read it */
    if (find_retired(path) >= 0)
        return skip_retired(r, find_retired(path), key, value);
    if (!config_table_is_section(path))
        return fail_unknown_key(r, path, key);
    if (value->type == YAML_MAPPING_NODE)
        return read_map(r, path, value);
    if (config_value_is_null(value))
        return STATUS_OK; /* a section with all keys commented out */
    const char *what = *path ? path : "a configuration";
    return at_line(r, line_of(key),
                   status_fail(STATUS_USAGE, "%s is a section: expected keys with values under it", what));
}

/* ---- files that a file includes ---------------------------------------------------------------------------------- */

static status read_file(config *c, const char *path, const reader *includer);

/* Resolves an include against the folder of the file that names it; the caller frees the path. */
static char *path_beside(const char *file, const char *name)
{
    const char *slash = strrchr(file, '/');
    return *name == '/' || !slash ? must_strdup(name) : must_format("%.*s/%s", (int)(slash - file), file, name);
}

static status include_one(const reader *r, yaml_node_t *name)
{
    if (name->type != YAML_SCALAR_NODE || config_value_is_null(name))
        return status_fail(STATUS_USAGE, "expected a file's name, or a list of such");
    TRY(expand_scalar(r, name));
    AUTO_FREE char *path = path_beside(r->file, (const char *)name->data.scalar.value);
    status s = STATUS_OK;
    for (const reader *a = r; a && s == STATUS_OK; a = a->includer)
        if (!strcmp(a->file, path))
            s = status_fail(STATUS_USAGE, "%s includes itself", path);
    if (s == STATUS_OK)
        s = read_file(r->config, path, r);
    return s;
}

/* Reads the included files before the file's own keys, which override them; later files override earlier ones. */
static status read_included(reader *r, yaml_node_t *root)
{
    yaml_document_t *d = r->document;
    if (r->stored || !r->file || root->type != YAML_MAPPING_NODE)
        return STATUS_OK;
    for (yaml_node_pair_t *p = root->data.mapping.pairs.start; p < root->data.mapping.pairs.top; p++) {
        yaml_node_t *key = yaml_document_get_node(d, p->key), *value = yaml_document_get_node(d, p->value);
        if (key->type != YAML_SCALAR_NODE || strcmp((const char *)key->data.scalar.value, include_key) != 0)
            continue;
        bool list = value->type == YAML_SEQUENCE_NODE;
        long count = list ? value->data.sequence.items.top - value->data.sequence.items.start : 1;
        for (long i = 0; i < count; i++) {
            yaml_node_t *one = list ? yaml_document_get_node(d, value->data.sequence.items.start[i]) : value;
            status s = include_one(r, one);
            if (s != STATUS_OK)
                return at_line(r, line_of(key), status_context(s, include_key));
        }
    }
    return STATUS_OK;
}

/* Returns the line of a syntax error: libyaml reports invalid bytes by offset, all else by line. */
static int line_of_error(const yaml_parser_t *parser, const char *text, size_t bytes)
{
    if (parser->error != YAML_READER_ERROR)
        return (int)parser->problem_mark.line + 1;
    int line = 1;
    for (size_t i = 0; i < bytes && i < parser->problem_offset; i++)
        line += text[i] == '\n';
    return line;
}

static status fail_syntax(const reader *r, const yaml_parser_t *parser, const char *text, size_t bytes)
{
    status s = status_fail(STATUS_USAGE, "not valid YAML: %s%s%s", parser->context ? parser->context : "",
                           parser->context ? ", " : "", parser->problem ? parser->problem : "");
    if (parser->error == YAML_MEMORY_ERROR || !parser->problem) /* libyaml does not always set MEMORY_ERROR */
        return status_fail(STATUS_FAILED, "out of memory reading YAML");
    return at_text(r, line_of_error(parser, text, bytes), s);
}

/* Loads the parser's only document and reads its keys below `path`. */
static status read_document(reader *r, yaml_parser_t *parser, const char *path, const char *text, size_t bytes)
{
    yaml_document_t document, rest;
    if (!yaml_parser_load(parser, &document))
        return fail_syntax(r, parser, text, bytes);
    r->document = &document;
    yaml_node_t *root = yaml_document_get_root_node(&document);
    status s = STATUS_OK;
    if (root && (s = read_included(r, root)) == STATUS_OK)
        s = read_node(r, path, root, root);
    else if (!root && !r->file)
        s = at_line(r, 0, status_fail(STATUS_USAGE, "%s: no value after the =", path));
    if (s == STATUS_OK && root) {
        if (!yaml_parser_load(parser, &rest)) {
            s = fail_syntax(r, parser, text, bytes);
        } else {
            yaml_node_t *second = yaml_document_get_root_node(&rest);
            if (second)
                s = at_text(r, line_of(second), status_fail(STATUS_USAGE, "a second document begins here; keep one"));
            yaml_document_delete(&rest);
        }
    }
    yaml_document_delete(&document);
    r->document = NULL;
    return s;
}

/* Limits nesting, since libyaml's time grows with the square of the depth; no key needs as much. */
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
        if (!yaml_parser_parse(&parser, &event)) /* yaml_parser_load reports it later */
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
               : at_text(r, line,
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

status config_read_text(config *c, const char *name, const char *text, size_t bytes, bool stored)
{
    reader r = {.config = c, .file = name, .stored = stored};
    return read_yaml(&r, "", text, bytes);
}

static status read_file(config *c, const char *path, const reader *includer)
{
    reader r = {.config = c, .file = path, .includer = includer};
    AUTO_FREE char *text = NULL;
    size_t bytes;
    TRY(config_read_file(&text, &bytes, path));
    return read_yaml(&r, "", text, bytes);
}

/* `next`: the override after it, or NULL. */
static status read_override(reader *r, const char *text, const char *next)
{
    const char *equals = strchr(text, '=');
    char quoted[CONFIG_VALUE_QUOTE], path[KEY_BYTES];
    config_value_quote(quoted, text);
    if (next && !strchr(next, '=') && config_table_find(text) >= 0)
        return at_line(r, 0, status_fail(STATUS_USAGE, "a key and its value are one word: %s=%s", quoted, next));
    if (!equals || equals == text || text[0] == '-')
        return at_line(r, 0, status_fail(STATUS_USAGE, "expected section.key=value, not %s", quoted));
    size_t length = (size_t)(equals - text);
    if (length >= KEY_BYTES)
        length = KEY_BYTES - 1;
    memcpy(path, text, length);
    path[length] = 0;
    if (config_table_find(path) < 0 && !config_table_is_section(path) && find_retired(path) < 0) {
        static const yaml_node_t nowhere;
        return fail_unknown_key(r, path, &nowhere);
    }
    r->key = path;
    /* An empty value, "key=", would be an empty YAML stream: read it as null. */
    const char *value = equals[1 + strspn(equals + 1, " ")] ? equals + 1 : "null";
    status s = read_yaml(r, path, value, strlen(value));
    r->key = NULL;
    return s;
}

status config_read_overrides(config *c, int count, char *const *override)
{
    reader r = {.config = c};
    for (int i = 0; i < count; i++)
        TRY(read_override(&r, override[i], i + 1 < count ? override[i + 1] : NULL));
    return STATUS_OK;
}

status config_read_file(char **text, size_t *bytes, const char *path)
{
    AUTO(FILE) *in = fopen(path, "rb");
    if (!in)
        return status_fail(STATUS_USAGE, "%s: cannot open the configuration: %s", path, strerror(errno));
    AUTO_FREE char *buffer = must_alloc(FILE_BYTES + 1);
    size_t length = fread(buffer, 1, FILE_BYTES + 1, in);
    if (ferror(in))
        return status_fail(STATUS_USAGE, "%s: cannot read the configuration: %s", path, strerror(errno));
    if (length > FILE_BYTES)
        return status_fail(STATUS_USAGE, "%s: larger than 1 MiB: this is no configuration", path);
    *text = TAKE(buffer);
    *bytes = length;
    return STATUS_OK;
}
