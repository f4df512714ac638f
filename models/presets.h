/* Ready-made shapes by name: the published sizes of models that people compare with. A table; add a row. */
#pragma once

#include "models/shape.h"

typedef struct preset {
    const char *name;
    const char *summary; /* description in a few words */
    model_shape shape;
} preset;

int presets_count(void);
const preset *presets_at(int index);
/* NULL if no preset has this name. */
const preset *presets_find(const char *name);
