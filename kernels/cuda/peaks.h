/* What GPUs can do at most, by name. */
#ifndef PHALANX_KERNELS_CUDA_PEAKS_H
#define PHALANX_KERNELS_CUDA_PEAKS_H

/* Dense FLOP/s of a GPU with so many multiprocessors: tensor cores in bf16 and tf32, and fp32. Of one that is not in the table
 * nothing is set. */
void peaks_of(double *bf16, double *tf32, double *fp32, const char *name, int multiprocessors);

#endif
