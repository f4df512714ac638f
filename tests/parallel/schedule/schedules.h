/* The grid of pipeline schedules that the tests walk over: every kind, with the chunks that it can have. */
#pragma once

#include "parallel/schedule/schedule.h"

/* Calls `visit` with each schedule of up to `stages` stages, `chunks` chunks and `microbatches` micro-batches; returns
 * the number of schedules. */
int schedules_each(int stages, int chunks, int microbatches, void (*visit)(const schedule *s));

/* An independent copy, to be broken; freed with schedule_free. Each list has room for one action more. */
schedule schedules_copy(const schedule *s);
/* "zb-h1, 4 stages, 2 chunks, 8 micro-batches": valid until the next call. */
const char *schedules_title(const schedule *s);
