/* A small model, saved and loaded by simulated ranks (threads), for the tests of checkpoints.
 *
 * Tensors of no to four dimensions in three sections; every element is a function of (seed, tensor, global index),
 * small enough to be exact in bf16. A layout says how many ranks there are and which dimension of each tensor they
 * divide: rank r has indices n*r/ranks .. n*(r+1)/ranks, so shares are uneven and may be empty.
 */
#pragma once

#include <stdbool.h>

#include "memory/dtype.h"
#include "memory/status.h"

typedef struct savers_layout {
    int ranks;
    int split;       /* dimension, modulo the tensor's */
    bool transposed; /* in memory the first dimension runs fastest */
} savers_layout;

/* Save as folder/name with {"seed": seed} as meta; the status of rank 0. Fails the test if ranks disagree. */
status savers_write(const char *folder, const char *name, int seed, savers_layout layout);
/* Load every rank's share as `type` and compare every element: a failure, of its own words, if one is wrong. */
status savers_load(const char *path, int seed, savers_layout layout, dtype type);
/* The seed of the whole and correct checkpoint at `path`; -1: refused (see status_message); -2: it loads, and is
 * wrong. */
int savers_identify(const char *path);
