#include "engine/compile/time/timing.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

/* An op as it is played. */
enum { COMPUTES, LAUNCHES, COPIES, WAITS };

struct timing_op {
    double seconds;      /* seconds of computing, or of the transfer */
    double end;          /* time when the rank goes on */
    double launched;     /* a launch's time */
    double travels;      /* time when its transfer begins */
    double idle, behind; /* fields of a wait's timing_span */
    int request, microbatch;
    int peer; /* stage of a message; else -1 */
    uint8_t does, axis, upstream, phase, before;
    bool leaves, sends, last; /* leaves its node; copies to host memory; last of a joint launch */
    bool late;                /* launched only past the rank's last micro-batch */
    int16_t chunk;
};

/* ---- taking a program -------------------------------------------------------------------------------------------- */

void timing_open(timing *out, const profile *p, int stages)
{
    MUST(stages <= TIMING_STAGES, "%d stages", stages);
    *out = (timing){.profile = p, .count = stages};
    out->ranks = must_calloc((unsigned long)stages, sizeof *out->ranks);
}

void timing_free(timing *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->ranks[i].ops);
    free(p->ranks);
    *p = (timing){0};
}

static timing_op timing_of(const profile *p, const grid *g, const program *list, int i)
{
    const op *o = list->ops[i];
    timing_op e = {.request = o->where.request,
                   .microbatch = o->microbatch,
                   .axis = o->where.axis,
                   .upstream = o->where.upstream,
                   .phase = o->phase,
                   .chunk = o->chunk,
                   .peer = -1};
    if (op_waits(o)) {
        e.does = WAITS;
    } else if (op_communicates(o)) {
        bool message = op_has(o, OP_MESSAGE);
        e.does = LAUNCHES;
        e.sends = op_has(o, OP_LEAVES);
        e.last = o->where.bundle + 1 >= o->where.bundle_of;
        e.seconds = e.last ? profile_transfer(p, g, list, i) : 0;
        e.peer = message ? (grid_for_rank(g, o->where.peer).at[GRID_PIPELINE]) : -1;
        e.leaves = message ? o->where.peer / p->node_ranks != g->rank / p->node_ranks
                           : profile_leaves_node(p, g, (axis)o->where.axis);
    } else {
        e.does = op_copies(o) ? COPIES : COMPUTES;
        e.sends = op_has(o, OP_LEAVES);
        e.seconds = profile_op(p, o);
    }
    return e;
}

/* Postpones sums of gradients to the end of the backward pass, as without overlap, except those waited for earlier. */
static void postpone_sums(timing_rank *r)
{
    bool *needed = must_calloc((unsigned long)r->requests + 1, sizeof *needed);
    for (int i = r->last_action; i >= 0; i--) {
        timing_op *e = &r->ops[i];
        if (e->does == WAITS)
            needed[e->request] = true;
        e->late = e->does == LAUNCHES && e->phase == PHASE_UPDATE && !needed[e->request];
    }
    free(needed);
}

void timing_add(timing *p, const grid *g, const program *list, int requests)
{
    timing_rank *r = &p->ranks[g->at[GRID_PIPELINE]];
    MUST(!r->ops, "stage %d is there already", g->at[GRID_PIPELINE]);
    *r = (timing_rank){.grid = *g, .count = list->count, .requests = requests, .last_action = -1};
    r->ops = must_alloc((unsigned long)(list->count + 1) * sizeof *r->ops);
    for (int i = 0; i < list->count; i++) {
        r->ops[i] = timing_of(p->profile, &r->grid, list, i);
        r->last_action = list->ops[i]->microbatch >= 0 ? i : r->last_action;
    }
    if (p->profile->as_lowered)
        postpone_sums(r);
}

/* ---- queues ------------------------------------------------------------------------------------------------------ */

/* Communicators of a rank: per axis in order, two directions each; between stages per neighbour. */
enum { FOR_GROUPS, SENDS_MESSAGES, RECEIVES_MESSAGES, USES };
enum { LINKS = 2 * USES, BUSY = 64 };

typedef struct queue {
    int *launched; /* ops, in order */
    int head, tail;
    double free;       /* idle from then on */
    double since, own; /* busy until then: waiting for links from `since` on, under way from `own` on */
    int behind;        /* the axis that it waited for in between */
} queue;

/* A rank's link within its node or beyond: used by groups, and by messages out and in. Holds the latest times of use,
 * ascending. Ranks are not played in the order of time, so a later find may begin earlier, in a gap. */
typedef struct link {
    double from[BUSY], to[BUSY];
    double owed;     /* owed by groups: seconds that messages took of the link while a group used it */
    int count, axis; /* number of uses; axis of the latest */
} link;

typedef struct request {
    double start, end; /* its transfer's times */
    double launched;   /* all participants have launched */
    double since, own; /* the queue's fields once it was under way */
    int behind;
    int op; /* op that launched it; -1: none yet */
    bool met;
    int cause_rank, cause_op; /* the last rank and op to launch */
} request;

typedef struct player {
    timing *p;
    queue **queues; /* [ranks][communicators] */
    request **requests;
    link (*links)[LINKS];
    double (*bus)[2]; /* free times of copies: to the device, to host memory */
    int *at;
    double *now;
    int communicators;
} player;

static int communicator_of(const timing_op *e)
{
    return e->peer < 0 ? (int)e->axis : AXIS_COUNT + 2 * e->peer + e->upstream;
}

static void open_player(player *s, timing *p)
{
    *s = (player){.p = p, .communicators = AXIS_COUNT + 2 * p->count};
    s->queues = must_calloc((unsigned long)p->count, sizeof *s->queues);
    s->requests = must_calloc((unsigned long)p->count, sizeof *s->requests);
    s->links = must_calloc((unsigned long)p->count, sizeof *s->links);
    s->bus = must_calloc((unsigned long)p->count, sizeof *s->bus);
    s->at = must_calloc((unsigned long)p->count, sizeof *s->at);
    s->now = must_calloc((unsigned long)p->count, sizeof *s->now);
    for (int r = 0; r < p->count; r++) {
        const timing_rank *rank = &p->ranks[r];
        int *launches = must_calloc((unsigned long)s->communicators, sizeof *launches);
        s->queues[r] = must_calloc((unsigned long)s->communicators, sizeof **s->queues);
        s->requests[r] = must_calloc((unsigned long)rank->requests + 1, sizeof **s->requests);
        for (int i = 0; i < rank->requests; i++)
            s->requests[r][i].op = -1;
        for (int i = 0; i < rank->count; i++)
            if (rank->ops[i].does == LAUNCHES)
                launches[communicator_of(&rank->ops[i])]++;
        for (int k = 0; k < s->communicators; k++)
            s->queues[r][k].launched = must_alloc((unsigned long)(launches[k] + 1) * sizeof(int));
        free(launches);
    }
}

static void close_player(player *s)
{
    for (int r = 0; r < s->p->count; r++) {
        for (int k = 0; k < s->communicators; k++)
            free(s->queues[r][k].launched);
        free(s->queues[r]);
        free(s->requests[r]);
    }
    free(s->queues);
    free(s->requests);
    free(s->links);
    free(s->bus);
    free(s->at);
    free(s->now);
}

static const timing_op *head_of(const player *s, int rank, int communicator)
{
    const queue *q = &s->queues[rank][communicator];
    return q->head < q->tail ? &s->p->ranks[rank].ops[q->launched[q->head]] : NULL;
}

/* Finds the played ranks that take part in a launch by `rank`: all of them for an axis over stages, else it alone. */
static int find_parties(int *out, const player *s, int rank, const timing_op *e)
{
    const grid *g = &s->p->ranks[rank].grid;
    int count = 0;
    if (e->peer >= 0) {
        out[0] = rank;
        out[1] = e->peer;
        return 2;
    }
    for (int r = 0; r < s->p->count; r++) {
        bool ends = axis_rows[e->axis].rule == AXIS_ENDS;
        bool with = axis_spans((axis)e->axis, GRID_PIPELINE) && (!ends || r == 0 || r == s->p->count - 1) &&
                    grid_group_size(g, (axis)e->axis) > 0;
        if (r == rank || with)
            out[count++] = r;
    }
    return count;
}

/* The first time from `start` on at which the link is free for `seconds`. */
static double first_gap(const link *l, double start, double seconds)
{
    for (int i = 0; i < l->count; i++)
        if (l->from[i] < start + seconds && l->to[i] > start)
            start = l->to[i];
    return start;
}

static void take_link(link *l, double from, double to)
{
    if (l->count == BUSY) {
        memmove(l->from, l->from + 1, (BUSY - 1) * sizeof *l->from);
        memmove(l->to, l->to + 1, (BUSY - 1) * sizeof *l->to);
        l->count--;
    }
    int i = l->count++;
    for (; i > 0 && l->from[i - 1] > from; i--) {
        l->from[i] = l->from[i - 1];
        l->to[i] = l->to[i - 1];
    }
    l->from[i] = from;
    l->to[i] = to;
}

static double launched_at(const player *s, int rank, const queue *q)
{
    return s->p->ranks[rank].ops[q->launched[q->head]].launched;
}

/* Returns the op after which it was launched. */
static int launched_by(const timing_rank *r, int at)
{
    return r->ops[at].late ? r->last_action : at;
}

/* Returns when all members' links have a gap: each may push the start on for the others. */
static double free_links(const player *s, const int *members, const int *links, int count, double start, double seconds)
{
    for (bool moved = true; moved;) {
        moved = false;
        for (int i = 0; i < count; i++) {
            double later = first_gap(&s->links[members[i]][links[i]], start, seconds);
            moved |= later > start;
            start = later;
        }
    }
    return start;
}

/* Seconds for which the link is in use from `from` to `to`. */
static double link_seconds(const link *l, double from, double to)
{
    double sum = 0;
    for (int i = 0; i < l->count; i++) {
        double a = l->from[i] > from ? l->from[i] : from, b = l->to[i] < to ? l->to[i] : to;
        sum += b > a ? b - a : 0;
    }
    return sum;
}

/* Shares a link evenly between a message and a group's exchange: the message takes longer, and the group's next
 * transfer is delayed by the message's part. Returns the transfer's seconds. */
static double share_links(player *s, const int *members, const int *links, int count, double begin, double seconds)
{
    double more = 0;
    for (int i = 0; i < count; i++) {
        link *l = s->links[members[i]];
        int use = links[i] % USES, group = links[i] - use;
        double part = use == FOR_GROUPS ? l[group].owed : link_seconds(&l[group], begin, begin + 2 * seconds);
        part = use != FOR_GROUPS && part > seconds ? seconds : part;
        more = part > more ? part : more;
        l[group].owed = use == FOR_GROUPS ? 0 : l[group].owed + part;
    }
    return seconds + more;
}

/* Records since when the queue has been busy: launches in the meantime continue that wait. */
static void note_wait(queue *q, link *on, const timing_op *e, double start, double ready, double begin)
{
    bool busy = q->free >= start && q->head > 0, waits = begin > ready;
    q->since = busy ? q->since : start;
    q->own = busy && !waits && begin <= q->free ? q->own : begin;
    q->behind = waits ? on->axis : busy ? q->behind : e->axis;
    on->axis = e->axis;
}

/* Begins the collective at the head of all `members`' queues. */
static void start_collective(player *s, const int *members, const int *communicators, int count)
{
    double start = 0, seconds = 0;
    int cause_rank = -1, cause_op = -1;
    int links[TIMING_STAGES];
    for (int i = 0; i < count; i++) {
        const timing_op *e = head_of(s, members[i], communicators[i]);
        links[i] = (e->leaves ? USES : 0) + (e->peer < 0 ? FOR_GROUPS : e->sends ? SENDS_MESSAGES : RECEIVES_MESSAGES);
        seconds = e->seconds > seconds ? e->seconds : seconds;
    }
    for (int i = 0; i < count; i++) {
        const queue *q = &s->queues[members[i]][communicators[i]];
        if (launched_at(s, members[i], q) > start) {
            start = launched_at(s, members[i], q);
            cause_rank = members[i];
            cause_op = launched_by(&s->p->ranks[members[i]], q->launched[q->head]);
        }
    }
    double begin = start;
    for (int i = 0; i < count; i++) {
        const queue *q = &s->queues[members[i]][communicators[i]];
        begin = q->free > begin ? q->free : begin;
    }
    double ready = begin;
    if (!s->p->profile->host_moves && seconds > 0) {
        begin = free_links(s, members, links, count, begin, seconds);
        seconds = share_links(s, members, links, count, begin, seconds);
    }
    for (int i = 0; i < count; i++) {
        int r = members[i];
        queue *q = &s->queues[r][communicators[i]];
        const timing_op *e = &s->p->ranks[r].ops[q->launched[q->head]];
        double end = begin + seconds;
        note_wait(q, &s->links[r][links[i]], e, start, ready, begin);
        s->requests[r][e->request] = (request){
            begin, end, start, q->since, q->own, q->behind, q->launched[q->head++], true, cause_rank, cause_op};
        if (s->p->profile->host_moves)
            continue;
        q->free = end;
        if (seconds > 0)
            take_link(&s->links[r][links[i]], begin, end);
    }
}

/* Begins the collective at the head of a rank's queue, if all participants have come to it. */
static bool try_start_collective(player *s, int rank, int communicator)
{
    int members[TIMING_STAGES], theirs[TIMING_STAGES];
    const timing_op *e = head_of(s, rank, communicator);
    if (!e)
        return false;
    int count = find_parties(members, s, rank, e);
    for (int i = 0; i < count; i++) {
        timing_op mirrored = *e;
        if (e->peer >= 0 && i == 1)
            mirrored.peer = rank;
        theirs[i] = communicator_of(&mirrored);
        const timing_op *other = head_of(s, members[i], theirs[i]);
        if (!other || (e->peer >= 0 && i == 1 && other->sends == e->sends))
            return false;
    }
    start_collective(s, members, theirs, count);
    return true;
}

/* ---- playing ----------------------------------------------------------------------------------------------------- */

/* Returns when the first of the current transfers ends; infinite: none does. */
static double travels_until(const player *s, int rank, double now)
{
    double until = INFINITY;
    for (int k = 0; k < LINKS; k++) {
        const link *l = &s->links[rank][k];
        for (int i = l->count; i-- > 0 && l->to[i] > now;)
            until = l->from[i] <= now && l->to[i] < until ? l->to[i] : until;
    }
    return until;
}

/* Returns the time of an op that takes `alone` seconds alone and begins now: it speeds up when a transfer ends. */
static double beside_transfers(const player *s, int rank, double alone)
{
    const double left = 1 - s->p->profile->taken, begin = s->now[rank];
    if (left >= 1)
        return alone;
    for (double now = begin;;) {
        double until = travels_until(s, rank, now);
        if (isinf(until) || now + alone / left <= until)
            return now + (isinf(until) ? alone : alone / left) - begin;
        alone -= (until - now) * left;
        now = until;
    }
}

static void wait_for(player *s, int rank, timing_op *e)
{
    const request *q = &s->requests[rank][e->request];
    timing_rank *r = &s->p->ranks[rank];
    const timing_op *launch = &r->ops[q->op];
    double now = s->now[rank], end = q->end;
    if (s->p->profile->host_moves)
        end = (now > q->start ? now : q->start) + (q->end - q->start);
    double waited = end > now ? end - now : 0;
    bool alone = s->p->profile->host_moves;
    double transfers = q->end - (alone ? q->start : q->since), own = q->end - (alone ? q->start : q->own);
    double exposed = waited < transfers ? waited : transfers; /* including transfers it queued for */
    own = exposed < own ? exposed : own;
    *(launch->does == COPIES ? &r->copies : &r->exposed[launch->axis]) += own;
    r->exposed[q->behind] += exposed - own;
    r->idle += waited - exposed;
    r->barrier += launch->does != COPIES && launch->axis == AXIS_GRID ? waited : 0;
    e->idle = waited - exposed;
    e->behind = exposed - own;
    e->before = (uint8_t)q->behind;
    s->now[rank] = now + waited;
}

/* Copies of one direction follow one another. */
static void begin_copy(player *s, int rank, const timing_op *e)
{
    double now = s->now[rank], *free_at = &s->bus[rank][e->sends];
    double begin = *free_at > now ? *free_at : now, end = begin + e->seconds;
    s->requests[rank][e->request] = (request){begin, end, now, now, now, 0, s->at[rank], true, rank, s->at[rank]};
    *free_at = end;
}

static void play_launch(player *s, int rank, int at)
{
    timing_op *e = &s->p->ranks[rank].ops[at];
    int k = communicator_of(e);
    queue *q = &s->queues[rank][k];
    e->launched = s->now[rank];
    q->launched[q->tail++] = at;
    while (try_start_collective(s, rank, k))
        ;
}

static void launch_late(player *s, int rank)
{
    const timing_rank *r = &s->p->ranks[rank];
    for (int i = 0; i < r->last_action; i++)
        if (r->ops[i].late)
            play_launch(s, rank, i);
}

/* Plays a rank as far as possible; true if it moved. */
static bool advance_rank(player *s, int rank)
{
    timing_rank *r = &s->p->ranks[rank];
    int from = s->at[rank];
    for (; s->at[rank] < r->count; s->at[rank]++) {
        timing_op *e = &r->ops[s->at[rank]];
        if (e->does == COMPUTES) {
            double seconds = beside_transfers(s, rank, e->seconds);
            r->compute += seconds;
            s->now[rank] += seconds;
        } else if (e->does == WAITS) {
            if (!s->requests[rank][e->request].met)
                break;
            wait_for(s, rank, e);
        }
        e->end = s->now[rank];
        if (e->does == COPIES)
            begin_copy(s, rank, e);
        if (e->does == LAUNCHES && !e->late)
            play_launch(s, rank, s->at[rank]);
        if (s->at[rank] == r->last_action)
            launch_late(s, rank);
    }
    return s->at[rank] > from;
}

/* ---- the longest chain ------------------------------------------------------------------------------------------- */

static void add_cause(timing *p, double seconds, const char *what, int stage, const char *more)
{
    char text[TIMING_TEXT];
    snprintf(text, sizeof text, "%s%s of stage %d", what, more, stage);
    int i = 0;
    while (i < p->cause_count && strcmp(p->causes[i].text, text) != 0)
        i++;
    if (i == TIMING_CAUSES) /* the rest counts as one */
        snprintf(p->causes[--i].text, TIMING_TEXT, "other");
    else if (i == p->cause_count)
        memcpy(p->causes[p->cause_count++].text, text, sizeof text);
    p->causes[i].seconds += seconds;
}

static int by_seconds(const void *a, const void *b)
{
    double x = ((const timing_cause *)a)->seconds, y = ((const timing_cause *)b)->seconds;
    return (x < y) - (x > y);
}

/* Walks from the step's last op back to its first, recording the cause of each wait. */
static void find_causes(player *s)
{
    timing *p = s->p;
    int rank = 0;
    for (int r = 1; r < p->count; r++)
        rank = p->ranks[r].end > p->ranks[rank].end ? r : rank;
    int at = p->ranks[rank].count - 1;
    while (at >= 0) {
        const timing_rank *r = &p->ranks[rank];
        const timing_op *e = &r->ops[at];
        double before = at > 0 ? r->ops[at - 1].end : 0;
        const request *q = e->does == WAITS ? &s->requests[rank][e->request] : NULL;
        if (!q || e->end <= before) {
            if (e->does == COMPUTES)
                add_cause(p, e->end - before, phase_name((phase)e->phase), rank, "");
            at--;
            continue;
        }
        const timing_op *launch = &r->ops[q->op];
        bool late = q->launched > before; /* queued for its turn, and under way */
        add_cause(p, e->end - (late ? q->launched : before),
                  launch->does == COPIES ? "host" : axis_name((axis)launch->axis), rank, " transfers");
        at--;
        if (late) {
            rank = q->cause_rank;
            at = q->cause_op;
        }
    }
    qsort(p->causes, (size_t)p->cause_count, sizeof *p->causes, by_seconds);
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void note_transfers(player *s, int rank)
{
    timing_rank *r = &s->p->ranks[rank];
    for (int i = 0; i < r->requests; i++) {
        const request *q = &s->requests[rank][i];
        if (q->op < 0)
            continue;
        r->ops[q->op].travels = q->start;
        r->ops[q->op].seconds = q->end - q->start;
    }
}

/* Charges waits for cores: ranks that share a host's cores give them to each other while they wait, but all their work
 * takes as long as all cores need for it. Only one rank per stage is played. */
static void share_cores(timing *p)
{
    const profile *h = p->profile;
    if (h->cores == 0)
        return;
    double work = 0;
    int threads = h->threads > 0 && h->threads < h->cores ? h->threads : h->cores;
    for (int r = 0; r < p->count; r++) {
        double busy = p->ranks[r].compute;
        for (int a = 0; a < AXIS_COUNT; a++)
            busy += p->ranks[r].exposed[a];
        work += busy * threads * p->ranks[r].grid.ranks / p->count;
    }
    int nodes = (p->ranks[0].grid.ranks + h->node_ranks - 1) / h->node_ranks;
    work /= (double)h->cores * nodes;
    if (work <= p->seconds)
        return;
    p->bubble = 0;
    for (int r = 0; r < p->count; r++) { /* a rank that waits for a core has work: this is no bubble */
        p->ranks[r].cores = work - p->seconds;
        p->ranks[r].compute += work - p->seconds;
        p->bubble += p->ranks[r].idle / work / p->count;
    }
    p->cores = work - p->seconds;
    p->seconds = work;
    if (p->cause_count < TIMING_CAUSES)
        p->causes[p->cause_count++] = (timing_cause){"waiting for a core", p->cores};
    qsort(p->causes, (size_t)p->cause_count, sizeof *p->causes, by_seconds);
}

static void sum_up(player *s)
{
    timing *p = s->p;
    for (int r = 0; r < p->count; r++) {
        note_transfers(s, r);
        p->ranks[r].end = s->now[r];
        p->seconds = s->now[r] > p->seconds ? s->now[r] : p->seconds;
    }
    for (int r = 0; r < p->count; r++) {
        p->ranks[r].idle += p->seconds - p->ranks[r].end;
        p->bubble += p->seconds > 0 ? p->ranks[r].idle / p->seconds / p->count : 0;
        for (int a = 0; a < AXIS_COUNT; a++)
            p->exposed[a] += p->ranks[r].exposed[a] / p->count;
        p->copies += p->ranks[r].copies / p->count;
        p->barrier += p->ranks[r].barrier / p->count;
    }
    find_causes(s);
    share_cores(p);
}

status timing_run(timing *p)
{
    player s;
    open_player(&s, p);
    for (bool moved = true; moved;) {
        moved = false;
        for (int r = 0; r < p->count; r++)
            moved |= advance_rank(&s, r);
    }
    status ok = STATUS_OK;
    for (int r = 0; r < p->count && ok == STATUS_OK; r++)
        if (s.at[r] < p->ranks[r].count)
            ok = status_fail(STATUS_FAILED, "stage %d waits for ever at op %d of its program", r, s.at[r]);
    if (ok == STATUS_OK)
        sum_up(&s);
    close_player(&s);
    return ok;
}

double timing_seconds(const timing *p, int stage, phase of)
{
    const timing_rank *r = &p->ranks[stage];
    double sum = 0;
    for (int i = 0; i < r->count; i++)
        sum += r->ops[i].phase == of ? r->ops[i].end - (i ? r->ops[i - 1].end : 0) : 0;
    return sum;
}

/* ---- results ---------------------------------------------------------------------------------------------------- */

/* Returns the played times, op by op and action by action. */

timing_span timing_op_at(const timing *p, int stage, int index)
{
    const timing_op *o = &p->ranks[stage].ops[index];
    double before = index > 0 ? o[-1].end : 0;
    if (o->does == COPIES)
        return (timing_span){.begin = o->travels, .end = o->travels + o->seconds, .free = o->end};
    if (o->does == LAUNCHES)
        return (timing_span){
            .begin = o->last ? o->travels : 0, .end = o->last ? o->travels + o->seconds : 0, .free = o->end};
    return (timing_span){before, o->end, o->end, o->idle, o->behind, o->before};
}

/* ---- actions ----------------------------------------------------------------------------------------------------- */

static bool is_of_action(const timing_op *e, action a)
{
    static const int phases[] = {[ACTION_FORWARD] = PHASE_FORWARD,
                                 [ACTION_BACKWARD] = PHASE_BACKWARD,
                                 [ACTION_BACKWARD_INPUT] = PHASE_BACKWARD,
                                 [ACTION_BACKWARD_WEIGHT] = PHASE_WEIGHT};
    return e->does == COMPUTES && e->microbatch == a.microbatch && e->chunk == a.chunk && e->phase == phases[a.kind];
}

/* Actions follow one another in the program as in the schedule's list. */
static void spans_of_stage(simulation *out, const timing_rank *r, const schedule *s, int stage)
{
    int at = 0;
    simulate_stage *st = &out->stages[stage];
    for (int k = 0; k < s->counts[stage]; k++) {
        action a = s->actions[stage][k];
        while (at < r->count && !is_of_action(&r->ops[at], a))
            at++;
        simulate_span *span = &out->spans[stage][k];
        *span = (simulate_span){at > 0 && at <= r->count ? r->ops[at - 1].end : 0, 0};
        for (; at < r->count && (is_of_action(&r->ops[at], a) || r->ops[at].does != COMPUTES); at++)
            if (is_of_action(&r->ops[at], a))
                span->end = r->ops[at].end;
        span->end = span->end > span->start ? span->end : span->start;
        double lasts = span->end - span->start;
        st->busy += lasts;
        if (a.chunk < s->chunks && lasts > 0 && (out->shortest <= 0 || lasts < out->shortest))
            out->shortest = lasts;
        out->length = span->end > out->length ? span->end : out->length;
    }
}

status timing_spans(simulation *out, const timing *p, const schedule *s)
{
    TRY(simulate_uniform(out, s, (simulate_cost){1, 1, 1}, 0, 0)); /* the in-flight counts do not depend on times */
    out->length = out->shortest = out->bubble = 0;
    for (int i = 0; i < s->stages; i++) {
        out->stages[i].busy = 0;
        spans_of_stage(out, &p->ranks[i], s, i);
    }
    for (int i = 0; i < s->stages; i++) {
        simulate_stage *st = &out->stages[i];
        st->idle = out->length - st->busy;
        st->bubble = out->length > 0 ? st->idle / out->length : 0;
        out->bubble += st->bubble / s->stages;
    }
    return STATUS_OK;
}
