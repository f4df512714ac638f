#include "engine/compile/model/target.h"

#include <math.h>

const devices_row *target_device(const compile_options *o)
{
    const char *word = o->backend ? o->backend->device : NULL;
    return o->device ? o->device : devices_named(word ? word : DEVICES_ASSUMED);
}

peak_kind target_peak(const compile_options *o)
{
    return precision_peak(precision_row_of(o->precision)->product, o->tf32);
}

double target_mfu(double flops_per_token, double tokens, double seconds, double peak, int ranks)
{
    return peak > 0 ? flops_per_token * tokens / (seconds * peak * ranks) : NAN;
}

double target_balance(const compile_options *o)
{
    return devices_balance(target_device(o), target_peak(o));
}

double target_balance_sent(const compile_options *o)
{
    return devices_balance_sent(target_device(o), target_peak(o));
}
