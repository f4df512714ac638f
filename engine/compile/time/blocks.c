#include "engine/compile/time/blocks.h"

#include <math.h>
#include <stdlib.h>

#include "memory/log.h"
#include "parallel/schedule/simulate.h"

/* NCCL rounds the blocks of messages up to a power of two. */
static const int counts[BLOCKS_COUNTS] = {1, 2, 4, 8, 16, 24, 32, 64};

/* ---- beside occupied multiprocessors ----------------------------------------------------------------------------- */

static bool computes(const op *o)
{
    return !op_waits(o) && !op_communicates(o) && !op_copies(o);
}

/* Of the first micro-batch, as which the others are; without any, of all ops. */
static double compute_seconds(const profile *p, const program *list, bool first)
{
    double seconds = 0;
    for (int i = 0; i < list->count; i++)
        if (computes(list->ops[i]) && (!first || list->ops[i]->microbatch == 0))
            seconds += profile_op(p, list->ops[i]);
    return seconds;
}

void blocks_measure(blocks_slowdown *out, const profile *p, const program *list)
{
    bool first = p->blocks > 0 && compute_seconds(p, list, true) > 0;
    double alone = p->blocks > 0 ? compute_seconds(p, list, first) : 0;
    for (int i = 0; i < BLOCKS_COUNTS; i++) {
        profile with = *p;
        with.occupied = counts[i] < p->processors ? counts[i] : p->processors - 1;
        out->of[i] = alone > 0 && p->processors > 1 ? compute_seconds(&with, list, first) / alone : 1;
        if (p->taken > 0)
            out->of[i] = 1 / (1 - p->taken);
    }
}

double blocks_slower(const blocks_slowdown *s, int blocks)
{
    int above = 0;
    while (above < BLOCKS_COUNTS && counts[above] < blocks)
        above++;
    if (above == BLOCKS_COUNTS)
        return s->of[BLOCKS_COUNTS - 1];
    double low = above > 0 ? s->of[above - 1] : 1, from = above > 0 ? counts[above - 1] : 0;
    return low + (blocks - from) / (counts[above] - from) * (s->of[above] - low);
}

/* ---- a communicator ---------------------------------------------------------------------------------------------- */

/* A launch or a wait of one communicator. */
typedef struct event {
    double clock; /* what the rank has computed before it */
    int op;
} event;

typedef struct lane {
    const profile *p;
    const grid *at;
    const program *list;
    const blocks_slowdown *slower;
    event *events; /* [count] in order */
    double *ends;  /* [requests] when the transfer ends */
    int count;
} lane;

/* Seconds that the step takes longer for the communicator's transfers, if it has so many blocks and nothing else
 * travels: it is waited for, and beside it less is computed. */
static double price_of(const lane *l, int blocks)
{
    double late = 0, free_at = 0, busy = 0;
    for (int i = 0; i < l->count; i++) {
        const op *o = l->list->ops[l->events[i].op];
        double now = l->events[i].clock + late, *end = &l->ends[o->at.request];
        if (op_waits(o)) {
            late += *end > now ? *end - now : 0;
            continue;
        }
        bool last = o->at.bundle + 1 >= o->at.bundle_of;
        double seconds = last ? profile_transfer(l->p, l->at, l->list, l->events[i].op, blocks) : 0;
        *end = free_at = (free_at > now ? free_at : now) + seconds;
        busy += seconds;
    }
    double beside = busy > late ? busy - late : 0;
    return late + beside * (1 - 1 / blocks_slower(l->slower, blocks));
}

/* The cheapest number, the least of those that cost the same. */
static int cheapest(const lane *l, int most)
{
    double least = INFINITY;
    int best = most;
    for (int i = 0; i < BLOCKS_COUNTS; i++) {
        int blocks = counts[i] < most ? counts[i] : most;
        double price = price_of(l, blocks);
        if (price < least) {
            least = price;
            best = blocks;
        }
        if (blocks == most)
            break;
    }
    return best;
}

/* ---- messages between stages ------------------------------------------------------------------------------------- */

/* A schedule whose stages are all like the one whose program is known. */
typedef struct chain {
    const profile *p;
    const grid *at;
    const program *list;
    const blocks_slowdown *slower;
    const schedule *schedule;
    simulate_cost *own; /* [chunks of a stage] of an action, alone */
} chain;

/* What the stage computes in an action of each of its chunks. */
static void cost_actions(chain *c)
{
    const int chunks = c->schedule->chunks + c->schedule->shared;
    for (int i = 0; i < c->list->count; i++) {
        const op *o = c->list->ops[i];
        if (o->microbatch < 0 || o->chunk < 0 || o->chunk >= chunks || !computes(o))
            continue;
        simulate_cost *of = &c->own[o->chunk];
        double *sum = o->phase == PHASE_FORWARD ? &of->forward : o->phase == PHASE_WEIGHT ? &of->weight : &of->input;
        *sum += profile_op(c->p, o) / c->schedule->microbatches;
    }
}

static double longest_message(const chain *c, int blocks)
{
    double longest = 0;
    for (int i = 0; i < c->list->count; i++)
        if (op_has(c->list->ops[i], OP_MESSAGE)) {
            double seconds = profile_transfer(c->p, c->at, c->list, i, blocks);
            longest = seconds > longest ? seconds : longest;
        }
    return longest;
}

/* Seconds of the schedule if messages have so many blocks: beside each action waits the receive of the next one. */
static double seconds_of(const chain *c, int blocks)
{
    const schedule *s = c->schedule;
    const double slower = blocks_slower(c->slower, blocks);
    simulate_cost *costs = must_calloc((unsigned long)schedule_all_chunks(s), sizeof *costs);
    for (int stage = 0; stage < s->stages; stage++)
        for (int k = 0; k < s->chunks + s->shared; k++) {
            const simulate_cost *own = &c->own[k];
            costs[schedule_global_chunk(s, stage, k)] =
                (simulate_cost){slower * own->forward, slower * own->input, slower * own->weight};
        }
    simulation sim;
    double seconds = INFINITY;
    if (simulate_run(&sim, s, costs, longest_message(c, blocks), 0) == STATUS_OK) {
        seconds = sim.length;
        simulate_free(&sim);
    }
    free(costs);
    return seconds;
}

static int cheapest_message(chain *c, int most)
{
    enum { LEAST = 2 };
    double least = INFINITY;
    int best = most;
    if (!c->schedule)
        return most;
    c->own = must_calloc((unsigned long)(c->schedule->chunks + c->schedule->shared), sizeof *c->own);
    cost_actions(c);
    for (int blocks = LEAST; blocks <= most; blocks *= 2) {
        double seconds = seconds_of(c, blocks);
        if (seconds < least * (1 - 1e-9)) {
            least = seconds;
            best = blocks;
        }
    }
    free(c->own);
    return best;
}

/* ---- all of a rank ----------------------------------------------------------------------------------------------- */

/* Which row each launch and each wait is of: [ops], -1 of what computes. Returns the number of requests. */
static int find_rows(int *row, const groups *g, const program *list, int me)
{
    int requests = 0;
    for (int i = 0; i < list->count; i++) {
        const op *o = list->ops[i];
        if ((op_waits(o) || op_starts(o)) && o->at.request >= requests)
            requests = o->at.request + 1;
    }
    int *of = must_alloc((unsigned long)(requests + 1) * sizeof *of);
    for (int i = 0; i < requests; i++)
        of[i] = -1;
    for (int i = 0; i < list->count; i++) {
        const op *o = list->ops[i];
        bool travels = op_communicates(o);
        row[i] = travels ? groups_of(g, o, me) : op_waits(o) ? of[o->at.request] : -1;
        if (op_starts(o))
            of[o->at.request] = row[i];
    }
    free(of);
    return requests;
}

static void collect(lane *l, const int *row, const double *clock, int of)
{
    l->count = 0;
    for (int i = 0; i < l->list->count; i++)
        if (row[i] == of)
            l->events[l->count++] = (event){clock[i], i};
}

/* A communicator that serves several rows has the most of theirs, and each of them is told so. */
static void share_blocks(groups *g)
{
    for (int i = 0; i < g->count; i++) {
        comm_use *leader = g->row[i].like < 0 ? NULL : &g->row[g->row[i].like].use;
        if (leader && g->row[i].use.kinds && g->row[i].use.blocks > leader->blocks)
            leader->blocks = g->row[i].use.blocks;
    }
    for (int i = 0; i < g->count; i++)
        if (g->row[i].like >= 0)
            g->row[i].use.blocks = g->row[g->row[i].like].use.blocks;
}

/* Of one row, whose events are collected. */
static int choose_row(const lane *l, const groups_row *r, int *message, chain *c)
{
    if (l->count == 0)
        return 0;
    const int most = comm_blocks_most(&r->use, (int)l->p->blocks);
    if (comm_use_is_message(&r->use))
        return *message ? *message : (*message = cheapest_message(c, most));
    return axis_spans(r->a, GRID_PIPELINE) ? most : cheapest(l, most);
}

void blocks_choose(groups *g, const profile *p, const grid *at, const program *list, const schedule *s,
                   const blocks_slowdown *slower)
{
    if (p->blocks <= 0 || p->host_moves || g->count == 0)
        return;
    blocks_slowdown measured;
    if (!slower)
        blocks_measure(&measured, p, list);
    slower = slower ? slower : &measured;
    const unsigned long ops = (unsigned long)list->count + 1;
    int *row = must_alloc(ops * sizeof *row);
    double *clock = must_alloc(ops * sizeof *clock), now = 0;
    const int requests = find_rows(row, g, list, at->rank);
    for (int i = 0; i < list->count; i++) {
        clock[i] = now;
        now += computes(list->ops[i]) ? profile_op(p, list->ops[i]) : 0;
    }
    int message = 0;
    chain c = {.p = p, .at = at, .list = list, .slower = slower, .schedule = s};
    lane l = {.p = p, .at = at, .list = list, .slower = slower};
    l.events = must_alloc(ops * sizeof *l.events);
    l.ends = must_calloc((unsigned long)requests + 1, sizeof *l.ends);
    for (int i = 0; i < g->count; i++) {
        collect(&l, row, clock, i);
        g->row[i].use.blocks = choose_row(&l, &g->row[i], &message, &c);
    }
    share_blocks(g);
    free(l.ends);
    free(l.events);
    free(clock);
    free(row);
}

int blocks_of(const groups *g, const profile *p, const op *o, int me)
{
    int row = p->blocks > 0 && !p->host_moves ? groups_of(g, o, me) : -1;
    return row >= 0 ? g->row[row].use.blocks : 0;
}
