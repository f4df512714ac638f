/* The inner loops for processors with AVX-512 and its bf16 dot products. */
#if defined __x86_64__
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c,avx2"))),   \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c,avx2")
#endif
#define SIMD_AVX512
#define SIMD_BF16
#endif
#include "kernels/cpu/isa.h"

#define ISA_TABLE isa_avx512_bf16
#define ISA_NAME  "avx512-bf16"
#include "kernels/cpu/isa_body.h"

#if defined __x86_64__ && defined __clang__
#pragma clang attribute pop
#endif
