/* What the reader of config.json makes of a text. */
#pragma once

#include "models/huggingface.h"

/* huggingface_parse() of a copy that is exactly as long as the text: reading beyond it is seen by AddressSanitizer. */
status parsed_config(model_shape *shape, json_t **tokens, const char *text);
