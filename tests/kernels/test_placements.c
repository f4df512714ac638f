/* The recorder refuses an op on operands whose placements it does not accept: a forgotten collective is an error where the
 * layer is recorded, not a wrong loss. */
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>
#include <cmocka.h>

#include "kernels/record.h"

enum { TOKENS = 10, HIDDEN = 6 };

static void begin(recorder *r, pool *p)
{
    recorder_open(r, p, &(recorder_grid){.tensor = 2, .gradient = 1, .kv = 1}, DTYPE_FP32, NULL, 0);
    r->tokens = TOKENS;
}

static tensor *placed(recorder *r, const char *name, int64_t rows, int64_t columns, placement place)
{
    return recorder_input(r, name, DTYPE_FP32, 2, (int64_t[]){rows, columns},
                          place_along(AXIS_COORDINATE_TENSOR, place));
}

static void forgets_to_share(recorder *r)
{
    record_linear(r, "mlp/up", placed(r, "x", TOKENS, HIDDEN, place_replicate()),
                  placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
}

static void forgets_to_reduce(recorder *r)
{
    tensor *x = record_share(r, "share", placed(r, "x", TOKENS, HIDDEN, place_replicate()));
    tensor *h = record_linear(r, "mlp/up", x, placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
    tensor *y = record_linear(r, "mlp/down", h, placed(r, "v", HIDDEN, 4, place_shard(1)), NULL);
    record_gelu(r, "mlp/gelu", y); /* of partial sums */
}

static void forgets_to_gather(recorder *r)
{
    record_linear(r, "mlp/up", placed(r, "x", TOKENS / 2, HIDDEN, place_shard(0)),
                  placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
}

static void adds_a_bias_on_every_rank(recorder *r)
{
    tensor *h = placed(r, "h", TOKENS, 4, place_shard(1));
    tensor *b = recorder_input(r, "b", DTYPE_FP32, 1, (int64_t[]){HIDDEN}, (placements){0});
    record_linear(r, "mlp/down", h, placed(r, "v", HIDDEN, 4, place_shard(1)), b);
}

static void refused(void (*record)(recorder *r), const char *label)
{
    int ends[2], result;
    char message[4096] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        recorder r;
        pool p = {0};
        begin(&r, &p);
        record(&r);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t more;
    while (used < sizeof message - 1 && (more = read(ends[0], message + used, sizeof message - 1 - used)) > 0)
        used += (size_t)more;
    message[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    if (!strstr(message, label) || !strstr(message, "placement"))
        fail_msg("the message does not say that %s has wrong placements: %s", label, message);
}

static void a_forgotten_collective_is_refused_when_recorded(void **state)
{
    (void)state;
    refused(forgets_to_share, "mlp/up");
    refused(forgets_to_reduce, "mlp/gelu");
    refused(forgets_to_gather, "mlp/up");
    refused(adds_a_bias_on_every_rank, "mlp/down");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(a_forgotten_collective_is_refused_when_recorded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
