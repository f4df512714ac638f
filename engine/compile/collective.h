/* A communication op as the communication layer sees it: sizes, parts, peers. */
#ifndef PHALANX_ENGINE_COMPILE_COLLECTIVE_H
#define PHALANX_ENGINE_COMPILE_COLLECTIVE_H

#include "kernels/op.h"
#include "parallel/comm.h"

/* Elements of each member's part, into counts[at.group_size]; of gathers and scatters. */
void collective_counts(int64_t *counts, const op *o);
/* The sizes of `o` (not a wait); `counts` as collective_counts() gave them, or NULL for other kinds. */
comm_shape collective_shape(const op *o, const int64_t *counts);
/* Bytes from the start of its tensors to what it communicates. */
int64_t collective_offset(const op *o);
bool collective_has_parts(const op *o);
/* Host working memory of `o`, and the bytes and messages that this rank sends in it. */
void collective_measure(int64_t *scratch, int64_t *bytes, int64_t *messages, const op *o);

#endif
