#include "kernels/record/fuse.h"

#include <string.h>

#include "kernels/record/program.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- a fused op and its two -------------------------------------------------------------------------------------- */

typedef struct fusion {
    op_kind fused, first, second;
} fusion;

static const fusion fusions[] = {{OP_linear_gelu, OP_linear, OP_gelu},
                                 {OP_linear_grad_gelu, OP_linear_grad_input, OP_gelu_grad}};

enum { FUSIONS = sizeof fusions / sizeof *fusions };

static const fusion *fusion_of(const op *o)
{
    for (int i = 0; i < FUSIONS; i++)
        if (fusions[i].fused == (op_kind)o->kind)
            return &fusions[i];
    return NULL;
}

bool fuse_is_fused(const op *o)
{
    return fusion_of(o) != NULL;
}

op fuse_first(const op *o)
{
    const fusion *f = fusion_of(o);
    op first = *o;
    if (!f)
        return first;
    first.kind = (uint8_t)f->first;
    if (f->fused == OP_linear_gelu) {
        first.out[0] = o->out[1] ? o->out[1] : o->out[0];
        first.out[1] = NULL;
    } else {
        first.in[2] = NULL;
    }
    return first;
}

op fuse_second(const op *o)
{
    const fusion *f = fusion_of(o);
    MUST(f, "%s is not fused", o->label);
    op first = fuse_first(o), second = {.kind = (uint8_t)f->second, .label = o->label};
    second.in[0] = first.out[0];
    if (f->fused == OP_linear_grad_gelu)
        second.in[1] = o->in[2];
    second.out[0] = o->out[0];
    return second;
}

/* ---- in recorded bodies ------------------------------------------------------------------------------------------ */

/* `readers`, by id: readers of a tensor, in all bodies and beyond; a view's readers are its base's, too. */
static void count_reader(int *readers, const tensor *t)
{
    if (t && t->id >= 0)
        readers[t->id]++;
    if (t && t->base && t->base->id >= 0)
        readers[t->base->id]++;
}

/* Returns the product that makes input 0 of `o`, in the same body, if `o` can be fused with it. */
static op *product_before(const int *readers, const op *o)
{
    op *product = o->in[0] ? o->in[0]->producer : NULL;
    if (!product || product->phase != o->phase || product->detached || o->detached)
        return NULL;
    for (int i = 0; i < FUSIONS; i++)
        if ((op_kind)o->kind == fusions[i].second && (op_kind)product->kind == fusions[i].first)
            return fusions[i].fused == OP_linear_gelu || (readers[o->in[0]->id] == 1 && !product->in[2]) ? product
                                                                                                         : NULL;
    return NULL;
}

/* Fuses the two into one op. The product's result, if it has other readers, stays an output. */
static op *fused_op(pool *p, const op *product, const op *second, bool read_again)
{
    op like = *product;
    like.out[0] = second->out[0];
    if (second->kind == OP_gelu) {
        like.kind = OP_linear_gelu;
        like.out[1] = read_again ? product->out[0] : NULL;
    } else {
        like.kind = OP_linear_grad_gelu;
        like.in[2] = second->in[1];
    }
    op *o = op_make(p, &like, 0, NULL);
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i])
            o->out[i]->producer = o;
    return o;
}

/* Gives the fused op the product's place, or, if its other operand is recomputed in between, the second op's. */
static void fuse_body(pool *p, const int *readers, program *body)
{
    for (int i = 0; i < body->count; i++) {
        op *second = body->ops[i], *product = product_before(readers, second);
        if (!product)
            continue;
        int from = i;
        while (body->ops[from] != product)
            from--;
        int removed = i;
        for (int k = from + 1; k < i; k++)
            for (int j = 1; j < OP_MAX_IN; j++) /* an operand is recomputed in between */
                if (second->in[j] && second->in[j]->producer == body->ops[k])
                    removed = from;
        body->ops[from] = body->ops[i] = fused_op(p, product, second, readers[second->in[0]->id] > 1);
        memmove(&body->ops[removed], &body->ops[removed + 1], (size_t)(body->count - removed - 1) * sizeof *body->ops);
        body->count--;
        i--;
    }
}

void fuse_recorded(recorder *r, tensor *const *ends, int count)
{
    AUTO_FREE int *readers = must_calloc((unsigned long)r->tensor_count + 1, sizeof *readers);
    for (int i = 0; i < count; i++)
        count_reader(readers, ends[i]);
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int i = 0; i < r->body[p].count; i++)
            for (int k = 0; k < OP_MAX_IN; k++)
                count_reader(readers, r->body[p].ops[i]->in[k]);
    for (int p = 0; p < PHASE_COUNT; p++)
        fuse_body(r->pool, readers, &r->body[p]);
}
