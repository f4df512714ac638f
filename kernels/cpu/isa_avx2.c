/* The inner loops for processors with AVX2, FMA and F16C. */
#if defined __x86_64__
#include <immintrin.h>
#ifdef __clang__
#pragma clang attribute push(__attribute__((target("avx2,fma,f16c"))), apply_to = function)
#else
#pragma GCC target("avx2,fma,f16c")
#endif
#define SIMD_AVX2
#endif
#include "kernels/cpu/isa.h"

#define ISA_TABLE isa_avx2
#define ISA_NAME  "avx2"
#include "kernels/cpu/isa_body.h"

#if defined __x86_64__ && defined __clang__
#pragma clang attribute pop
#endif
