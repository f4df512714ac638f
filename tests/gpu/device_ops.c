/* Every op of the table on the CUDA device, through the interface that the executor uses, against the float64 reference:
 * on a GPU (make check-gpu), or without one on the stand-ins, where cuBLASLt is a definition and kernels run on the shim.
 *
 *     device_ops [NAME OF AN OP [WAY]]     exit status 77: there is no device
 *
 * With a way, such as cuDNN, only cases that have it count.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/log.h"
#include "tests/op_cases.h"

enum { ARENA = 64 << 20, NONE = 77 };

static const dtype TYPES[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

/* Played by the communication backends. */
static const op_kind NO_KERNEL[] = {OP_all_gather, OP_reduce_scatter, OP_all_reduce, OP_send, OP_receive, OP_wait};

/* Ops that take operands with gaps between their rows. */
static const op_kind STRIDED[] = {OP_linear,
                                  OP_linear_grad_input,
                                  OP_linear_grad_weight,
                                  OP_linear_gelu,
                                  OP_linear_grad_gelu,
                                  OP_gelu,
                                  OP_gelu_grad,
                                  OP_swiglu,
                                  OP_swiglu_grad,
                                  OP_add,
                                  OP_cast,
                                  OP_copy,
                                  OP_dropout};

static const device_interface *interface;
static device *gpu;
static const char *way; /* NULL: as the device guesses */
static int went_way;

static bool listed(const op_kind *list, size_t count, op_kind kind)
{
    for (size_t i = 0; i < count; i++)
        if (list[i] == kind)
            return true;
    return false;
}

static void nothing(void *context)
{
    (void)context;
}

/* Everything that there is a choice of goes `way`. */
static void choose_way(void)
{
    device_choice c = {.microseconds = 0};
    const char *key;
    snprintf(c.value, sizeof c.value, "%s", way);
    for (int i = 0; (key = interface->wanted(gpu, i)); i++) {
        snprintf(c.key, sizeof c.key, "%s", key);
        MUST(interface->choose(gpu, &c) == STATUS_OK, "%s: %s", key, status_message());
    }
}

static int64_t end_of(const tensor *t, int64_t so_far)
{
    int64_t end = t ? t->address + tensor_bytes(t) : 0;
    return end > so_far ? end : so_far;
}

/* The op on the device, from the host's arena and back into it; what lies between the operands travels too, so that a
 * kernel that writes there is found out. */
static void play(const op *asked, const run_context *r)
{
    op o = *asked;
    int64_t bytes = end_of(o.scratch, 0);
    for (int i = 0; i < OP_MAX_IN; i++)
        bytes = end_of(o.in[i], bytes);
    for (int i = 0; i < OP_MAX_OUT; i++)
        bytes = end_of(o.out[i], bytes);
    MUST(bytes <= ARENA, "a case of %lld bytes", (long long)bytes);
    char *copy = interface->borrow(gpu, 0, bytes);
    memcpy(copy, r->arena, (size_t)bytes);
    interface->give_back(gpu, copy, 0, bytes, true);
    MUST(interface->prepare(gpu, &o) == STATUS_OK, "%s", status_message());
    if (way)
        choose_way();
    went_way += o.prepared != NULL;
    interface->launch(gpu, &o);
    interface->synchronise(gpu, nothing, NULL);
    copy = interface->borrow(gpu, 0, bytes);
    memcpy(r->arena, copy, (size_t)bytes);
    interface->give_back(gpu, copy, 0, bytes, false);
}

static op_kernel kernels[OP_COUNT];
static op_backend backend = {.name = "device", .kernels = kernels};

typedef struct tally {
    int cases, failed;
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

static void try_mode(tally *all, op_kind kind, dtype type, int variant, const op_case_mode *m)
{
    op_case c;
    char why[256] = "";
    if (!build(&c, kind, type, variant) || !op_case_allows(&c, m))
        return;
    int before = went_way;
    double worst = op_case_run(why, &c, &backend, m, (uint64_t)kind * 1000 + (uint64_t)variant);
    if (way && went_way == before)
        return;
    all->cases++;
    all->worst = worst > all->worst ? worst : all->worst;
    if (worst <= 1)
        return;
    all->failed++;
    printf("FAILED %s%s%s: %.3g times the tolerance; %s\n", c.what, m->strided ? ", strided" : "",
           m->in_place_out >= 0 ? ", in place" : "", worst, why);
}

static void try_op(tally *all, op_kind kind, dtype type)
{
    op_case c;
    for (int variant = 0; build(&c, kind, type, variant); variant++) {
        try_mode(all, kind, type, variant, &(op_case_mode){.in_place_out = -1, .threads = 1});
        if (listed(STRIDED, sizeof STRIDED / sizeof *STRIDED, kind))
            try_mode(all, kind, type, variant, &(op_case_mode){.in_place_out = -1, .threads = 1, .strided = true});
        const op_row *row = &op_rows[kind];
        for (int pair = 0; pair < 2 && row->inplace_in[pair]; pair++)
            for (int i = 0; i < OP_MAX_IN; i++)
                if (row->inplace_in[pair] >> i & 1 && !c.alias)
                    try_mode(all, kind, type, variant,
                             &(op_case_mode){.in_place_out = row->inplace_out[pair], .in_place_in = i, .threads = 1});
    }
}

static bool one_type(op_kind kind)
{
    op_case c;
    return build(&c, kind, DTYPE_FP32, 0) && c.one_type;
}

int main(int count, char **arguments)
{
    const device_options options = {.arena_bytes = ARENA, .host_bytes = 256, .requests = 1, .threads = 1};
    way = count > 2 ? arguments[2] : NULL;
    status s = device_load(&interface, "cuda");
    if (s == STATUS_OK)
        s = interface->available();
    if (s != STATUS_OK) {
        printf("device_ops: skipped: %s\n", status_message());
        return NONE;
    }
    MUST(interface->open(&gpu, &options) == STATUS_OK, "%s", status_message());
    for (int kind = 0; kind < OP_COUNT; kind++)
        kernels[kind] = play;
    backend.scratch_bytes = interface->backend->scratch_bytes;
    int ops = 0, failed = 0, cases = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        tally all = {0};
        if (listed(NO_KERNEL, sizeof NO_KERNEL / sizeof *NO_KERNEL, (op_kind)kind) ||
            (count > 1 && strcmp(op_rows[kind].name, arguments[1]) != 0))
            continue;
        for (size_t i = 0; i < sizeof TYPES / sizeof *TYPES; i++)
            if (i == 0 || !one_type((op_kind)kind))
                try_op(&all, (op_kind)kind, TYPES[i]);
        printf("%-22s %5d cases, worst %.3f of the tolerance%s\n", op_rows[kind].name, all.cases, all.worst,
               all.failed ? ", FAILED" : "");
        ops++;
        failed += all.failed + (all.cases == 0 && kind != OP_share);
        cases += all.cases;
    }
    interface->close(gpu);
    printf("device_ops: %d ops, %d cases, %d failed\n", ops, cases, failed);
    return failed || cases == 0 ? 1 : 0;
}
