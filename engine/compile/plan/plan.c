#include "engine/compile/compile_find.h"
#include "engine/compile/plan/plan.h"

#include <stdlib.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/compile.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/model/flops.h"
#include "engine/compile/model/groups.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/time/prices.h"
#include "engine/compile/step/recompute.h"
#include "engine/compile/step/place.h"
#include "kernels/token.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"

void plan_measure(plan_rank *out, const compiled *c)
{
    const grid *g = &c->options.grid;
    *out = (plan_rank){.rank = g->rank,
                       .count = 1,
                       .layers = c->stage_layers,
                       .arena = c->arena_bytes,
                       .pinned = c->pinned_bytes,
                       .offloaded = c->class_bytes[CLASS_HOST],
                       .transient = c->training.transient_bytes,
                       .transient_bound = c->training.lower_bound,
                       .tensors = c->training.tensors,
                       .ops = c->training.list.count,
                       .dropped = c->dropped,
                       .order = c->order,
                       .feedback = storage_feedback_bytes(c),
                       .attention = workspace_taken(c)};
    if (c->decision)
        out->decision = must_strdup(c->decision);
    int64_t widest_bucket = c->training.transient_bytes;
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        if (c->higher[0][i].transient_bytes > widest_bucket) {
            widest_bucket = c->higher[0][i].transient_bytes;
            out->arena_bucket = i + 1;
        }
    RELEASED_BY(groups_free) groups asked = {0};
    groups_find(&asked, c);
    out->communicators = groups_communicators(&asked);
    out->graph_nodes = compile_graph_nodes(c);
    int64_t widest = 0;
    for (int i = 0; i < COMPILE_PROGRAMS; i++) {
        int64_t bound = compile_program_at(c, i)->lower_bound;
        widest = bound > widest ? bound : widest;
    }
    out->lower_bound = c->persistent_bytes + widest;
    for (int i = 0; i < GRID_AXES; i++)
        out->at[i] = g->at[i];
    for (int i = 0; i < CLASS_COUNT; i++)
        out->memory[i] = c->class_bytes[i];
    out->memory[CLASS_KEPT] = c->training.peak_kept;
    out->memory[CLASS_TEMPORARY] = c->training.peak_temporary;
    for (int i = 0; i < PHASE_COUNT; i++)
        out->flops += c->training.flops[i];
    for (int i = 0; i < c->training.list.count; i++) {
        const op *o = c->training.list.ops[i];
        if (!op_communicates(o))
            continue;
        int64_t scratch, bytes, messages;
        collective_measure(&scratch, &bytes, &messages, &c->training.list, i);
        out->sent[o->where.axis] += bytes;
        out->messages[o->where.axis] += messages;
        if (o->where.axis == AXIS_CONTEXT && o->layer >= 0 &&
            token_window(shape_layer(&c->options.shape, o->layer).window, c->options.sequence) > 0)
            out->windowed += bytes;
    }
}

/* ---- which ranks to compile -------------------------------------------------------------------------------------- */

/* `gradient`: index among the ranks that sum gradients. */
static grid at_rank(const grid *g, int stage, int gradient, int tensor_rank)
{
    int at[GRID_AXES] = {[GRID_TENSOR] = tensor_rank, [GRID_PIPELINE] = stage};
    grid first = grid_for_rank(g, grid_rank_at(g, at));
    return grid_for_rank(g, grid_member(&first, AXIS_GRADIENT, gradient));
}

static void measure_loss(plan_rank *out, const compiled *c, const profile *h)
{
    const compile_options *o = &c->options;
    double flops = profile_products(h, precision_compute(o->precision));
    if (!c->last_stage || c->model.vocabulary)
        return;
    int64_t all = tokens_count(o).loss;
    out->loss_tokens = o->loss_tokens < all ? o->loss_tokens : all;
    out->loss_bytes = loss_chunk_bytes(o, out->loss_tokens);
    out->loss_seconds = loss_chunk_seconds(o, out->loss_tokens, flops, h->memory);
    out->loss_seconds_whole = loss_chunk_seconds(o, all, flops, h->memory);
}

/* Facts of one rank; `plays`: it is the one of its stage that is played. */
static status measure_rank(plan *p, const grid *g, bool plays)
{
    compile_options o = p->options;
    o.grid = *g;
    RELEASED_BY(compile_free) compiled c = {0};
    TRY(compile(&c, &o));
    p->ranks = must_realloc(p->ranks, (unsigned long)(p->count + 1) * sizeof *p->ranks);
    plan_rank *r = &p->ranks[p->count++];
    plan_measure(r, &c);
    measure_loss(r, &c, &p->profile);
    r->update = plan_price_update(&p->profile, &c);
    if (plays)
        timing_add(&p->timing, &c.options.grid, &c.training.list, c.training.requests);
    if (plays && p->profile.load > 0) {
        timing_add(&p->even, &c.options.grid, &c.training.list, c.training.requests);
        for (int i = 0; i + 1 < compile_buckets(&c.options) && c.options.higher == HIGHER_WHOLE; i++)
            timing_add(&p->higher[i], &c.options.grid, &c.higher[0][i].list, c.higher[0][i].requests);
    }
    return STATUS_OK;
}

/* The tensor ranks of a stage in groups of equal sizes: leader[t] is the first rank of t's group. */
static status group_tensor(int *leader, const plan *p, int stage)
{
    int ranks = p->options.grid.size[GRID_TENSOR];
    AUTO_FREE compiled *models = must_calloc((unsigned long)ranks, sizeof *models);
    status s = STATUS_OK;
    for (int t = 0; s == STATUS_OK && t < ranks; t++) {
        compile_options o = p->options;
        o.grid = at_rank(&o.grid, stage, 0, t);
        s = compile_model(&models[t], &o);
        leader[t] = t;
        for (int k = 0; s == STATUS_OK && k < t; k++)
            if (leader[k] == k && compile_same_sizes(&models[k], &models[t])) {
                leader[t] = k;
                break;
            }
    }
    for (int t = 0; t < ranks; t++)
        compile_free(&models[t]);
    return s;
}

static status measure_group(plan *p, int stage, int first, int members)
{
    compile_options o = p->options;
    o.grid = at_rank(&o.grid, stage, 0, first);
    RELEASED_BY(compile_free) compiled c = {0};
    int64_t spread;
    TRY(compile_model(&c, &o));
    int owner = compile_largest_owner(&c, &spread);
    o.grid = at_rank(&o.grid, stage, owner, first);
    TRY(measure_rank(p, &o.grid, first == 0));
    plan_rank *r = &p->ranks[p->count - 1];
    r->count = members * grid_group_size(&o.grid, AXIS_GRADIENT);
    r->spread = spread;
    return STATUS_OK;
}

static status measure_stage(plan *p, int stage)
{
    int ranks = p->options.grid.size[GRID_TENSOR];
    AUTO_FREE int *leader = must_alloc((unsigned long)ranks * sizeof *leader);
    TRY(group_tensor(leader, p, stage));
    for (int t = 0; t < ranks; t++) {
        int members = 0;
        for (int k = 0; k < ranks; k++)
            members += leader[k] == t;
        if (members > 0)
            TRY(measure_group(p, stage, t, members));
    }
    return STATUS_OK;
}

static status measure_all(plan *p, bool every)
{
    const grid *g = &p->options.grid;
    if (!every) {
        for (int stage = 0; stage < g->size[GRID_PIPELINE]; stage++)
            TRY(measure_stage(p, stage));
        return STATUS_OK;
    }
    for (int rank = 0; rank < g->ranks; rank++) {
        grid mine = grid_for_rank(g, rank);
        TRY(measure_rank(p, &mine, grid_is_first(&mine, AXIS_PIPELINE)));
    }
    return STATUS_OK;
}

/* ---- time -------------------------------------------------------------------------------------------------------- */

static status time_loaded(plan *p)
{
    p->bucket_seconds[0] = p->even_seconds = p->timing.seconds;
    if (p->profile.load <= 0)
        return STATUS_OK;
    TRY(timing_run(&p->even));
    p->even_seconds = p->even.seconds;
    for (int i = 0; i < CAPACITY_BUCKETS - 1 && p->higher[i].ranks[0].ops; i++) {
        TRY(timing_run(&p->higher[i]));
        p->bucket_seconds[i + 1] = p->higher[i].seconds;
    }
    return STATUS_OK;
}

static status time_step(plan *p)
{
    TRY(timing_run(&p->timing));
    TRY(time_loaded(p));
    TRY(timing_spans(&p->spans, &p->timing, p->schedule));
    for (int i = 0; i < p->count; i++)
        p->ranks[i].in_flight = p->spans.stages[p->ranks[i].at[GRID_PIPELINE]].in_flight;
    p->step_seconds = p->timing.seconds;
    p->mfu =
        target_mfu(p->flops_per_token, (double)p->tokens_per_step, p->step_seconds, p->peak, p->options.grid.ranks);
    return STATUS_OK;
}

/* ---- the price of other choices ---------------------------------------------------------------------------------- */

/* Returns the bytes that replicas exchange: weights and gradients. */
static int64_t sent_to_replicas(const plan_rank *r)
{
    int64_t bytes = 0;
    for (int a = 0; a < AXIS_COUNT; a++)
        bytes += axis_rows[a].gradients == AXIS_SUMS_REPLICAS ? r->sent[a] : 0;
    return bytes;
}

static status price_choice(plan *p, const plan_rank *of, bool gather_each, bool reduce_each)
{
    compile_options o = p->options;
    o.grid = grid_for_rank(&o.grid, of->rank);
    o.layout.zero_gather = gather_each;
    o.layout.zero_reduce = reduce_each;
    plan_choice *choice = &p->choices[p->choice_count++];
    *choice = (plan_choice){.gather_each = gather_each, .reduce_each = reduce_each, .arena = of->arena};
    choice->sent = sent_to_replicas(of);
    choice->chosen = (!storage_divides(&o, CLASS_WEIGHT) || gather_each == p->options.layout.zero_gather) &&
                     reduce_each == p->options.layout.zero_reduce;
    if (choice->chosen)
        return STATUS_OK;
    RELEASED_BY(compile_free) compiled c = {0};
    status s = compile(&c, &o);
    if (s == STATUS_OK) {
        plan_rank facts;
        plan_measure(&facts, &c);
        choice->arena = facts.arena;
        choice->sent = sent_to_replicas(&facts);
        free(facts.decision);
    }
    if (s == STATUS_USAGE && o.budget) { /* it does not fit: worth knowing, not a failure */
        choice->arena = -1;
        choice->sent = 0;
        return STATUS_OK;
    }
    return s;
}

static status price_choices(plan *p)
{
    bool gathers = storage_divides(&p->options, CLASS_WEIGHT);
    if (!storage_divides(&p->options, CLASS_GRADIENT))
        return STATUS_OK;
    const plan_rank *largest = &p->ranks[0];
    for (int i = 1; i < p->count; i++)
        if (p->ranks[i].arena > largest->arena)
            largest = &p->ranks[i];
    for (int gather = 0; gather <= gathers; gather++)
        for (int reduce = 0; reduce < 2; reduce++)
            TRY(price_choice(p, largest, gathers ? gather : (int)p->options.layout.zero_gather, reduce));
    return STATUS_OK;
}

/* ---- the price of the order -------------------------------------------------------------------------------------- */

/* Prices the program in order and as lowered, both before attention is given the free memory. */
static status price_order(plan_rank *r, const plan *p)
{
    compile_options o = p->options;
    o.grid = grid_for_rank(&o.grid, r->rank);
    o.loss_tokens = r->loss_tokens; /* keep the decision */
    RELEASED_BY(compile_free) compiled c = {0};
    RELEASED_BY(recompute_decision_free) recompute_decision d = {0};
    int64_t bound[2];
    TRY(compile_model(&c, &o));
    TRY(recompute_decide(&d, &c, 0, false));
    for (int lowered = 0; lowered < 2; lowered++) {
        RELEASED_BY(compile_program_free) compiled_program tried = {0};
        d.keep.order = lowered ? ORDER_AS_LOWERED : d.keep.order;
        TRY(compile_program_training(&tried, &c, &d.keep, o.microbatches, true));
        bound[lowered] = tried.lower_bound;
    }
    r->order_bytes = bound[0] - bound[1];
    return STATUS_OK;
}

status plan_price_order(plan *p)
{
    for (int i = 0; i < p->count; i++) {
        plan_rank *r = &p->ranks[i];
        if (r->order == ORDER_AS_LOWERED || p->options.grid.ranks == 1) /* one rank alone sends no messages */
            continue;
        if (i > 0 && r[-1].at[GRID_PIPELINE] == r->at[GRID_PIPELINE])
            r->order_bytes = r[-1].order_bytes;
        else
            TRY(price_order(r, p));
    }
    return STATUS_OK;
}

/* ------------------------------------------------------------------------------------------------------------------ */

static void free_ranks(plan *p)
{
    for (int i = 0; i < p->count; i++)
        free(p->ranks[i].decision);
    free(p->ranks);
    p->ranks = NULL;
    p->count = 0;
}

/* All ranks have them, and all that is tried for a budget: they are made once. */
static status share_schedules(plan *out)
{
    compile_options *o = &out->options;
    int few = recompute_microbatches(o);
    o->found = out->schedule;
    if (few == o->microbatches)
        return STATUS_OK;
    TRY(compile_schedule(&out->few, o, few));
    o->few = &out->few;
    return STATUS_OK;
}

status plan_make_step(plan *out, const compile_options *options, const profile *prices, bool every)
{
    *out = (plan){.options = *options, .profile = *prices};
    out->profile.threads = options->threads;
    profile_plan_for(&out->options, &out->profile);
    transfer_choose(&out->options, out->profile.device);
    out->peak = out->profile.peak[target_peak(options)];
    if (prices->as_lowered)
        out->options.order = ORDER_AS_LOWERED;
    const model_shape *shape = &options->shape;
    model_shape unbounded = *shape;
    unbounded.sliding_window = 0;
    out->parameters = parts_parameters(shape);
    out->active = parts_active_parameters(shape);
    out->flops_per_token = flops_per_token(shape, options->sequence);
    /* a causal mean of n keys is that of a sequence of 2n - 1 */
    out->flops_per_token_full = flops_per_token(&unbounded, 2 * options->sequence - 1);
    const grid *g = &options->grid;
    out->tokens_per_step = tokens_count(options).micro_batch * options->microbatches * grid_group_size(g, AXIS_SAMPLES);
    int stages = g->size[GRID_PIPELINE];
    out->schedule = must_calloc(1, sizeof *out->schedule);
    if (compile_schedule_kind(options) == SCHEDULE_AUTO && !options->found) {
        TRY(compile_find(&out->found, options));
        out->options.found = &out->found;
    }
    TRY(compile_schedule(out->schedule, &out->options, options->microbatches));
    if (compile_divides_vocabulary(options))
        TRY(share_schedules(out));
    timing_open(&out->timing, &out->profile, stages);
    out->even_prices = out->profile;
    out->even_prices.load = 0;
    timing_open(&out->even, &out->even_prices, stages);
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        timing_open(&out->higher[i], &out->profile, stages);
    status s = measure_all(out, every);
    return s == STATUS_OK ? time_step(out) : s;
}

status plan_make(plan *out, const compile_options *options, const profile *prices, bool every, int only)
{
    TRY(plan_make_step(out, options, prices, every));
    TRY(price_choices(out));
    if (only < 0)
        return STATUS_OK;
    grid g = grid_for_rank(&out->options.grid, only);
    free_ranks(out);
    TRY(measure_rank(out, &g, false));
    out->ranks[0].in_flight = out->spans.stages[g.at[GRID_PIPELINE]].in_flight;
    return STATUS_OK;
}

int64_t plan_rank_beside(const plan_rank *k, const reserve *r)
{
    return reserve_bytes(r, k->communicators, k->graph_nodes);
}

static int64_t plan_rank_bytes(const plan_rank *k, const reserve *r)
{
    return k->arena + plan_rank_beside(k, r);
}

const plan_rank *plan_neediest(const plan *p)
{
    const plan_rank *most = &p->ranks[0];
    const reserve *r = p->profile.reserve;
    for (int i = 1; i < p->count; i++)
        if (plan_rank_bytes(&p->ranks[i], r) > plan_rank_bytes(most, r))
            most = &p->ranks[i];
    return most;
}

bool plan_fits(const plan *p)
{
    const plan_rank *most = plan_neediest(p);
    return p->profile.capacity <= 0 || plan_rank_bytes(most, p->profile.reserve) <= p->profile.capacity;
}

void plan_free(plan *p)
{
    timing_free(&p->timing);
    timing_free(&p->even);
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        timing_free(&p->higher[i]);
    simulate_free(&p->spans);
    if (p->schedule)
        schedule_free(p->schedule);
    free(p->schedule);
    schedule_free(&p->found);
    schedule_free(&p->few);
    free_ranks(p);
    *p = (plan){0};
}
