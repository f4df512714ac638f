#include "engine/compile/compile_find.h"

#include <stdlib.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/time/prices.h"
#include "engine/compile/time/timing.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"

/* Maps of chunks: round-robin, and folded. */
enum { MAPS = 2 };

typedef struct find {
    const compile_options *o;
    const profile *prices;
    recompute how;          /* recomputed activations */
    int stages, all;        /* all chunks, including a divided vocabulary's */
    simulate_cost *costs;   /* [all], by global chunk */
    double *holds, *defers; /* [all], by global chunk */
    double hop;
    double *fixed[MAPS]; /* [stages] bytes of a stage's arena beyond its actions' activations */
    double *limit[MAPS];
} find;

/* Counts a tensor of micro-batch 0 that op `i` writes: its last reader tells how long it is held. */
static void count_tensor(double *holds, double *defers, const program *p, int i, const tensor *t)
{
    const op *writer = p->ops[i], *reader = p->ops[t->last];
    if (reader->microbatch != 0 || reader->chunk < 0)
        return;
    double bytes = (double)tensor_bytes(t);
    if (writer->phase == PHASE_FORWARD && (reader->phase == PHASE_BACKWARD || reader->phase == PHASE_WEIGHT))
        holds[reader->chunk] += bytes;
    if (writer->phase != PHASE_WEIGHT && reader->phase == PHASE_WEIGHT)
        defers[reader->chunk] += bytes;
}

/* Returns the storage that begins with output k of op `i`; NULL: none, or an earlier output is in the same. Rows of a
 * tensor do not count: only the loss writes by rows, which die with its chunk of tokens. */
static const tensor *begins_with(const program *p, int i, int k)
{
    const tensor *t = p->ops[i]->out[k], *s = compiled_holder(t);
    if (s && s != t && t->shape[t->dims - 1] == s->shape[s->dims - 1])
        return NULL;
    for (int j = 0; j < k; j++)
        if (compiled_holder(p->ops[i]->out[j]) == s)
            return NULL;
    return s && !tensor_persistent(s) && s->first == i ? s : NULL;
}

/* Reads the stage's costs and activations of actions, and its fixed bytes. */
static void read_stage(find *f, const compiled *c, const schedule *s, bool folded)
{
    int stage = c->options.grid.at[GRID_PIPELINE], chunks = unroll_bodies(c);
    AUTO_FREE double *own = must_calloc(2 * (unsigned long)chunks, sizeof *own);
    AUTO_FREE double *peaks = must_alloc(sizeof *peaks * (unsigned long)f->stages);
    AUTO_FREE simulate_cost *costs = must_alloc(sizeof *costs * (unsigned long)chunks);
    const program *p = &c->training.list;
    plan_price_chunks(costs, f->prices, c);
    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < OP_MAX_OUT && p->ops[i]->microbatch == 0; k++) {
            const tensor *t = begins_with(p, i, k);
            if (t)
                count_tensor(own, own + chunks, p, i, t);
        }
    for (int k = 0; k < chunks; k++) {
        int g = schedule_global_chunk(s, stage, k);
        f->costs[g] = costs[k];
        f->defers[g] = own[chunks + k];
        f->holds[g] = own[k] > own[chunks + k] ? own[k] : own[chunks + k];
    }
    double hop = plan_price_hop(f->prices, c);
    f->hop = hop > f->hop ? hop : f->hop;
    schedule_search_peaks(peaks, s, f->holds, f->defers);
    f->fixed[folded][stage] = (double)(c->persistent_bytes + c->training.lower_bound) - peaks[stage];
}

/* Compiles a stage's program with `s`, a found schedule, or the reference of the name `kind`: lifetimes, no addresses.
 * `out` must be freed either way. */
static status compile_stage(compiled *out, const find *f, const schedule *s, schedule_kind kind, int stage,
                            compile_order order)
{
    compile_options o = *f->o;
    int at[GRID_AXES] = {[GRID_PIPELINE] = stage};
    o.grid = grid_for_rank(&o.grid, grid_rank_at(&o.grid, at));
    o.layout.schedule = kind;
    o.found = kind == SCHEDULE_AUTO ? s : o.found;
    o.microbatches = s->microbatches;
    compile_keep keep = {.how = f->how, .order = order};
    TRY(compile_model(out, &o));
    return compile_program_training(&out->training, out, &keep, o.microbatches, true);
}

/* Measures a schedule with separate weights' gradients, by programs with enough micro-batches to reach its peak. */
static status measure_split(find *f, bool folded)
{
    schedule_kind kind = folded ? SCHEDULE_ZB_V : SCHEDULE_ZB_H1;
    int enough = 4 * f->stages;
    RELEASED_BY(schedule_free) schedule s = {0};
    f->fixed[folded] = must_calloc((unsigned long)f->stages, sizeof(double));
    f->limit[folded] = must_calloc((unsigned long)f->stages, sizeof(double));
    TRY(compile_schedule_named(&s, f->o, kind, enough < f->o->microbatches ? enough : f->o->microbatches));
    for (int stage = 0; stage < f->stages; stage++) {
        RELEASED_BY(compile_free) compiled c = {0};
        TRY(compile_stage(&c, f, &s, kind, stage, ORDER_AS_LOWERED));
        read_stage(f, &c, &s, folded);
    }
    return STATUS_OK;
}

/* Bytes of the neediest stage. */
static status measure_bytes(double *most, const find *f, const schedule *s)
{
    *most = 0;
    for (int stage = 0; stage < f->stages; stage++) {
        RELEASED_BY(compile_free) compiled c = {0};
        TRY(compile_stage(&c, f, s, SCHEDULE_AUTO, stage, ORDER_AS_LOWERED));
        double bytes = (double)(c.persistent_bytes + c.training.lower_bound);
        *most = bytes > *most ? bytes : *most;
    }
    return STATUS_OK;
}

/* Seconds of the step, played: includes busy links, the update, and transfers beside it. */
static status measure_seconds(double *out, const find *f, const schedule *s)
{
    RELEASED_BY(timing_free) timing p = {0};
    timing_open(&p, f->prices, f->stages);
    for (int stage = 0; stage < f->stages; stage++) {
        RELEASED_BY(compile_free) compiled c = {0};
        TRY(compile_stage(&c, f, s, SCHEDULE_AUTO, stage, f->o->order));
        timing_add(&p, &c.options.grid, &c.training.list, c.training.requests);
    }
    TRY(timing_run(&p));
    *out = p.seconds;
    return STATUS_OK;
}

/* Keeps the better of two in `out`, the first on a tie; `other` becomes the worse. `seconds` are the first's. */
static status keep_better(schedule *out, double *seconds, const find *f, schedule *other)
{
    double its;
    TRY(measure_seconds(&its, f, other));
    if (its < *seconds * (1 - 1e-9)) {
        schedule before = *out;
        *out = *other;
        *other = before;
        *seconds = its;
    }
    return STATUS_OK;
}

/* Replaces `out`, which is 1F1B, by a named schedule that is shorter and fits. */
static status try_named(schedule *out, double *seconds, const find *f, double room)
{
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++) {
        int needed = schedule_kind_chunks((schedule_kind)kind);
        RELEASED_BY(schedule_free) schedule s = {0};
        double bytes;
        if ((needed && needed != f->o->layout.virtual_stages) || kind == SCHEDULE_1F1B || kind == SCHEDULE_INTERLEAVED)
            continue; /* the last two are `out`'s names */
        TRY(compile_schedule_named(&s, f->o, (schedule_kind)kind, f->o->microbatches));
        TRY(measure_bytes(&bytes, f, &s));
        if (bytes <= room)
            TRY(keep_better(out, seconds, f, &s));
    }
    return STATUS_OK;
}

/* The search only knows layers: each of its chunks does an even share of its stage's work for a divided vocabulary,
 * which is then inserted into the found schedule. Returns the search's costs. */
static simulate_cost *layer_costs(const find *f)
{
    int chunks = f->o->layout.virtual_stages, layers = f->stages * chunks;
    simulate_cost *costs = must_alloc(sizeof *costs * (unsigned long)layers);
    for (int g = 0; g < layers; g++) {
        costs[g] = f->costs[g];
        for (int i = layers + g % f->stages; i < f->all; i += f->stages) {
            costs[g].forward += f->costs[i].forward / chunks;
            costs[g].input += f->costs[i].input / chunks;
            costs[g].weight += f->costs[i].weight / chunks;
        }
    }
    return costs;
}

static status search_layers(schedule *out, const find *f, double hop)
{
    AUTO_FREE simulate_cost *costs = layer_costs(f);
    status ok = schedule_search(out, &(schedule_search_terms){.stages = f->stages,
                                                              .chunks = f->o->layout.virtual_stages,
                                                              .microbatches = f->o->microbatches,
                                                              .costs = costs,
                                                              .hop = hop,
                                                              .holds = f->holds,
                                                              .defers = f->defers,
                                                              .limit = {f->limit[0], f->limit[1]},
                                                              .barrier = true});
    if (ok == STATUS_OK && compile_divides_vocabulary(f->o))
        compile_schedule_share(out, f->o, f->costs, hop);
    return ok;
}

/* Searches with ever less memory until the found schedule really fits; *fits is false if none did. */
static status search_within(bool *fits, schedule *out, find *f, double hop, double room)
{
    enum { TRIES = 3 };
    double told = room, bytes;
    *fits = false;
    for (int i = 0; i < TRIES && !*fits; i++) {
        for (int map = 0; map < MAPS; map++)
            for (int stage = 0; f->fixed[map] && stage < f->stages; stage++)
                f->limit[map][stage] = told - f->fixed[map][stage];
        status ok = search_layers(out, f, hop);
        if (ok != STATUS_OK)
            return STATUS_OK;
        ok = measure_bytes(&bytes, f, out);
        *fits = ok == STATUS_OK && bytes <= room;
        if (!*fits)
            schedule_free(out);
        TRY(ok);
        told -= 1.1 * (bytes - room);
    }
    return STATUS_OK;
}

/* Returns the memory that a schedule may take; 0: only 1F1B, which is `s`, may fit. If not even 1F1B fits the budget,
 * activations are recomputed, selectively or all, and the room is then 1F1B's: found schedules recompute no more than
 * that. */
static status find_room(double *room, find *f, const schedule *s)
{
    double bytes, budget = (double)f->o->budget;
    for (f->how = f->o->recompute; f->how <= RECOMPUTE_FULL; f->how++) {
        TRY(measure_bytes(&bytes, f, s));
        *room = budget > 0 && f->how == f->o->recompute ? budget : bytes;
        if (budget <= 0 || bytes <= budget)
            return STATUS_OK;
    }
    *room = 0;
    return STATUS_OK;
}

/* Improves `out`, which is 1F1B, unless no shorter schedule fits. */
static status improve_schedule(schedule *out, find *f)
{
    double room, seconds;
    TRY(find_room(&room, f, out));
    if (room <= 0)
        return STATUS_OK;
    TRY(measure_split(f, false));
    if (f->o->layout.virtual_stages == 2)
        TRY(measure_split(f, true));
    TRY(measure_seconds(&seconds, f, out));
    TRY(try_named(out, &seconds, f, room));
    /* Searches with the real time of messages, and with none: a link carries one at a time, which the search does not
     * know, and where links are the slowest, going far ahead of them is no help. Plays both. */
    const double hops[] = {f->hop, 0};
    for (unsigned i = 0; i < sizeof hops / sizeof *hops; i++) {
        RELEASED_BY(schedule_free) schedule found = {0};
        bool fits;
        TRY(search_within(&fits, &found, f, hops[i], room));
        if (fits)
            TRY(keep_better(out, &seconds, f, &found));
    }
    return STATUS_OK;
}

const char *compile_find_prices(const compile_options *o)
{
    return o->layout.schedule_for ? o->layout.schedule_for : DEVICES_ASSUMED;
}

status compile_find(schedule *out, const compile_options *options)
{
    profile prices;
    TRY(profile_open(&prices, compile_find_prices(options)));
    compile_options o = *options;
    o.order = prices.as_lowered ? ORDER_AS_LOWERED : o.order;
    profile_plan_for(&o, &prices);
    find f = {.o = &o, .prices = &prices, .stages = o.grid.size[GRID_PIPELINE]};
    f.all = f.stages * (o.layout.virtual_stages + (compile_divides_vocabulary(&o) ? SCHEDULE_SHARED : 0));
    f.costs = must_calloc((unsigned long)f.all, sizeof *f.costs);
    f.holds = must_calloc((unsigned long)f.all, sizeof *f.holds);
    f.defers = must_calloc((unsigned long)f.all, sizeof *f.defers);
    status ok = compile_schedule_named(out, &o, SCHEDULE_1F1B, o.microbatches);
    if (ok == STATUS_OK && (ok = improve_schedule(out, &f)) != STATUS_OK)
        schedule_free(out);
    for (int map = 0; map < MAPS; map++) {
        free(f.fixed[map]);
        free(f.limit[map]);
    }
    free(f.costs);
    free(f.holds);
    free(f.defers);
    profile_free(&prices);
    return ok;
}
