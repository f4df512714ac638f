/* Every kernel of the host against the float64 reference: the op table is walked, so that an op without a case, or whose
 * kernel is missing or wrong, fails. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "tests/op_cases.h"
#include "tests/reference.h"

static const dtype TYPES[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

/* Played by the communication backends, and tested there. */
static const op_kind NO_KERNEL[] = {OP_all_gather, OP_reduce_scatter, OP_all_reduce, OP_send, OP_receive, OP_wait};

typedef struct tally {
    int cases, plain, strided, in_place;
    double worst;
} tally;

static bool build(op_case *c, op_kind kind, dtype type, int variant)
{
    *c = (op_case){.type = type};
    c->o.kind = (uint8_t)kind;
    snprintf(c->what, sizeof c->what, "%s %s, variant %d", dtype_name(type), op_rows[kind].name, variant);
    if (!op_cases_table[kind](c, variant))
        return false;
    c->o.label = c->what;
    return true;
}

static void try_mode(tally *all, op_kind kind, dtype type, int variant, const op_case_mode *m, int *counter)
{
    op_case c;
    char why[256] = "";
    if (!build(&c, kind, type, variant) || !op_case_allows(&c, m))
        return;
    double worst = op_case_run(why, &c, &cpu_backend, m, (uint64_t)kind * 1000 + (uint64_t)variant);
    (*counter)++;
    all->cases++;
    if (worst > all->worst)
        all->worst = worst;
    if (!(worst <= 1))
        fail_msg("%s%s%s: %.3g times the tolerance; %s", c.what, m->strided ? ", strided" : "",
                 m->in_place_out >= 0 ? ", in place" : "", worst, why);
}

static void try_op(tally *all, op_kind kind, dtype type)
{
    op_case c;
    for (int variant = 0; build(&c, kind, type, variant); variant++) {
        try_mode(all, kind, type, variant, &(op_case_mode){.in_place_out = -1, .threads = 2}, &all->plain);
        try_mode(all, kind, type, variant, &(op_case_mode){.in_place_out = -1, .threads = 1, .strided = true},
                 &all->strided);
        for (int pair = 0; pair < 2; pair++)
            for (int i = 0; i < OP_MAX_IN; i++)
                if (op_rows[kind].inplace_in[pair] >> i & 1 && !c.alias) {
                    op_case_mode m = {.in_place_out = op_rows[kind].inplace_out[pair], .in_place_in = i, .threads = 2};
                    try_mode(all, kind, type, variant, &m, &all->in_place);
                }
    }
}

static bool has_kernel(op_kind kind)
{
    for (unsigned i = 0; i < sizeof NO_KERNEL / sizeof *NO_KERNEL; i++)
        if (NO_KERNEL[i] == kind)
            return false;
    return true;
}

static void every_cpu_kernel_agrees_with_the_reference(void **state)
{
    (void)state;
    int skipped = 0, total = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (!has_kernel((op_kind)kind)) {
            skipped++;
            continue;
        }
        tally all = {0};
        op_case c;
        for (unsigned i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
            if (i == 0 || (build(&c, (op_kind)kind, TYPES[i], 0) && !c.one_type))
                try_op(&all, (op_kind)kind, TYPES[i]);
        print_message("%-20s %4d cases (%d strided, %d in place), worst %.2f of the tolerance\n", op_rows[kind].name,
                      all.cases, all.strided, all.in_place, all.worst);
        assert_true(all.plain >= 7);
        assert_true(!op_rows[kind].inplace_in[0] || all.in_place >= 1 || kind == OP_share);
        total += all.cases;
    }
    print_message("%d cases; %d ops skipped: they are communication\n", total, skipped);
    assert_int_equal(skipped, 6);
    for (int kind = 0; kind < OP_COUNT; kind++)
        assert_true(!(op_rows[kind].flags & COMM) || !has_kernel((op_kind)kind));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_cpu_kernel_agrees_with_the_reference),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
