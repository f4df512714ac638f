#include "tests/oracle/op_sweep.h"

#include <stdio.h>

#include "tests/oracle/op_cases.h"

bool op_sweep_case(op_case *c, op_kind kind, dtype type, int variant)
{
    *c = (op_case){.type = type};
    c->o.kind = (uint8_t)kind;
    snprintf(c->what, sizeof c->what, "%s %s, variant %d", dtype_name(type), op_rows[kind].name, variant);
    if (!op_cases_table[kind](c, variant))
        return false;
    c->o.label = c->what;
    return true;
}

/* By the op's name (FNV-1a): a row added to the op table draws no other row's operands anew. */
static uint64_t seed_of(op_kind kind, int variant)
{
    uint64_t seed = 0xCBF29CE484222325u;
    for (const char *c = op_rows[kind].name; *c; c++)
        seed = (seed ^ (unsigned char)*c) * 0x100000001B3u;
    return seed + (uint64_t)variant;
}

static void try_mode(op_sweep *s, int *counter, op_kind kind, dtype type, int variant, const op_case_mode *m)
{
    op_case c;
    char why[256] = "";
    if (!op_sweep_case(&c, kind, type, variant) || !op_case_allows(&c, m))
        return;
    if (s->shares && s->seen++ % s->shares != s->share)
        return;
    op_case_mode mode = *m;
    mode.wants = s->wants;
    double error = op_case_run(why, &c, s->backend, &mode, seed_of(kind, variant));
    if (error == OP_CASE_UNWANTED)
        return;
    ++*counter;
    s->worst = error > s->worst ? error : s->worst;
    if (error <= 1)
        return;
    s->failed++;
    printf("FAILED %s%s%s: %.3g times the tolerance; %s\n", c.what, m->strided ? ", strided" : "",
           m->in_place_out >= 0 ? ", in place" : "", error, why);
}

static void try_type(op_sweep *s, op_kind kind, dtype type)
{
    op_case c;
    const op_row *row = &op_rows[kind];
    for (int variant = 0; op_sweep_case(&c, kind, type, variant); variant++) {
        op_case_mode m = {.in_place_out = -1, .threads = s->threads ? s->threads(&c, variant) : 1};
        try_mode(s, &s->plain, kind, type, variant, &m);
        if (s->gaps)
            try_mode(s, &s->strided, kind, type, variant,
                     &(op_case_mode){.in_place_out = -1, .threads = 1, .strided = true});
        for (int j = 0; j < OP_MAX_OUT; j++)
            for (int i = 0; i < OP_MAX_IN; i++)
                if (row->takes[j] >> i & 1 && !c.alias) {
                    m.in_place_out = j;
                    m.in_place_in = i;
                    try_mode(s, &s->in_place, kind, type, variant, &m);
                }
    }
}

int op_sweep_run(op_sweep *s, op_kind kind)
{
    static const dtype types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};
    op_case c;
    for (unsigned i = 0; i < sizeof types / sizeof *types; i++)
        if (i == 0 || (op_sweep_case(&c, kind, types[i], 0) && !c.one_type))
            try_type(s, kind, types[i]);
    return s->plain + s->strided + s->in_place;
}

bool op_sweep_has_kernel(op_kind kind)
{
    return op_computes(&(op){.kind = (uint8_t)kind});
}

bool op_sweep_among(const op_kind *list, size_t count, op_kind kind)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == kind)
            return true;
    return false;
}
