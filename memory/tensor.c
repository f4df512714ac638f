#include "memory/tensor.h"

#include <stdio.h>
#include <string.h>

int64_t tensor_elements(const tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->dims; i++)
        n *= t->shape[i];
    return n;
}

bool tensor_contiguous(const tensor *t)
{
    return t->dims == 0 || t->shape[0] <= 1 || t->pitch * t->shape[0] == tensor_elements(t);
}

int64_t tensor_bytes(const tensor *t)
{
    int64_t elements = tensor_elements(t);
    if (t->dims > 0 && elements > 0)
        elements = (t->shape[0] - 1) * t->pitch + elements / t->shape[0];
    return elements * dtype_bytes((dtype)t->type);
}

void tensor_describe(tensor *out, const char *name, tensor_class class, dtype type, int dims, const int64_t *shape)
{
    *out = (tensor){.name = name, .dims = (uint8_t)dims, .type = (uint8_t)type, .class = (uint8_t) class};
    out->address = -1;
    out->id = -1;
    out->first = out->last = -1;
    out->pitch = 1;
    for (int i = 0; i < dims; i++) {
        out->shape[i] = shape[i];
        if (i > 0)
            out->pitch *= shape[i];
    }
}

const char *tensor_text(char *out, int bytes, const tensor *t)
{
    int used = snprintf(out, (size_t)bytes, "[");
    for (int i = 0; i < t->dims && used < bytes; i++)
        used += snprintf(out + used, (size_t)(bytes - used), "%s%lld", i ? ", " : "", (long long)t->shape[i]);
    if (used < bytes)
        snprintf(out + used, (size_t)(bytes - used), "] %s", dtype_name((dtype)t->type));
    return out;
}

placement place_replicate(void)
{
    return (placement){PLACE_REPLICATE, 0};
}

placement place_shared(void)
{
    return (placement){PLACE_SHARED, 0};
}

placement place_partial(void)
{
    return (placement){PLACE_PARTIAL, 0};
}

placement place_shard(int dim)
{
    return (placement){PLACE_SHARD, (int8_t)dim};
}

placement place_owned(void)
{
    return (placement){PLACE_OWNED, 0};
}

placements place_along(int slot, placement p)
{
    placements all = {0};
    all.along[slot] = p;
    return all;
}

placements place_cotangent(placements p)
{
    for (int i = 0; i < TENSOR_SLOTS; i++)
        if (p.along[i].kind == PLACE_SHARED)
            p.along[i] = place_partial();
        else if (p.along[i].kind == PLACE_PARTIAL)
            p.along[i] = place_replicate();
    return p;
}
