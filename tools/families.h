/* The page about families: what phalanx reads of each architecture's config.json, made from the tables of models/ and
 * from what the reader asks for. models/FAMILIES.md is what it prints. */
#pragma once

#include <stdio.h>

#include <jansson.h>

#include "models/shape.h"

/* Markdown. */
void families_print(FILE *out);
/* Every key that reading a config.json of the architecture asks for: an object with a member each, the caller's. */
json_t *families_keys(shape_architecture architecture);
