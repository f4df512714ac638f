#include "tests/models/parsed.h"

#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"

status parsed_config(model_shape *shape, json_t **tokens, const char *text)
{
    size_t bytes = strlen(text);
    AUTO_FREE char *copy = must_alloc(bytes);
    memcpy(copy, text, bytes);
    return huggingface_parse(shape, tokens, copy, bytes, "config.json");
}
