/* The gradient of a weight as two products: its first rows and its last. Which product a half is of is its index, while
 * the list is being put in order. */
#include "engine/compile/order/order_halves.h"
#include "kernels/record/op_make.h"

/* Rows of a tile of the usual kernels: a half that is a multiple leaves none of them partly empty. */
enum { TILE = 128 };

tensor *order_part(compiled_program *out, tensor *of, int dim, int64_t first, int64_t count)
{
    tensor *v = pool_alloc(&out->pool, sizeof *v);
    *v = *of;
    v->base = tensor_root(of);
    v->producer = NULL;
    int64_t offset = first * (dim == 0 ? of->pitch : 1) * dtype_bytes((dtype)of->type);
    v->offset = of->offset + offset;
    v->address = of->address >= 0 ? of->address + offset : -1;
    v->shape[dim] = count;
    return v;
}

void order_cut(compiled_program *out, op *product, product_side side, int64_t first, int64_t count)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if (product->in[i] && product_input_dim(product, i, side) >= 0)
            product->in[i] = order_part(out, product->in[i], product_input_dim(product, i, side), first, count);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (product->out[i])
            product->out[i] = order_part(out, product->out[i], side == PRODUCT_N, first, count);
}

static void append_half(compiled_program *out, const op *o, int of, int64_t first, int64_t count)
{
    op half = *o;
    order_cut(out, &half, PRODUCT_M, first, count);
    op *made = op_make(&out->pool, &half, 0, NULL);
    made->index = of;
    program_append(&out->list, made);
}

program order_halve(compiled_program *out)
{
    program whole = out->list;
    out->list = (program){0};
    for (int i = 0; i < whole.count; i++) {
        op *o = whole.ops[i];
        int64_t rows = product_is_free(o) ? product_of(o).m : 0, half = (rows + 1) / 2;
        if (rows > 2 * TILE)
            half = (half + TILE - 1) / TILE * TILE;
        if (rows < 2) { /* of a product: no rank of a real layer has so few */
            program_append(&out->list, o);
            continue;
        }
        append_half(out, o, i, 0, half);
        append_half(out, o, i, half, rows - half);
    }
    return whole;
}

void order_join(program *list, const program *whole)
{
    int count = 0;
    for (int i = 0; i < list->count; i++) {
        op *o = list->ops[i], *next = i + 1 < list->count ? list->ops[i + 1] : NULL;
        bool halves = next && product_is_free(o) && product_is_free(next) && next->index == o->index &&
                      o != whole->ops[o->index] && next != whole->ops[o->index];
        list->ops[count++] = halves ? whole->ops[o->index] : o;
        i += halves;
    }
    list->count = count;
}
