#include "engine/compile/model/qk_clip.h"

#include "engine/compile/model/append.h"
#include "kernels/record/replicas.h"

/* fp32[count], described for the op that writes it. */
static tensor *new_vector(compiled_program *out, const char *label, int64_t count, placements place)
{
    tensor *t = pool_alloc(&out->pool, sizeof *t);
    tensor_describe(t, label, CLASS_TEMPORARY, DTYPE_FP32, 1, &count);
    t->place = place;
    return t;
}

static tensor *gather(compiled_program *out, const compiled *c, const char *label, axis along, tensor *x)
{
    const op like = replicas_gather_notes(c->around.group, along, x);
    return like.at.group_size > 1 ? append_op(out, PHASE_UPDATE, label, &like, 1, NULL)->out[0] : x;
}

static tensor *largest(compiled_program *out, const char *label, tensor *x, tensor *y)
{
    append_op(out, PHASE_UPDATE, label, &(op){.kind = OP_largest, .in = {x}, .out = {y}}, 0, NULL);
    return y;
}

tensor *qk_clip_gather(compiled_program *out, const compiled *c)
{
    tensor *own = c->values.peaks;
    if (tensor_elements(c->values.peak) == 0)
        return NULL;
    tensor *layers =
        largest(out, "qk clip/of layers", own, new_vector(out, "largest scores of layers", own->shape[0], own->place));
    tensor *rank = largest(out, "qk clip/of rank", layers, new_vector(out, "largest score of rank", 1, own->place));
    largest(out, "qk clip/of all ranks", gather(out, c, "qk clip/gather of all ranks", AXIS_GRID, rank),
            c->values.peak);
    return gather(out, c, "qk clip/gather", AXIS_GRADIENT, own);
}

/* Which rows of `p` make which heads; blocks 0: none do. */
static op_qk_clip rows_of(const attention_layer *a, const parameter *p, const model_shape *s)
{
    const latent_layer *l = &a->latent;
    const int fixed = a->head_size - l->rotated;
    op_qk_clip rows = {.heads = a->heads, .size = a->head_size};
    if (l->kv_up) {
        rows.blocks = p == a->qkv || p == l->q_up || p == l->kv_up ? a->heads : 0;
        rows.size = p == l->kv_up ? fixed : a->head_size;
        rows.whole = p == l->kv_up ? 0 : l->rotated;
    } else if (p == a->qkv) {
        const bool shared = s->kv_heads < s->heads;
        rows.blocks = shared ? a->heads : 2 * a->heads;
        rows.whole = shared ? a->head_size : 0;
    }
    return rows;
}

static tensor *append_factors(compiled_program *out, const compiled *c, const storage *s, tensor *peaks,
                              const op_qk_clip *rows, int layer)
{
    const char *label = pool_format(&out->pool, "%s/qk clip", s->of->name);
    op like = {.kind = OP_qk_factors,
               .in = {peaks},
               .out = {new_vector(out, label, s->of->rows, s->master->place)},
               .at = {.first = layer, .rows = c->values.peaks->shape[0], .qk = *rows}};
    like.at.qk.threshold = (float)c->options.optimizer.qk_clip;
    return append_op(out, PHASE_UPDATE, label, &like, 0, NULL)->out[0];
}

tensor *qk_clip_factors(compiled_program *out, const compiled *c, const storage *s, tensor *peaks)
{
    for (int i = 0; peaks && i < c->model.chunk_count; i++)
        for (int k = 0; k < c->model.chunks[i].block_count; k++) {
            const attention_layer *a = &c->model.chunks[i].blocks[k].attention;
            const op_qk_clip rows = rows_of(a, s->of, &c->model.shape);
            if (rows.blocks > 0)
                return append_factors(out, c, s, peaks, &rows, a->index);
        }
    return NULL;
}
