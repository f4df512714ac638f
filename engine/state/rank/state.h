/* A rank's share of the training state by the world's names: initial weights, and the pieces of checkpoints.
 *
 * Everything here is a function of Hugging Face names and global indices, never of the layout: any layout starts from
 * the same weights, and any layout can read what any other wrote.
 */
#pragma once

#include "engine/compile/model/optimizer.h"
#include "engine/run/executor.h"
#include "engine/checkpoint/checkpoint.h"

/* Draws every parameter of this rank: normal, zero or one as its description says; the optimizer's states are zero. */
void state_initialise(const compiled *c, executor *e, uint64_t seed);

/* out[rows][the rest of its shape]: the initial weights of rows [first, first + rows) of a tensor as its file has it,
 * of a model that one rank holds whole. No such tensor is a mistake of the caller's. */
void state_initial_rows(float *out, const decoder *model, const char *name, int64_t first, int64_t rows, uint64_t seed);

/* Weights and states as in a fresh process: zero, padding too. */
void state_clear(const compiled *c, executor *e);

/* A section is its name in a checkpoint: one of these, or an optimizer's state (engine/config/optimizers.def). */
typedef const char *state_section;
#define STATE_MODEL    "model"
#define STATE_MASTER   "master"
#define STATE_GRADIENT "gradient"
/* What compressed gradients lacked (parallel.compress): of rank R of those that sum, "feedback_R", and of the sums. */
#define STATE_FEEDBACK_SUM "feedback_sum"

/* The sections of a checkpoint of this run, in the order in which they are written; how many. */
enum { STATE_SECTIONS = 4 + OPTIMIZER_SECTIONS };
int state_sections(state_section out[STATE_SECTIONS], const compiled *c);

/* This rank's rectangles of one section. For writing each element of the model is named by exactly one rank of the grid
 * (padding by none); for reading, each rank names all it holds. The array is the caller's to free; its pointers are the
 * compiled model's. */
checkpoint_piece *state_pieces(int *count, const compiled *c, executor *e, state_section section, bool writing);

/* Fills weights, master weights and the optimizer's states from a checkpoint; without a "master" section (a converted
 * model) the master weights are the weights, without a state's section the states are zero. *has_states says which.
 * Feedback of as many data ranks is each rank's own again; of another number all of it is summed, and each rank gets
 * what it owns of the sum. */
status state_load(const compiled *c, executor *e, checkpoint *from, bool *has_states);
/* Weights from any source of rectangles (a Hugging Face folder): `read` has checkpoint_read's arguments less
 * section. */
typedef status state_reader(void *context, const rectangle *of, const box_memory *to);
status state_load_weights(const compiled *c, executor *e, state_reader *read, void *context);

/* Normal deviates, the same bits on every machine: out[i] = deviation x normal number first + i of the series, which is
 * that of a name: philox_stream() */
void normal_fill(float *out, uint64_t seed, uint64_t series, int64_t first, int64_t count, float deviation);
