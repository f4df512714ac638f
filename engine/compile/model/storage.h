/* Storage of parameters on a rank: the rows of each that it owns, and the persistent tensors. */
#pragma once

#include "engine/compile/model/compiled.h"
#include "kernels/record/storage.h"

/* Describes who owns which rows, and the tensors of every parameter, input and result. Gives no addresses. */
void storage_describe(compiled *c);
/* Assigns addresses to all persistent tensors; sets persistent_bytes and class_bytes. */
void storage_place(compiled *c);
/* Bytes of optimizer state, and of gradients and weights where they are shards, that the rank `of` of this stage
 * owns. */
int64_t storage_owned_bytes(const compiled *c, const grid *of);
/* Bytes of error feedback of compressed gradients; 0 without compression. */
int64_t storage_feedback_bytes(const compiled *c);

/* True if each replica of this layout keeps only rows of its own of a class, by storage_shares() (other code does not
 * read the ZeRO level): it updates them alone, or may reduce gradients or gather weights in each micro-batch. */
bool storage_divides(const compile_options *o, tensor_class class);
/* The requested ZeRO level, for texts. */
int storage_level(const compile_options *o);

/* Size of a run's checkpoint, independent of its layout: every element is written once. */

/* Bytes of weights, masters and the optimizer's states, without the error feedback of compressed gradients
 * (parallel.compress) and the files' headers, which are some KiB. */
int64_t storage_checkpoint_bytes(const compile_options *o);
