/* What `phalanx plan` says: the fields that programs read, and figures that can be derived by hand. */
#include <stdio.h>
#include <stdlib.h>
#include <jansson.h>

#include "engine/compile/compile_find.h"
#include "engine/compile/compile.h"
#include "engine/compile/plan/plan.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { LAYERS = 8, HIDDEN = 128, FFN = 256, VOCABULARY = 512, TOKENS = 128, BF16 = 2, FP32 = 4 };

/* A Llama whose sizes divide by everything used here: nothing is padded, so that counts are exact. */
static compile_options options_of(int tensor_ranks, int data, int pipeline)
{
    model_shape s = {.architecture = SHAPE_LLAMA,
                     .layers = LAYERS,
                     .hidden_size = HIDDEN,
                     .heads = 8,
                     .kv_heads = 4,
                     .ffn_size = FFN,
                     .vocab_size = VOCABULARY,
                     .max_sequence = TOKENS};
    shape_fill(&s);
    static int layers[] = {2, 2, 2, 2};
    compile_options o = {.shape = s,
                         .precision = PRECISION_BF16,
                         .sequence = TOKENS,
                         .micro_batch = 1,
                         .microbatches = 8,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.layers_per_stage = {pipeline == 4 ? 4 : 0, layers},
                         .layout.sequence = true,
                         .threads = 1,
                         .train = true};
    assert_int_equal(grid_make(&o.grid, tensor_ranks * data * pipeline, 0, GRID_SIZES(tensor_ranks, 1, data, pipeline)),
                     STATUS_OK);
    return o;
}

static double parameters(void)
{
    compile_options o = options_of(1, 1, 1);
    return (double)parts_parameters(&o.shape);
}

static plan plan_of(const compile_options *o, bool every)
{
    plan p;
    if (plan_make(&p, o, (profile[]){profile_named("h100")}, every, -1) != STATUS_OK)
        fail_msg("%s", status_message());
    return p;
}

/* ---- fields
 * -------------------------------------------------------------------------------------------------------- */

static int64_t integer(const json_t *of, const char *name)
{
    const json_t *value = json_object_get(of, name);
    if (!json_is_integer(value))
        fail_msg("%s is missing or no integer", name);
    return json_integer_value(value);
}

static json_t *json_of(const plan *p)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *f = open_memstream(&text, &bytes);
    fact_writer all = {.out = f};
    facts_open(&all, "", '{');
    plan_text_facts(&all, p);
    FACTS_OBJECT(&all, "\n more", FACT("x", 1));
    facts_close(&all, '}');
    fclose(f);
    json_error_t error;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, &error);
    if (!root)
        fail_msg("line %d: %s", error.line, error.text);
    free(text);
    return root;
}

static void check_rank(const json_t *r, const compile_options *options)
{
    compile_options o = *options;
    o.grid = grid_for_rank(&o.grid, (int)integer(r, "rank"));
    compiled c;
    assert_int_equal(compile(&c, &o), STATUS_OK);
    assert_int_equal(integer(r, "stage"), o.grid.at[GRID_PIPELINE]);
    assert_int_equal(integer(r, "arena_bytes"), c.arena_bytes);
    assert_int_equal(integer(r, "lower_bound_bytes"), c.persistent_bytes + c.training.lower_bound);
    assert_int_equal(integer(r, "ops"), c.training.list.count);
    const json_t *m = json_object_get(r, "memory");
    assert_int_equal(integer(m, "weights"), c.class_bytes[CLASS_WEIGHT]);
    assert_int_equal(integer(m, "gradients"), c.class_bytes[CLASS_GRADIENT]);
    assert_int_equal(integer(m, "optimizer"), c.class_bytes[CLASS_OPTIMIZER]);
    assert_int_equal(integer(m, "kept") + integer(m, "temporary"), c.training.lower_bound);
    plan_rank facts = {0};
    plan_measure(&facts, &c);
    for (axis a = 0; a < AXIS_COUNT; a++) {
        const json_t *bytes = json_object_get(r, "bytes_sent"), *messages = json_object_get(r, "messages");
        if (!axis_has_messages(a)) {
            assert_null(json_object_get(bytes, axis_name(a)));
            continue;
        }
        assert_int_equal(integer(bytes, axis_name(a)), facts.sent[a]);
        assert_int_equal(integer(messages, axis_name(a)), facts.messages[a]);
    }
    free(facts.decision);
    compile_free(&c);
}

TEST(json_has_the_promised_fields_and_they_are_the_compilers)
{
    compile_options o = options_of(2, 3, 2);
    o.layout.zero = 1;
    plan p = plan_of(&o, false);
    json_t *root = json_of(&p);
    assert_int_equal(integer(root, "parameters"), (int64_t)parameters());
    assert_int_equal(integer(root, "tokens_per_step"), TOKENS * 8 * 3);
    assert_true(json_is_real(json_object_get(root, "bubble")));
    assert_true(json_number_value(json_object_get(root, "flops_per_token")) > 6 * (parameters() - VOCABULARY * HIDDEN));
    const json_t *ranks = json_object_get(root, "ranks");
    int64_t count = 0;
    for (size_t i = 0; i < json_array_size(ranks); i++) {
        check_rank(json_array_get(ranks, i), &o);
        count += integer(json_array_get(ranks, i), "count");
    }
    assert_int_equal(count, 12);
    json_decref(root);
    plan_free(&p);
}

/* Gradients of heads that two ranks hold are summed among them, which takes messages and time, too. */
TEST(sums_of_heads_that_ranks_share_are_priced)
{
    compile_options o = options_of(8, 1, 1); /* of 4 heads of keys */
    plan p = plan_of(&o, false);
    assert_true(p.count > 0 && p.ranks[0].messages[AXIS_KV] > 0 && p.timing.exposed[AXIS_KV] > 0);
    assert_true(p.step_seconds > 0 && isfinite(p.step_seconds));
    plan_free(&p);
}

/* A rank that represents others needs as much as any of them. */
TEST(the_rank_listed_needs_most_of_those_it_stands_for)
{
    compile_options o = options_of(2, 3, 2);
    o.layout.zero = 3;
    o.shape.architecture = SHAPE_GPT2; /* biases on one tensor rank only */
    o.shape.kv_heads = 8;
    o.shape.tied_embeddings = true;
    plan few = plan_of(&o, false), all = plan_of(&o, true);
    assert_int_equal(all.count, 12);
    assert_true(few.count < all.count);
    for (int i = 0; i < all.count; i++) {
        int64_t most = 0;
        for (int k = 0; k < few.count; k++)
            if (few.ranks[k].at[GRID_PIPELINE] == all.ranks[i].at[GRID_PIPELINE] && few.ranks[k].arena > most)
                most = few.ranks[k].arena;
        assert_true(all.ranks[i].arena <= most);
    }
    plan_free(&few);
    plan_free(&all);
}

/* ---- memory
 * -------------------------------------------------------------------------------------------------------- */

/* 2 + 4 bytes a parameter everywhere and 12 / data of them on each rank; in all 12, once. */
TEST(zero_1_takes_6_bytes_a_parameter_and_12_over_data)
{
    for (int data = 1; data <= 4; data++) {
        compile_options o = options_of(1, data, 1);
        o.layout.zero = 1;
        plan p = plan_of(&o, true);
        double n = parameters(), optimizer = 0, padding = 256.0 * 3 * (LAYERS * 6 + 3);
        for (int i = 0; i < p.count; i++) {
            const int64_t *m = p.ranks[i].memory;
            assert_true((double)m[CLASS_WEIGHT] >= 2 * n && (double)m[CLASS_WEIGHT] <= 2 * n + padding);
            assert_true((double)m[CLASS_GRADIENT] >= 4 * n && (double)m[CLASS_GRADIENT] <= 4 * n + padding);
            double rows = 12.0 * FFN * (LAYERS * 6 + 3); /* uneven: a row more of each matrix, or a vector */
            assert_true((double)m[CLASS_OPTIMIZER] <= 12 * n / data + rows + padding);
            optimizer += (double)m[CLASS_OPTIMIZER];
        }
        assert_true(optimizer >= 12 * n && optimizer <= 12 * n + padding * data);
        plan_free(&p);
    }
}

/* Bytes of transient tensors alive between two actions: the most, and (m = 1) after forward and before weight. */
typedef struct between {
    int64_t most, after_forward, before_weight;
} between;

static tensor *root_of(tensor *t)
{
    while (t && t->base)
        t = t->base;
    return t && !tensor_persistent(t) ? t : NULL;
}

static void add_lives(int64_t *change, bool *seen, const op *o)
{
    tensor *all[OP_MAX_IN + OP_MAX_OUT];
    for (int k = 0; k < OP_MAX_IN; k++)
        all[k] = root_of(o->in[k]);
    for (int k = 0; k < OP_MAX_OUT; k++)
        all[OP_MAX_IN + k] = root_of(o->out[k]);
    for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
        if (!all[k] || seen[all[k]->id])
            continue;
        seen[all[k]->id] = true; /* a placed tensor's id is its block's number */
        change[all[k]->first] += tensor_bytes(all[k]);
        change[all[k]->last] -= tensor_bytes(all[k]); /* not alive after its last op */
    }
}

static between measure_between(const compile_options *o)
{
    compiled c;
    assert_int_equal(compile(&c, o), STATUS_OK);
    const program *p = &c.training.list;
    int64_t *change = must_calloc((unsigned long)p->count + 1, sizeof *change), alive = 0;
    AUTO_FREE bool *seen = must_calloc((unsigned long)p->count * 12, sizeof *seen);
    for (int i = 0; i < p->count; i++)
        add_lives(change, seen, p->ops[i]);
    between b = {0};
    const op *before = NULL;
    for (int i = 0; i < p->count; i++) {
        const op *now = p->ops[i];
        bool computes = now->microbatch >= 0 && !op_waits(now) && !op_communicates(now);
        if (computes && before && (before->phase != now->phase || before->microbatch != now->microbatch)) {
            b.most = alive > b.most ? alive : b.most;
            if (before->phase == PHASE_FORWARD && now->phase == PHASE_BACKWARD)
                b.after_forward = alive;
            if (before->phase == PHASE_BACKWARD && now->phase == PHASE_WEIGHT)
                b.before_weight = alive;
        }
        before = computes ? now : before;
        alive += change[i];
    }
    free(change);
    compile_free(&c);
    return b;
}

/* (p - s) M_B for 1F1B, and s M_W more for ZB-H1, s from 0; messages under way come to a few buffers. */
TEST(activations_in_flight_are_those_of_the_formulas)
{
    const int p = 4;
    static const schedule_kind kinds[] = {SCHEDULE_1F1B, SCHEDULE_ZB_H1};
    for (int k = 0; k < 2; k++)
        for (int stage = 0; stage < p; stage++) {
            compile_options o = options_of(1, 1, p);
            o.layout.schedule = kinds[k];
            o.grid = grid_for_rank(&o.grid, stage);
            o.microbatches = 1;
            between one = measure_between(&o);
            o.microbatches = 12;
            between many = measure_between(&o);
            double buffer = (double)TOKENS * HIDDEN * BF16;
            double formula = (double)(p - stage) * (double)one.after_forward;
            if (kinds[k] == SCHEDULE_ZB_H1)
                formula += stage * (double)one.before_weight;
            print_message("%s, stage %d: %.1f M_B, formula %.1f, M_W / M_B %.2f\n", schedule_name(kinds[k]), stage,
                          (double)many.most / (double)one.after_forward, formula / (double)one.after_forward,
                          (double)one.before_weight / (double)one.after_forward);
            assert_true(one.after_forward > 20 * (int64_t)buffer);
            /* messages under way are in M_B and M_W, too, each time they are counted */
            assert_true((double)many.most >= formula - 2 * p * buffer);
            assert_true((double)many.most <= formula + 4 * buffer);
        }
}

/* ---- bytes sent
 * ---------------------------------------------------------------------------------------------------- */

TEST(tensor_ranks_send_what_the_layers_say)
{
    for (int t = 2; t <= 4; t *= 2) {
        compile_options o = options_of(t, 1, 1);
        plan p = plan_of(&o, true);
        double share = (double)(t - 1) / t, tokens = share * TOKENS * HIDDEN * BF16;
        /* a layer: 2 gathers and 2 scatters forward, their gradients, and 2 gathers again for the weights' gradients */
        double each =
            (10 * LAYERS + 2 /* embedding */ + 2 /* loss */) * tokens + (t - 1.0) * TOKENS * 3 * FP32 /* statistics */;
        double norms = (2 * LAYERS + 1) * 2 * share * HIDDEN * FP32;
        for (int i = 0; i < t; i++)
            assert_int_equal(p.ranks[i].sent[AXIS_TENSOR], (int64_t)(o.microbatches * each + norms));
        plan_free(&p);
    }
}

TEST(stages_send_one_activation_and_one_cotangent_a_micro_batch)
{
    static const schedule_kind kinds[] = {SCHEDULE_GPIPE, SCHEDULE_1F1B, SCHEDULE_ZB_H1};
    for (int k = 0; k < 3; k++) {
        compile_options o = options_of(1, 1, 4);
        o.layout.schedule = kinds[k];
        plan p = plan_of(&o, true);
        int64_t message = (int64_t)TOKENS * HIDDEN * BF16 * o.microbatches;
        for (int i = 0; i < 4; i++) {
            int64_t neighbours = (i > 0) + (i < 3);
            assert_int_equal(p.ranks[i].sent[AXIS_PIPELINE], neighbours * message);
            assert_int_equal(p.ranks[i].messages[AXIS_PIPELINE], neighbours * o.microbatches);
        }
        plan_free(&p);
    }
}

static double data_bytes(int data, int zero, bool gather_each, bool reduce_each)
{
    compile_options o = options_of(1, data, 1);
    o.layout.zero = zero;
    o.layout.zero_gather = gather_each;
    o.layout.zero_reduce = reduce_each;
    plan p = plan_of(&o, true);
    double sum = 0;
    for (int i = 0; i < p.count; i++)
        sum += (double)p.ranks[i].sent[AXIS_GRADIENT];
    plan_free(&p);
    return sum;
}

/* The least that a group can send together: (d-1) x bytes for a gather or a scatter, twice that for an all-reduce. */
TEST(data_ranks_send_the_least_that_each_zero_needs)
{
    const double m = 8, ends = 2.0 * VOCABULARY * HIDDEN, n = parameters();
    for (int d = 2; d <= 4; d++) {
        const double others = d - 1, step = 4 * n, weights = 2 * n;
        /* forward and backward read every weight but the two ends' tables: those are read forward only */
        const double each = m * (2 * 2 * (n - ends) + 2 * ends);
        assert_true(data_bytes(d, 0, false, false) == others * 2 * step);
        assert_true(data_bytes(d, 1, false, false) == others * (step + weights));
        assert_true(data_bytes(d, 2, false, false) == others * (step + weights));
        assert_true(data_bytes(d, 2, false, true) == others * (m * step + weights));
        assert_true(data_bytes(d, 3, false, false) == others * (step + weights));
        assert_true(data_bytes(d, 3, false, true) == others * (m * step + weights));
        assert_true(data_bytes(d, 3, true, false) == others * (step + each));
        assert_true(data_bytes(d, 3, true, true) == others * (m * step + each));
    }
}

/* Reductions along the data axis that are launched as one, and their messages. */
static plan_rank in_buckets(int zero, int64_t bucket, int *launches, double *seconds)
{
    compile_options o = options_of(1, 4, 1);
    o.layout.zero = zero;
    o.layout.bucket = bucket;
    plan p = plan_of(&o, true);
    plan_rank r = p.ranks[0];
    r.decision = NULL;
    *seconds = p.step_seconds;
    compiled c;
    assert_int_equal(compile(&c, &o), STATUS_OK);
    *launches = 0;
    for (int i = 0; i < c.training.list.count; i++) {
        const op *q = c.training.list.ops[i];
        bool reduces = q->kind == OP_all_reduce || q->kind == OP_reduce_scatter;
        *launches += reduces && q->where.axis == AXIS_GRADIENT && q->where.bundle + 1 >= q->where.bundle_of;
    }
    compile_free(&c);
    plan_free(&p);
    return r;
}

TEST(buckets_send_the_same_bytes_in_fewer_messages)
{
    const double gradients = 4.0 * parameters();
    for (int zero = 0; zero <= 3; zero++) {
        int alone, some, all;
        double seconds[3];
        plan_rank a = in_buckets(zero, 0, &alone, &seconds[0]);
        plan_rank b = in_buckets(zero, (int64_t)(gradients / 4), &some, &seconds[1]);
        plan_rank c = in_buckets(zero, 1 << 30, &all, &seconds[2]);
        assert_true(alone > some && some > all);
        assert_true(some >= 3 && some <= 5);
        assert_int_equal(all, 1);
        assert_true(a.messages[AXIS_GRADIENT] > b.messages[AXIS_GRADIENT]);
        assert_true(b.messages[AXIS_GRADIENT] > c.messages[AXIS_GRADIENT]);
        assert_true(seconds[0] != seconds[1] && seconds[1] != seconds[2]);
        assert_true(a.flops == b.flops && b.flops == c.flops);
    }
}

/* ---- price
 * --------------------------------------------------------------------------------------------------------- */

TEST(choices_of_zero_trade_memory_for_traffic)
{
    compile_options o = options_of(1, 4, 1);
    o.layout.zero = 3;
    plan p = plan_of(&o, false);
    assert_int_equal(p.choice_count, 4);
    int chosen = 0;
    for (int i = 0; i < 4; i++) {
        chosen += p.choices[i].chosen;
        assert_int_equal(p.choices[i].gather_each, i / 2);
        assert_int_equal(p.choices[i].reduce_each, i % 2);
    }
    assert_int_equal(chosen, 1);
    for (int i = 0; i < 3; i++)
        assert_true(p.choices[3].arena <= p.choices[i].arena && p.choices[3].sent > p.choices[i].sent);
    plan_free(&p);
}

TEST(a_faster_machine_takes_less_time_and_the_bubble_shrinks_with_micro_batches)
{
    compile_options o = options_of(1, 1, 4);
    profile slow = profile_named("h100");
    slow.peak[PEAK_HALF] /= 2;
    slow.memory /= 2;
    slow.network /= 2;
    slow.node /= 2;
    slow.latency *= 2;
    slow.network_latency *= 2;
    slow.start *= 2;
    slow.product_start *= 2;
    slow.hop *= 2;
    plan fast = plan_of(&o, false), slower, longer, shorter;
    assert_int_equal(plan_make(&slower, &o, &slow, false, -1), STATUS_OK);
    assert_true(slower.step_seconds > 1.9 * fast.step_seconds);
    profile near = profile_named("h100"); /* messages take no time: the formula's bubble */
    near.latency = near.network_latency = near.hop = 0;
    near.network = near.node = 1e20;
    assert_int_equal(plan_make(&shorter, &o, &near, false, -1), STATUS_OK);
    o.microbatches = 32;
    assert_int_equal(plan_make(&longer, &o, &near, false, -1), STATUS_OK);
    assert_true(longer.timing.bubble < 0.7 * shorter.timing.bubble);
    plan_free(&shorter);
    assert_true(fast.mfu > 0 && fast.mfu < profile_named("h100").tile[0].share);
    plan_free(&fast);
    plan_free(&slower);
    plan_free(&longer);
}

static double step_seconds(const compile_options *o, const profile *prices)
{
    plan p;
    if (plan_make_step(&p, o, prices, false) != STATUS_OK)
        fail_msg("%s", status_message());
    double seconds = p.step_seconds;
    plan_free(&p);
    return seconds;
}

static void assert_same_actions(const schedule *a, const schedule *b)
{
    assert_int_equal(a->stages, b->stages);
    for (int stage = 0; stage < a->stages; stage++) {
        assert_int_equal(a->counts[stage], b->counts[stage]);
        for (int i = 0; i < a->counts[stage]; i++) {
            action one = a->actions[stage][i], other = b->actions[stage][i];
            assert_true(one.kind == other.kind && one.chunk == other.chunk && one.microbatch == other.microbatch);
        }
    }
}

/* With links a hundred times slower than an H100's another order is the shortest, and is found where
 * parallel.schedule_for says so. */
TEST(a_schedule_is_found_for_the_device_that_is_named)
{
    char *file = workfolder_path(*state, "slow.json");
    static const char text[] = "{\"base\": \"h100\", \"node\": 3.7e9, \"network\": 0.45e9, \"latency\": 8e-4, "
                               "\"network_latency\": 15e-4}";
    workfolder_write(file, text, sizeof text - 1);
    compile_options o = options_of(1, 1, 4), named = o;
    o.layout.layers_per_stage.count = named.layout.layers_per_stage.count = 0;
    o.layout.virtual_stages = named.layout.virtual_stages = 2;
    o.layout.schedule = SCHEDULE_AUTO;
    profile slow;
    assert_int_equal(profile_open(&slow, file), STATUS_OK);
    compile_options other = o;
    o.layout.schedule_for = file;
    compiled c = {0};
    plan first, p;
    schedule found;
    assert_int_equal(plan_make_step(&first, &o, &slow, false), STATUS_OK);
    double own = first.step_seconds, others = step_seconds(&other, &slow);
    print_message("found for slow links %.4f s, for an H100's %.4f\n", own, others);
    assert_true(own < 0.95 * others);
    assert_true(own <= step_seconds(&named, &slow)); /* what an H100's links find is worse than 1F1B there */
    assert_int_equal(compile_find(&found, &o), STATUS_OK);
    assert_same_actions(first.schedule, &found);
    assert_int_equal(plan_make_step(&p, &o, (profile[]){profile_named("a100")}, false),
                     STATUS_OK); /* whatever it is planned for */
    assert_same_actions(p.schedule, &found);
    char abacus[] = "abacus";
    o.layout.schedule_for = abacus;
    assert_int_equal(compile(&c, &o), STATUS_USAGE);
    compile_free(&c);
    plan_free(&first);
    plan_free(&p);
    schedule_free(&found);
    profile_free(&slow);
    free(file);
}

/* 32,064 words on two tensor ranks are 16,032 each, which 128 ranks divide evenly only with 96 more. */
TEST(a_vocabulary_is_padded_to_be_divided_evenly)
{
    compile_options o = options_of(2, 128, 1);
    o.shape.vocab_size = 32064;
    o.layout.zero = 1;
    compiled c = {0};
    assert_int_equal(compile(&c, &o), STATUS_OK);
    int scatters = 0;
    for (int i = 0; i < c.training.list.count; i++) {
        const op *p = c.training.list.ops[i];
        if (p->kind != OP_reduce_scatter || p->where.axis != AXIS_GRADIENT || p->where.rows < 16032)
            continue;
        assert_int_equal(p->where.rows, 16128);
        scatters++;
    }
    assert_int_equal(scatters, 2);
    compile_free(&c);
    assert_int_equal(decoder_vocabulary_rows(&o.shape, 2, 1), 16064);
    assert_int_equal(decoder_vocabulary_rows(&o.shape, 2, 1000), 16064); /* half as much again would be too much */
    o.shape.vocab_size = VOCABULARY;
    assert_int_equal(decoder_vocabulary_rows(&o.shape, 1, 3), VOCABULARY);
}

/* GPT-2's head is 5.4 layers' work, which no division of 12 layers over 4 stages balances: the last stage has one layer
 * and is the slowest. Divided over the stages it is as if there were layers alone. */
TEST(a_divided_head_takes_the_bubble_of_gpt2)
{
    model_shape gpt2 = {.architecture = SHAPE_GPT2,
                        .layers = 12,
                        .hidden_size = 768,
                        .heads = 12,
                        .kv_heads = 12,
                        .ffn_size = 3072,
                        .vocab_size = 50257,
                        .max_sequence = 1024,
                        .tied_embeddings = true};
    shape_fill(&gpt2);
    double bubble[2], seconds[2];
    int64_t weights[2];
    for (int divided = 0; divided < 2; divided++) {
        compile_options o = options_of(1, 1, 4);
        plan p;
        o.shape = gpt2;
        o.precision = PRECISION_BF16;
        o.sequence = 1024;
        o.micro_batch = 4;
        o.microbatches = 16;
        o.layout.schedule = SCHEDULE_ZB_H1;
        o.layout.virtual_stages = 1;
        o.layout.layers_per_stage.count = 0;
        o.layout.vocabulary = divided;
        if (plan_make_step(&p, &o, (profile[]){profile_named("h100")}, false) != STATUS_OK)
            fail_msg("%s", status_message());
        bubble[divided] = p.timing.bubble;
        seconds[divided] = p.step_seconds;
        weights[divided] = 0;
        for (int i = 0; i < p.count; i++)
            if (p.ranks[i].memory[CLASS_WEIGHT] > weights[divided])
                weights[divided] = p.ranks[i].memory[CLASS_WEIGHT];
        plan_free(&p);
    }
    print_message("bubble %.1f%% -> %.1f%%, step %.1f -> %.1f ms, the most weights %.0f -> %.0f MiB\n", 100 * bubble[0],
                  100 * bubble[1], 1e3 * seconds[0], 1e3 * seconds[1], (double)weights[0] / 1048576,
                  (double)weights[1] / 1048576);
    assert_true(bubble[0] > 0.2 && bubble[1] < bubble[0] / 2);
    assert_true(seconds[1] < 0.92 * seconds[0]);
    assert_true(2 * weights[1] < weights[0]);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
