/* Rings of a table's rows: `make check` runs a third that covers the table, the rest of `make check-all` the other
 * rows.
 *
 * A row is described by its facts, words with spaces between them: "gpt2 tensor=2 zero=3 recompute=full". The third is
 * computed, so that a table has no marks and its ring no second table: first rows that bring the most words which no
 * chosen row has, until each word is there, then those that bring the most new pairs of words. The environment variable
 * TEST_RING says which rows are meant: check (or unset), rest, or all.
 */
#pragma once

#include <stdbool.h>

/* chosen[i]: row i is in the covering share, the first 1 / `share` of the rows or as many more as it takes. */
void cover_choose(bool *chosen, const char *const *facts, int rows, int share);

/* takes[i]: row i runs in this process's ring. */
void cover_take(bool *takes, const char *const *facts, int rows, int share);

/* The same, but `make check` runs those that the commit's hash draws, or the environment variable COVER_SEED: one in
 * `share`. Prints the seed. */
void cover_take_drawn(bool *takes, int rows, int share);

/* Whether this process's ring has rows other than those of `make check`, or has those. */
bool cover_has_rest(void);
bool cover_has_check(void);
