/* The part of a program that micro-batches play: bodies recorded once a chunk, then unrolled in the order of a
 * schedule. */
#pragma once

#include "engine/compile/model/compiled.h"

/* What a body takes and makes. */
typedef struct recorded_ends {
    tensor *input, *output; /* NULL at the model's ends */
    tensor *output_cotangent, *input_cotangent;
} recorded_ends;

/* A chunk recorded for one micro-batch, with its input and output; or where the vocabulary is divided the stage's part
 * of the head, whose output is statistics and whose "cotangent" is those of all, or of the embedding. These have ends
 * for each pass over the head (layers/layer.h), and so has the chunk with the last layers: its second input is the
 * embedding of the next tokens. */
typedef struct recorded {
    recorder r;
    recorded_ends of[LAYER_HEAD_PASSES];
} recorded;

typedef struct unroll_what {
    int chunk; /* or chunk_count + SCHEDULE_HEAD, SCHEDULE_EMBEDDING */
    bool training, split;
    recompute recompute;
    int rung;             /* of a ladder (layers/ladder.h) */
    const uint8_t *drop;  /* of the chunk's forward ops, for RECOMPUTE_CHOSEN */
    bool fuse;            /* ops (kernels/record/fuse.h): the last thing done to a body */
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
