/* The table of configuration keys: everything the program knows about a key is in its row. */
#pragma once

#include <stddef.h>
#include <stdio.h>
#include <yaml.h>

#include "engine/config/config.h"

typedef enum config_type {
    CONFIG_TYPE_INT,       /* int */
    CONFIG_TYPE_LONG,      /* int64_t */
    CONFIG_TYPE_SIZE,      /* int64_t, bytes: 10GiB */
    CONFIG_TYPE_NUMBER,    /* double */
    CONFIG_TYPE_BOOL,      /* bool */
    CONFIG_TYPE_WORD,      /* an enumeration, stored as the position of its word */
    CONFIG_TYPE_STRING,    /* char *, owned; NULL when not given */
    CONFIG_TYPE_PRESET,    /* a string, and the name of a preset */
    CONFIG_TYPE_SOURCES,   /* config_sources */
    CONFIG_TYPE_ADDRESSES, /* config_sources with addresses as paths */
    CONFIG_TYPE_INTEGERS,  /* config_integers */
    CONFIG_TYPE_PAIRS,     /* config_integers, two by two */
    CONFIG_TYPE_FACTORS,   /* double [SHAPE_ROPE_FACTORS], 0 after the last */
    CONFIG_TYPES
} config_type;

/* Meaning of a difference between a checkpoint and the run that resumes from it. */
typedef enum config_resume {
    CONFIG_FIXED,       /* refused: the run would not be the same run */
    CONFIG_STAGE,       /* refused, except where a new stage begins in a folder of its own */
    CONFIG_CHANGES,     /* allowed, and reported */
    CONFIG_SILENT,      /* only a location or a label */
    CONFIG_BY_RANK = 8, /* a flag beside these in the table: ranks of a job may have different values */
} config_resume;

typedef struct config_row {
    const char *key; /* section.key */
    config_type type;
    size_t offset;           /* offset in config */
    const char *fallback;    /* the default as YAML; NULL: derived from other keys, as `otherwise` says */
    double low, high;        /* inclusive; for the numeric types and each of CONFIG_TYPE_INTEGERS and PAIRS */
    const char *const *word; /* words of CONFIG_TYPE_WORD, NULL-terminated */
    config_resume resume;
    bool by_rank;          /* a place on the rank's machine: ranks of a job may differ in it */
    const char *otherwise; /* the default in words where fallback is NULL */
    const char *doc;
} config_row;

int config_table_rows(void);
const config_row *config_table_row(int index);
/* -1 if there is no such key. */
int config_table_find(const char *key);
/* A section and the subject of its keys, in one line; NULL past the last one. */
typedef struct config_section {
    const char *name, *doc;
} config_section;
const config_section *config_table_section(int i);
/* True for "model", "model.rope_scaling" and "": names that hold keys. */
bool config_table_is_section(const char *name);
/* Returns the key or section that was probably meant, or NULL. */
const char *config_table_nearest(const char *key);

/* Values by type. A failure's message names the expected value; the caller adds the key and its line. */

/* Replaces the value; on failure leaves it. */
status config_value_set(config *c, const config_row *row, yaml_document_t *document, yaml_node_t *node);
/* Sets the value from text that is one plain YAML scalar. */
status config_value_set_text(config *c, const config_row *row, const char *text);
/* Prints a value as YAML on one line that reads back to the same value. */
void config_value_print(FILE *out, const config *c, const config_row *row);
/* Prints the value to a fresh string. */
char *config_value_text(const config *c, const config_row *row);
void config_value_free(config *c, const config_row *row);
/* Prints which values a key takes: "an integer from 1 to 8", "one of none, selective, full". */
void config_value_expected(FILE *out, const config_row *row);

/* True for an empty value, ~ or null. */
bool config_value_is_null(const yaml_node_t *node);

/* Quotes a user's text for one line of a message: cut, without control characters. */
enum { CONFIG_VALUE_QUOTE = 64 };
void config_value_quote(char out[CONFIG_VALUE_QUOTE], const char *text);
