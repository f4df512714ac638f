/* Builds each operation out of lanes. comm_mpi.c moves them. */
#include "parallel/comm/flight.h"

#include <string.h>

#include "memory/log.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_shape.h"

/* A running number distinguishes the collectives of one group that can be in flight together: tag = 4 (number mod
 * NUMBERS) + phase. The largest is 32767, which every MPI has. */
enum { NUMBERS = 8192 };
enum lane_kind { LANE_CONTRIBUTE, LANE_SHARE, LANE_DIRECT, LANE_KINDS = 4 };

static lane *add_lane(flight *f, int peer, int tag, bool sends, const void *base, int64_t bytes)
{
    const flight_group *m = f->group->state;
    lane *l = &f->lanes[f->lanes_used++];
    *l = (lane){.base = (char *)(uintptr_t)base, .bytes = bytes, .peer = peer, .tag = tag, .sends = sends};
    l->segments = (int)((bytes + m->cut.segment - 1) / m->cut.segment);
    int wants = l->segments < m->depth ? l->segments : m->depth;
    f->stride = wants > f->stride ? wants : f->stride;
    return l;
}

static char *part_at(const void *base, int64_t *bytes, const comm_shape *shape, int member)
{
    int64_t offset, count;
    comm_part(&offset, &count, shape, member);
    *bytes = count * dtype_bytes(shape->type);
    return base ? (char *)(uintptr_t)base + offset * dtype_bytes(shape->type) : NULL; /* NULL: of pieces */
}

/* Adds the lane of a member's part; `like` gives its peer, tag, direction, part and memory. The part begins at `base`,
 * or is in the pieces. */
static lane *add_part(flight *f, const comm_shape *shape, const void *base, const lane *like)
{
    int64_t bytes;
    char *at = part_at(base, &bytes, shape, like->part);
    const void *own = like->memory == LANE_OWN_RESULT ? base : at;
    lane *l = add_lane(f, like->peer, like->tag, like->sends, f->call ? NULL : own, bytes);
    l->part = like->part;
    l->memory = like->memory;
    return l;
}

/* Adds lanes for contributions: to this member's part, in; to the others' parts, out. Each member starts with the next
 * peer, so that they do not all send to the first at once. */
static void contribute(flight *f, const comm_call *call, const comm_shape *shape, int tag, lane_memory result)
{
    const flight_group *m = f->group->state;
    int n = shape->members;
    char *ring = call->scratch;
    f->own = part_at(call->send, &f->sum_bytes, shape, shape->me);
    f->sum = result == LANE_RESULT ? part_at(call->receive, &f->sum_bytes, shape, shape->me) : call->receive;
    f->sum_memory = result;
    f->segments = (int)((f->sum_bytes + m->cut.segment - 1) / m->cut.segment);
    int64_t room = comm_scratch_bytes(shape) / (n - 1);
    MUST(room == 0 || ring, "a reduction without scratch");
    for (int i = 1; i < n; i++) {
        lane *l =
            add_lane(f, (shape->me + n - i) % n, tag + LANE_CONTRIBUTE, false, ring + room * (i - 1), f->sum_bytes);
        l->ring = true;
        l->gate = &f->summed;
        l->slack = m->cut.window;
    }
    f->contributions = n - 1;
    for (int i = 1; i < n; i++) {
        int j = (shape->me + i) % n;
        add_part(f, shape, call->send,
                 &(lane){.peer = j, .tag = tag + LANE_CONTRIBUTE, .sends = true, .part = j, .memory = LANE_SENT});
    }
}

static void fly_reduce_scatter(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    contribute(f, call, shape, tag, LANE_OWN_RESULT);
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
        add_lane(f, j, tag + LANE_SHARE, false, at, bytes);
    }
    for (int i = 1; i < n; i++)
        add_lane(f, (shape->me + i) % n, tag + LANE_SHARE, true, call->send, own);
}

static void fly_all_to_all(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int64_t own;
    int n = shape->members, me = shape->me;
    const char *mine = part_at(call->send, &own, shape, me);
    if (own)
        memcpy((char *)call->receive + me * own, mine, (size_t)own);
    for (int i = 1; i < n; i++) {
        int j = (me + n - i) % n;
        add_lane(f, j, tag + LANE_SHARE, false, (char *)call->receive + j * own, own);
    }
    for (int i = 1; i < n; i++) {
        int64_t bytes;
        int j = (me + i) % n;
        const char *at = part_at(call->send, &bytes, shape, j);
        add_lane(f, j, tag + LANE_SHARE, true, at, bytes);
    }
}

static void fly_all_reduce(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int n = shape->members, me = shape->me;
    contribute(f, call, shape, tag, LANE_RESULT);
    for (int i = 1; i < n; i++) {
        lane *l = add_part(
            f, shape, call->receive,
            &(lane){.peer = (me + i) % n, .tag = tag + LANE_SHARE, .sends = true, .part = me, .memory = LANE_RESULT});
        l->gate = &f->summed;
    }
    /* Member j's result lands, in place, over its own contribution: only after that has left. */
    for (int i = 1; i < n; i++) {
        int j = (me + i) % n;
        lane *l =
            add_part(f, shape, call->receive,
                     &(lane){.peer = j, .tag = tag + LANE_SHARE, .sends = false, .part = j, .memory = LANE_RESULT});
        l->gate = &f->lanes[n - 1 + i - 1].done;
    }
}

static void fly_broadcast(flight *f, const comm_call *call, const comm_shape *shape, int tag)
{
    int children[31], parent, count = comm_tree(children, &parent, shape->members, shape->me, shape->peer);
    int64_t bytes = shape->count * dtype_bytes(shape->type);
    const lane *from = parent < 0 ? NULL : add_lane(f, parent, tag + LANE_SHARE, false, call->receive, bytes);
    if (!from && call->receive && call->receive != call->send && bytes)
        memcpy(call->receive, call->send, (size_t)bytes);
    for (int i = 0; i < count; i++) {
        lane *l = add_lane(f, children[i], tag + LANE_SHARE, true, from ? call->receive : call->send, bytes);
        l->gate = from ? &from->done : NULL;
    }
}

static void fly_receive(flight *f, const comm_call *call, int64_t count)
{
    unsigned *number = &((flight_group *)f->group->state)->received[call->source];
    add_lane(f, call->source, (int)((*number)++ % NUMBERS) * LANE_KINDS + LANE_DIRECT, false, call->receive,
             count * dtype_bytes(call->type));
}

static void fly_send(flight *f, const comm_call *call)
{
    unsigned *number = &((flight_group *)f->group->state)->sent[call->peer];
    add_lane(f, call->peer, (int)((*number)++ % NUMBERS) * LANE_KINDS + LANE_DIRECT, true, call->send,
             call->count * dtype_bytes(call->type));
}

static void (*const collectives[COMM_KINDS])(flight *f, const comm_call *call, const comm_shape *shape, int tag) = {
    [COMM_ALL_REDUCE] = fly_all_reduce, [COMM_ALL_GATHER] = fly_all_gather, [COMM_REDUCE_SCATTER] = fly_reduce_scatter,
    [COMM_ALL_TO_ALL] = fly_all_to_all, [COMM_BROADCAST] = fly_broadcast,
};

void flight_prepare(flight *f, const comm_call *call)
{
    flight_group *m = f->group->state;
    if (collectives[call->kind]) {
        comm_shape shape = comm_call_shape(call);
        collectives[call->kind](f, call, &shape, (int)(m->collectives++ % NUMBERS) * LANE_KINDS);
    } else if (call->kind == COMM_RECEIVE) {
        fly_receive(f, call, call->count);
    } else if (call->kind == COMM_SEND) {
        fly_send(f, call);
    } else {
        fly_receive(f, call, call->receive_count);
        fly_send(f, call);
    }
}
