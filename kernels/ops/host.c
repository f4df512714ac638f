/* Copies between a device and its pinned host memory. */
#include "kernels/ops/family.h"

static void check_copied(const op *o, const tensor *host, const tensor *arena)
{
    OPERANDS_CHECK(host->class == CLASS_HOST && arena->class != CLASS_HOST, "one of the two in host memory");
    OPERANDS_CHECK(infer_same(host, arena) && tensor_contiguous(host) && tensor_contiguous(arena),
                   "the same rows, without gaps");
}

void infer_load_host(op *o)
{
    check_copied(o, o->in[0], o->out[0]);
}

/* The bytes of the arena; as many cross the bus. */
COST(load_host, (op_cost){0, cost_bytes(o->out[0])})
NO_GRADIENT(load_host)

void infer_store_host(op *o)
{
    check_copied(o, o->out[0], o->in[0]);
}

COST(store_host, (op_cost){0, cost_bytes(o->in[0])})
NO_GRADIENT(store_host)
