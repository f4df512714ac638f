/* The products of a linear layer by cuBLASLt, with the GELU after or before them where it can be fused.
 *
 * The library thinks in columns: a row-major matrix [r, c] of pitch p is to it a matrix [c, r] with leading dimension
 * p. So each product is computed transposed, D = op(A) op(B) with the operands exchanged:
 *
 *     y [t, n]  = x [t, k] w [n, k]^T      y^T  [n, t] = (w^T [k, n])^T  x^T [k, t]     A = w, turned   B = x
 *     dx [t, k] = dy [t, n] w [n, k]       dx^T [k, t] =  w^T [k, n]    dy^T [n, t]     A = w           B = dy
 *     dw [n, k] = dy [t, n]^T x [t, k]     dw^T [k, n] =  x^T [k, t]   (dy^T [n, t])^T  A = x           B = dy, turned
 *
 * where X^T is the bytes of the row-major X as the library reads them. The bias of `linear` has one element for each
 * row of D = y^T, as the library's bias epilogue adds it. Sums are fp32 throughout; weight gradients are fp32 in memory
 * and added to there (beta = 1), so that micro-batches accumulate without a rounding or a second pass.
 *
 * linear_gelu and linear_grad_gelu are epilogues, too, of the fp32 sum: z is their "auxiliary" matrix, laid out as D.
 * Where the library does not do them, the product and a kernel of our own follow each other.
 */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"
#include "kernels/cuda/tuning.h"
#include "kernels/record/fuse.h"
#include "kernels/record/product.h"
#include "kernels/table/precision.h"
#include "memory/scope.h"

#define BLAS_MUST(call)                                                                                                \
    do {                                                                                                               \
        cublasStatus_t blas_must_ = (call);                                                                            \
        MUST(blas_must_ == CUBLAS_STATUS_SUCCESS, "%s: %s", #call, cublasLtGetStatusString(blas_must_));               \
    } while (0)

/* Workspace: at most this many partial sums of the output (split over k), within the bounds the library recommends. */
enum { PARTIAL_SUMS = 16, WORKSPACE_LEAST = 64 << 10, WORKSPACE_MOST = 32 << 20, ALIGNMENT_MOST = 256 };

enum { OPERAND_A, OPERAND_B, OPERAND_C, OPERAND_D, OPERAND_BIAS, OPERAND_AUX, OPERANDS };

/* The library's requirements on the epilogue's z: bytes of its address, elements of its pitch. */
enum { AUX_ALIGNMENT = 16, AUX_PITCH = 8 };

/* The shape that decides about descriptors and algorithm; compared as bytes. */
typedef struct blas_shape {
    int64_t m, n, k;                        /* D is [m, n], as the library sees it */
    int64_t a_ld, b_ld, c_ld, d_ld, aux_ld; /* elements */
    int64_t workspace;
    int32_t type; /* type of A, B and the bias */
    int32_t out_type;
    int32_t a_transposed, b_transposed, adds; /* C, to the product */
    int32_t epilogue;                         /* cublasLtEpilogue_t */
    int32_t alignment[OPERANDS];              /* bytes; 0: absent */
} blas_shape;

typedef struct addresses {
    void *at[OPERANDS];
    void *workspace;
} addresses;

/* A shape's descriptors and algorithms, the library's best guess first. */
typedef struct plan {
    op_prepared prepared; /* first */
    blas_shape shape;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t found[TUNING_CANDIDATES], chosen;
    int candidates;  /* 0: a fused product that the library does not do */
    addresses first; /* operands of the op that it was made for; used for timing */
    struct plan *next;
} plan;

struct gemm {
    cublasLtHandle_t handle;
    bool tf32;
    tuning *tuning;
    plan *plans;
};

static const cudaDataType_t types[DTYPE_COUNT] = {
    [DTYPE_FP32] = CUDA_R_32F, [DTYPE_BF16] = CUDA_R_16BF, [DTYPE_FP16] = CUDA_R_16F};

int64_t gemm_workspace_bytes(const op *o)
{
    if (!op_is(o, OP_CLASS_PRODUCT))
        return 0;
    int64_t bytes = tensor_elements(o->out[0]) * 4 * PARTIAL_SUMS;
    bytes = (bytes + ALIGNMENT_MOST - 1) / ALIGNMENT_MOST * ALIGNMENT_MOST;
    return bytes < WORKSPACE_LEAST ? WORKSPACE_LEAST : bytes > WORKSPACE_MOST ? WORKSPACE_MOST : bytes;
}

/* ---- an op's operands ------------------------------------------------------------------------------------------ */

/* The library's A and B are the product's B and A; its C is the addend. */
static addresses addresses_of(const matrix_product *p, const op *o, char *arena)
{
    return (addresses){.at = {[OPERAND_A] = tensor_at(p->b, arena),
                              [OPERAND_B] = tensor_at(p->a, arena),
                              [OPERAND_C] = tensor_at(p->added ? p->added : p->c, arena),
                              [OPERAND_D] = tensor_at(p->c, arena),
                              [OPERAND_BIAS] = tensor_at(p->bias, arena),
                              [OPERAND_AUX] = tensor_at(p->gelu, arena)},
                       .workspace = tensor_at(o->scratch, arena)};
}

/* Returns the largest power of two that divides the address, up to ALIGNMENT_MOST. */
static int32_t alignment_of(const void *at)
{
    uintptr_t address = (uintptr_t)at | ALIGNMENT_MOST;
    return at ? (int32_t)(address & -address) : 0;
}

/* The library's bias gradients overwrite: over several micro-batches they would want a second pass, and bias_grad
 * adds. */
static cublasLtEpilogue_t epilogue_of(const op *o, const addresses *at)
{
    bool bias = at->at[OPERAND_BIAS], aux = at->at[OPERAND_AUX];
    if (!fuse_is_fused(o))
        return bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    if (op_has(o, OP_GRADIENT))
        return CUBLASLT_EPILOGUE_DGELU;
    if (aux)
        return bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
    return bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

static blas_shape shape_of(const op *o, const matrix_product *p, const addresses *at)
{
    blas_shape s;
    memset(&s, 0, sizeof s);
    s.m = p->n;
    s.n = p->m;
    s.k = p->k;
    s.a_transposed = p->b_transposed;
    s.b_transposed = p->a_transposed;
    s.adds = p->added != NULL;
    s.a_ld = p->b->pitch;
    s.b_ld = p->a->pitch;
    s.c_ld = p->added ? p->added->pitch : p->c->pitch;
    s.d_ld = p->c->pitch;
    s.aux_ld = p->gelu ? p->gelu->pitch : 0;
    s.type = p->a->type;
    s.out_type = p->c->type;
    s.epilogue = (int32_t)epilogue_of(o, at);
    s.workspace = o->scratch ? tensor_bytes(o->scratch) : 0;
    for (int i = 0; i < OPERANDS; i++)
        s.alignment[i] = alignment_of(at->at[i]);
    return s;
}

/* ---- descriptors ----------------------------------------------------------------------------------------------- */

static cublasLtMatrixLayout_t layout(int32_t type, int64_t rows, int64_t columns, int64_t ld)
{
    cublasLtMatrixLayout_t made;
    /* one column may have any pitch; the library wants at least the rows */
    BLAS_MUST(cublasLtMatrixLayoutCreate(&made, types[type], (uint64_t)rows, (uint64_t)columns, ld < rows ? rows : ld));
    return made;
}

#define DESCRIBE(p, attribute, value)                                                                                  \
    BLAS_MUST(                                                                                                         \
        cublasLtMatmulDescSetAttribute((p)->description, CUBLASLT_MATMUL_DESC_##attribute, &(value), sizeof(value)))

/* Sets the epilogue's operands, the only addresses in a description. */
static void point(const plan *p, const addresses *at)
{
    if (p->shape.alignment[OPERAND_BIAS])
        DESCRIBE(p, BIAS_POINTER, at->at[OPERAND_BIAS]);
    if (p->shape.alignment[OPERAND_AUX])
        DESCRIBE(p, EPILOGUE_AUX_POINTER, at->at[OPERAND_AUX]);
}

static void describe(plan *p, bool tf32)
{
    const blas_shape *s = &p->shape;
    bool rounds = precision_rounds((dtype)s->type, tf32);
    cublasComputeType_t compute = rounds ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    BLAS_MUST(cublasLtMatmulDescCreate(&p->description, compute, CUDA_R_32F));
    cublasOperation_t a = s->a_transposed ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->b_transposed ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtEpilogue_t epilogue = (cublasLtEpilogue_t)s->epilogue;
    DESCRIBE(p, TRANSA, a);
    DESCRIBE(p, TRANSB, b);
    DESCRIBE(p, EPILOGUE, epilogue);
    if (s->aux_ld)
        DESCRIBE(p, EPILOGUE_AUX_LD, s->aux_ld);
    point(p, &p->first);
    p->a = s->a_transposed ? layout(s->type, s->k, s->m, s->a_ld) : layout(s->type, s->m, s->k, s->a_ld);
    p->b = s->b_transposed ? layout(s->type, s->n, s->k, s->b_ld) : layout(s->type, s->k, s->n, s->b_ld);
    p->c = layout(s->out_type, s->m, s->n, s->c_ld);
    p->d = layout(s->out_type, s->m, s->n, s->d_ld);
}

static cublasLtMatmulPreference_t preference_of(const blas_shape *s)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    cublasLtMatmulPreference_t made;
    BLAS_MUST(cublasLtMatmulPreferenceCreate(&made));
    uint64_t workspace = (uint64_t)s->workspace;
    BLAS_MUST(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                   sizeof workspace));
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = (uint32_t)s->alignment[i];
        BLAS_MUST(cublasLtMatmulPreferenceSetAttribute(made, alignments[i], &bytes, sizeof bytes));
    }
    /* A product split over k is summed in fp32 and in a fixed order: reruns are bitwise, and bf16 rounds once. */
    uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    BLAS_MUST(cublasLtMatmulPreferenceSetAttribute(made, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &reductions,
                                                   sizeof reductions));
    return made;
}

static void find_algorithms(plan *p)
{
    const blas_shape *s = &p->shape;
    cublasLtMatmulHeuristicResult_t found[TUNING_CANDIDATES];
    int count = 0;
    cublasLtMatmulPreference_t preference = preference_of(s);
    cublasStatus_t failed = cublasLtMatmulAlgoGetHeuristic(p->handle, p->description, p->a, p->b, p->c, p->d,
                                                           preference, TUNING_CANDIDATES, found, &count);
    BLAS_MUST(cublasLtMatmulPreferenceDestroy(preference));
    for (int i = 0; failed == CUBLAS_STATUS_SUCCESS && i < count; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS)
            p->found[p->candidates++] = found[i].algo;
    p->chosen = p->found[0];
}

static cublasStatus_t launch(const plan *p, const addresses *at, const cublasLtMatmulAlgo_t *algorithm, void *stream)
{
    float alpha = 1, beta = p->shape.adds ? 1 : 0;
    point(p, at);
    return cublasLtMatmul(p->handle, p->description, &alpha, at->at[OPERAND_A], p->a, at->at[OPERAND_B], p->b, &beta,
                          at->at[OPERAND_C], p->c, at->at[OPERAND_D], p->d, algorithm, at->workspace,
                          (size_t)p->shape.workspace, stream);
}

/* ---- a choice of algorithms ------------------------------------------------------------------------------------ */

static bool run_candidate(void *plan_, int candidate, cudaStream_t stream)
{
    const plan *p = plan_;
    return launch(p, &p->first, &p->found[candidate], stream) == CUBLAS_STATUS_SUCCESS;
}

/* Writes the algorithm, a plain struct, which a file may keep for the same version of the library. */
static void write_candidate(char *out, int bytes, const void *plan_, int candidate)
{
    const plan *p = plan_;
    const unsigned char *algorithm = (const unsigned char *)&p->found[candidate];
    MUST(bytes > 2 * (int)sizeof p->chosen, "an algorithm is %zu bytes", sizeof p->chosen);
    for (size_t i = 0; i < sizeof p->chosen; i++)
        snprintf(out + 2 * i, 3, "%02x", algorithm[i]);
}

static status take_candidate(void *plan_, const char *words)
{
    plan *p = plan_;
    cublasLtMatmulAlgo_t algorithm;
    cublasLtMatmulHeuristicResult_t result = {.state = CUBLAS_STATUS_INVALID_VALUE};
    unsigned char *bytes = (unsigned char *)&algorithm;
    size_t read = 0;
    unsigned byte;
    while (read < sizeof algorithm && strspn(words + 2 * read, "0123456789abcdef") >= 2 &&
           sscanf(words + 2 * read, "%2x", &byte) == 1)
        bytes[read++] = (unsigned char)byte;
    if (read < sizeof algorithm || words[2 * read] ||
        cublasLtMatmulAlgoCheck(p->handle, p->description, p->a, p->b, p->c, p->d, &algorithm, &result) !=
            CUBLAS_STATUS_SUCCESS ||
        (int64_t)result.workspaceSize > p->shape.workspace)
        return status_fail(STATUS_FAILED, "this is no algorithm that cuBLASLt can use for it");
    p->chosen = algorithm;
    return STATUS_OK;
}

/* The region from the first element to the last of a matrix with `columns` columns as the library sees them. */
static tuning_operand region(void *at, int32_t type, int64_t rows, int64_t columns, int64_t ld)
{
    return (tuning_operand){
        .at = at, .bytes = ((columns - 1) * ld + rows) * dtype_bytes((dtype)type), .type = (dtype)type};
}

static const char *epilogue_name(int32_t epilogue)
{
    static const struct {
        cublasLtEpilogue_t epilogue;
        const char *name;
    } names[] = {{CUBLASLT_EPILOGUE_BIAS, "bias"},
                 {CUBLASLT_EPILOGUE_GELU, "gelu"},
                 {CUBLASLT_EPILOGUE_GELU_BIAS, "bias, gelu"},
                 {CUBLASLT_EPILOGUE_GELU_AUX, "gelu with z kept"},
                 {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, "bias, gelu with z kept"},
                 {CUBLASLT_EPILOGUE_DGELU, "gradient of gelu"}};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((int32_t)names[i].epilogue == epilogue)
            return names[i].name;
    return "none";
}

static void offer(const gemm *g, plan *p)
{
    const blas_shape *s = &p->shape;
    void *const *at = p->first.at;
    tuning_item item = {
        .plan = p, .candidates = p->candidates, .run = run_candidate, .write = write_candidate, .take = take_candidate};
    int length = snprintf(
        item.key, sizeof item.key,
        "product %s%s to %s, %lld x %lld x %lld, %c%c, pitch %lld %lld %lld %lld %lld, aligned %d %d %d %d %d %d, "
        "epilogue: %s%s, workspace %lld | cuBLASLt %zu",
        dtype_name((dtype)s->type), precision_rounds((dtype)s->type, g->tf32) ? " as tf32" : "",
        dtype_name((dtype)s->out_type), (long long)s->m, (long long)s->n, (long long)s->k, s->a_transposed ? 'T' : 'N',
        s->b_transposed ? 'T' : 'N', (long long)s->a_ld, (long long)s->b_ld, (long long)s->c_ld, (long long)s->d_ld,
        (long long)s->aux_ld, s->alignment[0], s->alignment[1], s->alignment[2], s->alignment[3], s->alignment[4],
        s->alignment[5], epilogue_name(s->epilogue), s->adds ? ", added" : "", (long long)s->workspace,
        cublasLtGetVersion());
    MUST(length < (int)sizeof item.key, "%s ...", item.key);
    int64_t m = s->m, n = s->n, k = s->k;
    item.reads[0] = region(at[OPERAND_A], s->type, s->a_transposed ? k : m, s->a_transposed ? m : k, s->a_ld);
    item.reads[1] = region(at[OPERAND_B], s->type, s->b_transposed ? n : k, s->b_transposed ? k : n, s->b_ld);
    item.reads[2] = region(s->adds ? at[OPERAND_C] : NULL, s->out_type, m, n, s->c_ld);
    item.reads[3] = region(at[OPERAND_BIAS], s->type, m, 1, m);
    item.reads[4] = region(at[OPERAND_AUX], s->type, m, n, s->aux_ld);
    tuning_add(g->tuning, &item);
}

/* ---- plans ------------------------------------------------------------------------------------------------------ */

static plan *plan_make(gemm *g, const blas_shape *shape, const addresses *first)
{
    plan *p = must_calloc(1, sizeof *p);
    p->shape = *shape;
    p->first = *first;
    p->handle = g->handle;
    describe(p, g->tf32);
    find_algorithms(p);
    if (p->candidates > 0)
        offer(g, p);
    p->next = g->plans;
    g->plans = p;
    return p;
}

static plan *plan_for(gemm *g, const op *o, char *arena)
{
    matrix_product x = product_of(o);
    addresses at = addresses_of(&x, o, arena);
    blas_shape shape = shape_of(o, &x, &at);
    for (plan *p = g->plans; p; p = p->next)
        if (!memcmp(&p->shape, &shape, sizeof shape))
            return p;
    return plan_make(g, &shape, &at);
}

/* ---- the interface --------------------------------------------------------------------------------------------- */

status gemm_open(gemm **out, bool tf32, tuning *t)
{
    AUTO_FREE gemm *g = must_calloc(1, sizeof *g);
    g->tf32 = tf32;
    g->tuning = t;
    cublasStatus_t s = cublasLtCreate(&g->handle);
    if (s != CUBLAS_STATUS_SUCCESS)
        return status_fail(STATUS_FAILED, "cuBLASLt does not start: %s", cublasLtGetStatusString(s));
    *out = TAKE(g);
    return STATUS_OK;
}

void gemm_close(gemm *g)
{
    if (!g)
        return;
    for (plan *p = g->plans, *next; p; p = next) {
        next = p->next;
        cublasLtMatrixLayoutDestroy(p->a);
        cublasLtMatrixLayoutDestroy(p->b);
        cublasLtMatrixLayoutDestroy(p->c);
        cublasLtMatrixLayoutDestroy(p->d);
        cublasLtMatmulDescDestroy(p->description);
        free(p);
    }
    cublasLtDestroy(g->handle);
    free(g);
}

/* Runs the plan; if the library does only the product of a fused op, our kernel does the second half. */
static bool run_plan(const op_prepared *self, const op *o, const run_context *r)
{
    const plan *p = (const plan *)self;
    bool all = !fuse_is_fused(o) ||
               (p->shape.epilogue != CUBLASLT_EPILOGUE_DEFAULT && p->shape.epilogue != CUBLASLT_EPILOGUE_BIAS);
    op what = all ? *o : fuse_first(o), second = all ? *o : fuse_second(o);
    matrix_product x = product_of(&what);
    addresses at = addresses_of(&x, &what, r->arena);
    BLAS_MUST(launch(p, &at, &p->chosen, r->stream));
    if (!all)
        (op_has(&second, OP_GRADIENT) ? cuda_gelu_grad : cuda_gelu)(&second, r);
    return true;
}

status gemm_prepare_on(gemm *g, op *o, char *arena)
{
    op first = fuse_first(o);
    plan *p = NULL;
    o->prepared = NULL;
    if (tensor_elements(o->out[0]) == 0)
        return STATUS_OK;
    /* Fuses if the library takes z as it lies. Its tanh is a 16-bit one: fp32 uses our own GELU. */
    const tensor *z = product_of(o).gelu;
    if (fuse_is_fused(o) && o->out[0]->type != DTYPE_FP32 &&
        (!z || (alignment_of(tensor_at(z, arena)) >= AUX_ALIGNMENT && z->pitch % AUX_PITCH == 0)))
        p = plan_for(g, o, arena);
    if (!p || p->candidates == 0)
        p = plan_for(g, &first, arena);
    if (p->candidates == 0)
        return status_fail(STATUS_FAILED,
                           "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s: use another "
                           "train.precision",
                           (long long)p->shape.m, (long long)p->shape.n, (long long)p->shape.k,
                           dtype_name((dtype)p->shape.type));
    p->prepared.run = run_plan;
    o->prepared = &p->prepared;
    return STATUS_OK;
}

/* Multiplies; an op without a plan has no rows on this rank. */
static void multiply(const op *o, const run_context *r)
{
    char text[256];
    MUST(op_run_prepared(o, r) || tensor_elements(o->out[0]) == 0, "%s was not prepared",
         op_text(text, sizeof text, o));
}

CUDA_OP(linear, multiply(o, r))
CUDA_OP(linear_wide, multiply(o, r))
CUDA_OP(linear_grad_input, multiply(o, r))
CUDA_OP(linear_grad_weight, multiply(o, r))
CUDA_OP(linear_gelu, multiply(o, r))
CUDA_OP(linear_grad_gelu, multiply(o, r))
