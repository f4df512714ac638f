/* A model's weights from a Hugging Face folder or a phalanx checkpoint, by the same names.
 *
 * weights_open detects the format, reads the shape, and checks that every tensor of a model of that shape exists with
 * its shape and a floating-point type, and that there is no other; after it, reading fails only if the disk does or a
 * checkpoint is damaged. Data is read piece by piece on request. One thread at a time may use a `weights`; it owns all
 * it returns until weights_close.
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

/* `folder`: one with config.json and safetensors files, any that checkpoint_open accepts, or one of these in a store
 * (s3://BUCKET/PREFIX), which is fetched first (engine/store/folder.h). */
status weights_open(weights **out, const char *folder);
/* Opens names, shapes and types only: no values are fetched from a store, and weights_read() must not be called. */
status weights_open_names(weights **out, const char *folder);
void weights_close(weights *w);
AUTO_CLOSES(weights, weights_close)

bool weights_is_huggingface(const weights *w);
/* Returns the folder of the files; for a run, of its latest checkpoint. */
const char *weights_folder(const weights *w);
/* Returns a few words that tell the weights from others, wherever their copies lie; the caller frees them. */
char *weights_identity(const weights *w);
const model_shape *weights_shape(const weights *w);
/* Returns the configuration that a checkpoint was saved with, as text; NULL for a Hugging Face folder. */
const char *weights_config(const weights *w);
/* Returns bos_token_id and so on if known (huggingface_token_keys): an object, perhaps empty. */
const json_t *weights_tokens(const weights *w);

/* Returns the number of safetensors files of a Hugging Face folder; 0 for a checkpoint. */
int weights_files(const weights *w);
int weights_count(const weights *w);
/* Returns tensor `i` in the model's order. */
const names_tensor *weights_at(const weights *w, int i);
/* Returns the stored type; for mxfp4 bf16, which holds its values. */
dtype weights_type(const weights *w, int i);

/* Drops the biases of the router, which no Hugging Face folder of these architectures has. Returns false if there are
 * none. */
bool weights_leave_biases(weights *w);

/* Reads a rectangle of a tensor, of shape of->global, converted to to->type. Reads a checkpoint's master weights if
 * they exist and that type can hold them. Missing router biases are 0. A state_reader, with the weights as its
 * context. */
status weights_read(void *w, const rectangle *of, const box_memory *to);

/* Opens the weights' tokenizer: `spec` (tokenizer_files_open), or if NULL in their folder, in the run above it, or the
 * one that made the run's data. It begins a text as training began documents, or as `begin` says if that is not
 * unknown. A failure lists where it looked. */
status weights_tokenizer(tokenizer **out, const weights *w, const char *spec, tokenizer_begin begin);
/* Returns the beginning of documents in training that a checkpoint records. */
tokenizer_begin weights_begin(const weights *w);

/* Fill in the sizes of a configuration that names model.config or model.from (config_wants_shape), or the vocabulary's
 * size from the data's tokenizer (config_wants_vocabulary), and check it; other configurations stay unchanged. */
status weights_configure(config *c);

/* Weights in mxfp4 (Open Compute Project, Microscaling Formats v1.0): 32 neighbours along a row share a power of two,
 * and are 4-bit numbers times it. Published folders of GPT-OSS store experts' matrices so: blocks uint8 [experts, out,
 * in / 32, 16], in each byte first its lower half, and scales uint8 [experts, out, in / 32], 127 for 1. Owns no
 * memory. */
enum { MXFP4_GROUP = 32, MXFP4_BYTES = MXFP4_GROUP / 2 };

typedef struct mxfp4_matrices {
    const uint8_t *blocks, *scales;
    int64_t out, in; /* size of one matrix; in is a multiple of MXFP4_GROUP */
} mxfp4_matrices;

/* to[rows, columns] = rows [row, row + rows) and columns [column, column + columns) of all matrices, each transposed to
 * [in, out], one below the other. */
void mxfp4_read(float *to, const mxfp4_matrices *from, int64_t row, int64_t rows, int64_t column, int64_t columns);
