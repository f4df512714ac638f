/* The logits of evaluated tokens, as a file. */
#pragma once

#include "engine/infer/inference.h"

/* Tokens laid end to end in windows of `length`, each predicted from those before it in its window and, where `begins`
 * is there (a byte a token: a document begins), in its document. */
typedef struct eval_windows {
    const int32_t *ids; /* [count] */
    const char *begins; /* [count], or NULL */
    int64_t count, length;
} eval_windows;

/* Writes PATH as safetensors: "logits" fp32 [count - 1, vocab_size], row i the model's of token i + 1; "input_ids" and
 * "labels" int32 [count - 1], tokens i and i + 1. Tokens are decoded one by one through the key/value cache, and a row
 * is written when it is known: memory does not grow with their number. *loss: the sum of -log softmax over the labels,
 * in double. Collective; rank 0 writes. STATUS_FAILED where the file cannot be written, and then it is not there. */
status eval_logits_write(double *loss, const char *path, weights *from, const inference_ranks *ranks,
                         precision_kind precision, const eval_windows *of);
