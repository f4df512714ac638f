/* How much of a step is bubble: the real executor, programs and messages of four stages, with kernels that only wait.
 * Every body (one action of one chunk) waits once; forward, input gradient and weight gradient take the same time, a
 * stage's share of it divided over its chunks. Its argument is the error that is allowed. Rank 0 prints, for each
 * schedule, the bubble and what the formula says of the waits as they were:
 *
 *     bubble SCHEDULE SECONDS FORMULA
 *
 * A machine that has other work delays messages, and nothing can be said about the bubble. Messages without any work
 * between them tell: where they were late and the error is larger, the program ends with "busy SECONDS", their mean
 * delay.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/config/config.h"
#include "engine/run/executor.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { MICROBATCHES = 8, MOST_PLAYS = 8, PROBES = 100 };

static const double PART = 0.060; /* seconds a stage takes for F, for I and for W of one micro-batch */
static const double LATE = 1e-4;  /* mean delay of a message, in seconds: 0.5e-4 on a machine without other work */

/* What the waiting kernels know beside their op. */
static struct {
    double body;                  /* seconds of one part of one chunk */
    bool split;                   /* W is an action of its own */
    double busy;                  /* seconds waited since the play began */
    int chunk, microbatch, phase; /* of the body at hand */
} waiting;

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void wait_once(const op *o, const run_context *r)
{
    (void)r;
    bool same = o->chunk == waiting.chunk && o->microbatch == waiting.microbatch && o->phase == waiting.phase;
    if (o->microbatch < 0 || same)
        return;
    waiting.chunk = o->chunk;
    waiting.microbatch = o->microbatch;
    waiting.phase = o->phase;
    double seconds = o->phase == PHASE_BACKWARD && !waiting.split ? 2 * waiting.body : waiting.body, began = now();
    nanosleep(&(struct timespec){.tv_nsec = (long)(1e9 * seconds)}, NULL);
    waiting.busy += now() - began;
}

static op_kernel kernels[OP_COUNT];
static const op_backend backend = {.name = "waiting", .kernels = kernels};

/* How long ranks wait for each other's messages after all have waited for a millisecond, in seconds: the mean on the
 * worst rank. */
static double message_delay(comm *world)
{
    double late = 0, worst = 0;
    for (int i = 0; i < PROBES; i++) {
        nanosleep(&(struct timespec){.tv_nsec = 1000000}, NULL);
        double began = now();
        MUST(comm_all_status(comm_world(world), STATUS_OK) == STATUS_OK, "%s", status_message());
        late += (now() - began) / PROBES;
    }
    AUTO_FREE double *all = must_alloc((unsigned long)comm_ranks(world) * sizeof late);
    comm_all_gather_bytes(comm_world(world), all, &late, sizeof late);
    for (int k = 0; k < comm_ranks(world); k++)
        worst = all[k] > worst ? all[k] : worst;
    return worst;
}

/* Bubble and formula of the play with the least bubble for its waits. A play that others on the machine disturbed is
 * longer, never shorter: there are more until one is within half of the allowed error. False where none is within it
 * and the machine is busy. */
static bool measure(comm *world, double allowed, const char *name, int chunks, double share)
{
    AUTO_FREE char *text =
        must_format("model: {architecture: llama, layers: 8, hidden_size: 48, heads: 4, vocab_size: 131}\n"
                    "train: {sequence: 32, micro_batch: 1, global_batch: %d, precision: fp32}\n"
                    "parallel: {pipeline: %d, schedule: %s, virtual_stages: %d}\n",
                    MICROBATCHES, comm_ranks(world), name, chunks);
    config c;
    grid g;
    compile_options options;
    static compiled plan;
    executor *e = NULL;
    status s = config_parse(&c, "rank_bubble", text, strlen(text), 0, NULL);
    if (s == STATUS_OK)
        s = grid_make(&g, comm_ranks(world), comm_rank(world), GRID_SIZES(1, 1, 1, comm_ranks(world)));
    if (s == STATUS_OK)
        s = compile_options_from(&options, &c, &g, &backend, 1);
    options.evaluate = false;
    if (s == STATUS_OK)
        s = compile(&plan, &options);
    if (s == STATUS_OK)
        s = executor_open(&e, &plan, world,
                          &(executor_options){.device = &device_cpu, .backend = &backend, .threads = 1});
    MUST(s == STATUS_OK, "%s", status_message());
    waiting.body = PART / chunks;
    waiting.split = !strcmp(name, "zb-h1");
    double bubble = 1e9, formula = 1, delay = 0;
    for (int i = 0; i < MOST_PLAYS && bubble > (1 + allowed / 2) * formula; i++) {
        waiting.microbatch = -1;
        waiting.busy = 0;
        MUST(comm_all_status(comm_world(world), STATUS_OK) == STATUS_OK, "%s", status_message());
        double began = now();
        executor_play(e, &plan.training);
        double mine[2] = {now() - began, waiting.busy},
               *all = must_alloc((unsigned long)comm_ranks(world) * sizeof mine);
        comm_all_gather_bytes(comm_world(world), all, mine, sizeof mine);
        double idle = 0, busy = 0;
        for (int k = 0; k < comm_ranks(world); k++) {
            idle += (all[2 * k] - all[2 * k + 1]) / comm_ranks(world);
            busy += all[2 * k + 1] / comm_ranks(world);
        }
        free(all);
        double expected = (comm_ranks(world) - 1) * share * busy / MICROBATCHES / 3;
        if (idle / expected < bubble / formula) {
            bubble = idle;
            formula = expected;
        }
        delay = fmax(delay, message_delay(world));
    }
    bool busy = bubble > (1 + allowed) * formula && delay > LATE;
    if (comm_rank(world) == 0 && busy)
        printf("busy %.6f\n", delay);
    else if (comm_rank(world) == 0)
        printf("bubble %s %.6f %.6f\n", name, bubble, formula);
    executor_close(e);
    compile_free(&plan);
    config_free(&c);
    return !busy;
}

int main(int argc, char **argv)
{
    MUST(argc == 2, "usage: %s ALLOWED_ERROR", argv[0]);
    double allowed = atof(argv[1]);
    comm *world = NULL;
    MUST(comm_open(&world) == STATUS_OK, "%s", status_message());
    log_set_rank(comm_rank(world), comm_ranks(world));
    for (int i = 0; i < OP_COUNT; i++)
        kernels[i] = wait_once;
    /* (p-1) times: F+I+W, F+I+W, (F+I+W)/v with v = 2, F+I-W; F = I = W = 1 */
    if (measure(world, allowed, "gpipe", 1, 3) && measure(world, allowed, "1f1b", 1, 3) &&
        measure(world, allowed, "interleaved", 2, 1.5))
        measure(world, allowed, "zb-h1", 1, 1);
    comm_close(world);
    return 0;
}
