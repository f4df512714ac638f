#include "engine/compile/compile.h"

#include <float.h>

#include "engine/compile/compile_find.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/step/compile_program.h"
#include "engine/compile/step/place.h"
#include "engine/compile/step/recompute.h"
#include "engine/compile/time/prices.h"
#include "engine/config/config.h"
#include "memory/arena.h"
#include "memory/scope.h"

int compile_marks(const compiled_program *p)
{
    return (p->list.count + COMPILE_MARK_OPS - 1) / COMPILE_MARK_OPS;
}

int64_t compile_program_nodes(const compiled_program *p)
{
    int64_t nodes = p->list.count ? compile_marks(p) : 0;
    for (int i = 0; i < p->list.count; i++)
        nodes += !op_waits(p->list.ops[i]) && !op_is(p->list.ops[i], OP_CLASS_VIEW);
    return nodes;
}

int64_t compile_graph_nodes(const compiled *c)
{
    int64_t nodes = 0;
    for (int i = 0; c->options.graph && i < COMPILE_PROGRAMS; i++)
        nodes += compile_program_nodes(compile_program_at((compiled *)c, i));
    return nodes;
}

static void grow_bounds(compiled *c, const compiled_program *p)
{
    if (compile_marks(p) > c->marks) {
        c->pinned_bytes += (int64_t)(compile_marks(p) - c->marks) * 4;
        c->marks = compile_marks(p);
    }
    if (c->persistent_bytes + p->transient_bytes > c->arena_bytes)
        c->arena_bytes = c->persistent_bytes + p->transient_bytes;
}

/* A tried chunk of the loss: the cost of a few micro-batches with it (DBL_MAX: they do not fit), and their
 * recomputation. */
typedef struct chunk_tried {
    int64_t tokens;
    double price;
    recompute_decision how; /* owned */
} chunk_tried;

static chunk_tried try_chunk(const compile_options *o, int64_t tokens)
{
    RELEASED_BY(compile_free) compiled c = {0};
    compile_options with = *o;
    chunk_tried tried = {.tokens = tokens, .price = DBL_MAX};
    with.loss_tokens = tokens;
    if (compile_model(&c, &with) == STATUS_OK && recompute_decide(&tried.how, &c, 0, true) == STATUS_OK &&
        compile_program_training(&c.training, &c, &tried.how.keep, recompute_microbatches(o), true) == STATUS_OK)
        tried.price = recompute_price(&c, &c.training.list);
    return tried;
}

/* Finds the cheapest of the price's own chunk and of smaller ones, which are tried while an op must be recomputed; the
 * smallest if none fits. */
static chunk_tried shrink_chunk(const compile_options *o, int64_t priced)
{
    chunk_tried best = {.price = DBL_MAX};
    bool short_of = true;
    for (int64_t tokens = priced; tokens && short_of; tokens = loss_chunk_below(o, tokens)) {
        chunk_tried tried = try_chunk(o, tokens);
        short_of = tried.price == DBL_MAX || tried.how.dropped > 0;
        bool better = tried.price < best.price || best.price == DBL_MAX;
        recompute_decision_free(better ? &best.how : &tried.how);
        best = better ? tried : best;
    }
    return best;
}

/* The least bytes of a few micro-batches with this chunk and these kept tensors, INT64_MAX without such a program. */
static int64_t least_bytes(const compile_options *o, int64_t tokens, const compile_keep *keep)
{
    RELEASED_BY(compile_free) compiled c = {0};
    compile_options with = *o;
    with.loss_tokens = tokens;
    bool made = compile_model(&c, &with) == STATUS_OK &&
                compile_program_training(&c.training, &c, keep, recompute_microbatches(o), true) == STATUS_OK;
    return made ? c.persistent_bytes + c.training.lower_bound : INT64_MAX;
}

/* Finds the largest chunk in the memory that the budget leaves: it recomputes no op more than `best`, and the order
 * stays the same. Deciding takes many programs, so one first tells whether the chunk can fit. */
static int64_t grow_chunk(const compile_options *o, int64_t priced, const chunk_tried *best)
{
    int64_t tokens = best->price < DBL_MAX ? loss_chunk_largest(o) : 0;
    for (; tokens > priced; tokens = loss_chunk_below(o, tokens)) {
        if (least_bytes(o, tokens, &best->how.keep) > o->budget)
            continue;
        chunk_tried tried = try_chunk(o, tokens);
        bool grows = tried.how.dropped <= best->how.dropped && tried.how.keep.order >= best->how.keep.order &&
                     tried.price < best->price;
        recompute_decision_free(&tried.how);
        if (grows)
            return tokens;
    }
    return best->tokens;
}

/* Finds the largest chunk, if no budget tells the memory, that needs no more than the price's own, because the step
 * needs most elsewhere. */
static int64_t grow_in_place(const compile_options *o, int64_t priced)
{
    const compile_keep keep = {.how = o->recompute, .order = o->order};
    int64_t tokens = loss_chunk_largest(o), most = tokens > priced ? least_bytes(o, priced, &keep) : 0;
    while (tokens > priced && least_bytes(o, tokens, &keep) > most)
        tokens = loss_chunk_below(o, tokens);
    return tokens > priced ? tokens : priced;
}

/* Finds the tokens per loss chunk for the rank of the stage that needs most, so that all take the same. */
static status fit_loss_chunk(compiled *c)
{
    compile_options o = c->options, of;
    o.loss_tokens = 0;
    {
        RELEASED_BY(compile_free) compiled largest = {0};
        TRY(compile_model_largest(&largest, &o));
        of = largest.options;
    }
    int64_t priced = of.loss_tokens;
    if (of.budget) { /* smaller than the price's own if memory is short, larger if some is left */
        chunk_tried best = shrink_chunk(&of, priced);
        o.loss_tokens = grow_chunk(&of, priced, &best);
        recompute_decision_free(&best.how);
    } else {
        o.loss_tokens = grow_in_place(&of, priced);
    }
    if (o.loss_tokens == c->options.loss_tokens)
        return STATUS_OK;
    compile_free(c);
    return compile_model(c, &o);
}

/* Compiles the program once more, with as much working memory for attention as the first leaves. A placement can take
 * more than the sum of live bytes: then with less. */
static status give_workspace(compiled *c, const compile_keep *keep)
{
    int64_t budget = c->options.budget ? c->options.budget - c->persistent_bytes : INT64_MAX, room = workspace_room(c);
    for (int tries = 4; room > 0; tries--) {
        c->workspace = tries > 0 ? room : 0;
        compile_program_free(&c->training);
        TRY(compile_program_training(&c->training, c, keep, c->options.microbatches, false));
        room = tries > 0 && c->training.transient_bytes > budget ? room / 2 : 0;
    }
    return STATUS_OK;
}

/* Compiles the programs of a capacity bucket above the first. No bit depends on their kept tensors. */
static status compile_bucket(compiled *out, int bucket)
{
    RELEASED_BY(recompute_decision_free) recompute_decision d = {0};
    bool draft = out->options.higher == HIGHER_SHORT;
    TRY(recompute_decide(&d, out, bucket, draft));
    d.keep.enough = out->arena_bytes - out->persistent_bytes;
    for (int i = 0; i <= COMPILE_RAMP; i++) {
        int microbatches = i == 0 ? out->options.microbatches : out->options.ramp[i - 1];
        compiled_program *p = &out->higher[i][bucket - 1];
        if (draft && microbatches > recompute_microbatches(&out->options))
            microbatches = recompute_microbatches(&out->options);
        if (microbatches > 0)
            TRY(compile_program_training(p, out, &d.keep, microbatches, false));
        grow_bounds(out, p);
    }
    return STATUS_OK;
}

static status compile_training(compiled *out)
{
    RELEASED_BY(recompute_decision_free) recompute_decision d = {0};
    TRY(recompute_decide(&d, out, 0, false));
    TRY(compile_program_training(&out->training, out, &d.keep, out->options.microbatches, false));
    TRY(give_workspace(out, &d.keep));
    for (int i = 0; i < COMPILE_RAMP && out->options.ramp[i]; i++) {
        TRY(compile_program_training(&out->ramp[i], out, &d.keep, out->options.ramp[i], false));
        grow_bounds(out, &out->ramp[i]);
    }
    grow_bounds(out, &out->training);
    int buckets = out->options.higher == HIGHER_NONE ? 1 : compile_buckets(&out->options);
    for (int bucket = 1; bucket < buckets; bucket++)
        TRY(compile_bucket(out, bucket));
    out->dropped = d.dropped;
    out->order = d.keep.order;
    out->decision = d.words ? pool_format(&out->pool, "%s", d.words) : NULL;
    return STATUS_OK;
}

static status compile_programs(compiled *out, const compile_options *options)
{
    schedule found = {0};
    compile_options o = *options;
    *out = (compiled){0};
    if (o.train && o.offload && o.backend == &cpu_backend)
        return status_fail(STATUS_USAGE, "memory.offload optimizer is for a GPU, whose memory is not the host's: use "
                                         "memory.offload none on the CPU, or train.device cuda");
    bool searched = compile_schedule_kind(&o) == SCHEDULE_AUTO, same_bits = o.backend && o.backend->same_bits;
    if (!o.found && o.train && (searched || compile_divides_vocabulary(&o))) { /* takes a while; the caller did not */
        TRY(searched ? compile_find(&found, &o) : compile_schedule(&found, &o, o.microbatches));
        o.found = &found;
    }
    status s = compile_model(out, &o);
    if (s == STATUS_OK && o.train && !o.loss_tokens && out->last_stage && !out->model.vocabulary && !same_bits)
        s = fit_loss_chunk(out);
    if (o.found == &found) {
        out->found = pool_alloc(&out->pool, sizeof *out->found);
        *out->found = found;
        out->options.found = out->found;
    }
    TRY(s);
    if (options->train)
        TRY(compile_training(out));
    if (options->evaluate) {
        TRY(compile_program_forward(&out->evaluation, out));
        grow_bounds(out, &out->evaluation);
        if (options->train)
            compile_program_gathers(&out->gathers, out);
        grow_bounds(out, &out->gathers);
    }
    if (options->decode_samples) {
        TRY(compile_program_forward(&out->decoding, out));
        grow_bounds(out, &out->decoding);
    }
    return STATUS_OK;
}

static int64_t append_bytes(compiled *c, int64_t bytes)
{
    int64_t at = (c->arena_bytes + COMPILE_ALIGNMENT - 1) / COMPILE_ALIGNMENT * COMPILE_ALIGNMENT;
    c->arena_bytes = at + bytes;
    return at;
}

bool repeat_may(const op *o)
{
    bool pass = o->phase == PHASE_FORWARD || o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT;
    return pass && op_computes(o) && o->microbatch >= 0;
}

bool repeat_changes(const op *o)
{
    if (o->at.accumulate != OP_WRITES || op_has(o, OP_STATEFUL))
        return true;
    for (int k = 0; k < OP_MAX_OUT; k++)
        for (int i = 0; o->out[k] && i < OP_MAX_IN; i++) {
            const tensor *a = o->out[k], *b = o->in[i];
            if (b && a->address < b->address + tensor_bytes(b) && b->address < a->address + tensor_bytes(a))
                return true;
        }
    return false;
}

device_rows repeat_rows(const tensor *t)
{
    int64_t element = dtype_bytes((dtype)t->type), all = tensor_elements(t) * element;
    if (t->address < 0 || all == 0)
        return (device_rows){0};
    if (tensor_contiguous(t))
        return (device_rows){.at = t->address, .pitch = all, .bytes = all, .rows = 1};
    return (device_rows){
        .at = t->address, .pitch = t->pitch * element, .bytes = all / t->shape[0], .rows = t->shape[0]};
}

/* Returns the most bytes that an op of `p` changes. */
static int64_t repeat_bytes(const compiled_program *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        int64_t bytes = 0;
        for (int k = 0; k < OP_MAX_OUT && repeat_may(o) && repeat_changes(o); k++)
            if (o->out[k]) {
                device_rows r = repeat_rows(o->out[k]);
                bytes += r.rows * r.bytes;
            }
        most = bytes > most ? bytes : most;
    }
    return most;
}

/* Adds verification's memory after all programs. */
static void add_verification(compiled *c)
{
    if (!c->options.verify || !c->options.train)
        return;
    c->sums_bytes = 2 * (1 + (int64_t)c->model.parameter_count * REPEAT_RESTS + OP_MAX_OUT) * (int64_t)sizeof(uint64_t);
    c->sums = append_bytes(c, c->sums_bytes);
    c->before_bytes = repeat_bytes(&c->training);
    c->before = append_bytes(c, c->before_bytes);
}

status compile(compiled *out, const compile_options *options)
{
    TRY(compile_programs(out, options));
    add_verification(out);
    int64_t room = out->sums_bytes + out->before_bytes + 2 * COMPILE_ALIGNMENT;
    if (options->train && options->verify && options->budget > 0 && out->arena_bytes > options->budget &&
        options->budget > room) {
        compile_options o = *options;
        o.budget -= room;
        compile_free(out);
        TRY(compile_programs(out, &o));
        out->options.budget = options->budget;
        add_verification(out);
    }
    /* The budget was met by the training program of the stage's neediest rank; this rank's programs must all meet
     * it. */
    if (options->train && options->budget > 0 && out->arena_bytes > options->budget)
        return status_fail(
            STATUS_USAGE,
            "memory.budget = %lld bytes: rank %d needs %lld bytes, %lld more; raise the budget, or lower "
            "train.micro_batch",
            (long long)options->budget, options->grid.rank, (long long)out->arena_bytes,
            (long long)(out->arena_bytes - options->budget));
    return STATUS_OK;
}

/* A program's length grows with its micro-batches: estimates its size before it is made, by measure (a llama's layer is
 * recorded in 23 ops, its embedding, norm and loss in some 20; with all that compiling needs, an op takes 900 bytes of
 * the host's memory). */
enum { OPS_OF_LAYER = 24, OPS_BESIDE_LAYERS = 24, OPS_MOST = 1 << 22, OP_BYTES = 900, TOKENS_MOST = 1 << 28 };

static status check_length(const compile_options *o, const config *c)
{
    int64_t microbatches = o->microbatches, tokens = tokens_count(o).rank;
    int layers = (o->shape.layers + o->grid.size[GRID_PIPELINE] - 1) / o->grid.size[GRID_PIPELINE];
    for (int i = 0; i < COMPILE_RAMP; i++)
        microbatches += o->ramp[i];
    double ops = (double)microbatches * (OPS_OF_LAYER * (double)layers + OPS_BESIDE_LAYERS), bytes = ops * OP_BYTES;
    if (o->sequence > TOKENS_MOST || tokens > TOKENS_MOST)
        return status_fail(STATUS_USAGE,
                           "%s %lld: a micro-batch of %lld tokens (train.micro_batch x train.sequence) is more than "
                           "any rank computes at once, at most %d: lower it",
                           o->sequence > o->micro_batch ? "train.sequence" : "train.micro_batch",
                           (long long)(o->sequence > o->micro_batch ? o->sequence : o->micro_batch), (long long)tokens,
                           (int)TOKENS_MOST);
    if (o->shape.experts > 0 && config_step_tokens(c) > INT32_MAX)
        return status_fail(STATUS_USAGE,
                           "train.global_batch %d x train.sequence %lld is more than the 2^31 tokens of which a step "
                           "counts the experts: lower it",
                           c->train.global_batch, (long long)o->sequence);
    if (ops > OPS_MOST || bytes > (double)arena_available())
        return status_fail(STATUS_USAGE,
                           "train.global_batch %d (sequences, not tokens) is %d micro-batches a rank and step: their "
                           "program of about %.3g million operations would take %.3g GiB of host memory to plan; lower "
                           "it, or raise train.micro_batch (%d) or the ranks that divide samples (%d)",
                           c->train.global_batch, o->microbatches, ops / 1e6, bytes / (1 << 30), o->micro_batch,
                           grid_group_size(&o->grid, AXIS_SAMPLES));
    return STATUS_OK;
}

status compile_options_from(compile_options *out, const config *c, const grid *g, const op_backend *backend,
                            int threads)
{
    const compile_order orders[] = {[CONFIG_ORDER_AUTO] =
                                        backend && backend->same_bits ? ORDER_FILLED : ORDER_HALVED_PARTS,
                                    [CONFIG_ORDER_NONE] = ORDER_AS_LOWERED,
                                    [CONFIG_ORDER_LAUNCHES] = ORDER_EARLY,
                                    [CONFIG_ORDER_PRODUCTS] = ORDER_FILLED,
                                    [CONFIG_ORDER_HALVES] = ORDER_HALVED,
                                    [CONFIG_ORDER_PARTS] = ORDER_HALVED_PARTS};
    *out = (compile_options){.shape = c->model.shape,
                             .precision = c->train.precision,
                             .sequence = c->train.sequence,
                             .micro_batch = c->train.micro_batch,
                             .microbatches = config_microbatches(g, c->train.micro_batch, c->train.global_batch),
                             .document_mask = c->data.document_mask,
                             .router_over = c->model.router_over,
                             .grid = *g,
                             .layout = c->parallel,
                             .compress = {(compress_kind)c->parallel.compress, c->parallel.density},
                             .order = orders[c->parallel.order],
                             .optimizer = {.name = c->optimizer.name,
                                           .nesterov = c->optimizer.nesterov,
                                           .adjust = c->optimizer.muon_adjust,
                                           .qk_clip = c->optimizer.qk_clip,
                                           .state = precision_compute(c->optimizer.state),
                                           .master = precision_compute(c->optimizer.master)},
                             .offload = c->memory.offload == CONFIG_OFFLOAD_OPTIMIZER,
                             .window = c->memory.window,
                             .recompute = c->memory.recompute,
                             .budget = c->memory.budget,
                             .backend = backend,
                             .tf32 = c->train.tf32,
                             .any_order = !c->train.deterministic,
                             .graph = c->train.cuda_graph,
                             .threads = threads,
                             .verify = c->run.verify_every > 0,
                             .train = true,
                             .evaluate = true};
    out->layout.virtual_stages = config_virtual_stages(&c->parallel);
    int stages = batch_ramp_stages(c);
    for (int i = 0; i + 1 < stages && i < COMPILE_RAMP; i++)
        out->ramp[i] = config_microbatches(g, c->train.micro_batch, batch_ramp_samples(c, i));
    if (stages > COMPILE_RAMP + 1)
        return status_fail(STATUS_USAGE, "train.batch_ramp has %d pairs: at most %d", stages, COMPILE_RAMP + 1);
    transfer_choose(out, NULL);
    if (out->microbatches < 1)
        return status_fail(STATUS_USAGE, "train.global_batch = %d holds no micro-batch of %d for each of %d data ranks",
                           c->train.global_batch, c->train.micro_batch, grid_group_size(g, AXIS_SAMPLES));
    return check_length(out, c);
}
