/* The learning rate of every step: a pure function of the step, so that resuming needs no state. */
#pragma once

#include <stdint.h>

typedef enum learning_rate_kind {
    LEARNING_RATE_CONSTANT,
    LEARNING_RATE_LINEAR,
    LEARNING_RATE_COSINE,
    LEARNING_RATE_WSD,
    LEARNING_RATE_INVERSE_SQRT,
} learning_rate_kind;

typedef struct learning_rate {
    learning_rate_kind kind;
    double peak;           /* lr */
    double floor;          /* min_lr: what the decaying schedules reach at the last step */
    double decay_fraction; /* WSD: the share of all steps, at the end, in which the rate falls linearly */
    int64_t warmup;        /* steps; the rate is peak * t / warmup for t <= warmup */
    int64_t steps;
} learning_rate;

/* step counts from 1. Beyond `steps` the rate stays at its last value (inverse_sqrt and constant just go on). */
double learning_rate_at(const learning_rate *schedule, int64_t step);
