/* outer.undo: the state before the last merge is kept, and islands go back to it when more than half of those that the
 * next merge would take have seen their loss jump with the first step after it.
 *
 * An island says so with its next offer. What is decided then is no merge of changes: `head` goes on by one and names
 * the merge that it undoes, so that all islands undo alike, and none that is late takes the one for the other. What was
 * learnt since that merge began with bad weights, and goes too. Nobody knows who spoiled the merge: the incident names
 * who took part in it. */
#include <stdlib.h>
#include <string.h>

#include "engine/host/incident_log.h"
#include "engine/islands/merge/outer_internal.h"
#include "memory/log.h"

static void copy(const islands *o, float *to, const float *from)
{
    if (to && from)
        memcpy(to, from, (size_t)o->units.elements * sizeof *to);
}

void outer_undo_keep(islands *o)
{
    if (!o->all.undo.reference)
        return;
    const roster *r = &o->roster;
    copy(o, o->all.undo.reference, o->memory.reference);
    copy(o, o->all.undo.momentum, o->memory.momentum);
    o->all.undo.merge = r->merge;
    o->all.undo.taken = -1;
    o->all.undo.wanted = false;
    *o->all.undo.of = 0;
    for (int i = 0; i < r->parts; i++) {
        size_t used = strlen(o->all.undo.of);
        snprintf(o->all.undo.of + used, sizeof o->all.undo.of - used, "%s%s", used ? ", " : "", r->part[i].name);
    }
}

void outer_undo_taken(islands *o)
{
    if (o->all.undo.merge == o->merge)
        o->all.undo.taken = o->step;
}

bool outer_undo_holds(const islands *o)
{
    return o->all.undo.reference && o->all.undo.merge > 0 && o->all.undo.merge == o->merge;
}

void islands_found_spike(islands *o, int64_t step)
{
    if (!outer_undo_holds(o) || o->all.undo.wanted || step != o->all.undo.taken + 1)
        return;
    o->all.undo.wanted = true;
    if (outer_first_rank(o))
        log_warn("islands: the loss jumps after merge %lld, of the changes of %s: this island wants it undone",
                 (long long)o->merge, o->all.undo.of);
}

bool outer_undo_wins(const islands *o, uint64_t takes)
{
    int votes = 0;
    for (int s = 0; s < o->config->outer.slots; s++)
        votes += takes >> s & 1 && o->roster.member[s].undo;
    return o->all.undo.reference && 2 * votes > __builtin_popcountll(takes);
}

static void say_undone(const islands *o, int64_t merge)
{
    char *words =
        must_format("islands: merge %lld, of the changes of %s, is undone by merge %lld: more than half of the "
                    "islands saw their loss jump; the model is that before it, without what was learnt since",
                    (long long)merge, o->all.undo.of, (long long)o->merge);
    log_warn("%s", words);
    incident_log_say(o->config->run.folder, o->watchdog, INCIDENT_NUMBERS, false, words);
    free(words);
}

void outer_undo_forget(islands *o)
{
    if (o->memory.error)
        memset(o->memory.error, 0, (size_t)o->units.elements * sizeof *o->memory.error);
    outer_give_reference(o, 0);
    o->merged_at[0] = o->step;
}

void outer_undo_take(islands *o)
{
    int64_t merge = o->all.undo.merge;
    transport_lock(o->transport);
    o->serves.state = -1;
    transport_unlock(o->transport);
    copy(o, o->memory.reference, o->all.undo.reference);
    copy(o, o->memory.momentum, o->all.undo.momentum);
    outer_undo_forget(o);
    o->all.undo.merge = 0;
    o->all.undo.wanted = false;
    o->merge = o->roster.merge;
    o->all.history = o->roster.history;
    o->stage = OUTER_IDLE;
    o->counts.undone++;
    outer_announce(o, o->roster.step, o->roster.updates);
    if (!outer_first_rank(o))
        return;
    membership_set_have(o->membership, NULL);
    membership_set_offer(o->membership, NULL);
    say_undone(o, merge);
}
