/* The steps that compile_model() and compile_program_*() take, in order. For them and their tests only. */
#ifndef PHALANX_ENGINE_COMPILE_COMPILE_PARTS_H
#define PHALANX_ENGINE_COMPILE_COMPILE_PARTS_H

#include "engine/compile/compiled.h"

/* storage.c: who owns which rows, and the tensors with storage of every parameter, input and result. Gives no addresses. */
void storage_describe(compiled *c);
/* Addresses for all persistent tensors; sets persistent_bytes and class_bytes. */
void storage_place(compiled *c);
/* Bytes of optimizer state, and of gradients and weights where they are shards, that a rank of this stage owns: the one at
 * `gradient_rank` along AXIS_GRADIENT. */
int64_t storage_owned_bytes(const compiled *c, int gradient_rank);
/* Of what compressed gradients lack; 0 where none are. */
int64_t storage_feedback_bytes(const compiled *c);

/* unroll.c: a chunk recorded for one micro-batch, with its input and output; or where the vocabulary is divided the stage's part
 * of the head, whose output is statistics and whose "cotangent" is those of all, or of the embedding. */
typedef struct recorded {
    recorder r;
    tensor *input, *output; /* NULL at the model's ends */
    tensor *output_cotangent, *input_cotangent;
} recorded;

typedef struct unroll_what {
    int chunk; /* or chunk_count + SCHEDULE_HEAD, SCHEDULE_EMBEDDING */
    bool training, split;
    recompute recompute;
    const uint8_t *drop;  /* of the chunk's forward ops, for RECOMPUTE_CHOSEN */
    bool fuse;            /* ops (kernels/fuse.h): the last thing done to a body */
    tensor *const *whole; /* weights gathered before the bodies, by number (update_begin), or NULL */
} unroll_what;

/* How many are recorded of a stage: its chunks, and its parts of a divided vocabulary. */
int unroll_bodies(const compiled *c);
/* Ops and tensors go to `p`. */
void unroll_record(recorded *out, pool *p, const compiled *c, const unroll_what *what);
void unroll_recorded_free(recorded *r);
/* The micro-batches' part of a program: bodies unrolled in the schedule's order, sends and receives between. */
status unroll(compiled_program *out, const compiled *c, const recorded *chunks, const schedule *s);
/* All forward: evaluation of one micro-batch after another. */
void unroll_forward(compiled_program *out, const compiled *c, const recorded *chunks, int microbatches);

/* order_halves.c: a view of rows (dim 0) or columns (1) [first, first + count) of a tensor. */
tensor *order_part(compiled_program *out, tensor *of, int dim, int64_t first, int64_t count);
/* Gradients of weights in halves; returns the list as it was, with which halves that still are neighbours are
 * joined. */
program order_halve(compiled_program *out);
void order_join(program *list, const program *whole);
/* order_parts.c: products before and after those transfers of the forward pass, in the order of their launches, in parts. */
void order_parts_cut(compiled_program *out, const program *bare);
/* order.c: the micro-batches' part in the order that is asked for. */
void order_micro_batches(compiled_program *out, compile_order how);

/* update.c: what is before and after the micro-batches. Gathers of what the ranks have updated (ZeRO 1 and 2), in the model's order,
 * which is that of their first use. */
void update_gather(compiled_program *out, const compiled *c);
/* Before the micro-batches: those, or where sharded weights are gathered once a step, their gathers: then returns the whole weights,
 * tensors of the program's own, by number; else NULL. */
tensor *const *update_begin(compiled_program *out, const compiled *c);
/* After them: reductions of gradients (each right after its last contribution where that is possible), the loss, the norm, the
 * optimizer. */
void update_append(compiled_program *out, const compiled *c);
void update_loss(compiled_program *out, const compiled *c); /* the loss over the grid */
/* place.c: waits, scratch, outputs in place, lifetimes, addresses of transients. `how` the ops were put in order: as lowered, updated
 * weights are waited for before all else. */
void place_waits(compiled_program *out, compile_order how);
void place_transients(compiled_program *out, const compiled *c, bool bound_only);

#endif
