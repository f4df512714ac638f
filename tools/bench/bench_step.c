#include "tools/bench/bench_parts.h"

#include <stdlib.h>

#include "engine/run/batch.h"
#include "engine/state/rank/state.h"
#include "kernels/philox.h"

static void fill_tokens(bench_step *b, const config *c)
{
    const layer_inputs *in = &b->compiled.values;
    int32_t *tokens = executor_at(b->executor, in->tokens), *targets = executor_at(b->executor, in->targets);
    int32_t *positions = executor_at(b->executor, in->positions);
    int32_t *second = in->second_targets->shape[0] ? executor_at(b->executor, in->second_targets) : NULL;
    int64_t count = tensor_elements(in->tokens), length = c->train.sequence;
    for (int64_t i = 0; i < count; i++) {
        uint32_t draw[4];
        philox_draws(draw, 7, 2, 0, 0, (uint64_t)i);
        tokens[i] = (int32_t)(draw[0] % (uint32_t)c->model.shape.vocab_size);
        targets[i] = (int32_t)(draw[1] % (uint32_t)c->model.shape.vocab_size);
        positions[i] = (int32_t)(i % length);
        if (second)
            second[i] = targets[i];
    }
    batch_positions(&b->compiled, b->executor, b->compiled.options.microbatches);
    const batch_step at = {
        .moments = 1, .rate = 1e-4, .loss_scale = 1, .loss_tokens = (double)count, .batch_tokens = (double)count};
    batch_scalars(&b->compiled, b->executor, c, &at, count);
}

status bench_step_open(bench_step *b, const config *c, const device_interface *on, int threads, comm *world,
                       choices *timed)
{
    *b = (bench_step){.device = on};
    const op_backend *backend = on->backend ? on->backend : &cpu_backend;
    compile_options options;
    grid g;
    int size[GRID_AXES];
    grid_single(size);
    TRY(grid_make(&g, 1, 0, size));
    TRY(compile_options_from(&options, c, &g, backend, threads));
    options.evaluate = false;
    const executor_options how = {.device = on,
                                  .backend = backend,
                                  .threads = threads,
                                  .tf32 = c->train.tf32,
                                  .varies = !c->train.deterministic,
                                  .timing = timed && c->train.tune,
                                  .choices = timed,
                                  .graph = c->train.cuda_graph};
    TRY(compile(&b->compiled, &options));
    TRY(executor_open(&b->executor, &b->compiled, world, &how));
    state_initialise(&b->compiled, b->executor, 1);
    batch_rope_table(&b->compiled, b->executor);
    fill_tokens(b, c);
    return STATUS_OK;
}

void bench_step_close(bench_step *b)
{
    executor_close(b->executor);
    compile_free(&b->compiled);
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double bench_median(double *values, int64_t count)
{
    qsort(values, (size_t)count, sizeof *values, by_size);
    return count % 2 ? values[count / 2] : (values[count / 2 - 1] + values[count / 2]) / 2;
}
