#include "engine/compile/compile_find.h"
#include "engine/compile/plan/plan.h"

#include <math.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/optimizer.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/compile.h"
#include "engine/compile/time/prices.h"
#include "kernels/heads.h"
#include "kernels/record/operands.h"
#include "kernels/token.h"
#include "memory/log.h"
#include "memory/units.h"
#include "models/parts.h"

/* The listed rank that has most of a field. */
#define WITH_MOST(p, field)                                                                                            \
    __extension__({                                                                                                    \
        const plan_rank *most_ = (p)->ranks;                                                                           \
        for (int i_ = 1; i_ < (p)->count; i_++)                                                                        \
            most_ = (p)->ranks[i_].field > most_->field ? &(p)->ranks[i_] : most_;                                     \
        most_;                                                                                                         \
    })

/* ---- for a person ------------------------------------------------------------------------------------------------ */

static void print_sizes(FILE *out, const compile_options *o)
{
    const grid *g = &o->grid;
    char words[GRID_WORDS], zero[32];
    snprintf(zero, sizeof zero, " (ZeRO %d)", storage_divides(o, CLASS_OPTIMIZER) ? storage_level(o) : 0);
    const char *const note[GRID_AXES] = {
        [GRID_TENSOR] = g->size[GRID_TENSOR] > 1 && o->layout.sequence ? " with sequence" : NULL, [GRID_DATA] = zero};
    grid_words(words, g->size, grid_shown(g->size), " x ", note);
    fputs(words, out);
}

static void print_layout(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const grid *g = &o->grid;
    fprintf(out, "parameters        %s (%lld)", COUNT_TEXT(p->parameters), (long long)p->parameters);
    if (p->active < p->parameters)
        fprintf(out, ", of which %s (%lld) compute a token", COUNT_TEXT(p->active), (long long)p->active);
    fprintf(out, "\nFLOPs per token   %s, causal attention counted as half", COUNT_TEXT(p->flops_per_token));
    if (p->flops_per_token_full > p->flops_per_token)
        fprintf(out, " (%s counted whole)", COUNT_TEXT(p->flops_per_token_full));
    fprintf(out, "\ntokens per step   %s: %d x %d sequences of %lld for each of %d data ranks\n",
            COUNT_TEXT(p->tokens_per_step), o->microbatches, o->micro_batch, (long long)o->sequence,
            grid_group_size(g, AXIS_SAMPLES));
    fprintf(out, "layout            %d rank%s: ", g->ranks, g->ranks == 1 ? "" : "s");
    print_sizes(out, o);
    if (g->size[GRID_PIPELINE] > 1)
        fprintf(out, ", %s", schedule_name(p->schedule->kind));
    if (o->layout.virtual_stages > 1)
        fprintf(out, ", %d virtual stages", o->layout.virtual_stages);
    fprintf(out, "; %s\n", precision_words[o->precision]);
    if (compile_schedule_kind(o) == SCHEDULE_AUTO)
        fprintf(out, "auto              found with the prices of %s (parallel.schedule_for), in a run as here\n",
                compile_find_prices(o));
}

/* Prints the GPU memory of the neediest rank, including its bytes beside the arena. */
static void print_reserve(FILE *out, const plan *p)
{
    const profile *h = &p->profile;
    const plan_rank *most = plan_neediest(p);
    int64_t beside = plan_rank_beside(most, h->reserve), all = most->arena + beside;
    char graphs[64] = "";
    if (most->graph_nodes > 0)
        snprintf(graphs, sizeof graphs, " and CUDA graphs of %lld nodes", (long long)most->graph_nodes);
    fprintf(out, "a GPU holds %s beside the arena, %s for %d communicator%s%s: %s in all, which %s the %s of one\n",
            BYTES_TEXT(beside),
            reserve_is_measured(h->reserve, most->communicators, most->graph_nodes) ? "as this run has measured"
                                                                                    : "assumed",
            most->communicators, most->communicators == 1 ? "" : "s", graphs, BYTES_TEXT(all),
            plan_fits(p) ? "fit" : "do not fit", BYTES_TEXT(h->capacity));
}

status plan_text_verdict(const plan *p)
{
    const plan_rank *most = plan_neediest(p);
    double all = (double)(most->arena + plan_rank_beside(most, p->profile.reserve));
    if (plan_fits(p))
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "this does not fit: rank %d needs %s, %s more than the %s of one %s: divide it over more ranks "
                       "(%sparallel.tensor, pipeline, zero; --search --ranks N finds a layout), use memory.budget or "
                       "memory.recompute%s",
                       most->rank, BYTES_TEXT(all), BYTES_TEXT(all - (double)p->profile.capacity),
                       BYTES_TEXT(p->profile.capacity), p->profile.name,
                       p->options.shape.experts > 0 ? "parallel.expert, " : "",
                       p->options.micro_batch > 1 ? ", or a smaller train.micro_batch" : "");
}

static void print_memory(FILE *out, const plan *p)
{
    fprintf(out, "\nmemory of one rank\n%5s %5s %5s %6s | %10s %10s %10s %10s %10s %10s | %10s %10s\n", "stage", "rank",
            "ranks", "layers", "weights", "gradients", "optimizer", "inputs", "kept", "temporary", "arena", "bound");
    for (int i = 0; i < p->count; i++) {
        const plan_rank *r = &p->ranks[i];
        static const tensor_class columns[] = {CLASS_WEIGHT, CLASS_GRADIENT, CLASS_OPTIMIZER,
                                               CLASS_INPUT,  CLASS_KEPT,     CLASS_TEMPORARY};
        fprintf(out, "%5d %5d %5d %6d |", r->at[GRID_PIPELINE], r->rank, r->count, r->layers);
        for (unsigned k = 0; k < sizeof columns / sizeof *columns; k++)
            fprintf(out, " %10s", BYTES_TEXT(r->memory[columns[k]]));
        fprintf(out, " | %10s", BYTES_TEXT(r->arena));
        fprintf(out, " %10s\n", BYTES_TEXT(r->lower_bound));
    }
    int64_t spread = 0;
    for (int i = 0; i < p->count; i++)
        spread = p->ranks[i].count > 1 && p->ranks[i].spread > spread ? p->ranks[i].spread : spread;
    if (spread > 0)
        fprintf(out, "each rank listed owns the most of those like it; the least of them owns up to %s less\n",
                BYTES_TEXT(spread));
    fputs("kept and temporary: what is alive where the training step needs most; bound: no placement can be smaller\n",
          out);
    if (p->profile.capacity > 0)
        print_reserve(out, p);
    const plan_rank *pins = WITH_MOST(p, pinned);
    fprintf(out, "a rank on a GPU pins %s of host memory: the inputs, and the batch read ahead",
            BYTES_TEXT(pins->pinned));
    if (pins->offloaded > 0)
        fprintf(out, "; %s of optimizer state, which updates fetch", BYTES_TEXT(pins->offloaded));
    fputc('\n', out);
}

static void print_work(FILE *out, const plan *p)
{
    fprintf(out, "\nwork and traffic of one rank in a step\n%5s %5s | %9s %9s %9s |", "stage", "rank", "ops", "FLOPs",
            "in flight");
    bool used[AXIS_COUNT] = {0};
    for (int a = 0; a < AXIS_COUNT; a++) {
        for (int i = 0; i < p->count; i++)
            used[a] |= p->ranks[i].messages[a] > 0;
        if (used[a])
            fprintf(out, " %20s |", axis_name((axis)a));
    }
    fputc('\n', out);
    for (int i = 0; i < p->count; i++) {
        const plan_rank *r = &p->ranks[i];
        fprintf(out, "%5d %5d | %9d %9s %9d |", r->at[GRID_PIPELINE], r->rank, r->ops, COUNT_TEXT(r->flops),
                r->in_flight);
        for (int a = 0; a < AXIS_COUNT; a++)
            if (used[a])
                fprintf(out, " %10s in %6lld |", BYTES_TEXT(r->sent[a]), (long long)r->messages[a]);
        fputc('\n', out);
    }
    if (p->schedule->chunks > 1)
        fprintf(out, "in flight counts micro-batches x chunks, of which a stage has %d\n", p->schedule->chunks);
}

static void print_loss(FILE *out, const plan *p)
{
    int with = 0;
    while (with < p->count && p->ranks[with].loss_tokens == 0)
        with++;
    if (with == p->count)
        return;
    const plan_rank *r = &p->ranks[with];
    /* the memory is unknown, and on this device it would decide how large a chunk is */
    bool grows = p->options.budget == 0 && !(p->options.backend && p->options.backend->same_bits);
    fprintf(out, "loss              %lld tokens at a time, %s of logits; %.2g s a micro-batch",
            (long long)r->loss_tokens, BYTES_TEXT(r->loss_bytes), r->loss_seconds);
    if (r->loss_tokens < tokens_count(&p->options).loss)
        fprintf(out, ", %.0f%% more than in one piece%s", 100 * (r->loss_seconds / r->loss_seconds_whole - 1),
                grows ? "; more at a time where memory.budget leaves room" : "");
    fputc('\n', out);
}

/* Which kernel computes attention on the GPU that is planned for, where it is not one of ours at full speed. */
static void print_slow_heads(FILE *out, const plan *p)
{
    const model_shape *shape = &p->options.shape;
    const decoder_crossing attends = decoder_crossing_of(shape);
    if (attends.what == CROSSING_NOTHING)
        return;
    const layer_shape layer = shape_layer(shape, attends.layer);
    int size = parts_head_size(SLOT_Q, shape, &layer);
    if (p->profile.capacity <= 0 || dtype_bytes(precision_compute(p->options.precision)) > 2 ||
        heads_are_fused(size, parts_head_size(SLOT_V, shape, &layer)))
        return;
    if (heads_suit_cudnn(size) && shape->attention_cap == 0 && !shape_has(shape, TRAIT_SINKS) &&
        p->options.optimizer.qk_clip == 0)
        fprintf(
            out,
            "attention         heads of %d elements have no fused kernel of ours: cuDNN's, or about 50 times slower\n",
            size);
    else
        fprintf(out,
                "attention         heads of %d elements have no fused kernel, and cuDNN takes none: about 50 times "
                "slower\n",
                size);
}

/* The least that cuDNN's backward pass takes: it writes dS, 2 bytes for each query and key of the heads that share a
 * key/value head. */
static double least_of_cudnn(const compile_options *o)
{
    const int64_t run = tokens_count(o).run;
    double queries = (double)(run ? run : o->sequence);
    return 2.0 * queries * (double)o->sequence * heads_sharing(o->shape.heads, o->shape.kv_heads);
}

/* Why cuDNN computes no attention, or NULL. */
static const char *without_cudnn(const compile_options *o)
{
    if (o->shape.attention_cap > 0)
        return "where scores are capped";
    if (o->grid.size[GRID_CONTEXT] == 1)
        return NULL;
    if (o->layout.balance == CONFIG_BALANCE_DOCUMENTS)
        return "where documents are dealt";
    for (int i = 0; i < o->shape.layers; i++) {
        const layer_shape layer = shape_layer(&o->shape, i);
        if (token_window(layer.window, o->sequence) == 0)
            return NULL;
    }
    return "of windows where ranks divide samples";
}

/* Prints who computes the backward pass, and its working memory; a plan without the GPU's kernels has none. */
static void print_attention(FILE *out, const plan *p)
{
    const int64_t most = WITH_MOST(p, attention)->attention;
    if (most == 0)
        return;
    const char *bytes = BYTES_TEXT(most);
    if (shape_has(&p->options.shape, TRAIT_SINKS) || p->options.optimizer.qk_clip > 0)
        fprintf(out, "attention         our own forward pass: cuDNN is left out where %s\n",
                p->options.optimizer.qk_clip > 0 ? "optimizer.qk_clip asks for the largest scores"
                                                 : "heads have sinks");
    const char *without = without_cudnn(&p->options);
    if (without)
        fprintf(out,
                "attention         our own kernels, %s of working memory for the backward pass: cuDNN is left out %s\n",
                bytes, without);
    else if ((double)most < least_of_cudnn(&p->options))
        fprintf(out,
                "attention         our own backward pass in %s of working memory: cuDNN's, if it takes it, wants %s or "
                "more\n",
                bytes, BYTES_TEXT(least_of_cudnn(&p->options)));
    else
        fprintf(out,
                "attention         %s of working memory for its backward pass, cuDNN's or our own, whichever is timed "
                "as the faster\n",
                bytes);
}

/* Prints the bytes that a context rank gathers per layer and micro-batch, and the price of the other way. */
static void print_latents(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const bool latent = o->transfers.latents;
    const double width = latent_width(o, latent), rows = (double)tokens_count(o).micro_batch;
    fprintf(out, "context           %s of gathered %s in a layer, of each micro-batch: %.3g ms, %s %.3g ms\n",
            BYTES_TEXT(rows * width * (double)dtype_bytes(precision_compute(o->precision))),
            latent ? "latents" : "keys and values", 1e3 * latent_seconds(o, &p->profile, latent),
            latent ? "keys and values" : "latents", 1e3 * latent_seconds(o, &p->profile, !latent));
}

/* Keys and values that a rank's queries meet, of all context ranks: two copies exist while they are put in order. */
static void print_gathered(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const decoder_crossing crossing = decoder_crossing_of(&o->shape);
    if (o->grid.size[GRID_CONTEXT] == 1 || crossing.what == CROSSING_NOTHING)
        return;
    if (crossing.what == CROSSING_LATENTS) {
        print_latents(out, p);
        return;
    }
    const layer_shape layer = shape_layer(&o->shape, crossing.layer);
    double heads = heads_of_rank(o->shape.kv_heads, o->grid.size[GRID_TENSOR]);
    double width = parts_head_size(SLOT_K, &o->shape, &layer) + parts_head_size(SLOT_V, &o->shape, &layer);
    double rows = (double)tokens_count(o).micro_batch;
    fprintf(out, "context           %s of gathered keys and values in a layer, of each micro-batch\n",
            BYTES_TEXT(rows * heads * width * (double)dtype_bytes(precision_compute(o->precision))));
}

/* Prints how tokens come to experts, and the time of their transfers by the prices of this plan, either way. */
static void print_dispatch(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    if (o->layout.expert <= 1)
        return;
    double gather = dispatch_seconds(o, &p->profile, false), slots = dispatch_seconds(o, &p->profile, true);
    fprintf(out, "experts           %d ranks divide %d; tokens %s: %.3g ms of transfers a layer and micro-batch, ",
            o->layout.expert, o->shape.experts, o->transfers.slots ? "travel in slots" : "are gathered",
            1e3 * (o->transfers.slots ? slots : gather));
    fprintf(out, "%s %.3g ms\n", o->transfers.slots ? "gathered" : "in slots",
            1e3 * (o->transfers.slots ? gather : slots));
}

static void print_recompute(FILE *out, const plan *p)
{
    if (!p->options.budget) {
        fprintf(out, "recompute         %s\n", config_word_of("memory.recompute", (int)p->options.recompute));
        return;
    }
    fprintf(out, "recompute         to fit %s\n", BYTES_TEXT(p->options.budget));
    for (int i = 0; i < p->count; i++)
        if (i == 0 || p->ranks[i].at[GRID_PIPELINE] != p->ranks[i - 1].at[GRID_PIPELINE])
            fprintf(out, "  stage %d recomputes %s\n", p->ranks[i].at[GRID_PIPELINE], p->ranks[i].decision);
}

static const char *const order_names[] = {[ORDER_AS_LOWERED] = "as lowered",
                                          [ORDER_EARLY] = "early launches",
                                          [ORDER_FILLED] = "products beside transfers",
                                          [ORDER_HALVED] = "products in halves beside transfers",
                                          [ORDER_EARLY_PARTS] = "early launches, products in parts",
                                          [ORDER_FILLED_PARTS] = "products beside transfers, or in parts",
                                          [ORDER_HALVED_PARTS] = "products in halves beside transfers, or in parts"};

static void print_order(FILE *out, const plan *p)
{
    const plan_rank *r = WITH_MOST(p, order_bytes);
    if (r->order_bytes == 0 && p->options.grid.size[GRID_TENSOR] == 1)
        return; /* hardly anything has moved */
    fprintf(out, "order             %s", order_names[r->order]);
    if (r->order_bytes > 0)
        fprintf(out, ", for %s more on rank %d where most is alive", BYTES_TEXT(r->order_bytes), r->rank);
    fputc('\n', out);
}

/* The rank that keeps most. */
static void print_compress(FILE *out, const plan *p)
{
    const plan_rank *most = WITH_MOST(p, feedback);
    const compress_method *m = &p->options.compress;
    if (most->feedback == 0)
        return;
    fprintf(out, "compress          %s", compress_words[m->kind]);
    if (m->kind == COMPRESS_TOPK || m->kind == COMPRESS_DCT)
        fprintf(out, " of density %g", m->density);
    fprintf(out, "; rank %d keeps %s of what its messages lacked (of its optimizer's memory)\n", most->rank,
            BYTES_TEXT(most->feedback));
}

static const char *each_word(bool each)
{
    return config_word_of("parallel.zero_gather", each ? CONFIG_EACH_MICRO_BATCH : CONFIG_EACH_STEP);
}

static void print_choices(FILE *out, const plan *p)
{
    if (!p->choice_count)
        return;
    fputs("\nZeRO: gathering weights and reducing gradients\n", out);
    for (int i = 0; i < p->choice_count; i++) {
        const plan_choice *c = &p->choices[i];
        fprintf(out, "  zero_gather=%-11s zero_reduce=%-11s", each_word(c->gather_each), each_word(c->reduce_each));
        if (c->arena < 0)
            fputs(" does not fit the budget", out);
        else
            fprintf(out, " arena %10s, sent along data %10s", BYTES_TEXT(c->arena), BYTES_TEXT(c->sent));
        fputs(c->chosen ? "   <- this configuration\n" : "\n", out);
    }
}

/* The mean over the ranks that are played; with the waits, the bubble and the cores it is the step. */
static double computing_seconds(const plan *p)
{
    double sum = 0;
    for (int i = 0; i < p->timing.count; i++)
        sum += (p->timing.ranks[i].compute - p->timing.ranks[i].cores) / p->timing.count;
    return sum;
}

static void print_exposed(FILE *out, const plan *p)
{
    bool any = false;
    for (int a = 0; a < AXIS_COUNT; a++) {
        double share = p->timing.exposed[a] / p->step_seconds;
        if (share < 0.0005)
            continue;
        fprintf(out, "%s %s %.1f%%", any ? "," : "waiting          ", axis_name((axis)a), 100 * share);
        any = true;
    }
    if (p->timing.copies / p->step_seconds >= 0.0005) {
        fprintf(out, "%s host %.1f%%", any ? "," : "waiting          ", 100 * p->timing.copies / p->step_seconds);
        any = true;
    }
    if (any)
        fputs(" of the step, for transfers that nothing hides\n", out);
}

/* BENCHMARKS.md, "Against published steps" and "On GPUs, predicted", has the errors. */
void plan_text_doubt(FILE *out, const profile *h, int indent)
{
    if (!h->cores && !h->count)
        fprintf(out,
                "%*snot measured on a GPU: 25 published steps of A100s are predicted 5%% off in the mean, 12%%\n"
                "%*sat most; two of H100s 3%% and 31%%\n",
                indent, "", indent, "");
}

static void print_time(FILE *out, const plan *p)
{
    const profile *h = &p->profile;
    fputc('\n', out);
    if (p->schedule->stages > 1)
        fprintf(out, "bubble            %.1f%% of the step\n", 100 * p->timing.bubble);
    print_exposed(out, p);
    if (p->timing.barrier / p->step_seconds >= 0.0005)
        fprintf(out, "norm              %.1f%% of the step, until all ranks have their gradients\n",
                100 * p->timing.barrier / p->step_seconds);
    /* the rest, without the bubble and the waits */
    if (p->timing.cores / p->step_seconds >= 0.0005)
        fprintf(out, "cores             %.1f%% of the step, which %d ranks wait for a core: they share %d\n",
                100 * p->timing.cores / p->step_seconds, p->options.grid.ranks, p->profile.cores);
    if (p->options.grid.ranks > 1)
        fprintf(out, "computing         %.1f%% of the step\n", 100 * computing_seconds(p) / p->step_seconds);
    fputs("longest chain     ", out);
    for (int i = 0; i < p->timing.cause_count && i < 4; i++)
        fprintf(out, "%s%s %.0f%%", i ? ", " : "", p->timing.causes[i].text,
                100 * p->timing.causes[i].seconds / p->step_seconds);
    fprintf(out, "\nestimate          %.3g s a step, %s tokens/s, MFU %.1f%%\n", p->step_seconds,
            COUNT_TEXT((double)p->tokens_per_step / p->step_seconds), 100 * p->mfu);
    fprintf(out,
            "                  on %s: %g TFLOP/s of which large products reach %.0f%%, memory %g TB/s; %g GB/s within "
            "the\n                  %d ranks of a node, %g GB/s beyond\n",
            h->name, p->peak / 1e12, 100 * h->tile[0].share, h->memory / 1e12, h->node / 1e9, h->node_ranks,
            h->network / 1e9);
    plan_text_doubt(out, h, 18);
}

void plan_text_report(FILE *out, const plan *p)
{
    print_layout(out, p);
    print_memory(out, p);
    print_work(out, p);
    /* the rank with the longest update */
    const plan_rank *most = WITH_MOST(p, update.seconds);
    const plan_update *u = &most->update;
    fprintf(out, "\nupdate            %s: %.2g s on rank %d, %s FLOPs (%.2g%% of its step's), %s of working memory",
            config_word_of("optimizer.name", (int)p->options.optimizer.name), u->seconds, most->rank,
            COUNT_TEXT(u->flops), most->flops > 0 ? 100 * u->flops / most->flops : 0, BYTES_TEXT(u->working));
    if (u->sent > 0)
        fprintf(out, ", %s sent along tensor", BYTES_TEXT(u->sent));
    fputc('\n', out);
    print_loss(out, p);
    print_attention(out, p);
    print_gathered(out, p);
    print_dispatch(out, p);
    print_slow_heads(out, p);
    print_recompute(out, p);
    print_order(out, p);
    print_compress(out, p);
    print_choices(out, p);
    print_time(out, p);
}

/* ---- for programs ------------------------------------------------------------------------------------------------ */

void plan_text_coordinates(fact_writer *out, const int value[GRID_AXES], unsigned shown)
{
    for (int i = 0; i < GRID_AXES; i++)
        if (shown >> i & 1)
            FACTS(out, FACT(axis_coordinates[i].name, value[i]));
}

/* An object with a member for each axis that carries messages: counts, or else seconds. */
static void axis_facts(fact_writer *out, const char *key, const int64_t *counts, const double *seconds)
{
    facts_open(out, key, '{');
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a))
            FACTS(out, counts ? FACT(axis_name((axis)a), counts[a]) : FACT(axis_name((axis)a), seconds[a]));
    facts_close(out, '}');
}

static void rank_facts(fact_writer *out, const plan_rank *r, unsigned named)
{
    const int64_t *m = r->memory;
    facts_open(out, "\n    ", '{');
    FACTS(out, FACT("rank", r->rank), FACT("stage", r->at[GRID_PIPELINE]));
    plan_text_coordinates(out, r->at, named & ~(1u << GRID_PIPELINE));
    FACTS(out, FACT("count", r->count), FACT("owned_spread_bytes", r->spread), FACT("layers", r->layers),
          FACT("\n     arena_bytes", r->arena), FACT("lower_bound_bytes", r->lower_bound),
          FACT("transient_bytes", r->transient), FACT("transient_lower_bound_bytes", r->transient_bound),
          FACT("\n     pinned_bytes", r->pinned), FACT("offloaded_bytes", r->offloaded),
          FACT("communicators", r->communicators), FACT("graph_nodes", r->graph_nodes));
    FACTS_OBJECT(out, "memory", FACT("weights", m[CLASS_WEIGHT]), FACT("gradients", m[CLASS_GRADIENT]),
                 FACT("optimizer", m[CLASS_OPTIMIZER]), FACT("kept", m[CLASS_KEPT]),
                 FACT("temporary", m[CLASS_TEMPORARY]), FACT("inputs", m[CLASS_INPUT]));
    axis_facts(out, "\n     bytes_sent", r->sent, NULL);
    axis_facts(out, "\n     messages", r->messages, NULL);
    FACTS(out, FACT("\n     ops", r->ops), FACT("flops", r->flops), FACT("in_flight", r->in_flight),
          FACT("recomputed_ops", r->dropped));
    FACTS_OBJECT(out, "\n     update", FACT("flops", r->update.flops), FACT("seconds", r->update.seconds),
                 FACT("tensor_bytes_sent", r->update.sent), FACT("working_bytes", r->update.working));
    FACTS_OBJECT(out, "\n     order", FACT("how", order_names[r->order]), FACT("bytes", r->order_bytes));
    FACTS_OBJECT(out, "\n     loss", FACT("tokens", r->loss_tokens), FACT("logit_bytes", r->loss_bytes),
                 FACT("seconds", r->loss_seconds));
    FACTS(out, FACT("attention_working_bytes", r->attention), FACT("feedback_bytes", r->feedback));
    facts_close(out, '}');
}

static void choice_facts(fact_writer *out, const plan_choice *c)
{
    facts_open(out, "\n    ", '{');
    FACTS(out, FACT("zero_gather", each_word(c->gather_each)), FACT("zero_reduce", each_word(c->reduce_each)),
          FACT("chosen", c->chosen));
    if (c->arena < 0)
        FACTS(out, FACT("arena_bytes", json_null()), FACT("data_bytes_sent", json_null()));
    else
        FACTS(out, FACT("arena_bytes", c->arena), FACT("data_bytes_sent", c->sent));
    facts_close(out, '}');
}

static void time_facts(fact_writer *out, const plan *p)
{
    const profile *h = &p->profile;
    const timing *t = &p->timing;
    FACTS(out, FACT("\n bubble", t->bubble));
    facts_open(out, "bubbles", '[');
    for (int i = 0; i < t->count; i++)
        FACTS(out, FACT("", t->ranks[i].idle / p->step_seconds));
    facts_close(out, ']');
    axis_facts(out, "\n exposed_seconds", NULL, t->exposed);
    FACTS(out, FACT("\n host_copy_seconds", t->copies), FACT("\n norm_barrier_seconds", t->barrier));
    facts_open(out, "\n longest_chain", '[');
    for (int i = 0; i < t->cause_count; i++) {
        FACTS_OBJECT(out, "", FACT("what", t->causes[i].text), FACT("seconds", t->causes[i].seconds));
    }
    facts_close(out, ']');
    FACTS(out, FACT("\n compute_seconds", computing_seconds(p)), FACT("core_wait_seconds", t->cores),
          FACT("\n step_seconds", p->step_seconds), FACT("mfu", p->mfu));
    FACTS_OBJECT(out, "\n assumed", FACT("device", h->name), FACT("flops", p->peak),
                 FACT("efficiency", h->tile[0].share), FACT("memory_bandwidth", h->memory),
                 FACT("node_bandwidth", h->node), FACT("network_bandwidth", h->network),
                 FACT("node_ranks", h->node_ranks));
}

void plan_text_facts(fact_writer *out, const plan *p)
{
    const compile_options *o = &p->options;
    const unsigned named = grid_shown(o->grid.size);
    FACTS(out, FACT("parameters", p->parameters), FACT("active_parameters", p->active),
          FACT("flops_per_token", p->flops_per_token), FACT("flops_per_token_full_attention", p->flops_per_token_full),
          FACT("tokens_per_step", p->tokens_per_step));
    facts_open(out, "\n layout", '{');
    FACTS(out, FACT("ranks", o->grid.ranks));
    plan_text_coordinates(out, o->grid.size, named);
    FACTS(out, FACT("virtual_stages", o->layout.virtual_stages), FACT("schedule", schedule_name(p->schedule->kind)),
          FACT("micro_batches", o->microbatches), FACT("zero", storage_level(o)));
    facts_close(out, '}');
    facts_open(out, "\n ranks", '[');
    for (int i = 0; i < p->count; i++)
        rank_facts(out, &p->ranks[i], named);
    facts_close(out, ']');
    facts_open(out, "\n zero_choices", '[');
    for (int i = 0; i < p->choice_count; i++)
        choice_facts(out, &p->choices[i]);
    facts_close(out, ']');
    if (o->layout.expert > 1) { /* ranks divide experts */
        FACTS_OBJECT(out, "\n expert_dispatch",
                     FACT("how", config_word_of("parallel.expert_dispatch",
                                                o->transfers.slots ? CONFIG_DISPATCH_SLOTS : CONFIG_DISPATCH_GATHER)),
                     FACT("gather_seconds", dispatch_seconds(o, &p->profile, false)),
                     FACT("slots_seconds", dispatch_seconds(o, &p->profile, true)));
    }
    if (p->profile.capacity > 0) {
        const reserve *beside = p->profile.reserve;
        const plan_rank *most = plan_neediest(p);
        FACTS_OBJECT(out, "\n device_memory", FACT("rank", most->rank), FACT("arena_bytes", most->arena),
                     FACT("reserve_bytes", plan_rank_beside(most, beside)),
                     FACT("reserve_measured", reserve_is_measured(beside, most->communicators, most->graph_nodes)),
                     FACT("capacity_bytes", p->profile.capacity), FACT("fits", plan_fits(p)));
    }
    time_facts(out, p);
}

/* ---- a program --------------------------------------------------------------------------------------------------- */

static void print_operand(FILE *out, const char *role, const tensor *t)
{
    char text[192];
    if (!t)
        return;
    fprintf(out, " %s %s@%lld", role, operands_text(text, sizeof text, t), (long long)t->address);
    const tensor *root = t;
    while (root->base)
        root = root->base;
    if (tensor_persistent(root))
        fputs(" persistent", out);
    else
        fprintf(out, " ops %d..%d", root->first, root->last);
}

void plan_text_listing(FILE *out, const compiled *c)
{
    fputs("# index phase micro-batch label: op, operands as [shape] type placement @arena offset and the ops between "
          "which\n"
          "# their bytes are theirs, FLOPs, bytes (of communication: bytes sent)\n",
          out);
    const program *p = &c->training.list;
    for (int i = 0; i < p->count; i++) {
        const op *o = p->ops[i];
        char text[256];
        fprintf(out, "%d %s ", i, phase_name((phase)o->phase));
        if (o->microbatch >= 0)
            fprintf(out, "%d ", o->microbatch);
        else
            fputs("- ", out);
        fprintf(out, "%s", op_text(text, sizeof text, o));
        for (int k = 0; k < OP_MAX_IN; k++)
            print_operand(out, "in", o->in[k]);
        for (int k = 0; k < OP_MAX_OUT; k++)
            print_operand(out, "out", o->out[k]);
        print_operand(out, "scratch", o->scratch);
        if (op_communicates(o)) {
            int64_t scratch, bytes, messages;
            collective_measure(&scratch, &bytes, &messages, p, i);
            fprintf(out, ", along %s, %lld bytes sent in %lld", axis_name((axis)o->where.axis), (long long)bytes,
                    (long long)messages);
            if (o->where.bundle_of)
                fprintf(out, ", %d of %d together", o->where.bundle + 1, o->where.bundle_of);
            if (op_has(o, OP_MESSAGE))
                fprintf(out, ", peer %d", o->where.peer);
        } else if (!op_waits(o)) {
            op_cost cost = op_row_of(o)->cost(o);
            fprintf(out, ", %.0f FLOPs, %.0f bytes", cost.flops, cost.bytes);
        }
        fputc('\n', out);
    }
}
