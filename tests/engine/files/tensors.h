/* A tensor of a safetensors file by its name. */
#pragma once

#include "engine/files/safetensors.h"

/* NULL if there is none of that name */
const safetensors_tensor *tensors_find(const safetensors *s, const char *name);
