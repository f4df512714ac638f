/* What transformers' AutoTokenizer wants beside a model so that it gives our ids: tokenizer.json,
 * tokenizer_config.json, special_tokens_map.json, generation_config.json. */
#pragma once

#include <jansson.h>

#include "engine/tokenizer/tokenizer.h"
#include "models/shape.h"

/* Complete a Hugging Face folder, in which the tokenizer's own files are already. What is there stays; what is missing
 * is written. `tokens`: bos_token_id and so on, for generation_config.json. A tokenizer that has no exact counterpart
 * is left as it is, with a warning. */
status tokenizer_export(const tokenizer *t, const char *folder, const model_shape *shape, const json_t *tokens);
