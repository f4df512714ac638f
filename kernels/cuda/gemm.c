/* The three products of a linear layer by cuBLASLt.
 *
 * The library thinks in columns: a row-major matrix [r, c] of pitch p is to it a matrix [c, r] with leading dimension p.
 * So each product is computed transposed, D = op(A) op(B) with the operands exchanged:
 *
 *     y [t, n]  = x [t, k] w [n, k]^T      y^T  [n, t] = (w^T [k, n])^T  x^T [k, t]     A = w, turned   B = x
 *     dx [t, k] = dy [t, n] w [n, k]       dx^T [k, t] =  w^T [k, n]    dy^T [n, t]     A = w           B = dy
 *     dw [n, k] = dy [t, n]^T x [t, k]     dw^T [k, n] =  x^T [k, t]   (dy^T [n, t])^T  A = x           B = dy, turned
 *
 * where X^T stands for the bytes of the row-major X as the library reads them. The bias of `linear` has one element for
 * each row of D = y^T, which is what the library's bias epilogue adds. Sums are fp32 throughout; weight gradients are
 * fp32 in memory and added to there (beta = 1), so that micro-batches accumulate without a rounding or a second pass.
 */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/host.h"

#define BLAS_MUST(call)                                                                                                \
    do {                                                                                                               \
        cublasStatus_t blas_must_ = (call);                                                                            \
        MUST(blas_must_ == CUBLAS_STATUS_SUCCESS, "%s: %s", #call, cublasLtGetStatusString(blas_must_));               \
    } while (0)

/* Workspace: at most this many partial sums of the output (split over k), within the bounds the library recommends. */
enum { PARTIAL_SUMS = 16, WORKSPACE_LEAST = 64 << 10, WORKSPACE_MOST = 32 << 20, ALIGNMENT_MOST = 256 };

/* What decides about descriptors and algorithm; compared as bytes. */
typedef struct product {
    int64_t m, n, k;                /* D is [m, n], as the library sees it */
    int64_t a_ld, b_ld, c_ld, d_ld; /* elements */
    int64_t workspace;
    const void *bias; /* device address, or NULL */
    int32_t type;     /* of A, B and the bias */
    int32_t out_type;
    int32_t a_turned, b_turned;
    int32_t alignment[4]; /* bytes, of A, B, C, D */
} product;

typedef struct plan {
    product shape;
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t description;
    cublasLtMatrixLayout_t a, b, c, d;
    cublasLtMatmulAlgo_t algorithm;
    struct plan *next;
} plan;

struct gemm {
    cublasLtHandle_t handle;
    bool tf32;
    plan *plans;
};

static const cudaDataType_t types[DTYPE_COUNT] = {
    [DTYPE_FP32] = CUDA_R_32F, [DTYPE_BF16] = CUDA_R_16BF, [DTYPE_FP16] = CUDA_R_16F};

bool gemm_is_product(const op *o)
{
    return o->kind == OP_linear || o->kind == OP_linear_grad_input || o->kind == OP_linear_grad_weight;
}

int64_t gemm_workspace_bytes(const op *o)
{
    if (!gemm_is_product(o))
        return 0;
    int64_t bytes = tensor_elements(o->out[0]) * 4 * PARTIAL_SUMS;
    bytes = (bytes + ALIGNMENT_MOST - 1) / ALIGNMENT_MOST * ALIGNMENT_MOST;
    return bytes < WORKSPACE_LEAST ? WORKSPACE_LEAST : bytes > WORKSPACE_MOST ? WORKSPACE_MOST : bytes;
}

/* ---- an op's operands ------------------------------------------------------------------------------------------ */

typedef struct operands {
    const tensor *a, *b, *c; /* c: what is added, NULL: nothing */
    const tensor *bias;
} operands;

static operands operands_of(const op *o)
{
    switch (o->kind) {
    case OP_linear:
        return (operands){o->in[1], o->in[0], NULL, o->in[2]};
    case OP_linear_grad_input:
        return (operands){o->in[1], o->in[0], o->in[2], NULL};
    default:
        return (operands){o->in[1], o->in[0], o->at.accumulate ? o->out[0] : NULL, NULL};
    }
}

/* The largest power of two that divides the address, up to what the library asks about. */
static int32_t alignment_of(const tensor *t, char *arena)
{
    uintptr_t address = (uintptr_t)tensor_at(t, arena) | ALIGNMENT_MOST;
    return (int32_t)(address & -address);
}

static product product_of(const op *o, char *arena)
{
    operands x = operands_of(o);
    const tensor *d = o->out[0], *c = x.c ? x.c : d;
    product p;
    memset(&p, 0, sizeof p);
    p.m = d->shape[1];
    p.n = d->shape[0];
    p.k = o->kind == OP_linear_grad_weight ? x.a->shape[0] : x.b->shape[1];
    p.a_turned = o->kind == OP_linear;
    p.b_turned = o->kind == OP_linear_grad_weight;
    p.a_ld = x.a->pitch;
    p.b_ld = x.b->pitch;
    p.c_ld = c->pitch;
    p.d_ld = d->pitch;
    p.type = x.a->type;
    p.out_type = d->type;
    p.workspace = o->scratch ? tensor_bytes(o->scratch) : 0;
    p.bias = tensor_at(x.bias, arena);
    const tensor *all[] = {x.a, x.b, c, d};
    for (int i = 0; i < 4; i++)
        p.alignment[i] = alignment_of(all[i], arena);
    return p;
}

/* ---- descriptors ----------------------------------------------------------------------------------------------- */

static cublasLtMatrixLayout_t layout(int32_t type, int64_t rows, int64_t columns, int64_t ld)
{
    cublasLtMatrixLayout_t made;
    /* one column may have any pitch; the library wants at least the rows */
    BLAS_MUST(cublasLtMatrixLayoutCreate(&made, types[type], (uint64_t)rows, (uint64_t)columns, ld < rows ? rows : ld));
    return made;
}

static void describe(plan *p, bool tf32)
{
    const product *s = &p->shape;
    cublasComputeType_t compute = s->type == DTYPE_FP32 && tf32 ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F;
    BLAS_MUST(cublasLtMatmulDescCreate(&p->description, compute, CUDA_R_32F));
    cublasOperation_t a = s->a_turned ? CUBLAS_OP_T : CUBLAS_OP_N, b = s->b_turned ? CUBLAS_OP_T : CUBLAS_OP_N;
    BLAS_MUST(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSA, &a, sizeof a));
    BLAS_MUST(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_TRANSB, &b, sizeof b));
    if (s->bias) {
        cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
        BLAS_MUST(
            cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue, sizeof epilogue));
        BLAS_MUST(cublasLtMatmulDescSetAttribute(p->description, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &s->bias,
                                                 sizeof s->bias));
    }
    p->a = s->a_turned ? layout(s->type, s->k, s->m, s->a_ld) : layout(s->type, s->m, s->k, s->a_ld);
    p->b = s->b_turned ? layout(s->type, s->n, s->k, s->b_ld) : layout(s->type, s->k, s->n, s->b_ld);
    p->c = layout(s->out_type, s->m, s->n, s->c_ld);
    p->d = layout(s->out_type, s->m, s->n, s->d_ld);
}

static status choose(plan *p)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const product *s = &p->shape;
    cublasLtMatmulPreference_t preference;
    BLAS_MUST(cublasLtMatmulPreferenceCreate(&preference));
    uint64_t workspace = (uint64_t)s->workspace;
    BLAS_MUST(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace,
                                                   sizeof workspace));
    for (int i = 0; i < 4; i++) {
        uint32_t bytes = (uint32_t)s->alignment[i];
        BLAS_MUST(cublasLtMatmulPreferenceSetAttribute(preference, alignments[i], &bytes, sizeof bytes));
    }
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    cublasStatus_t s_ = cublasLtMatmulAlgoGetHeuristic(p->handle, p->description, p->a, p->b, p->c, p->d, preference, 1,
                                                       &found, &count);
    BLAS_MUST(cublasLtMatmulPreferenceDestroy(preference));
    if (s_ != CUBLAS_STATUS_SUCCESS || count == 0)
        return status_fail(STATUS_FAILED,
                           "cuBLASLt has no algorithm for a product of %lld x %lld x %lld in %s (%s): use another "
                           "train.precision",
                           (long long)s->m, (long long)s->n, (long long)s->k, dtype_name((dtype)s->type),
                           cublasLtGetStatusString(s_));
    p->algorithm = found.algo;
    return STATUS_OK;
}

static void plan_free(plan *p)
{
    cublasLtMatrixLayoutDestroy(p->a);
    cublasLtMatrixLayoutDestroy(p->b);
    cublasLtMatrixLayoutDestroy(p->c);
    cublasLtMatrixLayoutDestroy(p->d);
    cublasLtMatmulDescDestroy(p->description);
    free(p);
}

static status plan_make(plan **out, gemm *g, const product *shape)
{
    plan *p = must_calloc(1, sizeof *p);
    p->shape = *shape;
    p->handle = g->handle;
    describe(p, g->tf32);
    status s = choose(p);
    if (s != STATUS_OK) {
        plan_free(p);
        return s;
    }
    p->next = g->plans;
    g->plans = p;
    *out = p;
    return STATUS_OK;
}

/* ---- the interface --------------------------------------------------------------------------------------------- */

status gemm_open(gemm **out, bool tf32)
{
    gemm *g = must_calloc(1, sizeof *g);
    g->tf32 = tf32;
    cublasStatus_t s = cublasLtCreate(&g->handle);
    if (s != CUBLAS_STATUS_SUCCESS) {
        free(g);
        return status_fail(STATUS_FAILED, "cuBLASLt does not start: %s", cublasLtGetStatusString(s));
    }
    *out = g;
    return STATUS_OK;
}

void gemm_close(gemm *g)
{
    if (!g)
        return;
    for (plan *p = g->plans, *next; p; p = next) {
        next = p->next;
        plan_free(p);
    }
    cublasLtDestroy(g->handle);
    free(g);
}

status gemm_prepare_on(gemm *g, op *o, char *arena)
{
    o->prepared = NULL;
    if (tensor_elements(o->out[0]) == 0)
        return STATUS_OK;
    product shape = product_of(o, arena);
    for (plan *p = g->plans; p; p = p->next)
        if (!memcmp(&p->shape, &shape, sizeof shape)) {
            o->prepared = p;
            return STATUS_OK;
        }
    plan *made = NULL;
    TRY(plan_make(&made, g, &shape));
    o->prepared = made;
    return STATUS_OK;
}

static void multiply(const op *o, const run_context *r)
{
    const plan *p = o->prepared;
    if (!p)
        return; /* nothing to compute: a rank without rows of it */
    operands x = operands_of(o);
    float alpha = 1, beta = x.c ? 1 : 0;
    void *d = tensor_at(o->out[0], r->arena);
    const void *c = x.c ? tensor_at(x.c, r->arena) : d;
    BLAS_MUST(cublasLtMatmul(p->handle, p->description, &alpha, tensor_at(x.a, r->arena), p->a,
                             tensor_at(x.b, r->arena), p->b, &beta, c, p->c, d, p->d, &p->algorithm,
                             tensor_at(o->scratch, r->arena), (size_t)p->shape.workspace, r->stream));
}

void cuda_linear(const op *o, const run_context *r)
{
    multiply(o, r);
}

void cuda_linear_grad_input(const op *o, const run_context *r)
{
    multiply(o, r);
}

void cuda_linear_grad_weight(const op *o, const run_context *r)
{
    multiply(o, r);
}
