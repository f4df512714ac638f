/* A model's weights wherever they lie: a Hugging Face folder or a phalanx checkpoint, by the same names.
 *
 * weights_open finds out which it is, reads the shape, and checks that every tensor of a model of that shape is there
 * with its shape and a floating-point type, and that there is no other; after it, reading fails only if the disk does
 * or a checkpoint is damaged. Data is read piece by piece as it is asked for. One thread at a time may use a `weights`;
 * what it returns belongs to it until weights_close.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "engine/tokenizer/tokenizer.h"
#include "memory/box.h"
#include "memory/scope.h"
#include "models/names.h"

typedef struct weights weights;

/* `folder`: one with config.json and safetensors files, whatever checkpoint_open takes, or one of these in a store
 * (s3://BUCKET/PREFIX), which is fetched first (engine/store/folder.h). */
status weights_open(weights **out, const char *folder);
/* The same for names, shapes and types alone: of a folder of a store no values are fetched, and weights_read() must not
 * be called. */
status weights_open_names(weights **out, const char *folder);
void weights_close(weights *w);
AUTO_CLOSES(weights, weights_close)

bool weights_is_huggingface(const weights *w);
/* The folder that holds the files: of a run, that of its latest checkpoint. */
const char *weights_folder(const weights *w);
const model_shape *weights_shape(const weights *w);
/* The configuration that a checkpoint was saved with, as text; NULL for a Hugging Face folder. */
const char *weights_config(const weights *w);
/* bos_token_id and so on where they are known (huggingface_token_keys): an object, perhaps empty. */
const json_t *weights_tokens(const weights *w);

/* How many safetensors files a Hugging Face folder has; 0 of a checkpoint. */
int weights_files(const weights *w);
int weights_count(const weights *w);
/* In the model's order. */
const names_tensor *weights_at(const weights *w, int i);
/* As stored; of mxfp4 bf16, which holds its values. */
dtype weights_type(const weights *w, int i);

/* From now on the model has no biases of its experts' choice, as no Hugging Face folder of these architectures has.
 * false: it has none anyway. */
bool weights_leave_biases(weights *w);

/* Reads a rectangle of a tensor, whose shape must be of->global, converted to to->type. Where a checkpoint has master
 * weights and that type can hold them, they are what is read. Biases of experts begin at 0 where there are none. A
 * state_reader, with the weights as its context. */
status weights_read(void *w, const rectangle *of, const box_memory *to);

/* The tokenizer that belongs to them: of their folder, of the run above it, or the one that the run's data was made
 * with. Fails with a line that says where it was looked for. */
status weights_tokenizer(tokenizer **out, const weights *w);

/* Fill in the sizes of a configuration that names model.config or model.from (config_wants_shape), or the vocabulary's
 * size from the data's tokenizer (config_wants_vocabulary), and check it; of any other, nothing is done. */
status weights_configure(config *c);

/* Weights in mxfp4 (Open Compute Project, Microscaling Formats v1.0): 32 neighbours along a row share a power of two,
 * and are numbers of 4 bits times it. Published folders of GPT-OSS have experts' matrices so: blocks uint8
 * [experts, out, in / 32, 16], in each byte first its lower half, and scales uint8 [experts, out, in / 32], 127 for 1.
 * Nothing is owned. */
enum { MXFP4_GROUP = 32, MXFP4_BYTES = MXFP4_GROUP / 2 };

typedef struct mxfp4_matrices {
    const uint8_t *blocks, *scales;
    int64_t out, in; /* of one matrix; in is a multiple of MXFP4_GROUP */
} mxfp4_matrices;

/* to[rows, columns] = rows [row, row + rows) and columns [column, column + columns) of all matrices, each turned to
 * [in, out], one below the other. */
void mxfp4_read(float *to, const mxfp4_matrices *from, int64_t row, int64_t rows, int64_t column, int64_t columns);
