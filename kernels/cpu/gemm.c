/* The three products of a linear layer as strided matrix products, by oneDNN or by our own tiles. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/tile_gemm.h"
#include "kernels/fuse.h"
#include "memory/log.h"

/* Row-major operands in their order of the op table; `pitch` steps rows. memset because shapes are compared as
 * bytes. */
static gemm_shape shape_of(const op *o, int threads)
{
    const tensor *first = o->in[0], *second = o->in[1], *c = o->out[0];
    gemm_shape s;
    memset(&s, 0, sizeof s);
    s.m = c->shape[0];
    s.n = c->shape[1];
    s.c_row = c->pitch;
    s.type = first->type;
    s.c_type = c->type;
    s.threads = threads > 1 ? threads : 1;
    bool weight = op_has(o, OP_WEIGHT), forward = !op_has(o, OP_GRADIENT);
    if (weight) { /* dy^T x */
        s.k = first->shape[0];
        s.a_row = 1;
        s.a_column = first->pitch;
    } else {
        s.k = first->shape[1];
        s.a_row = first->pitch;
        s.a_column = 1;
    }
    s.b_row = forward ? 1 : second->pitch; /* forward: x w^T */
    s.b_column = forward ? second->pitch : 1;
    s.bias = forward && o->in[2];
    s.add = weight || (!forward && o->in[2]);
    return s;
}

/* *out: oneDNN's product, or NULL where our tiles multiply: what it does not take on this processor, or should not. */
static status library_product(struct onednn_product **out, const gemm_shape *s)
{
    *out = NULL;
    if (s->type == DTYPE_FP16 || (s->type == DTYPE_BF16 && !isa_has_bf16(isa_detect())))
        return STATUS_OK;
    if (onednn_product_get(out, s) != STATUS_OK || !onednn_product_usable(*out))
        *out = NULL;
    return STATUS_OK;
}

int64_t gemm_scratch_bytes(const op *o, int threads)
{
    op product = fuse_first(o);
    gemm_shape s = shape_of(&product, threads);
    struct onednn_product *p;
    MUST(library_product(&p, &s) == STATUS_OK, "%s", status_message());
    return p ? onednn_product_scratch(p) : tile_gemm_scratch(s.threads);
}

static gemm_operands operands_of(const op *o, const run_context *r)
{
    return (gemm_operands){
        .c = tensor_at(o->out[0], r->arena),
        .a = tensor_at(o->in[0], r->arena),
        .b = tensor_at(o->in[1], r->arena),
        .bias = op_has(o, OP_GRADIENT) ? NULL : tensor_at(o->in[2], r->arena),
        .scratch = tensor_at(o->scratch, r->arena),
    };
}

/* Is the product added to what the output has? */
static bool adds(const op *o)
{
    if (op_has(o, OP_WEIGHT))
        return o->at.accumulate != OP_WRITES;
    return op_has(o, OP_GRADIENT) && o->in[2];
}

static bool run_library(const op_prepared *self, const op *o, const run_context *r)
{
    gemm_operands operands = operands_of(o, r);
    onednn_product_run(self, &operands, adds(o));
    return true;
}

status gemm_prepare(op *o, int threads)
{
    op product = fuse_first(o);
    gemm_shape s = shape_of(&product, threads);
    struct onednn_product *p;
    o->prepared = NULL;
    TRY(library_product(&p, &s));
    return p ? onednn_product_prepare(&o->prepared, p, run_library) : STATUS_OK;
}

static void multiply(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    gemm_operands operands = operands_of(o, r);
    gemm_shape s = shape_of(o, r->threads);
    tile_gemm_run(&s, &operands, adds(o), isa_of(r));
}

void cpu_linear(const op *o, const run_context *r)
{
    multiply(o, r);
}

/* The addend is copied to the output, unless it is there already. */
void cpu_linear_grad_input(const op *o, const run_context *r)
{
    const tensor *addend = o->in[2], *dx = o->out[0];
    if (addend && addend->address != dx->address) {
        size_t bytes = (size_t)(dx->shape[1] * dtype_bytes((dtype)dx->type));
#pragma omp parallel for num_threads(parallel_threads(r, tensor_elements(dx))) schedule(static)
        for (int64_t t = 0; t < dx->shape[0]; t++)
            memcpy(row_at(dx, r, t), row_at(addend, r, t), bytes);
    }
    multiply(o, r);
}

void cpu_linear_grad_weight(const op *o, const run_context *r)
{
    multiply(o, r);
}

/* The host fuses nothing: what would be saved is small beside a product, and no bit may depend on fusion. */
static void two_steps(const op *o, const run_context *r)
{
    op first = fuse_first(o), second = fuse_second(o);
    cpu_backend.kernels[first.kind](&first, r);
    cpu_backend.kernels[second.kind](&second, r);
}

void cpu_linear_gelu(const op *o, const run_context *r)
{
    two_steps(o, r);
}

void cpu_linear_grad_gelu(const op *o, const run_context *r)
{
    two_steps(o, r);
}
