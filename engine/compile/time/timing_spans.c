/* What was played, op by op and action by action. */
#include "engine/compile/time/timing.h"
#include "engine/compile/time/timing_internal.h"

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

static bool belongs(const timing_op *e, action a)
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
        while (at < r->count && !belongs(&r->ops[at], a))
            at++;
        simulate_span *span = &out->spans[stage][k];
        *span = (simulate_span){at > 0 && at <= r->count ? r->ops[at - 1].end : 0, 0};
        for (; at < r->count && (belongs(&r->ops[at], a) || r->ops[at].does != COMPUTES); at++)
            if (belongs(&r->ops[at], a))
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
    TRY(simulate_uniform(out, s, (simulate_cost){1, 1, 1}, 0, 0)); /* what is in flight does not depend on times */
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
