#include "engine/compile/plan/plan_text.h"

#include <math.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/optimizer.h"
#include "engine/compile/model/storage.h"
#include "engine/compile/model/tokens.h"
#include "engine/compile/compile.h"
#include "engine/compile/time/transfer_choice.h"
#include "kernels/attention_sizes.h"
#include "kernels/heads.h"
#include "kernels/record/operands.h"
#include "kernels/token.h"
#include "memory/log.h"
#include "memory/units.h"
#include "models/parts.h"
#include "engine/compile/compile_find.h"

static const char *bytes_text(char out[UNITS_TEXT], double bytes)
{
    units_bytes(out, bytes);
    return out;
}

static const char *count_text(char out[UNITS_TEXT], double count)
{
    units_count(out, count);
    return out;
}

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
    snprintf(zero, sizeof zero, " (ZeRO %d)", storage_divides(o) ? storage_level(o) : 0);
    const char *const note[GRID_AXES] = {
        [GRID_TENSOR] = g->size[GRID_TENSOR] > 1 && o->layout.sequence ? " with sequence" : NULL, [GRID_DATA] = zero};
    grid_words(words, g->size, grid_named(g->size), " x ", note);
    fputs(words, out);
}

static void print_layout(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const grid *g = &o->grid;
    char a[UNITS_TEXT], b[UNITS_TEXT];
    fprintf(out, "parameters        %s (%lld)", count_text(a, (double)p->parameters), (long long)p->parameters);
    if (p->active < p->parameters)
        fprintf(out, ", of which %s (%lld) compute a token", count_text(a, (double)p->active), (long long)p->active);
    fprintf(out, "\nFLOPs per token   %s, causal attention counted as half", count_text(a, p->flops_per_token));
    if (p->flops_per_token_full > p->flops_per_token)
        fprintf(out, " (%s counted whole)", count_text(b, p->flops_per_token_full));
    fprintf(out, "\ntokens per step   %s: %d x %d sequences of %lld for each of %d data ranks\n",
            count_text(a, (double)p->tokens_per_step), o->microbatches, o->micro_batch, (long long)o->sequence,
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

/* On a GPU: the rank that needs most, with what is taken beside its arena. */
static void print_reserve(FILE *out, const plan *p)
{
    const profile *h = &p->profile;
    const plan_rank *most = plan_neediest(p);
    int64_t beside = plan_rank_beside(most, h->reserve), all = most->arena + beside;
    char a[UNITS_TEXT], b[UNITS_TEXT], c[UNITS_TEXT], graphs[64] = "";
    if (most->graph_nodes > 0)
        snprintf(graphs, sizeof graphs, " and CUDA graphs of %lld nodes", (long long)most->graph_nodes);
    fprintf(out, "a GPU holds %s beside the arena, %s for %d communicator%s%s: %s in all, which %s the %s of one\n",
            bytes_text(a, (double)beside),
            reserve_is_measured(h->reserve, most->communicators, most->graph_nodes) ? "as this run has measured"
                                                                                    : "assumed",
            most->communicators, most->communicators == 1 ? "" : "s", graphs, bytes_text(b, (double)all),
            plan_fits(p) ? "fit" : "do not fit", bytes_text(c, (double)h->capacity));
}

status plan_text_verdict(const plan *p)
{
    const plan_rank *most = plan_neediest(p);
    double all = (double)(most->arena + plan_rank_beside(most, p->profile.reserve));
    char needs[UNITS_TEXT], has[UNITS_TEXT], more[UNITS_TEXT];
    if (plan_fits(p))
        return STATUS_OK;
    return status_fail(STATUS_USAGE,
                       "this does not fit: rank %d needs %s, %s more than the %s of one %s: use more ranks (--search "
                       "--ranks N finds a layout), memory.budget or memory.recompute, or a smaller train.micro_batch",
                       most->rank, bytes_text(needs, all), bytes_text(more, all - (double)p->profile.capacity),
                       bytes_text(has, (double)p->profile.capacity), p->profile.name);
}

static void print_memory(FILE *out, const plan *p)
{
    fprintf(out, "\nmemory of one rank\n%5s %5s %5s %6s | %10s %10s %10s %10s %10s %10s | %10s %10s\n", "stage", "rank",
            "ranks", "layers", "weights", "gradients", "optimizer", "inputs", "kept", "temporary", "arena", "bound");
    for (int i = 0; i < p->count; i++) {
        const plan_rank *r = &p->ranks[i];
        static const tensor_class columns[] = {CLASS_WEIGHT, CLASS_GRADIENT, CLASS_OPTIMIZER,
                                               CLASS_INPUT,  CLASS_KEPT,     CLASS_TEMPORARY};
        char text[UNITS_TEXT];
        fprintf(out, "%5d %5d %5d %6d |", r->at[GRID_PIPELINE], r->rank, r->count, r->layers);
        for (unsigned k = 0; k < sizeof columns / sizeof *columns; k++)
            fprintf(out, " %10s", bytes_text(text, (double)r->memory[columns[k]]));
        fprintf(out, " | %10s", bytes_text(text, (double)r->arena));
        fprintf(out, " %10s\n", bytes_text(text, (double)r->lower_bound));
    }
    int64_t spread = 0;
    for (int i = 0; i < p->count; i++)
        spread = p->ranks[i].count > 1 && p->ranks[i].spread > spread ? p->ranks[i].spread : spread;
    char text[UNITS_TEXT];
    if (spread > 0)
        fprintf(out, "each rank listed owns the most of those like it; the least of them owns up to %s less\n",
                bytes_text(text, (double)spread));
    fputs("kept and temporary: what is alive where the training step needs most; bound: no placement can be smaller\n",
          out);
    if (p->profile.capacity > 0)
        print_reserve(out, p);
    const plan_rank *pins = WITH_MOST(p, pinned);
    fprintf(out, "a rank on a GPU pins %s of host memory: the inputs, and the batch read ahead",
            bytes_text(text, (double)pins->pinned));
    if (pins->offloaded > 0)
        fprintf(out, "; %s of optimizer state, which updates fetch", bytes_text(text, (double)pins->offloaded));
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
        char text[UNITS_TEXT];
        fprintf(out, "%5d %5d | %9d %9s %9d |", r->at[GRID_PIPELINE], r->rank, r->ops, count_text(text, r->flops),
                r->in_flight);
        for (int a = 0; a < AXIS_COUNT; a++)
            if (used[a])
                fprintf(out, " %10s in %6lld |", bytes_text(text, (double)r->sent[a]), (long long)r->messages[a]);
        fputc('\n', out);
    }
    if (p->schedule->chunks > 1)
        fprintf(out, "in flight counts micro-batches x chunks, of which a stage has %d\n", p->schedule->chunks);
}

static void print_loss(FILE *out, const plan *p)
{
    int with = 0;
    char bytes[UNITS_TEXT];
    while (with < p->count && p->ranks[with].loss_tokens == 0)
        with++;
    if (with == p->count)
        return;
    const plan_rank *r = &p->ranks[with];
    /* nobody has said how much memory there is, and on this device that would decide how large a chunk is */
    bool grows = p->options.budget == 0 && !(p->options.backend && p->options.backend->same_bits);
    fprintf(out, "loss              %lld tokens at a time, %s of logits; %.2g s a micro-batch",
            (long long)r->loss_tokens, bytes_text(bytes, (double)r->loss_bytes), r->loss_seconds);
    if (r->loss_tokens < tokens_count(&p->options).loss)
        fprintf(out, ", %.0f%% more than in one piece%s", 100 * (r->loss_seconds / r->loss_seconds_whole - 1),
                grows ? "; more at a time where memory.budget leaves room" : "");
    fputc('\n', out);
}

/* Which kernel computes attention on the GPU that is planned for, where it is not one of ours at full speed. */
static void print_slow_heads(FILE *out, const plan *p)
{
    const model_shape *shape = &p->options.shape;
    const layer_shape layer = shape_layer(shape, 0);
    int size = parts_head_size(SLOT_Q, shape, &layer);
    if (p->profile.capacity <= 0 || dtype_bytes(precision_compute(p->options.precision)) > 2 ||
        attention_is_fused(size, parts_head_size(SLOT_V, shape, &layer)))
        return;
    if (attention_suits_cudnn(size) && shape->attention_cap == 0 && !shape_has(shape, TRAIT_SINKS) &&
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

/* Who computes the backward pass, and in how much working memory; a plan without the GPU's kernels has none. */
static void print_attention(FILE *out, const plan *p)
{
    const int64_t most = WITH_MOST(p, attention)->attention;
    char bytes[UNITS_TEXT], least[UNITS_TEXT];
    if (most == 0)
        return;
    bytes_text(bytes, (double)most);
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
                bytes, bytes_text(least, least_of_cudnn(&p->options)));
    else
        fprintf(out,
                "attention         %s of working memory for its backward pass, cuDNN's or our own, whichever is timed "
                "as the faster\n",
                bytes);
}

/* What a context rank is given of a layer and micro-batch by the others, and the price of the other way. */
static void print_latents(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const bool latent = o->transfers.latents;
    const double width = latent_width(o, latent), rows = (double)tokens_count(o).micro_batch;
    char bytes[UNITS_TEXT];
    fprintf(out, "context           %s of gathered %s in a layer, of each micro-batch: %.3g ms, %s %.3g ms\n",
            bytes_text(bytes, rows * width * (double)dtype_bytes(precision_compute(o->precision))),
            latent ? "latents" : "keys and values", 1e3 * latent_seconds(o, &p->profile, latent),
            latent ? "keys and values" : "latents", 1e3 * latent_seconds(o, &p->profile, !latent));
}

/* Keys and values that a rank's queries meet, of all context ranks: two copies exist while they are put in order. */
static void print_gathered(FILE *out, const plan *p)
{
    const compile_options *o = &p->options;
    const layer_shape layer = shape_layer(&o->shape, 0);
    if (o->grid.size[GRID_CONTEXT] == 1)
        return;
    if (layer.kv_lora_rank > 0) {
        print_latents(out, p);
        return;
    }
    double heads = heads_of_rank(o->shape.kv_heads, o->grid.size[GRID_TENSOR]);
    double width = parts_head_size(SLOT_K, &o->shape, &layer) + parts_head_size(SLOT_V, &o->shape, &layer);
    double rows = (double)tokens_count(o).micro_batch;
    char bytes[UNITS_TEXT];
    fprintf(out, "context           %s of gathered keys and values in a layer, of each micro-batch\n",
            bytes_text(bytes, rows * heads * width * (double)dtype_bytes(precision_compute(o->precision))));
}

/* How tokens come to experts, and what their transfers take by the prices of this plan, either way. */
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
    char text[UNITS_TEXT];
    if (!p->options.budget) {
        fprintf(out, "recompute         %s\n", config_word_of("memory.recompute", (int)p->options.recompute));
        return;
    }
    fprintf(out, "recompute         to fit %s\n", bytes_text(text, (double)p->options.budget));
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
    char bytes[UNITS_TEXT];
    if (r->order_bytes == 0 && p->options.grid.size[GRID_TENSOR] == 1)
        return; /* hardly anything has moved */
    fprintf(out, "order             %s", order_names[r->order]);
    if (r->order_bytes > 0)
        fprintf(out, ", for %s more on rank %d where most is alive", bytes_text(bytes, (double)r->order_bytes),
                r->rank);
    fputc('\n', out);
}

/* The rank that keeps most. */
static void print_compress(FILE *out, const plan *p)
{
    const plan_rank *most = WITH_MOST(p, feedback);
    const compress_method *m = &p->options.compress;
    char bytes[UNITS_TEXT];
    if (most->feedback == 0)
        return;
    fprintf(out, "compress          %s", compress_words[m->kind]);
    if (m->kind == COMPRESS_TOPK || m->kind == COMPRESS_DCT)
        fprintf(out, " of density %g", m->density);
    fprintf(out, "; rank %d keeps %s of what its messages lacked (of its optimizer's memory)\n", most->rank,
            bytes_text(bytes, (double)most->feedback));
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
        char a[UNITS_TEXT], b[UNITS_TEXT];
        fprintf(out, "  zero_gather=%-11s zero_reduce=%-11s", each_word(c->gather_each), each_word(c->reduce_each));
        if (c->arena < 0)
            fputs(" does not fit the budget", out);
        else
            fprintf(out, " arena %10s, sent along data %10s", bytes_text(a, (double)c->arena),
                    bytes_text(b, (double)c->sent));
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
    /* What is left when the bubble and the waits are taken off. */
    if (p->timing.cores / p->step_seconds >= 0.0005)
        fprintf(out, "cores             %.1f%% of the step, which %d ranks wait for a core: they share %d\n",
                100 * p->timing.cores / p->step_seconds, p->options.grid.ranks, p->profile.cores);
    if (p->options.grid.ranks > 1)
        fprintf(out, "computing         %.1f%% of the step\n", 100 * computing_seconds(p) / p->step_seconds);
    fputs("longest chain     ", out);
    for (int i = 0; i < p->timing.cause_count && i < 4; i++)
        fprintf(out, "%s%s %.0f%%", i ? ", " : "", p->timing.causes[i].text,
                100 * p->timing.causes[i].seconds / p->step_seconds);
    char a[UNITS_TEXT];
    fprintf(out, "\nestimate          %.3g s a step, %s tokens/s, MFU %.1f%%\n", p->step_seconds,
            count_text(a, (double)p->tokens_per_step / p->step_seconds), 100 * p->mfu);
    fprintf(out,
            "                  on %s: %g TFLOP/s of which large products reach %.0f%%, memory %g TB/s; %g GB/s within "
            "the\n                  %d ranks of a node, %g GB/s beyond\n",
            h->name, p->peak / 1e12, 100 * h->tile[0].share, h->memory / 1e12, h->node / 1e9, h->node_ranks,
            h->network / 1e9);
}

void plan_text_report(FILE *out, const plan *p)
{
    print_layout(out, p);
    print_memory(out, p);
    print_work(out, p);
    /* The rank whose update takes longest. */
    const plan_rank *most = WITH_MOST(p, update.seconds);
    const plan_update *u = &most->update;
    char flops[UNITS_TEXT], sent[UNITS_TEXT], working[UNITS_TEXT];
    fprintf(out, "\nupdate            %s: %.2g s on rank %d, %s FLOPs (%.2g%% of its step's), %s of working memory",
            optimizer_name(&p->options), u->seconds, most->rank, count_text(flops, u->flops),
            most->flops > 0 ? 100 * u->flops / most->flops : 0, bytes_text(working, (double)u->working));
    if (u->sent > 0)
        fprintf(out, ", %s sent along tensor", bytes_text(sent, (double)u->sent));
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

static void json_axes(FILE *out, const char *name, const int64_t *value)
{
    fprintf(out, "\"%s\": {", name);
    for (int a = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a))
            fprintf(out, "%s\"%s\": %lld", a ? ", " : "", axis_name((axis)a), (long long)value[a]);
    fputs("}", out);
}

void plan_text_coordinates(FILE *out, const int value[GRID_AXES], unsigned shown)
{
    for (int i = 0; i < GRID_AXES; i++)
        if (shown >> i & 1)
            fprintf(out, "\"%s\": %d, ", axis_coordinates[i].name, value[i]);
}

static void json_rank(FILE *out, const plan_rank *r, unsigned named)
{
    fprintf(out, "{\"rank\": %d, \"stage\": %d, ", r->rank, r->at[GRID_PIPELINE]);
    plan_text_coordinates(out, r->at, named & ~(1u << GRID_PIPELINE));
    fprintf(out,
            "\"count\": %d, \"owned_spread_bytes\": %lld, \"layers\": %d,\n     \"arena_bytes\": %lld, "
            "\"lower_bound_bytes\": %lld, \"transient_bytes\": %lld, \"transient_lower_bound_bytes\": %lld,\n",
            r->count, (long long)r->spread, r->layers, (long long)r->arena, (long long)r->lower_bound,
            (long long)r->transient, (long long)r->transient_bound);
    const int64_t *m = r->memory;
    fprintf(out,
            "     \"pinned_bytes\": %lld, \"offloaded_bytes\": %lld, \"communicators\": %d, \"graph_nodes\": %lld, "
            "\"memory\": "
            "{\"weights\": %lld, \"gradients\": %lld, "
            "\"optimizer\": %lld, "
            "\"kept\": %lld, \"temporary\": "
            "%lld, \"inputs\": %lld},\n     ",
            (long long)r->pinned, (long long)r->offloaded, r->communicators, (long long)r->graph_nodes,
            (long long)m[CLASS_WEIGHT], (long long)m[CLASS_GRADIENT], (long long)m[CLASS_OPTIMIZER],
            (long long)m[CLASS_KEPT], (long long)m[CLASS_TEMPORARY], (long long)m[CLASS_INPUT]);
    json_axes(out, "bytes_sent", r->sent);
    fputs(",\n     ", out);
    json_axes(out, "messages", r->messages);
    fprintf(out, ",\n     \"ops\": %d, \"flops\": %.17g, \"in_flight\": %d, \"recomputed_ops\": %d,\n", r->ops,
            r->flops, r->in_flight, r->dropped);
    fprintf(out,
            "     \"update\": {\"flops\": %.17g, \"seconds\": %.17g, \"tensor_bytes_sent\": %lld, \"working_bytes\": "
            "%lld},\n     \"order\": {\"how\": \"%s\", \"bytes\": %lld},\n     \"loss\": {\"tokens\": %lld, "
            "\"logit_bytes\": %lld, \"seconds\": %.17g}, "
            "\"attention_working_bytes\": %lld, \"feedback_bytes\": %lld}",
            r->update.flops, r->update.seconds, (long long)r->update.sent, (long long)r->update.working,
            order_names[r->order], (long long)r->order_bytes, (long long)r->loss_tokens, (long long)r->loss_bytes,
            r->loss_seconds, (long long)r->attention, (long long)r->feedback);
}

static void json_choices(FILE *out, const plan *p)
{
    fputs(" \"zero_choices\": [", out);
    for (int i = 0; i < p->choice_count; i++) {
        const plan_choice *c = &p->choices[i];
        fprintf(out, "%s\n    {\"zero_gather\": \"%s\", \"zero_reduce\": \"%s\", \"chosen\": %s, ", i ? "," : "",
                each_word(c->gather_each), each_word(c->reduce_each), c->chosen ? "true" : "false");
        if (c->arena < 0)
            fputs("\"arena_bytes\": null, \"data_bytes_sent\": null}", out);
        else
            fprintf(out, "\"arena_bytes\": %lld, \"data_bytes_sent\": %lld}", (long long)c->arena, (long long)c->sent);
    }
    fputs("],\n", out);
}

static void json_device_memory(FILE *out, const plan *p)
{
    const profile *h = &p->profile;
    const plan_rank *most = plan_neediest(p);
    int64_t beside = plan_rank_beside(most, h->reserve);
    fprintf(
        out,
        " \"device_memory\": {\"rank\": %d, \"arena_bytes\": %lld, \"reserve_bytes\": %lld, \"reserve_measured\": %s, "
        "\"capacity_bytes\": %lld, \"fits\": %s},\n",
        most->rank, (long long)most->arena, (long long)beside,
        reserve_is_measured(h->reserve, most->communicators, most->graph_nodes) ? "true" : "false",
        (long long)h->capacity, plan_fits(p) ? "true" : "false");
}

static void json_time(FILE *out, const plan *p)
{
    const profile *h = &p->profile;
    fprintf(out, " \"bubble\": %.17g, \"bubbles\": [", p->timing.bubble);
    for (int i = 0; i < p->timing.count; i++)
        fprintf(out, "%s%.17g", i ? ", " : "", p->timing.ranks[i].idle / p->step_seconds);
    fputs("],\n \"exposed_seconds\": {", out);
    for (int a = 0, shown = 0; a < AXIS_COUNT; a++)
        if (axis_has_messages((axis)a))
            fprintf(out, "%s\"%s\": %.17g", shown++ ? ", " : "", axis_name((axis)a), p->timing.exposed[a]);
    fprintf(out, "},\n \"host_copy_seconds\": %.17g,\n \"norm_barrier_seconds\": %.17g,\n \"longest_chain\": [",
            p->timing.copies, p->timing.barrier);
    for (int i = 0; i < p->timing.cause_count; i++)
        fprintf(out, "%s{\"what\": \"%s\", \"seconds\": %.17g}", i ? ", " : "", p->timing.causes[i].text,
                p->timing.causes[i].seconds);
    fprintf(out,
            "],\n \"compute_seconds\": %.17g, \"core_wait_seconds\": %.17g,\n \"step_seconds\": %.17g, \"mfu\": "
            "%.17g,\n \"assumed\": {\"device\": \"%s\", \"flops\": %.17g, "
            "\"efficiency\": %.17g, \"memory_bandwidth\": %.17g, \"node_bandwidth\": %.17g, "
            "\"network_bandwidth\": %.17g, \"node_ranks\": %d}",
            computing_seconds(p), p->timing.cores, p->step_seconds, p->mfu, h->name, p->peak, h->tile[0].share,
            h->memory, h->node, h->network, h->node_ranks);
}

void plan_text_json(FILE *out, const plan *p, const char *more)
{
    const grid *g = &p->options.grid;
    fprintf(out,
            "{\"parameters\": %lld, \"active_parameters\": %lld, \"flops_per_token\": %.17g, "
            "\"flops_per_token_full_attention\": %.17g, "
            "\"tokens_per_step\": %lld,\n",
            (long long)p->parameters, (long long)p->active, p->flops_per_token, p->flops_per_token_full,
            (long long)p->tokens_per_step);
    fprintf(out, " \"layout\": {\"ranks\": %d, ", g->ranks);
    plan_text_coordinates(out, g->size, grid_named(g->size));
    fprintf(out, "\"virtual_stages\": %d, \"schedule\": \"%s\", \"micro_batches\": %d, \"zero\": %d},\n",
            p->options.layout.virtual_stages, schedule_name(p->schedule->kind), p->options.microbatches,
            storage_level(&p->options));
    fputs(" \"ranks\": [", out);
    for (int i = 0; i < p->count; i++) {
        fputs(i ? ",\n    " : "\n    ", out);
        json_rank(out, &p->ranks[i], grid_named(g->size));
    }
    fputs("],\n", out);
    json_choices(out, p);
    /* Nothing where no ranks divide experts. */
    const compile_options *o = &p->options;
    if (o->layout.expert > 1)
        fprintf(out, " \"expert_dispatch\": {\"how\": \"%s\", \"gather_seconds\": %.17g, \"slots_seconds\": %.17g},\n",
                config_word_of("parallel.expert_dispatch",
                               o->transfers.slots ? CONFIG_DISPATCH_SLOTS : CONFIG_DISPATCH_GATHER),
                dispatch_seconds(o, &p->profile, false), dispatch_seconds(o, &p->profile, true));
    if (p->profile.capacity > 0)
        json_device_memory(out, p);
    json_time(out, p);
    fprintf(out, "%s%s}\n", *more ? ",\n " : "", more);
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
            fprintf(out, ", along %s, %lld bytes sent in %lld", axis_name((axis)o->at.axis), (long long)bytes,
                    (long long)messages);
            if (o->at.bundle_of)
                fprintf(out, ", %d of %d together", o->at.bundle + 1, o->at.bundle_of);
            if (op_has(o, OP_MESSAGE))
                fprintf(out, ", peer %d", o->at.peer);
        } else if (!op_waits(o)) {
            op_cost cost = op_row_of(o)->cost(o);
            fprintf(out, ", %.0f FLOPs, %.0f bytes", cost.flops, cost.bytes);
        }
        fputc('\n', out);
    }
}
