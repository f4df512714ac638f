/* The inner loops for processors with AVX-512 (F, BW, VL, DQ). */
#if defined __x86_64__
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx2"))),              \
                             apply_to = function)
#else
#pragma GCC target("avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx2")
#endif
#define SIMD_AVX512
#endif
#include "kernels/cpu/isa.h"

#define ISA_TABLE isa_avx512
#define ISA_NAME  "avx512"
#include "kernels/cpu/isa_body.h"

#if defined __x86_64__ && defined __clang__
#pragma clang attribute pop
#endif
