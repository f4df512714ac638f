/* libFuzzer: a config.json is refused in one line, or makes a shape whose own config.json makes that shape again. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "models/huggingface.h"
#include "models/names.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void check(const model_shape *shape, const json_t *tokens)
{
    char *text, *again;
    model_shape back;
    MUST(shape_check(shape) == STATUS_OK, "an impossible shape was accepted: %s", status_message());
    if (huggingface_text(&text, shape, DTYPE_BF16, tokens) != STATUS_OK)
        return;
    MUST(huggingface_parse(&back, NULL, text, strlen(text), "fuzz") == STATUS_OK, "own text refused: %s",
         status_message());
    MUST(huggingface_text(&again, &back, DTYPE_BF16, tokens) == STATUS_OK && !strcmp(text, again), "%s became %s", text,
         again);
    free(text);
    free(again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    model_shape shape;
    json_t *tokens = NULL;
    AUTO_FREE char *copy = must_alloc(size);
    if (size)
        memcpy(copy, data, size);
    if (huggingface_parse(&shape, &tokens, copy, size, "fuzz") == STATUS_OK) {
        check(&shape, tokens);
        if (shape.layers < 100 && shape.experts < 100) {
            int count;
            names_tensor *list = names_list(&count, &shape);
            names_free(list, count);
        }
        json_decref(tokens);
    } else
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    return 0;
}
