/* From ops to launches: operands become addresses and pitches. C, as the op table is; the kernels are launched through
 * launch.h. */
#include "kernels/cuda/bind.h"

#include <stddef.h>

#include "kernels/attention_work.h"
#include "kernels/cuda/scalars.h"
#include "kernels/latent.h"
#include "kernels/ops/compression.h"

_Static_assert((int)LAUNCH_FP32 == (int)DTYPE_FP32 && (int)LAUNCH_BF16 == (int)DTYPE_BF16 &&
                   (int)LAUNCH_FP16 == (int)DTYPE_FP16,
               "launch.h numbers types as dtype.h does");
_Static_assert(sizeof(scalars_device) == sizeof(step_scalars) &&
                   offsetof(scalars_device, first_sample) == offsetof(step_scalars, first_sample) &&
                   offsetof(scalars_device, lr) == offsetof(step_scalars, lr) &&
                   offsetof(scalars_device, momentum) == offsetof(step_scalars, momentum) &&
                   offsetof(scalars_device, clip) == offsetof(step_scalars, clip) &&
                   offsetof(scalars_device, variance_correction) == offsetof(step_scalars, variance_correction),
               "scalars_device is step_scalars");
_Static_assert((int)SCALARS_NORM == (int)CONTROL_NORM && (int)SCALARS_FACTOR == (int)CONTROL_FACTOR &&
                   (int)SCALARS_SKIP == (int)CONTROL_SKIP,
               "control is numbered alike");

/* v: NULL where the op has no values */
static launch_heads heads_of(const op *o, const tensor *v)
{
    return (launch_heads){.heads = o->at.heads,
                          .kv_heads = o->at.kv_heads,
                          .head_size = o->at.head_size,
                          .v_head_size = v ? (int32_t)attention_v_head_size(o, v) : o->at.head_size,
                          .sequence = o->at.sequence,
                          .window = o->at.window,
                          .scale = o->at.scale,
                          .cap = o->at.cap};
}

/* ---- element-wise ---------------------------------------------------------------------------------------------- */

void cuda_gelu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    launched(o, launch_gelu(r->stream, y->type, matrix(y, r), matrix(x, r), y->shape[0], columns_of(y)));
}

void cuda_gelu_exact(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    launched(o, launch_gelu_exact(r->stream, y->type, matrix(y, r), matrix(x, r), y->shape[0], columns_of(y)));
}

void cuda_gelu_exact_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    launched(o, launch_gelu_exact_grad(r->stream, dx->type, matrix(dx, r), matrix(o->in[0], r), matrix(o->in[1], r),
                                       dx->shape[0], columns_of(dx)));
}

void cuda_scale(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    launched(o, launch_scale(r->stream, y->type, matrix(y, r), matrix(x, r), o->at.scale, y->shape[0], columns_of(y)));
}

void cuda_soft_cap(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    launched(o, launch_soft_cap(r->stream, y->type, matrix(y, r), matrix(x, r), o->at.cap, y->shape[0], columns_of(y)));
}

void cuda_soft_cap_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    launched(o, launch_soft_cap_grad(r->stream, dx->type, matrix(dx, r), matrix(o->in[0], r), matrix(o->in[1], r),
                                     o->at.cap, extent_of(dx)));
}

void cuda_gelu_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0];
    launched(o, launch_gelu_grad(r->stream, dx->type, matrix(dx, r), matrix(o->in[0], r), matrix(o->in[1], r),
                                 dx->shape[0], columns_of(dx)));
}

void cuda_swiglu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_swiglu(r->stream, y->type, matrix(y, r), matrix(o->in[0], r), y->shape[0], y->shape[1]));
}

void cuda_swiglu_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0], *dy = o->in[0];
    launched(o, launch_swiglu_grad(r->stream, dx->type, matrix(dx, r), matrix(dy, r), matrix(o->in[1], r), dy->shape[0],
                                   dy->shape[1]));
}

static launch_clamp clamp_of(const op *o)
{
    return (launch_clamp){.limit = o->at.cap, .slope = o->at.scale};
}

void cuda_swiglu_clamped(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_swiglu_clamped(r->stream, y->type, matrix(y, r), matrix(o->in[0], r),
                                      (launch_extent){y->shape[0], y->shape[1]}, clamp_of(o)));
}

void cuda_swiglu_clamped_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0], *dy = o->in[0];
    launched(o, launch_swiglu_clamped_grad(r->stream, dx->type, matrix(dx, r), matrix(dy, r), matrix(o->in[1], r),
                                           (launch_extent){dy->shape[0], dy->shape[1]}, clamp_of(o)));
}

void cuda_geglu(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_geglu(r->stream, y->type, matrix(y, r), matrix(o->in[0], r), y->shape[0], y->shape[1]));
}

void cuda_geglu_grad(const op *o, const run_context *r)
{
    const tensor *dx = o->out[0], *dy = o->in[0];
    launched(o, launch_geglu_grad(r->stream, dx->type, matrix(dx, r), matrix(dy, r), matrix(o->in[1], r), dy->shape[0],
                                  dy->shape[1]));
}

void cuda_add(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_add(r->stream, y->type, matrix(y, r), matrix(o->in[0], r), matrix(o->in[1], r), y->shape[0],
                           columns_of(y)));
}

void cuda_accumulate(const op *o, const run_context *r)
{
    const tensor *total = o->out[0];
    launch_matrix to = matrix(total, r), part = matrix(o->in[0], r);
    int64_t rows = total->shape[0], columns = columns_of(total);
    launched(o, o->at.accumulate ? launch_add(r->stream, LAUNCH_FP32, to, to, part, rows, columns)
                                 : launch_cast(r->stream, LAUNCH_FP32, LAUNCH_FP32, to, part, rows, columns));
}

void cuda_cast(const op *o, const run_context *r)
{
    const tensor *y = o->out[0], *x = o->in[0];
    launched(o, launch_cast(r->stream, y->type, x->type, matrix(y, r), matrix(x, r), y->shape[0], columns_of(y)));
}

static launch_matrix byte_matrix(const tensor *t, const run_context *r)
{
    return (launch_matrix){at(t, r), t->pitch * dtype_bytes((dtype)t->type)};
}

void cuda_copy(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_copy(r->stream, byte_matrix(y, r), byte_matrix(o->in[0], r), y->shape[0],
                            columns_of(y) * dtype_bytes((dtype)y->type)));
}

void cuda_arrange(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    launched(o, launch_arrange(r->stream, whole(o, o->out[0], r), whole(o, x, r), at(o->in[1], r), x->shape[0],
                               columns_of(x) * dtype_bytes((dtype)x->type), o->at.inverse));
}

void cuda_zero(const op *o, const run_context *r)
{
    launched(o, launch_zero(r->stream, whole(o, o->out[0], r), tensor_bytes(o->out[0])));
}

void cuda_dropout(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launch_mask mask = {at(o->in[2], r), o->at.dropout.sample, o->at.dropout.sample_tokens, o->at.dropout.site,
                        o->at.dropout.probability};
    launched(
        o, launch_dropout(r->stream, y->type, matrix(y, r), matrix(o->in[0], r), at(o->in[1], r), extent_of(y), mask));
}

/* ---- tables and sums over tokens ------------------------------------------------------------------------------- */

void cuda_bias_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    launched(o, launch_column_sum(r->stream, dy->type, at(o->out[0], r), matrix(dy, r), extent_of(dy), o->at.accumulate,
                                  at(o->scratch, r)));
}

void cuda_embed(const op *o, const run_context *r)
{
    const tensor *table = o->in[1], *y = o->out[0];
    launch_rows of = {y->shape[0], y->shape[1], o->at.vocabulary.first, table->shape[0]};
    launched(o, launch_embed(r->stream, y->type, whole(o, y, r), at(o->in[0], r), whole(o, table, r), of));
}

void cuda_add_positions(const op *o, const run_context *r)
{
    const tensor *table = o->in[2], *y = o->out[0];
    launch_rows of = {y->shape[0], y->shape[1], 0, table->shape[0]};
    launched(o, launch_add_rows(r->stream, y->type, whole(o, y, r), whole(o, o->in[0], r), at(o->in[1], r),
                                whole(o, table, r), of));
}

void cuda_embed_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0], *dtable = o->out[0];
    launch_embed_grad_in in = {.dy = whole(o, dy, r),
                               .ids = at(o->in[1], r),
                               .of = {dy->shape[0], dy->shape[1], o->at.vocabulary.first, dtable->shape[0]},
                               .accumulate = o->at.accumulate,
                               .scratch = at(o->scratch, r)};
    launched(o, launch_embed_grad(r->stream, dy->type, whole(o, dtable, r), in));
}

void cuda_add_positions_grad(const op *o, const run_context *r)
{
    cuda_embed_grad(o, r);
}

/* ---- norms ----------------------------------------------------------------------------------------------------- */

void cuda_rmsnorm(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    launch_norm_out out = {.y = whole(o, o->out[0], r), .rstd = at(o->out[1], r), .sum = whole(o, o->out[2], r)};
    launch_norm_in in = {.x = whole(o, x, r),
                         .w = at(o->in[1], r),
                         .residual = whole(o, o->in[2], r),
                         .of = extent_of(x),
                         .epsilon = o->at.epsilon,
                         .offset = o->at.offset};
    launched(o, launch_norm(r->stream, x->type, out, in));
}

void cuda_layernorm(const op *o, const run_context *r)
{
    const tensor *x = o->in[0];
    launch_norm_out out = {
        .y = whole(o, o->out[0], r), .rstd = at(o->out[1], r), .mean = at(o->out[2], r), .sum = whole(o, o->out[3], r)};
    launch_norm_in in = {.x = whole(o, x, r),
                         .w = at(o->in[1], r),
                         .b = at(o->in[2], r),
                         .residual = whole(o, o->in[3], r),
                         .of = extent_of(x),
                         .epsilon = o->at.epsilon};
    launched(o, launch_norm(r->stream, x->type, out, in));
}

static void norm_grad(const op *o, const run_context *r, const tensor *mean, const tensor *addend)
{
    const tensor *s = o->in[1];
    launch_norm_grad_in in = {.dy = whole(o, o->in[0], r),
                              .s = whole(o, s, r),
                              .w = at(o->in[2], r),
                              .rstd = at(o->in[3], r),
                              .mean = at(mean, r),
                              .addend = whole(o, addend, r),
                              .of = extent_of(s),
                              .accumulate = o->at.accumulate,
                              .scratch = at(o->scratch, r),
                              .offset = o->at.offset};
    launched(o, launch_norm_grad(r->stream, s->type, whole(o, o->out[0], r), at(o->out[1], r), at(o->out[2], r), in));
}

void cuda_rmsnorm_grad(const op *o, const run_context *r)
{
    norm_grad(o, r, NULL, o->in[4]);
}

void cuda_layernorm_grad(const op *o, const run_context *r)
{
    norm_grad(o, r, o->in[4], o->in[5]);
}

void cuda_head_norm(const op *o, const run_context *r)
{
    const tensor *q = o->in[0];
    launch_head_norm_operands of = {.yq = matrix(o->out[0], r),
                                    .yk = matrix(o->out[1], r),
                                    .q = matrix(q, r),
                                    .k = matrix(o->in[1], r),
                                    .wq = at(o->in[2], r),
                                    .wk = at(o->in[3], r),
                                    .rstd = at(o->out[2], r),
                                    .tokens = q->shape[0],
                                    .at = heads_of(o, NULL),
                                    .epsilon = o->at.epsilon,
                                    .offset = o->at.offset};
    launched(o, launch_head_norm(r->stream, q->type, &of));
}

void cuda_head_norm_grad(const op *o, const run_context *r)
{
    const tensor *q = o->in[2];
    launch_head_norm_gradients of = {.dq = matrix(o->out[0], r),
                                     .dk = matrix(o->out[1], r),
                                     .dyq = matrix(o->in[0], r),
                                     .dyk = matrix(o->in[1], r),
                                     .q = matrix(q, r),
                                     .k = matrix(o->in[3], r),
                                     .wq = at(o->in[4], r),
                                     .wk = at(o->in[5], r),
                                     .rstd = at(o->in[6], r),
                                     .dwq = at(o->out[2], r),
                                     .dwk = at(o->out[3], r),
                                     .scratch = at(o->scratch, r),
                                     .tokens = q->shape[0],
                                     .at = heads_of(o, NULL),
                                     .accumulate = o->at.accumulate,
                                     .offset = o->at.offset};
    launched(o, launch_head_norm_grad(r->stream, q->type, &of));
}

/* Queries and keys from input `slot` on. */
static launch_width width_of(const op *o, const run_context *r, int slot)
{
    const tensor *q = o->in[slot], *k = o->in[slot + 1];
    return (launch_width){.x = {matrix(q, r), matrix(k, r)},
                          .tokens = q->shape[0],
                          .columns = {q->shape[1], k->shape[1]},
                          .width = {o->at.width[0], o->at.width[1]},
                          .epsilon = o->at.epsilon,
                          .offset = o->at.offset};
}

void cuda_width_squares(const op *o, const run_context *r)
{
    launch_width of = width_of(o, r, 0);
    of.squares = matrix(o->out[0], r);
    launched(o, launch_width_squares(r->stream, o->in[0]->type, &of));
}

void cuda_width_norm(const op *o, const run_context *r)
{
    launch_width of = width_of(o, r, 0);
    of.squares = matrix(o->in[4], r);
    for (int i = 0; i < 2; i++) {
        of.y[i] = matrix(o->out[i], r);
        of.w[i] = at(o->in[2 + i], r);
    }
    launched(o, launch_width_norm(r->stream, o->in[0]->type, &of));
}

/* What both ops of the gradient read. */
static launch_width width_gradient(const op *o, const run_context *r)
{
    launch_width of = width_of(o, r, 2);
    of.squares = matrix(o->in[6], r);
    for (int i = 0; i < 2; i++) {
        of.dy[i] = matrix(o->in[i], r);
        of.w[i] = at(o->in[4 + i], r);
    }
    return of;
}

void cuda_width_dots(const op *o, const run_context *r)
{
    launch_width of = width_gradient(o, r);
    of.dots = matrix(o->out[0], r);
    for (int i = 0; i < 2; i++)
        of.dw[i] = at(o->out[1 + i], r);
    of.scratch = at(o->scratch, r);
    of.accumulate = o->at.accumulate;
    launched(o, launch_width_dots(r->stream, o->in[0]->type, &of));
}

void cuda_width_norm_grad(const op *o, const run_context *r)
{
    launch_width of = width_gradient(o, r);
    of.dots = matrix(o->in[7], r);
    for (int i = 0; i < 2; i++)
        of.y[i] = matrix(o->out[i], r);
    launched(o, launch_width_norm_grad(r->stream, o->in[0]->type, &of));
}

/* ---- attention ------------------------------------------------------------------------------------------------- */

void cuda_rope(const op *o, const run_context *r)
{
    const tensor *q = o->in[0];
    launch_heads heads = heads_of(o, NULL);
    heads.kv_heads = latent_key_heads(o);
    launch_rope_operands of = {.yq = matrix(o->out[0], r),
                               .yk = matrix(o->out[1], r),
                               .q = matrix(q, r),
                               .k = matrix(o->in[1], r),
                               .table = matrix(o->in[3], r),
                               .positions = at(o->in[2], r),
                               .tokens = q->shape[0],
                               .rotated = (int32_t)o->in[3]->shape[1],
                               .front = (int32_t)latent_unrotated(o),
                               .at = heads,
                               .inverse = o->at.inverse,
                               .interleaved = o->at.interleaved};
    launched(o, launch_rope(r->stream, q->type, &of));
}

/* in: q, k, v; masks: document_start, places */
static launch_attention_operands attention_operands(const op *o, const run_context *r, tensor *const *in,
                                                    const tensor *y, const tensor *lse, tensor *const *masks)
{
    return (launch_attention_operands){.q = matrix(in[0], r),
                                       .k = matrix(in[1], r),
                                       .v = matrix(in[2], r),
                                       .y = matrix(y, r),
                                       .lse = whole(o, lse, r),
                                       .document_start = at(masks[0], r),
                                       .places = at(masks[1], r),
                                       .tokens = in[0]->shape[0],
                                       .keys = in[1]->shape[0],
                                       .run = attention_run(o),
                                       .at = heads_of(o, in[2])};
}

void cuda_attention(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    launch_attention_operands of = attention_operands(o, r, o->in, o->out[0], o->out[1], &o->in[3]);
    of.sinks = at(o->in[5], r);
    of.largest = at(o->out[2], r);
    of.largest_pitch = o->out[2] ? o->out[2]->pitch : 0;
    launched(o, launch_attention(r->stream, o->in[0]->type, &of));
}

void cuda_attention_grad(const op *o, const run_context *r)
{
    if (op_run_prepared(o, r))
        return;
    launch_attention_operands of = attention_operands(o, r, &o->in[1], o->in[4], o->in[5], &o->in[6]);
    launch_attention_gradients to = {.dq = matrix(o->out[0], r),
                                     .dk = matrix(o->out[1], r),
                                     .dv = matrix(o->out[2], r),
                                     .dy = matrix(o->in[0], r),
                                     .scratch = at(o->scratch, r)};
    launched(o, launch_attention_grad(r->stream, o->in[1]->type, &to, &of));
}

void cuda_attention_sinks_grad(const op *o, const run_context *r)
{
    const tensor *dy = o->in[0];
    launch_sinks_gradient of = {.dy = matrix(dy, r),
                                .y = matrix(o->in[1], r),
                                .lse = whole(o, o->in[2], r),
                                .sinks = at(o->in[3], r),
                                .dsinks = at(o->out[0], r),
                                .scratch = at(o->scratch, r),
                                .tokens = dy->shape[0],
                                .run = (int32_t)o->in[2]->shape[1],
                                .at = {.heads = o->at.heads, .v_head_size = (int32_t)(dy->shape[1] / o->at.heads)},
                                .accumulate = o->at.accumulate};
    launched(o, launch_attention_sinks_grad(r->stream, dy->type, &of));
}

void cuda_attention_decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *k_cache = o->in[4];
    launch_decode_operands of = {.q = matrix(q, r),
                                 .k = matrix(o->in[1], r),
                                 .v = matrix(o->in[2], r),
                                 .y = matrix(o->out[0], r),
                                 .k_cache = whole(o, k_cache, r),
                                 .v_cache = whole(o, o->in[5], r),
                                 .positions = at(o->in[3], r),
                                 .samples = q->shape[0],
                                 .capacity = k_cache->shape[1],
                                 .at = heads_of(o, o->in[2]),
                                 .sinks = at(o->in[6], r)};
    launched(o, launch_attention_decode(r->stream, q->type, &of));
}

/* ---- latents ---------------------------------------------------------------------------------------------------- */

static launch_keys keys_of(const op *o, const run_context *r, const tensor *k, const tensor *kn, const tensor *kr)
{
    return (launch_keys){.k = matrix(k, r),
                         .kn = matrix(kn, r),
                         .kr = matrix(kr, r),
                         .tokens = k->shape[0],
                         .heads = o->at.heads,
                         .nope = o->at.head_size,
                         .rope = (int32_t)kr->shape[1]};
}

void cuda_join_keys(const op *o, const run_context *r)
{
    launch_keys of = keys_of(o, r, o->out[0], o->in[0], o->in[1]);
    launched(o, launch_join_keys(r->stream, o->in[0]->type, &of));
}

void cuda_split_keys(const op *o, const run_context *r)
{
    launch_keys of = keys_of(o, r, o->in[0], o->out[0], o->out[1]);
    launched(o, launch_split_keys(r->stream, o->in[0]->type, &of));
}

void cuda_latent_decode(const op *o, const run_context *r)
{
    const tensor *q = o->in[0], *cache = o->in[5];
    latent_sizes s = latent_sizes_of(o);
    launch_latent of = {.y = matrix(o->out[0], r),
                        .q = matrix(q, r),
                        .latent = matrix(o->in[1], r),
                        .kr = matrix(o->in[2], r),
                        .w = matrix(o->in[3], r),
                        .cache = whole(o, cache, r),
                        .positions = at(o->in[4], r),
                        .samples = q->shape[0],
                        .capacity = cache->shape[1],
                        .heads = (int32_t)s.heads,
                        .nope = (int32_t)s.nope,
                        .rope = (int32_t)s.rope,
                        .v_head_size = (int32_t)s.v_head_size,
                        .rank = (int32_t)s.rank,
                        .scale = o->at.scale};
    launched(o, launch_latent_decode(r->stream, q->type, &of));
}

/* ---- loss ------------------------------------------------------------------------------------------------------ */

static launch_logits logits_of(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0];
    return (launch_logits){.at = whole(o, logits, r),
                           .targets = at(o->in[1], r),
                           .tokens = logits->shape[0],
                           .columns = logits->shape[1],
                           .count = o->at.vocabulary.ids,
                           .first = o->at.vocabulary.first};
}

void cuda_cross_entropy_stats(const op *o, const run_context *r)
{
    launched(o, launch_cross_entropy_stats(r->stream, o->in[0]->type, whole(o, o->out[0], r), logits_of(o, r)));
}

void cuda_cross_entropy(const op *o, const run_context *r)
{
    const tensor *logits = o->in[0], *stats = o->in[2];
    int64_t tokens = logits->shape[0];
    launch_cross_entropy_in in = {.of = logits_of(o, r),
                                  .stats = whole(o, stats, r),
                                  .scalars = at(o->in[3], r),
                                  .shards = tokens ? stats->shape[0] / tokens : 0,
                                  .accumulate = o->at.accumulate,
                                  .scratch = at(o->scratch, r)};
    launched(o, launch_cross_entropy(r->stream, logits->type, at(o->out[0], r), whole(o, o->out[1], r), in));
}

/* ---- optimizer ------------------------------------------------------------------------------------------------- */

void cuda_sum_squares(const op *o, const run_context *r)
{
    const tensor *g = o->in[0];
    launched(o, launch_sum_squares(r->stream, at(o->out[0], r), at(g, r), g->shape[0], columns_of(g), g->pitch,
                                   o->at.accumulate));
}

void cuda_clip(const op *o, const run_context *r)
{
    launched(o, launch_clip(r->stream, at(o->out[0], r), at(o->in[0], r), at(o->in[1], r)));
}

void cuda_muon_scale(const op *o, const run_context *r)
{
    const tensor *gram = o->in[0];
    launched(o, launch_muon_scale(r->stream, matrix(o->out[0], r), at(o->out[1], r), matrix(gram, r), gram->shape[0],
                                  o->at.epsilon));
}

void cuda_muon_polynomial(const op *o, const run_context *r)
{
    const tensor *gram = o->in[0];
    launched(o, launch_muon_polynomial(r->stream, matrix(o->out[0], r), matrix(gram, r), matrix(o->in[1], r),
                                       at(o->in[2], r), gram->shape[0]));
}

/* ---- compressed gradients ---------------------------------------------------------------------------------------- */

static launch_parts parts_of(const op *o, const tensor *t, const tensor *message)
{
    return (launch_parts){.rows = t->shape[0],
                          .width = columns_of(t),
                          .bytes = message->shape[1],
                          .parts = compression_parts(o, t),
                          .kind = o->at.compression.kind,
                          .density = (double)o->at.compression.density};
}

void cuda_compress(const op *o, const run_context *r)
{
    const tensor *gradient = o->in[0], *message = o->out[0];
    launch_parts of = parts_of(o, gradient, message);
    launched(o, launch_compress(r->stream, whole(o, message, r), whole(o, o->out[1], r), whole(o, gradient, r),
                                whole(o, o->in[1], r), at(o->in[2], r), &of));
}

void cuda_decompress(const op *o, const run_context *r)
{
    const tensor *messages = o->in[0], *y = o->out[0];
    launch_parts of = parts_of(o, y, messages);
    launched(o, launch_decompress(r->stream, whole(o, y, r), whole(o, messages, r), at(o->in[1], r),
                                  o->at.compression.messages, &of));
}

void cuda_store_feedback(const op *o, const run_context *r)
{
    const tensor *y = o->out[0];
    launched(o, launch_keep(r->stream, byte_matrix(y, r), byte_matrix(o->in[0], r), at(o->in[1], r), y->shape[0],
                            columns_of(y) * dtype_bytes((dtype)y->type)));
}

/* ---- working memory -------------------------------------------------------------------------------------------- */

static int64_t column_sum_scratch(const op *o)
{
    return launch_column_sum_scratch(o->in[0]->shape[0], o->in[0]->shape[1]);
}

static int64_t embed_grad_scratch(const op *o)
{
    return launch_embed_grad_scratch(o->in[0]->shape[0], o->out[0]->shape[0]);
}

static int64_t norm_grad_scratch(const op *o)
{
    return launch_norm_grad_scratch(o->in[1]->shape[0], o->in[1]->shape[1], o->out[2] != NULL);
}

static int64_t head_norm_grad_scratch(const op *o)
{
    return launch_head_norm_grad_scratch(o->in[2]->shape[0], heads_of(o, NULL));
}

static int64_t width_dots_scratch(const op *o)
{
    return launch_width_dots_scratch(o->in[2]->shape[0], o->in[2]->shape[1] + o->in[3]->shape[1]);
}

static int64_t attention_grad_scratch(const op *o)
{
    return launch_attention_grad_scratch(o->in[1]->shape[0], heads_of(o, o->in[3]));
}

static int64_t attention_sinks_grad_scratch(const op *o)
{
    return launch_attention_grad_scratch(o->in[0]->shape[0], (launch_heads){.heads = o->at.heads});
}

static int64_t cross_entropy_scratch(const op *o)
{
    return launch_cross_entropy_scratch(o->in[0]->shape[0]);
}

static int64_t assign_scratch(const op *o)
{
    return launch_assign_scratch(tensor_elements(o->in[0]), o->at.routing.local);
}

static int64_t slots_scratch(const op *o)
{
    return launch_assign_scratch(tensor_elements(o->in[0]), o->at.routing.slots);
}

static int64_t balance_scratch(const op *o)
{
    return launch_balance_scratch(o->in[0]->shape[0]);
}

int64_t bind_scratch_bytes(const op *o, int threads)
{
    static int64_t (*const of[OP_COUNT])(const op *) = {
        [OP_bias_grad] = column_sum_scratch,
        [OP_rmsnorm_grad] = norm_grad_scratch,
        [OP_layernorm_grad] = norm_grad_scratch,
        [OP_head_norm_grad] = head_norm_grad_scratch,
        [OP_embed_grad] = embed_grad_scratch,
        [OP_add_positions_grad] = embed_grad_scratch,
        [OP_attention_grad] = attention_grad_scratch,
        [OP_attention_sinks_grad] = attention_sinks_grad_scratch,
        [OP_cross_entropy] = cross_entropy_scratch,
        [OP_width_dots] = width_dots_scratch,
        [OP_assign] = assign_scratch,
        [OP_slots] = slots_scratch,
        [OP_balance] = balance_scratch,
    };
    (void)threads;
    return of[o->kind] ? of[o->kind](o) : 0;
}
