/* The inner loops for processors with AVX-512 and its bf16 dot products. */
#if defined __x86_64__
#define ISA_TARGET "avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,fma,f16c,avx2"
#define SIMD_AVX512
#define SIMD_BF16
#endif
#define ISA_TABLE isa_avx512_bf16
#define ISA_NAME  "avx512-bf16"
#include "kernels/cpu/isa_body.h"
