/* The three products of a linear layer as strided matrix products, computed by oneDNN or by our own tiles: the one file
 * that includes oneDNN, versions 2.5 to 3.x. Its C API changed between 2 and 3: operation descriptors went away and
 * memory descriptors became opaque; the wrappers below hide that. Scratchpads are the caller's ("user" mode), so that
 * executing a primitive does not allocate. */
#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cpu/cpu.h"
#include "kernels/cpu/isa.h"
#include "kernels/cpu/parallel.h"
#include "kernels/cpu/products.h"
#include "kernels/record/fuse.h"
#include "kernels/record/product.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { OPERAND_A, OPERAND_B, OPERAND_BIAS, OPERAND_C, OPERAND_SCRATCH, OPERANDS };

static const int argument[OPERANDS] = {DNNL_ARG_SRC, DNNL_ARG_WEIGHTS, DNNL_ARG_BIAS, DNNL_ARG_DST,
                                       DNNL_ARG_SCRATCHPAD};

/* [0] writes C, [1] adds to it; [1] only where the shape asks for it. */
struct product {
    op_prepared prepared; /* first */
    struct product *next;
    gemm_shape shape;
    int64_t scratch;
    dnnl_primitive_desc_t description[2];
    dnnl_primitive_t primitive[2];
    dnnl_memory_t memory[OPERANDS];
};

/* Products made so far in the process: a memo of a pure function of the shape, looked up before the first step only. */
static struct {
    struct product *products;
    dnnl_engine_t engine;
    dnnl_stream_t stream;
} library;

static status check(dnnl_status_t code, const char *what)
{
    if (code == dnnl_success)
        return STATUS_OK;
    return status_fail(STATUS_FAILED, "oneDNN %d.%d refuses to %s (its status %d)", dnnl_version()->major,
                       dnnl_version()->minor, what, (int)code);
}

/* ---- the two APIs ---------------------------------------------------------------------------------------------- */

#if DNNL_VERSION_MAJOR >= 3
typedef dnnl_memory_desc_t memory_shape;
#define SHAPE_POINTER(shape) (shape)
#define append_sum(after)    dnnl_post_ops_append_sum(after, 1, 0, dnnl_data_type_undef)

static dnnl_status_t shape_make(memory_shape *out, int dims, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                const dnnl_dims_t strides)
{
    return dnnl_memory_desc_create_with_strides(out, dims, sizes, type, strides);
}

static void shape_free(memory_shape *shape)
{
    dnnl_memory_desc_destroy(*shape);
}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *out, const memory_shape *s, bool bias,
                                      const_dnnl_primitive_attr_t attr)
{
    return dnnl_matmul_primitive_desc_create(out, library.engine, s[OPERAND_A], s[OPERAND_B],
                                             bias ? s[OPERAND_BIAS] : NULL, s[OPERAND_C], attr);
}
#else
typedef dnnl_memory_desc_t memory_shape;
#define SHAPE_POINTER(shape) (&(shape))
#define append_sum(after)    dnnl_post_ops_append_sum(after, 1)

static dnnl_status_t shape_make(memory_shape *out, int dims, const dnnl_dims_t sizes, dnnl_data_type_t type,
                                const dnnl_dims_t strides)
{
    return dnnl_memory_desc_init_by_strides(out, dims, sizes, type, strides);
}

static void shape_free(memory_shape *shape)
{
    (void)shape;
}

static dnnl_status_t describe_product(dnnl_primitive_desc_t *out, const memory_shape *s, bool bias,
                                      const_dnnl_primitive_attr_t attr)
{
    dnnl_matmul_desc_t operation;
    dnnl_status_t code =
        dnnl_matmul_desc_init(&operation, &s[OPERAND_A], &s[OPERAND_B], bias ? &s[OPERAND_BIAS] : NULL, &s[OPERAND_C]);
    return code == dnnl_success ? dnnl_primitive_desc_create(out, &operation, attr, library.engine, NULL) : code;
}
#endif

/* ---- products -------------------------------------------------------------------------------------------------- */

static void product_free(struct product *p)
{
    if (!p)
        return;
    for (int i = 0; i < OPERANDS; i++)
        if (p->memory[i])
            dnnl_memory_destroy(p->memory[i]);
    for (int i = 0; i < 2; i++) {
        if (p->primitive[i])
            dnnl_primitive_destroy(p->primitive[i]);
        if (p->description[i])
            dnnl_primitive_desc_destroy(p->description[i]);
    }
    free(p);
}

static void release_attributes(dnnl_primitive_attr_t *attr)
{
    dnnl_primitive_attr_destroy(*attr);
}

static void release_post_ops(dnnl_post_ops_t *after)
{
    dnnl_post_ops_destroy(*after);
}

static status describe(struct product *p, const memory_shape *shapes, bool add)
{
    RELEASED_BY(release_attributes) dnnl_primitive_attr_t attr = NULL;
    RELEASED_BY(release_post_ops) dnnl_post_ops_t after = NULL;
    TRY(check(dnnl_primitive_attr_create(&attr), "create attributes"));
    TRY(check(dnnl_post_ops_create(&after), "create post-ops"));
    TRY(check(dnnl_primitive_attr_set_scratchpad_mode(attr, dnnl_scratchpad_mode_user), "leave the scratchpad to us"));
    if (add)
        TRY(check(append_sum(after), "add to the result"));
    TRY(check(dnnl_primitive_attr_set_post_ops(attr, after), "take post-ops"));
    TRY(check(describe_product(&p->description[add], shapes, p->shape.bias, attr),
              "multiply matrices of this shape and type"));
    int64_t bytes = (int64_t)dnnl_memory_desc_get_size(
        dnnl_primitive_desc_query_md(p->description[add], dnnl_query_scratchpad_md, 0));
    p->scratch = bytes > p->scratch ? bytes : p->scratch;
    return STATUS_OK;
}

static status product_shapes(struct product *p)
{
    static const dnnl_data_type_t types[DTYPE_COUNT] = {[DTYPE_FP32] = dnnl_f32, [DTYPE_BF16] = dnnl_bf16};
    const gemm_shape *g = &p->shape;
    const dnnl_dims_t sizes[OPERAND_SCRATCH] = {{g->m, g->k}, {g->k, g->n}, {1, g->n}, {g->m, g->n}};
    const dnnl_dims_t strides[OPERAND_SCRATCH] = {
        {g->a_row, g->a_column}, {g->b_row, g->b_column}, {g->n, 1}, {g->c_row, 1}};
    memory_shape shapes[OPERAND_SCRATCH] = {0}; /* entries that are not made must still be safe to free */
    status s = STATUS_OK;
    int made = 0;
    for (; made < OPERAND_SCRATCH && s == STATUS_OK; made++)
        s = check(
            shape_make(&shapes[made], 2, sizes[made], types[made == OPERAND_C ? g->c_type : g->type], strides[made]),
            "describe a matrix");
    for (int add = 0; add <= !!g->add && s == STATUS_OK; add++)
        s = describe(p, shapes, add);
    for (int i = 0; i < OPERAND_SCRATCH && s == STATUS_OK; i++)
        if (i != OPERAND_BIAS || g->bias)
            s = check(dnnl_memory_create(&p->memory[i], SHAPE_POINTER(shapes[i]), library.engine, DNNL_MEMORY_NONE),
                      "bind a matrix");
    for (int i = 0; i < made; i++)
        shape_free(&shapes[i]);
    return s;
}

/* A scratchpad as large as the two primitives need. */
static status product_scratch(struct product *p)
{
    if (p->scratch == 0)
        return STATUS_OK;
    memory_shape shape;
    const dnnl_dims_t sizes = {p->scratch}, strides = {1};
    TRY(check(shape_make(&shape, 1, sizes, dnnl_u8, strides), "describe a scratchpad"));
    status s =
        check(dnnl_memory_create(&p->memory[OPERAND_SCRATCH], SHAPE_POINTER(shape), library.engine, DNNL_MEMORY_NONE),
              "bind a scratchpad");
    shape_free(&shape);
    return s;
}

/* The product of a shape: described on first asking and kept in a table of the process, a memo of a pure function. */
static status product_get(struct product **out, const gemm_shape *shape)
{
    for (struct product *p = library.products; p; p = p->next)
        if (!memcmp(&p->shape, shape, sizeof *shape)) { // NOLINT(*-suspicious-memory-comparison): made on zeroed bytes
            *out = p;
            return STATUS_OK;
        }
    if (!library.engine) {
        TRY(check(dnnl_engine_create(&library.engine, dnnl_cpu, 0), "create a CPU engine"));
        TRY(check(dnnl_stream_create(&library.stream, library.engine, dnnl_stream_default_flags), "create a stream"));
    }
    struct product *p = must_calloc(1, sizeof *p);
    int threads = omp_get_max_threads();
    p->shape = *shape;
    omp_set_num_threads(shape->threads); /* how the work is divided is decided here */
    status s = product_shapes(p);
    if (s == STATUS_OK)
        s = product_scratch(p);
    omp_set_num_threads(threads);
    if (s != STATUS_OK) {
        product_free(p);
        return s;
    }
    p->next = library.products;
    library.products = p;
    *out = p;
    return STATUS_OK;
}

/* False if running it would allocate memory: oneDNN's older products, which it takes below AVX-512, pack operands into
 * buffers of their own whatever the scratchpad mode. False too for bf16 products on AMX with a depth that leaves 31 of
 * a tile's 32: oneDNN 2.6.3's are wrong, or end the program with an illegal instruction (k = 63, 1567, ...; found by
 * comparing every depth). */
static bool product_usable(const struct product *p)
{
    for (int add = 0; add < 2; add++) {
        const char *name = p->description[add] ? "" : "brg", *said = NULL;
        if (p->description[add] &&
            dnnl_primitive_desc_query(p->description[add], dnnl_query_impl_info_str, 0, (void *)&said) == dnnl_success)
            name = said;
        bool allocates = strncmp(name, "brg", 3) != 0;
        bool wrong = strstr(name, "amx") && p->shape.type == DTYPE_BF16 && p->shape.k % 32 == 31;
        if (allocates || wrong)
            return false;
    }
    return true;
}

/* operands->adds: only where shape.add */
static void product_run(const struct product *p, const gemm_operands *operands)
{
    /* the API takes no pointer to const, and only reads A, B and the bias */
    const void *addresses[OPERANDS] = {operands->a, operands->b, operands->bias, operands->c, operands->scratch};
    dnnl_exec_arg_t arguments[OPERANDS];
    int count = 0, threads = omp_get_max_threads();
    dnnl_status_t code = dnnl_success;
    for (int i = 0; i < OPERANDS; i++)
        if (p->memory[i]) {
            void *address;
            memcpy(&address, &addresses[i], sizeof address);
            if (code == dnnl_success)
                code = dnnl_memory_set_data_handle(p->memory[i], address);
            arguments[count++] = (dnnl_exec_arg_t){argument[i], p->memory[i]};
        }
    if (threads != p->shape.threads)
        omp_set_num_threads(p->shape.threads);
    if (code == dnnl_success)
        code = dnnl_primitive_execute(p->primitive[operands->adds], library.stream, count, arguments);
    if (code == dnnl_success)
        code = dnnl_stream_wait(library.stream);
    if (threads != p->shape.threads)
        omp_set_num_threads(threads);
    MUST(code == dnnl_success, "oneDNN status %d in a product [%lld, %lld] [%lld, %lld]", (int)code,
         (long long)p->shape.m, (long long)p->shape.k, (long long)p->shape.k, (long long)p->shape.n);
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* Row-major operands; `pitch` steps rows. memset because shapes are compared as bytes. */
static gemm_shape shape_of(const op *o, int threads)
{
    matrix_product p = product_of(o);
    gemm_shape s;
    memset(&s, 0, sizeof s);
    s.m = p.m;
    s.n = p.n;
    s.k = p.k;
    s.a_row = p.a_transposed ? 1 : p.a->pitch;
    s.a_column = p.a_transposed ? p.a->pitch : 1;
    s.b_row = p.b_transposed ? 1 : p.b->pitch;
    s.b_column = p.b_transposed ? p.b->pitch : 1;
    s.c_row = p.c->pitch;
    s.type = p.a->type;
    s.c_type = p.c->type;
    s.threads = threads > 1 ? threads : 1;
    s.bias = p.bias != NULL;
    s.add = p.accumulates || p.added;
    return s;
}

/* Returns oneDNN's product, or NULL where our tiles multiply: oneDNN cannot take it on this processor or should not. */
static struct product *library_product(const gemm_shape *s)
{
    struct product *p = NULL;
    bool refused = s->type == DTYPE_FP16 || (s->type == DTYPE_BF16 && !isa_has_bf16(isa_detect()));
    return !refused && product_get(&p, s) == STATUS_OK && product_usable(p) ? p : NULL;
}

int64_t gemm_scratch_bytes(const op *o, int threads)
{
    op first = fuse_first(o);
    gemm_shape s = shape_of(&first, threads);
    struct product *p = library_product(&s);
    return p ? p->scratch : tile_gemm_scratch(s.threads);
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
    product_run((const struct product *)self, &operands);
    return true;
}

/* Compiles the library's products, at most once a shape. */
status gemm_prepare(op *o, int threads)
{
    op first = fuse_first(o);
    gemm_shape shape = shape_of(&first, threads);
    struct product *p = library_product(&shape);
    status s = STATUS_OK;
    o->prepared = NULL;
    if (!p)
        return s;
    int before = omp_get_max_threads();
    omp_set_num_threads(p->shape.threads);
    for (int add = 0; add <= !!p->shape.add && s == STATUS_OK; add++)
        if (!p->primitive[add])
            s = check(dnnl_primitive_create(&p->primitive[add], p->description[add]), "make a product");
    omp_set_num_threads(before);
    p->prepared.run = run_library;
    o->prepared = s == STATUS_OK ? &p->prepared : NULL;
    return s;
}

static void multiply(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    gemm_operands operands = operands_of(o, r);
    gemm_shape s = shape_of(o, r->threads);
    tile_gemm_run(&s, &operands, isa_of(r));
}

CPU_OP(linear, multiply(o, r))
CPU_OP(linear_wide, multiply(o, r))

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

CPU_OP(linear_grad_weight, multiply(o, r))

/* Runs a fused op as its two ops: fusing would save little beside a product, and no bit may depend on fusion. */
static void two_steps(const op *o, const run_context *r)
{
    op first = fuse_first(o), second = fuse_second(o);
    cpu_backend.kernels[first.kind](&first, r);
    cpu_backend.kernels[second.kind](&second, r);
}

CPU_OP(linear_gelu, two_steps(o, r))
CPU_OP(linear_grad_gelu, two_steps(o, r))

void gemm_words(char *out, int bytes)
{
    snprintf(out, (size_t)bytes, "version %d.%d.%d, instruction set 0x%x", dnnl_version()->major, dnnl_version()->minor,
             dnnl_version()->patch, (unsigned)dnnl_get_effective_cpu_isa());
}
