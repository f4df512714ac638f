#include "kernels/cpu/isa.h"

#if defined __x86_64__
#include <cpuid.h>

/* not a name that every compiler's __builtin_cpu_supports knows */
static bool has_f16c(void)
{
    unsigned a, b, c = 0, d;
    return __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C);
}
#endif

const isa *isa_detect(void)
{
#if defined __x86_64__
    bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c();
    bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                  __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq");
    if (avx512)
        return __builtin_cpu_supports("avx512bf16") ? &isa_avx512_bf16 : &isa_avx512;
    if (avx2)
        return &isa_avx2;
#endif
    return &isa_base;
}

const isa *isa_of(const run_context *r)
{
    return r->device ? r->device : isa_detect();
}

bool isa_has_bf16(const isa *i)
{
    return i == &isa_avx512_bf16;
}
