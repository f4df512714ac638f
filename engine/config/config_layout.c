/* Checks the rules of a layout, and makes a run's grid. Each rule is a function with the message that a user reads. The
 * rules of layout_sizes hold for every caller; the others compare a layout with other keys. */
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/heads.h"
#include "kernels/record/storage.h"
#include "kernels/token.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/partition.h"
#include "engine/config/config.h"

/* ---- rules of the sizes alone ---- */

typedef struct layout_sizes {
    const model_shape *shape;
    const int *ranks; /* [GRID_AXES] */
    int virtual_stages;
    int64_t sequence;
} layout_sizes;

/* Each context rank has two runs of each sample (zig-zag shards), all of one length. */
static status check_context(const layout_sizes *s)
{
    int64_t runs = TOKEN_RUNS * (int64_t)s->ranks[GRID_CONTEXT];
    if (s->ranks[GRID_CONTEXT] > 1 && s->sequence % runs)
        return status_fail(STATUS_USAGE,
                           "train.sequence %" PRId64 " is not a multiple of 2 x parallel.context %d: each rank has two "
                           "runs of a sample; use a multiple of %" PRId64,
                           s->sequence, s->ranks[GRID_CONTEXT], runs);
    return STATUS_OK;
}

static status check_tensor(const layout_sizes *s)
{
    int ranks = s->ranks[GRID_TENSOR], heads = s->shape->heads, kv_heads = s->shape->kv_heads;
    if (heads % ranks)
        return status_fail(STATUS_USAGE, "parallel.tensor %d does not divide model.heads %d: choose a divisor", ranks,
                           heads);
    if (kv_heads % ranks && ranks % kv_heads)
        return status_fail(STATUS_USAGE,
                           "parallel.tensor %d must divide model.kv_heads %d or be a multiple of it: choose another",
                           ranks, kv_heads);
    return STATUS_OK;
}

static status check_chunks(const layout_sizes *s)
{
    int stages = s->ranks[GRID_PIPELINE];
    if ((int64_t)stages * s->virtual_stages > (int64_t)s->shape->layers + (stages > 1 ? 2 : 0))
        return status_fail(
            STATUS_USAGE,
            "parallel.pipeline %d x virtual_stages %d leaves runs without a layer, besides the first and "
            "the last: model.layers is %d",
            stages, s->virtual_stages, s->shape->layers);
    return STATUS_OK;
}

status config_check_sizes(const model_shape *shape, const int size[GRID_AXES], int virtual_stages, int64_t sequence)
{
    static status (*const rules[])(const layout_sizes *) = {check_context, check_tensor, check_chunks};
    const layout_sizes s = {shape, size, virtual_stages, sequence};
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        TRY(rules[i](&s));
    return STATUS_OK;
}

/* ---- rules between a layout and other keys ---- */

static status check_compress(const config *c)
{
    if (c->parallel.compress && storage_shares(c->parallel.zero, CLASS_GRADIENT))
        return status_fail(
            STATUS_USAGE,
            "parallel.compress %s needs whole gradients to compress, which parallel.zero %d does not keep: "
            "use parallel.zero 1 or 0",
            config_word(c, "parallel.compress"), c->parallel.zero);
    if (c->parallel.compress && c->model.shape.experts > 0)
        return status_fail(
            STATUS_USAGE,
            "parallel.compress %s knows one set of ranks that hold the same weights, and those of experts "
            "are another: use none",
            config_word(c, "parallel.compress"));
    if (c->parallel.compress && heads_copies(c->model.shape.kv_heads, c->parallel.size[GRID_TENSOR]) > 1)
        return status_fail(
            STATUS_USAGE,
            "parallel.compress %s would round the copies of key/value heads differently: parallel.tensor "
            "may be at most model.kv_heads %d",
            config_word(c, "parallel.compress"), c->model.shape.kv_heads);
    return STATUS_OK;
}

/* Each rank of a tensor group must have tokens of its own. */
static status check_expert(const config *c)
{
    const model_shape *s = &c->model.shape;
    int expert = c->parallel.expert, across = c->parallel.size[GRID_TENSOR];
    if (expert > 1 && s->experts == 0)
        return status_fail(STATUS_USAGE, "parallel.expert %d: the model has no experts to divide; leave it out",
                           expert);
    if (expert > s->experts && expert > 1)
        return status_fail(STATUS_USAGE, "parallel.expert %d is more than model.experts %d: use at most that many",
                           expert, s->experts);
    if (s->expert_drop && expert == 1)
        return status_fail(
            STATUS_USAGE,
            "model.expert_drop drops rows beyond the share of a rank of parallel.expert, and with 1 a rank "
            "has all experts and room for all rows: leave it out, or divide the experts");
    if (shape_routers(s) > 0 && across > 1 && !c->parallel.sequence)
        return status_fail(STATUS_USAGE,
                           "parallel.sequence false with parallel.tensor %d would compute each token's experts on all "
                           "tensor ranks: set it true",
                           across);
    return STATUS_OK;
}

static status check_mtp(const config *c)
{
    if (c->model.shape.mtp_layers == 0)
        return STATUS_OK;
    if (c->model.router_over == LAYER_BALANCE_POOLED && c->model.shape.router_loss > 0)
        return status_fail(
            STATUS_USAGE, "model.router_loss_over pooled is over all layers, and model.mtp_layers 1 has a block behind "
                          "them: use sequence, layer or batch");
    if (c->train.sequence < 2)
        return status_fail(STATUS_USAGE,
                           "model.mtp_layers 1 predicts the token after the next: train.sequence must be at least 2");
    return STATUS_OK;
}

/* `stage`: the number of ranks of one stage, a multiple of a block's. */
static status check_blocks(const config *c, int64_t stage)
{
    if (stage % c->parallel.expert)
        return status_fail(STATUS_USAGE,
                           "parallel.expert %d does not divide tensor x context x data, which is %" PRId64
                           " ranks: choose a divisor",
                           c->parallel.expert, stage);
    int64_t tokens = c->train.micro_batch * c->train.sequence / c->parallel.size[GRID_CONTEXT];
    if (c->parallel.expert > 1 && tokens % c->parallel.size[GRID_TENSOR])
        return status_fail(STATUS_USAGE,
                           "parallel.expert %d wants as many tokens on each rank: train.micro_batch x train.sequence / "
                           "parallel.context is %" PRId64 ", and parallel.tensor %d does not divide it",
                           c->parallel.expert, tokens, c->parallel.size[GRID_TENSOR]);
    return STATUS_OK;
}

/* Checks that parallel/schedule/partition.h finds a division. */
static status check_pipeline(const config *c)
{
    const config_integers *list = &c->parallel.layers_per_stage;
    int stages = c->parallel.size[GRID_PIPELINE], virtual_stages = config_virtual_stages(&c->parallel);
    int needed = schedule_kind_chunks(c->parallel.schedule);
    if (stages > 1 && needed && virtual_stages != needed)
        return status_fail(STATUS_USAGE, "parallel.schedule %s needs parallel.virtual_stages %d, not %d: change one",
                           schedule_name(c->parallel.schedule), needed, virtual_stages);
    const int64_t runs = (int64_t)stages * virtual_stages;
    if (config_divides_vocabulary(&c->parallel, stages) &&
        (runs > c->model.shape.layers || (list->count && (list->item[0] < 1 || list->item[list->count - 1] < 1))))
        return status_fail(STATUS_USAGE, "parallel.vocabulary stages leaves nothing to a first or last run without a "
                                         "layer: use ends, or give each run a layer");
    if (!list->count)
        return STATUS_OK;
    AUTO_FREE int *counts = must_calloc((unsigned long)stages * (unsigned long)virtual_stages, sizeof *counts);
    return partition_given(counts, list->item, list->count, c->model.shape.layers, stages, virtual_stages);
}

/* `data`: ranks that divide a step's samples; `together`: samples of one micro-batch over all of them. */
static status check_data(const config *c, int data, int64_t together)
{
    for (int i = 0; i + 1 < batch_ramp_stages(c); i++)
        if (batch_ramp_samples(c, i) % together)
            return status_fail(STATUS_USAGE,
                               "train.batch_ramp: %d is not a multiple of train.micro_batch %d x %d data-parallel "
                               "ranks: use multiples of %" PRId64,
                               batch_ramp_samples(c, i), c->train.micro_batch, data, together);
    if (c->train.global_batch % together)
        return status_fail(STATUS_USAGE,
                           "train.global_batch %d is not a multiple of train.micro_batch %d x %d data-parallel ranks: "
                           "use a multiple of %" PRId64,
                           c->train.global_batch, c->train.micro_batch, data, together);
    return STATUS_OK;
}

status config_check_layout(const config *c)
{
    TRY(config_check_sizes(&c->model.shape, c->parallel.size, config_virtual_stages(&c->parallel), c->train.sequence));
    if (c->parallel.balance == CONFIG_BALANCE_DOCUMENTS && !c->data.document_mask)
        return status_fail(STATUS_USAGE, "parallel.context_balance documents is for samples of masked documents: set "
                                         "data.document_mask true, or leave it at halves, which have equal work");
    if (c->parallel.context_gather == CONFIG_GATHER_LATENT && c->model.shape.kv_lora_rank == 0)
        return status_fail(STATUS_USAGE,
                           "parallel.context_gather latent is for models with model.kv_lora_rank: the others have no "
                           "latents; use keys, or leave it at auto");
    TRY(check_compress(c));
    TRY(check_pipeline(c));
    TRY(check_expert(c));
    if (c->model.router_over == LAYER_BALANCE_POOLED && c->parallel.size[GRID_PIPELINE] > 1)
        return status_fail(STATUS_USAGE,
                           "model.router_loss_over pooled is over all layers, and parallel.pipeline %d "
                           "divides them: use sequence or layer",
                           c->parallel.size[GRID_PIPELINE]);
    TRY(check_mtp(c));
    const int data = c->parallel.size[GRID_DATA];
    return data ? check_data(c, data, (int64_t)c->train.micro_batch * data) : STATUS_OK;
}

/* ---- grids and derived sizes ---- */

status config_make_grid(grid *out, const config *c, int ranks, int rank)
{
    int64_t all = ranks ? ranks : grid_ranks_of(c->parallel.size);
    if (all > INT32_MAX)
        return status_fail(STATUS_USAGE, "parallel.tensor x pipeline x data = %lld ranks are too many", (long long)all);
    TRY(grid_make(out, (int)all, rank, c->parallel.size));
    config_set_expert_blocks(out, &c->parallel);
    TRY(check_blocks(c, all / out->size[GRID_PIPELINE]));
    return check_data(c, grid_group_size(out, AXIS_SAMPLES), config_samples_together(out, c->train.micro_batch));
}

void config_set_expert_blocks(grid *out, const config_layout *l)
{
    out->block[AXIS_EXPERT] = l->expert > 1 ? l->expert : 1;
}

int64_t config_samples_together(const grid *g, int64_t micro_batch)
{
    return micro_batch * grid_group_size(g, AXIS_SAMPLES);
}

int config_microbatches(const grid *g, int micro_batch, int samples)
{
    return (int)(samples / config_samples_together(g, micro_batch));
}

int64_t config_step_tokens(const config *c)
{
    return c->train.global_batch * c->train.sequence;
}

int config_virtual_stages(const config_layout *l)
{
    return l->size[GRID_PIPELINE] > 1 ? l->virtual_stages : 1;
}

bool config_divides_vocabulary(const config_layout *l, int stages)
{
    return l->vocabulary == CONFIG_VOCABULARY_STAGES && stages > 1;
}

bool config_layout_same(const config_layout *a, const config_layout *b)
{
    return memcmp(a->size, b->size, sizeof a->size) == 0 && a->virtual_stages == b->virtual_stages &&
           a->schedule == b->schedule && a->schedule_for == b->schedule_for && a->sequence == b->sequence &&
           a->order == b->order && a->context_gather == b->context_gather && a->expert == b->expert &&
           a->expert_dispatch == b->expert_dispatch && a->zero == b->zero && a->vocabulary == b->vocabulary &&
           a->balance == b->balance && a->zero_gather == b->zero_gather && a->zero_reduce == b->zero_reduce &&
           a->layers_per_stage.item == b->layers_per_stage.item &&
           a->layers_per_stage.count == b->layers_per_stage.count && a->bucket == b->bucket &&
           a->compress == b->compress && a->density == b->density;
}
