/* The backend of a process alone, and of every group of one member: a collective is a copy, done when it starts. */
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/comm/comm_backend.h"

static status self_open(comm *c)
{
    c->rank = c->local_rank = 0;
    c->ranks = c->local_ranks = 1;
    return STATUS_OK;
}

static void self_close(comm *c)
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

static void self_progress(comm *c)
{
    (void)c;
}

static status self_progress_thread(comm *c, bool on)
{
    (void)c;
    (void)on;
    return STATUS_OK;
}

const comm_backend comm_self_backend = {
    .name = "self",
    .open = self_open,
    .close = self_close,
    .group_open = self_group_open,
    .group_close = self_group_close,
    .start = self_start,
    .wait = self_wait,
    .progress = self_progress,
    .progress_thread = self_progress_thread,
};
