/* Makes checkable from outside that a training step does not allocate.
 *
 * Between seal_close() and seal_open() the program holds that it makes no allocation of 64 KiB or more. Both write a
 * line into the file that the environment variable PHALANX_ALLOCATION_LOG names, if it names one; into the same file
 * the interposer tests/memory/spy/allocation_spy.c writes every such allocation, so that a test sees whether one is
 * between the two. Without the variable they return at once. There is no state to own.
 */
#pragma once

#define SEAL_ENVIRONMENT "PHALANX_ALLOCATION_LOG"
#define SEAL_BYTES       (64L << 10)

void seal_close(void); /* "<CLOCK_MONOTONIC, ns> <pid> seal close" */
void seal_open(void);  /* "<CLOCK_MONOTONIC, ns> <pid> seal open" */
