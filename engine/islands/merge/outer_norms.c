/* What islands have sent, and is it too large to be honest? What was merged of each island last says what is usual
 * (norms.h). And what do the changes of a merge say of each other (robust.h)? */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/log.h"

/* A change may be so many times what is usual; before that is known, so many times this rank's share of the model, or
 * of this island's own change, if that is larger. */
static const double MOST_TIMES = 10, FIRST_TIMES = 100;

void outer_decode_part(const islands *o, float *out, int slot, const outer_unit *m)
{
    const uint8_t *from = slot == o->slot ? o->memory.out : o->memory.in[slot];
    MUST(compress_decode(out, from + m->coded, &o->method, o->units.list[m->unit].elements),
         "a change of slot %d went bad", slot);
}

/* Sum of the squares of this rank's part of the reference. */
static double reference_squares(const islands *o, int fragment)
{
    double sum = 0;
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        if (o->units.list[m->unit].fragment == fragment)
            sum += outer_squares(o->memory.reference + m->at, o->units.list[m->unit].elements);
    }
    return sum;
}

double outer_squares(const float *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += (double)x[i] * (double)x[i];
    return sum;
}

static double usual_norm(const islands *o, int fragment, int slot)
{
    return norms_usual(&o->fetches.norms[fragment], slot, o->holds ? -1 : o->slot);
}

double outer_norm_limit(const islands *o, int fragment, int slot)
{
    double usual = usual_norm(o, fragment, slot);
    if (usual > 0) /* what is large for all, this island among them, is no attack */
        return MOST_TIMES * fmax(usual, o->fetches.own_norm);
    double first = fmax(sqrt(reference_squares(o, fragment)), o->fetches.own_norm);
    return first > 0 ? FIRST_TIMES * first : INFINITY;
}

float outer_norm_scale(const islands *o, int fragment, int slot)
{
    double usual = usual_norm(o, fragment, slot), norm = o->fetches.got[slot].norm;
    return o->config->outer.robust == CONFIG_ROBUST_CLIP && usual > 0 && norm > usual ? (float)(usual / norm) : 1;
}

void outer_note_norm(islands *o, int fragment, int slot)
{
    bool own = slot == o->slot;
    norms_note(&o->fetches.norms[fragment], slot, own ? o->keys.mine : o->fetches.got[slot].key,
               own ? o->fetches.own_norm : o->fetches.got[slot].norm);
}

/* ---- judging the parts of a merge -------------------------------------------------------------------------------- */

int outer_product_count(const config *c, int parts)
{
    if (c->outer.robust == CONFIG_ROBUST_TRIMMED)
        return robust_product_count(parts);
    return c->outer.robust == CONFIG_ROBUST_CLIP && c->outer.topology == CONFIG_OUTER_ALL ? parts : 0;
}

/* Their squares for clip, for trimmed all of their products, of one unit. */
static void multiply_parts(const islands *o, double *out, const outer_unit *m)
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

/* sums[count] += the products of the parts, over the fragment's units; alike on all ranks. Units are added in their
 * sequence whichever ranks keep them: a rank goes on from the sums of the rank before it, which keeps the units
 * before. */
static void add_products(const islands *o, double *sums, int count)
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

void outer_judge_parts(islands *o, robust_judgement *judged)
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
