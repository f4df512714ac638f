/* Communication over MPI's point-to-point messages.
 *
 * Every operation is a *flight* of *lanes*. A lane is the stream of segments between this member and one peer in one
 * direction; it posts a segment when it has a request free and its gate is open, where the gate is the count of some other
 * lane (a broadcast passes on what has arrived) or of the segments summed so far (an all-reduce hands round its part while
 * it still receives contributions). A reduction goes straight to the owners: every member sends part j to member j, which sums the
 * contributions in rank order. So does an all-gather. Each byte crosses once, which is the minimum.
 *
 * MPI is entered by one thread at a time, under one lock (MPI_THREAD_SERIALIZED): by whoever starts, tests, waits or
 * calls comm_progress, and by the progress thread when there is one. A queue to a thread that owns MPI was the alternative; it
 * adds a hand-over to every message of a rank that has no core to spare for such a thread.
 */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "memory/log.h"
#include "parallel/comm_backend.h"
#include "parallel/comm_sum.h"

/* Collectives of one group are told apart by a running number, in so far as they can be in flight together: tag = 4 (number mod
 * NUMBERS) + phase. The largest is 32767, which every MPI has. */
enum { NUMBERS = 8192 };
enum phase { PHASE_CONTRIBUTE, PHASE_SHARE, PHASE_DIRECT, PHASES = 4 };

/* Requests of one flight and direction. A single-copy shared memory lets the receiver fetch what the sender has posted, without the
 * sender's help: so much is posted at once, and a sender that computes holds nobody up. */
enum { REQUESTS = 256, DEPTH_MOST = 64 };

/* Empty polls before a waiting rank yields its core, and before it sleeps, if the node has more ranks than cores. */
enum { POLLS_BEFORE_YIELD = 32, POLLS_BEFORE_SLEEP = 2000, NAP_NANOSECONDS = 50000 };

typedef struct lane {
    char *base;
    int64_t bytes;
    int peer, tag;
    bool sends;
    bool ring;       /* `base` holds `window` segments, reused */
    const int *gate; /* NULL: open */
    int slack;       /* segments it may be ahead of the gate */
    int segments, posted, done;
} lane;

typedef struct flight {
    struct flight *next; /* in the list of active or free flights */
    comm_group *group;
    dtype type;
    int lanes_used;
    int contributions; /* so many lanes at the beginning bring contributions to this member's part */
    int segments, summed;
    const char *own; /* this member's contribution */
    char *sum;
    int64_t sum_bytes;
    bool complete;
    lane *lanes;           /* [4 members] */
    int stride;            /* requests of a lane: the depth, or as many as the longest lane needs */
    MPI_Request *requests; /* [4 members][stride] */
    int *indices;          /* [4 members][stride]: of finished requests */
    const void **terms;    /* [members] */
} flight;

typedef struct mpi_group {
    MPI_Comm handle;
    comm_cut cut;
    int depth; /* segments a lane has under way at most */
    unsigned collectives;
    unsigned *sent, *received; /* [members]: point-to-point operations with each */
    flight *idle;
} mpi_group;

typedef struct mpi_job {
    pthread_mutex_t lock;
    pthread_cond_t work; /* there is an active flight, or the thread shall stop */
    flight *active;
    bool nap;            /* more ranks than cores: a long wait sleeps */
    _Atomic int waiting; /* callers inside a wait, who move everything: the thread rests meanwhile */
    bool thread_runs, thread_stops;
    pthread_t thread;
} mpi_job;

static void check(int code, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    log_die(__FILE__, line, "MPI", "communication failed: %s", text);
}

#define MPI_MUST(call) check(call, __LINE__)

/* ---- lanes ---- */

static lane *add_lane(flight *f, int peer, int tag, bool sends, const void *base, int64_t bytes)
{
    const mpi_group *m = f->group->state;
    lane *l = &f->lanes[f->lanes_used++];
    *l = (lane){.base = (char *)(uintptr_t)base, .bytes = bytes, .peer = peer, .tag = tag, .sends = sends};
    l->segments = (int)((bytes + m->cut.segment - 1) / m->cut.segment);
    int wants = l->segments < m->depth ? l->segments : m->depth;
    f->stride = wants > f->stride ? wants : f->stride;
    return l;
}

static int64_t segment_size(int64_t whole, int64_t segment, int index)
{
    int64_t left = whole - segment * index;
    return left < segment ? left : segment;
}

static char *segment_at(const lane *l, const comm_cut *cut, int index)
{
    return l->base + cut->segment * (l->ring ? index % cut->window : index);
}

static void post(flight *f, lane *l)
{
    comm_group *g = f->group;
    mpi_group *m = g->state;
    MPI_Request *requests = f->requests + (l - f->lanes) * f->stride;
    while (l->posted < l->segments && l->posted - l->done < f->stride &&
           (!l->gate || l->posted < *l->gate + l->slack)) {
        char *at = segment_at(l, &m->cut, l->posted);
        int64_t bytes = segment_size(l->bytes, m->cut.segment, l->posted);
        MPI_Request *request = &requests[l->posted % f->stride];
        if (l->sends) {
            MPI_MUST(MPI_Isend(at, (int)bytes, MPI_BYTE, l->peer, l->tag, m->handle, request));
            atomic_fetch_add_explicit(&g->bytes_sent, bytes, memory_order_relaxed);
            atomic_fetch_add_explicit(&g->messages_sent, 1, memory_order_relaxed);
        } else {
            MPI_MUST(MPI_Irecv(at, (int)bytes, MPI_BYTE, l->peer, l->tag, m->handle, request));
        }
        l->posted++;
    }
}

/* Segments finish in any order; `done` counts those finished without a gap. */
static void settle(flight *f, lane *l)
{
    comm_group *g = f->group;
    const comm_cut *cut = &((mpi_group *)g->state)->cut;
    const MPI_Request *requests = f->requests + (l - f->lanes) * f->stride;
    while (l->done < l->posted && requests[l->done % f->stride] == MPI_REQUEST_NULL) {
        if (!l->sends)
            atomic_fetch_add_explicit(&g->bytes_received, segment_size(l->bytes, cut->segment, l->done),
                                      memory_order_relaxed);
        l->done++;
    }
}

static void sum_segment(flight *f)
{
    const comm_cut *cut = &((mpi_group *)f->group->state)->cut;
    int64_t at = cut->segment * f->summed, bytes = segment_size(f->sum_bytes, cut->segment, f->summed);
    for (int i = 0; i < f->contributions; i++) {
        const lane *l = &f->lanes[i];
        f->terms[l->peer] = segment_at(l, cut, f->summed);
    }
    f->terms[f->group->me] = f->own + at;
    comm_sum(f->sum + at, f->terms, f->group->count, bytes / dtype_bytes(f->type), f->type);
    f->summed++;
}

/* Move what can be moved. True if anything did. */
static bool advance(flight *f)
{
    int finished;
    MPI_MUST(MPI_Testsome(f->lanes_used * f->stride, f->requests, &finished, f->indices, MPI_STATUSES_IGNORE));
    bool moved = finished != MPI_UNDEFINED && finished > 0;
    for (int i = 0; i < f->lanes_used; i++)
        settle(f, &f->lanes[i]);
    for (int ready; f->summed < f->segments; moved = true) {
        ready = f->segments;
        for (int i = 0; i < f->contributions; i++)
            ready = f->lanes[i].done < ready ? f->lanes[i].done : ready;
        if (ready <= f->summed)
            break;
        sum_segment(f);
        for (int i = 0; i < f->lanes_used; i++) /* before the next sum: the peers are waiting for it */
            post(f, &f->lanes[i]);
    }
    f->complete = f->summed == f->segments;
    for (int i = 0; i < f->lanes_used; i++) {
        post(f, &f->lanes[i]);
        f->complete = f->complete && f->lanes[i].done == f->lanes[i].segments;
    }
    return moved;
}

/* ---- what each operation is made of ---- */

static char *part_at(const void *base, int64_t *bytes, const comm_shape *shape, int member)
{
    int64_t offset, count;
    comm_part(&offset, &count, shape, member);
    *bytes = count * dtype_bytes(shape->type);
    return (char *)(uintptr_t)base + offset * dtype_bytes(shape->type);
}

/* Contributions to this member's part come in, those to the others' parts go out. The peers in turn, starting after
 * oneself: so that not all send to the first at once. */
static void contribute(flight *f, const comm_call *call, const comm_shape *shape, int tag, char *sum)
{
    const mpi_group *m = f->group->state;
    int n = shape->members;
    char *ring = call->scratch;
    f->own = part_at(call->send, &f->sum_bytes, shape, shape->me);
    f->sum = sum;
    f->segments = (int)((f->sum_bytes + m->cut.segment - 1) / m->cut.segment);
    int64_t room = comm_scratch_bytes(shape) / (n - 1), bytes;
    MUST(room == 0 || ring, "a reduction without scratch");
    for (int i = 1; i < n; i++) {
        lane *l =
            add_lane(f, (shape->me + n - i) % n, tag + PHASE_CONTRIBUTE, false, ring + room * (i - 1), f->sum_bytes);
        l->ring = true;
        l->gate = &f->summed;
        l->slack = m->cut.window;
    }
    f->contributions = n - 1;
    for (int i = 1; i < n; i++) {
        int j = (shape->me + i) % n;
        char *at = part_at(call->send, &bytes, shape, j);
        add_lane(f, j, tag + PHASE_CONTRIBUTE, true, at, bytes);
    }
}

static void fly_reduce_scatter(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    contribute(f, call, shape, tag, call->receive);
}

static void fly_all_gather(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int64_t own, bytes;
    int n = shape->members;
    char *mine = part_at(call->receive, &own, shape, shape->me);
    if (mine != call->send && own)
        memcpy(mine, call->send, (size_t)own);
    for (int i = 1; i < n; i++) {
        int j = (shape->me + n - i) % n;
        char *at = part_at(call->receive, &bytes, shape, j);
        add_lane(f, j, tag + PHASE_SHARE, false, at, bytes);
    }
    for (int i = 1; i < n; i++)
        add_lane(f, (shape->me + i) % n, tag + PHASE_SHARE, true, call->send, own);
}

static void fly_all_reduce(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int64_t own, bytes;
    int n = shape->members;
    char *mine = part_at(call->receive, &own, shape, shape->me);
    contribute(f, call, shape, tag, mine);
    for (int i = 1; i < n; i++) {
        lane *l = add_lane(f, (shape->me + i) % n, tag + PHASE_SHARE, true, mine, own);
        l->gate = &f->summed;
    }
    /* In place, member j's result lands where its contribution was sent from: not before that has left. */
    for (int i = 1; i < n; i++) {
        int j = (shape->me + i) % n;
        char *at = part_at(call->receive, &bytes, shape, j);
        lane *l = add_lane(f, j, tag + PHASE_SHARE, false, at, bytes);
        l->gate = &f->lanes[n - 1 + i - 1].done;
    }
}

static void fly_broadcast(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int children[31], parent, count = comm_tree(children, &parent, shape->members, shape->me, shape->peer);
    int64_t bytes = shape->count * dtype_bytes(shape->type);
    const lane *from = parent < 0 ? NULL : add_lane(f, parent, tag + PHASE_SHARE, false, call->receive, bytes);
    if (!from && call->receive && call->receive != call->send && bytes)
        memcpy(call->receive, call->send, (size_t)bytes);
    for (int i = 0; i < count; i++) {
        lane *l = add_lane(f, children[i], tag + PHASE_SHARE, true, from ? call->receive : call->send, bytes);
        l->gate = from ? &from->done : NULL;
    }
}

static void fly_receive(flight *f, const comm_call *call, int64_t count)
{
    unsigned *number = &((mpi_group *)f->group->state)->received[call->source];
    add_lane(f, call->source, (int)((*number)++ % NUMBERS) * PHASES + PHASE_DIRECT, false, call->receive,
             count * dtype_bytes(call->type));
}

static void fly_send(flight *f, const comm_call *call)
{
    unsigned *number = &((mpi_group *)f->group->state)->sent[call->peer];
    add_lane(f, call->peer, (int)((*number)++ % NUMBERS) * PHASES + PHASE_DIRECT, true, call->send,
             call->count * dtype_bytes(call->type));
}

static void fly_exchange(flight *f, const comm_call *call)
{
    fly_receive(f, call, call->receive_count);
    fly_send(f, call);
}

static void (*const collectives[COMM_KINDS])(flight *f, const comm_call *call, const comm_shape *shape, int tag) = {
    [COMM_ALL_REDUCE] = fly_all_reduce,
    [COMM_ALL_GATHER] = fly_all_gather,
    [COMM_REDUCE_SCATTER] = fly_reduce_scatter,
    [COMM_BROADCAST] = fly_broadcast,
};

static void prepare(flight *f, const comm_call *call)
{
    mpi_group *m = f->group->state;
    if (collectives[call->kind]) {
        comm_shape shape = comm_call_shape(call);
        collectives[call->kind](f, call, &shape, (int)(m->collectives++ % NUMBERS) * PHASES);
    } else if (call->kind == COMM_RECEIVE) {
        fly_receive(f, call, call->count);
    } else if (call->kind == COMM_SEND) {
        fly_send(f, call);
    } else {
        fly_exchange(f, call);
    }
}

/* ---- flights ---- */

/* A group keeps its flights: after the first steps of a run every one that is needed exists. */
static flight *flight_new(comm_group *g)
{
    mpi_group *m = g->state;
    flight *f = m->idle;
    unsigned long lanes = 4UL * (unsigned long)g->count, slots = lanes * (unsigned long)m->depth;
    if (f) {
        m->idle = f->next;
    } else {
        f = must_calloc(1, sizeof *f);
        f->lanes = must_alloc(lanes * sizeof *f->lanes);
        f->requests = must_alloc(slots * sizeof(MPI_Request));
        f->indices = must_alloc(slots * sizeof *f->indices);
        f->terms = must_alloc((unsigned long)g->count * sizeof *f->terms);
        for (unsigned long i = 0; i < slots; i++)
            f->requests[i] = MPI_REQUEST_NULL;
    }
    f->group = g;
    f->lanes_used = f->contributions = f->segments = f->summed = f->stride = 0;
    f->complete = false;
    return f;
}

static void flight_free(flight *f)
{
    free(f->lanes);
    free(f->requests);
    free(f->indices);
    free(f->terms);
    free(f);
}

static bool advance_all(mpi_job *job)
{
    bool moved = false;
    for (flight **link = &job->active; *link;) {
        flight *f = *link;
        moved |= advance(f);
        if (f->complete)
            *link = f->next;
        else
            link = &f->next;
    }
    return moved;
}

/* With the lock held. */
static void wake_thread(mpi_job *job)
{
    if (job->thread_runs && job->active && !job->waiting)
        pthread_cond_signal(&job->work);
}

static void mpi_start(comm_request *out, const comm_call *call)
{
    comm_group *g = call->group;
    mpi_job *job = g->owner->state;
    pthread_mutex_lock(&job->lock);
    flight *f = flight_new(g);
    f->type = call->type;
    prepare(f, call);
    advance(f);
    out->flight = f;
    if (!f->complete) {
        flight **last = &job->active; /* in order of launch, which is the order in which the peers need them */
        while (*last)
            last = &(*last)->next;
        f->next = NULL;
        *last = f;
        wake_thread(job);
    }
    pthread_mutex_unlock(&job->lock);
}

/* With the lock held: whether the request has ended; if so its flight goes back to the group. */
static bool collect(comm_request *r)
{
    flight *f = r->flight;
    if (!f->complete)
        return false;
    mpi_group *m = r->group->state;
    f->next = m->idle;
    m->idle = f;
    r->flight = NULL;
    return true;
}

static bool mpi_test(comm_request *r)
{
    mpi_job *job = r->group->owner->state;
    pthread_mutex_lock(&job->lock);
    advance_all(job);
    bool ended = collect(r);
    pthread_mutex_unlock(&job->lock);
    return ended;
}

/* The rank whose message is missing: a receive's rather than a send's, which may only wait for its turn. */
static int missing_peer(const flight *f)
{
    int peer = -1;
    for (int i = 0; i < f->lanes_used; i++) {
        const lane *l = &f->lanes[i];
        if (l->done < l->segments && l->done < l->posted && (peer < 0 || !l->sends)) {
            peer = f->group->members[l->peer];
            if (!l->sends)
                break;
        }
    }
    return peer;
}

/* A waiting rank polls; if the node has more ranks than cores it soon sleeps between polls, to leave the core to the
 * rank it waits for. */
static void idle(const mpi_job *job, int64_t empty_polls)
{
    if (job->nap && empty_polls > POLLS_BEFORE_SLEEP)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
    else if (empty_polls > POLLS_BEFORE_YIELD)
        sched_yield();
}

static void mpi_wait(comm_request *r)
{
    comm *c = r->group->owner;
    mpi_job *job = c->state;
    atomic_fetch_add(&job->waiting, 1);
    for (int64_t empty = 0; r->flight; empty++) {
        pthread_mutex_lock(&job->lock);
        if (advance_all(job))
            empty = 0;
        if (!collect(r) && empty % 64 == 63)
            atomic_store_explicit(&c->waiting_for, missing_peer(r->flight), memory_order_relaxed);
        pthread_mutex_unlock(&job->lock);
        if (r->flight)
            idle(job, empty);
    }
    atomic_store_explicit(&c->waiting_for, -1, memory_order_relaxed);
    pthread_mutex_lock(&job->lock);
    atomic_fetch_sub(&job->waiting, 1);
    wake_thread(job);
    pthread_mutex_unlock(&job->lock);
}

static void mpi_progress(comm *c)
{
    mpi_job *job = c->state;
    pthread_mutex_lock(&job->lock);
    advance_all(job);
    pthread_mutex_unlock(&job->lock);
}

/* ---- the progress thread ---- */

static void *progress_main(void *argument)
{
    mpi_job *job = argument;
    pthread_mutex_lock(&job->lock);
    while (!job->thread_stops) {
        if (!job->active || job->waiting) {
            pthread_cond_wait(&job->work, &job->lock);
            continue;
        }
        bool moved = advance_all(job);
        pthread_mutex_unlock(&job->lock);
        if (moved)
            sched_yield();
        else
            nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
        pthread_mutex_lock(&job->lock);
    }
    pthread_mutex_unlock(&job->lock);
    return NULL;
}

static status mpi_progress_thread(comm *c, bool on)
{
    mpi_job *job = c->state;
    if (on == job->thread_runs)
        return STATUS_OK;
    if (on) {
        int provided;
        MPI_MUST(MPI_Query_thread(&provided));
        if (provided < MPI_THREAD_SERIALIZED)
            return status_fail(STATUS_FAILED, "this MPI allows one thread only: no progress thread");
        job->thread_stops = false;
        if (pthread_create(&job->thread, NULL, progress_main, job))
            return status_fail(STATUS_FAILED, "cannot start the progress thread of communication");
    } else {
        pthread_mutex_lock(&job->lock);
        job->thread_stops = true;
        pthread_cond_signal(&job->work);
        pthread_mutex_unlock(&job->lock);
        pthread_join(job->thread, NULL);
    }
    pthread_mutex_lock(&job->lock);
    job->thread_runs = on;
    pthread_mutex_unlock(&job->lock);
    return STATUS_OK;
}

/* ---- the job and its groups ---- */

static status mpi_open(comm *c)
{
    int provided;
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_SERIALIZED, &provided) != MPI_SUCCESS)
        return status_fail(STATUS_FAILED, "MPI does not start");
    MPI_MUST(MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN));
    MPI_MUST(MPI_Comm_rank(MPI_COMM_WORLD, &c->rank));
    MPI_MUST(MPI_Comm_size(MPI_COMM_WORLD, &c->ranks));
    MPI_Comm node;
    MPI_MUST(MPI_Comm_split_type(MPI_COMM_WORLD, MPI_COMM_TYPE_SHARED, c->rank, MPI_INFO_NULL, &node));
    MPI_MUST(MPI_Comm_rank(node, &c->local_rank));
    MPI_MUST(MPI_Comm_size(node, &c->local_ranks));
    MPI_MUST(MPI_Comm_free(&node));
    mpi_job *job = must_calloc(1, sizeof *job);
    pthread_mutex_init(&job->lock, NULL);
    pthread_cond_init(&job->work, NULL);
    job->nap = c->local_ranks > sysconf(_SC_NPROCESSORS_ONLN);
    c->state = job;
    return STATUS_OK;
}

static void mpi_close(comm *c)
{
    mpi_job *job = c->state;
    MUST(!job->active, "communication is still in flight");
    pthread_mutex_destroy(&job->lock);
    pthread_cond_destroy(&job->work);
    free(job);
    MPI_MUST(MPI_Finalize());
}

static void mpi_abort(comm *c, int code)
{
    (void)c;
    MPI_Abort(MPI_COMM_WORLD, code);
}

static status mpi_group_open(comm_group *g)
{
    mpi_job *job = g->owner->state;
    mpi_group *m = must_calloc(1, sizeof *m);
    m->cut = comm_segments(g->count);
    m->depth = REQUESTS / (g->count - 1);
    m->depth = m->depth > DEPTH_MOST ? DEPTH_MOST : m->depth < m->cut.window ? m->cut.window : m->depth;
    m->sent = must_calloc((unsigned long)g->count, sizeof *m->sent);
    m->received = must_calloc((unsigned long)g->count, sizeof *m->received);
    MPI_Group all, some;
    pthread_mutex_lock(&job->lock);
    MPI_MUST(MPI_Comm_group(MPI_COMM_WORLD, &all));
    MPI_MUST(MPI_Group_incl(all, g->count, g->members, &some));
    MPI_MUST(MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &m->handle));
    MPI_MUST(MPI_Comm_set_errhandler(m->handle, MPI_ERRORS_RETURN));
    MPI_MUST(MPI_Group_free(&some));
    MPI_MUST(MPI_Group_free(&all));
    pthread_mutex_unlock(&job->lock);
    g->state = m;
    return STATUS_OK;
}

static void mpi_group_close(comm_group *g)
{
    mpi_job *job = g->owner->state;
    mpi_group *m = g->state;
    for (flight *f = job->active; f; f = f->next)
        MUST(f->group != g, "a group is closed while it communicates");
    for (flight *f = m->idle, *next; f; f = next) {
        next = f->next;
        flight_free(f);
    }
    pthread_mutex_lock(&job->lock);
    MPI_MUST(MPI_Comm_free(&m->handle));
    pthread_mutex_unlock(&job->lock);
    free(m->sent);
    free(m->received);
    free(m);
}

const comm_backend comm_mpi_backend = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .abort = mpi_abort,
    .group_open = mpi_group_open,
    .group_close = mpi_group_close,
    .start = mpi_start,
    .test = mpi_test,
    .wait = mpi_wait,
    .progress = mpi_progress,
    .progress_thread = mpi_progress_thread,
};
