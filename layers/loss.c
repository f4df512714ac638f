/* Output projection and cross-entropy over a vocabulary that is divided over the tensor ranks, and over the stages if
 * asked, a chunk of tokens at a time. The loss ends the forward pass and its own gradient is a known constant, so the
 * gradient of a chunk's logits is computed where the logits lie, and used at once: full logits exist neither on one
 * rank nor at one time. */
#include "layers/layer.h"

/* Targets of a pass over the head, and the loss that it adds to. */
typedef struct labels {
    tensor *targets, *scalars, *loss;
    bool last; /* this is the head's last use */
} labels;

typedef struct chunk {
    const labels *of;
    int index;
    tensor *x;  /* [tokens of the chunk, hidden] */
    tensor *dx; /* the same rows of its cotangent; NULL without training */
    tensor *targets;
} chunk;

/* Makes the logits that the loss sees from the head's output. */
static tensor *record_cap(recorder *r, const loss_layer *l, tensor *logits)
{
    return l->cap != 0 ? record_soft_cap(r, "loss/cap", logits, l->cap) : logits;
}

/* Makes the gradient of the head's output from that of the logits. */
static tensor *record_cap_gradient(recorder *r, const loss_layer *l, tensor *dlogits, tensor *logits)
{
    op back = {.kind = OP_soft_cap_grad, .in = {dlogits, logits}, .at.constants.cap = (float)l->cap};
    return l->cap != 0 ? recorder_record(r, "loss/dcap", &back, 1, NULL)->out[0] : dlogits;
}

/* Makes the statistics of the logits of all tensor ranks. */
static tensor *record_statistics(recorder *r, const loss_layer *l, tensor *logits, tensor *targets)
{
    op_attributes at = {.vocabulary = {l->first, l->count}};
    op seen = {.kind = OP_cross_entropy_stats, .in = {logits, targets}, .at = at};
    tensor *stats = recorder_record(r, "loss/stats", &seen, 1, NULL)->out[0];
    return record_all_gather_replicate(r, "loss/gather stats", AXIS_TENSOR, stats,
                                       stats->shape[0] * r->grid.group[AXIS_TENSOR].ranks);
}

/* Adds the loss; returns the gradient of the logits when training, else NULL. */
static tensor *record_loss(recorder *r, const loss_layer *l, const chunk *c, tensor *logits, tensor *stats)
{
    op loss = {.kind = OP_cross_entropy, .in = {logits, c->targets, stats, c->of->scalars}, .out = {c->of->loss}};
    loss.at = (op_attributes){.vocabulary = {l->first, l->count}};
    loss.at.accumulate = c->index == 0 ? OP_WRITES_FIRST : OP_ADDS;
    return recorder_record(r, "loss/loss", &loss, r->training ? 2 : 0, NULL)->out[1];
}

static void record_weight_gradient(recorder *r, tensor *dlogits, tensor *x, tensor *head)
{
    op weight = {.kind = OP_linear_grad_weight, .in = {dlogits, x}};
    weight.out[0] = recorder_gradient(r, head, &weight.at.accumulate);
    recorder_record(r, "loss/dw", &weight, 0, NULL);
}

static void chunk_loss(recorder *r, const loss_layer *l, tensor *head, chunk c)
{
    tensor *logits = record_linear(r, "loss/head", c.x, head, NULL);
    tensor *capped = record_cap(r, l, logits);
    tensor *dlogits = record_loss(r, l, &c, capped, record_statistics(r, l, capped, c.targets));
    if (!dlogits)
        return;
    dlogits = record_cap_gradient(r, l, dlogits, logits);
    op back = {.kind = OP_linear_grad_input, .in = {dlogits, head}};
    recorder_record(r, "loss/dx", &back, 0, (tensor *[OP_MAX_OUT]){c.dx});
    record_weight_gradient(r, dlogits, c.x, head);
}

/* Undoes the effect of entering the head on the tokens' cotangent, too. */
static tensor *leave_backward(recorder *r, tensor *dx)
{
    return r->grid.sequence ? record_reduce_scatter(r, "loss/scatter dx", AXIS_TENSOR, dx)
                            : record_all_reduce(r, "loss/reduce dx", AXIS_TENSOR, dx);
}

/* ---- the multi-token prediction module --------------------------------------------------------------------------- */

/* Records the MTP module, which predicts the token after the next (2412.19437, section 2.2; 2404.19737). It reads the
 * head's input, h, and the embedding of the next token, each through a norm of its own:
 *
 *     x_i = W [norm(embedding of token i + 1) | norm(h_i)]
 *
 * Then come a block like the last layer and a norm of its own, the output of which is returned; the head is the
 * model's. Tokens without a next one (target -1) have an embedding of zeros, and no label. `next`: the embedding of the
 * next tokens, or NULL where the module's table has it. */
static tensor *record_mtp(recorder *r, const mtp_module *m, const layer_inputs *in, tensor *h, tensor *next)
{
    const mtp_layer *own = &m->block->mtp;
    tensor *x = layer_multiply(r, next ? next : layer_embed(r, &m->embedding, in->targets), m->embedding.multiplier);
    recorder_keep(x); /* recomputing it would sum it again over the tensor ranks */
    x = layer_norm_of(r, "mtp/embedding norm", x, &own->enorm, in);
    h = layer_norm_of(r, "mtp/hidden norm", h, &own->hnorm, in);
    x = record_join_keys(r, "mtp/join", x, h, 1); /* side by side, as one head's key is made of two parts */
    stream s = {.sum = record_linear(r, "mtp/of both", x, recorder_weight(r, own->joined), NULL)};
    layer_block(r, &s, m->block, in);
    tensor *y = layer_norm(r, &s, &own->norm, in);
    recorder_keep(s.sum);
    return y;
}

void layer_last(recorder *r, tensor *out[LAYER_HEAD_PASSES], stream *s, const loss_layer *l, const mtp_module *m,
                const layer_inputs *in, tensor *next)
{
    tensor *h = layer_norm(r, s, &l->norm, in);
    out[0] = layer_multiply(r, h, l->multiplier);
    out[1] = NULL;
    if (!m)
        return;
    recorder_keep(s->sum);
    recorder_layer(r, m->number);
    out[1] = layer_multiply(r, record_mtp(r, m, in, h, next), l->multiplier);
    recorder_layer(r, -1);
}

/* Returns the labels of a pass over the head; `last`: it is the head's last use. */
static labels labels_of(const layer_inputs *in, int pass, bool last)
{
    return pass == 0
               ? (labels){.targets = in->targets, .scalars = in->scalars, .loss = in->loss, .last = last}
               : (labels){
                     .targets = in->second_targets, .scalars = in->mtp_scalars, .loss = in->mtp_loss, .last = last};
}

/* Records the loss of y, in chunks. The first one fetches the head; later ones add to its gradient. */
static void take_loss(recorder *r, const loss_layer *l, tensor **head, tensor *y, const labels *of)
{
    int from = r->body[PHASE_FORWARD].count;
    tensor *x = layer_enter(r, y); /* [tokens, hidden] */
    tensor *dx = NULL;
    if (r->training)
        dx = recorder_input(r, "loss/dx", r->compute, 2, x->shape, place_cotangent(x->place));
    *head = *head ? *head : recorder_weight(r, l->head);
    int64_t tokens = x->shape[0], chunk_tokens = l->chunk_tokens > 0 ? l->chunk_tokens : tokens;
    for (int64_t first = 0; first < tokens; first += chunk_tokens) {
        int64_t count = tokens - first < chunk_tokens ? tokens - first : chunk_tokens;
        chunk c = {.of = of, .index = (int)(first / chunk_tokens), .x = recorder_rows(r, x, first, count)};
        c.dx = dx ? recorder_rows(r, dx, first, count) : NULL;
        c.targets = recorder_rows(r, of->targets, first, count);
        chunk_loss(r, l, *head, c);
    }
    if (!dx)
        return;
    if (of->last)
        recorder_gradient_done(r, *head, true);
    recorder_start_backward(r, y, leave_backward(r, dx));
    for (int i = from; i < r->body[PHASE_FORWARD].count; i++)
        r->body[PHASE_FORWARD].ops[i]->detached = true;
}

void layer_loss(recorder *r, stream *s, const loss_layer *l, const mtp_module *m, const layer_inputs *in)
{
    tensor *head = NULL, *h = layer_norm(r, s, &l->norm, in);
    const labels first = labels_of(in, 0, !m), second = labels_of(in, 1, true);
    recorder_keep(s->sum);
    take_loss(r, l, &head, layer_multiply(r, h, l->multiplier), &first);
    if (!m)
        return;
    recorder_layer(r, m->number);
    take_loss(r, l, &head, layer_multiply(r, record_mtp(r, m, in, h, NULL), l->multiplier), &second);
    recorder_layer(r, -1);
}

/* Keeps the logits of a whole micro-batch: each stage has few columns of them. The backward pass recomputes their
 * cap. */
head_pass layer_head(recorder *r, const loss_layer *l, const layer_inputs *in, int pass, tensor *y)
{
    head_pass h = {.x = layer_enter(r, y), .head = recorder_weight(r, l->head)};
    h.logits = record_linear(r, "loss/head", h.x, h.head, NULL);
    recorder_keep(h.logits);
    h.statistics = record_statistics(r, l, record_cap(r, l, h.logits), labels_of(in, pass, true).targets);
    return h;
}

tensor *layer_head_loss(recorder *r, const loss_layer *l, const layer_inputs *in, int pass, const head_pass *h,
                        tensor *statistics)
{
    const labels of = labels_of(in, pass, true);
    chunk c = {.of = &of, .index = 0, .targets = of.targets};
    tensor *logits = recorder_use(r, h->logits);
    tensor *dlogits = record_loss(r, l, &c, record_cap(r, l, logits), statistics);
    if (!dlogits)
        return NULL;
    dlogits = record_cap_gradient(r, l, dlogits, logits);
    tensor *head = recorder_use(r, h->head);
    op back = {.kind = OP_linear_grad_input, .in = {dlogits, head}};
    tensor *dx = leave_backward(r, recorder_record(r, "loss/dx", &back, 1, NULL)->out[0]);
    record_weight_gradient(r, dlogits, recorder_use(r, h->x), head);
    recorder_gradient_done(r, head, true);
    return dx;
}

tensor *layer_logits(recorder *r, stream *s, const loss_layer *l, const layer_inputs *in)
{
    tensor *y[LAYER_HEAD_PASSES];
    layer_last(r, y, s, l, NULL, in, NULL);
    tensor *x = layer_enter(r, y[0]);
    return record_cap(r, l, record_linear(r, "head", x, recorder_weight(r, l->head), NULL));
}
