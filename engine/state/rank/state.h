/* A rank's share of the training state by Hugging Face names: initial weights, and the pieces of checkpoints.
 *
 * All functions here depend on Hugging Face names and global indices, never on the layout: any layout starts from the
 * same weights, and any layout can read checkpoints of any other.
 */
#pragma once

#include "engine/compile/model/optimizer.h"
#include "engine/run/executor.h"
#include "engine/checkpoint/checkpoint.h"

/* Draws every parameter of this rank: normal, zero or one as its description says; the optimizer's states are zero. */
void state_initialise(const compiled *c, executor *e, uint64_t seed);

/* Draws rows [first, first + rows) of a tensor in its file's order, of a model that one rank holds whole, into
 * out[rows][the rest of its shape]. The tensor must exist. */
void state_initial_rows(float *out, const decoder *model, const char *name, int64_t first, int64_t rows, uint64_t seed);

/* Zeroes weights and states, padding included, as in a fresh process. */
void state_clear(const compiled *c, executor *e);

/* A section is its name in a checkpoint: one of these, or an optimizer's state (engine/config/optimizers.def). */
typedef const char *state_section;
#define STATE_MODEL    "model"
#define STATE_MASTER   "master"
#define STATE_GRADIENT "gradient"
/* Error feedback of compressed gradients (parallel.compress): "feedback_R" of replica R, and this one of the sums. */
#define STATE_FEEDBACK_SUM "feedback_sum"

/* Lists the sections of this run's checkpoints in the order of writing; returns their number. */
enum { STATE_SECTIONS = 4 + OPTIMIZER_SECTIONS };
int state_sections(state_section out[STATE_SECTIONS], const compiled *c);

/* Appends this rank's rectangles of one section. For writing, exactly one rank of the grid names each element of the
 * model (padding: none); for reading, each rank names all it holds. The caller frees the list; its pointers are the
 * compiled model's. */
void state_pieces(checkpoint_piece **list, int *count, const compiled *c, executor *e, state_section section,
                  bool writing);

/* Sums a 64-bit hash of section, name, index and bits over the stored weights and master weights that this rank writes;
 * the ranks' sum is the same in every layout with the same bits. */
uint64_t state_hash(const compiled *c, executor *e);

/* Fills weights, master weights and the optimizer's states from a checkpoint; without a "master" section (a converted
 * model) the master weights are the weights, without a state's section the states are zero. *has_states tells which.
 * With as many data ranks as saved, each rank gets its own feedback back; otherwise all of it is summed, and each rank
 * gets the part of the sum that it owns. */
status state_load(const compiled *c, executor *e, checkpoint *from, bool *has_states);
/* Loads weights from any source of rectangles (a Hugging Face folder): `read` has checkpoint_read's arguments except
 * the section. */
typedef status state_reader(void *context, const rectangle *of, const box_memory *to);
status state_load_weights(const compiled *c, executor *e, state_reader *read, void *context);

/* Fills in normal deviates, the same bits on every machine: out[i] = deviation x normal number first + i of the series,
 * the one of a name: philox_stream(). */
void normal_fill(float *out, uint64_t seed, uint64_t series, int64_t first, int64_t count, float deviation);
