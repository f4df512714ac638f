#include "kernels/cpu/isa.h"

#if defined __x86_64__
#include <cpuid.h>

/* Not a name that every compiler's __builtin_cpu_supports knows. Asked once: in a virtual machine cpuid is a trap of
 * tens of microseconds. */
static bool has_f16c(void)
{
    static _Atomic(int) known; /* 0: not asked yet, 1: no, 2: yes */
    if (!known) {
        unsigned a, b, c = 0, d;
        known = __get_cpuid(1, &a, &b, &c, &d) && (c & bit_F16C) ? 2 : 1;
    }
    return known == 2;
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

bool cpu_multiplies_bf16(void)
{
    return isa_has_bf16(isa_detect());
}
