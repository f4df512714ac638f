#include "tests/engine/files/tensors.h"

#include <string.h>

const safetensors_tensor *tensors_find(const safetensors *s, const char *name)
{
    for (int i = 0; i < safetensors_count(s); i++)
        if (!strcmp(safetensors_at(s, i)->name, name))
            return safetensors_at(s, i);
    return NULL;
}
