#include "engine/compile/time/profile.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/collective.h"
#include "engine/compile/model/tokens.h"
#include "kernels/attention.h"
#include "kernels/grouped.h"
#include "kernels/record/product.h"
#include "memory/log.h"

/* Figures that a profile adds to its device's row (kernels/table/devices.def). */
typedef struct built_in {
    const char *name, *device;
    profile as;
} built_in;

static const built_in profiles[] = {
#define PROFILE(word, device, ...) {word, device, {__VA_ARGS__}},
#include "engine/compile/time/profiles.def"
#undef PROFILE
};

enum { PROFILES = sizeof profiles / sizeof *profiles };

profile profile_named(const char *name)
{
    const built_in *from = profiles;
    while (from < profiles + PROFILES && strcmp(from->name, name) != 0)
        from++;
    if (from == profiles + PROFILES)
        return (profile){0};
    const devices_row *d = devices_named(from->device);
    MUST(d, "no device %s", from->device);
    profile p = from->as;
    snprintf(p.name, sizeof p.name, "%s", from->name);
    p.device = d;
    memcpy(p.peak, d->peak, sizeof p.peak);
    p.processors = d->processors;
    p.memory = d->memory;
    p.node = p.node > 0 ? p.node : d->node;
    return p;
}

profile profile_compiled_for(const compile_options *o)
{
    const char *word = target_device(o)->word;
    return profile_named(word ? word : DEVICES_ASSUMED);
}

const char *profile_names(void)
{
    static const char words[] =
#define PROFILE(word, ...) ", " word
#include "engine/compile/time/profiles.def"
#undef PROFILE
        ;
    return &words[2];
}

void profile_free(profile *p)
{
    free(p->points);
    p->points = NULL;
    p->count = 0;
}

void profile_plan_for(compile_options *o, profile *p)
{
    p->tf32 = o->tf32;
    p->any_order = o->any_order;
    if (!o->backend || !o->backend->same_bits)
        o->device = p->device;
}

/* ---- sizes ------------------------------------------------------------------------------------------------------- */

static double peak_flops(const profile *p, dtype type)
{
    return p->peak[precision_peak(type, p->tf32)];
}

double profile_products(const profile *p, dtype type)
{
    return peak_flops(p, type) * p->tile[0].share;
}

/* Returns the op that assigned the rows of `o` to tokens, or NULL. `o` reads its second output, the experts' offsets:
 * the only second output that is a vector of integers. */
static const op *assigning_op(const op *o)
{
    for (int i = 0; i < OP_MAX_IN; i++) {
        const tensor *t = o->in[i];
        const op *by = t ? t->producer : NULL;
        if (by && by->out[1] == t && t->type == DTYPE_INT32 && t->dims == 1)
            return by;
    }
    return NULL;
}

/* Returns the share of an op's planned rows that hold tokens, on the slowest rank of the expert group; 1 for ops that
 * compute all rows. Overflow passes are planned for more rows than arrive. */
static double rows_filled(const profile *p, const op *o)
{
    const op *by = assigning_op(o);
    if (!by)
        return 1;
    /* The op that filled slots on the sending ranks if the dispatch uses slots, else NULL. */
    const op *exchange = by->in[0]->producer;
    const op *sent = exchange && op_has(exchange, OP_EXCHANGE) ? exchange->in[0]->producer : NULL;
    const op_routing *as = sent ? &sent->at.routing : &by->at.routing;
    double chosen = (double)tensor_elements(sent ? sent->in[0] : by->in[0]);
    double mean = sent ? chosen / as->slots : chosen * as->local / as->experts;
    double rows = (p->load > 0 ? p->load : 1) * mean - (double)as->skip;
    double planned = (double)by->at.routing.rows / (sent ? as->slots : 1);
    return rows <= 0 ? 0 : rows < planned ? rows / planned : 1;
}

/* Finds a product's m, n and k, or the average of a grouped product's experts, of which `filled` rows hold tokens.
 * Returns the number of products, 0 for any other op. */
static int64_t product_size(double size[3], const op *o, double filled)
{
    if (op_is(o, OP_CLASS_GROUPED)) {
        grouped_product p = grouped_of(o);
        grouped_average(size, &p);
        size[p.sums ? 2 : 0] *= filled;
        return p.experts;
    }
    if (!op_is(o, OP_CLASS_PRODUCT))
        return 0;
    matrix_product p = product_of(o);
    size[0] = (double)p.m;
    size[1] = (double)p.n;
    size[2] = (double)p.k;
    return 1;
}

static void find_size(double size[3], const profile *p, const op *o)
{
    if (product_size(size, o, rows_filled(p, o)))
        return;
    size[0] = op_row_of(o)->cost(o).bytes;
    size[1] = size[2] = 0;
    if (op_does(o, OP_PAIRS)) {
        attention_work(size, o);
        size[1] = attention_reach(o);
    }
}

static dtype type_of(const op *o)
{
    const tensor *t = o->in[0] ? o->in[0] : o->out[0];
    return t ? (dtype)t->type : DTYPE_FP32;
}

/* ---- a model of a device ----------------------------------------------------------------------------------------- */

/* Multiprocessors compute tiles in waves, the tiles of `count` products together. A product of few tiles may divide its
 * depth (split k) and add the parts in memory. */
static double tile_seconds(const profile *p, double flops, const double size[3], int64_t count)
{
    enum { MOST_PARTS = 16 };
    double best = INFINITY;
    for (int i = 0; i < PROFILE_TILES && p->tile[i].rows; i++) {
        const profile_tile *t = &p->tile[i];
        double tiles = (double)count * ceil(size[0] / t->rows) * ceil(size[1] / t->columns);
        double each = 2.0 * t->rows * t->columns / (flops / p->processors * t->share);
        for (int parts = 1; parts <= (count > 1 ? 1 : MOST_PARTS); parts *= 2) {
            double waves = ceil(tiles * parts / p->processors);
            double seconds = waves * each * (size[2] / parts + p->depth);
            if (parts > 1)
                seconds += 8.0 * parts * size[0] * size[1] / p->memory;
            best = seconds < best ? seconds : best;
        }
    }
    return best;
}

/* Returns the share of rows that an in-place sum changes. */
static double share_added(const op *o, const op *by, double filled)
{
    double rows = filled * (double)by->at.routing.rows, all = (double)o->out[0]->shape[0];
    return rows < all ? rows / all : 1;
}

/* Counts the bytes that an op moves. Rows without tokens are written, not read; nor are weights without rows. */
static double moved_bytes(const op *o, double filled)
{
    const unsigned in_place = op_row_of(o)->takes[0];
    const op *by = assigning_op(o);
    double bytes = op_row_of(o)->cost(o).bytes;
    if (op_is(o, OP_CLASS_GROUPED) && filled == 0)
        return op_has(o, OP_WEIGHT) ? 0 : (double)tensor_bytes(o->out[0]);
    for (int i = 0; by && i < OP_MAX_IN; i++)
        if (o->in[i] && o->in[i]->dims == 2 && o->in[i]->shape[0] == by->at.routing.rows)
            bytes -= (1 - filled) * (double)tensor_bytes(o->in[i]);
        else if (o->in[i] && in_place >> i & 1)
            bytes -= (1 - share_added(o, by, filled)) * (double)(tensor_bytes(o->in[i]) + tensor_bytes(o->out[0]));
    return bytes;
}

static double model_product(const profile *p, const op *o, const double size[3], int64_t count)
{
    double flops = peak_flops(p, type_of(o)), bytes = moved_bytes(o, rows_filled(p, o)) / (p->memory * p->memory_share);
    double work = 2 * (double)count * size[0] * size[1] * size[2];
    double seconds = p->processors ? tile_seconds(p, flops, size, count) : work / (flops * p->tile[0].share);
    return (seconds > bytes ? seconds : bytes) + p->product_start;
}

/* Models attention as separate kernels: products over the whole square, and scores in memory. Forward writes the
 * scores, reads and writes them in a fused softmax and in dropout with its mask, and reads them (2205.05198's 5 a s / h
 * counts the kept ones); the gradient passes over them twice as often. */
static double model_scores(const profile *p, const op *o)
{
    bool gradient = op_has(o, OP_GRADIENT);
    double size[3];
    attention_work(size, o);
    double pairs = size[0] * size[1] * o->at.heads.q;
    double flops = (gradient ? 8 : 4) * pairs * o->at.heads.size, bytes = (gradient ? 19 : 13) * pairs;
    return flops / (p->peak[PEAK_HALF] * 0.6) + bytes / (p->memory * p->memory_share) + 4 * p->start;
}

static double share_at(const profile_length *at, bool gradient)
{
    return gradient ? at->gradient : at->forward;
}

/* Returns the share of the peak that a mixer reaches: attention's is interpolated by keys per query (a window or the
 * sequence). */
static double mixer_share(const profile *p, const op *o)
{
    const bool gradient = op_has(o, OP_GRADIENT);
    if (p->lengths == 0 || !op_does(o, OP_PAIRS))
        return gradient ? p->attention_gradient : p->attention;
    const double reach = attention_reach(o);
    int above = 0;
    while (above < p->lengths && p->length[above].sequence < reach)
        above++;
    if (above == 0 || above == p->lengths)
        return share_at(&p->length[above == 0 ? 0 : above - 1], gradient);
    const profile_length *low = &p->length[above - 1], *high = &p->length[above];
    double part = log(reach / low->sequence) / log(high->sequence / low->sequence);
    return share_at(low, gradient) + part * (share_at(high, gradient) - share_at(low, gradient));
}

static double attention_peak(const profile *p, const op *o)
{
    return p->peak[precision_peak(type_of(o), false)];
}

/* Returns the seconds of memory traffic that a gradient's deterministic sums cost. */
static double ordered_seconds(const profile *p, const op *o)
{
    if (!op_has(o, OP_GRADIENT) || p->any_order || !op_does(o, OP_PAIRS))
        return 0;
    double pairs = (attention_reach(o) + 1) / 2 * (double)o->in[1]->shape[0] * o->at.heads.q;
    return p->attention_pair * pairs / (p->memory * p->memory_share);
}

/* Updates share a launch, so none is charged for its start. */
static double model_rest(const profile *p, const op *o)
{
    op_cost cost = op_row_of(o)->cost(o);
    double compute = cost.flops / (p->peak[PEAK_FP32] * 0.5),
           move = moved_bytes(o, rows_filled(p, o)) / (p->memory * p->memory_share);
    return (compute > move ? compute : move) + (op_is(o, OP_CLASS_UPDATE) ? 0 : p->start);
}

static double model_mixer(const profile *p, const op *o)
{
    double share = mixer_share(p, o);
    if (share <= 0)
        return op_does(o, OP_PAIRS) ? model_scores(p, o) : model_rest(p, o);
    op_cost cost = op_row_of(o)->cost(o);
    double compute = cost.flops / (attention_peak(p, o) * share), move = cost.bytes / (p->memory * p->memory_share);
    return (compute > move ? compute : move) + ordered_seconds(p, o) + p->start;
}

static double model_op(const profile *p, const op *o)
{
    double size[3];
    if (op_copies(o))
        return op_row_of(o)->cost(o).bytes / p->bus + p->start;
    int64_t products = product_size(size, o, rows_filled(p, o));
    if (products)
        return model_product(p, o, size, products);
    return op_does(o, OP_MIXES) ? model_mixer(p, o) : model_rest(p, o);
}

/* ---- measured ---------------------------------------------------------------------------------------------------- */

static int threads_of(const profile *p, int threads)
{
    return p->cores == 0 ? 1 : threads > 0 && threads < p->cores ? threads : p->cores;
}

/* Returns the slowdown of a rank with `threads` of the cores; the model assumes all cores. */
static double core_slowdown(const profile *p, int threads)
{
    return p->cores ? (double)p->cores / threads_of(p, threads) : 1;
}

/* Returns measured / modelled time: the mean over the points of this kind, weighted by distance in log space; 1 without
 * points. */
static double measured_factor(const profile *p, op_kind kind, dtype type, bool adds, const double size[3])
{
    double weight = 0, share = 0;
    for (int i = 0; i < p->count; i++) {
        const profile_point *at = &p->points[i];
        if (at->kind != kind || at->type != type || at->adds != adds)
            continue;
        double other = 2 * log((double)threads_of(p, at->threads) / threads_of(p, p->threads)), far = 0;
        for (int k = 0; k < 3; k++) {
            double d = log((size[k] + 1) / (at->size[k] + 1));
            far += d * d;
        }
        far += other * other;
        double w = 1 / (far * far + 1e-9);
        weight += w;
        share += w * log(at->seconds / at->model);
    }
    return weight > 0 ? exp(share / weight) : 1;
}

double profile_op(const profile *p, const op *o)
{
    double size[3], seconds = model_op(p, o) * core_slowdown(p, p->threads);
    if (p->count == 0)
        return seconds;
    find_size(size, p, o);
    return seconds * measured_factor(p, (op_kind)o->kind, type_of(o), o->at.accumulate != OP_WRITES, size);
}

/* Returns the row of lengths for a sequence, a new one if there is none; NULL: there are too many. */
static profile_length *length_row(profile *p, double sequence)
{
    int at = 0;
    while (at < p->lengths && p->length[at].sequence < sequence - 0.5)
        at++;
    if (at < p->lengths && p->length[at].sequence < sequence + 0.5)
        return &p->length[at];
    if (p->lengths == PROFILE_LENGTHS)
        return NULL;
    memmove(&p->length[at + 1], &p->length[at], (size_t)(p->lengths - at) * sizeof *p->length);
    p->length[at] = (profile_length){.sequence = sequence};
    p->lengths++;
    return &p->length[at];
}

void profile_take_attention(profile *p, const op *o, double seconds)
{
    profile_length *at = length_row(p, attention_reach(o));
    double all = attention_peak(p, o) * (seconds - p->start) / core_slowdown(p, p->threads);
    double share = all > 0 ? op_row_of(o)->cost(o).flops / all : 1;
    double *best = !at ? NULL : op_has(o, OP_GRADIENT) ? &at->gradient : &at->forward;
    if (best && share > *best)
        *best = share < 1 ? share : 1;
}

profile_point profile_point_of(const profile *p, const op *o, double seconds)
{
    profile_point at = {.kind = (op_kind)o->kind,
                        .type = type_of(o),
                        .adds = o->at.accumulate != OP_WRITES,
                        .seconds = seconds,
                        .model = model_op(p, o) * core_slowdown(p, p->threads),
                        .threads = p->threads};
    find_size(at.size, p, o);
    return at;
}

/* ---- the network ------------------------------------------------------------------------------------------------- */

bool profile_leaves_node(const profile *p, const grid *g, axis a)
{
    return grid_span(g, a) > p->node_ranks;
}

/* Counts members of this rank's group on its node, whose network ports serve the group together. Members ascend. */
static int members_on_node(const profile *p, const grid *g, axis a)
{
    int members = grid_group_size(g, a), count = 0, mine = g->rank / p->node_ranks;
    for (int i = 0; i < members && grid_member(g, a, i) / p->node_ranks <= mine; i++)
        count += grid_member(g, a, i) / p->node_ranks == mine;
    return count ? count : 1;
}

double profile_rate(const profile *p, const grid *g, axis a)
{
    double rate = profile_leaves_node(p, g, a) ? p->network * members_on_node(p, g, a) : p->node;
    return rate < p->node ? rate : p->node;
}

static double model_transfer(const profile *p, bool leaves, double rate, double bytes, int members)
{
    int hops = members - 1;
    return (leaves ? p->network_latency : p->latency) + bytes / rate + p->hop * (hops < 64 ? hops : 64);
}

/* Corrects by measured points within a node only: none are measured between nodes. */
static double transfer_seconds(const profile *p, op_kind kind, bool leaves, double rate, double bytes, int members)
{
    const double size[3] = {bytes, members, 0};
    double seconds = model_transfer(p, leaves, rate, bytes, members);
    return leaves || p->count == 0 ? seconds : seconds * measured_factor(p, kind, DTYPE_FP32, false, size);
}

profile_point profile_point_of_transfer(const profile *p, op_kind kind, double bytes, int members, double seconds)
{
    return (profile_point){.kind = kind,
                           .type = DTYPE_FP32,
                           .size = {bytes, members, 0},
                           .seconds = seconds,
                           .model = model_transfer(p, false, p->node, bytes, members),
                           .threads = p->threads};
}

double profile_collective(const profile *p, const grid *g, axis a, op_kind kind, double bytes)
{
    bool leaves = profile_leaves_node(p, g, a);
    int members = grid_group_size(g, a);
    double rate = profile_rate(p, g, a);
    if (leaves && (op_rows[kind].flags & OP_EXCHANGE)) {
        /* Each member's part of an all_to_all travels alone: parts to other nodes use this rank's own port, and overlap
         * with parts within the node. */
        int near = members_on_node(p, g, a);
        double within = (near - 1) / p->node, beyond = (members - near) / p->network;
        rate = (members - 1) / (within > beyond ? within : beyond);
    }
    return transfer_seconds(p, kind, leaves, rate, bytes, members);
}

double profile_message(const profile *p, const grid *g, int peer, double bytes)
{
    bool leaves = peer / p->node_ranks != g->rank / p->node_ranks;
    return transfer_seconds(p, OP_send, leaves, leaves ? p->network : p->node, bytes, 1);
}

double profile_transfer(const profile *p, const grid *g, const program *of, int index)
{
    const op *o = of->ops[index];
    axis a = (axis)o->where.axis;
    int64_t scratch, bytes, messages;
    if (op_has(o, OP_MESSAGE))
        return profile_message(p, g, o->where.peer, (double)tensor_bytes(op_has(o, OP_LEAVES) ? o->in[0] : o->out[0]));
    if (o->where.group_size <= 1)
        return 0;
    collective_measure(&scratch, &bytes, &messages, of, index);
    if (op_has(o, OP_GATHER) && !p->host_moves)
        bytes = collective_gathered(of, index);
    return profile_collective(p, g, a, (op_kind)o->kind, (double)bytes);
}

/* ---- memory beside the arena ---- */

#define MIB ((int64_t)1 << 20)

/* bytes[n]: with n communicators. The base is half a GiB for a context, and as much for cuBLASLt's and cuDNN's kernels.
 * The first communicators are for collectives, with buffers for 32 blocks, later ones for messages, for 8
 * (parallel/comm/nccl). A graph takes about 10 KB per kernel node (NVIDIA/cccl, pull request 3768), some three times as
 * much before CUDA 12.4 (vllm-project/vllm, issue 5517). We measured neither. */
const reserve reserve_assumed = {.bytes = {1024 * MIB, 1536 * MIB, 2048 * MIB, 2304 * MIB, 2560 * MIB, 2752 * MIB,
                                           2944 * MIB, 3136 * MIB, 3328 * MIB},
                                 .node = 10240};

static int reserve_row(int communicators)
{
    return communicators < RESERVE_ROWS ? communicators : RESERVE_ROWS - 1;
}

int64_t reserve_bytes(const reserve *r, int communicators, int64_t nodes)
{
    return r->bytes[reserve_row(communicators)] + (int64_t)(r->node * (double)nodes + 0.5);
}

bool reserve_is_measured(const reserve *r, int communicators, int64_t nodes)
{
    return r->measured[reserve_row(communicators)] && (nodes == 0 || r->node_measured);
}

void reserve_note(reserve *r, int communicators, int64_t bytes, int64_t nodes, int64_t graphs)
{
    r->bytes[reserve_row(communicators)] = bytes;
    r->measured[reserve_row(communicators)] = true;
    if (nodes > 0)
        r->node = (double)graphs / (double)nodes;
    r->node_measured |= nodes > 0;
}
