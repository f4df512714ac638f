#include "engine/run/executor.h"

#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/groups.h"
#include "engine/compile/model/tokens.h"
#include "engine/run/warming.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/machine.h"
#include "memory/scope.h"

enum { COPIES = 8 };

typedef struct traffic {
    int64_t bytes, messages;
} traffic;

typedef struct range {
    int64_t at, bytes;
} range;

/* A call of comm.h for one op that communicates, or for several launched together (where.bundle). Built before the
 * first step. */
typedef struct launch {
    comm_call call;
    const op **ops; /* ops launched with the call */
    int count;      /* 0: a later op's call includes this op */
    int ends;       /* request of the call that includes it */
} launch;

/* The executor's state of a program. */
typedef struct played {
    const compiled_program *program;
    launch *launches;             /* [requests] calls of all its communication */
    const char **between_marks;   /* text per mark: the ops before it; NULL if `apart` is false */
    int64_t launched;             /* number of launches */
    int64_t plays;                /* runs with graphs: op by op, captured, then replayed */
    traffic captured[AXIS_COUNT]; /* traffic of each replay */
} played;

struct executor {
    const compiled *compiled;
    pool pool;
    played programs[COMPILE_PROGRAMS];
    comm *world;
    const device_interface *interface;
    device *device;
    bool apart;        /* the device has memory and time of its own */
    bool second_block; /* the current batch is in the second block */
    played *playing;
    int marked, passed; /* marks put on the device's queue, and passed by it */
    bool graph, capturing, profiled;
    int op_by_op; /* number of callers that asked for it */
    int64_t graph_nodes, graph_bytes;
    range before[COPIES], after[COPIES];
    int before_count, after_count;
    groups groups;
    comm_group **group; /* [groups.count] */
    comm_request *requests;
    watchdog *watchdog;
    void (*hook)(void *); /* called before a training program changes the state; NULL: none */
    void *hook_context;
    executor_observer observer[EXECUTOR_OBSERVERS];
    double *seconds;
    _Atomic(int64_t) step;
    _Atomic(const op *) current;
};

/* ---- preparation ------------------------------------------------------------------------------------------------ */

static status open_groups(executor *e, bool varies)
{
    groups_find(&e->groups, e->compiled);
    e->group = pool_alloc(&e->pool, (size_t)(e->groups.count + 1) * sizeof *e->group);
    for (int i = 0; i < e->groups.count; i++) {
        const groups_row *r = &e->groups.row[i];
        comm_group_options o = {.backend = e->interface->communication, .use = r->use};
        o.like = r->same_as < 0 ? NULL : e->group[r->same_as];
        o.use.varies = varies;
        TRY(comm_group_open_on(&e->group[i], e->world, r->members, r->count, &o));
    }
    return STATUS_OK;
}

/* Prepares a message's call: its group is the axis; the op gives its peer and its tensor. */
static void make_call(comm_call *call, executor *e, const op *o)
{
    int row = groups_of(&e->groups, o, comm_rank(e->world));
    MUST(row >= 0, "%s: no group along the %s axis", o->label, axis_name((axis)o->where.axis));
    comm_group *g = e->group[row];
    char *arena = executor_context(e)->arena;
    MUST(!call->group, "%s: request %d is another's", o->label, o->where.request);
    op sized = *o;
    sized.where.group_size = comm_group_ranks(g);
    sized.where.group_rank = comm_group_me(g);
    int64_t *counts = NULL;
    if (collective_has_parts(o)) {
        counts = pool_alloc(&e->pool, (size_t)sized.where.group_size * sizeof *counts);
        collective_counts(counts, &sized);
    }
    comm_shape s = collective_shape(&sized, counts);
    *call = (comm_call){.kind = s.kind, .group = g, .type = s.type, .count = s.count, .counts = counts};
    call->send = o->in[0] ? (char *)tensor_at(o->in[0], arena) + collective_offset(o) : NULL;
    call->receive = o->out[0] ? (char *)tensor_at(o->out[0], arena) + collective_offset(o) : NULL;
    call->scratch = tensor_at(o->scratch, arena);
    int *peer = op_has(o, OP_LEAVES) ? &call->peer : &call->source;
    for (*peer = 0; op_has(o, OP_MESSAGE) && comm_group_member(g, *peer) != o->where.peer; ++*peer)
        MUST(*peer + 1 < comm_group_ranks(g), "rank %d is no member of the group", o->where.peer);
}

/* Joins the calls of several ops into one: they become its pieces. */
static void join_calls(comm_call *call, executor *e, const launch *of, const op *const *ops, int count)
{
    comm_segment *pieces = pool_alloc(&e->pool, (size_t)count * sizeof *pieces);
    int64_t *sums = pool_alloc(&e->pool, (size_t)comm_group_ranks(call->group) * sizeof *sums);
    for (int i = 0; i < count; i++) {
        const comm_call *one = &of[ops[i]->where.request].call;
        pieces[i] = (comm_segment){one->send, one->receive, one->count, one->counts};
    }
    call->count = collective_together(sums, ops, count).count;
    call->counts = sums;
    call->pieces = pieces;
    call->piece_count = count;
    call->send = call->receive = NULL;
}

static void make_launch(launch *of, executor *e, const program *p, int index)
{
    const op *ops[COMM_SEGMENTS], *o = p->ops[index];
    launch *l = &of[o->where.request];
    make_call(&l->call, e, o);
    l->count = collective_bundle(ops, p, index);
    l->ops = pool_alloc(&e->pool, (size_t)(l->count + 1) * sizeof *l->ops);
    for (int i = 0; i < l->count; i++) {
        l->ops[i] = ops[i];
        of[ops[i]->where.request].ends = o->where.request;
    }
    if (l->count > 1)
        join_calls(&l->call, e, of, ops, l->count);
}

static status prepare_ops(executor *e, played *p)
{
    p->launches = pool_alloc(&e->pool, (size_t)(p->program->requests + 1) * sizeof *p->launches);
    for (int i = 0; i < p->program->list.count; i++) {
        op *o = p->program->list.ops[i];
        if (op_communicates(o))
            make_launch(p->launches, e, &p->program->list, i);
        if (op_copies(o)) /* no call: only the device knows it */
            p->launches[o->where.request].ends = o->where.request;
        if (op_computes(o))
            TRY(e->interface->prepare(e->device, o));
    }
    return STATUS_OK;
}

/* Describes the executor's position for messages: callable from any thread at any time. */
static void describe_where(char *out, int bytes, void *context)
{
    const executor *e = context;
    program_place(out, bytes, atomic_load_explicit(&e->step, memory_order_relaxed),
                  atomic_load_explicit(&e->current, memory_order_relaxed));
}

/* ---- the mirror ------------------------------------------------------------------------------------------------ */

/* Merges adjacent ranges into one copy. */
static void add_range(range *list, int *count, const tensor *t)
{
    int64_t bytes = tensor_bytes(t);
    if (t->address < 0 || bytes == 0)
        return;
    range *last = *count ? &list[*count - 1] : NULL;
    if (last && t->address >= last->at && t->address - (last->at + last->bytes) < COMPILE_ALIGNMENT) {
        last->bytes = t->address + bytes - last->at;
        return;
    }
    MUST(*count < COPIES, "%d copies around a program", COPIES);
    list[(*count)++] = (range){t->address, bytes};
}

static void find_ranges(executor *e)
{
    enum { NEVER, BEFORE, AFTER };
    static const int copied[] = {
#define VALUE(name, text, type, rows, columns, ranks, copied) copied,
#include "layers/values.def"
    };
    for (int i = 0; i < VALUE_COUNT; i++) {
        if (copied[i] == BEFORE)
            add_range(e->before, &e->before_count, e->compiled->values.value[i]);
        if (copied[i] == AFTER)
            add_range(e->after, &e->after_count, e->compiled->values.value[i]);
    }
}

/* ---- progress of a device ---------------------------------------------------------------------------------------- */

static void name_between_marks(executor *e, played *p)
{
    const program *list = &p->program->list;
    int marks = compile_marks(p->program);
    p->between_marks = pool_alloc(&e->pool, (size_t)(marks + 1) * sizeof *p->between_marks);
    for (int i = 0; i < marks; i++) {
        int first = i * COMPILE_MARK_OPS,
            last = first + COMPILE_MARK_OPS < list->count ? first + COMPILE_MARK_OPS - 1 : list->count - 1;
        p->between_marks[i] = pool_format(&e->pool, "%s .. %s", list->ops[first]->label, list->ops[last]->label);
    }
}

/* Reports an op. Enqueueing is no progress, but belongs in the flight record. */
static void tell_watchdog(executor *e, const op *o, const char *where, bool enqueued)
{
    if (!e->watchdog)
        return;
    watchdog_position p = {.step = atomic_load_explicit(&e->step, memory_order_relaxed),
                           .micro_batch = o->microbatch,
                           .action = phase_name((phase)o->phase),
                           .op = where,
                           .kind = op_row_of(o)->name};
    if (op_communicates(o)) {
        const launch *mine = &e->playing->launches[o->where.request];
        const comm_call *call = &e->playing->launches[mine->ends].call;
        p.bytes = call->count * dtype_bytes(call->type);
        p.peer = op_has(o, OP_MESSAGE) ? o->where.peer : -1;
    }
    (enqueued ? watchdog_note : watchdog_at)(e->watchdog, &p);
}

/* Sets this rank's position to its device's. */
static void stand_at_mark(executor *e)
{
    const program *list = &e->playing->program->list;
    int first = e->passed * COMPILE_MARK_OPS;
    if (first >= list->count)
        return;
    const op *o = list->ops[first];
    tell_watchdog(e, o, e->playing->between_marks[e->passed], false);
    if (e->marked == compile_marks(e->playing->program)) /* messages name the op that the host enqueues until then */
        atomic_store_explicit(&e->current, o, memory_order_relaxed);
}

static void look_at_marks(executor *e)
{
    int before = e->passed;
    while (e->passed < e->marked && e->interface->passed(e->device, e->passed))
        e->passed++;
    if (e->passed > before)
        stand_at_mark(e);
}

/* Puts a mark on the device's queue after op `i` of the program if one is due. */
static void mark_op(executor *e, int i)
{
    if (!e->apart || ((i + 1) % COMPILE_MARK_OPS && i + 1 < e->playing->program->list.count))
        return;
    e->interface->mark(e->device, e->marked++);
    if (!e->capturing)
        look_at_marks(e);
}

/* ---- opening --------------------------------------------------------------------------------------------------- */

/* Rejects two ranks on one GPU, which would silently halve each other's speed and memory. */
static status check_apart(executor *e)
{
    device_facts mine;
    int ranks = comm_ranks(e->world), me = comm_rank(e->world);
    const char *share = getenv(DEVICE_SHARE_ENVIRONMENT);
    executor_facts(&mine, e);
    AUTO_FREE char(*all)[sizeof mine.identity] = must_alloc((unsigned long)ranks * sizeof *all);
    comm_all_gather_bytes(comm_world(e->world), all, mine.identity, sizeof mine.identity);
    status s = STATUS_OK;
    for (int i = 0; i < ranks && s == STATUS_OK; i++)
        if (i != me && mine.identity[0] && !strcmp(all[i], mine.identity) && !(share && !strcmp(share, "1")))
            s = status_fail(STATUS_USAGE,
                            "ranks %d and %d share one GPU (%s): start no more ranks than GPUs, or set %s=1 to try "
                            "things out",
                            i < me ? i : me, i < me ? me : i, mine.name, DEVICE_SHARE_ENVIRONMENT);
    return comm_all_status(comm_world(e->world), s);
}

static status open_device(executor *e, const executor_options *o)
{
    int requests = 1;
    for (int i = 0; i < COMPILE_PROGRAMS; i++) {
        const compiled_program *p = e->programs[i].program;
        requests = p->requests > requests ? p->requests : requests;
    }
    find_ranges(e);
    e->requests = pool_alloc(&e->pool, (size_t)requests * sizeof *e->requests);
    const device_options options = {.requests = requests,
                                    .marks = e->compiled->marks,
                                    .rank = comm_rank(e->world),
                                    .local_rank = comm_local_rank(e->world),
                                    .backend = o->backend,
                                    .threads = o->threads,
                                    .tf32 = o->tf32,
                                    .varies = o->varies};
    status s = e->interface->open(&e->device, &options);
    if (!e->interface->communication)
        return s;
    TRY(comm_all_status(comm_world(e->world), s)); /* agrees before anything collective on the devices */
    /* Binds this process's threads to the GPU's memory node, since they touch the memory that it copies to and from. */
    device_facts f;
    executor_facts(&f, e);
    int node = *f.pci ? machine_node_of("", f.pci) : -1;
    if (machine_stay_near("", node) == MACHINE_ELSEWHERE)
        log_warn("rank %d is bound to cores of another memory node than its GPU's (%s, node %d): copies to and from "
                 "host memory cross between sockets; start with mpirun --bind-to none, and it chooses cores",
                 comm_rank(e->world), f.pci, node);
    return check_apart(e);
}

/* Allocates the arena last: by now the libraries have their memory, and the rest is known. Kernels loaded at their
 * first launch take some later. */
static status allocate_arena(executor *e, const executor_options *o)
{
    device_facts f;
    status s = e->interface->allocate(e->device, e->compiled->arena_bytes, e->compiled->pinned_bytes);
    if (!e->interface->communication)
        return s;
    TRY(comm_all_status(comm_world(e->world), s));
    executor_facts(&f, e);
    int64_t later = o->beside - f.beside;
    if (later > f.free_memory)
        log_warn("the arena leaves %.2f GiB of the GPU; CUDA's libraries may yet take %.2f GiB: if they fail, lower "
                 "memory.budget or train.micro_batch",
                 (double)f.free_memory / (1 << 30), (double)later / (1 << 30));
    return STATUS_OK;
}

status executor_open(executor **out, compiled *c, comm *world, const executor_options *options)
{
    AUTO(executor) *e = must_calloc(1, sizeof *e);
    e->compiled = c;
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        e->programs[i].program = compile_program_at(c, i);
    e->world = world;
    e->interface = options->device;
    e->apart = e->interface != &device_cpu;
    e->graph = options->graph && e->interface->capture;
    status s = open_device(e, options);
    if (s == STATUS_OK)
        s = open_groups(e, options->varies);
    if (s == STATUS_OK)
        s = allocate_arena(e, options);
    for (int i = 0; s == STATUS_OK && i < COMPILE_PROGRAMS; i++)
        s = prepare_ops(e, &e->programs[i]);
    if (options->choices) {
        s = comm_all_status(comm_world(world), s);
        if (s == STATUS_OK)
            s = choices_agree(options->choices, comm_world(world), e->interface, e->device, options->timing);
    }
    TRY(s);
    warming_play(c, e->interface, e->device);
    for (int i = 0; e->apart && i < COMPILE_PROGRAMS; i++)
        name_between_marks(e, &e->programs[i]);
    log_set_where(describe_where, e);
    *out = TAKE(e);
    return STATUS_OK;
}

void executor_close(executor *e)
{
    if (!e)
        return;
    log_set_where(NULL, NULL);
    if (e->device && e->interface->forget)
        e->interface->forget(e->device);
    for (int i = 0; e->group && i < e->groups.count; i++)
        comm_group_close(e->group[i]);
    groups_free(&e->groups);
    e->interface->close(e->device);
    pool_free(&e->pool);
    free(e);
}

/* ---- running a program ------------------------------------------------------------------------------------------- */

static void play_op(executor *e, const op *o)
{
    const device_interface *d = e->interface;
    if (op_waits(o)) {
        comm_wait(&e->requests[e->playing->launches[o->where.request].ends]);
        d->wait(e->device, o);
    } else if (op_communicates(o)) {
        launch *l = &e->playing->launches[o->where.request];
        if (l->count == 0)
            return; /* launched with the last op of its bundle */
        l->call.stream = d->start(e->device, o);
        comm_start(&e->requests[o->where.request], &l->call);
        for (int i = 0; i < l->count; i++)
            d->started(e->device, l->ops[i]);
    } else {
        d->launch(e->device, o);
    }
}

/* Reports progress and polls the groups while a device works. */
static void poll_groups(void *context)
{
    executor *e = context;
    comm_progress(e->world);
    look_at_marks(e);
    /* A rank that has only heard of a failure reports that first, so that a better informed one is heard before the job
     * ends. */
    bool heard = false;
    status s = STATUS_OK;
    for (int i = 0; s == STATUS_OK && i < e->groups.count; i++)
        s = comm_group_poll(&heard, e->group[i]);
    if (s != STATUS_OK && heard)
        watchdog_fail(e->watchdog, INCIDENT_LINK, status_message());
    MUST(s == STATUS_OK, "communication failed: %s", status_message());
}

static void synchronise_device(executor *e)
{
    e->interface->synchronise(e->device, poll_groups, e);
}

/* Returns the host's copy of an arena address. */
static int64_t host_of(const executor *e, int64_t address, bool second)
{
    return address + (second && address < e->compiled->batch_bytes ? e->compiled->mirror_bytes : 0);
}

static void play_observed(executor *e, const compiled_program *p, int i)
{
    for (int k = 0; k < EXECUTOR_OBSERVERS; k++)
        if (e->observer[k].before)
            e->observer[k].before(e->observer[k].context, p, i);
    play_op(e, p->list.ops[i]);
    for (int k = EXECUTOR_OBSERVERS - 1; k >= 0; k--) {
        const executor_observer *o = &e->observer[k];
        if (o->after)
            o->after(o->context, p, i);
        while (o->again && o->again(o->context, p, i))
            play_op(e, p->list.ops[i]);
    }
}

static void play_ops(executor *e, const compiled_program *p)
{
    double before = e->seconds ? clock_seconds() : 0;
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        /* The state is about to change: the device first waits for its copies of it, also within a graph, where only
         * the ops from here on wait. */
        if (i == p->first_change && e->interface->aside.first)
            e->interface->aside.first(e->device);
        if (i == p->first_change && e->hook && !e->capturing)
            e->hook(e->hook_context);
        atomic_store_explicit(&e->current, o, memory_order_relaxed);
        tell_watchdog(e, o, o->label, e->apart);
        play_observed(e, p, i);
        mark_op(e, i);
        if (comm_ranks(e->world) > 1)
            comm_progress(e->world);
        if (e->seconds) {
            synchronise_device(e);
            double after = clock_seconds();
            e->seconds[i] += after - before;
            before = after;
        }
    }
}

static traffic sent_along(const executor *e, axis a)
{
    traffic all = {0};
    for (int i = 0; i < e->groups.count; i++)
        if (e->groups.row[i].a == a) {
            all.bytes += comm_bytes_sent(e->group[i]);
            all.messages += comm_messages_sent(e->group[i]);
        }
    return all;
}

static void add_traffic(const executor *e, traffic *to, int sign)
{
    for (int a = 0; a < AXIS_COUNT; a++) {
        traffic sent = sent_along(e, (axis)a);
        to[a].bytes += sign * sent.bytes;
        to[a].messages += sign * sent.messages;
    }
}

static void capture_program(executor *e, played *p)
{
    device_facts before, after;
    executor_facts(&before, e);
    add_traffic(e, p->captured, -1);
    e->capturing = true;
    e->interface->capture(e->device, (int)(p - e->programs));
    play_ops(e, p->program);
    e->interface->captured(e->device);
    e->capturing = false;
    add_traffic(e, p->captured, 1);
    executor_facts(&after, e);
    e->graph_nodes += compile_program_nodes(p->program);
    e->graph_bytes += before.free_memory > after.free_memory ? before.free_memory - after.free_memory : 0;
}

/* Runs each program op by op the first time: loading of libraries at first use cannot be captured. */
static void play_program(executor *e, played *p)
{
    bool whole = e->graph && p->program->list.count && !e->seconds && !e->profiled && !e->op_by_op;
    if (!whole || p->plays++ == 0) {
        play_ops(e, p->program);
        return;
    }
    if (e->hook && p->program->first_change >= 0)
        e->hook(e->hook_context);
    if (p->plays == 2)
        capture_program(e, p);
    e->interface->replay(e->device, (int)(p - e->programs));
    e->marked = compile_marks(p->program);
}

_Static_assert((int)COMPILE_PROGRAMS <= (int)DEVICE_LISTS, "each program has a list of its own");

static played *find_played(executor *e, const compiled_program *p)
{
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        if (e->programs[i].program == p)
            return &e->programs[i];
    MUST(0, "a program that the executor was not opened with");
}

void executor_launch(executor *e, const compiled_program *p)
{
    e->interface->copy_in(e->device, 0, host_of(e, 0, e->second_block), e->compiled->batch_bytes);
    for (int i = 0; i < e->before_count; i++)
        e->interface->copy_in(e->device, e->before[i].at, e->before[i].at, e->before[i].bytes);
    e->playing = find_played(e, p);
    e->playing->launched++;
    e->marked = e->passed = 0;
    if (e->apart)
        stand_at_mark(e);
    play_program(e, e->playing);
    for (int i = 0; i < e->after_count; i++)
        e->interface->copy_out(e->device, e->after[i].at, e->after[i].bytes);
}

int64_t executor_launches(executor *e, const compiled_program *p)
{
    return find_played(e, p)->launched;
}

void executor_finish(executor *e)
{
    synchronise_device(e);
    atomic_store_explicit(&e->current, NULL, memory_order_relaxed);
}

void executor_play(executor *e, const compiled_program *p)
{
    executor_launch(e, p);
    executor_finish(e);
}

static void *host_at(executor *e, const tensor *t, bool second)
{
    MUST(!e->apart || t->address + tensor_bytes(t) <= e->compiled->mirror_bytes, "%s is not in the host's mirror",
         t->name);
    return e->interface->host(e->device) + host_of(e, t->address, second);
}

void *executor_at(executor *e, const tensor *t)
{
    return host_at(e, t, e->second_block);
}

bool executor_reads_ahead(const executor *e)
{
    return e->apart;
}

void *executor_ahead(executor *e, const tensor *t)
{
    return host_at(e, t, !e->second_block);
}

void executor_swap_batches(executor *e)
{
    e->second_block = !e->second_block;
}

void executor_send(executor *e, const tensor *t)
{
    e->interface->copy_in(e->device, t->address, t->address, tensor_bytes(t));
}

void *executor_borrow(executor *e, int64_t address, int64_t bytes)
{
    return e->interface->borrow(e->device, address, bytes);
}

void executor_give_back(executor *e, void *borrowed, int64_t address, int64_t bytes, bool changed)
{
    e->interface->give_back(e->device, borrowed, address, bytes, changed);
}

run_context *executor_context(executor *e)
{
    return e->interface->context(e->device);
}

const device_interface *executor_device(const executor *e, device **out)
{
    *out = e->device;
    return e->interface;
}

void executor_before_change(executor *e, void (*hook)(void *context), void *context)
{
    e->hook = hook;
    e->hook_context = context;
}

void executor_observe(executor *e, executor_place place, executor_observer o)
{
    e->observer[place] = o;
}

void executor_graphs(const executor *e, int64_t *nodes, int64_t *bytes)
{
    *nodes = e->graph_nodes;
    *bytes = e->graph_bytes;
}

int executor_communicators(const executor *e)
{
    return e->interface->communication ? groups_communicators(&e->groups) : 0;
}

void executor_facts(device_facts *out, const executor *e)
{
    e->interface->facts(out, e->device);
}

double executor_peak(const executor *e)
{
    device_facts f;
    executor_facts(&f, e);
    return f.peak[target_peak(&e->compiled->options)];
}

void executor_profile(executor *e, bool on)
{
    e->profiled = on;
    e->interface->profile(e->device, on);
}

void executor_op_by_op(executor *e, bool on)
{
    e->op_by_op += on ? 1 : -1;
}

void executor_watch(executor *e, watchdog *w)
{
    e->watchdog = w;
}

void executor_set_step(executor *e, int64_t step)
{
    atomic_store_explicit(&e->step, step, memory_order_relaxed);
}

void executor_sent(const executor *e, int64_t *bytes, int64_t *messages, axis a)
{
    traffic sent = sent_along(e, a);
    for (int i = 0; i < COMPILE_PROGRAMS; i++) {
        const played *p = &e->programs[i];
        int64_t again = p->plays > 2 ? p->plays - 2 : 0;
        sent.bytes += again * p->captured[a].bytes;
        sent.messages += again * p->captured[a].messages;
    }
    *bytes = sent.bytes;
    *messages = sent.messages;
}

void executor_time_ops(executor *e, double *seconds)
{
    e->seconds = seconds;
}
