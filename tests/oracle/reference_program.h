/* A list of ops in float64: the twin of a program or of recorded bodies, run by the reference backend.
 *
 * Every floating-point tensor of the ops becomes an fp64 one, in storage of this struct's own; a view stays a view of
 * its base's twin, and storage taken over in place stays taken over. Integers, bins and scalars keep their type. The
 * original ops, and their arena if they have one, are never written except by reference_program_write(). What passes
 * between this storage and the outside is named by the original tensor.
 *
 * A group of programs of the ranks of one axis is played in one process: each runs to its next communication, which
 * is then carried out over all of them, in rank order.
 */
#pragma once

#include "tests/oracle/reference.h"

typedef struct reference_program reference_program;

/* All storage is zero. Views of views are followed to where the bytes are. */
reference_program *reference_program_open(op *const *ops, int count);
void reference_program_close(reference_program *p); /* NULL is nothing to close */

bool reference_program_has(const reference_program *p, const tensor *t);
/* All elements of `t` in row-major order, to and from fp64; for floating-point tensors. */
void reference_program_set(reference_program *p, const tensor *t, const double *values);
void reference_program_get(double *values, const reference_program *p, const tensor *t);
/* The bytes of an integer tensor (tokens, scalars, bins), contiguous. */
void *reference_program_bytes(reference_program *p, const tensor *t);
/* `t` from the original's arena, and back (rounded to its type): t->address counts. */
void reference_program_read(reference_program *p, const tensor *t, const void *arena);
void reference_program_write(const reference_program *p, const tensor *t, void *arena);

/* Ops [first, first + count). An op of a body with attributes.accumulate OP_WRITES_FIRST writes in the first
 * micro-batch and adds in later ones. */
void reference_program_run(reference_program *p, int first, int count, bool later_microbatch);
/* The same ops of all ranks of a group; `skip` is the index among the group's communications of one that is left out
 * (each rank keeps its own part, as far as shapes allow), for tests that must notice; -1: none. Returns how many there
 * were. */
int reference_program_run_group(reference_program *const *ranks, int size, const int *first, const int *count,
                                int skip);
