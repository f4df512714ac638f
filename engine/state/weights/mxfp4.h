/* Weights in mxfp4 (Open Compute Project, Microscaling Formats v1.0): 32 neighbours along a row share a power of two,
 * and are numbers of 4 bits times it. Published folders of GPT-OSS have experts' matrices so: blocks uint8
 * [experts, out, in / 32, 16], in each byte first its lower half, and scales uint8 [experts, out, in / 32], 127 for 1.
 * Nothing is owned. */
#pragma once

#include <stdint.h>

enum { MXFP4_GROUP = 32, MXFP4_BYTES = MXFP4_GROUP / 2 };

typedef struct mxfp4_matrices {
    const uint8_t *blocks, *scales;
    int64_t out, in; /* of one matrix; in is a multiple of MXFP4_GROUP */
} mxfp4_matrices;

/* to[rows, columns] = rows [row, row + rows) and columns [column, column + columns) of all matrices, each turned to
 * [in, out], one below the other. */
void mxfp4_read(float *to, const mxfp4_matrices *from, int64_t row, int64_t rows, int64_t column, int64_t columns);
