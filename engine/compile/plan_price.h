/* What the optimizer's update costs, by itself. How long a step takes follows from play.h. */
#ifndef PHALANX_ENGINE_COMPILE_PLAN_PRICE_H
#define PHALANX_ENGINE_COMPILE_PLAN_PRICE_H

#include "engine/compile/compile.h"
#include "engine/compile/profile.h"

/* What the optimizer's update itself asks of a compiled rank in a step, after the norm of the gradients is known. */
typedef struct plan_update {
    double flops, seconds;
    int64_t sent;    /* bytes, along the tensor axis */
    int64_t working; /* bytes of transient tensors where most are alive */
} plan_update;
plan_update plan_price_update(const profile *h, const compiled *c);

#endif
