/* All CUDA-specific syntax is in this file alone.
 *
 * Kernel bodies are the same text for nvcc and for a C++ compiler. Under nvcc the functions below are PTX and CUDA
 * intrinsics; otherwise <cuda_shim.h> (tests/cuda/shim, found on the include path) supplies twins with the same names
 * that follow the real fragment layouts, so that each kernel executes on a machine without a GPU.
 * tests/cuda/lint_cuda.sh refuses raw __shared__, launches and inline assembly anywhere else.
 *
 * Fragments of mma.m16n8k16, g = lane / 4, t = lane % 4; each register holds two 16-bit values, low half first:
 *   A [16, 16]  a[0] = (g, 2t..2t+1)  a[1] = (g+8, 2t..)  a[2] = (g, 2t+8..)  a[3] = (g+8, 2t+8..)
 *   B [16, 8]   b[0] = (2t..2t+1, g)  b[1] = (2t+8..2t+9, g)
 *   C [16, 8]   c[0], c[1] = (g, 2t..2t+1)  c[2], c[3] = (g+8, 2t..2t+1), fp32
 * ldmatrix: lane l names row l%8 of the 8x8 matrix l/8 and receives from matrix i (row l/4, columns 2(l%4)..+1) in
 * register i; transposed: (rows 2(l%4)..+1, column l/4).
 */
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#define WARP   32
#define DEVICE static __device__ __forceinline__

#ifdef __CUDACC__

/* Declares a kernel of at most `threads` threads a block; registers are limited so that `blocks` fit on an SM. */
#define KERNEL(threads, blocks)                          __global__ void __launch_bounds__(threads, blocks)
#define SHARED(type, name, count)                        __shared__ __align__(16) type name[count]
#define SHARED_DYNAMIC(name)                             extern __shared__ __align__(128) unsigned char name[]
#define UNROLL                                           _Pragma("unroll")
#define LAUNCH(kernel, grid, block, shared, stream, ...) kernel<<<grid, block, shared, stream>>>(__VA_ARGS__)

template <typename K> static inline int raise_shared_limit(K *kernel, int bytes)
{
    return (int)cudaFuncSetAttribute((const void *)kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
}

/* Returns the limit of a block's shared memory in bytes, static and dynamic together; 0 on failure. */
static inline int device_shared_bytes(void)
{
    int gpu = 0, bytes = 0;
    if (cudaGetDevice(&gpu) != cudaSuccess ||
        cudaDeviceGetAttribute(&bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, gpu) != cudaSuccess)
        return 0;
    return bytes;
}

static inline int launch_result(void)
{
    return (int)cudaGetLastError();
}

DEVICE void block_barrier(void)
{
    __syncthreads();
}

DEVICE void warp_barrier(void)
{
    __syncwarp();
}

template <typename T> DEVICE T warp_xor(T value, int mask)
{
    return __shfl_xor_sync(0xffffffffu, value, mask);
}

template <typename T> DEVICE T warp_from(T value, int lane)
{
    return __shfl_sync(0xffffffffu, value, lane);
}

DEVICE uint32_t warp_ballot(bool value)
{
    return __ballot_sync(0xffffffffu, value);
}

DEVICE int count_bits(uint32_t bits)
{
    return __popc(bits);
}

DEVICE void atomic_add(unsigned long long *to, unsigned long long value)
{
    atomicAdd(to, value);
}

/* Returns the old value. */
DEVICE int32_t atomic_add(int32_t *to, int32_t value)
{
    return atomicAdd(to, value);
}

DEVICE void atomic_max(int32_t *to, int32_t value)
{
    atomicMax(to, value);
}

DEVICE float fast_exp2(float x)
{
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* Computes a / b for |b| < 2^126; an infinite b gives 0. */
DEVICE float fast_quotient(float a, float b)
{
    return __fdividef(a, b);
}

/* Multiplies without fusing with an addition. */
DEVICE float rounded_product(float a, float b)
{
    return __fmul_rn(a, b);
}

DEVICE double rounded_product(double a, double b)
{
    return __dmul_rn(a, b);
}

DEVICE uint32_t shared_address(const void *shared)
{
    return (uint32_t)__cvta_generic_to_shared(shared);
}

/* Copies 16 bytes from global to shared memory, past the registers; writes zeros without reading if not `valid`. */
DEVICE void copy_async(void *shared, const void *global, bool valid)
{
    int bytes = valid ? 16 : 0;
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared_address(shared)), "l"(global), "r"(bytes)
                 : "memory");
}

DEVICE void copy_commit(void)
{
    asm volatile("cp.async.commit_group;" ::: "memory");
}

/* Waits until at most `pending` of this thread's youngest groups of copies are incomplete. */
template <int pending> DEVICE void copy_wait(void)
{
    asm volatile("cp.async.wait_group %0;" ::"n"(pending) : "memory");
}

DEVICE void load_matrix(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

DEVICE void load_matrix_transposed(uint32_t (&to)[4], const void *row)
{
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                 : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                 : "r"(shared_address(row))
                 : "memory");
}

/* Computes c += a b on the tensor cores; the unused last argument selects the elements' type. */
DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __nv_bfloat16)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

DEVICE void multiply_add(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, __half)
{
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
                 "{%0, %1, %2, %3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#else
#include <cuda_shim.h>
#endif

/* A block may use SHARED_DEFAULT bytes without raising its kernel's limit, static and dynamic together. A kernel with
 * dynamic shared memory declares at most SHARED_STATIC static bytes. */
static constexpr int SHARED_DEFAULT = 48 * 1024, SHARED_STATIC = 1024;

template <typename K> static inline int allow_shared(K *kernel, int bytes)
{
    return bytes + SHARED_STATIC <= SHARED_DEFAULT ? 0 : raise_shared_limit(kernel, bytes);
}

/* Launches a kernel with `shared` dynamic bytes of shared memory; returns the CUDA error, or 0. */
template <typename K, typename... A>
static inline int launch(K *kernel, dim3 grid, unsigned block, int shared, void *stream, A... arguments)
{
    int failed = allow_shared(kernel, shared);
    if (failed)
        return failed;
    LAUNCH(kernel, grid, block, (size_t)shared, (cudaStream_t)stream, arguments...);
    return launch_result();
}

/* Returns the limit of a launch's dynamic bytes: 226 KiB on sm_90 and sm_100, 162 on sm_80, 98 on sm_86 and sm_89. */
static inline int max_dynamic_shared(void)
{
    return device_shared_bytes() - SHARED_STATIC;
}
