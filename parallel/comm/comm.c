#include "parallel/comm/comm.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/comm/comm_backend.h"
#include "parallel/comm/comm_shape.h"

/* ---- the backend of a process alone, and of every group of one: a collective is a copy, done when it starts ---- */

static status self_open(comm *c)
{
    c->rank = c->local_rank = 0;
    c->ranks = c->local_ranks = 1;
    return STATUS_OK;
}

static void self_rest(comm *c)
{
    (void)c;
}

static status self_group_open(comm_group *g)
{
    (void)g;
    return STATUS_OK;
}

static void self_group_close(comm_group *g)
{
    (void)g;
}

static void self_start(comm_request *out, const comm_call *call)
{
    MUST(call->kind != COMM_SEND && call->kind != COMM_RECEIVE && call->kind != COMM_EXCHANGE,
         "a send or receive in a group of one rank has no peer");
    MUST(!call->pieces, "nothing is reduced in a group of one rank");
    if (call->receive && call->receive != call->send)
        memcpy(call->receive, call->send, (size_t)call->count * (size_t)dtype_bytes(call->type));
    out->flight = NULL;
}

static void self_wait(comm_request *r)
{
    (void)r;
}

static status self_progress_thread(comm *c, bool on)
{
    (void)c;
    (void)on;
    return STATUS_OK;
}

static const comm_backend comm_self_backend = {
    .name = "self",
    .open = self_open,
    .close = self_rest,
    .group_open = self_group_open,
    .group_close = self_group_close,
    .start = self_start,
    .wait = self_wait,
    .progress = self_rest,
    .progress_thread = self_progress_thread,
};

/* ---- the job ---- */

/* Returns the number of processes that the launcher reports; the first variable that is set decides. An allocation's
 * own size (SLURM_NTASKS) is no launch: a program run by hand inside one is alone. */
static int launched_ranks(void)
{
    static const char *const sizes[] = {"OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MV2_COMM_WORLD_SIZE",
                                        "SLURM_STEP_NUM_TASKS"};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        const char *text = getenv(sizes[i]);
        if (text && atoi(text) > 0)
            return atoi(text);
    }
    return getenv("PMIX_RANK") ? 0 : 1; /* 0: launched, size unknown */
}

int comm_expected_rank(void)
{
    static const char *const ranks[] = {"OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "MV2_COMM_WORLD_RANK",
                                        "SLURM_PROCID"};
    for (size_t i = 0; launched_ranks() != 1 && i < sizeof ranks / sizeof *ranks; i++) {
        const char *text = getenv(ranks[i]);
        if (text)
            return atoi(text);
    }
    return 0;
}

static status group_make(comm_group **out, comm *c, const int *members, int count, const comm_group_options *o)
{
    comm_group *g = must_calloc(1, sizeof *g);
    g->owner = c;
    g->count = count;
    g->me = -1;
    g->backend = count == 1 ? &comm_self_backend : o->backend ? o->backend : c->backend;
    g->use = o->use;
    g->like = o->like;
    g->members = must_alloc((unsigned long)count * sizeof *g->members);
    for (int i = 0; i < count; i++) {
        MUST(members[i] >= 0 && members[i] < c->ranks && (i == 0 || members[i] > members[i - 1]),
             "member %d of a group is rank %d: members are ascending ranks of the job", i, members[i]);
        g->members[i] = members[i];
        if (members[i] == c->rank)
            g->me = i;
    }
    status s = g->me < 0 ? STATUS_OK : g->backend->group_open(g);
    if (s != STATUS_OK || g->me < 0) {
        free(g->members);
        free(g);
        g = NULL;
    }
    *out = g;
    return s;
}

static void group_free(comm_group *g)
{
    g->backend->group_close(g);
    free(g->members);
    free(g);
}

status comm_open(comm **out)
{
    int launched = launched_ranks();
    comm *c = must_calloc(1, sizeof *c);
    c->waiting_for = -1;
    c->backend = launched == 1 ? &comm_self_backend : &comm_mpi_backend;
    status s = c->backend->open(c);
    if (s != STATUS_OK) {
        free(c);
        return s;
    }
    if (launched > 1 && launched != c->ranks) {
        s = status_fail(
            STATUS_USAGE,
            "the launcher started %d processes, but MPI sees %d: start phalanx with the mpirun or srun of the "
            "MPI it was built with",
            launched, c->ranks);
        c->backend->close(c);
        free(c);
        return s;
    }
    log_set_rank(c->rank, c->ranks);
    AUTO_FREE int *all = must_alloc((unsigned long)c->ranks * sizeof *all);
    for (int i = 0; i < c->ranks; i++)
        all[i] = i;
    s = group_make(&c->world, c, all, c->ranks, &(comm_group_options){0});
    if (s == STATUS_OK)
        *out = c;
    return s;
}

void comm_close(comm *c)
{
    if (!c)
        return;
    MUST(c->groups == 0, "%d communication groups are still open", c->groups);
    comm_progress_thread(c, false);
    group_free(c->world);
    c->backend->close(c);
    free(c->sent_to);
    free(c->received_from);
    free(c);
}

int comm_rank(const comm *c)
{
    return c->rank;
}

int comm_ranks(const comm *c)
{
    return c->ranks;
}

int comm_local_rank(const comm *c)
{
    return c->local_rank;
}

int comm_local_ranks(const comm *c)
{
    return c->local_ranks;
}

comm_group *comm_world(comm *c)
{
    return c->world;
}

int comm_waiting_for(const comm *c)
{
    return atomic_load_explicit(&c->waiting_for, memory_order_relaxed);
}

double comm_waited(const comm *c)
{
    return c->waited;
}

/* ---- groups ---- */

status comm_group_open(comm_group **out, comm *c, const int *members, int count)
{
    return comm_group_open_on(out, c, members, count, &(comm_group_options){0});
}

status comm_group_open_on(comm_group **out, comm *c, const int *members, int count, const comm_group_options *o)
{
    TRY(group_make(out, c, members, count, o));
    c->groups += *out != NULL;
    return STATUS_OK;
}

status comm_group_poll(bool *heard, comm_group *g)
{
    *heard = false;
    return g->backend->poll ? g->backend->poll(heard, g) : STATUS_OK;
}

void comm_group_close(comm_group *g)
{
    if (!g)
        return;
    g->owner->groups--;
    group_free(g);
}

int comm_group_ranks(const comm_group *g)
{
    return g->count;
}

int comm_group_me(const comm_group *g)
{
    return g->me;
}

int comm_group_member(const comm_group *g, int member)
{
    return g->members[member];
}

/* ---- operations ---- */

static void check_call(const comm_call *call)
{
    const comm_group *g = call->group;
    bool sends = call->kind == COMM_SEND || call->kind == COMM_EXCHANGE;
    bool receives = call->kind == COMM_RECEIVE || call->kind == COMM_EXCHANGE;
    bool reduces = call->kind == COMM_ALL_REDUCE || call->kind == COMM_REDUCE_SCATTER;
    MUST(!reduces || comm_sum_takes(call->type), "%s is not a type that can be summed", dtype_name(call->type));
    MUST(!sends || (call->peer >= 0 && call->peer < g->count && call->peer != g->me),
         "a send to member %d of %d, by member %d", call->peer, g->count, g->me);
    MUST(!receives || (call->source >= 0 && call->source < g->count && call->source != g->me),
         "a receive from member %d of %d, by member %d", call->source, g->count, g->me);
    MUST(call->kind != COMM_BROADCAST || (call->peer >= 0 && call->peer < g->count), "a broadcast from member %d of %d",
         call->peer, g->count);
    MUST(!call->pieces || (reduces && call->counts && call->piece_count > 0 && call->piece_count <= COMM_SEGMENTS),
         "%d pieces: only reductions are of several, at most %d", call->piece_count, COMM_SEGMENTS);
    if (call->counts && !(call->kind == COMM_SEND || call->kind == COMM_RECEIVE || call->kind == COMM_EXCHANGE)) {
        int64_t sum = 0;
        for (int i = 0; i < g->count; i++)
            sum += call->counts[i];
        MUST(sum == call->count, "the parts hold %lld elements, the tensor %lld", (long long)sum,
             (long long)call->count);
    }
}

comm_shape comm_call_shape(const comm_call *call)
{
    return (comm_shape){.kind = call->kind,
                        .type = call->type,
                        .members = comm_group_ranks(call->group),
                        .me = comm_group_me(call->group),
                        .count = call->count,
                        .counts = call->counts,
                        .receive_count = call->receive_count,
                        .peer = call->peer};
}

void comm_start(comm_request *out, const comm_call *call)
{
    check_call(call);
    out->group = call->group;
    call->group->backend->start(out, call);
}

void comm_wait(comm_request *r)
{
    if (!r->flight)
        return;
    double began = clock_seconds();
    r->group->backend->wait(r);
    r->group->owner->waited += clock_seconds() - began;
}

void comm_run(const comm_call *call)
{
    comm_request r;
    comm_start(&r, call);
    comm_wait(&r);
}

void comm_progress(comm *c)
{
    c->backend->progress(c);
}

status comm_progress_thread(comm *c, bool on)
{
    return c->backend->progress_thread(c, on);
}

/* ---- end to end ---- */

void comm_check(comm *c)
{
    if (c->ranks == 1)
        return;
    c->sent = c->received = 0;
    if (c->checks) {
        memset(c->sent_to, 0, (size_t)c->ranks * sizeof *c->sent_to);
        memset(c->received_from, 0, (size_t)c->ranks * sizeof *c->received_from);
        return;
    }
    c->sent_to = must_calloc((unsigned long)c->ranks, sizeof *c->sent_to);
    c->received_from = must_calloc((unsigned long)c->ranks, sizeof *c->received_from);
    c->checks = true;
}

comm_sums comm_sums_with(const comm *c, int rank)
{
    if (rank < 0)
        return (comm_sums){c->sent, c->received};
    return c->checks ? (comm_sums){c->sent_to[rank], c->received_from[rank]} : (comm_sums){0};
}

/* ---- counters ---- */

int64_t comm_bytes_sent(const comm_group *g)
{
    return atomic_load_explicit(&g->bytes_sent, memory_order_relaxed);
}

int64_t comm_messages_sent(const comm_group *g)
{
    return atomic_load_explicit(&g->messages_sent, memory_order_relaxed);
}

/* ---- start-up ---- */

void comm_broadcast_bytes(comm_group *g, void *data, int64_t bytes, int root)
{
    comm_run(&(comm_call){.kind = COMM_BROADCAST,
                          .group = g,
                          .type = DTYPE_UINT8,
                          .send = data,
                          .receive = data,
                          .count = bytes,
                          .peer = root});
}

void comm_all_gather_bytes(comm_group *g, void *out, const void *mine, int64_t bytes)
{
    comm_run(&(comm_call){.kind = COMM_ALL_GATHER,
                          .group = g,
                          .type = DTYPE_UINT8,
                          .send = mine,
                          .receive = out,
                          .count = bytes * g->count});
}

double comm_all_max(comm_group *g, double mine)
{
    AUTO_FREE double *all = must_alloc((unsigned long)g->count * sizeof *all);
    comm_all_gather_bytes(g, all, &mine, sizeof mine);
    for (int i = 0; i < g->count; i++)
        mine = fmax(mine, all[i]); /* ignores NaN */
    return mine;
}

double comm_all_sum(comm_group *g, double mine)
{
    AUTO_FREE double *all = must_alloc((unsigned long)g->count * sizeof *all);
    double sum = 0;
    comm_all_gather_bytes(g, all, &mine, sizeof mine);
    for (int i = 0; i < g->count; i++)
        sum += all[i];
    return sum;
}

bool comm_any(comm_group *g, bool mine)
{
    return comm_all_max(g, mine) > 0;
}

status comm_all_status(comm_group *g, status mine)
{
    if (g->count == 1)
        return mine;
    int32_t code = (int32_t)mine;
    AUTO_FREE int32_t *codes = must_alloc((unsigned long)g->count * sizeof *codes);
    comm_all_gather_bytes(g, codes, &code, sizeof code);
    int first = 0;
    while (first < g->count && codes[first] == STATUS_OK)
        first++;
    if (first == g->count)
        return STATUS_OK;
    char text[2048] = "";
    if (first == g->me)
        snprintf(text, sizeof text, "%s", status_message());
    comm_broadcast_bytes(g, text, sizeof text, first);
    return status_fail((status)codes[first], "rank %d: %.1900s", g->members[first], text);
}
