/* How exact: with u(type) the unit roundoff (fp32 2^-24, bf16 2^-8, fp16 2^-11), R = roundings, K = terms and G =
 * growth,
 *
 *     allowed = u(output) + G (R u(T) + 2 sqrt(K + 16) u(fp32))
 *
 * is what the output may lose in the L2 norm (rounding errors of K terms grow as sqrt(K), an elementary function is
 * allowed four roundings), and each element may be off by 4 allowed (|element| + root mean square of the output), plus
 * the smallest step of fp16. A stochastic rounding may lose twice u(output). */
#include "tests/oracle/op_case.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/record/operands.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/oracle/reference_program.h"

enum { GUARD = 256, GUARD_BYTE = 0xA5 };

static const uint64_t DRAW = 0x9E3779B97F4A7C15u; /* by which each draw moves the state */

double test_uniform(test_random *r)
{
    /* splitmix64 */
    uint64_t z = r->state += DRAW;
    z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9u;
    z = (z ^ z >> 27) * 0x94D049BB133111EBu;
    return (double)((z ^ z >> 31) >> 11) * 0x1p-53;
}

double test_normal(test_random *r)
{
    double u = 1 - test_uniform(r), v = test_uniform(r);
    return sqrt(-2 * log(u)) * cos(6.283185307179586477 * v);
}

/* ---- building -------------------------------------------------------------------------------------------------- */

int op_case_option(int *variant, int options)
{
    int chosen = *variant % options;
    *variant /= options;
    return chosen;
}

bool op_case_sizes(int64_t *rows, int64_t *columns, int variant)
{
    static const int64_t sizes[][2] = {{1, 1}, {1, 64}, {3, 17}, {7, 31}, {33, 48}, {19, 130}, {17, 1056}};
    if (variant >= (int)(sizeof sizes / sizeof *sizes))
        return false;
    *rows = sizes[variant][0];
    *columns = sizes[variant][1];
    return true;
}

tensor *op_case_tensor(op_case *c, const char *name, dtype type, fill f, int64_t rows, int64_t columns)
{
    MUST(c->tensors < OP_CASE_TENSORS, "too many operands");
    tensor *t = &c->t[c->tensors];
    tensor_describe(t, name, CLASS_TEMPORARY, type, columns ? 2 : 1, (int64_t[]){rows, columns});
    c->fills[c->tensors++] = f;
    return t;
}

tensor *op_case_in(op_case *c, int slot, dtype type, fill f, int64_t rows, int64_t columns)
{
    return c->o.in[slot] = op_case_tensor(c, "input", type, f, rows, columns);
}

tensor *op_case_update(op_case *c, int slot, dtype type, fill f, int64_t rows, int64_t columns, bool read)
{
    if (!read)
        f.kind = FILL_NOTHING;
    return c->o.out[slot] = op_case_tensor(c, "updated output", type, f, rows, columns);
}

static void give_scalars(const op_case *c, void *bytes, const tensor *t)
{
    (void)t;
    memcpy(bytes, &c->scalars, sizeof c->scalars);
}

void op_case_scalars(op_case *c, int slot)
{
    op_case_in(c, slot, DTYPE_UINT8, (fill){.kind = FILL_GIVEN, .give = give_scalars}, sizeof(step_scalars), 0);
}

void op_case_infer(op_case *c, unsigned outputs)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (outputs >> i & 1)
            c->o.out[i] = op_case_tensor(c, "output", c->type, (fill){.kind = FILL_NOTHING}, 1, 0);
    c->o.label = c->what;
    operands_infer(&c->o);
}

op *op_case_prelude(op_case *c, op_kind kind)
{
    op *o = &c->prelude[c->preludes++];
    o->kind = (uint8_t)kind;
    o->label = "prelude";
    return o;
}

/* ---- layout ---------------------------------------------------------------------------------------------------- */

/* Is operand `index` of a list like "dy s w rstd" a statistic? Those are contiguous: no view of one is ever made. */
static bool is_statistic(const char *names, int index)
{
    static const char *statistics[] = {"rstd", "mean", "lse", "stats", "weights", "dweights"};
    const int count = sizeof statistics / sizeof *statistics;
    while (index-- > 0 && (names = strchr(names, ' ')))
        names++;
    for (int i = 0; names && i < count; i++)
        if (strncmp(names, statistics[i], strlen(statistics[i])) == 0)
            return true;
    return false;
}

static bool may_stride(const op_case *c, const tensor *t)
{
    const op_row *row = op_row_of(&c->o);
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->o.in[i] == t && is_statistic(row->in_names, i))
            return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->o.out[i] == t && is_statistic(row->out_names, i))
            return false;
    return t->dims == 2 && t->type == c->type && !t->base && !c->alias;
}

bool op_case_allows(const op_case *c, const op_case_mode *m)
{
    if (m->strided) {
        bool any = false;
        for (int i = 0; i < c->tensors; i++)
            any |= may_stride(c, &c->t[i]);
        return any;
    }
    if (m->in_place_out < 0)
        return true;
    const tensor *x = c->o.in[m->in_place_in], *y = c->o.out[m->in_place_out];
    return x && y && tensor_bytes(x) == tensor_bytes(y) && x->type == y->type;
}

/* Columns have the pitch of their base, which comes before them. */
static void stride(op_case *c)
{
    for (int i = 0; i < c->tensors; i++) {
        tensor *t = &c->t[i];
        if (may_stride(c, t))
            t->pitch = t->shape[1] + 3 + i % 2 * 5;
        else if (t->base && t->dims == 2 && t->shape[0] == t->base->shape[0])
            t->pitch = t->base->pitch;
    }
}

/* Addresses, guards between; returns the arena's size. */
static int64_t lay_out(op_case *c, const op_case_mode *m, tensor *scratch)
{
    int64_t end = GUARD;
    for (int i = 0; i <= c->tensors; i++) {
        tensor *t = i < c->tensors ? &c->t[i] : scratch;
        if (t->base) {
            t->address = t->base->address + t->offset;
            continue;
        }
        int64_t skipped = m->strided && i < c->tensors && may_stride(c, t) ? t->pitch * dtype_bytes((dtype)t->type) : 0;
        t->address = end + skipped;
        end = (t->address + tensor_bytes(t) + 2 * GUARD - 1) / GUARD * GUARD + GUARD;
    }
    if (m->in_place_out >= 0)
        c->o.out[m->in_place_out]->address = c->o.in[m->in_place_in]->address;
    if (c->alias)
        c->o.out[0]->address = c->o.in[0]->address;
    return end;
}

/* every row's bytes of t, in order */
static void *row_of(const tensor *t, char *arena, int64_t i)
{
    return arena + t->address + i * t->pitch * dtype_bytes((dtype)t->type);
}

static int64_t row_bytes(const tensor *t)
{
    return reference_width(t) * dtype_bytes((dtype)t->type);
}

/* Does t, an output, lie where an input is? */
static bool in_place(const op_case *c, const tensor *t)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if (c->o.in[i] && c->o.in[i] != t && c->o.in[i]->address == t->address)
            return true;
    return false;
}

/* The next n normal values. A sweep tries a case in several ways with the same values: each operand's are kept, with
 * the state they were drawn from. */
static void draw_normals(double *out, int which, int64_t n, test_random *random)
{
    static struct {
        uint64_t from;
        int64_t count;
        double *values;
    } kept[OP_CASE_TENSORS];
    if (kept[which].from != random->state || kept[which].count != n) {
        free(kept[which].values);
        kept[which].values = must_calloc((unsigned long)n + 1, sizeof *out);
        kept[which].from = random->state;
        kept[which].count = n;
        test_random drawn = *random;
        for (int64_t i = 0; i < n; i++)
            kept[which].values[i] = test_normal(&drawn);
    }
    memcpy(out, kept[which].values, (size_t)n * sizeof *out);
    random->state += 2 * (uint64_t)n * DRAW; /* test_normal draws twice */
}

static void fill_tensor(const op_case *c, int which, char *arena, test_random *random)
{
    const tensor *t = &c->t[which];
    const fill *f = &c->fills[which];
    if (f->kind == FILL_DERIVED || (f->kind == FILL_NOTHING && in_place(c, t)))
        return;
    int64_t n = tensor_elements(t), width = reference_width(t), element = dtype_bytes((dtype)t->type);
    AUTO_FREE double *values = must_calloc((unsigned long)n + 1, sizeof *values);
    AUTO_FREE char *given = must_calloc((unsigned long)(n * element) + 1, 1);
    if (f->kind == FILL_NORMAL)
        draw_normals(values, which, n, random);
    for (int64_t i = 0; i < n; i++) {
        if (f->kind == FILL_NORMAL)
            values[i] = f->a + f->b * values[i];
        else if (f->kind == FILL_UNIFORM)
            values[i] = f->a + (f->b - f->a) * test_uniform(random);
        else if (f->kind == FILL_INTEGERS)
            values[i] = floor(f->a + (f->b - f->a + 1) * test_uniform(random));
    }
    if (f->kind == FILL_GIVEN)
        f->give(c, given, t);
    else if (f->kind == FILL_NOTHING)
        memset(given, 0xFF, (size_t)(n * element)); /* NaN in every floating-point type */
    else
        dtype_convert(given, (dtype)t->type, values, DTYPE_FP64, n);
    for (int64_t i = 0; i < t->shape[0]; i++)
        memcpy(row_of(t, arena, i), given + i * width * element, (size_t)row_bytes(t));
}

/* mark[b] = 1 + index of the tensor that has arena byte b, 0 for a guard */
static uint8_t *owners(const op_case *c, const tensor *scratch, int64_t bytes)
{
    uint8_t *mark = must_calloc((unsigned long)bytes, 1);
    for (int k = 0; k <= c->tensors; k++) {
        const tensor *t = k < c->tensors ? &c->t[k] : scratch;
        for (int64_t i = 0; i < t->shape[0]; i++)
            memset(mark + t->address + i * t->pitch * dtype_bytes((dtype)t->type), k + 1, (size_t)row_bytes(t));
    }
    return mark;
}

/* ---- comparing ------------------------------------------------------------------------------------------------- */

static double unit_roundoff(dtype type)
{
    switch (type) {
    case DTYPE_FP32:
        return 0x1p-24;
    case DTYPE_BF16:
        return 0x1p-8;
    case DTYPE_FP16:
        return 0x1p-11;
    default:
        MUST(0, "%s is no type of an output", dtype_name(type));
    }
}

static double distance(double a, double b)
{
    return a == b || (isnan(a) && isnan(b)) || (isinf(a) && isinf(b) && (a > 0) == (b > 0)) ? 0 : fabs(a - b);
}

typedef struct verdict {
    double worst;
    char *why;
} verdict;

static void judge(verdict *v, double ratio, const op_case *c, int out, int64_t element, double got, double want)
{
    if (ratio <= v->worst)
        return; /* and not !(ratio > worst): NaN must get through */
    v->worst = isnan(ratio) ? INFINITY : ratio;
    char text[96];
    snprintf(v->why, 256, "output %d %s, element %lld: %.9g, reference %.9g", out,
             tensor_text(text, sizeof text, c->o.out[out]), (long long)element, got, want);
}

static void compare_floats(verdict *v, const op_case *c, int out, const double *got, const double *want)
{
    const tensor *t = c->o.out[out];
    int64_t n = tensor_elements(t), finite = 0;
    double error = 0, squares = 0, step = t->type == DTYPE_FP16 ? 0x1p-24 : 0x1p-126;
    double allowed = unit_roundoff((dtype)t->type) * (c->stochastic && t->type == DTYPE_BF16 ? 2 : 1) +
                     c->growth * (c->roundings * unit_roundoff(c->type) + 2 * sqrt(c->terms + 16) * 0x1p-24);
    step = fmax(step, c->floor * unit_roundoff(c->type));
    for (int64_t i = 0; i < n; i++) {
        double d = distance(got[i], want[i]);
        error += d * d;
        if (isfinite(want[i])) {
            squares += want[i] * want[i];
            finite++;
        }
    }
    double size = sqrt(squares), rms = finite ? size / sqrt((double)finite) : 0;
    if (c->exact)
        allowed = step = 0;
    for (int64_t i = 0; i < n; i++) {
        double d = distance(got[i], want[i]), base = isfinite(want[i]) ? fabs(want[i]) : 0;
        double tolerance = 4 * allowed * (base + rms) + step;
        judge(v, d == 0 ? 0 : d / tolerance, c, out, i, got[i], want[i]);
    }
    judge(v, error == 0 ? 0 : sqrt(error) / (allowed * size + step * sqrt((double)n)), c, out, -1, sqrt(error), size);
}

static void compare_output(verdict *v, const op_case *c, int out, char *arena, reference_program *p)
{
    const tensor *t = c->o.out[out];
    int64_t n = tensor_elements(t), width = reference_width(t);
    if (t->type == DTYPE_UINT8) { /* a message: to the last bit */
        const uint8_t *got = tensor_at(t, arena), *want = reference_program_bytes(p, t);
        for (int64_t i = 0; i < n; i++)
            judge(v, got[i] == want[i] ? 0 : INFINITY, c, out, i, got[i], want[i]);
        return;
    }
    if (t->type == DTYPE_INT32) { /* ids and places: exactly */
        const int32_t *got = tensor_at(t, arena), *want = reference_program_bytes(p, t);
        for (int64_t i = 0; i < n; i++)
            judge(v, got[i] == want[i] ? 0 : INFINITY, c, out, i, got[i], want[i]);
        return;
    }
    if (t->type == DTYPE_INT64) {
        double got = reference_bins_value(tensor_at(t, arena)),
               want = reference_bins_value(reference_program_bytes(p, t));
        judge(v, isnan(got) && isnan(want) ? 0 : distance(got, want) / (1e-13 * want), c, out, 0, got, want);
        return;
    }
    AUTO_FREE double *got = must_calloc((unsigned long)n + 1, sizeof *got),
                     *want = must_calloc((unsigned long)n + 1, sizeof *want);
    for (int64_t i = 0; i < t->shape[0]; i++)
        dtype_convert(got + i * width, DTYPE_FP64, row_of(t, arena, i), (dtype)t->type, width);
    reference_program_get(want, p, t);
    compare_floats(v, c, out, got, want);
}

static bool written(const op_case *c, const op_case_mode *m, const tensor *t)
{
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (c->o.out[i] && (c->o.out[i] == t || c->o.out[i]->address == t->address))
            return true;
    return m->in_place_out >= 0 && c->o.in[m->in_place_in] == t;
}

/* Is t an input that decoding writes? */
static bool is_cache(const op_case *c, const tensor *t)
{
    return op_is(&c->o, OP_CLASS_DECODE) && t->dims == 3;
}

/* Guards must be as they were, and so must inputs, but for the caches that decoding writes. */
static void check_bytes(verdict *v, const op_case *c, const op_case_mode *m, const char *arena, const char *was,
                        const uint8_t *mark, int64_t bytes)
{
    for (int64_t b = 0; b < bytes; b++) {
        if (b % GUARD == 0 && b + GUARD <= bytes && !memcmp(arena + b, was + b, GUARD)) {
            b += GUARD - 1;
            continue;
        }
        int k = mark[b] - 1;
        if (arena[b] == was[b] || k == c->tensors)
            continue;
        if (k >= 0 && (written(c, m, &c->t[k]) || is_cache(c, &c->t[k])))
            continue;
        v->worst = INFINITY;
        snprintf(v->why, 256, "byte %lld of the arena was overwritten: %s", (long long)b,
                 k < 0 ? "a guard" : "an input");
        return;
    }
}

/* The cache that decoding wrote is an input in the table: it is compared like an output. */
static void compare_caches(verdict *v, op_case *c, char *arena, reference_program *p)
{
    for (int i = 0; i < OP_MAX_IN; i++) {
        if (!c->o.in[i] || !is_cache(c, c->o.in[i]))
            continue;
        op_case as_output = *c;
        as_output.exact = true;
        as_output.o.out[0] = c->o.in[i];
        compare_output(v, &as_output, 0, arena, p);
    }
}

double op_case_run(char *why, op_case *c, const op_backend *backend, const op_case_mode *m, uint64_t seed)
{
    verdict v = {.worst = 0, .why = why};
    test_random random = {seed};
    tensor scratch;
    if (m->strided)
        stride(c);
    int64_t scratch_bytes = backend->scratch_bytes ? backend->scratch_bytes(&c->o, m->threads) : 0;
    tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &scratch_bytes);
    c->growth = c->growth > 0 ? c->growth : 1;
    int64_t bytes = lay_out(c, m, &scratch);
    if (scratch_bytes > 0)
        c->o.scratch = &scratch;
    if (m->wants && !m->wants(&c->o))
        return OP_CASE_UNWANTED;
    char *arena = aligned_alloc(GUARD, (size_t)(bytes + GUARD) / GUARD * GUARD);
    AUTO_FREE char *was = must_alloc((unsigned long)bytes);
    memset(arena, GUARD_BYTE, (size_t)bytes);
    op *ops[3] = {&c->prelude[0], &c->prelude[1]};
    ops[c->preludes] = &c->o;
    reference_program *p = reference_program_open(ops, c->preludes + 1);
    for (int i = 0; i < c->tensors; i++) {
        fill_tensor(c, i, arena, &random);
        /* what nothing fills is zero in the reference, so that an element neither side writes is no agreement of
         * NaNs */
        if (c->fills[i].kind != FILL_DERIVED && c->fills[i].kind != FILL_NOTHING && reference_program_has(p, &c->t[i]))
            reference_program_read(p, &c->t[i], arena);
    }
    reference_program_run(p, 0, c->preludes, false);
    for (int i = 0; i < c->tensors; i++)
        if (c->fills[i].kind == FILL_DERIVED) {
            reference_program_write(p, &c->t[i], arena);
            reference_program_read(p, &c->t[i], arena);
        }
    memcpy(was, arena, (size_t)bytes);
    AUTO_FREE uint8_t *mark = owners(c, &scratch, bytes);
    reference_program_run(p, c->preludes, 1, false);
    MUST(!backend->prepare || backend->prepare(&c->o, m->threads) == STATUS_OK, "%s: %s", c->what, status_message());
    backend->kernels[c->o.kind](&c->o, &(run_context){.arena = arena, .threads = m->threads});
    check_bytes(&v, c, m, arena, was, mark, bytes);
    for (int i = 0; i < OP_MAX_OUT && isfinite(v.worst); i++)
        if (c->o.out[i])
            compare_output(&v, c, i, arena, p);
    if (isfinite(v.worst))
        compare_caches(&v, c, arena, p);
    reference_program_close(p);
    free(arena);
    return v.worst;
}
