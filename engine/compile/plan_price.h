/* What a program would cost on a given machine: seconds per op, from its FLOPs and bytes at assumed rates.
 *
 * A price, not a measurement: a product takes its FLOPs at `flops x efficiency`, anything else its bytes at the memory's
 * rate, whichever is longer; what ranks of a layer exchange is waited for. Weights and
 * gradients that travel each micro-batch overlap the computation of its action; those that travel once a step overlap what is
 * computed between their launch and their wait; what is longer is added.
 */
#ifndef PHALANX_ENGINE_COMPILE_PLAN_PRICE_H
#define PHALANX_ENGINE_COMPILE_PLAN_PRICE_H

#include "engine/compile/compiled.h"
#include "engine/compile/reserve.h"
#include "parallel/simulate.h"

typedef struct plan_hardware {
    double flops;      /* of one device at its peak, in the compute type */
    double single;     /* in fp32: the optimizer's */
    double efficiency; /* the share of it that products reach */
    double memory;     /* bytes a second of the device's memory */
    double node;       /* bytes a second that a rank sends to ranks of its node */
    double network;    /* and to others */
    double latency;    /* seconds until a message's first byte arrives */
    int node_ranks;
    int64_t capacity;       /* bytes of the device's memory that a process sees */
    const reserve *reserve; /* what is taken of it beside the arena */
} plan_hardware;

/* NVIDIA H100 SXM: bf16 dense, HBM3, NVLink 4, one 400 Gbit/s port a device, eight devices a node. */
extern const plan_hardware plan_price_h100;

/* Of a compiled training program: the mean cost of each chunk's actions, [chunks of the stage], and the seconds before and
 * after the micro-batches. */
void plan_price_chunks(simulate_cost *costs, double *outside, const plan_hardware *h, const compiled *c);
/* The optimizer's update of a compiled rank in a step, after the norm of the gradients is known. */
typedef struct plan_update {
    double flops, seconds;
    int64_t sent;    /* bytes, along the tensor axis */
    int64_t working; /* bytes of transient tensors where most are alive */
} plan_update;
plan_update plan_price_update(const plan_hardware *h, const compiled *c);
/* Seconds of the largest message between stages, 0 with one stage. */
double plan_price_hop(const plan_hardware *h, const compiled *c);

#endif
