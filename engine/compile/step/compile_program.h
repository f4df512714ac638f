/* Programs of a model: records each chunk of layers once, unrolls them in the schedule's order, appends reductions and
 * the optimizer, finds waits, lifetimes and addresses. The model is not changed; a program owns all its parts. */
#pragma once

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/compiled.h"
#include "parallel/schedule/simulate.h"

/* Chooses which tensors are kept for the backward pass, and the order of the micro-batches' ops. drop[chunk][op of the
 * forward body]: recompute its outputs; for RECOMPUTE_CHOSEN. */
typedef struct compile_keep {
    recompute how;
    uint8_t *const *drop;
    compile_order order; /* one for all ranks of a stage */
    int bucket;          /* index of a capacity bucket (layers/capacity.h) */
    int64_t enough;      /* placing stops at this many transient bytes; 0: near the lower bound */
} compile_keep;

/* A step of `microbatches` micro-batches. bound_only: lifetimes and the lower bound, no addresses. `out` must be freed
 * either way (compile_program_free). */
status compile_program_training(compiled_program *out, const compiled *c, const compile_keep *keep, int microbatches,
                                bool bound_only);
/* Evaluation of one micro-batch a rank, or decoding of one token: forward bodies only. */
status compile_program_forward(compiled_program *out, const compiled *c);
/* Gathers every rank's weights whole between steps, with ZeRO 1 or 2. Else the program is empty. */
void compile_program_gathers(compiled_program *out, const compiled *c);

/* The part of a program that micro-batches play: bodies recorded once a chunk, then unrolled in the order of a
 * schedule. */

/* Inputs and outputs of a body. */
typedef struct recorded_ends {
    tensor *input, *output; /* NULL at the model's ends */
    tensor *output_cotangent, *input_cotangent;
} recorded_ends;

/* A chunk recorded for one micro-batch, with its input and output. If the vocabulary is divided, also the stage's part
 * of the head (its output: statistics; its "cotangent": the statistics of all stages), or of the embedding. These have
 * ends for each pass over the head (layers/layer.h), and so has the chunk with the last layers: its second input is the
 * embedding of the next tokens. */
typedef struct recorded {
    recorder r;
    recorded_ends of[LAYER_HEAD_PASSES];
} recorded;

typedef struct unroll_what {
    int chunk; /* or chunk_count + SCHEDULE_HEAD, SCHEDULE_EMBEDDING */
    bool training, split;
    recompute recompute;
    int bucket;           /* index of a capacity bucket (layers/capacity.h) */
    const uint8_t *drop;  /* [forward op of the chunk], for RECOMPUTE_CHOSEN */
    bool fuse;            /* fuse ops (kernels/record/fuse.h): the last change of a body */
    tensor *const *whole; /* weights gathered before the bodies, by number (update_append_begin), or NULL */
} unroll_what;

/* Number of bodies recorded for a stage: its chunks, and its parts of a divided vocabulary. */
int unroll_bodies(const compiled *c);
/* Records a body; ops and tensors are allocated in `p`. */
void unroll_record(recorded *out, pool *p, const compiled *c, const unroll_what *what);
void unroll_recorded_free(recorded *r);
/* The micro-batches' part of a program: bodies unrolled in the schedule's order, sends and receives between. */
status unroll(compiled_program *out, const compiled *c, const recorded *chunks, const schedule *s);

/* Makes the schedule of a step: the configured one or, with SCHEDULE_AUTO, a copy of o->found (compile_find()), which
 * must be there. */
status compile_schedule(schedule *out, const compile_options *o, int microbatches);
/* Makes a schedule of a named kind, which the layout allows; it includes the vocabulary's work if that is divided. */
status compile_schedule_named(schedule *out, const compile_options *o, schedule_kind kind, int microbatches);
/* Adds the vocabulary's work, with these costs, to `s`, a schedule of layers alone. */
void compile_schedule_share(schedule *s, const compile_options *o, const simulate_cost *costs, double hop);
