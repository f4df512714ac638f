/* The three products of a linear layer as strided matrix products, by oneDNN or by our own tiles. */
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/onednn.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/record/fuse.h"
#include "kernels/record/product.h"
#include "memory/log.h"

/* Row-major operands; `pitch` steps rows. memset because shapes are compared as bytes. */
static gemm_shape shape_of(const op *o, int threads)
{
    matrix_product p = product_of(o);
    gemm_shape s;
    memset(&s, 0, sizeof s);
    s.m = p.m;
    s.n = p.n;
    s.k = p.k;
    s.a_row = p.a_turned ? 1 : p.a->pitch;
    s.a_column = p.a_turned ? p.a->pitch : 1;
    s.b_row = p.b_turned ? 1 : p.b->pitch;
    s.b_column = p.b_turned ? p.b->pitch : 1;
    s.c_row = p.c->pitch;
    s.type = p.a->type;
    s.c_type = p.c->type;
    s.threads = threads > 1 ? threads : 1;
    s.bias = p.bias != NULL;
    s.add = p.accumulates || p.added;
    return s;
}

/* oneDNN's product, or NULL where our tiles multiply: what it does not take on this processor, or should not. */
static struct onednn_product *library_product(const gemm_shape *s)
{
    struct onednn_product *p = NULL;
    bool refused = s->type == DTYPE_FP16 || (s->type == DTYPE_BF16 && !isa_has_bf16(isa_detect()));
    return !refused && onednn_product_get(&p, s) == STATUS_OK && onednn_product_usable(p) ? p : NULL;
}

int64_t gemm_scratch_bytes(const op *o, int threads)
{
    op first = fuse_first(o);
    gemm_shape s = shape_of(&first, threads);
    struct onednn_product *p = library_product(&s);
    return p ? onednn_product_scratch(p) : tile_gemm_scratch(s.threads);
}

static gemm_operands operands_of(const op *o, const run_context *r)
{
    matrix_product p = product_of(o);
    return (gemm_operands){
        .c = tensor_at(p.c, r->arena),
        .a = tensor_at(p.a, r->arena),
        .b = tensor_at(p.b, r->arena),
        .bias = tensor_at(p.bias, r->arena),
        .scratch = tensor_at(o->scratch, r->arena),
        .adds = p.added != NULL,
    };
}

static bool run_library(const op_prepared *self, const op *o, const run_context *r)
{
    gemm_operands operands = operands_of(o, r);
    onednn_product_run(self, &operands);
    return true;
}

status gemm_prepare(op *o, int threads)
{
    op first = fuse_first(o);
    gemm_shape s = shape_of(&first, threads);
    struct onednn_product *p = library_product(&s);
    o->prepared = NULL;
    return p ? onednn_product_prepare(&o->prepared, p, run_library) : STATUS_OK;
}

static void multiply(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    gemm_operands operands = operands_of(o, r);
    gemm_shape s = shape_of(o, r->threads);
    tile_gemm_run(&s, &operands, isa_of(r));
}

void cpu_linear(const op *o, const run_context *r)
{
    multiply(o, r);
}

void cpu_linear_wide(const op *o, const run_context *r)
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
