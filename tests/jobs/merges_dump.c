/* Writes what goes into every outer step and what comes of it, for merge_formulas.py: wraps the functions that encode,
 * merge and settle, linked into build/tests/recorded/phalanx, which is phalanx in every other respect.
 *
 * PHALANX_MERGES/slot-N or PHALANX_MERGES/server holds a checkpoint for each event, whose tensors have Hugging Face's
 * names; each rank writes the rectangles that it keeps outer state of. Sections, fp32:
 *     offer-N    before (the reference), weights, change, sent, kept; N is step x 64 + fragment
 *     merge-N    before, after (references); of gossip N is that of the offers
 *     settle-N   own, reference, settled: an island's weights before and after they took the reference
 * and a server's merge-M: before, sent, after. `change` is before compression, with what was kept of the one before it;
 * `sent` is as the others decode it, `kept` what compression left of the change. */
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "engine/islands/server/server_internal.h"
#include "memory/log.h"

enum { SECTIONS = 5 };

bool __real_outer_encode(islands *o, int fragment);
bool __wrap_outer_encode(islands *o, int fragment);
void __real_rule_change(float *values, const float *reference, const float *error, float decay, float scale, int64_t n);
void __wrap_rule_change(float *values, const float *reference, const float *error, float decay, float scale, int64_t n);
void __real_outer_merge_changes(islands *o, bool took_part);
void __wrap_outer_merge_changes(islands *o, bool took_part);
void __real_outer_merge_weights(islands *o, bool mean);
void __wrap_outer_merge_weights(islands *o, bool mean);
void __real_outer_apply_merge(islands *o, int fragment);
void __wrap_outer_apply_merge(islands *o, int fragment);
void __real_server_merge(server *v, int slot, double share);
void __wrap_server_merge(server *v, int slot, double share);

/* ---- states by unit, as the reference is ------------------------------------------------------------------------ */

static float *changes; /* the last that rule_change has made */
static const float *references;

static float *make_values(const outer *o)
{
    return must_calloc((unsigned long)o->units.elements + 1, sizeof(float));
}

static float *copy_values(const outer *o, const float *values)
{
    return values ? memcpy(make_values(o), values, (size_t)o->units.elements * sizeof *values) : make_values(o);
}

static float *gather_weights(islands *o, int fragment)
{
    float *out = make_values(&o->core);
    for (int u = 0; u < o->core.units.count; u++) {
        if (o->core.units.list[u].fragment != fragment)
            continue;
        outer_move_gather(o->move, o->core.memory.values, u);
        if (o->core.units.mine_of[u] >= 0)
            memcpy(out + o->core.units.mine[o->core.units.mine_of[u]].at, o->core.memory.values,
                   (size_t)o->core.units.list[u].elements * sizeof *out);
    }
    return out;
}

static float *decode(const outer *o, const uint8_t *coded, int fragment)
{
    float *out = make_values(o);
    for (int i = 0; i < o->units.mine_count; i++) {
        const outer_unit *m = &o->units.mine[i];
        if (o->units.list[m->unit].fragment == fragment)
            (void)compress_decode(out + m->at, coded + m->coded, &o->method, o->units.list[m->unit].elements);
    }
    return out;
}

/* ---- writing ---------------------------------------------------------------------------------------------------- */

typedef struct section {
    const char *name;
    float *values;
} section;

static status barrier(void *context, status mine)
{
    return comm_all_status(comm_world(context), mine);
}

/* `sections` ends with one without a name; their values and meta are taken. */
static void write_event(const outer *o, bool at_server, const char *kind, int64_t number, int fragment, json_t *meta,
                        const section *sections)
{
    checkpoint_piece pieces[SECTIONS * 256];
    int count = 0;
    const char *top = getenv("PHALANX_MERGES");
    char *folder = at_server ? must_format("%s/server", top) : must_format("%s/slot-%d", top, o->slot);
    char *name = must_format("%s-%08lld", kind, (long long)number);
    for (const section *s = sections; s->name; s++)
        for (int i = 0; i < o->units.mine_count; i++) {
            const unit *u = &o->units.list[o->units.mine[i].unit];
            if (u->fragment != fragment)
                continue;
            MUST(count < SECTIONS * 256, "too many pieces");
            pieces[count] = (checkpoint_piece){.section = s->name};
            units_rectangle(&pieces[count].of, &pieces[count].at, u, o->units.tensors, s->values + o->units.mine[i].at);
            count++;
        }
    const checkpoint_share mine = {pieces, count, comm_rank(o->world), comm_ranks(o->world), "", true};
    MUST(checkpoint_write(folder, name, &mine, meta, barrier, o->world) == STATUS_OK, "%s", status_message());
    for (const section *s = sections; s->name; s++)
        free(s->values);
    json_decref(meta);
    free(name);
    free(folder);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

void __wrap_rule_change(float *values, const float *reference, const float *error, float decay, float scale, int64_t n)
{
    __real_rule_change(values, reference, error, decay, scale, n);
    memcpy(changes + (reference - references), values, (size_t)n * sizeof *values);
}

bool __wrap_outer_encode(islands *o, int fragment)
{
    references = o->core.memory.reference;
    changes = make_values(&o->core);
    float *weights = gather_weights(o, fragment);
    bool good = __real_outer_encode(o, fragment);
    const section all[] = {{"before", copy_values(&o->core, o->core.memory.reference)},
                           {"weights", weights},
                           {"change", changes},
                           {"sent", decode(&o->core, o->core.memory.out, fragment)},
                           {"kept", copy_values(&o->core, o->core.memory.rest)},
                           {0}};
    write_event(&o->core, false, "offer", o->core.step * 64 + fragment, fragment,
                json_pack("{s:I, s:I}", "base", (json_int_t)o->core.merge, "step", (json_int_t)o->core.step), all);
    return good;
}

static void write_merge(const islands *o, float *before, int64_t number, json_t *meta)
{
    const section both[] = {{"before", before}, {"after", copy_values(&o->core, o->core.memory.reference)}, {0}};
    write_event(&o->core, false, "merge", number, o->core.fragment, meta, both);
}

void __wrap_outer_merge_changes(islands *o, bool took_part)
{
    const roster *r = &o->core.roster;
    float *before = copy_values(&o->core, o->core.memory.reference);
    json_t *parts = json_array();
    for (int i = 0; i < r->parts; i++)
        json_array_append_new(parts, json_pack("{s:i, s:I, s:I}", "slot", r->part[i].slot, "offer",
                                               (json_int_t)r->part[i].offer, "tokens", (json_int_t)r->part[i].tokens));
    __real_outer_merge_changes(o, took_part);
    write_merge(o, before, r->merge, json_pack("{s:o, s:i}", "parts", parts, "fragment", o->core.fragment));
}

void __wrap_outer_merge_weights(islands *o, bool mean)
{
    float *before = copy_values(&o->core, o->core.memory.reference);
    json_t *group = json_array();
    for (int s = 0; s < ROSTER_SLOTS; s++)
        if ((o->gossip.partners | 1ull << o->core.slot) >> s & 1)
            json_array_append_new(group, json_integer(s));
    __real_outer_merge_weights(o, mean);
    write_merge(o, before, o->gossip.number, json_pack("{s:o, s:b}", "group", group, "mean", mean));
}

void __wrap_outer_apply_merge(islands *o, int fragment)
{
    float *own = gather_weights(o, fragment);
    __real_outer_apply_merge(o, fragment);
    const section all[] = {{"own", own},
                           {"reference", copy_values(&o->core, o->core.memory.reference)},
                           {"settled", gather_weights(o, fragment)}, /* not what they should be, but in this layout */
                           {0}};
    write_event(&o->core, false, "settle", o->core.step, fragment, json_object(), all);
}

void __wrap_server_merge(server *v, int slot, double share)
{
    const outer *o = &v->core;
    float *before = copy_values(o, o->memory.reference), *sent = decode(o, o->memory.in[slot], 0);
    __real_server_merge(v, slot, share);
    const section all[] = {{"before", before}, {"sent", sent}, {"after", copy_values(o, o->memory.reference)}, {0}};
    write_event(o, true, "merge", o->merge + 1, 0,
                json_pack("{s:i, s:I, s:I, s:I}", "slot", slot, "offer", (json_int_t)v->wanted.offer, "tokens",
                          (json_int_t)v->wanted.tokens, "base", (json_int_t)v->base),
                all);
}
