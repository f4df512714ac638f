#include "parallel/comm/flight.h"

#include <stdlib.h>
#include <string.h>

#include "memory/bits.h"
#include "memory/log.h"
#include "parallel/comm/comm.h"
#include "parallel/comm/comm_shape.h"

/* Collectives of one group are told apart by a running number, in so far as they can be in flight together: tag = 4
 * (number mod NUMBERS) + phase. The largest is 32767, which every MPI has. */
enum { NUMBERS = 8192 };
enum lane_kind { LANE_CONTRIBUTE, LANE_SHARE, LANE_DIRECT, LANE_KINDS = 4 };

/* Requests of one flight and direction. A single-copy shared memory lets the receiver fetch what the sender has posted,
 * without the sender's help: so much is posted at once, and a sender that computes holds nobody up. */
enum { REQUESTS = 256, DEPTH_MOST = 64 };

void flight_check(int code, const char *file, int line)
{
    char text[MPI_MAX_ERROR_STRING] = "";
    int length;
    if (code == MPI_SUCCESS)
        return;
    MPI_Error_string(code, text, &length);
    log_die(file, line, "MPI", "communication failed: %s", text);
}

/* ---- lanes ---- */

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

static int64_t segment_size(int64_t whole, int64_t segment, int index)
{
    int64_t left = whole - segment * index;
    return left < segment ? left : segment;
}

static char *segment_at(const lane *l, const comm_cut *cut, int index)
{
    return l->base + cut->segment * (l->ring ? index % cut->window : index);
}

/* ---- pieces ---- */

/* The memory that bytes [at, at + bytes) of a member's part are in. */
typedef struct runs {
    char *at[COMM_PIECES];
    int64_t bytes[COMM_PIECES];
    int count;
} runs;

static char *piece_at(int64_t *bytes, const comm_call *call, const comm_piece *p, int member, lane_memory memory)
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

/* A message straight from or to the pieces. */
static void post_runs(const flight *f, const lane *l, int64_t at, int64_t bytes, MPI_Request *request)
{
    const flight_group *m = f->group->state;
    runs r;
    int lengths[COMM_PIECES];
    MPI_Aint places[COMM_PIECES];
    MPI_Datatype type;
    find_runs(&r, f->call, l->part, l->memory, at, bytes);
    for (int i = 0; i < r.count; i++) {
        lengths[i] = (int)r.bytes[i];
        MPI_MUST(MPI_Get_address(r.at[i], &places[i]));
    }
    MPI_MUST(MPI_Type_create_hindexed(r.count, lengths, places, MPI_BYTE, &type));
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

/* What a message holds, added to this rank's sums: as it is handed over, or when it has arrived. Both ends call it the
 * same segment of the same operation. */
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
static void settle(flight *f, lane *l)
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
    comm_sum(to, f->terms, f->group->count, bytes / dtype_bytes(f->type), f->type);
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

bool flight_advance(flight *f)
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
    return base ? (char *)(uintptr_t)base + offset * dtype_bytes(shape->type) : NULL; /* NULL: of pieces */
}

/* Adds the lane of a member's part, which `like` describes: its peer, tag, direction, part and memory. The part lies
 * from `base` on, or in the pieces. */
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

/* Contributions to this member's part come in, those to the others' parts go out. The peers in turn, starting after
 * oneself: so that not all send to the first at once. */
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
    /* In place, member j's result lands where its contribution was sent from: not before that has left. */
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

static void prepare(flight *f, const comm_call *call)
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

/* ---- flights of a group ---- */

flight_group *flight_group_open(comm_group *g)
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

void flight_group_close(flight_group *m)
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

/* After the first steps of a run every flight that is needed exists. */
flight *flight_open(const comm_call *call)
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
    f->lanes_used = f->contributions = f->segments = f->summed = f->stride = 0;
    f->complete = false;
    prepare(f, call);
    return f;
}

void flight_close(flight *f)
{
    flight_group *m = f->group->state;
    f->next = m->idle;
    m->idle = f;
}

int flight_waits_for(const flight *f)
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
