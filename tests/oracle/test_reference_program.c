/* A whole training step, compiled and planned, played by the executor on the host and by the reference in float64: the
 * oracle for models. The gradient's bound is that of promise 2. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/batch.h"
#include "memory/scope.h"
#include "tests/oracle/op_case.h"
#include "tests/oracle/reference_program.h"
#include "tests/test.h"

enum { MICROBATCHES = 3, SEQUENCE = 24, SAMPLES = 2, IDS = 90 };

typedef struct step {
    comm *world;
    compiled compiled;
    executor *executor;
    reference_program *oracle;
} step;

static compile_options options_of(shape_architecture architecture, recompute how)
{
    compile_options o = {.precision = PRECISION_FP32,
                         .sequence = SEQUENCE,
                         .micro_batch = SAMPLES,
                         .microbatches = MICROBATCHES,
                         .document_mask = architecture == SHAPE_QWEN3,
                         .layout.schedule = SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .recompute = how,
                         .backend = &cpu_backend,
                         .threads = 1,
                         .train = true};
    o.shape = (model_shape){.architecture = architecture,
                            .layers = 2,
                            .heads = 4,
                            .hidden_size = 32,
                            .ffn_size = 48,
                            .vocab_size = IDS,
                            .max_sequence = SEQUENCE,
                            .sliding_window = architecture == SHAPE_MISTRAL ? 7 : 0,
                            .tied_embeddings = shape_traits_of(architecture)->tied_embeddings,
                            .dropout = architecture == SHAPE_GPT2 ? 0.1 : 0};
    const bool latent = shape_has(&o.shape, TRAIT_LATENT_KEYS);
    o.shape.kv_heads = architecture == SHAPE_GPT2 || latent ? 4 : 2;
    if (latent) {
        o.shape.kv_lora_rank = 10;
        o.shape.rope_head_size = 4;
        o.shape.v_head_size = 6;
        o.shape.q_lora_rank = architecture == SHAPE_DEEPSEEK_V3 ? 14 : 0;
        o.shape.attention_bias = architecture == SHAPE_DEEPSEEK_V3;
    }
    shape_fill(&o.shape);
    assert_int_equal(grid_make(&o.grid, 1, 0, GRID_SIZES(1, 1, 1, 1)), STATUS_OK);
    return o;
}

static void fill_ids(step *s)
{
    const layer_inputs *in = &s->compiled.values;
    int32_t *tokens = executor_at(s->executor, in->tokens), *targets = executor_at(s->executor, in->targets);
    int32_t *positions = executor_at(s->executor, in->positions);
    test_random random = {5};
    for (int i = 0; i < MICROBATCHES * SAMPLES * SEQUENCE; i++) {
        tokens[i] = (int32_t)(test_uniform(&random) * IDS);
        targets[i] = i % 11 == 4 ? -1 : (int32_t)(test_uniform(&random) * IDS);
        positions[i] = i % SEQUENCE;
        if (in->document_start->shape[0])
            ((int32_t *)executor_at(s->executor, in->document_start))[i] = i % SEQUENCE / 7 * 7;
    }
    batch_positions(&s->compiled, s->executor, MICROBATCHES);
    step_scalars *scalars = executor_at(s->executor, in->scalars);
    *scalars = (step_scalars){.seed = 3,
                              .step = 1,
                              .updates = 1,
                              .first_sample = 6,
                              .lr = 1e-2f,
                              .beta1 = 0.9f,
                              .beta2 = 0.95f,
                              .epsilon = 1e-8f,
                              .weight_decay = 0.1f,
                              .clip = 0.5f,
                              .loss_scale = 1};
    scalars->loss_tokens = MICROBATCHES * SAMPLES * SEQUENCE * 10.0f / 11;
    scalars->batch_tokens = MICROBATCHES * SAMPLES * SEQUENCE;
    scalars->momentum_correction = (float)(1 - 0.9);
    scalars->variance_correction = (float)(1 - 0.95);
}

static const storage *storage_at(const step *s, int i)
{
    return &s->compiled.storage[s->compiled.model.parameters[i]->number];
}

static void fill_weights(step *s)
{
    test_random random = {17};
    for (int i = 0; i < s->compiled.model.parameter_count; i++) {
        const parameter *p = s->compiled.model.parameters[i];
        const tensor *weight = storage_at(s, i)->weight;
        float *w = executor_at(s->executor, weight);
        for (int64_t k = 0; k < tensor_elements(weight); k++)
            w[k] = (float)((p->init == INIT_ONE ? 1 : 0) + 0.1 * test_normal(&random));
    }
}

/* Every persistent tensor of the program that both sides have. */
static void read_inputs(step *s)
{
    const layer_inputs *in = &s->compiled.values;
    const tensor *of[] = {in->tokens,          in->targets,    in->positions, in->document_start,
                          in->token_positions, in->rope_table, in->scalars};
    void *arena = executor_context(s->executor)->arena;
    for (unsigned i = 0; i < sizeof of / sizeof *of; i++)
        if (reference_program_has(s->oracle, of[i]))
            reference_program_read(s->oracle, of[i], arena);
    for (int i = 0; i < s->compiled.model.parameter_count; i++)
        reference_program_read(s->oracle, storage_at(s, i)->weight, arena);
}

static void open_step(step *s, shape_architecture architecture, recompute how)
{
    *s = (step){0};
    compile_options o = options_of(architecture, how);
    executor_options on_cpu = {.device = &device_cpu, .backend = &cpu_backend, .threads = 1};
    assert_int_equal(comm_open(&s->world), STATUS_OK);
    assert_int_equal(compile(&s->compiled, &o), STATUS_OK);
    assert_int_equal(executor_open(&s->executor, &s->compiled, s->world, &on_cpu), STATUS_OK);
    batch_rope_table(&s->compiled, s->executor);
    fill_ids(s);
    fill_weights(s);
    s->oracle = reference_program_open(s->compiled.training.list.ops, s->compiled.training.list.count);
    read_inputs(s);
}

static void close_step(step *s)
{
    reference_program_close(s->oracle);
    executor_close(s->executor);
    compile_free(&s->compiled);
    comm_close(s->world);
}

typedef struct difference {
    double error, size; /* squared L2 norms */
} difference;

static difference compare(step *s, const tensor *t)
{
    int64_t n = tensor_elements(t);
    AUTO_FREE double *want = malloc((size_t)n * sizeof *want);
    const float *got = executor_at(s->executor, t);
    difference d = {0};
    reference_program_get(want, s->oracle, t);
    for (int64_t i = 0; i < n; i++) {
        d.error += ((double)got[i] - want[i]) * ((double)got[i] - want[i]);
        d.size += want[i] * want[i];
    }
    return d;
}

/* The worst gradient of a parameter, as a multiple of max(1e-5 |g|, 1e-7 |all gradients|). */
static double worst_gradient(step *s)
{
    double all = 0, worst = 0;
    for (int i = 0; i < s->compiled.model.parameter_count; i++)
        all += compare(s, storage_at(s, i)->gradient).size;
    assert_true(all > 0);
    for (int i = 0; i < s->compiled.model.parameter_count; i++) {
        difference d = compare(s, storage_at(s, i)->gradient);
        double ratio = sqrt(d.error) / fmax(1e-5 * sqrt(d.size), 1e-7 * sqrt(all));
        worst = ratio > worst || isnan(ratio) ? ratio : worst;
    }
    return worst;
}

static double *reference_of(const step *s, const tensor *t)
{
    double *values = malloc((size_t)tensor_elements(t) * sizeof *values);
    assert_non_null(values);
    reference_program_get(values, s->oracle, t);
    return values;
}

/* The largest difference of an updated weight. The first step of AdamW divides a gradient by its own size, so that one
 * that is zero but for rounding moves its weight by the learning rate in either direction: those below a thousandth of
 * the tensor's root mean square are left out, and must be few, unless all of them are rounding beside the norm. */
static double worst_update(step *s, const storage *p)
{
    int64_t n = tensor_elements(p->weight), counted = 0;
    double *g = reference_of(s, p->gradient), *want = reference_of(s, p->weight), squares = 0, worst = 0;
    const float *got = executor_at(s->executor, p->weight);
    for (int64_t i = 0; i < n; i++)
        squares += g[i] * g[i];
    for (int64_t i = 0; i < n; i++)
        if (fabs(g[i]) >= 1e-3 * sqrt(squares / (double)n) && fabs(g[i]) > 1e-6) {
            counted++;
            double d = fabs((double)got[i] - want[i]) / (1 + fabs(want[i]));
            worst = d > worst || isnan(d) ? d : worst;
        }
    assert_true(counted >= n / 4 || sqrt(squares) < 1e-5);
    free(g);
    free(want);
    return worst;
}

TEST(a_training_step_agrees_with_the_reference)
{
    for (int architecture = 0; architecture < SHAPE_ARCHITECTURES; architecture++)
        for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how += RECOMPUTE_FULL - RECOMPUTE_NONE) {
            step s;
            open_step(&s, (shape_architecture)architecture, (recompute)how);
            executor_play(s.executor, &s.compiled.training);
            reference_program_run(s.oracle, 0, s.compiled.training.list.count, false);
            double worst = worst_gradient(&s);
            difference loss = compare(&s, s.compiled.values.loss_total);
            difference control = compare(&s, s.compiled.values.control);
            print_message("%s: gradients within %.2g of the bound\n",
                          shape_traits_of((shape_architecture)architecture)->name, worst);
            assert_true(worst <= 1);
            assert_true(loss.size > 1 && sqrt(loss.error) <= 1e-5 * sqrt(loss.size));
            assert_true(control.size > 0 && sqrt(control.error) <= 1e-5 * sqrt(control.size)); /* the norm */
            for (int i = 0; i < s.compiled.model.parameter_count; i++) {
                difference v = compare(&s, storage_at(&s, i)->state[1]);
                assert_true(sqrt(v.error) <= 1e-4 * sqrt(v.size) + 1e-12);
                assert_true(worst_update(&s, storage_at(&s, i)) <= 1e-6);
            }
            close_step(&s);
        }
}

/* An op that the program should have and has not: nothing else in the step is changed. */
TEST(a_wrong_op_shows_in_the_gradients)
{
    static const op_kind spoiled[] = {OP_rope, OP_attention_grad, OP_rmsnorm_grad, OP_linear_grad_weight};
    for (unsigned k = 0; k < sizeof spoiled / sizeof *spoiled; k++) {
        step s;
        open_step(&s, SHAPE_LLAMA, RECOMPUTE_NONE);
        program *list = &s.compiled.training.list;
        op *victim = NULL;
        for (int i = 0; i < list->count; i++)
            if (list->ops[i]->kind == spoiled[k])
                victim = list->ops[i]; /* the last */
        assert_non_null(victim);
        op honest = *victim;
        if (spoiled[k] == OP_rope)
            victim->at.rotation.inverse = !victim->at.rotation.inverse;
        else if (spoiled[k] == OP_attention_grad)
            victim->at.attention.scale *= 1.001f;
        victim->at.accumulate = !victim->at.accumulate;
        reference_program_close(s.oracle);
        s.oracle = reference_program_open(list->ops, list->count);
        *victim = honest;
        read_inputs(&s);
        reference_program_run(s.oracle, 0, list->count, false);
        executor_play(s.executor, &s.compiled.training);
        assert_true(!(worst_gradient(&s) <= 1));
        close_step(&s);
    }
}

TEST_MAIN(NULL, NULL)
