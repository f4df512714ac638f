/* The ops of the table that no backend computes, as functions of a backend: views of their input, which do not compute;
 * communication and waits, which belong to the executor, since it has the groups; copies to and from host memory, which
 * are the device's. One of these that arrives at a backend, but for a view, was scheduled wrongly. A backend includes
 * the table once with OP(name, class, ...) as ELSEWHERE_##class(BACKEND_##name), beside its kernels' own. */
#pragma once

#include "kernels/table/op.h"
#include "memory/log.h"

#define ELSEWHERE_OP(function)                                                                                         \
    void function(const op *o, const run_context *r)                                                                   \
    {                                                                                                                  \
        char text[256];                                                                                                \
        (void)r;                                                                                                       \
        MUST(op_is(o, OP_CLASS_VIEW), "%s is no kernel", op_text(text, sizeof text, o));                               \
    }

/* One macro a class. */
#define ELSEWHERE_PRODUCT(function)
#define ELSEWHERE_GROUPED(function)
#define ELSEWHERE_ATTENTION(function)
#define ELSEWHERE_DECODE(function)
#define ELSEWHERE_POINTWISE(function)
#define ELSEWHERE_REDUCTION(function)
#define ELSEWHERE_UPDATE(function)
#define ELSEWHERE_COMMUNICATION(function) ELSEWHERE_OP(function)
#define ELSEWHERE_HOST(function)          ELSEWHERE_OP(function)
#define ELSEWHERE_VIEW(function)          ELSEWHERE_OP(function)
#define ELSEWHERE_WAIT(function)          ELSEWHERE_OP(function)
