/* The inner loops for processors with AVX2, FMA and F16C. */
#if defined __x86_64__
#define ISA_TARGET "avx2,fma,f16c"
#define SIMD_AVX2
#endif
#define ISA_TABLE isa_avx2
#define ISA_NAME  "avx2"
#include "kernels/cpu/isa_body.h"
