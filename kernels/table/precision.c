#include "kernels/table/precision.h"

#include "memory/log.h"

const precision_row precision_rows[PRECISION_COUNT] = {
#define PRECISION(name, word, compute, master, product, cotangent, peak, rounded, scales, kept)                        \
    {DTYPE_##compute, DTYPE_##master, DTYPE_##product, DTYPE_##cotangent, peak, rounded, scales, kept},
#include "kernels/table/precision.def"
};

const char *const precision_words[PRECISION_COUNT + 1] = {
#define PRECISION(name, word, ...) word,
#include "kernels/table/precision.def"
};

precision_kind precision_default(bool half)
{
    return half ? PRECISION_BF16 : PRECISION_FP32;
}

bool precision_computes_in(dtype type)
{
    bool found = false;
    for (int i = 0; i < PRECISION_COUNT; i++)
        found |= precision_rows[i].compute == type;
    return found;
}

bool precision_keeps(precision_kind kind, dtype type)
{
    return type == precision_rows[kind].master || type == precision_rows[kind].compute;
}

bool precision_is_narrow(dtype type)
{
    bool found = false;
    for (int i = 0; i < PRECISION_COUNT; i++) {
        const precision_row *row = &precision_rows[i];
        found |= row->kept && row->compute == type && row->compute != row->master;
    }
    return found;
}

peak_kind precision_peak(dtype type, bool rounds)
{
    int i = 0; /* the row with products that multiply `type`, which is one of the table */
    while (i < PRECISION_COUNT && precision_rows[i].product != type && precision_rows[i].cotangent != type)
        i++;
    MUST(i < PRECISION_COUNT, "no precision has products of %s", dtype_name(type));
    return rounds ? precision_rows[i].rounded : precision_rows[i].peak;
}

bool precision_rounds(dtype type, bool rounds)
{
    return precision_peak(type, rounds) != precision_peak(type, false);
}
