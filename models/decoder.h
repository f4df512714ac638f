/* The decoder: every architecture is this one model with other settings.
 *
 * A decoder is one rank's share: the parameters of its pipeline stage's chunks, cut for its place in the tensor group.
 * It owns its parameters through the pool it was built in. decoder_forward() records one chunk's forward pass.
 */
#pragma once

#include "layers/layer.h"
#include "models/shape.h"

/* A contiguous run of layers. */
typedef struct decoder_chunk {
    int first_layer, layers;
    bool has_embedding; /* the model's first chunk: begins with the embedding */
    bool has_loss;      /* the model's last chunk: ends with the loss */
    embedding_layer embedding;
    block_layer *blocks; /* [block_count]: the layers, then the MTP module's block where the chunk has it */
    int block_count;
    mtp_module mtp; /* block NULL: there is none */
    loss_layer loss;
} decoder_chunk;

/* A stage's part of a vocabulary that is divided over the stages. */
typedef struct decoder_vocabulary {
    embedding_layer embedding; /* lacks positions, which the first chunk has */
    loss_layer loss;           /* lacks the norm, which the last chunk has */
} decoder_vocabulary;

typedef struct decoder {
    model_shape shape;
    decoder_vocabulary *vocabulary; /* NULL: the first and the last chunk have all of it */
    decoder_chunk *chunks;
    int chunk_count;
    parameter **parameters; /* the model's order */
    int parameter_count;
    int numbers;   /* upper bound of their numbers: some are other ranks' */
    int states;    /* decoding states of this rank's blocks */
    int attending; /* blocks of this rank that attend */
} decoder;

typedef struct decoder_layout {
    recorder_grid grid;
    dtype compute;
    int chunk_count;
    const int *first_layer, *layers; /* this stage's chunks */
    int first_chunk, last_chunk;     /* those of this stage's with the model's ends; -1: another stage has it */
    int64_t loss_tokens;             /* tokens per loss chunk; 0: all of them */
} decoder_layout;

/* Returns the capacity of a layer that has experts, without tokens and ranks. */
capacity_shape decoder_capacity(const model_shape *shape);
/* The first layer where ranks that divide a sample exchange tensors, and which ones; layer -1: none does. */
typedef struct decoder_crossing {
    int layer;
    layer_crossing what;
} decoder_crossing;
decoder_crossing decoder_crossing_of(const model_shape *shape);
/* Builds the stage's parameters: const from then on. */
void decoder_open(decoder *d, pool *p, const model_shape *shape, const decoder_layout *layout);

/* Records the forward pass of a chunk. input[0] is the previous chunk's output (NULL for the first chunk). out[0] is
 * the next chunk's input, or NULL for the last. Where the stages divide the vocabulary, the first chunk takes the
 * embedding, and out[] of the last holds the inputs of the head's passes; input[1] is then the embedding of the next
 * tokens, if there is a second pass (decoder_passes()). */
void decoder_forward(recorder *r, tensor *out[LAYER_HEAD_PASSES], const decoder *d, int chunk, const layer_inputs *in,
                     tensor *const input[LAYER_HEAD_PASSES]);
/* Passes of the head over a token: two where the MTP module trains. */
int decoder_passes(const decoder *d, bool training);
/* The embedding by this stage's rows, of the tokens that pass 0 or 1 reads: the stages' are parts of a sum. */
tensor *decoder_embed(recorder *r, const decoder *d, int pass, const layer_inputs *in);
/* Records the last chunk as decoder_forward does, but ends with the logits of every token; each tensor rank has its own
 * rows'. */
tensor *decoder_logits(recorder *r, const decoder *d, int chunk, const layer_inputs *in, tensor *input);

/* Rows of the vocabulary on each of `ranks` ranks that divide it, padding included: a multiple of 64 (products of odd
 * widths are slow), and of `shards`, among which they are divided (uneven parts are no single collective of NCCL's),
 * where that adds little. */
int64_t decoder_vocabulary_rows(const model_shape *shape, int ranks, int shards);
