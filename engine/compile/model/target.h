/* The device that is compiled for, as far as choices hang on it: what a budget recomputes, how many tokens' logits
 * exist at a time. It is options.device, which is the same on all ranks; else what the backend names; else an H100.
 */
#pragma once

#include "engine/compile/model/compiled.h"

/* Its row: never NULL. */
const devices_row *target_device(const compile_options *o);
/* Which of a device's peaks the products of this precision can reach. */
peak_kind target_peak(const compile_options *o);
/* Model FLOPs utilisation: the share of what `ranks` devices of `peak` FLOP/s can do in these seconds that a model
 * needs for so many tokens; NAN: the peak is not known. */
double target_mfu(double flops_per_token, double tokens, double seconds, double peak, int ranks);
/* FLOPs of products in the time that a byte of memory traffic takes, and that a byte sent to another rank takes. */
double target_balance(const compile_options *o);
double target_balance_sent(const compile_options *o);
