/* Every op of the table on the CUDA device, through the interface that the executor uses, against the float64
 * reference: on a GPU (make check-gpu), or without one on the stand-ins, where cuBLASLt is a definition and kernels run
 * on the shim.
 *
 *     device_ops [NAME OF AN OP [WAY]]     exit status 77: there is no device
 *
 * With a way, such as cuDNN, only cases that have it are tried. DEVICE_OPS_SHARE=I/N takes one of N shares of the
 * cases (I from 0 on): what the CPU computes beside the device takes longest, and several programs divide it among
 * them.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/device.h"
#include "memory/log.h"
#include "tests/oracle/op_sweep.h"

enum { ARENA = 64 << 20, NONE = 77 };

/* Ops that take operands with gaps between their rows. */
static const op_kind STRIDED[] = {OP_linear,
                                  OP_linear_wide,
                                  OP_linear_grad_input,
                                  OP_linear_grad_weight,
                                  OP_linear_gelu,
                                  OP_linear_grad_gelu,
                                  OP_grouped_linear,
                                  OP_grouped_linear_grad_input,
                                  OP_grouped_linear_grad_weight,
                                  OP_scale,
                                  OP_soft_cap,
                                  OP_soft_cap_grad,
                                  OP_gelu,
                                  OP_gelu_grad,
                                  OP_gelu_exact,
                                  OP_gelu_exact_grad,
                                  OP_width_squares,
                                  OP_width_norm,
                                  OP_width_dots,
                                  OP_width_norm_grad,
                                  OP_join_keys,
                                  OP_split_keys,
                                  OP_latent_decode,
                                  OP_swiglu,
                                  OP_swiglu_grad,
                                  OP_geglu,
                                  OP_geglu_grad,
                                  OP_swiglu_clamped,
                                  OP_swiglu_clamped_grad,
                                  OP_attention_sinks_grad,
                                  OP_max_logit,
                                  OP_grouped_bias_grad,
                                  OP_add,
                                  OP_cast,
                                  OP_copy,
                                  OP_dropout,
                                  OP_route,
                                  OP_route_grad,
                                  OP_dispatch,
                                  OP_combine,
                                  OP_combine_dots};

static const device_interface *interface;
static device *gpu;
static const char *way; /* NULL: as the device guesses */

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
    for (int i = 0; (key = interface->choices.wanted(gpu, i)); i++) {
        snprintf(c.key, sizeof c.key, "%s", key);
        MUST(interface->choices.choose(gpu, &c) == STATUS_OK, "%s: %s", key, status_message());
    }
}

static int64_t end_of(const tensor *t, int64_t so_far)
{
    int64_t end = t ? t->address + tensor_bytes(t) : 0;
    return end > so_far ? end : so_far;
}

/* Can the op go the way? */
static bool goes_way(op *o)
{
    MUST(interface->prepare(gpu, o) == STATUS_OK, "%s", status_message());
    return o->prepared != NULL;
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
    interface->launch(gpu, &o);
    interface->synchronise(gpu, nothing, NULL);
    copy = interface->borrow(gpu, 0, bytes);
    memcpy(r->arena, copy, (size_t)bytes);
    interface->give_back(gpu, copy, 0, bytes, false);
}

/* Reads the share of the cases that is asked for; false where the text is none. */
static bool read_share(int *share, int *shares)
{
    const char *text = getenv("DEVICE_OPS_SHARE");
    char end;
    *share = *shares = 0;
    return !text ||
           (sscanf(text, "%d/%d%c", share, shares, &end) == 2 && *shares > 0 && *share >= 0 && *share < *shares);
}

static op_kernel kernels[OP_COUNT];
static op_backend backend = {.name = "device", .kernels = kernels};

int main(int count, char **arguments)
{
    const device_options options = {.requests = 1, .threads = 1};
    int share, shares, seen = 0;
    way = count > 2 ? arguments[2] : NULL;
    setvbuf(stdout, NULL, _IOLBF, 0); /* a program that is ended in the middle has said what it saw */
    MUST(read_share(&share, &shares), "DEVICE_OPS_SHARE=%s: I/N with I from 0 to N - 1 is asked for",
         getenv("DEVICE_OPS_SHARE"));
    if (device_find(&interface, "cuda") != STATUS_OK) {
        printf("device_ops: skipped: %s\n", status_message());
        return NONE;
    }
    MUST(interface->open(&gpu, &options) == STATUS_OK && interface->allocate(gpu, ARENA, 256) == STATUS_OK, "%s",
         status_message());
    for (int kind = 0; kind < OP_COUNT; kind++)
        kernels[kind] = play;
    backend.scratch_bytes = interface->backend->scratch_bytes;
    int ops = 0, failed = 0, cases = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        op_sweep s = {.backend = &backend,
                      .shares = shares,
                      .share = share,
                      .seen = seen,
                      .wants = way ? goes_way : NULL,
                      .gaps = op_sweep_among(STRIDED, sizeof STRIDED / sizeof *STRIDED, (op_kind)kind)};
        if (!op_sweep_has_kernel((op_kind)kind) || (count > 1 && strcmp(op_rows[kind].name, arguments[1]) != 0))
            continue;
        int tried = op_sweep_run(&s, (op_kind)kind);
        printf("%-22s %5d cases, worst %.3f of the tolerance%s\n", op_rows[kind].name, tried, s.worst,
               s.failed ? ", FAILED" : "");
        ops++;
        seen = s.seen;
        failed += s.failed + (tried == 0 && shares <= 1);
        cases += tried;
    }
    interface->close(gpu);
    printf("device_ops: %d ops, %d cases, %d failed\n", ops, cases, failed);
    return failed || (cases == 0 && shares <= 1); /* a share may have none */
}
