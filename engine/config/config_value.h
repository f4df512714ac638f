/* Values of configuration keys by type: from YAML, back to YAML, compared and freed. What differs between the types is
 * one row of a table here. Messages of failures say what was expected; the caller adds where. */
#pragma once

#include <stdio.h>
#include <yaml.h>

#include "engine/config/config_table.h"

/* Replaces the value; on failure leaves it. */
status config_value_set(config *c, const config_row *row, yaml_document_t *document, yaml_node_t *node);
/* The same from text that is one plain YAML scalar. */
status config_value_set_text(config *c, const config_row *row, const char *text);
/* As YAML on one line that reads back to the same value. */
void config_value_print(FILE *out, const config *c, const config_row *row);
/* The same as a fresh string. */
char *config_value_text(const config *c, const config_row *row);
void config_value_free(config *c, const config_row *row);
/* "an integer from 1 to 8", "one of none, selective, full": what a key takes. */
void config_value_expected(FILE *out, const config_row *row);

/* Nothing, ~ or null. */
bool config_value_is_null(const yaml_node_t *node);

/* What a user wrote, fit for one line of a message: cut, without control characters. */
enum { CONFIG_VALUE_QUOTE = 64 };
void config_value_quote(char out[CONFIG_VALUE_QUOTE], const char *text);
