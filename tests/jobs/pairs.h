/* Choices that may meet: axes, each with its values; which values exclude each other; and rows, one value of each axis,
 * that cover all pairs of values that do not, and all triples of the axes that divide a model.
 *
 * Rows are computed, the same in each run: greedily, from the first pair that no row has. A rule's words are a part of
 * the refusal that a run of each of its configurations must get.
 */
#pragma once

#include <stdbool.h>

enum { PAIRS_AXES = 22, PAIRS_VALUES = 16, PAIRS_ROWS = 400, PAIRS_RANKS = 8 };

typedef struct pairs_value {
    const char *name, *keys; /* keys: overrides of a configuration, or "" */
} pairs_value;

typedef struct pairs_axis {
    const char *name;
    bool lays_out;     /* one rank trains the same model without it: its values are those of a layout */
    const char *kinds; /* of an axis that divides: a letter a value, values of one letter being one in triples */
    pairs_value values[PAIRS_VALUES];
} pairs_axis;

typedef struct pairs_row {
    int value[PAIRS_AXES];
} pairs_row;

/* `sets`: values, as bits, of each axis; 0: any. `words`: NULL where it trains, but one rank has no such run to compare
 * with (tests/oracle/test_balance.c plays groups of ranks in float64). */
typedef struct pairs_rule {
    int sets[PAIRS_AXES];
    const char *words;
} pairs_rule;

extern const pairs_axis pairs_axes[PAIRS_AXES];

int pairs_values(int axis);
int pairs_axis_of(const char *name);
int pairs_ranks(const pairs_row *row);
/* "parallel.tensor=2 ..."; with `one`, of the run on one rank. Both are the caller's. */
char *pairs_keys(const pairs_row *row, bool one);
/* Names of the values that are set, and, unless `all`, not the first of their axis. */
char *pairs_title(const pairs_row *row, bool all);

int pairs_rules(void);
const pairs_rule *pairs_rule_at(int index);
/* The first rule that the row breaks but for `except`, or -1. */
int pairs_broken(const pairs_row *row, int except);
/* No axis is set: all are -1. */
pairs_row pairs_nothing(void);
/* Fills the axes of -1, so that no rule but `except` (-1: none) is broken; false if that cannot be. */
bool pairs_complete(pairs_row *row, int except);

/* The rows; returns how many. */
int pairs_cover(pairs_row rows[PAIRS_ROWS]);
