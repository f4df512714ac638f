#include "engine/config/config_table.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "engine/config/nearest.h"
#include "engine/config/scalar.h"
#include "models/presets.h"

void config_value_quote(char out[CONFIG_VALUE_QUOTE], const char *original)
{
    int n = 0;
    /* Hide the user and password of "http://USER:PASSWORD@HOST". */
    const char *begin = strstr(original, "://"), *end = strrchr(original, '@');
    AUTO_FREE char *text = begin && end && end > begin
                               ? must_format("%.*s***%s", (int)(begin + 3 - original), original, end)
                               : must_strdup(original);
    for (; text[n] && n < CONFIG_VALUE_QUOTE - 1; n++)
        out[n] = iscntrl((unsigned char)text[n]) ? '?' : text[n];
    out[n] = 0;
    if (text[n]) {
        n -= 3;
        while (n > 0 && ((unsigned char)text[n] & 0xC0) == 0x80) /* do not cut a UTF-8 sequence */
            n--;
        strcpy(out + n, "...");
    }
}

/* Names a node's kind, for "expected ..., not ...". */
static void describe_node(char out[CONFIG_VALUE_QUOTE + 16], const yaml_node_t *node)
{
    char text[CONFIG_VALUE_QUOTE];
    if (node->type == YAML_SEQUENCE_NODE) {
        strcpy(out, "a list");
    } else if (node->type == YAML_MAPPING_NODE) {
        strcpy(out, "a map");
    } else {
        config_value_quote(text, (const char *)node->data.scalar.value);
        bool quoted = node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE;
        snprintf(out, CONFIG_VALUE_QUOTE + 16, quoted ? "the string \"%s\"" : *text ? "%s" : "nothing%s", text);
    }
}

static status refuse_value(const config_row *row, const yaml_node_t *node)
{
    char what[CONFIG_VALUE_QUOTE + 16];
    describe_node(what, node);
    AUTO_FREE char *expected = MUST_PRINT(out, config_value_expected(out, row));
    return status_fail(STATUS_USAGE, "expected %s, not %s", expected, what);
}

/* Returns the text of a scalar; NULL for another node, and for text with a NUL in it. */
static const char *text_in(const yaml_node_t *node)
{
    if (node->type != YAML_SCALAR_NODE)
        return NULL;
    const char *text = (const char *)node->data.scalar.value;
    return strlen(text) == node->data.scalar.length ? text : NULL;
}

/* Returns the text of an unquoted scalar, else NULL: numbers and booleans are never quoted. */
static const char *plain_in(const yaml_node_t *node)
{
    return node->type == YAML_SCALAR_NODE && node->data.scalar.style == YAML_PLAIN_SCALAR_STYLE ? text_in(node) : NULL;
}

bool config_value_is_null(const yaml_node_t *node)
{
    const char *text = plain_in(node);
    return text && (!*text || strcmp(text, "~") == 0 || strcasecmp(text, "null") == 0);
}

/* A key's value in the configuration, and the node that replaces it. */
typedef struct setting {
    void *field;
    const config_row *row;
    yaml_document_t *document;
    yaml_node_t *node;
} setting;

/* --- numbers ------------------------------------------------------------------------------------------------------ */

static bool is_in_range(const config_row *row, double value)
{
    return value >= row->low && value <= row->high;
}

static status set_long(const setting *v)
{
    int64_t value;
    if (!scalar_integer(plain_in(v->node), &value) || !is_in_range(v->row, (double)value))
        return refuse_value(v->row, v->node);
    memcpy(v->field, &value, sizeof value);
    return STATUS_OK;
}

static status set_int(const setting *v)
{
    int64_t value = 0;
    TRY(set_long(&(setting){&value, v->row, v->document, v->node}));
    *(int *)v->field = (int)value; /* the row's range is within int's */
    return STATUS_OK;
}

static status set_size(const setting *v)
{
    int64_t value;
    const char *plain = plain_in(v->node), *text = text_in(v->node);
    bool is_unit = text && isalpha((unsigned char)text[strlen(text) - (*text != 0)]); /* a size in quotes has a unit */
    if (!scalar_size(plain || is_unit ? text : NULL, &value))
        return refuse_value(v->row, v->node);
    memcpy(v->field, &value, sizeof value);
    return STATUS_OK;
}

static status set_number(const setting *v)
{
    double value;
    if (!scalar_number(plain_in(v->node), &value) || !is_in_range(v->row, value))
        return refuse_value(v->row, v->node);
    memcpy(v->field, &value, sizeof value);
    return STATUS_OK;
}

static void print_int(FILE *out, const setting *v)
{
    fprintf(out, "%d", *(const int *)v->field);
}

static void print_long(FILE *out, const setting *v)
{
    fprintf(out, "%" PRId64, *(const int64_t *)v->field);
}

static void print_size(FILE *out, const setting *v)
{
    scalar_print_size(out, *(const int64_t *)v->field);
}

static void print_number(FILE *out, const setting *v)
{
    scalar_print_number(out, *(const double *)v->field);
}

/* --- booleans and words ------------------------------------------------------------------------------------------- */

static status set_bool(const setting *v)
{
    static const char *const spelling[][3] = {{"false", "no", "off"}, {"true", "yes", "on"}};
    const char *text = plain_in(v->node);
    for (int value = 0; text && value < 2; value++)
        for (int i = 0; i < 3; i++)
            if (strcasecmp(text, spelling[value][i]) == 0) {
                *(bool *)v->field = value;
                return STATUS_OK;
            }
    return refuse_value(v->row, v->node);
}

static void print_bool(FILE *out, const setting *v)
{
    fputs(*(const bool *)v->field ? "true" : "false", out);
}

static status refuse_word(const setting *v, const nearest *n)
{
    status s = refuse_value(v->row, v->node);
    if (!nearest_word(n))
        return s;
    AUTO_FREE char *message = must_strdup(status_message());
    return status_fail(s, "%s; did you mean %s?", message, nearest_word(n));
}

static status set_word(const setting *v)
{
    const char *text = text_in(v->node);
    nearest n = {.wanted = text ? text : ""};
    for (int i = 0; v->row->word[i]; i++) {
        if (strcmp(n.wanted, v->row->word[i]) == 0) {
            *(int *)v->field = i;
            return STATUS_OK;
        }
        nearest_offer(&n, v->row->word[i]);
    }
    return refuse_word(v, &n);
}

static void print_word(FILE *out, const setting *v)
{
    fputs(v->row->word[*(const int *)v->field], out);
}

/* --- strings ------------------------------------------------------------------------------------------------------ */

static void free_string(void *field)
{
    free(*(char **)field);
    *(char **)field = NULL;
}

static status set_string(const setting *v)
{
    const char *text = text_in(v->node);
    if (!text)
        return refuse_value(v->row, v->node);
    free_string(v->field);
    if (config_value_is_null(v->node))
        text = v->row->fallback;
    *(char **)v->field = text ? must_strdup(text) : NULL;
    return STATUS_OK;
}

static status set_preset(const setting *v)
{
    const char *text = text_in(v->node);
    nearest n = {.wanted = text ? text : ""};
    for (int i = 0; i < presets_count(); i++)
        nearest_offer(&n, presets_at(i)->name);
    if (!text || (!config_value_is_null(v->node) && !presets_find(text)))
        return refuse_word(v, &n);
    return set_string(v);
}

/* Writes ${ as $${, which reads back as text and not as a variable. */
static void print_text(FILE *out, const char *text)
{
    if (!text || !strstr(text, "${")) {
        scalar_print_text(out, text);
        return;
    }
    AUTO_FREE char *doubled = must_alloc(2 * (unsigned long)strlen(text) + 1);
    char *to = doubled;
    for (const char *at = text; *at; at++) {
        if (!strncmp(at, "${", 2))
            *to++ = '$';
        *to++ = *at;
    }
    *to = 0;
    scalar_print_text(out, doubled);
}

static void print_string(FILE *out, const setting *v)
{
    print_text(out, *(char *const *)v->field);
}

/* --- lists -------------------------------------------------------------------------------------------------------- */

/* Returns the number of a list's items, 0 for any other node. */
static long count_items(const yaml_node_t *node)
{
    return node->type == YAML_SEQUENCE_NODE ? node->data.sequence.items.top - node->data.sequence.items.start : 0;
}

static yaml_node_t *item_at(const setting *v, const yaml_node_t *list, long i)
{
    return yaml_document_get_node(v->document, list->data.sequence.items.start[i]);
}

static bool is_list(const yaml_node_t *node)
{
    return node->type == YAML_SEQUENCE_NODE || config_value_is_null(node);
}

static void free_sources(void *field)
{
    config_sources *list = field;
    for (int i = 0; i < list->count; i++)
        free(list->item[i].path);
    free(list->item);
    *list = (config_sources){0};
}

static status set_path(config_source *source, const setting *v, yaml_node_t *node)
{
    static const config_row row = {.key = "path", .type = CONFIG_TYPE_STRING};
    return set_string(&(setting){&source->path, &row, v->document, node});
}

static status set_source_field(config_source *source, bool given[2], const setting *v, yaml_node_t *key,
                               yaml_node_t *value)
{
    static const config_row row = {.key = "weight", .type = CONFIG_TYPE_NUMBER, .low = 1e-12, .high = 1e12};
    const char *name = text_in(key);
    char quoted[CONFIG_VALUE_QUOTE];
    config_value_quote(quoted, name ? name : "?");
    bool weight = name && strcmp(name, "weight") == 0;
    if (!name || (!weight && strcmp(name, "path") != 0))
        return status_fail(STATUS_USAGE, "unknown key %s of a data set; it has path and weight", quoted);
    if (given[weight])
        return status_fail(STATUS_USAGE, "%s of a data set is given twice", quoted);
    given[weight] = true;
    status s = weight ? set_number(&(setting){&source->weight, &row, v->document, value}) : set_path(source, v, value);
    return s == STATUS_OK ? s : status_context(s, "%s", quoted);
}

/* Sets a prefix, or {path: prefix, weight: number}. Refuses a password in an address: config.yaml would show it. */
static status set_source(config_source *source, const setting *v, yaml_node_t *node)
{
    source->weight = 1;
    if (node->type == YAML_SEQUENCE_NODE)
        return refuse_value(v->row, node);
    if (node->type == YAML_SCALAR_NODE)
        TRY(set_path(source, v, node));
    bool given[2] = {false, false};
    if (node->type == YAML_MAPPING_NODE)
        for (yaml_node_pair_t *p = node->data.mapping.pairs.start; p < node->data.mapping.pairs.top; p++)
            TRY(set_source_field(source, given, v, yaml_document_get_node(v->document, p->key),
                                 yaml_document_get_node(v->document, p->value)));
    if (!source->path || !*source->path)
        return status_fail(STATUS_USAGE, "a data set without a path: give the prefix of its .bin and .idx");
    if (v->row->type == CONFIG_TYPE_ADDRESSES && strchr(source->path, '@'))
        return status_fail(
            STATUS_USAGE, "an address holds a user or a password, which would be in the run's files and in the list of "
                          "processes: put USER:PASSWORD into a file of mode 600 and name it in outer.credentials, or "
                          "into PHALANX_ETCD_CREDENTIALS");
    return STATUS_OK;
}

static status set_sources(const setting *v)
{
    config_sources list = {0};
    long count = is_list(v->node) ? count_items(v->node) : 1;
    if (count)
        list.item = must_calloc((unsigned long)count, sizeof *list.item);
    status s = STATUS_OK;
    while (s == STATUS_OK && list.count < count) {
        yaml_node_t *one = count_items(v->node) ? item_at(v, v->node, list.count) : v->node;
        s = set_source(&list.item[list.count++], v, one);
    }
    free_sources(s == STATUS_OK ? v->field : &list);
    if (s == STATUS_OK)
        *(config_sources *)v->field = list;
    return s;
}

static void print_sources(FILE *out, const setting *v)
{
    const config_sources *list = v->field;
    fputc('[', out);
    for (int i = 0; i < list->count; i++) {
        fputs(i ? ", {path: " : "{path: ", out);
        print_text(out, list->item[i].path);
        fputs(", weight: ", out);
        scalar_print_number(out, list->item[i].weight);
        fputc('}', out);
    }
    fputc(']', out);
}

static void free_integers(void *field)
{
    config_integers *list = field;
    free(list->item);
    *list = (config_integers){0};
}

/* Sets a list of integers, or of pairs: [[step, batch], ...]. */
static status set_integers(const setting *v)
{
    config_integers list = {0};
    bool pairs = v->row->type == CONFIG_TYPE_PAIRS;
    if (!is_list(v->node))
        return refuse_value(v->row, v->node);
    list.item = must_calloc(2 * (unsigned long)count_items(v->node), sizeof *list.item);
    status s = STATUS_OK;
    for (long i = 0; i < count_items(v->node) && s == STATUS_OK; i++) {
        yaml_node_t *one = item_at(v, v->node, i);
        if (pairs && count_items(one) != 2)
            s = refuse_value(v->row, one);
        for (int k = 0; k < 1 + pairs && s == STATUS_OK; k++)
            s = set_int(&(setting){&list.item[list.count++], v->row, v->document, pairs ? item_at(v, one, k) : one});
    }
    free_integers(s == STATUS_OK ? v->field : &list);
    if (s == STATUS_OK)
        *(config_integers *)v->field = list;
    return s;
}

static void print_integers(FILE *out, const setting *v)
{
    const config_integers *list = v->field;
    fputc('[', out);
    for (int i = 0; i < list->count; i++)
        if (v->row->type == CONFIG_TYPE_PAIRS)
            fprintf(out, i % 2 ? "%d]" : i ? ", [%d, " : "[%d, ", list->item[i]);
        else
            fprintf(out, i ? ", %d" : "%d", list->item[i]);
    fputc(']', out);
}

/* Sets an array of fixed size: missing items are 0. */
static status set_factors(const setting *v)
{
    double list[SHAPE_ROPE_FACTORS] = {0};
    if (!is_list(v->node) || count_items(v->node) > SHAPE_ROPE_FACTORS)
        return refuse_value(v->row, v->node);
    for (long i = 0; i < count_items(v->node); i++)
        TRY(set_number(&(setting){&list[i], v->row, v->document, item_at(v, v->node, i)}));
    memcpy(v->field, list, sizeof list);
    return STATUS_OK;
}

static void print_factors(FILE *out, const setting *v)
{
    const double *list = v->field;
    fputc('[', out);
    for (int i = 0; i < SHAPE_ROPE_FACTORS && list[i] > 0; i++) {
        fputs(i ? ", " : "", out);
        scalar_print_number(out, list[i]);
    }
    fputc(']', out);
}

/* --- the types ---------------------------------------------------------------------------------------------------- */

static void expect_integer(FILE *out, const config_row *row)
{
    if (row->high < 2147483647.0)
        fprintf(out, "an integer from %.0f to %.0f", row->low, row->high);
    else
        fprintf(out, "an integer, at least %.0f", row->low);
}

static void expect_number(FILE *out, const config_row *row)
{
    fprintf(out, "a number from %.9g to %.9g", row->low, row->high);
}

static void expect_word(FILE *out, const config_row *row)
{
    for (int i = 0; row->word[i]; i++)
        fprintf(out, "%s%s", i ? ", " : row->word[1] ? "one of " : "", row->word[i]);
}

static void expect_preset(FILE *out, const config_row *row)
{
    (void)row;
    for (int i = 0; i < presets_count(); i++)
        fprintf(out, "%s%s", i ? ", " : "one of ", presets_at(i)->name);
}

static void expect_integers(FILE *out, const config_row *row)
{
    fprintf(out, "a list of integers, each at least %.0f", row->low);
}

static void expect_factors(FILE *out, const config_row *row)
{
    fprintf(out, "a list of at most %d numbers from %.9g to %.9g", SHAPE_ROPE_FACTORS, row->low, row->high);
}

static const struct {
    const char *expected; /* description of a type without range or words; else NULL */
    void (*expect)(FILE *, const config_row *);
    status (*set)(const setting *);
    void (*print)(FILE *, const setting *);
    void (*free)(void *field);
} types[CONFIG_TYPES] = {
    [CONFIG_TYPE_INT] = {NULL, expect_integer, set_int, print_int, NULL},
    [CONFIG_TYPE_LONG] = {NULL, expect_integer, set_long, print_long, NULL},
    [CONFIG_TYPE_SIZE] = {"a size such as 10GiB or 512MiB", NULL, set_size, print_size, NULL},
    [CONFIG_TYPE_NUMBER] = {NULL, expect_number, set_number, print_number, NULL},
    [CONFIG_TYPE_BOOL] = {"true or false", NULL, set_bool, print_bool, NULL},
    [CONFIG_TYPE_WORD] = {NULL, expect_word, set_word, print_word, NULL},
    [CONFIG_TYPE_STRING] = {"a string", NULL, set_string, print_string, free_string},
    [CONFIG_TYPE_PRESET] = {NULL, expect_preset, set_preset, print_string, free_string},
    [CONFIG_TYPE_SOURCES] = {"a prefix of .bin and .idx, or a list of prefixes or {path, weight}", NULL, set_sources,
                             print_sources, free_sources},
    [CONFIG_TYPE_ADDRESSES] = {"http[s]://HOST:PORT, or a list of such", NULL, set_sources, print_sources,
                               free_sources},
    [CONFIG_TYPE_INTEGERS] = {NULL, expect_integers, set_integers, print_integers, free_integers},
    [CONFIG_TYPE_FACTORS] = {NULL, expect_factors, set_factors, print_factors, NULL},
    [CONFIG_TYPE_PAIRS] = {"a list of pairs of integers, as [[0, 64], [1000, 128]]", NULL, set_integers, print_integers,
                           free_integers},
};

status config_value_set(config *c, const config_row *row, yaml_document_t *document, yaml_node_t *node)
{
    return types[row->type].set(&(setting){(char *)c + row->offset, row, document, node});
}

status config_value_set_text(config *c, const config_row *row, const char *text)
{
    yaml_document_t document;
    MUST(yaml_document_initialize(&document, NULL, NULL, NULL, 1, 1), "out of host memory");
    int id = yaml_document_add_scalar(&document, NULL, (const yaml_char_t *)text, -1, YAML_PLAIN_SCALAR_STYLE);
    MUST(id, "out of host memory");
    status s = config_value_set(c, row, &document, yaml_document_get_node(&document, id));
    yaml_document_delete(&document);
    return s;
}

void config_value_print(FILE *out, const config *c, const config_row *row)
{
    types[row->type].print(out, &(setting){.field = (char *)(uintptr_t)c + row->offset, .row = row});
}

char *config_value_text(const config *c, const config_row *row)
{
    return MUST_PRINT(out, config_value_print(out, c, row));
}

void config_value_free(config *c, const config_row *row)
{
    if (types[row->type].free)
        types[row->type].free((char *)c + row->offset);
}

void config_value_expected(FILE *out, const config_row *row)
{
    if (types[row->type].expect)
        types[row->type].expect(out, row);
    else
        fputs(types[row->type].expected, out);
}
