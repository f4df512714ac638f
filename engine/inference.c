#include "engine/inference.h"

#include <omp.h>

#include "engine/batch.h"
#include "engine/state.h"

const char *const inference_devices[] = {"auto", "cpu", "cuda", NULL};
const char *const inference_precisions[] = {"fp32", "bf16", "fp16", NULL};
const dtype inference_types[] = {DTYPE_FP32, DTYPE_BF16, DTYPE_FP16};

static status choose_device(const device_interface **out, inference_where where)
{
    *out = &device_cpu;
    if (where == INFERENCE_CPU)
        return STATUS_OK;
    status s = device_find(out, "cuda");
    return where == INFERENCE_AUTO ? STATUS_OK : s;
}

status inference_open(inference *out, weights *from, comm *self, inference_where where, const compile_options *wanted)
{
    compile_options o = *wanted;
    executor_options how = {.threads = omp_get_max_threads()};
    *out = (inference){0};
    TRY(choose_device(&how.device, where));
    how.backend = how.device->backend ? how.device->backend : &cpu_backend;
    TRY(grid_make(&o.grid, 1, 0, 1, 1, 1, 1));
    o.shape = *weights_shape(from);
    o.microbatches = o.chunks = 1;
    o.gather_each = true;
    o.backend = how.backend;
    o.threads = how.threads;
    TRY(compile(&out->compiled, &o));
    TRY(executor_open(&out->executor, &out->compiled, self, &how));
    TRY(state_load_weights(&out->compiled, out->executor, weights_read, from));
    batch_rope_table(&out->compiled, out->executor);
    return STATUS_OK;
}

void inference_close(inference *i)
{
    executor_close(i->executor);
    compile_free(&i->compiled);
    i->executor = NULL;
}
