/* outer.undo: the state before the last merge is kept, and islands go back to it when more than half of those that the
 * next merge would take have seen their loss jump with the first step after it.
 *
 * An island says so with its next offer. What is decided then is no merge of changes: `head` goes on by one and names
 * the merge that it undoes, so that all islands undo alike, and none that is late takes the one for the other. What was
 * learnt since that merge began with bad weights, and goes too. Nobody knows who spoiled the merge: the incident names
 * who took part in it. */
#include <stdlib.h>
#include <string.h>

#include "engine/islands/merge/outer_island_internal.h"
#include "memory/log.h"

static void copy(const islands *o, float *to, const float *from)
{
    if (to && from)
        memcpy(to, from, (size_t)o->core.units.elements * sizeof *to);
}

void outer_undo_keep(islands *o)
{
    if (!o->core.memory.reference_before)
        return;
    const roster *r = &o->core.roster;
    copy(o, o->core.memory.reference_before, o->core.memory.reference);
    copy(o, o->core.memory.momentum_before, o->core.memory.momentum);
    o->undo.merge = r->merge;
    o->undo.taken = -1;
    o->undo.wanted = false;
    *o->undo.of = 0;
    for (int i = 0; i < r->parts; i++) {
        size_t used = strlen(o->undo.of);
        snprintf(o->undo.of + used, sizeof o->undo.of - used, "%s%s", used ? ", " : "", r->part[i].name);
    }
}

void outer_undo_taken(islands *o)
{
    if (o->undo.merge == o->core.merge)
        o->undo.taken = o->core.step;
}

bool outer_undo_holds(const islands *o)
{
    return o->core.memory.reference_before && o->undo.merge > 0 && o->undo.merge == o->core.merge;
}

void islands_found_spike(islands *o, int64_t step)
{
    if (!outer_undo_holds(o) || o->undo.wanted || step != o->undo.taken + 1)
        return;
    o->undo.wanted = true;
    if (outer_first_rank(&o->core))
        log_warn("islands: the loss jumps after merge %lld, of the changes of %s: this island wants it undone",
                 (long long)o->core.merge, o->undo.of);
}

bool outer_undo_wins(const islands *o, uint64_t takes)
{
    int votes = 0;
    for (int s = 0; s < o->core.config->outer.slots; s++)
        votes += takes >> s & 1 && o->core.roster.member[s].undo;
    return o->core.memory.reference_before && 2 * votes > __builtin_popcountll(takes);
}

void outer_undo_forget(islands *o)
{
    if (o->core.memory.error)
        memset(o->core.memory.error, 0, (size_t)o->core.units.elements * sizeof *o->core.memory.error);
    outer_give_reference(o, 0);
    o->merged_at[0] = o->core.step;
}

void outer_undo_take(islands *o)
{
    int64_t merge = o->undo.merge;
    outer_hide_state(&o->core);
    copy(o, o->core.memory.reference, o->core.memory.reference_before);
    copy(o, o->core.memory.momentum, o->core.memory.momentum_before);
    outer_undo_forget(o);
    o->undo.merge = 0;
    o->undo.wanted = false;
    o->core.merge = o->core.roster.merge;
    o->core.history = o->core.roster.history;
    o->stage = OUTER_IDLE;
    o->core.counts.undone++;
    outer_announce(&o->core, o->core.roster.step, o->core.roster.updates);
    outer_clear_offer(&o->core);
    if (outer_first_rank(&o->core))
        outer_say_incident(
            &o->core,
            must_format("islands: merge %lld, of the changes of %s, is undone by merge %lld: more than half of the "
                        "islands saw their loss jump; the model is that before it, without what was learnt since",
                        (long long)merge, o->undo.of, (long long)o->core.merge),
            1);
}
