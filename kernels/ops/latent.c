/* Multi-head latent attention (2405.04434): joins keys from each head's own part and the part that all share, and
 * attends one new token to a cache of latents. */
#include "kernels/attention.h"
#include "kernels/ops/family.h"

tensor *record_join_keys(recorder *r, const char *name, tensor *kn, tensor *kr, int heads)
{
    const op o = {.kind = OP_join_keys,
                  .in = {kn, kr},
                  .at.heads = {.q = heads, .size = (int32_t)(heads > 0 ? kn->shape[1] / heads : 0)}};
    return record_first(r, name, &o, 1);
}

void infer_join_keys(op *o)
{
    const tensor *kn = o->in[0], *kr = o->in[1];
    OPERANDS_CHECK(o->at.heads.q > 0 && o->at.heads.size > 0 && infer_is_activation(kn) &&
                       kn->shape[1] == (int64_t)o->at.heads.q * o->at.heads.size,
                   "kn[t, heads head_size]");
    OPERANDS_CHECK(infer_is_matrix(kr, (dtype)kn->type, kn->shape[0], kr->shape[1]) && kr->shape[1] > 0,
                   "kr[t, rope] of kn's type");
    infer_shape(o->out[0], (dtype)kn->type, 2, kn->shape[0], kn->shape[1] + o->at.heads.q * kr->shape[1], 0);
    operands_place(o, "rr>r 1s>1 00>0 ss>s");
}

COST(join_keys, cost_moved(o))
GRADIENT_BY(join_keys, gradient_of_each(r, &(op){.kind = OP_split_keys, .in = {cotangent[0]}, .at = o->at}, o->in, 2))

void infer_split_keys(op *o)
{
    const tensor *dk = o->in[0];
    int64_t heads = o->at.heads.q, rope = heads > 0 ? dk->shape[1] / heads - o->at.heads.size : 0;
    OPERANDS_CHECK(infer_is_activation(dk) && rope > 0 && o->at.heads.size > 0 &&
                       dk->shape[1] == heads * (o->at.heads.size + rope),
                   "dk[t, heads (head_size + rope)]");
    infer_shape(o->out[0], (dtype)dk->type, 2, dk->shape[0], heads * o->at.heads.size, 0);
    infer_shape(o->out[1], (dtype)dk->type, 2, dk->shape[0], rope, 0);
    operands_place(o, "r>rr 1>1p 0>00 p>pp");
}

/* An addition for each element of kr and head. */
GRADIENTLESS(split_keys, cost_of(o, cost_elements(o->in[0]) - cost_elements(o->out[0]), 0))

tensor *record_latent_decode(recorder *r, const char *name, const record_latent *in, tensor *positions, tensor *cache,
                             const op_attributes *at)
{
    const op o = {.kind = OP_latent_decode, .in = {in->q, in->latent, in->kr, in->w, positions, cache}, .at = *at};
    return record_first(r, name, &o, 1);
}

static void check_latents(const op *o)
{
    const tensor *q = o->in[0], *latent = o->in[1], *kr = o->in[2], *w = o->in[3], *cache = o->in[5];
    int64_t heads = o->at.heads.q, samples = q->shape[0];
    OPERANDS_CHECK(infer_is_activation(q) && heads > 0 && q->shape[1] % heads == 0, "q[b, heads (nope + rope)]");
    OPERANDS_CHECK(infer_is_matrix(latent, (dtype)q->type, samples, latent->shape[1]) && latent->shape[1] > 0,
                   "latent[b, rank] of q's type");
    OPERANDS_CHECK(infer_is_matrix(kr, (dtype)q->type, samples, kr->shape[1]) && kr->shape[1] > 0 &&
                       kr->shape[1] < q->shape[1] / heads,
                   "kr[b, rope] of q's type, less than a head of q");
    OPERANDS_CHECK(infer_is_matrix(w, (dtype)q->type, w->shape[0], latent->shape[1]) && w->shape[0] % heads == 0 &&
                       w->shape[0] / heads > q->shape[1] / heads - kr->shape[1],
                   "w[heads (nope + v_head_size), rank] of q's type");
    OPERANDS_CHECK(infer_is_vector(o->in[4], DTYPE_INT32, samples), "positions int32[b]");
    OPERANDS_CHECK(cache->dims == 3 && cache->type == q->type && cache->shape[0] == samples && cache->shape[1] > 0 &&
                       cache->shape[2] == latent->shape[1] + kr->shape[1],
                   "cache[b, positions, rank + rope] of q's type");
}

void infer_latent_decode(op *o)
{
    check_latents(o);
    const tensor *q = o->in[0];
    infer_shape(o->out[0], (dtype)q->type, 2, q->shape[0], o->at.heads.q * latent_sizes_of(o).v_head_size, 0);
    operands_place(o, "rrrr.r>r 1ss0.r>1 1ss0.s>1 1rr0.r>1 ssss.s>s");
}

/* Products by w for each head of each sample, and two by the cache, counted at its full length. */
op_cost cost_latent_decode(const op *o)
{
    latent_sizes s = latent_sizes_of(o);
    double heads = (double)(o->in[0]->shape[0] * s.heads), keys = (double)o->in[5]->shape[1];
    double absorbed = (double)((s.nope + s.v_head_size) * s.rank), met = keys * (double)(s.width + s.rank);
    return cost_of(o, 2 * heads * (absorbed + met), 0);
}

NO_GRADIENT(latent_decode)
