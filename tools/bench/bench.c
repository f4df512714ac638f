/* phalanx bench: measures this machine's ceilings, and how near a training step comes to them, op by op. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include <omp.h>

#include "engine/compile/model/flops.h"
#include "engine/compile/model/tokens.h"
#include "engine/train/report/report.h"
#include "engine/state/weights/weights.h"
#include "kernels/philox.h"
#include "kernels/record/product.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/bench/bench_parts.h"
#include "tools/options.h"
#include "tools/bench/self_check_parts.h"
#include "tools/tools.h"

typedef struct settings {
    int64_t steps, warmup;
    bool json, range;
    const char *tuning; /* file of measured choices; NULL: no file */
} settings;

/* ---- ceilings --------------------------------------------------------------------------------------------------- */

typedef struct ceiling {
    double flops; /* FLOPs per second of a large product of the compute type on random data */
    double bytes; /* bytes per second of x[i] = s x[i] + y[i] over memory: two reads, one write */
} ceiling;

static void fill_random(void *out, dtype type, int64_t count)
{
    float values[256];
    for (int64_t i = 0; i < count; i += 256) {
        int64_t n = count - i < 256 ? count - i : 256;
        for (int64_t k = 0; k < n; k++) {
            uint32_t draw[4];
            philox_draws(draw, 1, 1, 1, 1, (uint64_t)(i + k));
            values[k] = 2 * philox_uniform(draw[0]) - 1;
        }
        dtype_convert((char *)out + i * dtype_bytes(type), type, values, DTYPE_FP32, n);
    }
}

/* Measures FLOPs per second of linear on [n, n] x [n, n]^T, the median of several calls. */
static status measure_product(double *out, dtype type, int threads)
{
    enum { SIZE = 2048, TIMES = 7 };
    int64_t square[] = {SIZE, SIZE}, bytes = (int64_t)SIZE * SIZE * dtype_bytes(type);
    tensor x, w, y, scratch;
    tensor_describe(&x, "x", CLASS_INPUT, type, 2, square);
    tensor_describe(&w, "w", CLASS_INPUT, type, 2, square);
    tensor_describe(&y, "y", CLASS_INPUT, type, 2, square);
    op o = {.kind = OP_linear, .in = {&x, &w}, .out = {&y}, .label = "ceiling"};
    x.address = 0;
    w.address = bytes;
    y.address = 2 * bytes;
    int64_t more = cpu_backend.scratch_bytes(&o, threads);
    tensor_describe(&scratch, "scratch", CLASS_SCRATCH, DTYPE_UINT8, 1, &more);
    scratch.address = 3 * bytes;
    o.scratch = more > 0 ? &scratch : NULL;
    TRY(cpu_backend.prepare(&o, threads));
    char *memory = aligned_alloc(4096, (size_t)((3 * bytes + more + 4095) / 4096 * 4096));
    MUST(memory, "out of memory");
    fill_random(memory, type, 3 * (int64_t)SIZE * SIZE);
    const run_context r = {.arena = memory, .threads = threads};
    double seconds[TIMES];
    cpu_backend.kernels[OP_linear](&o, &r);
    for (int i = 0; i < TIMES; i++) {
        double begun = clock_seconds();
        cpu_backend.kernels[OP_linear](&o, &r);
        seconds[i] = clock_seconds() - begun;
    }
    free(memory);
    *out = 2.0 * SIZE * SIZE * SIZE / bench_median(seconds, TIMES);
    return STATUS_OK;
}

static double measure_memory(int threads)
{
    enum { COUNT = 32 << 20, TIMES = 7 };
    AUTO_FREE float *x = must_alloc(COUNT * sizeof *x), *y = must_alloc(COUNT * sizeof *y);
#pragma omp parallel for num_threads(threads) schedule(static)
    for (int64_t i = 0; i < COUNT; i++) {
        x[i] = 1;
        y[i] = 2;
    }
    double seconds[TIMES];
    for (int k = 0; k < TIMES; k++) {
        double begun = clock_seconds();
#pragma omp parallel for simd num_threads(threads) schedule(static)
        for (int64_t i = 0; i < COUNT; i++)
            x[i] = 0.5f * x[i] + y[i];
        seconds[k] = clock_seconds() - begun;
    }
    return 3.0 * COUNT * sizeof(float) / bench_median(seconds, TIMES);
}

/* ---- a step ------------------------------------------------------------------------------------------------------ */

typedef struct row {
    char name[64];
    double seconds, bound, flops, bytes;
    int64_t calls;
} row;

typedef struct step_bench {
    const settings *set;
    const config *config;
    bench_step step;
    ceiling top;
    double *op_seconds;
    double noted; /* seconds of a step with events between ops; 0: no such step was played */
} step_bench;

/* Finds or adds the row of an op kind at a site ("mlp/down: linear"). */
static row *find_row(row *rows, int *count, const op *o)
{
    char name[sizeof rows->name];
    snprintf(name, sizeof name, "%s: %s", o->phase == PHASE_UPDATE ? "update" : o->site, op_row_of(o)->name);
    for (int i = 0; i < *count; i++)
        if (!strcmp(rows[i].name, name))
            return &rows[i];
    row *r = &rows[(*count)++];
    memset(r, 0, sizeof *r);
    memcpy(r->name, name, sizeof name);
    return r;
}

static int by_seconds(const void *a, const void *b)
{
    const row *x = a, *y = b;
    return (x->seconds < y->seconds) - (x->seconds > y->seconds);
}

static void print_ops(const step_bench *b)
{
    const program *p = &b->step.compiled.training.list;
    AUTO_FREE row *rows = must_calloc((unsigned long)p->count, sizeof *rows);
    int count = 0;
    double total = 0, bound = 0;
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        if (op_waits(o))
            continue;
        row *r = find_row(rows, &count, o);
        op_cost cost = op_row_of(o)->cost(o);
        double by_memory = cost.bytes / b->top.bytes,
               by_product = product_multiplies(o) ? cost.flops / b->top.flops : 0;
        r->bound += by_product > by_memory ? by_product : by_memory;
        r->seconds += b->op_seconds[i] / (double)b->set->steps;
        r->flops += cost.flops;
        r->bytes += cost.bytes;
        r->calls++;
    }
    qsort(rows, (size_t)count, sizeof *rows, by_seconds);
    printf("  %-44s %6s %9s %9s %7s %9s %8s\n", "op", "calls", "ms", "bound ms", "share", "GFLOP/s", "GB/s");
    for (int i = 0; i < count; i++) {
        total += rows[i].seconds;
        bound += rows[i].bound;
    }
    for (int i = 0; i < count && rows[i].seconds > 0.0005 * total; i++)
        printf("  %-44s %6lld %9.2f %9.2f %6.1f%% %9.1f %8.1f\n", rows[i].name, (long long)rows[i].calls,
               rows[i].seconds * 1e3, rows[i].bound * 1e3, 100 * rows[i].seconds / total,
               rows[i].flops / rows[i].seconds / 1e9, rows[i].bytes / rows[i].seconds / 1e9);
    printf("  %-44s %6d %9.2f %9.2f\n", "all", p->count, total * 1e3, bound * 1e3);
}

static void warm_up(step_bench *b)
{
    for (int64_t i = 0; i < b->set->warmup; i++)
        executor_play(b->step.executor, &b->step.compiled.training);
}

/* Measures the seconds of each step. The CPU times ops in the same steps; a GPU in others, since events between ops
 * slow a step down. */
static void time_steps(step_bench *b, double *seconds)
{
    const compiled_program *p = &b->step.compiled.training;
    int64_t n = b->set->steps;
    bool apart = b->step.device != &device_cpu;
    bench_times *t = bench_times_open(b->step.executor, p);
    for (int64_t i = 0; i < n && !apart; i++)
        seconds[i] = bench_times_play(t, b->op_seconds);
    for (int64_t i = 0; i < n && apart; i++) {
        double begun = clock_seconds();
        executor_play(b->step.executor, p);
        seconds[i] = clock_seconds() - begun;
    }
    for (int64_t i = 0; i < n && apart && !b->set->json; i++)
        b->noted += bench_times_play(t, b->op_seconds) / (double)n;
    bench_times_close(t);
}

static status run_steps(step_bench *b)
{
    int64_t n = b->set->steps;
    AUTO_FREE double *seconds = must_calloc((unsigned long)n, sizeof *seconds);
    b->op_seconds = must_calloc((unsigned long)b->step.compiled.training.list.count, sizeof(double));
    warm_up(b);
    time_steps(b, seconds);
    double each = bench_median(seconds, n);
    double tokens = (double)config_step_tokens(b->config);
    double flops = flops_per_token(&b->config->model.shape, b->config->train.sequence) * tokens;
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    if (!b->set->json) {
        /* Prints sorted step times and, beside them, the time of a step with events between ops. */
        printf("%lld steps: median %.3f ms, %.3f to %.3f", (long long)n, 1e3 * bench_median(seconds, n),
               1e3 * seconds[0], 1e3 * seconds[n - 1]);
        if (b->noted > 0)
            printf("; with an event between ops %.3f ms", 1e3 * b->noted);
        putchar('\n');
        print_ops(b);
    }
    double share = flops / each / b->top.flops, resident = (double)usage.ru_maxrss / (1 << 20);
    int sequences = b->config->train.global_batch;
    long long length = b->config->train.sequence;
    if (b->set->json)
        printf("{\"sequences\": %d, \"sequence\": %lld, \"tokens_per_second\": %.5g, \"gflops\": %.5g, "
               "\"ceiling_gflops\": %.5g, \"share\": %.4g, \"memory_gbps\": %.4g, \"resident_gib\": %.4g}\n",
               sequences, length, tokens / each, flops / each / 1e9, b->top.flops / 1e9, share, b->top.bytes / 1e9,
               resident);
    else
        printf("%d x %lld: %.5g tokens/s, %.5g GFLOP/s of the model; product ceiling %.5g GFLOP/s, share %.3f; memory "
               "%.4g "
               "GB/s; resident %.4g GiB\n",
               sequences, length, tokens / each, flops / each / 1e9, b->top.flops / 1e9, share, b->top.bytes / 1e9,
               resident);
    return STATUS_OK;
}

static status measure_opened(step_bench *b, const choices *timed, int threads)
{
    if (b->set->range) {
        warm_up(b);
        /* Plays one step between the profiler's start and stop. */
        executor_profile(b->step.executor, true);
        executor_play(b->step.executor, &b->step.compiled.training);
        executor_profile(b->step.executor, false);
        printf("one step of %d ops was played within the profiler's range\n", b->step.compiled.training.list.count);
        return STATUS_OK;
    }
    if (b->step.device == &device_cpu) {
        TRY(measure_product(&b->top.flops, precision_compute(b->config->train.precision), threads));
        b->top.bytes = measure_memory(threads);
    } else {
        /* A GPU's ceilings come from its data sheet. */
        device_facts facts;
        executor_facts(&facts, b->step.executor);
        b->top.bytes = facts.bandwidth > 0 ? facts.bandwidth : 1e12;
        b->top.flops = executor_peak(b->step.executor);
        if (b->top.flops <= 0)
            b->top.flops = 1e15;
    }
    enum { READABLE = 100 }; /* algorithms of products are opaque bytes, and left out */
    for (int i = 0; !b->set->json && i < timed->count; i++)
        if (strlen(timed->item[i].value) < READABLE)
            printf("%s, %.1f us: %s\n", timed->item[i].value, timed->item[i].microseconds, timed->item[i].key);
    return run_steps(b);
}

static void close_step(step_bench *b)
{
    bench_step_close(&b->step);
    free(b->op_seconds);
}

static status measure_step(const settings *set, const config *c, comm *self)
{
    const device_interface *on = &device_cpu;
    if (c->train.device == CONFIG_CUDA)
        TRY(device_find(&on, "cuda"));
    int threads = c->train.threads > 0 ? c->train.threads : omp_get_max_threads();
    RELEASED_BY(choices_free) choices timed = {0};
    RELEASED_BY(close_step) step_bench b = {.set = set, .config = c};
    if (set->tuning)
        TRY(choices_read(&timed, set->tuning));
    TRY(bench_step_open(&b.step, c, on, threads, self, &timed));
    if (set->tuning && timed.count > 0)
        TRY(choices_write(&timed, set->tuning));
    return measure_opened(&b, &timed, threads);
}

static status measure_config(const settings *set, int operands, char **argv)
{
    RELEASED_BY(config_free) config c = {0};
    comm *self = NULL;
    const options_said said = options_said_of(operands, argv + 1);
    TRY(config_load(&c, said.file, said.overrides, said.override));
    TRY(weights_configure(&c));
    TRY(comm_open(&self));
    status s = measure_step(set, &c, self);
    comm_close(self);
    return s;
}

/* Accepts no configuration key but the device. */
static status only_device(bool *cuda, const char *option, int operands, char **argv)
{
    *cuda = operands == 1 && strcmp(argv[1], "train.device=cuda") == 0;
    if (operands == 0 || *cuda)
        return STATUS_OK;
    return status_fail(STATUS_USAGE, "bench %s has cases of its own: it takes nothing but train.device=cuda", option);
}

static status check_device(int operands, char **argv)
{
    bool cuda;
    const device_interface *on = &device_cpu;
    TRY(only_device(&cuda, "--self-check", operands, argv));
    if (cuda)
        TRY(device_find(&on, "cuda"));
    comm *self = NULL;
    TRY(comm_open(&self));
    status s = self_check(on, omp_get_max_threads(), self);
    comm_close(self);
    return s;
}

static status measure_profile(const char *path, const options_command *command, int operands, char **argv)
{
    comm *world = NULL;
    bool cuda;
    TRY(only_device(&cuda, "--profile", operands, argv));
    TRY(comm_open(&world));
    log_set_rank(comm_rank(world), comm_ranks(world));
    status s = options_agree(world, STATUS_OK, &(options_facts){.command = command, .rest = operands ? argv[1] : ""});
    if (s == STATUS_OK)
        s = bench_profile(path, cuda ? CONFIG_CUDA : CONFIG_CPU, world);
    comm_close(world);
    return s;
}

int bench_main(int argc, char **argv)
{
    settings set = {.steps = 5, .warmup = 2};
    const char *profile = NULL;
    bool check = false;
    const options_row rows[] = {
        OPTION_INTEGER("--steps", "N", "measured steps; the median counts (5)", &set.steps, 1, 100000),
        OPTION_INTEGER("--warmup", "N", "steps before them (2)", &set.warmup, 0, 100000),
        OPTION_TEXT(
            "--profile", "FILE",
            "instead: time the ops of many models, and messages, for phalanx plan --device FILE; under mpirun with "
            "several "
            "ranks, too",
            &profile),
        OPTION_FLAG("--self-check",
                    "instead: a line for each thing that only this device and its libraries can judge, with its "
                    "verdict; 1 if one "
                    "is wrong",
                    &check),
        OPTION_TEXT("--tuning", "FILE",
                    "algorithms chosen by timing: those that FILE (a run's tuning.json) has are not timed, the others "
                    "are added "
                    "to it",
                    &set.tuning),
        OPTION_FLAG("--range",
                    "instead: after the warm-up one step between the profiler's start and stop, for ncu "
                    "--profile-from-start off",
                    &set.range),
        OPTION_FLAG("--json", "one JSON object, without the table", &set.json),
    };
    const options_command command = {
        .name = "bench",
        .operands =
            "CONFIG.yaml [key=value ...] | --profile FILE [train.device=cuda] | --self-check [train.device=cuda]",
        .summary =
            "Plays training steps of a configuration on one rank, with random tokens and weights, and prints each op's "
            "time\n"
            "beside its bound: products at the speed of a large product measured in the same call, all else at the\n"
            "measured bandwidth of memory.",
        .least = 0,
        .most = -1,
        OPTION_ROWS(rows)};
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    if (!profile && !check && operands < 1) {
        log_error("bench needs a configuration, --profile FILE or --self-check");
        return STATUS_USAGE;
    }
    status s = check     ? check_device(operands, argv)
               : profile ? measure_profile(profile, &command, operands, argv)
                         : measure_config(&set, operands, argv);
    return options_exit(s);
}
