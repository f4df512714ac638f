/* Replays a schedule event by event, as simulate.h promises. */
#include "parallel/schedule/simulate.h"

#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/exchange.h"

/* The times of results at the stages that make them; negative: not yet. */
typedef struct replay {
    const schedule *s;
    const simulate_cost *costs;
    double hop;
    double *forward, *cotangent; /* [all chunks][microbatches] */
    int *done;                   /* [stages] */
    double *free_at;             /* [stages] */
} replay;

static double *entry(const replay *r, double *table, int global_chunk, int microbatch)
{
    return &table[(long)global_chunk * r->s->microbatches + microbatch];
}

static double length_of(const replay *r, int stage, action a)
{
    const simulate_cost *c = &r->costs[schedule_global_chunk(r->s, stage, a.chunk)];
    const double lengths[ACTION_KINDS] = {[ACTION_FORWARD] = c->forward,
                                          [ACTION_BACKWARD] = c->input + c->weight,
                                          [ACTION_BACKWARD_INPUT] = c->input,
                                          [ACTION_BACKWARD_WEIGHT] = c->weight};
    return lengths[a.kind];
}

/* Returns the time when the inputs of the stage's next action are ready; negative if not known yet. */
static double ready_at(const replay *r, int stage, action a)
{
    int g = schedule_global_chunk(r->s, stage, a.chunk);
    if (a.kind == ACTION_BACKWARD_WEIGHT)
        return *entry(r, r->cotangent, g, a.microbatch);
    if (a.kind != ACTION_FORWARD && *entry(r, r->forward, g, a.microbatch) < 0)
        return -1;
    exchange_makers m = exchange_makers_of(r->s, stage, a);
    double latest = 0;
    for (int i = 0; i < m.count; i++) {
        double made = *entry(r, m.forward ? r->forward : r->cotangent, m.first + i, a.microbatch);
        bool travels = exchange_meets(exchange_taken(r->s, stage, a)) || schedule_stage_of(r->s, m.first) != stage;
        if (made < 0)
            return -1;
        made += travels ? r->hop : 0;
        latest = made > latest ? made : latest;
    }
    return latest;
}

/* Performs the stage's next action if its inputs are known. */
static bool advance_stage(replay *r, simulation *out, int stage)
{
    const schedule *s = r->s;
    int i = r->done[stage];
    if (i == s->counts[stage])
        return false;
    action a = s->actions[stage][i];
    double start = ready_at(r, stage, a);
    if (start < 0)
        return false;
    start = start > r->free_at[stage] ? start : r->free_at[stage];
    double end = start + length_of(r, stage, a);
    int g = schedule_global_chunk(s, stage, a.chunk);
    if (a.kind == ACTION_FORWARD)
        *entry(r, r->forward, g, a.microbatch) = end;
    else if (a.kind != ACTION_BACKWARD_WEIGHT)
        *entry(r, r->cotangent, g, a.microbatch) = end;
    out->spans[stage][i] = (simulate_span){start, end};
    out->stages[stage].busy += end - start;
    bool layers = a.chunk < s->chunks;
    if (layers && end > start && (out->shortest <= 0 || end - start < out->shortest))
        out->shortest = end - start;
    r->free_at[stage] = end;
    r->done[stage]++;
    return true;
}

/* Measures in list order, which is time order because a stage's actions do not overlap. */
static void measure_memory(simulate_stage *out, const schedule *s, int stage, double weight_share)
{
    int in_flight = 0, deferred = 0;
    for (int i = 0; i < s->counts[stage]; i++) {
        int kind = s->actions[stage][i].kind;
        if (s->actions[stage][i].chunk >= s->chunks)
            continue; /* held only for a moment */
        in_flight += kind == ACTION_FORWARD;
        double peak = (in_flight + weight_share * deferred) / s->chunks;
        if (in_flight > out->in_flight)
            out->in_flight = in_flight;
        if (peak > out->peak) {
            out->peak = peak;
            out->deferred = deferred;
        }
        in_flight -= kind == ACTION_BACKWARD || kind == ACTION_BACKWARD_INPUT;
        deferred += (kind == ACTION_BACKWARD_INPUT) - (kind == ACTION_BACKWARD_WEIGHT);
    }
}

static status run_all(replay *r, simulation *out)
{
    const schedule *s = r->s;
    for (bool moved = true; moved;) {
        moved = false;
        for (int stage = 0; stage < s->stages; stage++)
            while (advance_stage(r, out, stage))
                moved = true;
    }
    for (int stage = 0; stage < s->stages; stage++) {
        if (r->done[stage] < s->counts[stage]) {
            char text[SCHEDULE_DESCRIPTION_BYTES];
            return status_fail(STATUS_FAILED, "stage %d, position %d, %s: it waits for ever", stage, r->done[stage],
                               schedule_describe(text, s->actions[stage][r->done[stage]]));
        }
        double span = s->counts[stage] ? r->free_at[stage] - out->spans[stage][0].start : 0;
        out->span = span > out->span ? span : out->span;
        if (r->free_at[stage] > out->length)
            out->length = r->free_at[stage];
    }
    return STATUS_OK;
}

status simulate_run(simulation *out, const schedule *s, const simulate_cost *costs, double hop, double weight_share)
{
    long pairs = (long)schedule_all_chunks(s) * s->microbatches;
    AUTO_FREE double *forward = must_alloc(sizeof *forward * pairs);
    AUTO_FREE double *cotangent = must_alloc(sizeof *cotangent * pairs);
    AUTO_FREE int *done = must_calloc(s->stages, sizeof *done);
    AUTO_FREE double *free_at = must_calloc(s->stages, sizeof *free_at);
    replay r = {s, costs, hop, forward, cotangent, done, free_at};
    for (long i = 0; i < pairs; i++)
        forward[i] = cotangent[i] = -1;

    RELEASED_BY(simulate_free) simulation sim = {.schedule = s};
    sim.stages = must_calloc(s->stages, sizeof *sim.stages);
    sim.spans = must_calloc(s->stages, sizeof *sim.spans);
    for (int stage = 0; stage < s->stages; stage++)
        sim.spans[stage] = must_calloc(s->counts[stage] + 1, sizeof **sim.spans);
    TRY(run_all(&r, &sim));
    double idle = 0;
    for (int stage = 0; stage < s->stages; stage++) {
        simulate_stage *st = &sim.stages[stage];
        st->idle = sim.length - st->busy;
        st->bubble = sim.length > 0 ? st->idle / sim.length : 0;
        idle += st->idle;
        measure_memory(st, s, stage, weight_share);
    }
    sim.bubble = sim.length > 0 ? idle / (s->stages * sim.length) : 0;
    *out = sim;
    sim = (simulation){0};
    return STATUS_OK;
}

status simulate_uniform(simulation *out, const schedule *s, simulate_cost cost, double hop, double weight_share)
{
    int n = schedule_all_chunks(s);
    AUTO_FREE simulate_cost *costs = must_alloc(sizeof *costs * n);
    for (int i = 0; i < n; i++)
        costs[i] = cost;
    return simulate_run(out, s, costs, hop, weight_share);
}

void simulate_free(simulation *sim)
{
    if (!sim)
        return;
    for (int stage = 0; sim->spans && stage < sim->schedule->stages; stage++)
        free(sim->spans[stage]);
    free(sim->spans);
    free(sim->stages);
    *sim = (simulation){0};
}
