/* Chooses what to recompute so that a step fits `memory.budget`. The forward ops of a layer fall into classes by site
 * ("mlp/swiglu"); classes are ordered by the price of recomputing their outputs for each byte that it saves, given the
 * classes before them in the order: dropping one tensor can keep another alive. The order, taken layer by layer, gives
 * a chain of ever smaller and slower programs. The first one that fits is found by bisection over the lower bound, then
 * placed to make sure. All ranks of a stage must decide the same, without asking each other: each decides for the rank
 * of the stage that needs most, tensor rank 0 and the data rank that owns most. */
#include "engine/compile/step/recompute.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/step/update.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/units.h"

/* Tolerance between placements of almost the same program. */
static const double MARGIN = 1.02;

typedef struct class
{
    const char *name; /* site of its ops */
    int nth;          /* among the layer's ops of that site */
    int members;
    bool taken;
} class;

typedef struct entry {
    int chunk, index, class; /* identifies a chunk's forward op */
} entry;

typedef struct search {
    const compiled *c;
    compile_order order;
    int bucket;
    bool entire;            /* place programs of all micro-batches, not of recompute_microbatches() */
    compiled_program begin; /* begins every tried program: the weights that bodies read */
    tensor *const *whole;
    pool words;     /* the classes' names */
    uint8_t **drop; /* [chunks][ops] */
    class *classes;
    entry *entries; /* once ordered: the order of dropping */
    int class_count, entry_count;
    bool ordered;
} search;

typedef struct measured {
    int64_t kept;
    double price; /* price of the backward pass */
} measured;

/* ---- trying ------------------------------------------------------------------------------------------------------ */

/* Returns an op's price in FLOPs: a byte that it moves or sends counts as the FLOPs that take as long. */
static double price_of(const compile_options *options, const program *p, int index)
{
    const op *o = p->ops[index];
    op_cost cost = op_row_of(o)->cost(o);
    double price = cost.flops + target_balance(options) * cost.bytes;
    if (op_communicates(o) && o->where.group_size > 1) {
        int64_t scratch, bytes, messages;
        collective_measure(&scratch, &bytes, &messages, p, index);
        price += devices_balance_sent(target_device(options), target_peak(options)) * (double)bytes;
    }
    return price;
}

double recompute_price(const compiled *c, const program *p)
{
    double price = 0;
    for (int i = 0; i < p->count; i++)
        if (!op_waits(p->ops[i]))
            price += price_of(&c->options, p, i);
    return price;
}

/* How many operands each tensor of a body is, by id. */
static int *count_reads(const recorded *body)
{
    int *reads = must_calloc((unsigned long)body->r.tensor_count + 1, sizeof *reads);
    for (int p = 0; p < PHASE_COUNT; p++)
        for (int i = 0; i < body->r.body[p].count; i++)
            for (int k = 0; k < OP_MAX_IN; k++) {
                const tensor *t = body->r.body[p].ops[i]->in[k];
                if (t && t->id >= 0)
                    reads[t->id]++;
            }
    return reads;
}

/* Returns the tensor that will hold the bytes of `t`: an output that may be made in columns read only by its op shares
 * their base's bytes. */
static const tensor *storage_of(const int *reads, const tensor *t)
{
    const op *o = t->producer;
    for (int j = 0; o && j < OP_MAX_OUT; j++)
        for (int k = 0; o->out[j] == t && k < OP_MAX_IN; k++) {
            const tensor *x = op_row_of(o)->takes[j] >> k & 1 ? o->in[k] : NULL;
            if (x && x->base && x->base->id >= 0 && reads[x->id] == 1 && reads[x->base->id] == 0)
                return x->base;
        }
    return t;
}

static int64_t kept_bytes(const recorded *body)
{
    int64_t kept = 0;
    AUTO_FREE int *reads = count_reads(body);
    AUTO_FREE bool *seen = must_calloc((unsigned long)body->r.tensor_count + 1, sizeof *seen);
    for (int i = 0; i < body->r.tensor_count; i++) {
        const tensor *t = body->r.tensors[i], *s = t->base ? NULL : storage_of(reads, t);
        if (t->class != CLASS_KEPT || !s || seen[s->id])
            continue;
        seen[s->id] = true;
        kept += tensor_bytes(s);
    }
    return kept;
}

static void record_chunk(recorded *out, pool *p, const search *d, int chunk, recompute how)
{
    const compile_options *o = &d->c->options;
    const schedule_kind kind = compile_schedule_kind(o);
    unroll_record(
        out, p, d->c,
        &(unroll_what){.chunk = chunk,
                       .training = true,
                       .split = kind == SCHEDULE_AUTO ? schedule_splits(o->found) : schedule_kind_splits(kind),
                       .recompute = how,
                       .drop = d->drop[chunk],
                       .whole = d->whole});
}

static measured measure_drops(const search *d)
{
    measured m = {0};
    pool p = {0};
    for (int i = 0; i < d->c->options.layout.virtual_stages; i++) {
        recorded body;
        record_chunk(&body, &p, d, i, RECOMPUTE_CHOSEN);
        m.kept += kept_bytes(&body);
        for (int k = PHASE_BACKWARD; k <= PHASE_WEIGHT; k++)
            for (int j = 0; j < body.r.body[k].count; j++)
                m.price += price_of(&d->c->options, &body.r.body[k], j);
        unroll_recorded_free(&body);
    }
    pool_free(&p);
    return m;
}

int recompute_microbatches(const compile_options *o)
{
    int stages = o->grid.size[GRID_PIPELINE], all = o->microbatches, enough = 4 * stages + all % stages;
    const schedule_kind kind = compile_schedule_kind(o);
    return kind == SCHEDULE_GPIPE || kind == SCHEDULE_AUTO || enough > all ? all : enough;
}

/* Returns transient bytes with the first `count` entries dropped: the lower bound, or the placed size. */
static status try_count(int64_t *bytes, search *d, int count, bool bound_only)
{
    const compile_options *o = &d->c->options;
    for (int i = 0; i < d->entry_count; i++)
        d->drop[d->entries[i].chunk][d->entries[i].index] = i < count;
    compile_keep keep = {.how = RECOMPUTE_CHOSEN,
                         .drop = d->drop,
                         .order = d->order,
                         .bucket = d->bucket,
                         .enough = o->budget - d->c->persistent_bytes};
    compiled_program tried;
    status s = compile_program_training(
        &tried, d->c, &keep, bound_only || !d->entire ? recompute_microbatches(o) : o->microbatches, bound_only);
    *bytes = bound_only ? tried.lower_bound : tried.transient_bytes;
    compile_program_free(&tried);
    return s;
}

/* ---- classes ----------------------------------------------------------------------------------------------------- */

/* Can its outputs be recomputed, and would that be asked for? */
static bool can_drop(const op *o)
{
    if (o->detached || o->recomputed || op_has(o, OP_GATHER | OP_STATEFUL))
        return false;
    for (int i = 0; i < OP_MAX_OUT; i++)
        if (o->out[i] && !o->out[i]->keep)
            return true;
    return false;
}

static int find_class(search *d, const char *name, int nth)
{
    for (int i = 0; i < d->class_count; i++)
        if (d->classes[i].nth == nth && strcmp(d->classes[i].name, name) == 0)
            return i;
    d->classes = must_realloc(d->classes, (unsigned long)(d->class_count + 1) * sizeof *d->classes);
    d->classes[d->class_count] = (class){.name = pool_format(&d->words, "%s", name), .nth = nth};
    return d->class_count++;
}

static void classify_chunk(search *d, int chunk, const program *forward)
{
    d->drop[chunk] = must_calloc((unsigned long)forward->count + 1, 1);
    for (int i = 0; i < forward->count; i++) {
        const op *o = forward->ops[i];
        if (!can_drop(o))
            continue;
        int nth = 0;
        for (int k = i - 1; k >= 0 && o->layer >= 0 && forward->ops[k]->layer == o->layer; k--)
            nth += strcmp(o->site, forward->ops[k]->site) == 0;
        int of = find_class(d, o->site, nth);
        d->classes[of].members++;
        d->entries = must_realloc(d->entries, (unsigned long)(d->entry_count + 1) * sizeof *d->entries);
        d->entries[d->entry_count++] = (entry){chunk, o->lasting, of};
    }
}

static void set_class(search *d, int of, uint8_t to)
{
    for (int i = 0; i < d->entry_count; i++)
        if (d->entries[i].class == of)
            d->drop[d->entries[i].chunk][d->entries[i].index] = to;
}

/* Returns the class with the cheapest next drop per byte saved, or -1 if none saves anything. */
static int cheapest_class(search *d, measured *now)
{
    int best = -1;
    double best_price = 0;
    measured best_measure = *now;
    for (int i = 0; i < d->class_count; i++) {
        if (d->classes[i].taken)
            continue;
        set_class(d, i, 1);
        measured m = measure_drops(d);
        set_class(d, i, 0);
        int64_t saved = now->kept - m.kept;
        double price = saved > 0 ? (m.price - now->price) / (double)saved : 0;
        if (saved > 0 && (best < 0 || price < best_price)) {
            best = i;
            best_price = price;
            best_measure = m;
        }
    }
    *now = best_measure;
    return best;
}

static int append_class(entry *order, int at, const search *d, int of)
{
    for (int i = 0; i < d->entry_count; i++)
        if (d->entries[i].class == of)
            order[at++] = d->entries[i];
    return at;
}

static void order_entries(search *d)
{
    entry *order = must_alloc((unsigned long)(d->entry_count + 1) * sizeof *order);
    measured now = measure_drops(d);
    int at = 0, of;
    while ((of = cheapest_class(d, &now)) >= 0) {
        d->classes[of].taken = true;
        set_class(d, of, 1);
        at = append_class(order, at, d, of);
    }
    for (int i = 0; i < d->class_count; i++) /* a drop that saves no bytes alone may save some with the rest */
        if (!d->classes[i].taken)
            at = append_class(order, at, d, i);
    MUST(at == d->entry_count, "%d of %d ops in order", at, d->entry_count);
    free(d->entries);
    d->entries = order;
    d->ordered = true;
}

/* ---- how many ---------------------------------------------------------------------------------------------------- */

/* Finds the fewest drops, at least `least`, with a lower bound within `limit` bytes; entry_count if none is. */
static status bisect_drops(int *count, search *d, int least, int64_t limit)
{
    int low = least, high = d->entry_count;
    while (low < high) {
        int middle = (low + high) / 2;
        int64_t bytes;
        TRY(try_count(&bytes, d, middle, true));
        if (bytes <= limit)
            high = middle;
        else
            low = middle + 1;
    }
    *count = low;
    return STATUS_OK;
}

static status refuse_budget(const search *d, int64_t bytes)
{
    const compile_options *o = &d->c->options;
    char budget[UNITS_TEXT], need[UNITS_TEXT], over[UNITS_TEXT];
    int64_t all = d->c->persistent_bytes + bytes;
    units_bytes(budget, (double)o->budget);
    units_bytes(need, (double)all);
    units_bytes(over, (double)(all - o->budget));
    bool gathers = storage_shares(o->layout.zero, CLASS_WEIGHT) && o->layout.zero_gather == CONFIG_EACH_STEP;
    bool reduces = storage_shares(o->layout.zero, CLASS_GRADIENT) && o->layout.zero_reduce == CONFIG_EACH_STEP;
    return status_fail(
        STATUS_USAGE,
        "memory.budget %s: stage %d needs %s even if everything is recomputed, %lld bytes (%s) too much; raise "
        "it, %s%slower train.micro_batch or use more ranks",
        budget, o->grid.at[GRID_PIPELINE], need, (long long)(all - o->budget), over,
        gathers ? "set parallel.zero_gather=micro_batch, " : "",
        reduces ? "set parallel.zero_reduce=micro_batch, " : "");
}

/* Returns the transient bytes to plan for if the placement takes `placed`: other ranks of the stage differ by a row or
 * a bias, and their placements by the planner's tolerance. */
static int64_t with_margin(const search *d, int64_t placed, int64_t bound)
{
    const grid *g = &d->c->options.grid;
    bool alone = g->ranks == g->size[GRID_PIPELINE];
    int64_t reckoned = (int64_t)((double)bound * MARGIN);
    return alone || placed > reckoned ? placed : reckoned;
}

static int64_t room_of(const search *d)
{
    return d->c->options.budget - d->c->persistent_bytes;
}

/* Tests whether it fits with the first `count` entries dropped. If the least size to plan for does not fit, no
 * placement is tried. */
static status try_fit(bool *fits, search *d, int count)
{
    int64_t placed, bound, room = room_of(d);
    *fits = false;
    TRY(try_count(&bound, d, count, true));
    if (with_margin(d, bound, bound) > room)
        return STATUS_OK;
    TRY(try_count(&placed, d, count, false));
    *fits = with_margin(d, placed, bound) <= room;
    return STATUS_OK;
}

/* Chooses the best fitting end of a class: dropping all is not always least, as recomputed tensors live, too. */
static status choose_least(int *count, search *d, int64_t room)
{
    int64_t least = INT64_MAX, placed, bound;
    for (int i = 1; i <= d->entry_count; i++) {
        if (i < d->entry_count && d->entries[i].class == d->entries[i - 1].class)
            continue;
        TRY(try_count(&bound, d, i, true));
        if (bound < least) {
            least = bound;
            *count = i;
        }
    }
    TRY(try_count(&placed, d, *count, false));
    placed = with_margin(d, placed, least);
    return placed <= room ? STATUS_OK : refuse_budget(d, placed);
}

static status choose_count(int *count, search *d)
{
    int64_t room = room_of(d), placed, bound;
    int64_t limit = room - (with_margin(d, room, room) - room);
    int least = 0;
    for (;;) {
        TRY(bisect_drops(count, d, least, limit));
        TRY(try_count(&bound, d, *count, true));
        TRY(try_count(&placed, d, *count, false));
        placed = with_margin(d, placed, bound);
        if (placed <= room)
            return STATUS_OK;
        if (*count == d->entry_count)
            return choose_least(count, d, room);
        /* The placement takes more than the bound: ask for that much less. */
        least = *count + 1;
        limit -= placed - room;
    }
}

/* "mlp/swiglu, mlp/up in 3 of 8 layers": the classes among the first `count` entries. */
static char *describe_drops(const search *d, int count)
{
    char text[400] = "nothing";
    size_t used = 0;
    for (int from = 0; from < count && used < sizeof text;) {
        const class *of = &d->classes[d->entries[from].class];
        int first = from;
        while (from < count && &d->classes[d->entries[from].class] == of)
            from++;
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", first ? ", " : "", of->name);
        if (of->nth > 0 && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " (%d)", of->nth + 1);
        if (from - first < of->members && used < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " in %d of %d layers", from - first, of->members);
    }
    return must_strdup(text);
}

static void open_search(search *d, const compiled *c, int bucket)
{
    *d = (search){.c = c, .bucket = bucket};
    d->drop = must_calloc((unsigned long)c->options.layout.virtual_stages, sizeof *d->drop);
    d->whole = update_append_begin(&d->begin, c);
    pool p = {0};
    for (int i = 0; i < c->options.layout.virtual_stages; i++) {
        recorded body;
        record_chunk(&body, &p, d, i, RECOMPUTE_NONE);
        classify_chunk(d, i, &body.r.body[PHASE_FORWARD]);
        unroll_recorded_free(&body);
    }
    pool_free(&p);
}

/* How many entries to drop, once ordered. */
static status decide_count(int *count, search *d)
{
    bool fits;
    *count = 0;
    TRY(try_fit(&fits, d, 0));
    if (fits)
        return STATUS_OK;
    if (!d->ordered)
        order_entries(d);
    return choose_count(count, d);
}

static void free_drop(uint8_t **drop, int chunks)
{
    for (int i = 0; drop && i < chunks; i++)
        free(drop[i]);
    free(drop);
}

static void close_search(search *d)
{
    if (d->c)
        free_drop(d->drop, d->c->options.layout.virtual_stages);
    free(d->classes);
    free(d->entries);
    compile_program_free(&d->begin);
    pool_free(&d->words);
}

static status decide_both(int *count, search *d, bool entire)
{
    d->entire = entire;
    d->order = d->c->options.order == ORDER_AS_LOWERED ? ORDER_AS_LOWERED : ORDER_EARLY;
    TRY(decide_count(count, d));
    bool fits = false; /* find the best order that fits with `count` dropped */
    for (d->order = d->c->options.order; d->order > ORDER_EARLY; d->order--) {
        TRY(try_fit(&fits, d, *count));
        if (fits)
            break;
    }
    return STATUS_OK;
}

/* Decides with few micro-batches, and with all where that turns out not to hold: their placement can take a little more
 * than that of a few. */
static status decide_all(int *count, search *d, bool draft)
{
    bool held;
    TRY(decide_both(count, d, false));
    if (draft || recompute_microbatches(&d->c->options) == d->c->options.microbatches)
        return STATUS_OK;
    d->entire = true;
    TRY(try_fit(&held, d, *count));
    return held ? STATUS_OK : decide_both(count, d, true);
}

status recompute_decide(recompute_decision *out, const compiled *c, int bucket, bool draft)
{
    *out = (recompute_decision){.keep = {.how = c->options.recompute, .bucket = bucket}};
    out->keep.order = c->options.order;
    if (!c->options.budget)
        return STATUS_OK;
    RELEASED_BY(compile_free) compiled largest = {0};
    RELEASED_BY(close_search) search d = {0}, own = {0};
    TRY(compile_model_largest(&largest, &c->options));
    open_search(&d, &largest, bucket);
    TRY(decide_all(&out->dropped, &d, draft));
    open_search(&own, c, bucket);
    /* Marks in `own` the ops named by the first `count` entries of `d`. Ranks of a stage record the same layers, but
     * not at the same indices: one may gather a bias that another does not have. */
    AUTO_FREE int *taken = must_calloc((unsigned long)d.class_count + 1, sizeof *taken);
    for (int i = 0; i < out->dropped; i++) {
        int of = d.entries[i].class, mine = find_class(&own, d.classes[of].name, d.classes[of].nth), nth = taken[of]++;
        for (int k = 0; k < own.entry_count; k++)
            if (own.entries[k].class == mine && nth-- == 0)
                own.drop[own.entries[k].chunk][own.entries[k].index] = 1;
    }
    out->words = describe_drops(&d, out->dropped);
    out->drop = TAKE(own.drop);
    out->chunks = c->options.layout.virtual_stages;
    out->keep = (compile_keep){.how = RECOMPUTE_CHOSEN, .drop = out->drop, .order = d.order, .bucket = bucket};
    return STATUS_OK;
}

void recompute_decision_free(recompute_decision *d)
{
    free_drop(d->drop, d->chunks);
    free(d->words);
    *d = (recompute_decision){0};
}
