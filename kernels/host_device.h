/* Definitions that host and device share: HOST_DEVICE_INLINE, which stands before the type of such functions, and
 * constants. Plain C that is also C++ and CUDA, as are the headers of such functions. The oracle of GELU's kernels
 * (tests/oracle/) states its constants independently; Muon's reference shares them. */
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE_INLINE static inline __host__ __device__
#else
#define HOST_DEVICE_INLINE static inline
#endif

/* GELU's approximation (1606.08415): gelu(x) = x (1 + tanh(u)) / 2, u = sqrt(2 / pi) (x + 0.044715 x^3) */
#define GELU_ROOT  0.797884560802865356f /* sqrt(2 / pi) */
#define GELU_CUBIC 0.044715f

/* Muon's quintic, which has the largest slope at 0 that keeps singular values near 1
 * (https://kellerjordan.github.io/posts/muon). */
#define MUON_A 3.4445
#define MUON_B (-4.7750)
#define MUON_C 2.0315

#define MUON_EPSILON 1e-7f /* the smallest norm that a matrix is divided by */

enum { MUON_ITERATIONS = 5 };
