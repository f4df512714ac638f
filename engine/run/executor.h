/* The executor plays programs: the same list, op by op, in one arena, step after step, on whatever device.
 *
 * It owns the device's arena, the communication groups and the requests in flight; the compiled programs and the
 * communicator are the caller's and must outlive it. Nothing is allocated while a program plays. Errors within a
 * program are fatal: they name rank, step and op.
 */
#pragma once

#include "engine/compile/compile.h"
#include "engine/run/choices.h"
#include "kernels/device.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"

typedef struct executor executor;

typedef struct executor_options {
    const device_interface *device;
    const op_backend *backend;
    int threads;
    bool tf32;
    bool varies; /* sums may come in any order, and bits differ from run to run, where that is faster */
    bool timing; /* choices that the table lacks are made by timing */
    choices *
        choices; /* the device's, found and to be found (engine/run/choices.h); NULL: the library's guesses, not kept */
    int64_t beside; /* bytes of the device that are expected to be taken beside the arena; 0: not known */
    bool graph;     /* of the training step, on a device that has such a thing */
} executor_options;
/* Opens the arena and prepares every op of the compiled programs, which must have been compiled for the device's
 * backend; collective over `world`. */
status executor_open(executor **out, compiled *c, comm *world, const executor_options *options);
void executor_close(executor *e);

/* Puts the whole program on the device's queues, and waits until it has been played. With a graph, the training program
 * is captured when it is played for the second time, and from then on enqueued as a whole, except while ops are timed
 * or the profiler runs, and under executor_op_by_op. */
void executor_play(executor *e, const compiled_program *p);
/* The two halves of executor_play: in between the host is free, and may touch nothing but executor_ahead's. The CPU
 * plays within the first. */
void executor_launch(executor *e, const compiled_program *p);
void executor_finish(executor *e);
/* Host address of one of compiled.values: on the CPU its own address (and of any other tensor,
 * too), elsewhere in the host's mirror, which executor_play copies in before a program (tokens, positions, scalars) and
 * out after it (loss, control, logits). What is filled once (the rope table) is sent with executor_send. */
void *executor_at(executor *e, const tensor *t);
void executor_send(executor *e, const tensor *t);
/* A device has a second block for the ids of a batch, which may be filled while a program plays; executor_turn, between
 * programs, exchanges the two: executor_at then gives the block that was filled, and that is copied in. */
bool executor_reads_ahead(const executor *e);
void *executor_ahead(executor *e, const tensor *t);
void executor_turn(executor *e);
/* Bytes of the arena, between programs: an address of them, or of a copy, valid until executor_give_back; `changed`:
 * the copy is to become what is in the arena. */
void *executor_borrow(executor *e, int64_t address, int64_t bytes);
void executor_give_back(executor *e, void *borrowed, int64_t address, int64_t bytes, bool changed);
run_context *executor_context(executor *e);
/* What the arena is on, for who copies large parts of it. */
const device_interface *executor_device(const executor *e, device **out);
/* `hook` is called in every training step before weights and optimizer change (with a graph, before the step); NULL:
 * nobody. */
void executor_before_change(executor *e, void (*hook)(void *context), void *context);
/* Those that are called around each op as the host plays or enqueues it, the last one closest to it; {0}: nobody. */
typedef enum executor_place { OBSERVES_OUTSIDE, OBSERVES_INSIDE, OBSERVES_TIMES, EXECUTOR_OBSERVERS } executor_place;
typedef struct executor_observer {
    void *context;
    void (*before)(void *context, const compiled_program *p, int index);
    void (*after)(void *context, const compiled_program *p, int index);
    /* After that, with nothing captured: shall the op be played once more? Asked until it says no; NULL: no. */
    bool (*again)(void *context, const compiled_program *p, int index);
} executor_observer;
void executor_observe(executor *e, executor_place place, executor_observer o);
void executor_facts(device_facts *out, const executor *e);
/* What programs that have been captured as graphs launch (compile_program_nodes), and bytes of the device that this
 * took; 0: none has been. */
void executor_graphs(const executor *e, int64_t *nodes, int64_t *bytes);
/* FLOP/s that products of the compiled precision can reach on this rank's device, which a step is measured against; 0:
 * not known. */
double executor_peak(const executor *e);
/* How many communicators it has opened on the device. */
int executor_communicators(const executor *e);
void executor_profile(executor *e, bool on);
/* From now on ops are enqueued one by one, also where they have been captured as a graph, until all who asked for it
 * have taken it back. */
void executor_op_by_op(executor *e, bool on);

/* Tell the watchdog (NULL: nobody) of every op from now on; on a device, of every few ops that it has passed, by the
 * labels of the first and the last. */
void executor_watch(executor *e, watchdog *w);
void executor_set_step(executor *e, int64_t step);

/* How often the program has been launched. */
int64_t executor_launches(executor *e, const compiled_program *p);
/* Bytes and messages this rank has sent along an axis so far. */
void executor_sent(const executor *e, int64_t *bytes, int64_t *messages, axis a);

/* From now on measure each op of `p`; seconds[i] of op i is added up over plays; on a device each is waited for. NULL
 * stops. */
void executor_time_ops(executor *e, double *seconds);
