/* How the functions begin that host and device share: HOST_DEVICE_INLINE, before their type. The headers that have them
 * are plain C that is also C++ and CUDA.
 */
#pragma once

#ifdef __CUDACC__
#define HOST_DEVICE_INLINE static inline __host__ __device__
#else
#define HOST_DEVICE_INLINE static inline
#endif
