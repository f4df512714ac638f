/* What a GPU and its libraries do with work that the engine does not use, or only plans to: each probe takes some three
 * seconds, prints a line a figure, and fails only where something is wrong, not where it is slow or refused.
 *
 *     probes [fp8 | grouped | offset | copies]...      exit status 77: there is no device
 *
 * fp8: cuBLASLt's products of e4m3 by mode of scaling, beside bf16's. grouped: products of experts, even and skewed,
 * beside one product of as many FLOPs. offset: attention whose queries begin late in a sample, by each way that the
 * device has, beside a whole causal one. copies: copies to and from host memory beside products. Linked with the
 * stand-ins sizes are small, and times are made up.
 */
#include <cublasLt.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/log.h"
#include "tests/cuda/gpu/probe.h"

enum { NONE = 77 };

static bool small; /* the stand-ins' sizes */

/* ---- products of experts ----------------------------------------------------------------------------------------- */

/* Writes int32 [experts + 1]: rows of expert e are offsets[e] .. offsets[e + 1]; skewed: a share falls as 1 / (e + 1).
 */
static void write_offsets(probe *p, const tensor *t, int64_t rows, int experts, bool skewed)
{
    double all = 0, so_far = 0;
    int32_t *offsets = p->on->borrow(p->d, t->address, tensor_bytes(t));
    for (int e = 0; e < experts; e++)
        all += skewed ? 1.0 / (e + 1) : 1;
    for (int e = 0; e <= experts; e++) {
        offsets[e] = (int32_t)llround((double)rows * so_far / all);
        so_far += skewed ? 1.0 / (e + 1) : 1;
    }
    p->on->give_back(p->d, offsets, t->address, tensor_bytes(t), true);
}

static void grouped(probe *p)
{
    const int64_t rows = small ? 64 : 32768, hidden = small ? 16 : 2048, wide = small ? 24 : 1408;
    const int experts = small ? 4 : 64;
    static const char *const names[] = {"y = x w^T", "dx = dy w", "dw += dy^T x"};
    for (int k = 0; k < 3; k++) {
        probe_clear(p);
        tensor *x = probe_tensor(p, DTYPE_BF16, rows, hidden), *dy = probe_tensor(p, DTYPE_BF16, rows, wide);
        tensor *w = probe_tensor(p, DTYPE_BF16, experts * wide, hidden),
               *dw = probe_tensor(p, DTYPE_FP32, experts * wide, hidden);
        tensor *one = probe_tensor(p, DTYPE_BF16, wide, hidden), *sum = probe_tensor(p, DTYPE_FP32, wide, hidden);
        tensor *offsets = probe_tensor(p, DTYPE_INT32, experts + 1, 0);
        op of_experts[] = {{.kind = OP_grouped_linear, .in = {x, w, offsets}, .out = {dy}},
                           {.kind = OP_grouped_linear_grad_input, .in = {dy, w, offsets}, .out = {x}},
                           {.kind = OP_grouped_linear_grad_weight, .in = {dy, x, offsets}, .out = {dw}}};
        op of_one[] = {{.kind = OP_linear, .in = {x, one}, .out = {dy}},
                       {.kind = OP_linear_grad_input, .in = {dy, one}, .out = {x}},
                       {.kind = OP_linear_grad_weight, .in = {dy, x}, .out = {sum}}};
        probe_prepare(p, &of_experts[k]);
        probe_prepare(p, &of_one[k]);
        probe_finish(p);
        probe_fill(p);
        double flops = 2.0 * (double)rows * (double)hidden * (double)wide, single = probe_seconds(p, &of_one[k]);
        for (int skewed = 0; skewed < 2; skewed++) {
            write_offsets(p, offsets, rows, experts, skewed);
            double took = probe_seconds(p, &of_experts[k]);
            printf("grouped %s, %lld rows of %d experts, %s: %.3g TFLOP/s, %.2f of one product's %.3g\n", names[k],
                   (long long)rows, experts, skewed ? "skewed" : "even", flops / took / 1e12, single / took,
                   flops / single / 1e12);
        }
    }
    printf("grouped: cuBLASLt %s grouped layouts of its own\n",
           probe_symbol("cublasLtGroupedMatrixLayoutCreate") ? "has" : "has no");
}

/* ---- attention whose queries begin late -------------------------------------------------------------------------- */

static void print_ways(probe *p, op *o, const char *what, double of_whole)
{
    enum { MOST = 3 };
    const char *key = p->on->choices.wanted(p->d, p->wanted - 1);
    device_choice c = {.microseconds = 0};
    double flops = op_row_of(o)->cost(o).flops;
    if (!key || !o->prepared) {
        printf("offset %s: our own kernel alone, %.3g TFLOP/s\n", what, flops / probe_seconds(p, o) / 1e12);
        return;
    }
    snprintf(c.key, sizeof c.key, "%s", key);
    for (int i = 0, shown = 0; shown < MOST && p->on->choices.candidate(p->d, &c, i); i++) {
        if (p->on->choices.choose(p->d, &c) != STATUS_OK) {
            printf("offset %s by %.40s: refused: %s\n", what, c.value, status_message());
            continue;
        }
        double took = probe_seconds(p, o);
        printf("offset %s by %.40s: %.3g TFLOP/s, %.2f of the whole's time\n", what, c.value, flops / took / 1e12,
               of_whole > 0 ? took / of_whole : 1.0);
        shown++;
    }
}

/* The whole, then both ranks of two that divide the sample by halves. */
static void offset(probe *p)
{
    const int64_t tokens = small ? 32 : 8192, heads = small ? 2 : 32, kv = small ? 1 : 8, size = small ? 64 : 128;
    double of_whole = 0;
    for (int ranks = 1; ranks <= 2; ranks++)
        for (int rank = 0; rank < ranks; rank++) {
            const int64_t queries = tokens / ranks;
            char what[48];
            probe_clear(p);
            op o = {.kind = OP_attention};
            o.in[0] = probe_tensor(p, DTYPE_BF16, queries, heads * size);
            o.in[1] = probe_tensor(p, DTYPE_BF16, tokens, kv * size);
            o.in[2] = probe_tensor(p, DTYPE_BF16, tokens, kv * size);
            o.in[4] = ranks > 1 ? probe_tensor(p, DTYPE_INT32, queries, 0) : NULL;
            o.out[0] = probe_tensor(p, DTYPE_BF16, queries, heads * size);
            o.out[1] = probe_tensor(p, DTYPE_FP32, heads, queries);
            o.at.heads.q = (int32_t)heads, o.at.heads.kv = (int32_t)kv, o.at.heads.size = (int32_t)size;
            o.at.attention.sequence = (int32_t)tokens;
            o.at.attention.scale = 1 / sqrtf((float)size);
            if (ranks > 1)
                o.at.attention.run = (int32_t)(tokens / 4), o.at.attention.ranks = ranks, o.at.attention.rank = rank;
            probe_prepare(p, &o);
            probe_finish(p);
            probe_fill(p);
            if (ranks > 1) { /* runs `rank` and 3 - rank of four */
                int32_t *token_positions = p->on->borrow(p->d, o.in[4]->address, tensor_bytes(o.in[4]));
                for (int64_t i = 0; i < queries; i++) {
                    int64_t run = i / (tokens / 4) ? 3 - rank : rank;
                    token_positions[i] = (int32_t)(run * (tokens / 4) + i % (tokens / 4));
                }
                p->on->give_back(p->d, token_positions, o.in[4]->address, tensor_bytes(o.in[4]), true);
                snprintf(what, sizeof what, "halves of rank %d of 2", rank);
            } else {
                snprintf(what, sizeof what, "whole");
                of_whole = probe_seconds(p, &o);
            }
            print_ways(p, &o, what, of_whole);
        }
}

/* ---- copies beside compute --------------------------------------------------------------------------------------- */

/* Seconds of `products` products, of a copy each way, or of both at once. */
static double beside(probe *p, const op *product, int products, const op copies[2])
{
    const int64_t bytes = copies ? tensor_bytes(copies[0].out[0]) : 0;
    probe_begin(p, product);
    for (int i = 0; i < 2 && bytes; i++)
        p->on->launch(p->d, &copies[i]);
    for (int i = 0; i < products; i++)
        p->on->launch(p->d, product);
    for (int i = 0; i < 2 && bytes; i++) {
        op wait = {.kind = OP_wait, .label = "wait"};
        wait.where.request = copies[i].where.request;
        p->on->wait(p->d, &wait);
    }
    return probe_end(p, product);
}

static void copies(probe *p)
{
    const int64_t side = small ? 32 : 8192, bytes = small ? 4096 : PROBE_COPIED;
    probe_clear(p);
    tensor *x = probe_tensor(p, DTYPE_BF16, side, side), *w = probe_tensor(p, DTYPE_BF16, side, side);
    op product = {.kind = OP_linear, .in = {x, w}, .out = {probe_tensor(p, DTYPE_BF16, side, side)}};
    tensor *here[2], there[2];
    for (int i = 0; i < 2; i++) {
        here[i] = probe_tensor(p, DTYPE_UINT8, bytes, 0);
        tensor_describe(&there[i], "host", CLASS_HOST, DTYPE_UINT8, 1, &bytes);
        there[i].address = TENSOR_HOST + PROBE_HOST + i * bytes;
    }
    op both[2] = {{.kind = OP_load_host, .in = {&there[0]}, .out = {here[0]}, .label = "load"},
                  {.kind = OP_store_host, .in = {here[1]}, .out = {&there[1]}, .label = "store"}};
    both[1].where.request = 1;
    probe_prepare(p, &product);
    probe_finish(p);
    probe_fill(p);
    (void)beside(p, &product, 1, both);
    double apart = beside(p, &product, 0, both);
    if (!(apart > 0)) { /* such as the stand-ins' */
        printf("copies: they took no time that was measured\n");
        return;
    }
    int products = small ? 2 : (int)(apart / probe_seconds(p, &product)) + 1;
    double alone = beside(p, &product, products, NULL), together = beside(p, &product, products, both);
    printf(
        "copies: %.1f GB/s in and as much out; %d products take %.2f ms alone, with the copies %.2f ms (apart %.2f + "
        "%.2f)\n",
        (double)bytes / apart / 1e9, products, 1e3 * alone, 1e3 * together, 1e3 * alone, 1e3 * apart);
}

/* ---- fp8 --------------------------------------------------------------------------------------------------------- */

/* How operands are scaled: all scales are 1, as fp32 or as one byte. */
static const struct mode {
    const char *name;
    int a, b;
    bool bytes;
} modes[] = {
    {"one scale a tensor", CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F, false},
    {"a scale a row and a column", CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F,
     CUBLASLT_MATMUL_MATRIX_SCALE_OUTER_VEC_32F, false},
    {"a scale a 128 x 128 block of w, 128 elements of x", CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F,
     CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, false},
    {"a scale a 128 elements of both", CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F, CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F,
     false},
    {"a power of two a 32 elements", CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0, CUBLASLT_MATMUL_MATRIX_SCALE_VEC32_UE8M0,
     true},
};

/* cuBLASLt's functions, from the library that the device has loaded. */
#define FUNCTIONS(X)                                                                                                   \
    X(Create)                                                                                                          \
    X(Destroy)                                                                                                         \
    X(MatmulDescCreate)                                                                                                \
    X(MatmulDescDestroy)                                                                                               \
    X(MatmulDescSetAttribute)                                                                                          \
    X(MatrixLayoutCreate)                                                                                              \
    X(MatrixLayoutDestroy)                                                                                             \
    X(MatmulPreferenceCreate)                                                                                          \
    X(MatmulPreferenceDestroy)                                                                                         \
    X(MatmulPreferenceSetAttribute)                                                                                    \
    X(MatmulAlgoGetHeuristic)                                                                                          \
    X(Matmul)

typedef struct library {
#define POINTER(name) __typeof__(&cublasLt##name) name;
    FUNCTIONS(POINTER)
#undef POINTER
} library;

static void open_library(library *l)
{
#define FIND(name)                                                                                                     \
    do {                                                                                                               \
        void *found = probe_symbol("cublasLt" #name);                                                                  \
        MUST(found, "cuBLASLt has no cublasLt" #name);                                                                 \
        memcpy(&l->name, &found, sizeof found);                                                                        \
    } while (0);
    FUNCTIONS(FIND)
#undef FIND
}

/* A product of w^T x, both [n, n] of e4m3, into y [n, n] of bf16. */
typedef struct scaled {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t what;
    cublasLtMatrixLayout_t in, out;
    cublasLtMatmulPreference_t wanted;
    cublasLtMatmulHeuristicResult_t found;
} scaled;

/* Not a status of success where the library will not. */
static cublasStatus_t describe(scaled *to, const library *l, const probe *p, const struct mode *m, int64_t n)
{
    const cublasOperation_t turned = CUBLAS_OP_T;
    const uint64_t room = (uint64_t)p->workspace_bytes;
    const uint32_t sums = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    const void *scales = p->on->context(p->d)->arena + (m->bytes ? p->fp8.bytes : p->fp8.floats);
    const struct {
        cublasLtMatmulDescAttributes_t which;
        const void *value;
        size_t bytes;
    } told[] = {{CUBLASLT_MATMUL_DESC_TRANSA, &turned, sizeof turned},
                {CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &m->a, sizeof m->a},
                {CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &m->b, sizeof m->b},
                {CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &scales, sizeof scales},
                {CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &scales, sizeof scales}};
    int count = 0;
    MUST(l->MatmulDescCreate(&to->what, CUBLAS_COMPUTE_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS, "no description");
    (void)l->MatrixLayoutCreate(&to->in, CUDA_R_8F_E4M3, (uint64_t)n, (uint64_t)n, n);
    (void)l->MatrixLayoutCreate(&to->out, CUDA_R_16BF, (uint64_t)n, (uint64_t)n, n);
    (void)l->MatmulPreferenceCreate(&to->wanted);
    (void)l->MatmulPreferenceSetAttribute(to->wanted, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &room, sizeof room);
    (void)l->MatmulPreferenceSetAttribute(to->wanted, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &sums, sizeof sums);
    cublasStatus_t s = CUBLAS_STATUS_SUCCESS;
    for (size_t i = 0; i < sizeof told / sizeof *told && s == CUBLAS_STATUS_SUCCESS; i++)
        s = l->MatmulDescSetAttribute(to->what, told[i].which, told[i].value, told[i].bytes);
    if (s == CUBLAS_STATUS_SUCCESS)
        s = l->MatmulAlgoGetHeuristic(to->handle, to->what, to->in, to->in, to->out, to->out, to->wanted, 1, &to->found,
                                      &count);
    return s == CUBLAS_STATUS_SUCCESS && count == 0 ? CUBLAS_STATUS_NOT_SUPPORTED : s;
}

static void forget(scaled *s, const library *l)
{
    (void)l->MatmulPreferenceDestroy(s->wanted);
    (void)l->MatrixLayoutDestroy(s->in);
    (void)l->MatrixLayoutDestroy(s->out);
    (void)l->MatmulDescDestroy(s->what);
}

/* Seconds of one of so many. */
static double multiply(probe *p, const library *l, const scaled *s, int times)
{
    const float by = 1, add = 0;
    run_context *r = p->on->context(p->d);
    char *y = r->arena + p->fp8.y;
    probe_begin(p, p->any);
    for (int i = 0; i < times; i++) {
        cublasStatus_t outcome =
            l->Matmul(s->handle, s->what, &by, r->arena + p->fp8.w, s->in, r->arena + p->fp8.x, s->in, &add, y, s->out,
                      y, s->out, &s->found.algo, r->arena + p->workspace, (size_t)p->workspace_bytes, r->stream);
        MUST(outcome == CUBLAS_STATUS_SUCCESS, "fp8: cublasLtMatmul: status %d", (int)outcome);
    }
    return probe_end(p, p->any) / times;
}

/* Is each element of y the number n? */
static bool all_are(probe *p, int64_t n)
{
    uint16_t *y = p->on->borrow(p->d, p->fp8.y, 2 * n * n), right;
    float value = (float)n;
    bool same = true;
    dtype_convert(&right, DTYPE_BF16, &value, DTYPE_FP32, 1);
    for (int64_t i = 0; i < n * n; i++)
        same &= y[i] == right;
    p->on->give_back(p->d, y, p->fp8.y, 2 * n * n, false);
    return same;
}

/* The product of ones by ones. Prints how fast it is, or that the library refuses it. */
static void product_in_mode(probe *p, const library *l, const struct mode *m, int64_t n, double bf16)
{
    enum { TIMES = 50 };
    scaled s = {0};
    MUST(l->Create(&s.handle) == CUBLAS_STATUS_SUCCESS, "cuBLASLt does not open");
    cublasStatus_t outcome = describe(&s, l, p, m, n);
    if (outcome != CUBLAS_STATUS_SUCCESS) {
        printf("fp8, %s: the library refuses it here (status %d)\n", m->name, (int)outcome);
    } else {
        (void)multiply(p, l, &s, 1);
        double took = multiply(p, l, &s, TIMES);
        bool right = all_are(p, n);
        printf("fp8, %s: %.3g TFLOP/s, %.2f times bf16's%s\n", m->name, 2e-12 * pow((double)n, 3) / took, bf16 / took,
               right ? "" : ", WRONG");
        p->failed |= !right;
    }
    forget(&s, l);
    (void)l->Destroy(s.handle);
}

static void fp8(probe *p)
{
    const int64_t n = small ? 128 : 8192, scale_bytes = small ? 4096 : (int64_t)4 << 20;
    probe_clear(p);
    tensor *x = probe_tensor(p, DTYPE_BF16, n, n), *w = probe_tensor(p, DTYPE_BF16, n, n);
    op product = {.kind = OP_linear, .in = {x, w}, .out = {probe_tensor(p, DTYPE_BF16, n, n)}};
    p->fp8.floats = probe_tensor(p, DTYPE_UINT8, scale_bytes, 0)->address;
    p->fp8.bytes = probe_tensor(p, DTYPE_UINT8, scale_bytes, 0)->address;
    probe_prepare(p, &product);
    probe_finish(p);
    probe_fill(p);
    double bf16 = probe_seconds(p, &product);
    p->any = &product;
    p->fp8.x = x->address, p->fp8.w = w->address, p->fp8.y = product.out[0]->address;
    for (int i = 0; i < 2; i++) /* e4m3's one */
        probe_set(p, i ? p->fp8.w : p->fp8.x, n * n, 0x38);
    probe_set(p, p->fp8.bytes, scale_bytes, 127); /* 2^0 */
    float *floats = p->on->borrow(p->d, p->fp8.floats, scale_bytes);
    for (int64_t i = 0; i < scale_bytes / 4; i++)
        floats[i] = 1;
    p->on->give_back(p->d, floats, p->fp8.floats, scale_bytes, true);
    printf("fp8: beside it bf16 with %.3g TFLOP/s\n", 2e-12 * pow((double)n, 3) / bf16);
    library l;
    open_library(&l);
    for (size_t i = 0; i < sizeof modes / sizeof *modes; i++)
        product_in_mode(p, &l, &modes[i], n, bf16);
}

/* ------------------------------------------------------------------------------------------------------------------ */

int main(int count, char **arguments)
{
    static const struct {
        const char *name;
        void (*play)(probe *p);
    } all[] = {{"fp8", fp8}, {"grouped", grouped}, {"offset", offset}, {"copies", copies}};
    probe p;
    setvbuf(stdout, NULL, _IOLBF, 0);
    small = getenv("PROBES_SMALL") != NULL;
    if (!probe_open(&p, small)) {
        printf("probes: skipped: %s\n", status_message());
        return NONE;
    }
    for (size_t i = 0; i < sizeof all / sizeof *all; i++) {
        bool asked = count < 2;
        for (int k = 1; k < count; k++)
            asked |= !strcmp(arguments[k], all[i].name);
        if (asked)
            all[i].play(&p);
    }
    probe_close(&p);
    printf("probes: %s\n", p.failed ? "something is WRONG" : "done");
    return p.failed;
}
