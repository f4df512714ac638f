/* Where the bytes of parameters lie on a rank: what it owns of each, and the persistent tensors. */
#ifndef PHALANX_ENGINE_COMPILE_MODEL_STORAGE_H
#define PHALANX_ENGINE_COMPILE_MODEL_STORAGE_H

#include "engine/compile/model/compiled.h"

/* Who owns which rows, and the tensors with storage of every parameter, input and result. Gives no addresses. */
void storage_describe(compiled *c);
/* Addresses for all persistent tensors; sets persistent_bytes and class_bytes. */
void storage_place(compiled *c);
/* Bytes of optimizer state, and of gradients and weights where they are shards, that a rank of this stage owns: the one at
 * `gradient_rank` along AXIS_GRADIENT. */
int64_t storage_owned_bytes(const compiled *c, int gradient_rank);
/* Of what compressed gradients lack; 0 where none are. */
int64_t storage_feedback_bytes(const compiled *c);

#endif
