/* Checks changes of islands: their norms against those last merged (norms_usual), and, within a merge, against each
 * other (robust.h). */

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/host/incident_log.h"
#include "engine/islands/merge/outer_internal.h"
#include "engine/islands/merge/robust.h"
#include "memory/log.h"

void norms_note(norms *n, int slot, const char *key, double norm)
{
    n->of[slot].known = true;
    n->of[slot].norm = norm;
    snprintf(n->of[slot].key, sizeof n->of[slot].key, "%s", key);
}

static bool same_key(const norms *n, int a, int b)
{
    return n->of[a].known && n->of[b].known && !strcmp(n->of[a].key, n->of[b].key);
}

/* x[] = norms of all slots with this slot's key, if this slot is the first of them; returns their number, or 0. */
static int take_key(double *x, const norms *n, int slot)
{
    int count = 0;
    for (int s = 0; s < slot; s++)
        if (same_key(n, s, slot))
            return 0;
    for (int s = slot; s < ROSTER_SLOTS; s++)
        if (same_key(n, s, slot))
            x[count++] = n->of[s].norm;
    return count;
}

double norms_usual(const norms *n, int slot, int self)
{
    double by_slot[ROSTER_SLOTS], by_key[ROSTER_SLOTS];
    int slots = 0, groups = 0;
    for (int s = 0; s < ROSTER_SLOTS; s++) {
        int count = take_key(by_slot, n, s);
        slots = count > 0 ? count : slots; /* slots with the last key seen: all, if there is only one key */
        if (count > 0)
            by_key[groups++] = robust_median(by_slot, count);
    }
    const double *x = groups == 1 ? by_slot : by_key;
    int count = groups == 1 ? slots : groups;
    if (count >= 3)
        return robust_median(x, count);
    if (count == 2)
        return fmax(x[0], x[1]);
    if (self >= 0 && n->of[self].known)
        return n->of[self].norm;
    return n->of[slot].known ? n->of[slot].norm : 0;
}

/* Limit of a change's norm: MOST_TIMES the usual norm; before that is known, FIRST_TIMES the norm of this rank's share
 * of the model, or of this island's own change, if that is larger. */
static const double MOST_TIMES = 10, FIRST_TIMES = 100;

void outer_decode_part(const outer *o, float *out, int slot, const outer_unit *m)
{
    const uint8_t *from = slot == o->slot ? o->memory.out : o->memory.in[slot];
    MUST(compress_decode(out, from + m->coded, &o->method, o->units.list[m->unit].elements),
         "a change of slot %d went bad", slot);
}

double outer_squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double usual_norm(const outer *o, int slot)
{
    return norms_usual(&o->fetches.norms[o->fragment], slot, o->slot == ROSTER_SERVER ? -1 : o->slot);
}

/* Returns the norm above which a slot's change is refused: ten times the usual one, or, before that is known, a hundred
 * times the reference or this island's own change. */
static double norm_limit(const outer *o, int slot)
{
    double usual = usual_norm(o, slot), sum = 0;
    if (usual > 0) /* a norm that is large for all, this island included, is no attack */
        return MOST_TIMES * fmax(usual, o->fetches.own_norm);
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        if (o->units.list[m->unit].fragment == o->fragment)
            sum += outer_squares(o->memory.reference + m->at, o->units.list[m->unit].elements);
    }
    double first = fmax(sqrt(sum), o->fetches.own_norm);
    return first > 0 ? FIRST_TIMES * first : INFINITY;
}

float outer_norm_scale(const outer *o, int slot)
{
    double usual = usual_norm(o, slot), norm = o->fetches.got[slot].norm;
    return o->config->outer.robust == CONFIG_ROBUST_CLIP && usual > 0 && norm > usual ? (float)(usual / norm) : 1;
}

void outer_note_norm(outer *o, int slot)
{
    bool own = slot == o->slot;
    norms_note(&o->fetches.norms[o->fragment], slot, own ? o->keys.mine : o->fetches.got[slot].key,
               own ? o->fetches.own_norm : o->fetches.got[slot].norm);
}

void outer_say_incident(const outer *o, char *words, int64_t times)
{
    log_warn("%s", words);
    if ((times & (times - 1)) == 0)
        incident_log_say(o->config->run.folder, o->watchdog, INCIDENT_NUMBERS, false, words);
    free(words);
}

/* ---- fetched changes --------------------------------------------------------------------------------------------- */

status outer_check_finite(const outer *o, const float *values, const char *what)
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

/* Returns the norm of a slot's fetched change over this rank's units; gossip sends weights: of their distance from this
 * island's. Negative: not finite. */
static double fetched_norm(outer *o, int slot)
{
    double sum = 0;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        int64_t n = o->units.list[m->unit].elements;
        if (o->units.list[m->unit].fragment != o->fragment)
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

/* `most`: limit of the norm. */
static void say_refused(outer *o, int slot, double norm, double most)
{
    const roster_member *m = &o->roster.member[slot];
    int64_t times = ++o->fetches.refusals[slot];
    char what[64], why[128];
    if (o->config->outer.topology == CONFIG_OUTER_GOSSIP)
        snprintf(what, sizeof what, "the exchange after step %lld", (long long)m->offer);
    else
        snprintf(what, sizeof what, "merge %lld", (long long)m->offer_merge);
    if (norm < 0)
        snprintf(why, sizeof why, "it is not finite");
    else
        snprintf(why, sizeof why, "its norm is %.3g on this rank, and at most %.3g is taken", norm, most);
    char *words =
        must_format("islands: refused the change of island %s (slot %d) for %s: %s; refused of this slot: %lld",
                    m->name, slot, what, why, (long long)times);
    outer_say_incident(o, words, times);
}

void outer_judge_fetched(outer *o, int slot)
{
    double norm = fetched_norm(o, slot), most = norm_limit(o, slot);
    o->fetches.got[slot].norm = norm;
    o->fetches.got[slot].here = norm >= 0 && norm <= most;
    o->fetches.got[slot].bad = !o->fetches.got[slot].here;
    if (!o->fetches.got[slot].bad)
        return;
    o->counts.refused++;
    say_refused(o, slot, norm, most);
}

/* ---- judging the parts of a merge -------------------------------------------------------------------------------- */

int outer_product_count(const config *c, int parts)
{
    if (c->outer.robust == CONFIG_ROBUST_TRIMMED)
        return robust_product_count(parts);
    return c->outer.robust == CONFIG_ROBUST_CLIP && c->outer.topology == CONFIG_OUTER_ALL ? parts : 0;
}

/* Computes the squares of one unit's parts for clip, and all their products for trimmed. */
static void multiply_parts(const outer *o, double *out, const outer_unit *m)
{
    const roster *r = &o->roster;
    int64_t n = o->units.list[m->unit].elements;
    bool squares = o->config->outer.robust == CONFIG_ROBUST_CLIP;
    const float *each[ROSTER_SLOTS];
    for (int i = 0; i < r->parts; i++) {
        float *part = squares ? o->memory.other : o->memory.each[i];
        outer_decode_part(o, part, r->part[i].slot, m);
        if (squares)
            out[i] = outer_squares(part, n);
        each[i] = part;
    }
    if (!squares)
        robust_products(out, each, r->parts, n);
}

/* sums[count] += the products of the parts, over the fragment's units; the same bits on all ranks. Units are added in
 * sequence whichever ranks keep them: each rank continues the sums of the rank before, which keeps earlier units. */
static void add_products(const outer *o, double *sums, int count)
{
    double *mine = o->memory.products;
    int64_t filled = 0;
    for (int k = 0; k < o->units.mine_count; k++)
        if (o->units.list[o->units.mine[k].unit].fragment == o->fragment) {
            multiply_parts(o, mine + filled, &o->units.mine[k]);
            filled += count;
        }
    for (int rank = 0; rank < comm_ranks(o->world); rank++) {
        for (int64_t i = 0; rank == comm_rank(o->world) && i < filled; i++)
            sums[i % count] += mine[i];
        comm_broadcast_bytes(comm_world(o->world), sums, count * (int64_t)sizeof *sums, rank);
    }
}

void outer_judge_parts(outer *o, robust_judgement *judged)
{
    double sums[ROBUST_PRODUCTS] = {0};
    int parts = o->roster.parts;
    add_products(o, sums, outer_product_count(o->config, parts));
    if (o->config->outer.robust == CONFIG_ROBUST_TRIMMED) {
        robust_judge(judged, sums, parts);
        return;
    }
    memset(judged, 0, sizeof *judged);
    for (int i = 0; i < parts; i++)
        sums[i] = sqrt(sums[i]);
    robust_clip(judged->scale, sums, parts);
}
