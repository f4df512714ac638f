/* What islands have sent, and is it too large to be honest? What was merged of each island last says what is usual
 * (islands/norms.h). */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/outer/outer_parts.h"
#include "memory/log.h"

/* A change may be so many times what is usual; before that is known, so many times this rank's share of the model, or
 * of this island's own change, if that is larger. */
static const double MOST_TIMES = 10, FIRST_TIMES = 100;

void outer_decode_part(const outer *o, float *out, int slot, const outer_unit *m)
{
    const uint8_t *from = slot == o->slot ? o->memory.out : o->memory.in[slot];
    MUST(compress_decode(out, from + m->coded, &o->method, o->units.list[m->unit].elements),
         "a change of slot %d went bad", slot);
}

/* Sum of the squares of this rank's part of the reference. */
static double reference_squares(const outer *o, int fragment)
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

static double usual_norm(const outer *o, int fragment, int slot)
{
    return norms_usual(&o->fetches.norms[fragment], slot, o->holds ? -1 : o->slot);
}

double outer_norm_limit(const outer *o, int fragment, int slot)
{
    double usual = usual_norm(o, fragment, slot);
    if (usual > 0) /* what is large for all, this island among them, is no attack */
        return MOST_TIMES * fmax(usual, o->fetches.own_norm);
    double first = fmax(sqrt(reference_squares(o, fragment)), o->fetches.own_norm);
    return first > 0 ? FIRST_TIMES * first : INFINITY;
}

float outer_norm_scale(const outer *o, int fragment, int slot)
{
    double usual = usual_norm(o, fragment, slot), norm = o->fetches.got[slot].norm;
    return o->config->outer.robust == CONFIG_ROBUST_CLIP && usual > 0 && norm > usual ? (float)(usual / norm) : 1;
}

void outer_note_norm(outer *o, int fragment, int slot)
{
    bool own = slot == o->slot;
    norms_note(&o->fetches.norms[fragment], slot, own ? o->keys.mine : o->fetches.got[slot].key,
               own ? o->fetches.own_norm : o->fetches.got[slot].norm);
}

/* sums[unit][part]: squares of the parts of the merge in the roster, of the fragment's units; on all ranks. */
static double *squares_of_parts(const outer *o)
{
    const roster *r = &o->roster;
    int ranks = comm_ranks(o->world);
    size_t each = (size_t)o->units.count * (size_t)r->parts;
    double *mine = must_calloc(each + 1, sizeof *mine), *all = must_alloc((each + 1) * (size_t)ranks * sizeof *all);
    for (int k = 0; k < o->units.mine_count; k++) {
        const outer_unit *m = &o->units.mine[k];
        int64_t n = o->units.list[m->unit].elements;
        for (int i = 0; i < r->parts && o->units.list[m->unit].fragment == o->fragment; i++) {
            outer_decode_part(o, o->memory.other, r->part[i].slot, m);
            mine[m->unit * r->parts + i] = outer_squares(o->memory.other, n);
        }
    }
    comm_all_gather_bytes(comm_world(o->world), all, mine, (int64_t)(each * sizeof *mine));
    memset(mine, 0, each * sizeof *mine);
    for (size_t i = 0; i < each * (size_t)ranks; i++)
        mine[i % each] += all[i]; /* of which one rank's is not 0 */
    free(all);
    return mine;
}

void outer_clip_parts(outer *o, float *scale)
{
    const roster *r = &o->roster;
    double norm[ROSTER_SLOTS] = {0}, *sums = squares_of_parts(o);
    for (int u = 0; u < o->units.count; u++)
        for (int i = 0; i < r->parts; i++)
            norm[i] += sums[u * r->parts + i];
    free(sums);
    for (int i = 0; i < r->parts; i++)
        norm[i] = sqrt(norm[i]);
    double most = robust_median(norm, r->parts);
    for (int i = 0; i < r->parts; i++)
        scale[i] = norm[i] > most ? (float)(most / norm[i]) : 1;
}
