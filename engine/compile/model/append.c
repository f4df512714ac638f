#include "engine/compile/model/append.h"

#include "kernels/record/op_make.h"

op *append_op(compiled_program *out, phase when, const char *label, const op *like, unsigned outputs, tensor *into)
{
    op o = *like;
    o.phase = (uint8_t)when;
    o.label = o.site = label;
    o.layer = -1;
    o.microbatch = -1;
    op *made = op_make(&out->pool, &o, outputs, (tensor *[OP_MAX_OUT]){into});
    program_append(&out->list, made);
    return made;
}

tensor *append_rows(compiled_program *out, tensor *of, int64_t first_row, int64_t rows)
{
    tensor *v = pool_alloc(&out->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    int64_t offset = first_row * of->pitch * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[0] = rows;
    return v;
}
