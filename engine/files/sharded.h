/* A folder of safetensors files that together hold one model, as Hugging Face lays it out: model.safetensors, or
 * several files and model.safetensors.index.json, with a weight_map that locates each tensor.
 *
 * A `sharded` maps its files; tensors and names belong to it until sharded_close. Pickled weights (.bin, .pt, .pth) are
 * never opened: unpickling runs code.
 */
#pragma once

#include "engine/files/safetensors.h"

#define SHARDED_FILE  "model.safetensors"
#define SHARDED_INDEX "model.safetensors.index.json"

typedef struct sharded sharded;

/* Checks that each file has exactly the tensors that the index puts there. */
status sharded_open(sharded **out, const char *folder);
void sharded_close(sharded *s);
AUTO_CLOSES(sharded, sharded_close)

typedef struct sharded_tensor {
    const safetensors_tensor *tensor;
    const safetensors *file;
} sharded_tensor;

/* Returns the number of safetensors files. */
int sharded_files(const sharded *s);
int sharded_count(const sharded *s);
/* Returns tensors in the order of names. */
const sharded_tensor *sharded_at(const sharded *s, int i);
/* Returns the tensor's index for sharded_at. */
int sharded_number(const sharded *s, const sharded_tensor *t);
/* Returns NULL if there is none. */
const sharded_tensor *sharded_find(const sharded *s, const char *name);
const void *sharded_data(const sharded_tensor *t);
/* Announces that bytes from `offset` of a tensor are read next, perhaps beyond its end (mapping_expect). */
void sharded_expect(const sharded_tensor *t, int64_t offset, int64_t bytes);
/* Releases the pages of some bytes of a tensor (mapping_forget). */
void sharded_forget(const sharded_tensor *t, int64_t offset, int64_t bytes);
