/* What a GPU's memory holds beside the arena: CUDA's context, the kernels that libraries load, and NCCL's buffers,
 * which grow with the number of communicators. Assumed, until a run has measured it (tuning.json).
 */
#ifndef PHALANX_ENGINE_COMPILE_TIME_RESERVE_H
#define PHALANX_ENGINE_COMPILE_TIME_RESERVE_H

#include <stdbool.h>
#include <stdint.h>

enum { RESERVE_ROWS = 9 };

typedef struct reserve {
    int64_t bytes[RESERVE_ROWS]; /* by communicators, the last row for as many or more */
    bool measured[RESERVE_ROWS];
} reserve;

extern const reserve reserve_assumed;

int64_t reserve_bytes(const reserve *r, int communicators);
bool reserve_is_measured(const reserve *r, int communicators);
/* A run with so many communicators has used so much. */
void reserve_note(reserve *r, int communicators, int64_t bytes);

#endif
