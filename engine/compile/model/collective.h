/* A communication op as the communication layer sees it: sizes, parts, peers. */
#pragma once

#include "kernels/record/program.h"
#include "parallel/comm/comm.h"

/* Elements of each member's part, into counts[at.group_size]; of gathers and scatters. */
void collective_counts(int64_t *counts, const op *o);
/* The sizes of `o` (not a wait); `counts` as collective_counts() gave them, or NULL for other kinds. */
comm_shape collective_shape(const op *o, const int64_t *counts);
/* Offset in bytes from the start of its tensors to the communicated data. */
int64_t collective_offset(const op *o);
bool collective_has_parts(const op *o);
/* Ops that are launched as one: of the bundle that ends at op `last` of a program, into out[COMM_SEGMENTS], and how
 * many; an op alone is a bundle of one; 0: the bundle ends later. */
int collective_bundle(const op **out, const program *p, int last);
/* The sizes of a bundle; counts[at.group_size] becomes the sums of its parts. */
comm_shape collective_together(int64_t *counts, const op *const *ops, int count);
/* Host working memory of op `index` of a program, and the bytes and messages that this rank sends in it. A bundle's are
 * its last op's. */
void collective_measure(int64_t *scratch, int64_t *bytes, int64_t *messages, const program *p, int index);
/* The most bytes that a member of a gather takes from others. A ring passes each of them over each link once, even data
 * that only one member has (NCCL's broadcast). */
int64_t collective_gathered(const program *p, int index);
