/* The steps of compile(), in order. For compile.c and its tests only. */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_PARTS_H
#define PHALANX_ENGINE_COMPILE_COMPILE_PARTS_H

#include "engine/compile/compile.h"

/* storage.c: who owns which rows, and the tensors with storage of every parameter and input. Gives no addresses. */
void storage_describe(compiled *c);
/* Addresses for all persistent tensors; sets persistent_bytes and class_bytes. */
void storage_place(compiled *c);
/* Bytes of optimizer state, and of gradients and weights where they are shards, that a rank of this stage owns: the one at
 * `gradient_rank` along AXIS_GRADIENT. */
int64_t storage_owned_bytes(const compiled *c, int gradient_rank);

/* unroll.c: a chunk recorded for one micro-batch, and what passes in and out of it. */
typedef struct recorded {
    recorder r;
    tensor *input, *output; /* NULL at the model's ends */
    tensor *output_cotangent, *input_cotangent;
} recorded;

void unroll_record(recorded *out, compiled *c, int chunk, bool training, bool split, recompute how,
                   const uint8_t *drop);
/* Fuse ops (kernels/fuse.h): the last step, behind which nothing is asked to be kept or made again. */
void unroll_fuse(recorded *r);
void unroll_recorded_free(recorded *r);
/* The micro-batches' part of a program: bodies unrolled in the schedule's order, sends and receives between. */
status unroll(compiled_program *out, compiled *c, const recorded *chunks, const schedule *s);
/* All forward: evaluation of one micro-batch after another. */
status unroll_forward(compiled_program *out, compiled *c, const recorded *chunks, int microbatches);
op *unroll_append(compiled_program *out, compiled *c, op_kind kind, phase when, const char *label, tensor *const *in,
                  int inputs, tensor *const *outs, int outputs, const op_attributes *at);

/* update.c: what follows the micro-batches: reductions of gradients (each right behind its last contribution where that is
 * possible), the norm, the optimizer, the gathering of weights. */
void update_begin(compiled_program *out, compiled *c);
void update_append(compiled_program *out, compiled *c);
void update_loss(compiled_program *out, compiled *c); /* the loss over the grid */

/* place.c: explicit waits, scratch, storage shared in place, lifetimes, addresses of transients. */
void place_waits(compiled_program *out, compiled *c);
void place_transients(compiled_program *out, compiled *c, bool bound_only);

#endif
