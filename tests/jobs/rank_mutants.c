/* Plays a playlist with the engine broken on purpose: "@dropped-tie-reduce CONFIG ..." trains with that fault. The
 * linker puts this file's functions between the engine's (-Wl,--wrap, see the Makefile); most faults are edits of the
 * program, which holds all that a step does, just before its waits and addresses are decided. */
#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "engine/run/batch.h"
#include "engine/run/executor.h"
#include "engine/state/rank/state.h"
#include "memory/log.h"
#include "tests/jobs/playlist.h"
#include "tests/jobs/spoiled.h"

void __real_place_waits(compiled_program *out, compile_order how);
void __wrap_place_waits(compiled_program *out, compile_order how);
void __real_storage_describe(compiled *c);
void __wrap_storage_describe(compiled *c);
void __real_state_initialise(const compiled *c, executor *e, uint64_t seed);
void __wrap_state_initialise(const compiled *c, executor *e, uint64_t seed);
void __real_executor_launch(executor *e, const compiled_program *p);
void __wrap_executor_launch(executor *e, const compiled_program *p);
status __real_batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                         int microbatches, bool ahead);
status __wrap_batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                         int microbatches, bool ahead);
void __real_shard_zigzag(int32_t *out, const shard_shape *d);
void __wrap_shard_zigzag(int32_t *out, const shard_shape *d);
void __real_cpu_muon_polynomial(const op *o, const run_context *r);
void __wrap_cpu_muon_polynomial(const op *o, const run_context *r);

static const char *mutant = "none";
static bool dropped; /* the one op of this run that the fault is about */
static const compiled *of;

static bool is(const char *name)
{
    return !strcmp(mutant, name);
}

static void prepare(const char *word)
{
    static char name[256];
    MUST(word && strlen(word) < sizeof name, "a mutants' playlist names a mutant on every line");
    strcpy(name, word);
    mutant = name;
    dropped = false;
    spoiled_choose(word);
}

/* ---- edits of the program --------------------------------------------------------------------------------------- */

static bool adds_to_gradient(const op *o)
{
    for (int k = 0; k < OP_MAX_OUT; k++) {
        tensor *root = o->out[k] ? tensor_root(o->out[k]) : NULL;
        if (root && root->class == CLASS_GRADIENT && !op_communicates(o))
            return true;
    }
    return false;
}

static bool reduces(const op *o, axis a)
{
    return o->kind == OP_all_reduce && o->where.axis == a;
}

static bool of_backward(const op *o, int microbatch)
{
    return o->microbatch == microbatch && (o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT);
}

/* How often the op at hand is to be in the program; 1 for all that the fault leaves alone. */
static int times(const op *o)
{
    bool update = o->phase == PHASE_UPDATE;
    if (is("dropped-gradient-reduce"))
        return !(reduces(o, AXIS_GRADIENT) && update);
    if (is("dropped-norm-reduce"))
        return !(reduces(o, AXIS_TENSOR) && update);
    if (is("dropped-kv-reduce"))
        return !reduces(o, AXIS_KV);
    if ((is("dropped-tie-reduce") || is("mtp-table-apart")))
        return !reduces(o, AXIS_TIE);
    if (is("second-head-without-gradient"))
        return !(o->kind == OP_linear_grad_weight && o->layer == of->options.shape.layers && strstr(o->label, "loss/"));
    if (is("next-tokens-without-gradient"))
        return !(o->kind == OP_embed_grad && tensor_root(o->in[1]) == of->values.targets);
    if (is("action-twice"))
        return of_backward(o, 1) && !op_communicates(o) && !op_waits(o) ? 2 : 1;
    if (is("action-never"))
        return !(of_backward(o, 1) && adds_to_gradient(o));
    if (is("stale-weights"))
        return !(o->kind == OP_all_gather && o->phase == PHASE_BEGIN);
    if (is("norm-counts-twice"))
        return o->kind == OP_sum_squares ? 2 : 1;
    if (is("experts-not-in-norm"))
        return !(o->kind == OP_sum_squares && strstr(tensor_root(o->in[0])->name, "experts/down"));
    if (is("tokens-combined-twice")) /* those of passes behind the first */
        return o->kind == OP_combine && o->phase == PHASE_FORWARD && o->in[4] ? 2 : 1;
    if (is("counts-of-one-micro-batch"))
        return !(o->kind == OP_expert_count && o->microbatch > 0);
    if (is("counted-when-made-again"))
        return o->kind == OP_expert_count && o->microbatch == 1 ? 2 : 1;
    if (is("counts-of-one-rank"))
        return !(reduces(o, AXIS_GRID) && o->in[0]->type == DTYPE_INT32);
    if (is("counts-of-all-steps"))
        return !(o->kind == OP_zero && o->out[0] == of->values.choices);
    if (is("peaks-of-one-micro-batch"))
        return !(o->kind == OP_max_logit && o->microbatch > 0);
    if (is("dropped-feedback"))
        return o->kind != OP_store_feedback;
    return 1;
}

/* The optimizer's faults. */
static void edit_update(op *o)
{
    if (is("dropped-gram-reduce") && reduces(o, AXIS_TENSOR) && o->in[0]->class == CLASS_TEMPORARY)
        o->kind = OP_copy;
    if (is("shape-ignored") && o->kind == OP_muon)
        o->at.update.scale = 1;
    if (is("peaks-of-one-rank") && o->kind == OP_qk_factors)
        o->in[0] = of->values.max_logits;
    if (is("peaks-of-another-layer") && o->kind == OP_qk_factors)
        o->at.qk.layer = (o->at.qk.layer + 1) % o->at.qk.layers;
    if (is("rotating-rows-by-the-root") && o->kind == OP_qk_factors)
        o->at.qk.whole = 0;
}

/* This rank's rows of what a reduce-scatter sums. */
static tensor *own_rows(const op *o)
{
    tensor *own = must_alloc(sizeof *own);
    *own = *o->in[0];
    own->shape[0] = o->out[0]->shape[0];
    own->address += o->where.group_rank * tensor_bytes(o->out[0]);
    return own;
}

/* The faults of samples whose tokens are divided. */
static void edit_context(op *o)
{
    if ((is("keys-as-gathered") || is("latents-as-gathered")) && o->kind == OP_arrange) {
        o->kind = OP_copy;
        o->in[1] = NULL;
    }
    if ((is("keys-of-one-rank") || is("latents-of-one-rank")) && o->kind == OP_reduce_scatter &&
        o->where.axis == AXIS_CONTEXT) {
        o->in[0] = own_rows(o);
        o->kind = OP_copy;
    }
    if (is("positions-off-by-one") && o->kind == OP_attention && o->phase == PHASE_FORWARD) {
        tensor *token_positions = must_alloc(sizeof *token_positions);
        *token_positions = *o->in[4];
        token_positions->address += sizeof(int32_t);
        o->in[4] = token_positions;
    }
}

/* The faults of latents: cotangents of a rank's own heads alone, other elements that rotate, scores as without yarn. */
static void edit_latents(op *o)
{
    const model_shape *s = &of->options.shape;
    if (is("dropped-latent-reduce") && reduces(o, AXIS_TENSOR) && o->out[0]->shape[1] == s->kv_lora_rank)
        o->kind = OP_copy;
    if (is("first-elements-rotate") && o->kind == OP_rope)
        o->at.heads.size = (int32_t)o->in[1]->shape[1];
    if (is("scores-without-factor") && (o->kind == OP_attention || o->kind == OP_attention_grad))
        o->at.attention.scale = 1 / sqrtf((float)s->head_size);
}

/* The faults of tokens in slots. */
static void edit_slots(op *o)
{
    bool behind = o->kind == OP_slots && o->at.routing.skip > 0;
    if (is("heads-stay") && o->kind == OP_all_to_all && o->in[0]->type == DTYPE_INT32)
        o->kind = OP_copy;
    if (is("ids-shifted") && o->kind == OP_assign && o->in[0]->shape[1] == 1)
        o->at.routing.first++;
    if (behind && (is("wave-lost") || (is("wave-lost-when-remade") && o->phase == PHASE_BACKWARD)))
        o->at.routing.skip += o->at.routing.rows << 16;
}

/* The holders of an expert add what those of others have. */
static void edit_expert_data(op *o)
{
    if (!is("summed-with-other-experts") || !reduces(o, AXIS_EXPERT_DATA))
        return;
    const axis_group *all = &of->around.group[AXIS_GRADIENT];
    o->where.axis = AXIS_GRADIENT;
    o->where.group_size = all->ranks;
    o->where.group_rank = all->rank;
}

/* The block behind the last layer reads the embedding of the token itself; its gradient goes to the next one's. */
static void edit_next_tokens(op *o)
{
    const layer_inputs *v = &of->values;
    if (!is("next-tokens-shifted") || o->kind != OP_embed || tensor_root(o->in[0]) != v->targets)
        return;
    tensor *ids = must_alloc(sizeof *ids);
    *ids = *o->in[0];
    ids->address += v->tokens->address - v->targets->address;
    o->in[0] = ids;
}

static void edit(op *o)
{
    edit_next_tokens(o);
    edit_context(o);
    edit_expert_data(o);
    edit_slots(o);
    edit_latents(o);
    if (o->phase == PHASE_UPDATE)
        edit_update(o);
    if (is("dropped-all-reduce") && reduces(o, AXIS_TENSOR) && o->phase == PHASE_FORWARD && o->microbatch == 0 &&
        !dropped) {
        o->kind = OP_copy;
        dropped = true;
    }
    if (is("overwriting") && adds_to_gradient(o) && o->at.accumulate)
        o->at.accumulate = 0;
    if (is("norm-counts-twice") && o->kind == OP_sum_squares)
        o->at.accumulate = 1; /* bins of step 1 begin as zeros */
    if (is("draws-of-another-sample") && o->kind == OP_dropout)
        o->at.dropout.sample++;
    if (is("draws-of-another-token") && o->kind == OP_dropout)
        o->in[2]->address = tensor_root(o->in[2])->address;
}

/* Gate and up, and q, k and v, are taken for one matrix each while the update is compiled. */
static void join_matrices(const compiled *c, bool join)
{
    enum { MOST_PIECES = 4 };
    static const char *names[64][MOST_PIECES];
    for (int i = 0; i < c->model.parameter_count && i < 64; i++) {
        MUST(c->model.parameters[i]->piece_count <= MOST_PIECES, "%s has more pieces", c->model.parameters[i]->name);
        for (int k = 0; k < c->model.parameters[i]->piece_count; k++) {
            const char **name = &c->model.parameters[i]->pieces[k].of.name;
            names[i][k] = join ? *name : names[i][k];
            *name = names[i][join ? 0 : k];
        }
    }
}

void __wrap_place_waits(compiled_program *out, compile_order how)
{
    if (is("matrices-joined"))
        join_matrices(of, false);
    program before = out->list;
    out->list = (program){0};
    for (int i = 0; i < before.count; i++) {
        op *o = before.ops[i];
        int n = times(o);
        edit(o);
        for (int k = 0; k < n; k++) {
            op *copy = o;
            if (k > 0) {
                copy = pool_alloc(&out->pool, sizeof *copy);
                *copy = *o;
                if (o->kind == OP_combine)
                    copy->in[4] = o->out[0];
            }
            program_append(&out->list, copy);
        }
    }
    program_free(&before);
    spoiled_program(out);
    __real_place_waits(out, how);
}

/* ---- other faults ------------------------------------------------------------------------------------------------ */

/* Tensor ranks 0 and 1 hold each other's columns of one matrix. */
void __wrap_storage_describe(compiled *c)
{
    int rank = c->options.grid.at[GRID_TENSOR];
    for (int i = 0; is("swapped-shard") && i < c->model.parameter_count; i++) {
        parameter *p = c->model.parameters[i];
        parameter_block *q = &p->pieces[0];
        if (strcmp(p->name, "layer 2/mlp/down") != 0)
            continue;
        int in = q->of.part.size[0] < q->of.global[0] ? 0 : 1;
        q->of.part.start[in] = rank == 0 ? q->of.part.size[in] : 0;
    }
    __real_storage_describe(c);
    of = c;
    if (is("matrices-joined"))
        join_matrices(c, true);
}

void __wrap_state_initialise(const compiled *c, executor *e, uint64_t seed)
{
    spoiled_initial(c, true);
    __real_state_initialise(c, e, seed);
    spoiled_initial(c, false);
}

/* A coefficient of Muon's polynomial off by 0.3%. */
void __wrap_cpu_muon_polynomial(const op *o, const run_context *r)
{
    __real_cpu_muon_polynomial(o, r);
    const float *scale = tensor_at(o->in[2], r->arena);
    tensor *p = o->out[0];
    for (int64_t i = 0; is("wrong-coefficient") && i < p->shape[0]; i++)
        ((float *)tensor_at(p, r->arena))[i * (p->pitch + 1)] -= 0.01f * (scale ? *scale : 1);
}

static void swap_runs(int32_t *token_positions, int64_t run)
{
    for (int64_t i = 0; i < run; i++) {
        int32_t first = token_positions[i];
        token_positions[i] = token_positions[run + i];
        token_positions[run + i] = first;
    }
}

/* After tokens have been dealt: two runs of each micro-batch are taken for each other. */
static void swap_places(executor *e)
{
    int32_t *token_positions = executor_at(e, of->values.ids[INPUT_token_positions]);
    token_counts n = tokens_count(&of->options);
    for (int m = 0; m < of->options.microbatches; m++)
        swap_runs(token_positions + m * n.rank, n.run);
}

/* On all ranks the first one has a run of the second one's, too, and nobody has its own; or one rank alone deals each
 * rank what is the next one's. */
void __wrap_shard_zigzag(int32_t *out, const shard_shape *d)
{
    int64_t each = d->samples * d->sequence / d->ranks;
    __real_shard_zigzag(out, d);
    if (is("run-dealt-twice"))
        memcpy(out, out + each, (size_t)d->run * sizeof *out);
    if (is("another-deal-on-one-rank") && of->options.grid.rank == 1)
        for (int64_t i = 0; i < each; i++) {
            int32_t first = out[i];
            out[i] = out[each + i];
            out[each + i] = first;
        }
}

/* The batch that was read last. */
static struct {
    const samples *of;
    int64_t first;
    int microbatches;
} batch;

status __wrap_batch_fill(batch_facts *out, const compiled *c, executor *e, const samples *s, int64_t first,
                         int microbatches, bool ahead)
{
    batch.of = s;
    batch.first = first;
    batch.microbatches = microbatches;
    return __real_batch_fill(out, c, e, s, first, microbatches, ahead);
}

/* A step that is played again takes the samples behind its own. */
static void move_samples(executor *e, const step_scalars *s)
{
    static int64_t step;
    const compile_options *o = &of->options;
    batch_facts facts;
    if (s->step == step) {
        int64_t all = (int64_t)batch.microbatches * o->micro_batch * grid_group_size(&o->grid, AXIS_SAMPLES);
        MUST(__real_batch_fill(&facts, of, e, batch.of, batch.first + all, batch.microbatches, false) == STATUS_OK,
             "no samples");
    }
    step = s->step;
}

/* Labels of the block behind the last layer: the next tokens, or those after them whatever document they are of. */
static void mark_otherwise(executor *e)
{
    const layer_inputs *v = &of->values;
    if (v->second_targets->shape[0] == 0)
        return;
    int32_t *second = executor_at(e, v->second_targets), *targets = executor_at(e, v->targets);
    const int64_t sequence = of->options.sequence, count = tensor_elements(v->targets);
    for (int64_t i = 0; i < count; i++)
        if (is("second-labels-of-next"))
            second[i] = second[i] < 0 ? -1 : targets[i];
        else if (is("second-labels-anywhere"))
            second[i] = (i + 1) % sequence ? targets[i + 1] : -1;
    if (is("mtp-loss-twice"))
        ((step_scalars *)executor_at(e, v->mtp_scalars))->loss_scale *= (float)of->options.shape.mtp_loss;
}

void __wrap_executor_launch(executor *e, const compiled_program *p)
{
    mark_otherwise(e);
    if (is("runs-swapped"))
        swap_places(e);
    step_scalars *s = executor_at(e, of->values.scalars);
    if (is("other-samples-again"))
        move_samples(e, s);
    if (is("divided-twice"))
        s->loss_tokens *= (float)of->options.grid.size[GRID_DATA];
    if (is("skipped")) /* no norm is finite: a step changes nothing but the position in the data */
        s->loss_scale = 0;
    __real_executor_launch(e, p);
}

int main(int argc, char **argv)
{
    return playlist_main(argc, argv, prepare);
}
