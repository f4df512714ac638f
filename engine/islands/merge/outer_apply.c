/* Outer steps on this rank's units: encoding changes, merging them into the reference, giving it to the weights. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/host/incident_log.h"
#include "engine/islands/merge/privacy.h"
#include "engine/islands/merge/outer_internal.h"
#include "memory/log.h"

static const outer_unit *mine(const islands *o, int u)
{
    return o->units.mine_of[u] < 0 ? NULL : &o->units.mine[o->units.mine_of[u]];
}

rule outer_rule_of(const islands *o, const outer_unit *m)
{
    const names_tensor *t = &o->units.tensors[o->units.list[m->unit].tensor];
    return parts_row_of(t->slot)->divided == PARTS_COUNTED ? (rule){RULE_AVERAGE, 1, 0} : o->rule;
}

static float *optional(float *values, int64_t at)
{
    return values ? values + at : NULL;
}

/* What the fragment's change is to be scaled by for outer.clip, and is counted: 1 without. */
static float clip_scale(islands *o, int fragment)
{
    double clip = o->config->outer.clip, sum = 0;
    if (clip <= 0)
        return 1;
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        if (o->units.list[u].fragment != fragment)
            continue;
        outer_move_gather(o->move, o->memory.values, u);
        for (int64_t i = 0; m && i < o->units.list[u].elements; i++) {
            double change = (double)o->memory.reference[m->at + i] - (double)o->memory.values[i];
            sum += change * change;
        }
    }
    double norm = sqrt(comm_all_sum(comm_world(o->world), sum));
    o->counts.clipped += norm > clip;
    return norm > clip ? (float)(clip / norm) : 1;
}

bool outer_encode(islands *o, int fragment)
{
    bool weights = o->config->outer.topology == CONFIG_OUTER_GOSSIP;
    float scale = clip_scale(o, fragment), decay = (float)o->config->outer.error_decay;
    double noise = o->config->outer.noise * o->config->outer.clip, squares = 0;
    bool good = true;
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        int64_t n = o->units.list[u].elements;
        float *values = o->memory.values;
        if (o->units.list[u].fragment != fragment)
            continue;
        outer_move_gather(o->move, values, u);
        if (!m)
            continue;
        if (!weights)
            rule_change(values, o->memory.reference + m->at, optional(o->memory.error, m->at), decay, scale, n);
        if (noise > 0)
            privacy_add_noise(values, noise, n);
        if (!dtype_all_finite(DTYPE_FP32, values, n)) {
            good = false;
            memset(values, 0, (size_t)n * sizeof *values);
        }
        squares += outer_squares(values, n);
        compress_encode(o->memory.out + m->coded, values, &o->method, n);
        memcpy(o->memory.rest + m->at, values, (size_t)n * sizeof *values);
    }
    o->fetches.own_norm = weights ? 0 : sqrt(squares);
    o->releases += o->config->outer.noise > 0;
    return outer_everywhere(o, good);
}

/* To people, and into incidents.jsonl when a slot has given cause 1, 2, 4, 8 times and so on: whoever sends one such
 * change sends more. */
static void say_with_incident(const islands *o, const char *words, int64_t times)
{
    log_warn("%s", words);
    if ((times & (times - 1)) == 0)
        incident_log_say(o->config->run.folder, o->watchdog, INCIDENT_NUMBERS, false, words);
}

/* The norm of what was fetched of a slot, over this rank's units; of gossip, which sends weights, of their distance
 * from this island's. Negative: it is not finite. */
static double fetched_norm(islands *o, int slot, int fragment)
{
    double sum = 0;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        int64_t n = o->units.list[m->unit].elements;
        if (o->units.list[m->unit].fragment != fragment)
            continue;
        if (!compress_decode(o->memory.other, o->memory.in[slot] + m->coded, &o->method, n))
            return -1;
        if (o->config->outer.topology == CONFIG_OUTER_GOSSIP) {
            outer_decode_part(o, o->memory.values, o->slot, m);
            rule_add(o->memory.other, o->memory.values, -1, n);
        }
        sum += outer_squares(o->memory.other, n);
    }
    return sqrt(sum);
}

/* values = sum of w_i c_i D_i, in the order of slots; scale: c_i of each part, or NULL */
static void mean_change(islands *o, const outer_unit *m, const double *scale, int64_t n)
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

/* values = what outer.robust makes of the parts; NULL: they are not judged */
static void combine_changes(islands *o, const outer_unit *m, const robust_judgement *judged, int64_t n)
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
    int64_t times = ++o->fetches.left_out[p->slot];
    o->counts.left_out++;
    if (!outer_first_rank(o))
        return;
    char *words =
        must_format("islands: merge %lld left out the change of island %s (slot %d): its median cosine with "
                    "the other changes is %.3g, and less than %.3g is half of what is usual; left out of this "
                    "slot: %lld",
                    (long long)o->roster.merge, p->name, p->slot, agreement, judged->least, (long long)times);
    say_with_incident(o, words, times);
    free(words);
}

static void note_merged(islands *o, const robust_judgement *judged)
{
    const roster *r = &o->roster;
    for (int i = 0; i < r->parts; i++) {
        if (judged && judged->left_out[i])
            say_left_out(o, &r->part[i], judged, judged->agreement[i]);
        else
            outer_note_norm(o, o->fragment, r->part[i].slot);
    }
}

void outer_merge_changes(islands *o, bool took_part)
{
    robust_judgement of_all, *judged = outer_product_count(o->config, o->roster.parts) > 0 ? &of_all : NULL;
    if (judged)
        outer_judge_parts(o, judged);
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        int64_t n = o->units.list[u].elements;
        if (o->units.list[u].fragment != o->fragment)
            continue;
        if (m) {
            float *reference = o->memory.reference + m->at;
            combine_changes(o, m, judged, n);
            memcpy(o->memory.other, reference, (size_t)n * sizeof *reference);
            const rule step = outer_rule_of(o, m);
            rule_step(reference, optional(o->memory.momentum, m->at), o->memory.values, &step, n);
            if (took_part && o->memory.error)
                memcpy(o->memory.error + m->at, o->memory.rest + m->at, (size_t)n * sizeof *o->memory.error);
        }
        if (took_part)
            continue;
        outer_move_gather(o->move, o->memory.values, u); /* its own change stays, and goes with the next merge */
        for (int64_t i = 0; m && i < n; i++)
            o->memory.values[i] += o->memory.reference[m->at + i] - o->memory.other[i];
        outer_move_scatter(o->move, u, o->memory.values);
    }
    note_merged(o, judged);
}

/* values = the mean of this island's weights and those of the partners, in the order of slots. Returns, of the squares,
 * sums of the distance of this island's to it, and of itself. */
static void mean_weights(islands *o, double *distance, double *size, const outer_unit *m, int64_t n)
{
    uint64_t group = o->gossip.partners | 1ull << o->slot;
    float weight = 1 / (float)__builtin_popcountll(group), own = weight;
    memset(o->memory.values, 0, (size_t)n * sizeof *o->memory.values);
    for (int s = 0; s < o->config->outer.slots; s++) {
        if (!(group >> s & 1))
            continue;
        outer_decode_part(o, o->memory.other, s, m);
        float scale = s == o->slot ? 1 : outer_norm_scale(o, o->fragment, s);
        rule_add(o->memory.values, o->memory.other, weight * scale, n);
        own += weight * (1 - scale); /* w + c (w_s - w) */
    }
    outer_decode_part(o, o->memory.other, o->slot, m);
    if (own > weight)
        rule_add(o->memory.values, o->memory.other, own - weight, n);
    for (int64_t i = 0; i < n; i++) {
        double apart = (double)o->memory.other[i] - (double)o->memory.values[i];
        *distance += apart * apart;
        *size += (double)o->memory.values[i] * (double)o->memory.values[i];
    }
}

/* |own weights - mean| / |mean| over the fragment and all ranks, summed in their order. */
static double disagreement(const islands *o, double distance, double size)
{
    distance = comm_all_sum(comm_world(o->world), distance);
    size = comm_all_sum(comm_world(o->world), size);
    return size > 0 ? sqrt(distance / size) : 0;
}

void outer_merge_weights(islands *o, bool mean)
{
    double distance = 0, size = 0;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        int64_t n = o->units.list[m->unit].elements;
        float *reference = o->memory.reference + m->at;
        const rule step = outer_rule_of(o, m);
        if (o->units.list[m->unit].fragment != o->fragment)
            continue;
        mean_weights(o, &distance, &size, m, n);
        if (mean)
            memcpy(reference, o->memory.values, (size_t)n * sizeof *reference);
        else
            rule_gossip(reference, optional(o->memory.momentum, m->at), o->memory.values, &step, n);
    }
    o->counts.disagreement = disagreement(o, distance, size);
    o->counts.disagreement_step = o->offered.step;
}

void outer_settle(islands *o, int fragment)
{
    float mix = (float)o->config->outer.mix;
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        if (o->units.list[u].fragment != fragment)
            continue;
        if (mix > 0)
            outer_move_gather(o->move, o->memory.values, u);
        if (m && mix > 0)
            rule_mix(o->memory.values, o->memory.reference + m->at, mix, o->units.list[u].elements);
        outer_move_scatter(o->move, u, m && !(mix > 0) ? o->memory.reference + m->at : o->memory.values);
    }
}

void outer_give_reference(islands *o, int fragment)
{
    for (int u = 0; u < o->units.count; u++)
        if (o->units.list[u].fragment == fragment)
            outer_move_scatter(o->move, u, mine(o, u) ? o->memory.reference + mine(o, u)->at : o->memory.values);
}

void outer_take_weights(islands *o, int fragment)
{
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        if (o->units.list[u].fragment != fragment)
            continue;
        outer_move_gather(o->move, o->memory.values, u);
        if (m)
            memcpy(o->memory.reference + m->at, o->memory.values,
                   (size_t)o->units.list[u].elements * sizeof *o->memory.values);
    }
}

void outer_keep_change(islands *o)
{
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        outer_move_gather(o->move, o->memory.values, u);
        for (int64_t i = 0; m && i < o->units.list[u].elements; i++)
            o->memory.rest[m->at + i] = o->memory.values[i] - o->memory.reference[m->at + i];
    }
}

void outer_take_reference(islands *o, bool with_rest)
{
    for (int u = 0; u < o->units.count; u++) {
        const outer_unit *m = mine(o, u);
        for (int64_t i = 0; m && i < o->units.list[u].elements; i++)
            o->memory.values[i] = o->memory.reference[m->at + i] + (with_rest ? o->memory.rest[m->at + i] : 0);
        outer_move_scatter(o->move, u, o->memory.values);
    }
}

/* `most`: of its norm. */
static void say_refused(islands *o, int slot, double norm, double most)
{
    const roster_member *m = &o->roster.member[slot];
    int64_t times = ++o->fetches.refusals[slot];
    char what[64], why[128], *words;
    if (o->config->outer.topology == CONFIG_OUTER_GOSSIP)
        snprintf(what, sizeof what, "the exchange after step %lld", (long long)m->offer);
    else
        snprintf(what, sizeof what, "merge %lld", (long long)m->offer_merge);
    if (norm < 0)
        snprintf(why, sizeof why, "it is not finite");
    else
        snprintf(why, sizeof why, "its norm is %.3g on this rank, and at most %.3g is taken", norm, most);
    words = must_format("islands: refused the change of island %s (slot %d) for %s: %s; refused of this slot: %lld",
                        m->name, slot, what, why, (long long)times);
    say_with_incident(o, words, times);
    free(words);
}

void outer_look_after_fetch(islands *o, int slot)
{
    bool done = true, gone = false;
    for (int k = 0; k < o->fetches.got[slot].jobs; k++) {
        transport_state s = transport_state_of(o->transport, slot * OUTER_PEERS + k);
        done &= s == TRANSPORT_DONE;
        gone |= s == TRANSPORT_GONE;
    }
    if (gone) /* withdrawn, perhaps for a newer one: asked for again as long as it is offered */
        outer_drop_fetch(o, slot);
    if (!done)
        return;
    double norm = fetched_norm(o, slot, o->fragment), most = outer_norm_limit(o, o->fragment, slot);
    o->fetches.got[slot].norm = norm;
    o->fetches.got[slot].here = norm >= 0 && norm <= most;
    o->fetches.got[slot].bad = !o->fetches.got[slot].here;
    if (!o->fetches.got[slot].bad)
        return;
    o->counts.refused++;
    say_refused(o, slot, norm, most);
}

/* Does it offer what this island waits for? Of gossip, what is newer will do as well. */
static bool fits(const islands *o, const roster_member *m, int64_t merge)
{
    bool newer = o->config->outer.topology == CONFIG_OUTER_GOSSIP && m->offer_merge > merge;
    return m->ready && m->offers && m->fragment == o->fragment && (newer || m->offer_merge == merge);
}

uint64_t outer_fetch_changes(islands *o, int64_t merge, uint64_t from)
{
    bool gossip = o->config->outer.topology == CONFIG_OUTER_GOSSIP;
    uint64_t here = 1ull << o->slot;
    for (int s = 0; s < o->config->outer.slots; s++) {
        const roster_member *m = &o->roster.member[s];
        if (s == o->slot)
            continue;
        if (from >> s & 1 && !(gossip && o->fetches.got[s].here) && fits(o, m, merge) &&
            o->fetches.got[s].offer != m->offer) {
            outer_drop_fetch(o, s);
            o->fetches.got[s].offer = m->offer;
            o->fetches.got[s].bad = !outer_fetch(o, s, o->fragment, WIRE_CHANGE, m->offer_merge, m->offer);
        }
        if (o->fetches.got[s].offer && !o->fetches.got[s].here && !o->fetches.got[s].bad)
            outer_look_after_fetch(o, s);
        here |= (uint64_t)o->fetches.got[s].here << s;
    }
    return here;
}

uint64_t outer_refused(const islands *o)
{
    uint64_t bad = 0;
    for (int s = 0; s < o->config->outer.slots; s++)
        bad |= (uint64_t)o->fetches.got[s].bad << s;
    return ~outer_everywhere(o, ~bad);
}

status outer_check_finite(const islands *o, const float *values, const char *what)
{
    status s = STATUS_OK;
    for (int i = 0; i < o->units.mine_count && values && s == STATUS_OK; i++) {
        const outer_unit *m = &o->units.mine[i];
        const unit *u = &o->units.list[m->unit];
        if (!dtype_all_finite(DTYPE_FP32, values + m->at, u->elements))
            s = status_fail(STATUS_FAILED,
                            "islands: tensor %s of %s has values that are not finite (NaN or infinity): it is not "
                            "taken, and the latest checkpoint is good",
                            o->units.tensors[u->tensor].name, what);
    }
    return comm_all_status(comm_world(o->world), s);
}
