/* The backend of a job under MPI: its operations (flight.h), moved by every caller, and by a thread of their own.
 *
 * MPI is entered by one thread at a time, under one lock (MPI_THREAD_SERIALIZED): by callers of comm_start, comm_wait
 * and comm_progress, and by the progress thread when there is one. A queue to a thread that owns MPI was the
 * alternative; it adds a hand-over to every message of a rank that has no core to spare for such a thread.
 */
#include <pthread.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "memory/bits.h"
#include "memory/log.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_shape.h"
#include "parallel/comm/flight.h"

/* Requests of one flight and direction. Single-copy shared memory lets the receiver fetch posted segments without the
 * sender's help: many are posted at once, so that a sender that computes delays no receiver. */
enum { REQUESTS = 256, DEPTH_MOST = 64 };

/* Empty polls before a waiting rank gives up its core. */
enum { POLLS_BEFORE_IDLE = 32, NAP_NANOSECONDS = 50000 };

typedef struct mpi_job {
    pthread_mutex_t lock;
    pthread_cond_t work; /* there is an active flight, or the thread shall stop */
    flight *active;
    bool nap;            /* more ranks than cores: a long wait sleeps */
    _Atomic int waiting; /* callers inside a wait, who move everything: the thread rests meanwhile */
    bool thread_runs, thread_stops;
    pthread_t thread;
} mpi_job;

#define MPI_MUST(call) check_mpi(call, __FILE__, __LINE__)

static void check_mpi(int code, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    log_die(file, line, "MPI", "communication failed: %s", text);
}

/* ---- segments of lanes ---- */

static int64_t segment_size(int64_t whole, int64_t segment, int index)
{
    int64_t left = whole - segment * index;
    return left < segment ? left : segment;
}

static char *segment_at(const lane *l, const comm_cut *cut, int index)
{
    return l->base + cut->segment * (l->ring ? index % cut->window : index);
}

/* The memory of bytes [at, at + bytes) of a member's part. */
typedef struct runs {
    char *at[COMM_SEGMENTS];
    int64_t bytes[COMM_SEGMENTS];
    int count;
} runs;

static char *piece_at(int64_t *bytes, const comm_call *call, const comm_segment *p, int member, lane_memory memory)
{
    int64_t offset, count, element = dtype_bytes(call->type);
    comm_piece_part(&offset, &count, p, comm_group_ranks(call->group), member);
    *bytes = count * element;
    const char *base = memory == LANE_SENT ? p->send : p->receive;
    return (char *)(uintptr_t)base + (memory == LANE_OWN_RESULT ? 0 : offset * element);
}

static void find_runs(runs *out, const comm_call *call, int member, lane_memory memory, int64_t at, int64_t bytes)
{
    int64_t begin = 0, size, end = at + bytes;
    out->count = 0;
    for (int i = 0; i < call->piece_count && begin < end; i++, begin += size) {
        char *base = piece_at(&size, call, &call->pieces[i], member, memory);
        int64_t from = at > begin ? at : begin, to = end < begin + size ? end : begin + size;
        if (from >= to)
            continue;
        out->at[out->count] = base + (from - begin);
        out->bytes[out->count++] = to - from;
    }
}

/* Posts a message straight from or to the pieces. */
static void post_runs(const flight *f, const lane *l, int64_t at, int64_t bytes, MPI_Request *request)
{
    const flight_group *m = f->group->state;
    runs r;
    int lengths[COMM_SEGMENTS];
    MPI_Aint displacements[COMM_SEGMENTS];
    MPI_Datatype type;
    find_runs(&r, f->call, l->part, l->memory, at, bytes);
    for (int i = 0; i < r.count; i++) {
        lengths[i] = (int)r.bytes[i];
        MPI_MUST(MPI_Get_address(r.at[i], &displacements[i]));
    }
    MPI_MUST(MPI_Type_create_hindexed(r.count, lengths, displacements, MPI_BYTE, &type));
    MPI_MUST(MPI_Type_commit(&type));
    if (l->sends)
        MPI_MUST(MPI_Isend(MPI_BOTTOM, 1, type, l->peer, l->tag, m->handle, request));
    else
        MPI_MUST(MPI_Irecv(MPI_BOTTOM, 1, type, l->peer, l->tag, m->handle, request));
    MPI_MUST(MPI_Type_free(&type)); /* it lives as long as the message */
}

/* ---- progress ---- */

static void post_segment(const flight *f, const lane *l, int index, int64_t bytes, MPI_Request *request)
{
    const flight_group *m = f->group->state;
    if (!l->base)
        post_runs(f, l, m->cut.segment * index, bytes, request);
    else if (l->sends)
        MPI_MUST(MPI_Isend(segment_at(l, &m->cut, index), (int)bytes, MPI_BYTE, l->peer, l->tag, m->handle, request));
    else
        MPI_MUST(MPI_Irecv(segment_at(l, &m->cut, index), (int)bytes, MPI_BYTE, l->peer, l->tag, m->handle, request));
}

/* Adds a message's bits to this rank's sums: when it is handed over, or when it has arrived. Both ends call it the same
 * segment of the same operation. */
static void count_message(const flight *f, const lane *l, int index, int64_t bytes)
{
    comm *c = f->group->owner;
    const comm_cut *cut = &((flight_group *)f->group->state)->cut;
    bits b = {0};
    if (l->base) {
        bits_add(&b, segment_at(l, cut, index), bytes);
    } else {
        runs r;
        find_runs(&r, f->call, l->part, l->memory, cut->segment * index, bytes);
        for (int i = 0; i < r.count; i++)
            bits_add(&b, r.at[i], r.bytes[i]);
    }
    uint64_t sum = bits_mix(bits_end(&b), (uint64_t)l->tag << 32 | (uint32_t)index);
    int rank = f->group->members[l->peer];
    *(l->sends ? &c->sent : &c->received) += sum;
    (l->sends ? c->sent_to : c->received_from)[rank] += sum;
}

static void post(flight *f, lane *l)
{
    comm_group *g = f->group;
    flight_group *m = g->state;
    MPI_Request *requests = f->requests + (l - f->lanes) * f->stride;
    while (l->posted < l->segments && l->posted - l->done < f->stride &&
           (!l->gate || l->posted < *l->gate + l->slack)) {
        int64_t bytes = segment_size(l->bytes, m->cut.segment, l->posted);
        MPI_Request *request = &requests[l->posted % f->stride];
        if (l->sends && g->owner->checks)
            count_message(f, l, l->posted, bytes);
        post_segment(f, l, l->posted, bytes, request);
        if (l->sends) {
            atomic_fetch_add_explicit(&g->bytes_sent, bytes, memory_order_relaxed);
            atomic_fetch_add_explicit(&g->messages_sent, 1, memory_order_relaxed);
        }
        l->posted++;
    }
}

/* Segments finish in any order; `done` counts those finished without a gap. */
static void count_finished(flight *f, lane *l)
{
    const MPI_Request *requests = f->requests + (l - f->lanes) * f->stride;
    while (l->done < l->posted && requests[l->done % f->stride] == MPI_REQUEST_NULL) {
        if (!l->sends && f->group->owner->checks)
            count_message(f, l, l->done,
                          segment_size(l->bytes, ((flight_group *)f->group->state)->cut.segment, l->done));
        l->done++;
    }
}

/* Bytes [from, from + bytes) of the segment at hand: `own` and the contributions into `to`. */
static void sum_run(flight *f, char *to, const char *own, int64_t from, int64_t bytes)
{
    const comm_cut *cut = &((flight_group *)f->group->state)->cut;
    for (int i = 0; i < f->contributions; i++) {
        const lane *l = &f->lanes[i];
        f->terms[l->peer] = segment_at(l, cut, f->summed) + from;
    }
    f->terms[f->group->me] = own;
    comm_reduce(to, f->terms, f->group->count, bytes / dtype_bytes(f->type), f->type, f->maximum);
}

static void sum_segment(flight *f)
{
    const comm_cut *cut = &((flight_group *)f->group->state)->cut;
    int64_t at = cut->segment * f->summed, bytes = segment_size(f->sum_bytes, cut->segment, f->summed), from = 0;
    if (!f->call) {
        sum_run(f, f->sum + at, f->own + at, 0, bytes);
    } else {
        runs own = {0}, sum = {0};
        find_runs(&own, f->call, f->group->me, LANE_SENT, at, bytes);
        find_runs(&sum, f->call, f->group->me, f->sum_memory, at, bytes);
        MUST(own.count == sum.count, "%d pieces sent, %d received", own.count, sum.count);
        for (int i = 0; i < own.count; from += own.bytes[i++])
            sum_run(f, sum.at[i], own.at[i], from, own.bytes[i]);
    }
    f->summed++;
}

/* Advances the flight without waiting; true if it moved. f->complete: all has moved. */
static bool flight_advance(flight *f)
{
    int finished;
    MPI_MUST(MPI_Testsome(f->lanes_used * f->stride, f->requests, &finished, f->indices, MPI_STATUSES_IGNORE));
    bool moved = finished != MPI_UNDEFINED && finished > 0;
    for (int i = 0; i < f->lanes_used; i++)
        count_finished(f, &f->lanes[i]);
    for (int ready; f->summed < f->segments; moved = true) {
        ready = f->segments;
        for (int i = 0; i < f->contributions; i++)
            ready = f->lanes[i].done < ready ? f->lanes[i].done : ready;
        if (ready <= f->summed)
            break;
        sum_segment(f);
        for (int i = 0; i < f->lanes_used; i++) /* sends precede the next sum: the peers wait for them */
            post(f, &f->lanes[i]);
    }
    f->complete = f->summed == f->segments;
    for (int i = 0; i < f->lanes_used; i++) {
        post(f, &f->lanes[i]);
        f->complete = f->complete && f->lanes[i].done == f->lanes[i].segments;
    }
    return moved;
}

/* ---- flights of a group ---- */

/* The state of a comm_group. */
static flight_group *flight_group_open(comm_group *g)
{
    flight_group *m = must_calloc(1, sizeof *m);
    m->cut = comm_segments(g->count);
    m->depth = REQUESTS / (g->count - 1);
    m->depth = m->depth > DEPTH_MOST ? DEPTH_MOST : m->depth < m->cut.window ? m->cut.window : m->depth;
    m->sent = must_calloc((unsigned long)g->count, sizeof *m->sent);
    m->received = must_calloc((unsigned long)g->count, sizeof *m->received);
    MPI_Group all, some;
    MPI_MUST(MPI_Comm_group(MPI_COMM_WORLD, &all));
    MPI_MUST(MPI_Group_incl(all, g->count, g->members, &some));
    MPI_MUST(MPI_Comm_create_group(MPI_COMM_WORLD, some, 0, &m->handle));
    MPI_MUST(MPI_Comm_set_errhandler(m->handle, MPI_ERRORS_RETURN));
    MPI_MUST(MPI_Group_free(&some));
    MPI_MUST(MPI_Group_free(&all));
    return m;
}

static void flight_group_close(flight_group *m)
{
    for (flight *f = m->idle, *next; f; f = next) {
        next = f->next;
        free(f->lanes);
        free(f->requests);
        free(f->indices);
        free(f->terms);
        free(f);
    }
    MPI_MUST(MPI_Comm_free(&m->handle));
    free(m->sent);
    free(m->received);
    free(m);
}

static flight *make(const comm_group *g)
{
    const flight_group *m = g->state;
    unsigned long lanes = 4UL * (unsigned long)g->count, slots = lanes * (unsigned long)m->depth;
    flight *f = must_calloc(1, sizeof *f);
    f->lanes = must_alloc(lanes * sizeof *f->lanes);
    f->requests = must_alloc(slots * sizeof(MPI_Request));
    f->indices = must_alloc(slots * sizeof *f->indices);
    f->terms = must_alloc((unsigned long)g->count * sizeof *f->terms);
    for (unsigned long i = 0; i < slots; i++)
        f->requests[i] = MPI_REQUEST_NULL;
    return f;
}

/* Reuses an idle flight, or makes one: only a run's first steps need new ones. */
static flight *flight_open(const comm_call *call)
{
    flight_group *m = call->group->state;
    flight *f = m->idle;
    if (f)
        m->idle = f->next;
    else
        f = make(call->group);
    f->group = call->group;
    f->call = call->pieces ? call : NULL;
    f->type = call->type;
    f->maximum = call->maximum;
    f->lanes_used = f->contributions = f->segments = f->summed = f->stride = 0;
    f->complete = false;
    flight_prepare(f, call);
    return f;
}

/* The world rank of a missing message, or -1: a receive's rather than a send's, which may only wait for its turn. */
static int flight_waits_for(const flight *f)
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

/* ---- operations ---- */

static bool advance_all(mpi_job *job)
{
    bool moved = false;
    for (flight **link = &job->active; *link;) {
        flight *f = *link;
        moved |= flight_advance(f);
        if (f->complete)
            *link = f->next;
        else
            link = &f->next;
    }
    return moved;
}

/* Needs the lock. */
static void wake_thread(mpi_job *job)
{
    if (job->thread_runs && job->active && !job->waiting)
        pthread_cond_signal(&job->work);
}

static void mpi_start(comm_request *out, const comm_call *call)
{
    mpi_job *job = call->group->owner->state;
    pthread_mutex_lock(&job->lock);
    flight *f = flight_open(call);
    flight_advance(f);
    out->flight = f;
    if (!f->complete) {
        flight **last = &job->active; /* keeps the order of launch: the peers need them in it */
        while (*last)
            last = &(*last)->next;
        f->next = NULL;
        *last = f;
        wake_thread(job);
    }
    pthread_mutex_unlock(&job->lock);
}

/* A waiting rank polls, and soon yields between polls. If the node has more ranks than cores it sleeps instead: ranks
 * that yield to each other would take a core from the rank that they wait for. */
static void mpi_wait(comm_request *r)
{
    comm *c = r->group->owner;
    mpi_job *job = c->state;
    atomic_fetch_add(&job->waiting, 1);
    for (int64_t empty = 0; r->flight; empty++) {
        pthread_mutex_lock(&job->lock);
        if (advance_all(job))
            empty = 0;
        flight *f = r->flight;
        if (f->complete) { /* it goes back to its group */
            flight_group *m = f->group->state;
            f->next = m->idle;
            m->idle = f;
            r->flight = NULL;
        } else if (empty % 64 == 63) {
            atomic_store_explicit(&c->waiting_for, flight_waits_for(f), memory_order_relaxed);
        }
        pthread_mutex_unlock(&job->lock);
        if (r->flight && empty > POLLS_BEFORE_IDLE) {
            if (job->nap)
                nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
            else
                sched_yield();
        }
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

static status mpi_group_open(comm_group *g)
{
    mpi_job *job = g->owner->state;
    pthread_mutex_lock(&job->lock);
    g->state = flight_group_open(g);
    pthread_mutex_unlock(&job->lock);
    return STATUS_OK;
}

static void mpi_group_close(comm_group *g)
{
    mpi_job *job = g->owner->state;
    for (flight *f = job->active; f; f = f->next)
        MUST(f->group != g, "a group is closed while it communicates");
    pthread_mutex_lock(&job->lock);
    flight_group_close(g->state);
    pthread_mutex_unlock(&job->lock);
}

const comm_backend comm_mpi_backend = {
    .name = "mpi",
    .open = mpi_open,
    .close = mpi_close,
    .group_open = mpi_group_open,
    .group_close = mpi_group_close,
    .start = mpi_start,
    .wait = mpi_wait,
    .progress = mpi_progress,
    .progress_thread = mpi_progress_thread,
};
