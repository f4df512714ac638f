/* The executor runs programs: the same list, op by op, in one arena, step after step, on any device.
 *
 * It owns the device's arena, the communication groups and the requests in flight; the caller owns the compiled
 * programs and the communicator, which must outlive it. It allocates no memory while a program runs. Errors within a
 * program are fatal: they name rank, step and op.
 */
#pragma once

#include "engine/compile/compile.h"
#include "engine/run/choices.h"
#include "kernels/device.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"
#include "memory/scope.h"

typedef struct executor executor;

typedef struct executor_options {
    const device_interface *device;
    const op_backend *backend;
    int threads;
    bool tf32;
    bool varies;      /* allows any order of sums where that is faster: bits differ between runs */
    bool timing;      /* times algorithms that the table lacks */
    choices *choices; /* the device's table, read and extended (choices.h); NULL: the library's guesses, not stored */
    int64_t beside;   /* device bytes expected to be used outside the arena; 0: unknown */
    bool graph;       /* captures the training step as a graph where supported */
} executor_options;
/* Opens the arena and prepares every op of the compiled programs, which must have been compiled for the device's
 * backend; collective over `world`. */
status executor_open(executor **out, compiled *c, comm *world, const executor_options *options);
void executor_close(executor *e);
AUTO_CLOSES(executor, executor_close)

/* Enqueues the whole program on the device and waits for its end. With a graph, the second run of the training program
 * captures it, and later runs launch the graph, except while ops are timed, the profiler runs, or under
 * executor_op_by_op. */
void executor_play(executor *e, const compiled_program *p);
/* Split executor_play in two: in between the host is free, and may touch only executor_ahead's block. The CPU runs the
 * program within the first. */
void executor_launch(executor *e, const compiled_program *p);
void executor_finish(executor *e);
/* Returns the host address of one of compiled.values: on the CPU its own address (also for any other tensor), elsewhere
 * in the host's mirror, which executor_play copies in before a program (tokens, positions, scalars) and out after it
 * (loss, control, logits). executor_send copies tensors that are filled once (the rope table). */
void *executor_at(executor *e, const tensor *t);
void executor_send(executor *e, const tensor *t);
/* A device has a second block for the ids of a batch, which the host may fill while a program runs;
 * executor_swap_batches swaps the two between programs: executor_at then returns the filled block, and the next program
 * copies it in. */
bool executor_reads_ahead(const executor *e);
void *executor_ahead(executor *e, const tensor *t);
void executor_swap_batches(executor *e);
/* Returns an address of bytes of the arena, or of a copy, between programs, valid until executor_give_back; `changed`
 * writes the copy back. */
void *executor_borrow(executor *e, int64_t address, int64_t bytes);
void executor_give_back(executor *e, void *borrowed, int64_t address, int64_t bytes, bool changed);
run_context *executor_context(executor *e);
/* Returns the device of the arena, for copies of large parts. */
const device_interface *executor_device(const executor *e, device **out);
/* Calls `hook` in every training step before weights and optimizer change (with a graph, before the step); NULL:
 * none. */
void executor_before_change(executor *e, void (*hook)(void *context), void *context);
/* Observers are called around each op as the host runs or enqueues it, the last one closest to it; {0}: none. */
typedef enum executor_place { OBSERVES_OUTSIDE, OBSERVES_INSIDE, OBSERVES_TIMES, EXECUTOR_OBSERVERS } executor_place;
typedef struct executor_observer {
    void *context;
    void (*before)(void *context, const compiled_program *p, int index);
    void (*after)(void *context, const compiled_program *p, int index);
    /* Runs after `after`, with no capture: true repeats the op, until it returns false. NULL: never. */
    bool (*again)(void *context, const compiled_program *p, int index);
} executor_observer;
void executor_observe(executor *e, executor_place place, executor_observer o);
void executor_facts(device_facts *out, const executor *e);
/* Returns the nodes of all captured graphs (compile_program_nodes) and their device bytes; 0: no graph yet. */
void executor_graphs(const executor *e, int64_t *nodes, int64_t *bytes);
/* Returns this device's peak FLOP/s for products of the compiled precision, the reference of MFU; 0: unknown. */
double executor_peak(const executor *e);
/* Returns the number of communicators opened on the device. */
int executor_communicators(const executor *e);
void executor_profile(executor *e, bool on);
/* Enqueues ops one by one, even captured ones, until all callers have turned it off again. */
void executor_op_by_op(executor *e, bool on);

/* Reports every op to the watchdog (NULL: stops); on a device every few ops passed, by labels of the first and the
 * last. */
void executor_watch(executor *e, watchdog *w);
void executor_set_step(executor *e, int64_t step);

/* Returns the number of launches of the program. */
int64_t executor_launches(executor *e, const compiled_program *p);
/* Returns the bytes and messages that this rank has sent along an axis. */
void executor_sent(const executor *e, int64_t *bytes, int64_t *messages, axis a);

/* Adds the duration of each op i to seconds[i] from now on; on a device it waits for each op. NULL stops. */
void executor_time_ops(executor *e, double *seconds);
