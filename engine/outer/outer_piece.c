/* A unit as checkpoints know it: a rectangle of a tensor with its Hugging Face name. */
#include "engine/outer/outer_parts.h"

checkpoint_piece outer_piece(const outer *o, const char *section, const float *values, const outer_unit *m)
{
    const unit *u = &o->units[m->unit];
    const names_tensor *t = &o->tensors[u->tensor];
    checkpoint_piece p = {.section = section, .name = t->name, .type = DTYPE_FP32, .dims = t->dims};
    for (int d = 0; d < t->dims; d++) {
        p.global[d] = p.size[d] = t->shape[d];
        p.stride[d] = d + 1 < t->dims ? t->shape[d + 1] : 1;
    }
    p.start[0] = u->first;
    p.size[0] = u->rows;
    p.data = values + m->at;
    return p;
}
