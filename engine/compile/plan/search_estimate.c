#include "engine/compile/plan/search_estimate.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/time/prices.h"
#include "engine/compile/time/timing.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/partition.h"
#include "parallel/schedule/schedule_make.h"
#include "parallel/schedule/simulate.h"

/* Costs of one micro-batch: of a layer, of some layers, or of the ends (embedding, last norm, head, loss, and the MTP
 * module). */
enum { PART_FIELDS = PHASE_COUNT + CLASS_COUNT + 4 };
typedef union part {
    struct {
        double phase[PHASE_COUNT]; /* seconds, including exchanges within a layer; the update's are per step */
        double weight;             /* part of the backward phase: gradients of weights */
        double deferred;           /* bytes that these gradients read: held until they are computed */
        double memory[CLASS_COUNT];
        double parameters, of_experts; /* this rank's parameters; its experts' among them */
    };
    double field[PART_FIELDS]; /* all of it */
} part;

typedef struct probe {
    search_layout of; /* one stage, no other samples: only the ranks that share a layer */
    bool impossible;
    part *kinds; /* a layer of each kind */
    part ends;
} probe;

/* A layout's schedule, simulated. */
typedef struct pipeline {
    search_layout of;
    double length;
    int *layers;  /* [stages][kinds of layers] */
    double *held; /* [stages] micro-batches of activations */
} pipeline;

struct search_estimate {
    const config *of;
    profile prices;
    const op_backend *backend;
    const load_law *law;
    int *kind_of; /* [layers of the model] */
    int kinds;
    probe *probes;
    int count;
    int recent[RECOMPUTE_FULL + 1];         /* the last used probe */
    schedule last;                          /* the next layout often has it, too, */
    pipeline pipelines[RECOMPUTE_FULL + 1]; /* or all of this */
};

config search_configuration(const config *of, const search_layout *l, int64_t budget)
{
    config c = *of;
    c.parallel = l->of;
    c.parallel.zero_reduce = storage_shares(l->of.zero, CLASS_GRADIENT) ? CONFIG_EACH_MICRO_BATCH : CONFIG_EACH_STEP;
    c.parallel.zero_gather = storage_shares(l->of.zero, CLASS_WEIGHT) ? CONFIG_EACH_MICRO_BATCH : CONFIG_EACH_STEP;
    c.parallel.layers_per_stage.count = 0;
    c.train.micro_batch = l->micro_batch;
    c.memory.recompute = l->recompute;
    c.memory.budget = l->budgeted ? budget : 0;
    return c;
}

bool search_same(const search_layout *a, const search_layout *b)
{
    return config_layout_same(&a->of, &b->of) && a->micro_batch == b->micro_batch && a->budgeted == b->budgeted &&
           a->recompute == b->recompute;
}

grid search_grid(const search_layout *l)
{
    grid g;
    MUST(grid_make(&g, (int)grid_ranks_of(l->of.size), 0, l->of.size) == STATUS_OK, "%s", status_message());
    config_set_expert_blocks(&g, &l->of);
    return g;
}

int search_microbatches(const config *c, const search_layout *l)
{
    grid g = search_grid(l);
    return config_microbatches(&g, l->micro_batch, c->train.global_batch);
}

search_estimate *search_estimate_open(const config *of, const profile *prices, const op_backend *backend,
                                      const load_law *law)
{
    search_estimate *e = must_calloc(1, sizeof *e);
    *e = (search_estimate){.of = of, .prices = *prices, .backend = backend, .law = law};
    e->kind_of = must_calloc((unsigned long)of->model.shape.layers + 1, sizeof *e->kind_of);
    e->kinds = shape_kinds(e->kind_of, &of->model.shape);
    e->prices.tf32 = of->train.tf32;
    return e;
}

void search_estimate_close(search_estimate *e)
{
    schedule_free(&e->last);
    for (int i = 0; i <= RECOMPUTE_FULL; i++) {
        free(e->pipelines[i].layers);
        free(e->pipelines[i].held);
    }
    for (int i = 0; i < e->count; i++)
        free(e->probes[i].kinds);
    free(e->probes);
    free(e->kind_of);
    free(e);
}

/* ---- probes ------------------------------------------------------------------------------------------------------ */

enum { PROBED_MICRO_BATCHES = 2 };

static bool is_weight_gradient(const op *o)
{
    return o->phase == PHASE_BACKWARD && op_has(o, OP_WEIGHT);
}

/* Bytes of the transient tensors that gradients of weights of one micro-batch read, each tensor once. */
static double deferred_bytes(const compiled_program *p)
{
    double sum = 0;
    AUTO_FREE bool *seen = must_calloc((unsigned long)p->placed + 1, sizeof *seen);
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        for (int k = 0; k < OP_MAX_IN && o->microbatch == 0 && is_weight_gradient(o); k++) {
            const tensor *t = compiled_holder(o->in[k]);
            if (!t || tensor_persistent(t) || seen[t->id])
                continue;
            seen[t->id] = true;
            sum += (double)tensor_bytes(t);
        }
    }
    return sum;
}

/* Seconds of a rank's update. Data ranks that divide experts sum gradients meanwhile, which data_seconds() counts. */
static double update_seconds(const search_estimate *e, const compiled *c)
{
    const program *list = &c->training.list;
    double sum = 0;
    for (int i = 0; i < list->count; i++)
        if (list->ops[i]->phase == PHASE_UPDATE && !op_communicates(list->ops[i]) && !op_waits(list->ops[i]))
            sum += profile_op(&e->prices, list->ops[i]);
    return sum;
}

/* Measures a program; `plain` is it in an order that holds no tensor longer than it must. */
static void measure_program(part *out, const search_estimate *e, const compiled *c, const compiled_program *plain,
                            const timing *p)
{
    const program *list = &c->training.list;
    for (int i = 0; i < PHASE_COUNT; i++)
        out->phase[i] = timing_seconds(p, 0, (phase)i) / (i == PHASE_UPDATE ? 1 : PROBED_MICRO_BATCHES);
    if (grid_group_size(&c->options.grid, AXIS_SAMPLES) > 1)
        out->phase[PHASE_UPDATE] = update_seconds(e, c);
    for (int i = 0; i < c->model.parameter_count; i++) {
        const parameter *q = c->model.parameters[i];
        double elements = (double)q->rows * (double)q->columns;
        out->parameters += elements;
        out->of_experts += q->replicas == AXIS_EXPERT_DATA ? elements : 0;
    }
    for (int i = 0; i < list->count; i++)
        if (is_weight_gradient(list->ops[i]))
            out->weight += profile_op(&e->prices, list->ops[i]) / PROBED_MICRO_BATCHES;
    out->deferred = deferred_bytes(plain);
    for (int i = 0; i < CLASS_COUNT; i++)
        out->memory[i] = (double)c->class_bytes[i];
    out->memory[CLASS_KEPT] = (double)plain->peak_kept;
    out->memory[CLASS_TEMPORARY] = (double)plain->peak_temporary;
}

/* Plays a model of `layers` layers that are all like layer `like`. */
static status play_layers(part *out, const search_estimate *e, const search_layout *l, int like, int layers)
{
    grid g = search_grid(l);
    compile_options o;
    RELEASED_BY(compile_free) compiled made = {0};
    RELEASED_BY(compile_program_free) compiled_program plain = {0};
    RELEASED_BY(timing_free) timing p = {0};
    profile prices = e->prices;
    config c = search_configuration(e->of, l, 0);
    c.model.shape = shape_repeating(&e->of->model.shape, like, layers);
    c.train.global_batch = (int)(PROBED_MICRO_BATCHES * config_samples_together(&g, l->micro_batch));
    c.train.batch_ramp.count = 0;
    TRY(config_check(&c));
    TRY(config_make_grid(&g, &c, 0, 0));
    TRY(compile_options_from(&o, &c, &g, e->backend, 1));
    profile_plan_for(&o, &prices);
    transfer_choose(&o, prices.device);
    prices.load = e->law ? load_slowest(e->law, &o) : 0;
    o.evaluate = false;
    o.higher = HIGHER_NONE;
    o.loss_tokens = loss_chunk_by_price(&o); /* a larger one would be tried for every part */
    *out = (part){0};
    TRY(compile(&made, &o));
    timing_open(&p, &prices, 1);
    timing_add(&p, &made.options.grid, &made.training.list, made.training.requests);
    TRY(timing_run(&p));
    TRY(compile_program_training(&plain, &made, &(compile_keep){.how = l->recompute, .order = ORDER_EARLY},
                                 PROBED_MICRO_BATCHES, true));
    measure_program(out, e, &made, &plain, &p);
    return STATUS_OK;
}

/* A layer of a kind, and the ends beside it: a + b x, of each field, at x = few and many layers. */
static status measure_kind(part *layer, part *ends, const search_estimate *e, const search_layout *l, int kind)
{
    enum { LEAST = 2 };
    part few, many;
    int like = 0; /* the first of the kind */
    while (e->kind_of[like] != kind)
        like++;
    TRY(play_layers(&few, e, l, like, LEAST));
    TRY(play_layers(&many, e, l, like, 2 * LEAST));
    for (int i = 0; i < PART_FIELDS; i++) {
        double each = (many.field[i] - few.field[i]) / LEAST;
        layer->field[i] = each > 0 ? each : 0;
        double rest = few.field[i] - LEAST * layer->field[i];
        ends->field[i] = rest > 0 ? rest : 0;
    }
    ends->memory[CLASS_TEMPORARY] = few.memory[CLASS_TEMPORARY];
    return STATUS_OK;
}

/* Returns the kind of layer measured with the ends: the first or, with an MTP module, the last layer's, like which it
 * is. */
static int kind_of_ends(const search_estimate *e)
{
    const model_shape *s = &e->of->model.shape;
    return s->mtp_layers > 0 ? e->kind_of[s->layers - 1] : 0;
}

/* Makes a probe. The ends are measured on a model of one kind of layer; temporary memory is the neediest kind's. */
static void make_probe(probe *out, const search_estimate *e)
{
    double temporary = 0;
    out->kinds = must_calloc((unsigned long)e->kinds, sizeof *out->kinds);
    for (int k = 0; k < e->kinds && !out->impossible; k++) {
        part ends = {0};
        out->impossible = measure_kind(&out->kinds[k], &ends, e, &out->of, k) != STATUS_OK;
        temporary = ends.memory[CLASS_TEMPORARY] > temporary ? ends.memory[CLASS_TEMPORARY] : temporary;
        if (k == kind_of_ends(e))
            out->ends = ends;
    }
    out->ends.memory[CLASS_TEMPORARY] = temporary;
}

static int common_divisor(int a, int b)
{
    return b ? common_divisor(b, a % b) : a;
}

/* The layout of the probe that measures a layer of `l`: `l` without the choices that a layer does not depend on. A
 * block of ranks that divide experts may need some of the data axis. */
static search_layout probed_layout(const search_layout *l)
{
    search_layout of = {.of = l->of, .micro_batch = l->micro_batch, .recompute = l->recompute};
    for (int i = 0; i < GRID_AXES; i++)
        of.of.size[i] = axis_shares_layers(i) ? l->of.size[i] : 1;
    if (l->of.expert > 1)
        of.of.size[GRID_DATA] = l->of.expert / common_divisor(l->of.expert, (int)grid_ranks_of(of.of.size));
    of.of.virtual_stages = 1;
    of.of.schedule = SCHEDULE_1F1B;
    of.of.zero = 0;
    of.of.vocabulary = CONFIG_VOCABULARY_ENDS;
    return of;
}

/* The index of the probe of these layouts, which may have to be made. */
static int note_probe(search_estimate *e, const search_layout *l)
{
    search_layout of = probed_layout(l);
    int *recent = &e->recent[l->recompute];
    if (*recent < e->count && search_same(&e->probes[*recent].of, &of))
        return *recent;
    for (*recent = 0; *recent < e->count; ++*recent)
        if (search_same(&e->probes[*recent].of, &of))
            return *recent;
    e->probes = must_realloc(e->probes, (unsigned long)(e->count + 1) * sizeof *e->probes);
    e->probes[e->count++] = (probe){.of = of};
    return *recent;
}

static const probe *find_probe(search_estimate *e, const search_layout *l)
{
    int at = note_probe(e, l); /* which may move the list */
    probe *p = &e->probes[at];
    if (!p->kinds)
        make_probe(p, e);
    return p;
}

void search_estimate_prepare(search_estimate *e, const search_layout *layouts, int count)
{
    for (int i = 0; i < count; i++) {
        search_layout none = layouts[i], full = layouts[i];
        full.recompute = RECOMPUTE_FULL;
        note_probe(e, &none);
        if (none.budgeted)
            note_probe(e, &full);
    }
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < e->count; i++)
        if (!e->probes[i].kinds)
            make_probe(&e->probes[i], e);
}

/* ---- putting together -------------------------------------------------------------------------------------------- */

static double seconds_of(const part *p)
{
    return p->phase[PHASE_FORWARD] + p->phase[PHASE_BACKWARD] + p->phase[PHASE_WEIGHT];
}

/* How many of the layers [first, first + layers) are of each kind. */
static void count_kinds(int *counts, const search_estimate *e, int first, int layers)
{
    for (int i = first; i < first + layers; i++)
        counts[e->kind_of[i]]++;
}

/* Sums counts[k] layers of each kind k. */
static part sum_layers(const search_estimate *e, const probe *p, const int *counts)
{
    part sum = {0};
    for (int k = 0; k < e->kinds; k++)
        for (int i = 0; i < PART_FIELDS; i++)
            sum.field[i] += counts[k] * p->kinds[k].field[i];
    return sum;
}

/* Number of layers of a kind that a chunk has in addition, the last of all or another one: where the stages divide the
 * vocabulary, the MTP module stays with the last chunk and counts as a layer of the last layer's kind. */
static int mtp_layers_of(const search_estimate *e, const search_layout *l, bool last, int kind)
{
    return last && search_divides_vocabulary(l) && kind == kind_of_ends(e) ? e->of->model.shape.mtp_layers : 0;
}

/* The ends, without the parts counted as layers. */
static part ends_of(const search_estimate *e, const search_layout *l, const probe *p)
{
    part ends = p->ends;
    const part *block = &p->kinds[kind_of_ends(e)];
    if (mtp_layers_of(e, l, true, kind_of_ends(e)) == 0)
        return ends;
    for (int i = 0; i < PHASE_COUNT; i++)
        ends.phase[i] = fmax(ends.phase[i] - block->phase[i], 0);
    for (int i = 0; i < CLASS_COUNT; i++)
        ends.memory[i] -= i == CLASS_TEMPORARY ? 0 : fmin(block->memory[i], ends.memory[i]);
    ends.weight = fmax(ends.weight - block->weight, 0);
    return ends;
}

/* Layers of each chunk of the model, as they will be divided: costs in units of a layer of the first kind. */
static status divide_layers(int *layers, const search_estimate *e, const search_layout *l, const probe *p)
{
    int count = e->of->model.shape.layers;
    double unit = seconds_of(&p->kinds[0]);
    AUTO_FREE double *each = must_alloc((unsigned long)count * sizeof *each);
    for (int i = 0; i < count; i++)
        each[i] = seconds_of(&p->kinds[e->kind_of[i]]) / unit;
    const int kind = kind_of_ends(e), mtp_layers = mtp_layers_of(e, l, true, kind);
    const double last = mtp_layers * seconds_of(&p->kinds[kind]);
    partition_costs costs = {.layers = each,
                             .last = (search_divides_vocabulary(l) ? last : seconds_of(&p->ends)) / unit};
    return partition_automatic(layers, &costs, count, l->of.size[GRID_PIPELINE] * l->of.virtual_stages);
}

/* The ends count with the last chunk, or evenly where they are divided over the stages. */
static void cost_chunks(simulate_cost *costs, const search_estimate *e, const int *layers, const search_layout *l,
                        const probe *p)
{
    int count = l->of.size[GRID_PIPELINE] * l->of.virtual_stages, first = 0;
    AUTO_FREE int *counts = must_alloc((unsigned long)e->kinds * sizeof *counts);
    const part of_ends = ends_of(e, l, p);
    for (int i = 0; i < count; i++) {
        memset(counts, 0, (unsigned long)e->kinds * sizeof *counts);
        count_kinds(counts, e, first, layers[i]);
        counts[kind_of_ends(e)] += mtp_layers_of(e, l, i == count - 1, kind_of_ends(e));
        part sum = sum_layers(e, p, counts);
        double ends = search_divides_vocabulary(l) ? 1.0 / count : i == count - 1;
        double weight = schedule_splits(&e->last) ? sum.weight + ends * of_ends.weight : 0;
        costs[i].forward = sum.phase[PHASE_FORWARD] + ends * of_ends.phase[PHASE_FORWARD];
        costs[i].input = sum.phase[PHASE_BACKWARD] + ends * of_ends.phase[PHASE_BACKWARD] - weight;
        costs[i].weight = weight;
        first += layers[i];
    }
}

/* Seconds of a message from the first stage to the second; one stage sends no messages. */
static double message_seconds(const search_estimate *e, const search_layout *l)
{
    grid g = search_grid(l);
    double bytes = (double)l->micro_batch * (double)e->of->train.sequence * (double)e->of->model.shape.hidden_size *
                   dtype_bytes(precision_compute(e->of->train.precision)) / tokens_ranks_between(&l->of);
    return g.size[GRID_PIPELINE] > 1 ? profile_message(&e->prices, &g, grid_member(&g, AXIS_PIPELINE, 1), bytes) : 0;
}

/* The exposed share of each micro-batch's exchange among the ranks that sum gradients. */
static const double SHOWN_SHARE = 0.6;

/* Seconds, exposed, to gather the weights that ranks along an axis hold together and to reduce their gradients. */
static double seconds_along(const search_estimate *e, const search_layout *l, axis a, double weights, double gradients)
{
    grid g = search_grid(l);
    int replicas = grid_group_size(&g, a), microbatches = search_microbatches(e->of, l);
    double each_byte = (double)(replicas - 1) / replicas / profile_rate(&e->prices, &g, a);
    double once = (gradients + weights) * each_byte, more = 0;
    if (storage_shares(l->of.zero, CLASS_GRADIENT))
        more = gradients * each_byte * microbatches;
    if (storage_shares(l->of.zero, CLASS_WEIGHT))
        more += weights * each_byte * 2 * microbatches;
    return once / 2 > SHOWN_SHARE * more ? once / 2 : SHOWN_SHARE * more;
}

static double expert_share(const part *of)
{
    return of->parameters > 0 ? of->of_experts / of->parameters : 0;
}

static double data_seconds(const search_estimate *e, const search_layout *l, const part *layers)
{
    double weights = layers->memory[CLASS_WEIGHT], gradients = layers->memory[CLASS_GRADIENT],
           experts = expert_share(layers);
    double rest = seconds_along(e, l, AXIS_GRADIENT, (1 - experts) * weights, (1 - experts) * gradients);
    return experts > 0 ? rest + seconds_along(e, l, AXIS_EXPERT_DATA, experts * weights, experts * gradients) : rest;
}

/* A vocabulary that is divided over the stages: micro-batches of a chunk that are held longer until the head has
 * answered, and the messages that a micro-batch then waits for. */
static const double HELD_LONGER = 2;
enum { MESSAGES_MORE = 5 };

/* Number of ranks along an axis that divide this class. */
static int sharing_ranks(const search_layout *l, axis a, tensor_class class)
{
    grid g = search_grid(l);
    return storage_shares(l->of.zero, class) ? grid_group_size(&g, a) : 1;
}

/* A rank's part of some layers' bytes of this class: experts are divided in their expert data parallel group. */
static double own_part(const search_layout *l, tensor_class class, const part *of, double all)
{
    double experts = expert_share(of);
    return all * ((1 - experts) / sharing_ranks(l, AXIS_GRADIENT, class) +
                  (experts > 0 ? experts / sharing_ranks(l, AXIS_EXPERT_DATA, class) : 0));
}

/* Bytes of a stage of these layers, with `held` micro-batches of its activations at the peak. */
static double stage_bytes(const search_layout *l, const part *of_ends, const part *layers, bool end, double held)
{
    double sum = of_ends->memory[CLASS_TEMPORARY] + of_ends->memory[CLASS_INPUT];
    held += search_divides_vocabulary(l) ? HELD_LONGER / l->of.virtual_stages : 0;
    sum += held * (layers->memory[CLASS_KEPT] + (search_divides_vocabulary(l) ? 0 : end * of_ends->memory[CLASS_KEPT]));
    for (int i = 0; i < CLASS_COUNT; i++)
        if (storage_shares(STORAGE_LEVELS - 1, (tensor_class)i)) {
            /* a stage has either the embedding or the head of the ends, but both if it is alone, or a part of each */
            double share = l->of.size[GRID_PIPELINE] == 1 ? 1
                           : search_divides_vocabulary(l) ? 1.0 / l->of.size[GRID_PIPELINE]
                           : end                          ? 0.5
                                                          : 0;
            double ends = of_ends->memory[i] * share;
            sum += own_part(l, (tensor_class)i, layers, layers->memory[i]) +
                   ends / sharing_ranks(l, AXIS_GRADIENT, (tensor_class)i);
        }
    return sum;
}

static status find_schedule(search_estimate *e, const search_layout *l, int microbatches)
{
    schedule *s = &e->last;
    schedule_kind kind = schedule_kind_over(l->of.schedule, l->of.size[GRID_PIPELINE]);
    if (s->stages == l->of.size[GRID_PIPELINE] && s->chunks == l->of.virtual_stages &&
        s->microbatches == microbatches && s->kind == kind)
        return STATUS_OK;
    schedule_free(s);
    *s = (schedule){0};
    return schedule_make(s, kind, l->of.size[GRID_PIPELINE], l->of.virtual_stages, microbatches);
}

/* Counts layers of each kind on each stage from the layers of each chunk. */
static void count_stages(int *stages, const search_estimate *e, const search_layout *l, const int *layers)
{
    const schedule *s = &e->last;
    int count = s->stages * s->chunks, first = 0;
    chunk_map map = schedule_map(s);
    memset(stages, 0, (unsigned long)(s->stages * e->kinds) * sizeof *stages);
    for (int i = 0; i < count; i++) {
        int *counts = &stages[chunk_map_stage(map, i) * e->kinds];
        count_kinds(counts, e, first, layers[i]);
        counts[kind_of_ends(e)] += mtp_layers_of(e, l, i == count - 1, kind_of_ends(e));
        first += layers[i];
    }
}

static status simulate_pipeline(pipeline *out, search_estimate *e, const search_layout *l, const probe *p, int *layers,
                                simulate_cost *costs)
{
    simulation sim;
    TRY(divide_layers(layers, e, l, p));
    TRY(find_schedule(e, l, search_microbatches(e->of, l)));
    cost_chunks(costs, e, layers, l, p);
    double held = 0; /* the kind that holds most keeps this part of its bytes between a backward pass's halves */
    for (int k = 0; k < e->kinds; k++) {
        double kept = p->kinds[k].memory[CLASS_KEPT];
        held = kept > 0 ? fmax(held, p->kinds[k].deferred / kept) : held;
    }
    TRY(simulate_run(&sim, &e->last, costs, message_seconds(e, l), held));
    out->length = sim.length;
    const part ends = ends_of(e, l, p);
    if (search_divides_vocabulary(l))
        out->length += seconds_of(&ends) / l->of.size[GRID_PIPELINE] + MESSAGES_MORE * message_seconds(e, l);
    out->layers =
        must_realloc(out->layers, (unsigned long)(l->of.size[GRID_PIPELINE] * e->kinds) * sizeof *out->layers);
    out->held = must_realloc(out->held, (unsigned long)l->of.size[GRID_PIPELINE] * sizeof *out->held);
    count_stages(out->layers, e, l, layers);
    for (int s = 0; s < l->of.size[GRID_PIPELINE]; s++)
        out->held[s] = sim.stages[s].peak;
    simulate_free(&sim);
    return STATUS_OK;
}

/* Simulates a pipeline once for all layouts that differ only in ZeRO and budget. */
static const pipeline *find_pipeline(search_estimate *e, const search_layout *l, const probe *p)
{
    pipeline *known = &e->pipelines[l->recompute];
    search_layout k = known->of;
    k.of.zero = l->of.zero;
    k.budgeted = l->budgeted;
    if (known->layers && search_same(&k, l))
        return known->length > 0 ? known : NULL;
    unsigned long all = (unsigned long)l->of.size[GRID_PIPELINE] * (unsigned long)l->of.virtual_stages;
    AUTO_FREE int *layers = must_alloc(all * sizeof *layers);
    AUTO_FREE simulate_cost *costs = must_calloc(all, sizeof *costs);
    known->of = *l;
    if (simulate_pipeline(known, e, l, p, layers, costs) != STATUS_OK)
        known->length = 0;
    return known->length > 0 ? known : NULL;
}

/* No schedule is shorter than its mean stage's work. */
static double least_seconds(const search_estimate *e, const search_layout *l, const probe *p)
{
    double layers = 0;
    for (int k = 0; k < e->kinds; k++) {
        int count = 0;
        for (int i = 0; i < e->of->model.shape.layers; i++)
            count += e->kind_of[i] == k;
        layers += count * seconds_of(&p->kinds[k]);
    }
    return search_microbatches(e->of, l) * (layers + seconds_of(&p->ends)) / l->of.size[GRID_PIPELINE];
}

static void put_together(const search_estimate *e, search_layout *l, const probe *p, const pipeline *of)
{
    part most = {0};
    const part ends = ends_of(e, l, p);
    l->bytes = 0;
    for (int s = 0; s < l->of.size[GRID_PIPELINE]; s++) {
        bool end = s == 0 || s == l->of.size[GRID_PIPELINE] - 1;
        part layers = sum_layers(e, p, &of->layers[s * e->kinds]);
        double bytes = stage_bytes(l, &ends, &layers, end, of->held[s]);
        l->bytes = bytes > l->bytes ? bytes : l->bytes;
        most = layers.memory[CLASS_WEIGHT] > most.memory[CLASS_WEIGHT] ? layers : most;
    }
    double update =
        own_part(l, CLASS_OPTIMIZER, &most, most.phase[PHASE_UPDATE]) +
        ends.phase[PHASE_UPDATE] / l->of.size[GRID_PIPELINE] / sharing_ranks(l, AXIS_GRADIENT, CLASS_OPTIMIZER);
    l->idle = of->length - least_seconds(e, l, p);
    l->seconds = of->length + update + data_seconds(e, l, &most);
}

double search_estimate_least(search_estimate *e, const search_layout *l)
{
    const probe *p = find_probe(e, l);
    return p->impossible ? INFINITY : least_seconds(e, l, p);
}

bool search_estimate_layout(search_estimate *e, search_layout *l, double enough)
{
    const probe *p = find_probe(e, l);
    if (p->impossible || least_seconds(e, l, p) > enough)
        return false;
    search_layout made = *l;
    bool found = l->of.schedule == SCHEDULE_AUTO;
    if (found)
        made.of.schedule = schedule_kind_of(SCHEDULE_1F1B, l->of.virtual_stages);
    const pipeline *of = find_pipeline(e, &made, p);
    if (!of)
        return false;
    put_together(e, l, p, of);
    l->idle /= found ? 2 : 1;
    l->seconds -= found ? l->idle : 0;
    return true;
}
