/* How much an op of class ATTENTION computes, for who prices it or looks for a measurement of its like. Its exact cost,
 * of the pairs that mask and window leave, is in the op table. */
#ifndef PHALANX_KERNELS_ATTENTION_WORK_H
#define PHALANX_KERNELS_ATTENTION_WORK_H

#include "kernels/op.h"

/* Queries, the keys of a sample, and the width of all heads of q. */
void attention_work(double size[3], const op *o);

#endif
