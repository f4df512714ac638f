/* Faults of a rank's program, generated from the program itself: kinds of mistake, each at every point where it can be
 * made. A point is a phase, an op and its site without the layer's number, or a weight; a fault is made at all ops of
 * its point, on all ranks. tests/jobs/rank_mutants.c makes them ("@scaled:update_loss/reduce_all_reduce"), the parity
 * test lists them and must notice each. */
#pragma once

#include <stdbool.h>

#include "engine/compile/compile.h"

typedef struct spoiled_row {
    const char *fault, *kind; /* kind: the family of mistakes that it counts in */
    char point[160];
    int layout; /* the caller's number of the layout that has it */
    char facts[224];
} spoiled_row;

typedef struct spoiled_rows {
    spoiled_row *row;
    int count, capacity;
} spoiled_rows;

/* Adds the points of a rank's training program that no row has; the caller frees rows->row. */
void spoiled_list(spoiled_rows *rows, const compiled *c, int layout);

/* Chooses the fault to come, "FAULT:POINT"; false if `word` names none. */
bool spoiled_choose(const char *word);
/* Makes the chosen fault in a list of ops without waits. */
void spoiled_program(compiled_program *out);
/* Draws initial weights of the chosen point by their place on this rank, between two calls (`local` true, false). */
void spoiled_initial(const compiled *c, bool local);
