/* The inner loops for processors with AVX-512 (F, BW, VL, DQ). */
#if defined __x86_64__
#define ISA_TARGET "avx512f,avx512bw,avx512vl,avx512dq,fma,f16c,avx2"
#define SIMD_AVX512
#endif
#define ISA_TABLE isa_avx512
#define ISA_NAME  "avx512"
#include "kernels/cpu/isa_body.h"
