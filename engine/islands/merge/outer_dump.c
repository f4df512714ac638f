/* debug.merges: what went into every outer step and what came of it, so that another program can do it again
 * (tests/jobs/merge_formulas.py).
 *
 * FOLDER/slot-N or FOLDER/server holds a checkpoint (files/checkpoint.h) for each event, whose tensors have Hugging
 * Face's names; each rank writes the rectangles that it keeps outer state of. Sections, fp32:
 *     merge-M     before, after (references), and where the island took part weights, change, sent, kept
 *     exchange-N  of gossip: before, after, weights; N as in outer_gossip_number
 *     push-STEP   with a server: before, weights, change, sent, kept
 *     settle-STEP own, reference, settled: an island's weights before and after they took the reference
 * and a server's merge-M: before, sent, after. `change` is before compression, with what was kept of the one before it;
 * `kept` is what compression left of it. Meta says which fragment it was, who took part, and with how many tokens. */
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_internal.h"
#include "memory/log.h"
#include "memory/seal.h"

enum { SECTIONS = 8 };

typedef struct section {
    const char *name;
    float *values;
} section;

bool outer_dumps(const islands *o)
{
    return o->config->debug.merges && !o->dump.failed;
}

void outer_dump_keep(islands *o, outer_dump_part part, const outer_unit *m, const float *values)
{
    if (m && outer_dumps(o))
        memcpy(o->dump.kept[part] + m->at, values, (size_t)o->units.list[m->unit].elements * sizeof *values);
}

void outer_dump_sent(islands *o, const outer_unit *m, const uint8_t *coded)
{
    if (outer_dumps(o))
        (void)compress_decode(o->dump.kept[OUTER_DUMP_SENT] + m->at, coded, &o->method,
                              o->units.list[m->unit].elements);
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

static status barrier(void *context, status mine)
{
    const islands *o = context;
    return comm_all_status(comm_world(o->world), mine);
}

static checkpoint_piece *list_pieces(int *count, const islands *o, const section *s, int fragment)
{
    checkpoint_piece *all = must_calloc((unsigned long)(o->units.mine_count * SECTIONS) + 1, sizeof *all);
    *count = 0;
    for (; s->name; s++)
        for (int i = 0; i < o->units.mine_count; i++) {
            const unit *u = &o->units.list[o->units.mine[i].unit];
            checkpoint_piece *p = &all[*count];
            if (u->fragment != fragment)
                continue;
            p->section = s->name;
            units_rectangle(&p->of, &p->at, u, o->units.tensors, s->values + o->units.mine[i].at);
            ++*count;
        }
    return all;
}

/* `sections` ends with one without a name. Takes meta. */
static void write_event(islands *o, const char *kind, int64_t number, const section *sections, int fragment,
                        json_t *meta)
{
    int count;
    const char *top = o->config->debug.merges;
    char *folder = o->holds ? must_format("%s/server", top) : must_format("%s/slot-%d", top, o->slot);
    char *name = must_format("%s-%08lld", kind, (long long)number);
    checkpoint_piece *pieces = list_pieces(&count, o, sections, fragment);
    json_object_set_new(meta, "fragment", json_integer(fragment));
    seal_open();
    const checkpoint_share mine = {pieces, count, comm_rank(o->world), comm_ranks(o->world), "", true};
    status s = checkpoint_write(folder, name, &mine, meta, barrier, o);
    seal_close();
    if (s != STATUS_OK && outer_first_rank(o))
        log_warn("%s; debug.merges: no more is written", status_message());
    o->dump.failed = s != STATUS_OK;
    json_decref(meta);
    free(pieces);
    free(name);
    free(folder);
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

void outer_dump_merge(islands *o, bool took_part)
{
    const roster *r = &o->roster;
    const section all[] = {{"before", o->dump.kept[OUTER_DUMP_BEFORE]},
                           {"after", o->memory.reference},
                           {"weights", o->dump.kept[OUTER_DUMP_WEIGHTS]},
                           {"change", o->dump.kept[OUTER_DUMP_CHANGE]},
                           {"sent", o->dump.kept[OUTER_DUMP_SENT]},
                           {"kept", o->memory.rest},
                           {0}},
                  without[] = {all[0], all[1], {0}};
    json_t *parts = json_array();
    if (outer_dumps(o)) {
        for (int i = 0; i < r->parts; i++)
            json_array_append_new(parts,
                                  json_pack("{s:i, s:I, s:I}", "slot", r->part[i].slot, "offer",
                                            (json_int_t)r->part[i].offer, "tokens", (json_int_t)r->part[i].tokens));
        write_event(o, "merge", r->merge, took_part ? all : without, o->fragment, json_pack("{s:O}", "parts", parts));
    }
    json_decref(parts);
}

void outer_dump_exchange(islands *o, bool mean)
{
    const section all[] = {{"before", o->dump.kept[OUTER_DUMP_BEFORE]},
                           {"after", o->memory.reference},
                           {"weights", o->dump.kept[OUTER_DUMP_WEIGHTS]},
                           {0}};
    json_t *group = json_array();
    if (outer_dumps(o)) {
        for (int s = 0; s < ROSTER_SLOTS; s++)
            if ((o->gossip.partners | 1ull << o->slot) >> s & 1)
                json_array_append_new(group, json_integer(s));
        write_event(o, "exchange", o->gossip.number, all, o->fragment,
                    json_pack("{s:O, s:b, s:I}", "group", group, "mean", mean, "offer", (json_int_t)o->offered.step));
    }
    json_decref(group);
}

void outer_dump_push(islands *o, const roster_part *answer)
{
    const section all[] = {{"before", o->memory.reference},
                           {"weights", o->dump.kept[OUTER_DUMP_WEIGHTS]},
                           {"change", o->dump.kept[OUTER_DUMP_CHANGE]},
                           {"sent", o->dump.kept[OUTER_DUMP_SENT]},
                           {"kept", o->memory.rest},
                           {0}};
    if (outer_dumps(o))
        write_event(o, "push", o->offered.step, all, 0,
                    json_pack("{s:I, s:I, s:b}", "base", (json_int_t)o->merge, "merge", (json_int_t)answer->merge,
                              "taken", answer->refusal == ROSTER_TAKEN));
}

void outer_dump_pushed(islands *o, const roster_part *answer, int64_t base)
{
    const section all[] = {{"before", o->dump.kept[OUTER_DUMP_BEFORE]},
                           {"sent", o->dump.kept[OUTER_DUMP_SENT]},
                           {"after", o->memory.reference},
                           {0}};
    if (outer_dumps(o))
        write_event(o, "merge", answer->merge, all, 0,
                    json_pack("{s:i, s:I, s:I, s:I}", "slot", answer->slot, "offer", (json_int_t)answer->offer,
                              "tokens", (json_int_t)answer->tokens, "base", (json_int_t)base));
}

void outer_dump_settled(islands *o, int fragment)
{
    const section all[] = {{"own", o->dump.kept[OUTER_DUMP_OWN]},
                           {"reference", o->memory.reference},
                           {"settled", o->dump.kept[OUTER_DUMP_SETTLED]},
                           {0}};
    if (outer_dumps(o))
        write_event(o, "settle", o->step, all, fragment, json_object());
}
