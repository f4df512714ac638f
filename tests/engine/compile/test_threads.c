/* Candidates are compiled at the same time in threads: nothing is shared that any of them writes. Run under
 * ThreadSanitizer (make tsan), which sees a race even where the results are right. */
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/compile.h"
#include "engine/compile/step/compile_program.h"
#include "tests/test.h"

enum { CANDIDATES = 4, THREADS = 2 };

static compile_options candidate(int i)
{
    compile_options o = {.shape = {.architecture = i % 2 ? SHAPE_GPT2 : SHAPE_LLAMA,
                                   .layers = 6,
                                   .hidden_size = 96,
                                   .heads = 12,
                                   .kv_heads = i % 2 ? 12 : 2,
                                   .ffn_size = 200,
                                   .vocab_size = 515,
                                   .max_sequence = 64,
                                   .tied_embeddings = i % 2},
                         .precision = PRECISION_BF16,
                         .sequence = 64,
                         .micro_batch = 2,
                         .microbatches = 4,
                         .layout.schedule = i % 2 ? SCHEDULE_ZB_H1 : SCHEDULE_1F1B,
                         .layout.virtual_stages = 1,
                         .layout.sequence = true,
                         .layout.zero = i,
                         .layout.zero_gather = i == 3,
                         .layout.zero_reduce = i >= 2,
                         .backend = &cpu_backend,
                         .threads = 1,
                         .train = true,
                         .evaluate = true};
    shape_fill(&o.shape);
    assert_int_equal(grid_make(&o.grid, 8, i, GRID_SIZES(2, 1, 2, 2)), STATUS_OK);
    return o;
}

/* All that a program says: its ops, and where their operands are. */
static uint64_t digest(const compiled_program *p)
{
    uint64_t h = 0xcbf29ce484222325u;
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        h = (h ^ o->kind) * 0x100000001b3u;
        for (const char *c = o->label; *c; c++)
            h = (h ^ (unsigned char)*c) * 0x100000001b3u;
        for (int k = 0; k < OP_MAX_IN + OP_MAX_OUT; k++) {
            const tensor *t = k < OP_MAX_IN ? o->in[k] : o->out[k - OP_MAX_IN];
            h = (h ^ (uint64_t)(t ? t->address : -2)) * 0x100000001b3u;
        }
    }
    return h ^ (uint64_t)p->transient_bytes;
}

typedef struct job {
    int candidate;
    const compiled *model; /* NULL: the job makes its own */
    int64_t budget;
    uint64_t digest;
    status result;
} job;

static void *compile_all(void *context)
{
    job *j = context;
    compile_options o = candidate(j->candidate);
    o.budget = j->budget;
    compiled c;
    j->result = compile(&c, &o);
    j->digest = digest(&c.training) ^ digest(&c.evaluation);
    compile_free(&c);
    return NULL;
}

static void *compile_one(void *context)
{
    job *j = context;
    compiled_program p;
    compile_keep keep = {.how = j->candidate % 2 ? RECOMPUTE_FULL : RECOMPUTE_NONE};
    j->result = compile_program_training(&p, j->model, &keep, j->model->options.microbatches, false);
    j->digest = digest(&p);
    compile_program_free(&p);
    return NULL;
}

/* Each job by itself, and then together with another: the programs are the same. */
static void together_as_alone(void *(*work)(void *), const job *jobs, int count)
{
    for (int i = 0; i + THREADS <= count; i++) {
        job alone[THREADS], with[THREADS];
        pthread_t thread[THREADS];
        for (int k = 0; k < THREADS; k++) {
            alone[k] = with[k] = jobs[i + k];
            work(&alone[k]);
        }
        for (int k = 0; k < THREADS; k++)
            assert_int_equal(pthread_create(&thread[k], NULL, work, &with[k]), 0);
        for (int k = 0; k < THREADS; k++)
            assert_int_equal(pthread_join(thread[k], NULL), 0);
        for (int k = 0; k < THREADS; k++) {
            assert_int_equal(alone[k].result, STATUS_OK);
            assert_int_equal(with[k].result, STATUS_OK);
            assert_true(alone[k].digest == with[k].digest);
        }
        assert_true(alone[0].digest != alone[1].digest);
    }
}

TEST(candidates_are_compiled_at_the_same_time)
{
    job jobs[CANDIDATES];
    for (int i = 0; i < CANDIDATES; i++)
        jobs[i] = (job){.candidate = i};
    together_as_alone(compile_all, jobs, CANDIDATES);
}

TEST(budgets_are_fitted_at_the_same_time)
{
    job jobs[THREADS];
    for (int i = 0; i < THREADS; i++) {
        int64_t arena[2];
        for (int k = 0; k < 2; k++) {
            compile_options o = candidate(i);
            o.recompute = k ? RECOMPUTE_FULL : RECOMPUTE_NONE;
            compiled c;
            assert_int_equal(compile(&c, &o), STATUS_OK);
            arena[k] = c.arena_bytes;
            compile_free(&c);
        }
        jobs[i] = (job){.candidate = i, .budget = (arena[0] + arena[1]) / 2};
    }
    together_as_alone(compile_all, jobs, THREADS);
}

TEST(programs_of_one_model_are_compiled_at_the_same_time)
{
    for (int i = 0; i < CANDIDATES; i++) {
        compile_options o = candidate(i);
        compiled model;
        assert_int_equal(compile_model(&model, &o), STATUS_OK);
        job jobs[THREADS] = {{.candidate = 0, .model = &model}, {.candidate = 1, .model = &model}};
        together_as_alone(compile_one, jobs, THREADS);
        compile_free(&model);
    }
}

TEST_MAIN(NULL, NULL)
