/* A tensor of a safetensors file by its name. */
#ifndef PHALANX_TESTS_ENGINE_FILES_TENSORS_H
#define PHALANX_TESTS_ENGINE_FILES_TENSORS_H

#include "engine/files/safetensors.h"

/* NULL if there is none of that name */
const safetensors_tensor *tensors_find(const safetensors *s, const char *name);

#endif
