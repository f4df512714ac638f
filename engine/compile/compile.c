#include "engine/compile/compile.h"

#include "engine/compile/compile_program.h"
#include "engine/compile/recompute.h"

int compile_marks(const compiled_program *p)
{
    return (p->list.count + COMPILE_STRETCH - 1) / COMPILE_STRETCH;
}

static void widen(compiled *c, const compiled_program *p)
{
    if (compile_marks(p) > c->marks) {
        c->pinned_bytes += (int64_t)(compile_marks(p) - c->marks) * 4;
        c->marks = compile_marks(p);
    }
    if (c->persistent_bytes + p->transient_bytes > c->arena_bytes)
        c->arena_bytes = c->persistent_bytes + p->transient_bytes;
}

static status compile_training(compiled *out)
{
    recompute_decision d;
    status s = recompute_decide(&d, out);
    if (s == STATUS_OK)
        s = compile_program_training(&out->training, out, &d.keep, out->options.microbatches, false);
    out->dropped = d.dropped;
    out->decision = d.words ? pool_format(&out->pool, "%s", d.words) : NULL;
    recompute_decision_free(&d);
    widen(out, &out->training);
    return s;
}

status compile(compiled *out, const compile_options *options)
{
    TRY(compile_model(out, options));
    if (options->train) {
        TRY(compile_training(out));
    }
    if (options->evaluate) {
        TRY(compile_program_forward(&out->evaluation, out));
        widen(out, &out->evaluation);
    }
    if (options->decode_samples) {
        TRY(compile_program_forward(&out->decoding, out));
        widen(out, &out->decoding);
    }
    /* What was decided for the neediest rank of the stage by the training program must hold for this one, all told. */
    if (options->train && options->budget > 0 && out->arena_bytes > options->budget)
        return status_fail(
            STATUS_USAGE,
            "memory.budget = %lld bytes: rank %d needs %lld bytes, %lld more; raise the budget, or lower "
            "train.micro_batch",
            (long long)options->budget, options->grid.rank, (long long)out->arena_bytes,
            (long long)(out->arena_bytes - options->budget));
    return STATUS_OK;
}

status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads)
{
    static const dtype types[] = {[CONFIG_FP32] = DTYPE_FP32, [CONFIG_BF16] = DTYPE_BF16, [CONFIG_FP16] = DTYPE_FP16};
    int data = grid_group_size(g, AXIS_SAMPLES);
    *out = (compile_options){.shape = c->model.shape,
                             .compute = types[c->train.precision],
                             .sequence = c->train.sequence,
                             .micro_batch = c->train.micro_batch,
                             .microbatches = c->train.global_batch / (c->train.micro_batch * data),
                             .document_mask = c->data.document_mask,
                             .grid = *g,
                             .schedule = c->parallel.schedule,
                             .chunks = g->size[GRID_PIPELINE] > 1 ? c->parallel.virtual_stages : 1,
                             .layers_per_chunk =
                                 c->parallel.layers_per_stage.count ? c->parallel.layers_per_stage.item : NULL,
                             .sequence_parallel = c->parallel.sequence,
                             .zero = c->parallel.zero,
                             .bucket = c->parallel.bucket,
                             .gather_each = c->parallel.zero_gather == CONFIG_EACH_MICRO_BATCH,
                             .reduce_each = c->parallel.zero_reduce == CONFIG_EACH_MICRO_BATCH,
                             .optimizer = {.name = c->optimizer.name,
                                           .nesterov = c->optimizer.nesterov,
                                           .adjust = c->optimizer.muon_adjust,
                                           .narrow_state = c->optimizer.state == CONFIG_BF16,
                                           .narrow_master = c->optimizer.master == CONFIG_BF16},
                             .recompute = c->memory.recompute,
                             .budget = c->memory.budget,
                             .backend = backend,
                             .threads = threads,
                             .train = true,
                             .evaluate = true};
    if (out->microbatches < 1)
        return status_fail(STATUS_USAGE, "train.global_batch = %d holds no micro-batch of %d for each of %d data ranks",
                           c->train.global_batch, c->train.micro_batch, data);
    return STATUS_OK;
}
