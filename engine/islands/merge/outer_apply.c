/* Outer steps on this rank's units: encodes changes, merges them into the reference, and copies it to the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "engine/islands/merge/rule.h"
#include "memory/log.h"

/* Iterates over a fragment's units on all ranks: for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;) */
static int next_unit(const islands *o, int u, int fragment)
{
    const outer_units *all = &o->core.units;
    do
        u++;
    while (u < all->count && all->list[u].fragment != fragment);
    return u < all->count ? u : -1;
}

/* Returns this rank's outer unit; NULL: another rank keeps its outer state. */
static const outer_unit *own_unit(const islands *o, int u)
{
    const outer_units *all = &o->core.units;
    return all->mine_of[u] < 0 ? NULL : &all->mine[all->mine_of[u]];
}

static float *offset_or_null(float *values, int64_t at)
{
    return values ? values + at : NULL;
}

/* ---- offering ---------------------------------------------------------------------------------------------------- */

/* Returns the fragment's scale for outer.clip, 1 without, and counts clipped changes. */
static float clip_scale(islands *o, int fragment)
{
    const outer_memory *memory = &o->core.memory;
    double clip = o->core.config->outer.clip, sum = 0;
    if (clip <= 0)
        return 1;
    for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;) {
        const outer_unit *m = own_unit(o, u);
        outer_move_gather(o->move, memory->values, u);
        for (int64_t i = 0; m && i < o->core.units.list[u].elements; i++) {
            double change = (double)memory->reference[m->at + i] - (double)memory->values[i];
            sum += change * change;
        }
    }
    double norm = sqrt(comm_all_sum(comm_world(o->core.world), sum));
    o->core.counts.clipped += norm > clip;
    return norm > clip ? (float)(clip / norm) : 1;
}

bool outer_encode(islands *o, int fragment)
{
    const outer_memory *memory = &o->core.memory;
    const config *c = o->core.config;
    bool weights = c->outer.topology == CONFIG_OUTER_GOSSIP, good = true;
    float scale = clip_scale(o, fragment), decay = (float)c->outer.error_decay, *values = memory->values;
    double noise = c->outer.noise * c->outer.clip, squares = 0;
    for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;) {
        const outer_unit *m = own_unit(o, u);
        int64_t n = o->core.units.list[u].elements;
        outer_move_gather(o->move, values, u);
        if (!m)
            continue;
        if (!weights)
            rule_change(values, memory->reference + m->at, offset_or_null(memory->error, m->at), decay, scale, n);
        if (noise > 0)
            privacy_add_noise(values, noise, n);
        if (!dtype_all_finite(DTYPE_FP32, values, n)) {
            good = false;
            memset(values, 0, (size_t)n * sizeof *values);
        }
        squares += outer_squares(values, n);
        compress_encode(memory->out + m->coded, values, &o->core.method, n);
        memcpy(memory->rest + m->at, values, (size_t)n * sizeof *values);
    }
    o->core.fetches.own_norm = weights ? 0 : sqrt(squares);
    o->releases += c->outer.noise > 0;
    return outer_everywhere(&o->core, good);
}

/* ---- merging changes --------------------------------------------------------------------------------------------- */

/* values = sum of w_i c_i D_i, in the order of slots; scale: c_i of each part, or NULL */
static void mean_change(const outer *o, const outer_unit *m, const double *scale, int64_t n)
{
    const roster *r = &o->roster;
    double all = 0;
    bool equal = o->config->outer.weights == CONFIG_OUTER_EQUAL;
    for (int i = 0; i < r->parts; i++)
        all += equal ? 1 : (double)r->part[i].tokens;
    memset(o->memory.values, 0, (size_t)n * sizeof *o->memory.values);
    for (int i = 0; i < r->parts; i++) {
        double weight = all > 0 ? (equal ? 1 : (double)r->part[i].tokens) / all : 1.0 / r->parts;
        outer_decode_part(o, o->memory.other, r->part[i].slot, m);
        rule_add(o->memory.values, o->memory.other, (float)weight * (scale ? (float)scale[i] : 1), n);
    }
}

bool outer_is_late(const islands *o)
{
    return o->core.step > o->offered.apply_at && !(o->core.config->outer.noise > 0);
}

void outer_take_offered(islands *o)
{
    const outer *c = &o->core;
    for (int i = 0; i < c->units.mine_count; i++) {
        const outer_unit *m = &c->units.mine[i];
        if (c->units.list[m->unit].fragment != c->fragment)
            continue;
        outer_decode_part(c, c->memory.other, c->slot, m);
        rule_add(c->memory.reference + m->at, c->memory.other, -1, c->units.list[m->unit].elements);
    }
}

/* values = the parts combined by outer.robust; judged NULL: all count */
static void combine_changes(const outer *o, const outer_unit *m, const robust_judgement *judged, int64_t n)
{
    const roster *r = &o->roster;
    robust_kind kind = (robust_kind)o->config->outer.robust;
    if (!robust_by_coordinate(kind)) {
        mean_change(o, m, judged ? judged->scale : NULL, n);
        return;
    }
    const float *each[ROSTER_SLOTS];
    for (int i = 0; i < r->parts; i++) {
        outer_decode_part(o, o->memory.each[i], r->part[i].slot, m);
        each[i] = o->memory.each[i];
    }
    robust_combine(o->memory.values, each, r->parts, kind, judged, n);
}

static void say_left_out(islands *o, const roster_part *p, const robust_judgement *judged, double agreement)
{
    int64_t times = ++o->all.left_out[p->slot];
    o->core.counts.left_out++;
    if (!outer_first_rank(&o->core))
        return;
    outer_say_incident(&o->core,
                       must_format("islands: merge %lld left out the change of island %s (slot %d): its median cosine "
                                   "with the other changes is %.3g, and less than %.3g is half of what is usual; left "
                                   "out of this slot: %lld",
                                   (long long)o->core.roster.merge, p->name, p->slot, agreement, judged->least,
                                   (long long)times),
                       times);
}

void outer_merge_changes(islands *o, bool took_part)
{
    outer *c = &o->core;
    const outer_memory *memory = &c->memory;
    const roster *r = &c->roster;
    bool late = took_part && outer_is_late(o);
    robust_judgement of_all, *judged = outer_product_count(c->config, r->parts) > 0 ? &of_all : NULL;
    if (judged)
        outer_judge_parts(c, judged);
    for (int u = -1; (u = next_unit(o, u, c->fragment)) >= 0;) {
        const outer_unit *m = own_unit(o, u);
        int64_t n = c->units.list[u].elements;
        if (m) {
            float *reference = memory->reference + m->at;
            combine_changes(c, m, judged, n);
            memcpy(memory->other, reference, (size_t)n * sizeof *reference);
            const rule step = outer_rule_of(c, m);
            rule_step(reference, offset_or_null(memory->momentum, m->at), memory->values, &step, n);
            if (took_part && !late && memory->error)
                memcpy(memory->error + m->at, memory->rest + m->at, (size_t)n * sizeof *memory->error);
        }
        if (took_part && !late)
            continue;
        outer_move_gather(o->move, memory->values, u); /* its own change stays where the merge lacks it */
        for (int64_t i = 0; m && i < n; i++)
            memory->values[i] += memory->reference[m->at + i] - memory->other[i];
        if (m && late) { /* a change is reference - weights */
            outer_decode_part(c, memory->other, c->slot, m);
            rule_add(memory->values, memory->other, 1, n);
        }
        outer_move_scatter(o->move, u, memory->values);
    }
    for (int i = 0; i < r->parts; i++) {
        if (judged && judged->left_out[i])
            say_left_out(o, &r->part[i], judged, judged->agreement[i]);
        else
            outer_note_norm(c, r->part[i].slot);
    }
}

/* ---- merging weights: gossip ------------------------------------------------------------------------------------- */

/* values = the mean of this island's and the partners' weights, in the order of slots. Adds squares to sums[2]: the
 * distance of this island's weights to the mean, and the mean itself. */
static void mean_weights(const islands *o, double *sums, const outer_unit *m, int64_t n)
{
    const outer *c = &o->core;
    float *values = c->memory.values, *other = c->memory.other;
    uint64_t group = o->gossip.partners | 1ull << c->slot;
    float weight = 1 / (float)__builtin_popcountll(group), own = weight;
    memset(values, 0, (size_t)n * sizeof *values);
    for (int s = 0; s < c->config->outer.slots; s++) {
        if (!(group >> s & 1))
            continue;
        outer_decode_part(c, other, s, m);
        float scale = s == c->slot ? 1 : outer_norm_scale(c, s);
        rule_add(values, other, weight * scale, n);
        own += weight * (1 - scale); /* w + c (w_s - w) */
    }
    outer_decode_part(c, other, c->slot, m);
    if (own > weight)
        rule_add(values, other, own - weight, n);
    for (int64_t i = 0; i < n; i++) {
        double apart = (double)other[i] - (double)values[i];
        sums[0] += apart * apart;
        sums[1] += (double)values[i] * (double)values[i];
    }
}

void outer_merge_weights(islands *o, bool mean)
{
    outer *c = &o->core;
    comm_group *all = comm_world(c->world);
    double sums[2] = {0};
    for (int i = 0; i < c->units.mine_count; i++) {
        const outer_unit *m = &c->units.mine[i];
        int64_t n = c->units.list[m->unit].elements;
        float *reference = c->memory.reference + m->at;
        const rule step = outer_rule_of(c, m);
        if (c->units.list[m->unit].fragment != c->fragment)
            continue;
        mean_weights(o, sums, m, n);
        if (mean)
            memcpy(reference, c->memory.values, (size_t)n * sizeof *reference);
        else
            rule_gossip(reference, offset_or_null(c->memory.momentum, m->at), c->memory.values, &step, n);
    }
    double distance = comm_all_sum(all, sums[0]), size = comm_all_sum(all, sums[1]);
    c->counts.disagreement = size > 0 ? sqrt(distance / size) : 0;
    c->counts.disagreement_step = o->offered.step;
}

/* ---- weights and reference --------------------------------------------------------------------------------------- */

void outer_apply_merge(islands *o, int fragment)
{
    const outer_memory *memory = &o->core.memory;
    float mix = (float)o->core.config->outer.mix;
    if (!(mix > 0)) {
        outer_give_reference(o, fragment);
        return;
    }
    for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;) {
        const outer_unit *m = own_unit(o, u);
        outer_move_gather(o->move, memory->values, u);
        for (int64_t i = 0; m && i < o->core.units.list[u].elements; i++) { /* Streaming DiLoCo (2501.18512) */
            float reference = memory->reference[m->at + i];
            memory->values[i] = reference + mix * (memory->values[i] - reference);
        }
        outer_move_scatter(o->move, u, memory->values);
    }
}

void outer_give_reference(islands *o, int fragment)
{
    const outer_memory *memory = &o->core.memory;
    for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;)
        outer_move_scatter(o->move, u, own_unit(o, u) ? memory->reference + own_unit(o, u)->at : memory->values);
}

void outer_take_weights(islands *o, int fragment)
{
    const outer_memory *memory = &o->core.memory;
    for (int u = -1; (u = next_unit(o, u, fragment)) >= 0;) {
        const outer_unit *m = own_unit(o, u);
        outer_move_gather(o->move, memory->values, u);
        if (m)
            memcpy(memory->reference + m->at, memory->values,
                   (size_t)o->core.units.list[u].elements * sizeof *memory->values);
    }
}

void outer_take_reference(islands *o, bool with_rest)
{
    const outer_memory *memory = &o->core.memory;
    for (int u = 0; u < o->core.units.count; u++) {
        const outer_unit *m = own_unit(o, u);
        for (int64_t i = 0; m && i < o->core.units.list[u].elements; i++)
            memory->values[i] = memory->reference[m->at + i] + (with_rest ? memory->rest[m->at + i] : 0);
        outer_move_scatter(o->move, u, memory->values);
    }
}
