#include "engine/infer/inference.h"

#include <omp.h>

#include "engine/run/batch.h"
#include "engine/state/rank/state.h"

const char *const inference_devices[] = {"auto", "cpu", "cuda", NULL};

static status choose_device(const device_interface **out, inference_where where)
{
    *out = &device_cpu;
    if (where == INFERENCE_CPU)
        return STATUS_OK;
    status s = device_find(out, "cuda");
    return where == INFERENCE_AUTO ? STATUS_OK : s;
}

static status lay_out(grid *out, const inference_ranks *r)
{
    int ranks = comm_ranks(r->world);
    int64_t pipeline = r->pipeline ? r->pipeline : 1;
    int64_t across = r->tensor ? r->tensor : r->data || ranks % pipeline ? 1 : ranks / pipeline;
    if (ranks % (across * pipeline))
        return status_fail(STATUS_USAGE, "--tensor %lld x --pipeline %lld does not divide the job's %d ranks",
                           (long long)across, (long long)pipeline, ranks);
    if (!r->data && across * pipeline != ranks)
        return status_fail(STATUS_USAGE,
                           "--tensor %lld x --pipeline %lld are not the job's %d ranks: start as many as share the "
                           "model",
                           (long long)across, (long long)pipeline, ranks);
    int size[GRID_AXES];
    grid_single(size);
    size[GRID_TENSOR] = (int)across;
    size[GRID_PIPELINE] = (int)pipeline;
    size[GRID_DATA] = 0;
    return grid_make(out, ranks, comm_rank(r->world), size);
}

static int threads_of(const comm *world)
{
    int cores = omp_get_num_procs() / comm_local_ranks(world), most = omp_get_max_threads();
    if (comm_ranks(world) == 1 || cores > most)
        return most;
    return cores > 0 ? cores : 1;
}

static status prepare(inference *out, executor_options *how, weights *from, const inference_ranks *ranks,
                      const compile_options *wanted)
{
    compile_options o = *wanted;
    TRY(choose_device(&how->device, ranks->where));
    how->backend = how->device->backend ? how->device->backend : &cpu_backend;
    TRY(lay_out(&o.grid, ranks));
    o.shape = *weights_shape(from);
    o.shape.mtp_layers = 0; /* it trains only */
    o.microbatches = o.layout.virtual_stages = 1;
    o.layout.zero_gather = CONFIG_EACH_MICRO_BATCH;
    o.backend = how->backend;
    o.threads = how->threads;
    return compile(&out->compiled, &o);
}

status inference_open(inference *out, weights *from, const inference_ranks *ranks, const compile_options *wanted)
{
    executor_options how = {.threads = threads_of(ranks->world)};
    comm_group *all = comm_world(ranks->world);
    *out = (inference){0};
    omp_set_num_threads(how.threads);
    TRY(comm_all_status(all, prepare(out, &how, from, ranks, wanted)));
    TRY(comm_all_status(all, executor_open(&out->executor, &out->compiled, ranks->world, &how)));
    TRY(comm_all_status(all, state_load_weights(&out->compiled, out->executor, weights_read, from)));
    batch_rope_table(&out->compiled, out->executor);
    return STATUS_OK;
}

void inference_close(inference *i)
{
    executor_close(i->executor);
    compile_free(&i->compiled);
    i->executor = NULL;
}
