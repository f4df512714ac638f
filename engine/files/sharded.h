/* A folder of safetensors files that together hold one model, as Hugging Face lays it out: model.safetensors, or
 * several files and model.safetensors.index.json, whose weight_map says which tensor is where.
 *
 * A `sharded` maps its files; tensors and names belong to it until sharded_close. Pickled weights (.bin, .pt, .pth) are
 * never opened: unpickling runs code.
 */
#pragma once

#include "engine/files/safetensors.h"

#define SHARDED_FILE  "model.safetensors"
#define SHARDED_INDEX "model.safetensors.index.json"

typedef struct sharded sharded;

/* Every name of the index is in the file that it says, no file has a tensor that the index does not put there. */
status sharded_open(sharded **out, const char *folder);
void sharded_close(sharded *s);
AUTO_CLOSES(sharded, sharded_close)

typedef struct sharded_tensor {
    const safetensors_tensor *tensor;
    const safetensors *file;
} sharded_tensor;

/* How many safetensors files it has. */
int sharded_files(const sharded *s);
int sharded_count(const sharded *s);
/* In the order of names. */
const sharded_tensor *sharded_at(const sharded *s, int i);
/* The i at which a tensor of it is. */
int sharded_number(const sharded *s, const sharded_tensor *t);
/* NULL if there is none */
const sharded_tensor *sharded_find(const sharded *s, const char *name);
const void *sharded_data(const sharded_tensor *t);
/* Some bytes from `offset` of a tensor on are read next, perhaps beyond its end (mapping_expect). */
void sharded_expect(const sharded_tensor *t, int64_t offset, int64_t bytes);
/* Let the pages of some bytes of a tensor go (mapping_forget). */
void sharded_forget(const sharded_tensor *t, int64_t offset, int64_t bytes);
