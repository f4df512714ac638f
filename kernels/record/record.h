/* One function an op, for layers to call: each appends one op to the body being recorded and returns its (first)
 * output. Each is defined beside the rest of its op, in kernels/ops/. */
#pragma once

#include "kernels/record/recorder.h"

tensor *record_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *bias);
/* Records the same in fp32, whatever the type of x and w. */
tensor *record_linear_wide(recorder *r, const char *name, tensor *x, tensor *w);
/* Multiplies each row of x[R, c] by its expert's weight; w[E n, c], offsets int32[E + 1], bias[E n] or NULL */
tensor *record_grouped_linear(recorder *r, const char *name, tensor *x, tensor *w, tensor *offsets, tensor *bias);
tensor *record_embed(recorder *r, const char *name, tensor *tokens, tensor *table, int64_t first_row);
tensor *record_add_positions(recorder *r, const char *name, tensor *x, tensor *positions, tensor *table);
typedef struct record_norm_of {
    tensor *w, *b; /* b NULL: RMSNorm */
    float epsilon;
    float offset; /* added to an RMS norm's weight */
} record_norm_of;

/* residual may be NULL; *sum is then x itself */
tensor *record_norm(recorder *r, const char *name, tensor **sum, tensor *x, tensor *residual, record_norm_of n);
/* Attention's inputs: q [tokens, heads head_size], k [tokens, kv_heads head_size], v [tokens, kv_heads v_head_size]. */
typedef struct record_qkv {
    tensor *q, *k, *v;
} record_qkv;
/* Splits [tokens, heads head_size | kv_heads head_size | v], which a product made, into columns. */
record_qkv record_split_heads(recorder *r, tensor *qkv, const op_attributes *at);
/* These three change q and k. */
void record_head_norm(recorder *r, const char *name, record_qkv *x, tensor *wq, tensor *wk, const op_attributes *at);
/* Normalises over all heads, of this rank and of the others along the tensor axis. */
void record_width_norm(recorder *r, const char *name, record_qkv *x, tensor *wq, tensor *wk, const op_attributes *at);
/* Rotates q and k. at->kv_heads 0: x->k [tokens, r] is one head for all of q's; the last r elements of each rotate. */
void record_rope(recorder *r, const char *name, record_qkv *x, tensor *positions, tensor *table,
                 const op_attributes *at);
/* Joins keys [tokens, heads (nope + rope)] of latent attention: each head of kn [tokens, heads nope], perhaps columns
 * of a wider matrix, and then kr [tokens, rope], which all heads share. Where ranks divide the heads (shard 1), kr is
 * shared by shards (record_copy_to_shards()): its cotangent is a partial sum. */
tensor *record_join_keys(recorder *r, const char *name, tensor *kn, tensor *kr, int heads);
/* Inputs of decoding over latents, from the new tokens, one a sample: q [samples, heads (nope + rope)] and kr [samples,
 * rope], both rotated, the latent [samples, rank], and w [heads (nope + v_head_size), rank], which makes all heads'
 * keys and below them all heads' values. */
typedef struct record_latent {
    tensor *q, *latent, *kr, *w;
} record_latent;
/* y [samples, heads v_head_size]. cache [samples, positions, rank + rope] gets the new tokens at positions int32
 * [samples] first. at: heads of this rank, and the scale of scores. The cache is whole on each rank that divides the
 * heads. Never differentiated. */
tensor *record_latent_decode(recorder *r, const char *name, const record_latent *in, tensor *positions, tensor *cache,
                             const op_attributes *at);
/* Records attention. `token_positions` NULL: queries are all tokens; else q has this rank's tokens, and k and v all
 * tokens, gathered. sinks[heads], or NULL. */
tensor *record_attention(recorder *r, const char *name, const record_qkv *in, tensor *document_start,
                         tensor *token_positions, tensor *sinks, const op_attributes *at);
/* Records the same without sinks and a cap; peaks fp32[heads] become the max logit of each head over the step's
 * micro-batches. */
tensor *record_attention_noted(recorder *r, const char *name, const record_qkv *in, tensor *document_start,
                               tensor *token_positions, tensor *max_logits, const op_attributes *at);
/* Puts rows of x at their positions among all. */
tensor *record_arrange(recorder *r, const char *name, tensor *x, tensor *token_positions);
tensor *record_copy(recorder *r, const char *name, tensor *x);
/* Converts x to another type, which it must not have already. Never differentiated. */
tensor *record_cast(recorder *r, const char *name, tensor *x, dtype type);
tensor *record_geglu(recorder *r, const char *name, tensor *x);
/* y = factor x */
tensor *record_scale(recorder *r, const char *name, tensor *x, double factor);
/* y = cap tanh(x / cap), cap > 0 */
tensor *record_soft_cap(recorder *r, const char *name, tensor *x, double cap);
/* gelu in its tanh form, and as it is defined (1606.08415) */
tensor *record_gelu(recorder *r, const char *name, tensor *x);
tensor *record_gelu_exact(recorder *r, const char *name, tensor *x);
tensor *record_swiglu(recorder *r, const char *name, tensor *x);
/* Activates x, pairs of a gate and an up: gate sigmoid(slope gate) (1 + up), with gates up to `limit` > 0, and ups
 * between -limit and limit */
tensor *record_swiglu_clamped(recorder *r, const char *name, tensor *x, double limit, double slope);
tensor *record_add(recorder *r, const char *name, tensor *a, tensor *b);
tensor *record_dropout(recorder *r, const char *name, tensor *x, tensor *scalars, tensor *token_positions,
                       const op_attributes *at);
/* Chooses experts: weights fp32[t, k] and experts int32[t, k] of logits[t, E], by score + bias fp32[E] (or NULL). */
void record_route(recorder *r, const char *name, tensor **weights, tensor **experts, tensor *logits, tensor *bias,
                  const op_routing *as);
typedef struct record_row_ids {
    tensor *row_ids, *offsets; /* int32[t, k], int32[as->local + 1] */
} record_row_ids;
/* Assigns row ids to the `rows` rows from as->skip on, out of the assignments to experts from `first` on. */
record_row_ids record_assign(recorder *r, const char *name, tensor *experts, int64_t rows, const op_routing *as,
                             int64_t first);
/* Outputs of record_slots(). */
typedef struct record_slots_out {
    tensor **row_ids, **ids, **offsets; /* int32[t, k], int32[rows, 1], int32[as->slots + 1] */
} record_slots_out;
/* Gives each rank that divides the experts a slot of equally many of the `rows` rows; each slot has its assignments
 * from as->skip on. */
void record_slots(recorder *r, const char *name, const record_slots_out *out, tensor *experts, int64_t rows,
                  const op_routing *as);
/* Counts rows beyond each bucket's capacity, and adds the numbers to `over`. */
void record_overflow(recorder *r, const char *name, tensor *over, tensor *experts, const op_capacity *as,
                     int64_t first);
/* Copies tokens of x[t, h] to their rows among the `rows` in `slots` slots (0: none): rows[rows, h], 0 elsewhere. */
tensor *record_dispatch(recorder *r, const char *name, tensor *x, tensor *row_ids, tensor *offsets, int64_t rows,
                        int slots);
/* y[t, h] = addend + the sum of each token's rows, times weights; both may be NULL. */
typedef struct record_combine_in {
    tensor *rows, *row_ids, *weights, *offsets, *addend;
    int slots; /* slots of the rows; 0: none */
} record_combine_in;
tensor *record_combine(recorder *r, const char *name, const record_combine_in *in);
/* Counts the load of experts (int32[t, k], each token's choices) by group, `scale` times the counts: fp32[as->groups,
 * as->experts], summed over the tensor and context ranks that divide samples' tokens. Never differentiated.
 * `token_positions` here and below: NULL where token t is at t. */
tensor *record_expert_load(recorder *r, const char *name, tensor *experts, tensor *token_positions,
                           const op_balance *as, double scale);
/* Adds to counts int32[E] how many tokens chose each expert (int32[t, k], each token's choices). */
void record_expert_count(recorder *r, const char *name, tensor *counts, tensor *experts);
/* fp32[1, E] = E times the share that each of counts int32[E] has of their sum, of all ranks that divide tokens. */
tensor *record_expert_share(recorder *r, const char *name, tensor *counts);
/* Inputs of the losses that balance experts; `token_positions` may be NULL. */
typedef struct record_balance_in {
    tensor *logits, *load, *token_positions;
} record_balance_in;
/* Adds to sums fp32[2], which the caller has zeroed: the loss for imbalance and the z-loss, each without its
 * coefficient. */
void record_balance(recorder *r, const char *name, tensor *sums, const record_balance_in *in, const op_balance *as);
/* Returns x; its uses bring the gradients of these losses to the logits. */
tensor *record_balance_through(recorder *r, const char *name, tensor *x, const record_balance_in *in, tensor *scalars,
                               const op_balance *as);
/* Communication along an axis on which layers may record (kernels/table/axes.def); the identity (no op at all) in a
 * group of one. `rows` of the whole, which the ranks divide by shard_rows(): they need not be a multiple of the ranks.
 * */
tensor *record_all_gather(recorder *r, const char *name, axis a, tensor *x, int64_t rows);
/* Gathers a tensor that has no sum of cotangents: it is a cotangent itself, or is not differentiated. */
tensor *record_all_gather_replicate(recorder *r, const char *name, axis a, tensor *x, int64_t rows);
tensor *record_reduce_scatter(recorder *r, const char *name, axis a, tensor *x);
/* Sends equally many rows to each rank, in rank order, and returns the rows that each rank has for this one. */
tensor *record_all_to_all(recorder *r, const char *name, axis a, tensor *x);
tensor *record_all_reduce(recorder *r, const char *name, axis a, tensor *x);
/* Converts rows divided by the coordinates to rows of AXIS_EXPERT and AXIS_EXPERT_DATA, or back. */
tensor *record_regroup(recorder *r, const char *name, tensor *x, bool back);
tensor *record_copy_to_shards(recorder *r, const char *name, axis a, tensor *x);
