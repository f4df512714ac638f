/* cuBLASLt: descriptors that remember, a heuristic that always finds something, and a product by its definition.
 *
 * There are ALGORITHMS algorithms: number i splits k into i + 1 parts, whose sums are rounded to fp32 before they are
 * added, so that each leaves other bits; one is faster than the rest. */
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/dtype.h"
#include "memory/log.h"
#include "tests/cuda/standin/standin.h"

typedef struct description {
    cublasComputeType_t compute;
    cublasOperation_t a, b;
    cublasLtEpilogue_t epilogue;
    const void *bias;
    void *aux;
    int64_t aux_ld;
} description;

typedef struct layout {
    cudaDataType_t type;
    int64_t rows, columns, ld;
} layout;

typedef struct preference {
    uint64_t workspace;
    uint32_t alignment[4], reductions;
} preference;

enum { ALGORITHM = 0x5a5a, ALGORITHMS = 4 };
/* cublasLtMatmulAlgo_t.data */
enum { IS_ONE, WORKSPACE, ALIGNMENTS, NUMBER = ALIGNMENTS + 4 };

static int opened;
static int64_t used[ALGORITHMS];

static int fastest(void)
{
    const char *text = getenv("STANDIN_FASTEST");
    return ((text ? atoi(text) : 0) + log_rank()) % ALGORITHMS;
}

size_t cublasLtGetVersion(void)
{
    const char *text = getenv("STANDIN_CUBLASLT");
    return text ? (size_t)atoll(text) : CUBLAS_VERSION;
}

const char *cublasLtGetStatusString(cublasStatus_t s)
{
    return s == CUBLAS_STATUS_SUCCESS ? "success" : "failure";
}

cublasStatus_t cublasLtCreate(cublasLtHandle_t *out)
{
    if (!standin_library_takes())
        return CUBLAS_STATUS_ALLOC_FAILED;
    *out = (cublasLtHandle_t)(void *)&opened;
    opened++;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtDestroy(cublasLtHandle_t handle)
{
    (void)handle;
    opened--;
    if (getenv("STANDIN_REPORT"))
        fprintf(stderr, "standin: rank %d: algorithms %lld %lld %lld %lld\n", log_rank(), (long long)used[0],
                (long long)used[1], (long long)used[2], (long long)used[3]);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out, cublasComputeType_t compute, cudaDataType_t scale)
{
    if (scale != CUDA_R_32F)
        standin_fail("cublasLtMatmulDescCreate: alpha and beta are given as fp32");
    description *d = must_calloc(1, sizeof *d);
    d->compute = compute;
    d->a = d->b = CUBLAS_OP_N;
    d->epilogue = CUBLASLT_EPILOGUE_DEFAULT;
    *out = (cublasLtMatmulDesc_t)(void *)d;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d)
{
    free(d);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t to, cublasLtMatmulDescAttributes_t which,
                                              const void *value, size_t bytes)
{
    description *d = (description *)(void *)to;
    struct {
        cublasLtMatmulDescAttributes_t which;
        void *field;
        size_t bytes;
    } fields[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &d->a, sizeof d->a},
                  {CUBLASLT_MATMUL_DESC_TRANSB, &d->b, sizeof d->b},
                  {CUBLASLT_MATMUL_DESC_EPILOGUE, &d->epilogue, sizeof d->epilogue},
                  {CUBLASLT_MATMUL_DESC_BIAS_POINTER, &d->bias, sizeof d->bias},
                  {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &d->aux, sizeof d->aux},
                  {CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &d->aux_ld, sizeof d->aux_ld}};
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        if (fields[i].which == which && fields[i].bytes == bytes) {
            memcpy(fields[i].field, value, bytes);
            return CUBLAS_STATUS_SUCCESS;
        }
    if (which >= CUBLASLT_MATMUL_DESC_A_SCALE_POINTER && which <= CUBLASLT_MATMUL_DESC_B_SCALE_MODE)
        return CUBLAS_STATUS_SUCCESS; /* of fp8, which is refused */
    standin_fail("cublasLtMatmulDescSetAttribute: attribute %d of %zu bytes", (int)which, bytes);
}

cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType_t type, uint64_t rows,
                                          uint64_t columns, int64_t ld)
{
    if (rows == 0 || columns == 0 || ld < (int64_t)rows)
        standin_fail("cublasLtMatrixLayoutCreate: [%llu, %llu] with leading dimension %lld", (unsigned long long)rows,
                     (unsigned long long)columns, (long long)ld);
    layout *l = must_calloc(1, sizeof *l);
    *l = (layout){type, (int64_t)rows, (int64_t)columns, ld};
    *out = (cublasLtMatrixLayout_t)(void *)l;
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l)
{
    free(l);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t *out)
{
    *out = must_calloc(1, sizeof(preference));
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p)
{
    free(p);
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t to,
                                                    cublasLtMatmulPreferenceAttributes_t which, const void *value,
                                                    size_t bytes)
{
    preference *p = (preference *)(void *)to;
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES && bytes == sizeof p->workspace) {
        memcpy(&p->workspace, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK && bytes == sizeof p->reductions) {
        memcpy(&p->reductions, value, bytes);
        return CUBLAS_STATUS_SUCCESS;
    }
    int i = (int)which - (int)CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES;
    if (i < 0 || i > 3 || bytes != sizeof p->alignment[0])
        standin_fail("cublasLtMatmulPreferenceSetAttribute: attribute %d of %zu bytes", (int)which, bytes);
    memcpy(&p->alignment[i], value, bytes);
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- what fits together ---------------------------------------------------------------------------------------- */

static dtype type_of(cudaDataType_t t)
{
    if (t == CUDA_R_32F)
        return DTYPE_FP32;
    if (t == CUDA_R_16BF)
        return DTYPE_BF16;
    if (t == CUDA_R_16F)
        return DTYPE_FP16;
    standin_fail("cuBLASLt: type %d", (int)t);
}

/* What each epilogue does. */
static const struct epilogue {
    cublasLtEpilogue_t which;
    bool bias, gelu, dgelu, aux;
} epilogues[] = {
    {CUBLASLT_EPILOGUE_DEFAULT, false, false, false, false}, {CUBLASLT_EPILOGUE_BIAS, true, false, false, false},
    {CUBLASLT_EPILOGUE_GELU, false, true, false, false},     {CUBLASLT_EPILOGUE_GELU_BIAS, true, true, false, false},
    {CUBLASLT_EPILOGUE_GELU_AUX, false, true, false, true},  {CUBLASLT_EPILOGUE_GELU_AUX_BIAS, true, true, false, true},
    {CUBLASLT_EPILOGUE_DGELU, false, false, true, true},
};

static const struct epilogue *epilogue_of(const description *x, int64_t rows)
{
    const struct epilogue *e = NULL;
    for (size_t i = 0; i < sizeof epilogues / sizeof *epilogues; i++)
        if (epilogues[i].which == x->epilogue)
            e = &epilogues[i];
    if (!e || e->bias != (x->bias != NULL) || e->aux != (x->aux != NULL))
        standin_fail("cuBLASLt: epilogue %d %s bias, %s aux", (int)x->epilogue, x->bias ? "with" : "without",
                     x->aux ? "with" : "without");
    if (e->aux && (x->aux_ld % 8 || x->aux_ld < rows || (uintptr_t)x->aux % 16))
        standin_fail("cuBLASLt: aux at %p with leading dimension %lld of %lld rows", x->aux, (long long)x->aux_ld,
                     (long long)rows);
    return e;
}

typedef struct sizes {
    int64_t m, n, k;
} sizes;

static sizes check_shapes(const description *x, const layout *a, const layout *b, const layout *c, const layout *d)
{
    bool ta = x->a == CUBLAS_OP_T, tb = x->b == CUBLAS_OP_T;
    sizes s = {ta ? a->columns : a->rows, tb ? b->rows : b->columns, ta ? a->rows : a->columns};
    int64_t k = tb ? b->columns : b->rows;
    if (k != s.k || d->rows != s.m || d->columns != s.n || c->rows != s.m || c->columns != s.n)
        standin_fail("cuBLASLt: op(A) [%lld, %lld] op(B) [%lld, %lld] C [%lld, %lld] D [%lld, %lld] do not fit",
                     (long long)s.m, (long long)s.k, (long long)k, (long long)s.n, (long long)c->rows,
                     (long long)c->columns, (long long)d->rows, (long long)d->columns);
    if (a->type != b->type || c->type != d->type || (d->type != a->type && d->type != CUDA_R_32F))
        standin_fail("cuBLASLt: types %d, %d, %d, %d do not go together", (int)a->type, (int)b->type, (int)c->type,
                     (int)d->type);
    if (x->compute != CUBLAS_COMPUTE_32F && !(x->compute == CUBLAS_COMPUTE_32F_FAST_TF32 && a->type == CUDA_R_32F))
        standin_fail("cuBLASLt: compute type %d", (int)x->compute);
    epilogue_of(x, s.m);
    return s;
}

cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t handle, cublasLtMatmulDesc_t what,
                                              cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                              cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                              cublasLtMatmulPreference_t wanted, int asked,
                                              cublasLtMatmulHeuristicResult_t out[], int *found)
{
    const preference *p = (const preference *)(const void *)wanted;
    if (!handle || !opened || asked < 1)
        standin_fail("cublasLtMatmulAlgoGetHeuristic: no handle, or nothing asked for");
    if (((const layout *)(const void *)a)->type == CUDA_R_8F_E4M3) {
        *found = 0;
        return CUBLAS_STATUS_NOT_SUPPORTED;
    }
    if (p->reductions != CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE)
        standin_fail("cublasLtMatmulAlgoGetHeuristic: sums split over k may be added in any order (mask %u)",
                     p->reductions);
    sizes s = check_shapes((void *)what, (void *)a, (void *)b, (void *)c, (void *)d);
    const struct epilogue *e = epilogue_of((void *)what, s.m);
    *found = standin_mutant("no gelu") && (e->gelu || e->dgelu) ? 0 : asked < ALGORITHMS ? asked : ALGORITHMS;
    for (int number = 0; number < *found; number++) {
        cublasLtMatmulHeuristicResult_t *one = &out[number];
        memset(one, 0, sizeof *one);
        one->state = CUBLAS_STATUS_SUCCESS;
        one->workspaceSize = (size_t)p->workspace;
        one->algo.data[IS_ONE] = ALGORITHM;
        one->algo.data[WORKSPACE] = p->workspace;
        one->algo.data[NUMBER] = (uint64_t)number;
        for (int i = 0; i < 4; i++)
            one->algo.data[ALIGNMENTS + i] = p->alignment[i];
    }
    return CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t cublasLtMatmulAlgoCheck(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, cublasLtMatrixLayout_t a,
                                       cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
                                       const cublasLtMatmulAlgo_t *algo, cublasLtMatmulHeuristicResult_t *out)
{
    if (!handle || !opened)
        standin_fail("cublasLtMatmulAlgoCheck: no handle");
    check_shapes((void *)what, (void *)a, (void *)b, (void *)c, (void *)d);
    if (algo->data[IS_ONE] != ALGORITHM || algo->data[NUMBER] >= ALGORITHMS)
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *out = (cublasLtMatmulHeuristicResult_t){
        .algo = *algo, .state = CUBLAS_STATUS_SUCCESS, .workspaceSize = (size_t)algo->data[WORKSPACE]};
    return CUBLAS_STATUS_SUCCESS;
}

/* ---- the product ----------------------------------------------------------------------------------------------- */

static float load(const void *at, dtype type, int64_t index)
{
    float value;
    dtype_convert(&value, DTYPE_FP32, (const char *)at + index * dtype_bytes(type), type, 1);
    return value;
}

static void store(char *at, dtype type, double value)
{
    float rounded = (float)value;
    dtype_convert(at, type, &rounded, DTYPE_FP32, 1);
}

static const double SQRT_2_OVER_PI = 0.79788456080286535588, CUBIC = 0.044715;

static double gelu(double x)
{
    return 0.5 * x * (1 + tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x)));
}

static double gelu_slope(double x)
{
    double t = tanh(SQRT_2_OVER_PI * (x + CUBIC * x * x * x));
    return 0.5 * (1 + t) + 0.5 * x * (1 - t * t) * SQRT_2_OVER_PI * (1 + 3 * CUBIC * x * x);
}

static void touch(int queue, const void *at, const layout *l, bool write)
{
    int64_t element = dtype_bytes(type_of(l->type));
    for (int64_t j = 0; j < l->columns; j++)
        standin_access(queue, (const char *)at + j * l->ld * element, l->rows * element, write, "cublasLtMatmul");
}

static void check_algorithm(const cublasLtMatmulAlgo_t *algo, const void *const at[4], const void *workspace,
                            size_t workspace_bytes)
{
    if (!algo || algo->data[IS_ONE] != ALGORITHM)
        standin_fail("cublasLtMatmul: the algorithm is none that was found");
    if (workspace_bytes < algo->data[WORKSPACE] || (workspace_bytes && (uintptr_t)workspace % 256))
        standin_fail("cublasLtMatmul: %zu bytes of workspace at %p, the algorithm wants %llu", workspace_bytes,
                     workspace, (unsigned long long)algo->data[WORKSPACE]);
    for (int i = 0; i < 4; i++)
        if ((uintptr_t)at[i] % algo->data[ALIGNMENTS + i])
            standin_fail("cublasLtMatmul: operand %d at %p is not aligned to the %llu bytes promised", i, at[i],
                         (unsigned long long)algo->data[ALIGNMENTS + i]);
}

/* As it was when it was asked for: a graph may compute it later. */
typedef struct product {
    description x;
    const layout *la, *lb, *lc, *ld;
    const void *a, *b, *c;
    void *d, *workspace;
    size_t workspace_bytes;
    int algorithm;
    float by, add;
} product;

static void touch_all(int queue, const product *p, const struct epilogue *e, sizes s)
{
    layout aux = {p->ld->type, s.m, s.n, p->x.aux_ld};
    touch(queue, p->a, p->la, false);
    touch(queue, p->b, p->lb, false);
    if (p->add != 0)
        touch(queue, p->c, p->lc, false);
    if (e->aux)
        touch(queue, p->x.aux, &aux, e->gelu);
    if (p->x.bias)
        standin_access(queue, p->x.bias, s.m * dtype_bytes(type_of(p->la->type)), false, "cublasLtMatmul");
    touch(queue, p->d, p->ld, true);
    standin_access(queue, p->workspace, (int64_t)p->workspace_bytes, true, "cublasLtMatmul");
}

/* Algorithm i adds up i + 1 parts of k. */
static double dot(const product *p, int64_t i, int64_t j, int64_t k)
{
    dtype in = type_of(p->la->type);
    int64_t a_row = p->x.a == CUBLAS_OP_T ? p->la->ld : 1, a_column = p->x.a == CUBLAS_OP_T ? 1 : p->la->ld;
    int64_t b_row = p->x.b == CUBLAS_OP_T ? p->lb->ld : 1, b_column = p->x.b == CUBLAS_OP_T ? 1 : p->lb->ld;
    int parts = p->algorithm + 1;
    double sum = 0;
    for (int part = 0; part < parts; part++) {
        double share = 0;
        for (int64_t l = k * part / parts; l < k * (part + 1) / parts; l++)
            share +=
                (double)load(p->a, in, i * a_row + l * a_column) * (double)load(p->b, in, l * b_row + j * b_column);
        sum = parts == 1 ? share : (double)(float)(sum + (double)(float)share);
    }
    return sum;
}

static void multiply(int queue, void *what)
{
    const product *p = what;
    sizes s = check_shapes(&p->x, p->la, p->lb, p->lc, p->ld);
    const struct epilogue *e = epilogue_of(&p->x, s.m);
    dtype in = type_of(p->la->type), out = type_of(p->ld->type);
    standin_tick(queue);
    standin_busy();
    standin_take(queue, p->algorithm == fastest() ? 1 : 2 + p->algorithm);
    used[p->algorithm]++;
    touch_all(queue, p, e, s);
    memset(p->workspace, 0xFF, p->workspace_bytes);
    for (int64_t j = 0; j < s.n; j++)
        for (int64_t i = 0; i < s.m; i++) {
            double sum = (double)p->by * dot(p, i, j, s.k) * (standin_mutant("a product is larger") ? 1.01 : 1);
            if (p->add != 0)
                sum += (double)p->add * (double)load(p->c, out, i + j * p->lc->ld);
            if (p->x.bias)
                sum += (double)load(p->x.bias, in, i);
            char *z = (char *)p->x.aux + (i + j * p->x.aux_ld) * dtype_bytes(out);
            if (e->gelu && e->aux && !standin_mutant("aux is not written"))
                store(z, out, sum);
            if (e->gelu)
                sum = gelu(sum);
            if (e->dgelu)
                sum *= gelu_slope((double)load(z, out, 0));
            store((char *)p->d + (i + j * p->ld->ld) * dtype_bytes(out), out, sum);
        }
}

cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t what, const void *alpha, const void *a,
                              cublasLtMatrixLayout_t a_layout, const void *b, cublasLtMatrixLayout_t b_layout,
                              const void *beta, const void *c, cublasLtMatrixLayout_t c_layout, void *d,
                              cublasLtMatrixLayout_t d_layout, const cublasLtMatmulAlgo_t *algo, void *workspace,
                              size_t workspace_bytes, cudaStream_t stream)
{
    int queue = standin_stream(stream, "cublasLtMatmul");
    if (!handle || !opened)
        standin_fail("cublasLtMatmul: no handle");
    static bool loaded; /* its kernels, at first use */
    if (!loaded && !standin_library_takes())
        return CUBLAS_STATUS_ALLOC_FAILED;
    loaded = true;
    check_algorithm(algo, (const void *const[]){a, b, c, d}, workspace, workspace_bytes);
    product p = {.x = *(const description *)(const void *)what,
                 .la = (const void *)a_layout,
                 .lb = (const void *)b_layout,
                 .lc = (const void *)c_layout,
                 .ld = (const void *)d_layout,
                 .a = a,
                 .b = b,
                 .c = c,
                 .d = d,
                 .workspace = workspace,
                 .workspace_bytes = workspace_bytes,
                 .algorithm = (int)algo->data[NUMBER],
                 .by = *(const float *)alpha,
                 .add = *(const float *)beta};
    if (!standin_keep(queue, multiply, &p, sizeof p))
        multiply(queue, &p);
    return CUBLAS_STATUS_SUCCESS;
}
