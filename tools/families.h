/* The page about families: the keys of each architecture's config.json that phalanx reads, from the tables of models/
 * and from the reader's own requests. models/FAMILIES.md is its output. */
#pragma once

#include <stdio.h>

#include <jansson.h>

#include "models/shape.h"

/* Prints the page as Markdown. */
void families_print(FILE *out);
/* Returns an object, the caller's, with a member for every key that reading a config.json of this family requests. */
json_t *families_keys(shape_architecture architecture);
