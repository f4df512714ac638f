/* Every kernel of the host against the float64 reference: the op table is walked, so that an op without a case, or
 * whose kernel is missing or wrong, fails. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "kernels/record/product.h"
#include "tests/oracle/op_mutants.h"
#include "tests/oracle/op_sweep.h"
#include "tests/oracle/reference.h"
#include "tests/test.h"

/* Two threads where an operand is large enough to be divided, and now and then: waiting for each other is slow here. */
static int threads_for(const op_case *c, int variant)
{
    bool large = variant % 5 == 4;
    for (int i = 0; i < c->tensors; i++)
        large |= tensor_elements(&c->t[i]) >= 16384;
    return 1 + large;
}

TEST(every_cpu_kernel_agrees_with_the_reference)
{
    int skipped = 0, total = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        if (!op_sweep_has_kernel((op_kind)kind)) {
            skipped++;
            continue;
        }
        op_sweep s = {.backend = &cpu_backend, .gaps = true, .threads = threads_for};
        int cases = op_sweep_run(&s, (op_kind)kind);
        print_message("%-20s %4d cases (%d strided, %d in place), worst %.2f of the tolerance\n", op_rows[kind].name,
                      cases, s.strided, s.in_place, s.worst);
        assert_int_equal(s.failed, 0);
        assert_true(s.plain >= 7);
        for (int j = 0; j < OP_MAX_OUT; j++)
            assert_true(!op_rows[kind].takes[j] || s.in_place >= 1 || op_rows[kind].class == OP_CLASS_VIEW);
        total += cases;
    }
    print_message("%d cases; %d ops skipped: they copy between memories or ranks\n", total, skipped);
    assert_int_equal(skipped, 9);
}

/* ---- what products say of themselves ---------------------------------------------------------------------------- */

/* Every input's dimensions that are said to be m, n or k have that size, and every input has its dimensions. */
static void expect_sides(const op *o, const matrix_product *p)
{
    const int64_t size[] = {p->m, p->n, p->k};
    for (int i = 0; i < OP_MAX_IN; i++) {
        int said = 0;
        for (product_side side = PRODUCT_M; o->in[i] && side <= PRODUCT_K; side++) {
            int dim = product_input_dim(o, i, side);
            if (dim >= 0)
                assert_int_equal(o->in[i]->shape[dim], size[side]);
            said += dim >= 0;
        }
        assert_int_equal(said, o->in[i] ? o->in[i]->dims : 0);
    }
}

TEST(products_say_what_they_multiply)
{
    int products = 0;
    for (int kind = 0; kind < OP_COUNT; kind++) {
        op_case c;
        products += op_rows[kind].class == OP_CLASS_PRODUCT;
        for (int variant = 0;
             op_rows[kind].class == OP_CLASS_PRODUCT && op_sweep_case(&c, (op_kind)kind, DTYPE_FP32, variant);
             variant++) {
            matrix_product p = product_of(&c.o);
            expect_sides(&c.o, &p);
            assert_int_equal(p.c->shape[0], p.m);
            assert_int_equal(p.c->shape[1], p.n);
            assert_int_equal(!!p.bias + !!p.gelu + (p.added && p.added != p.c), !!c.o.in[2] + !!c.o.out[1]);
            assert_true(product_flops(&p) <= op_row_of(&c.o)->cost(&c.o).flops);
        }
    }
    assert_true(products >= 5);
}

/* ---- mutants: kernels that are wrong in one way, each of which must be noticed --------------------------------- */

static void scaled(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    float *dx = tensor_at(o->out[0], r->arena);
    for (int64_t i = 0; i < tensor_elements(o->out[0]); i++)
        dx[i] *= -7;
}

static void window_by_one(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.attention.window += wrong.at.attention.window > 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* As where the mask is added first, and capped with the scores: nothing is. */
static void cap_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.attention.cap = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* cap tanh(s / cap) scale */
static void cap_before_scale(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.attention.cap *= o->at.attention.scale > 0 ? 1 / o->at.attention.scale : 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void documents_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[o->kind == OP_attention ? 3 : 6] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void accumulate_flipped(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.accumulate = !o->at.accumulate;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* operands up to the last one present */
static int inputs_of(const op *o)
{
    int n = OP_MAX_IN;
    while (n > 0 && !o->in[n - 1])
        n--;
    return n;
}

/* operands that the row names */
static int inputs_named(const op *o)
{
    int n = 1;
    for (const char *c = op_row_of(o)->in_names; *c; c++)
        n += *c == ' ';
    return n;
}

static void addend_dropped(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[inputs_of(o) - 1] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void row_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor x = *o->in[0], y = *o->out[0];
    x.shape[0] = --y.shape[0];
    wrong.in[0] = &x;
    wrong.out[0] = &y;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void guard_overrun(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    ((char *)tensor_at(o->out[0], r->arena))[tensor_bytes(o->out[0])] = 0;
}

static void input_spoiled(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    *(char *)tensor_at(o->in[0], r->arena) ^= 1;
}

static void one_element_nan(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    memset(tensor_at(o->out[0], r->arena), 0xFF, 4);
}

/* the epsilon of a norm left out: 5e-6 of the result */
static void epsilon_dropped(const op *o, const run_context *r)
{
    op wrong = *o;
    *(o->kind == OP_muon_scale ? &wrong.at.update.epsilon : &wrong.at.norm.epsilon) = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void turned_the_other_way(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.rotation.inverse = !o->at.rotation.inverse;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void other_pairs(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.rotation.interleaved = !o->at.rotation.interleaved;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void another_site(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.dropout.site++;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void shard_swapped(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.vocabulary.first = 20 - o->at.vocabulary.first;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void never_decays(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.update.decay = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void looks_the_other_way(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.update.nesterov = !o->at.update.nesterov;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void shape_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    *(o->kind == OP_muon ? &wrong.at.update.scale : &wrong.at.balance.scale) = 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* The op with offsets of its experts' rows that begin() changes: how it makes the e-th of what they are. */
static void with_offsets(const op *o, const run_context *r,
                         int32_t (*begin)(const int32_t *offsets, int64_t e, int64_t experts))
{
    const int32_t *offsets = tensor_at(o->in[2], r->arena);
    int32_t changed[64];
    op wrong = *o;
    tensor is = *o->in[2];
    for (int64_t e = 0; e < is.shape[0]; e++)
        changed[e] = begin(offsets, e, is.shape[0] - 1);
    is.address = (char *)changed - r->arena;
    wrong.in[2] = &is;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static int32_t one_later(const int32_t *offsets, int64_t e, int64_t experts)
{
    return offsets[e] + (e > 0 && offsets[e] < offsets[experts]);
}

static int32_t without_last(const int32_t *offsets, int64_t e, int64_t experts)
{
    return offsets[e] - (offsets[e] > 0 && offsets[e] == offsets[experts]);
}

/* An expert's first row is multiplied by the weight of the one before. */
static void segments_by_one(const op *o, const run_context *r)
{
    with_offsets(o, r, one_later);
}

static void last_row_of_all_forgotten(const op *o, const run_context *r)
{
    with_offsets(o, r, without_last);
}

static void rest_not_cleared(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    const int32_t *offsets = tensor_at(o->in[2], r->arena);
    for (int64_t i = offsets[o->in[2]->shape[0] - 1]; i < o->out[0]->shape[0]; i++)
        ((float *)tensor_at(o->out[0], r->arena))[i * o->out[0]->pitch] = 1;
}

/* The gradient of an expert without rows keeps what was there. */
static void empty_not_written(const op *o, const run_context *r)
{
    const int32_t *offsets = tensor_at(o->in[2], r->arena);
    int64_t experts = o->in[2]->shape[0] - 1, elements = tensor_elements(o->out[0]) / experts;
    float *dw = tensor_at(o->out[0], r->arena), before = dw[0];
    cpu_backend.kernels[o->kind](o, r);
    for (int64_t e = 0; e < experts; e++)
        if (offsets[e] == offsets[e + 1])
            dw[e * elements] = before;
}

/* ---- routing */

static void every_group_kept(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.groups = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void best_of_a_group_alone(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.group_best = 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void sums_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.renormalise = !o->at.routing.renormalise;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void weights_unscaled(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.scale = 1;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void bias_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[1] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void another_ranks_experts(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.first++;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void pass_by_one(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.skip++;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* One assignment less has a place than there is room for. */
static void room_by_one(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.rows--;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* An order that is none of (expert, token, j): two assignments of one expert swapped. */
static void order_unstable(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    int32_t *token_positions = tensor_at(o->out[0], r->arena);
    const int32_t *experts = tensor_at(o->in[0], r->arena);
    for (int64_t i = 1; i < tensor_elements(o->in[0]); i++)
        if (experts[i] == experts[0] && token_positions[i] >= 0 && token_positions[0] >= 0) {
            int32_t first = token_positions[0];
            token_positions[0] = token_positions[i];
            token_positions[i] = first;
            return;
        }
}

/* Rows' experts are the ones after them. */
static void ids_shifted(const op *o, const run_context *r)
{
    cpu_backend.kernels[o->kind](o, r);
    int32_t *ids = tensor_at(o->out[1], r->arena);
    for (int64_t row = 0; row < o->at.routing.rows; row++)
        ids[row] += ids[row] >= 0;
}

/* Ranks that have an expert more are the last ones. */
static void another_ranks_slot(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor experts = *o->in[0];
    int32_t *all = tensor_at(&experts, r->arena), last = o->at.routing.experts - 1;
    for (int i = 0; i < 2; i++) {
        for (int64_t k = 0; k < tensor_elements(&experts); k++)
            all[k] = last - all[k];
        if (i == 0)
            cpu_backend.kernels[o->kind](&wrong, r);
    }
}

static void slots_in_one(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.routing.slots = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void rooms_in_one(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.capacity.slots = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* Of dispatch and combine: as if all were 1. */
static void weights_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[3] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* Rows behind the last expert's are left as they were. */
static void rest_unwritten(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor rows = *o->out[0], offsets = *o->in[2];
    const int32_t *ends = tensor_at(&offsets, r->arena);
    rows.shape[0] = ends[offsets.shape[0] - 1];
    wrong.out[0] = &rows;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* The first token's first one. */
static void assignment_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    int slot = o->kind == OP_combine_dots ? 2 : 1;
    tensor token_positions = *o->in[slot];
    int32_t *all = tensor_at(&token_positions, r->arena), was = all[0];
    all[0] = -1;
    wrong.in[slot] = &token_positions;
    cpu_backend.kernels[o->kind](&wrong, r);
    all[0] = was;
}

static void a_row_less_room(const op *o, const run_context *r)
{
    op wrong = *o;
    for (int i = 0; i < CAPACITY_BUCKETS - 1; i++)
        wrong.at.capacity.room[i]--;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void the_next_rungs_room(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.capacity.bucket++;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* ---- balance */

static void other_groups(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.balance.sequence += o->at.balance.sequence > 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void order_of_tokens_ignored(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.in[o->kind == OP_expert_load ? 1 : o->kind == OP_balance ? 2 : 3] = NULL;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void last_token_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor experts = *o->in[0];
    experts.shape[0]--;
    wrong.in[0] = &experts;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void skip_ignored(const op *o, const run_context *r)
{
    float *control = tensor_at(o->in[1], r->arena), was = control[CONTROL_SKIP];
    control[CONTROL_SKIP] = 0;
    cpu_backend.kernels[o->kind](o, r);
    control[CONTROL_SKIP] = was;
}

static void scaled_backwards(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.balance.scale = -o->at.balance.scale;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void last_expert_forgotten(const op *o, const run_context *r)
{
    op wrong = *o;
    tensor counts = *o->in[0];
    counts.shape[0]--;
    wrong.in[0] = &counts;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void other_probabilities(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.balance.sigmoid = !o->at.balance.sigmoid;
    cpu_backend.kernels[o->kind](&wrong, r);
}

static void large_logits_free(const op *o, const run_context *r)
{
    op wrong = *o;
    wrong.at.balance.z = 0;
    cpu_backend.kernels[o->kind](&wrong, r);
}

/* As the loss of the vocabulary is divided. */
static void divided_by_targets_that_count(const op *o, const run_context *r)
{
    step_scalars *s = tensor_at(o->in[2], r->arena);
    float tokens = s->batch_tokens;
    s->batch_tokens = s->loss_tokens;
    cpu_backend.kernels[o->kind](o, r);
    s->batch_tokens = tokens;
}

static const op_mutant MUTANTS[] = {
    {"a backward pass scaled by -7", OP_attention_grad, scaled},
    {"a norm's backward pass scaled by -7", OP_rmsnorm_grad, scaled},
    {"a window one key too wide", OP_attention, window_by_one},
    {"a window one key too wide, backward", OP_attention_grad, window_by_one},
    {"scores without their cap", OP_attention, cap_forgotten},
    {"scores without their cap, backward", OP_attention_grad, cap_forgotten},
    {"scores without their cap, decoding", OP_attention_decode, cap_forgotten},
    {"the scale after the cap", OP_attention, cap_before_scale},
    {"the scale after the cap, backward", OP_attention_grad, cap_before_scale},
    {"the scale after the cap, decoding", OP_attention_decode, cap_before_scale},
    {"documents ignored", OP_attention, documents_ignored},
    {"documents ignored, backward", OP_attention_grad, documents_ignored},
    {"accumulate flipped", OP_linear_grad_weight, accumulate_flipped},
    {"accumulate flipped", OP_rmsnorm_grad, accumulate_flipped},
    {"accumulate flipped", OP_accumulate, accumulate_flipped},
    {"accumulate flipped", OP_sum_squares, accumulate_flipped},
    {"the addend dropped", OP_linear_grad_input, addend_dropped},
    {"the addend dropped", OP_layernorm_grad, addend_dropped},
    {"the last row forgotten", OP_gelu, row_forgotten},
    {"a byte written beyond the output", OP_swiglu, guard_overrun},
    {"an input's bit flipped", OP_add, input_spoiled},
    {"one element NaN", OP_gelu_grad, one_element_nan},
    {"epsilon dropped", OP_rmsnorm, epsilon_dropped},
    {"turned the other way", OP_rope, turned_the_other_way},
    {"halves for neighbours", OP_rope, other_pairs},
    {"another site's draws", OP_dropout, another_site},
    {"another rank's rows of the table", OP_embed, shard_swapped},
    {"no weight decay", OP_adamw, never_decays},
    {"no weight decay", OP_lion, never_decays},
    {"no weight decay", OP_muon, never_decays},
    {"Nesterov's momentum for the plain one", OP_sgd, looks_the_other_way},
    {"Nesterov's momentum for the plain one", OP_muon_momentum, looks_the_other_way},
    {"the matrix's shape ignored", OP_muon, shape_ignored},
    {"epsilon dropped", OP_muon_scale, epsilon_dropped},
    {"an expert's first row by another's weight", OP_grouped_linear, segments_by_one},
    {"an expert's first row by another's weight", OP_grouped_linear_grad_input, segments_by_one},
    {"an expert's first row in another's gradient", OP_grouped_linear_grad_weight, segments_by_one},
    {"the last row forgotten", OP_grouped_linear, last_row_of_all_forgotten},
    {"the last row forgotten", OP_grouped_linear_grad_weight, last_row_of_all_forgotten},
    {"rows of nobody not cleared", OP_grouped_linear, rest_not_cleared},
    {"rows of nobody not cleared", OP_grouped_linear_grad_input, rest_not_cleared},
    {"accumulate flipped", OP_grouped_linear_grad_weight, accumulate_flipped},
    {"a gradient of no rows not written", OP_grouped_linear_grad_weight, empty_not_written},
    {"a choice from all groups", OP_route, every_group_kept},
    {"a group's best expert alone", OP_route, best_of_a_group_alone},
    {"weights over their sum where they are not, and not where they are", OP_route, sums_ignored},
    {"weights without their factor", OP_route, weights_unscaled},
    {"the bias ignored", OP_route, bias_ignored},
    {"weights over their sum, backward", OP_route_grad, sums_ignored},
    {"weights without their factor, backward", OP_route_grad, weights_unscaled},
    {"the addend dropped", OP_route_grad, addend_dropped},
    {"another rank's experts", OP_assign, another_ranks_experts},
    {"a pass that begins one row later", OP_assign, pass_by_one},
    {"a pass of one row less", OP_assign, room_by_one},
    {"an order that is not stable", OP_assign, order_unstable},
    {"a wave of slots that begins one row later", OP_slots, pass_by_one},
    {"a row's expert is the next one", OP_slots, ids_shifted},
    {"another rank's slot", OP_slots, another_ranks_slot},
    {"slots filled up as one", OP_dispatch, slots_in_one},
    {"one room for all slots", OP_overflow, rooms_in_one},
    {"weights ignored", OP_dispatch, weights_ignored},
    {"rows that no token has left as they were", OP_dispatch, rest_unwritten},
    {"an assignment forgotten", OP_dispatch, assignment_forgotten},
    {"weights ignored", OP_combine, weights_ignored},
    {"the addend dropped", OP_combine, addend_dropped},
    {"an assignment forgotten", OP_combine, assignment_forgotten},
    {"an assignment forgotten", OP_combine_dots, assignment_forgotten},
    {"a row less room", OP_overflow, a_row_less_room},
    {"the next rung's room", OP_overflow, the_next_rungs_room},
    {"accumulate flipped", OP_overflow, accumulate_flipped},
    {"tokens counted in others' groups", OP_expert_load, other_groups},
    {"places ignored", OP_expert_load, order_of_tokens_ignored},
    {"a scale ignored", OP_expert_load, shape_ignored},
    {"accumulate flipped", OP_expert_count, accumulate_flipped},
    {"a token forgotten", OP_expert_count, last_token_forgotten},
    {"the sum is that of the first experts", OP_expert_share, last_expert_forgotten},
    {"a skipped step changes the bias", OP_expert_bias, skip_ignored},
    {"a bias moved the other way", OP_expert_bias, scaled_backwards},
    {"the mean is that of the first experts", OP_expert_bias, last_expert_forgotten},
    {"accumulate flipped", OP_balance, accumulate_flipped},
    {"places ignored", OP_balance, order_of_tokens_ignored},
    {"a softmax for sigmoids", OP_balance, other_probabilities},
    {"places ignored", OP_balance_grad, order_of_tokens_ignored},
    {"a softmax for sigmoids", OP_balance_grad, other_probabilities},
    {"large logits are free", OP_balance_grad, large_logits_free},
    {"the addend dropped", OP_balance_grad, addend_dropped},
    {"divided by the targets that count", OP_balance_grad, divided_by_targets_that_count},
};

/* Does some variant of the type disagree? Adds the variants tried to *tried. */
static bool is_noticed(int *tried, const op_mutant *of, dtype type)
{
    op_kernel kernels[OP_COUNT];
    memcpy(kernels, cpu_backend.kernels, sizeof kernels);
    kernels[of->kind] = of->kernel;
    op_backend mutant = cpu_backend;
    mutant.kernels = kernels;
    bool noticed = false;
    op_case c;
    for (int variant = 0; !noticed && op_sweep_case(&c, of->kind, type, variant); variant++, ++*tried) {
        char why[256];
        op_case_mode m = {.in_place_out = -1, .threads = 1};
        if (of->kernel == addend_dropped && inputs_of(&c.o) != inputs_named(&c.o))
            continue; /* without an addend there is none to drop */
        noticed = !(op_case_run(why, &c, &mutant, &m, (uint64_t)variant) <= 1);
    }
    return noticed;
}

/* Some variant of fp32, or where roundings alone are wrong of bf16, must disagree; the unchanged kernel agrees on all
 * of them. */
static void notice(const op_mutant *of)
{
    int tried = 0;
    if (!is_noticed(&tried, of, DTYPE_FP32) && !is_noticed(&tried, of, DTYPE_BF16))
        fail_msg("%s: %s in %d variants was not noticed", op_rows[of->kind].name, of->name, tried);
}

TEST(every_mutant_is_noticed)
{
    for (unsigned i = 0; i < sizeof MUTANTS / sizeof *MUTANTS; i++)
        notice(&MUTANTS[i]);
    for (int i = 0; OP_MUTANTS[i].name; i++)
        notice(&OP_MUTANTS[i]);
}

/* OpenMP's threads spin while they wait unless told otherwise before the program starts, which on few cores costs most
 * of the time. */
static void wait_without_spinning(char **argv)
{
    if (!getenv("OMP_WAIT_POLICY") && setenv("OMP_WAIT_POLICY", "passive", 1) == 0)
        execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    (void)argc;
    wait_without_spinning(argv);
    return test_run(NULL, NULL);
}
