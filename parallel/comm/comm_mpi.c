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

#include "memory/log.h"
#include "parallel/comm/flight.h"

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

/* With the lock held. */
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
    flight_close(f);
    r->flight = NULL;
    return true;
}

/* A waiting rank polls, and soon yields between polls. If the node has more ranks than cores it sleeps instead: ranks
 * that yield to each other would take a core from the rank that they wait for. */
static void idle(const mpi_job *job, int64_t empty_polls)
{
    if (empty_polls <= POLLS_BEFORE_IDLE)
        return;
    if (job->nap)
        nanosleep(&(struct timespec){.tv_nsec = NAP_NANOSECONDS}, NULL);
    else
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
            atomic_store_explicit(&c->waiting_for, flight_waits_for(r->flight), memory_order_relaxed);
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
