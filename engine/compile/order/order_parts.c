/* Products of the forward pass in parts, so that a transfer has a part beside it where no other product is left. Each
 * element is the sum that it was.
 *
 * - Before a reduce-scatter: by columns. While one part's sums travel the next part is computed; in the end the parts
 *   are copied side by side, since a message is contiguous.
 * - After a gather: by rows. A rank has its own rows before anything travels, and computes them first.
 */
#include "engine/compile/order/order_halves.h"
#include "engine/compile/order/order_parts.h"
#include "engine/compile/order/order_check.h"

#include <stdlib.h>

#include "kernels/record/op_make.h"
#include "memory/log.h"

enum { PARTS = 4, TILE = 128 };

static void append(compiled_program *out, const op *like, unsigned made)
{
    program_append(&out->list, op_make(&out->pool, like, made, NULL));
}

static tensor *last_output(const compiled_program *out)
{
    return out->list.ops[out->list.count - 1]->out[0];
}

/* ---- columns ----------------------------------------------------------------------------------------------------- */

/* The sums of columns [first, first + count), contiguous. */
static tensor *append_columns(compiled_program *out, const op *product, const op *scatter, int64_t first, int64_t count)
{
    op part = *product, sums = *scatter;
    part.out[0] = sums.out[0] = NULL;
    order_cut(out, &part, PRODUCT_N, first, count);
    append(out, &part, 1);
    sums.in[0] = last_output(out);
    append(out, &sums, 1);
    out->tensors += 2;
    return last_output(out);
}

static void cut_columns(compiled_program *out, const op *product, const op *scatter)
{
    tensor *sums[PARTS], *whole = scatter->out[0];
    int64_t columns = whole->shape[1], each = (columns + PARTS - 1) / PARTS, left = columns;
    int parts = 0;
    if (columns >= PARTS * TILE)
        each = (each + TILE - 1) / TILE * TILE;
    for (; left > 0; left -= each, parts++)
        sums[parts] = append_columns(out, product, scatter, columns - left, left < each ? left : each);
    for (int i = 0; i < parts; i++) {
        op copy = *scatter;
        copy.kind = OP_copy;
        copy.at = (op_attributes){0};
        copy.in[0] = sums[i];
        copy.out[0] = order_part(out, whole, 1, i * each, sums[i]->shape[1]);
        append(out, &copy, 0);
    }
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

/* Rows of a product's operand and results; of `own`, which holds them alone, unless that is NULL. */
static void append_rows(compiled_program *out, const op *product, const tensor *own, int64_t first, int64_t count)
{
    op part = *product;
    if (count == 0)
        return;
    order_cut(out, &part, PRODUCT_M, first, count);
    if (own) {
        part.in[0]->base = tensor_root((tensor *)own);
        part.in[0]->offset = own->offset;
        part.in[0]->pitch = own->pitch;
        part.in[0]->address = own->address;
        part.in[0]->class = own->class;
    }
    append(out, &part, 0);
}

static void cut_rows(compiled_program *out, const op *gather, const op *product)
{
    int64_t rows = product_of(product).m, first, count;
    shard_rows(&first, &count, rows, gather->at.group_size, gather->at.group_rank);
    append_rows(out, product, gather->in[0], first, count);
    append_rows(out, product, NULL, 0, first);
    append_rows(out, product, NULL, first + count, rows - first - count);
}

/* ---- which ------------------------------------------------------------------------------------------------------- */

/* How many operands each object of a list is. */
static int *count_uses(int **objects, const program *list)
{
    int count;
    *objects = order_objects(list, &count);
    int *uses = must_calloc((unsigned long)count + 1, sizeof *uses);
    for (int64_t i = 0; i < (int64_t)list->count * ORDER_OPERANDS; i++)
        if ((*objects)[i] >= 0)
            uses[(*objects)[i]]++;
    return uses;
}

/* A product whose result nobody reads but the scatter. */
static bool makes_sums(const op *product, const op *scatter, int uses)
{
    return product->kind == OP_linear && scatter->kind == OP_reduce_scatter && scatter->in[0] == product->out[0] &&
           scatter->at.owner < 0 && uses == 2 && scatter->out[0]->shape[1] >= PARTS;
}

/* A product that is worth it: with few columns a rank's own rows take less time than the gather, and fill no GPU. */
static bool reads_rows(const op *gather, const op *o)
{
    if (!op_is(o, OP_CLASS_PRODUCT) || op_has(o, OP_GRADIENT) || gather->kind != OP_all_gather || gather->at.owner >= 0)
        return false;
    matrix_product p = product_of(o);
    return p.a == gather->out[0] && 2 * p.n >= p.k;
}

void order_parts_cut(compiled_program *out, const program *bare)
{
    program whole = out->list;
    int *objects, *uses = count_uses(&objects, &whole), at = 0;
    const op *gather = NULL; /* the last of those in parts, until its result is read */
    out->list = (program){0};
    for (int i = 0; i < whole.count; i++) {
        op *o = whole.ops[i], *next = i + 1 < whole.count ? whole.ops[i + 1] : NULL;
        const op *sought = at < bare->count ? bare->ops[at] : NULL;
        int result = objects[(int64_t)i * ORDER_OPERANDS + OP_MAX_IN];
        bool columns = next && next == sought && makes_sums(o, next, result >= 0 ? uses[result] : 0);
        bool reads = gather && o->in[0] == gather->out[0];
        if (columns)
            cut_columns(out, o, next);
        else if (reads && reads_rows(gather, o))
            cut_rows(out, gather, o);
        else
            program_append(&out->list, o);
        gather = o == sought ? o : reads ? NULL : gather;
        at += columns || o == sought;
        i += columns;
    }
    MUST(at == bare->count, "%d of %d transfers found", at, bare->count);
    free(objects);
    free(uses);
    program_free(&whole);
}
