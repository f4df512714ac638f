/* The ops of the table that no backend computes, as functions of the backend BACKEND: `copy_to_shards`, `regroup` and
 * `balance_through`, whose output is a view of their input; communication, which belongs to the executor, since it has
 * the groups; copies to and from host memory, which are the device's. One of the latter two that arrives at a backend
 * was scheduled wrongly. Instantiated once a backend, beside its table. */
#ifndef PHALANX_KERNELS_ELSEWHERE_H
#define PHALANX_KERNELS_ELSEWHERE_H

#include "kernels/op.h"
#include "memory/log.h"

#define ELSEWHERE_OP(function)                                                                                         \
    void function(const op *o, const run_context *r)                                                                   \
    {                                                                                                                  \
        char text[256];                                                                                                \
        (void)r;                                                                                                       \
        MUST(op_is(o, OP_CLASS_VIEW), "%s is no kernel", op_text(text, sizeof text, o));                               \
    }

#define ELSEWHERE_OPS(BACKEND)                                                                                         \
    ELSEWHERE_OP(BACKEND##_copy_to_shards)                                                                             \
    ELSEWHERE_OP(BACKEND##_regroup)                                                                                    \
    ELSEWHERE_OP(BACKEND##_balance_through)                                                                            \
    ELSEWHERE_OP(BACKEND##_all_gather)                                                                                 \
    ELSEWHERE_OP(BACKEND##_reduce_scatter)                                                                             \
    ELSEWHERE_OP(BACKEND##_all_to_all)                                                                                 \
    ELSEWHERE_OP(BACKEND##_all_reduce)                                                                                 \
    ELSEWHERE_OP(BACKEND##_send)                                                                                       \
    ELSEWHERE_OP(BACKEND##_receive)                                                                                    \
    ELSEWHERE_OP(BACKEND##_load_host)                                                                                  \
    ELSEWHERE_OP(BACKEND##_store_host)                                                                                 \
    ELSEWHERE_OP(BACKEND##_wait)

#endif
