/* Whose a slot is. A request whose answer is lost may have been carried out, or be so later: what is at a slot is read
 * before it is judged. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/islands/meet/membership_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

static const char *text_of(const json_t *pair)
{
    const char *words = json_string_value(json_object_get(pair, "value"));
    return words ? words : "";
}

/* Islands that train something else are no islands of this run. */
static status check_fingerprint(membership *m, const json_t *pairs)
{
    char text[24];
    snprintf(text, sizeof text, "x%016llx", (unsigned long long)m->options.fingerprint);
    const json_t *there = membership_pair(pairs, "fingerprint", -1);
    if (there && strcmp(text_of(there), text) != 0)
        return status_fail(STATUS_FAILED,
                           "outer.run %s is a run of islands with another model, data order, seed or outer.* settings: "
                           "give this one another name, or configure it alike",
                           m->options.run);
    if (there)
        return STATUS_OK;
    char *key = membership_path(m, "fingerprint", -1);
    const etcd_condition absent = {key, 0};
    const etcd_change put = {key, text, 0};
    bool done;
    status s = etcd_transact(&done, m->etcd, &absent, 1, &put, 1);
    free(key);
    TRY(s);
    return done ? STATUS_OK : status_fail(STATUS_FAILED, "another island begins at this moment");
}

/* Takes the slot, or the server's place, whose record is of this revision; 0: there is none. The turn of a former
 * process ends: what it may have decided without hearing of it is not carried out any more. */
static status take(bool *done, membership *m, const json_t *pairs, int slot, int64_t revision)
{
    m->slot = slot;
    char *member = membership_own_path(m, OWN_MEMBER), *name = membership_path(m, "name", slot);
    char *turn = membership_path(m, "turn", slot);
    char *record = membership_text(m, &(membership_state){.merge = m->options.merge});
    const etcd_condition as_read[] = {{member, revision},
                                      {name, membership_revision(membership_pair(pairs, "name", slot))}};
    const etcd_change changes[] = {{member, record, m->lease}, {turn, m->id, 0}, {name, m->name, 0}};
    bool server = slot == ROSTER_SERVER; /* which has no name of its own to keep */
    status s = etcd_transact(done, m->etcd, as_read, server ? 1 : 2, changes, server ? 2 : 3);
    if (s != STATUS_OK || !*done)
        m->slot = -1;
    free(record);
    free(turn);
    free(name);
    free(member);
    return s;
}

/* How much the slot is ours to take: the one that we had, then one that nobody had, then one whose island is gone. */
static int fitness(const membership *m, const json_t *pairs, int slot)
{
    const json_t *name = membership_pair(pairs, "name", slot);
    if (membership_pair(pairs, "member", slot) || (m->options.slot >= 0 && m->options.slot != slot))
        return 0;
    if (!name)
        return slot == m->options.hint ? 3 : 2;
    return !strcmp(text_of(name), m->name) ? 4 : 1;
}

static status refuse_slot(const membership *m, const json_t *pairs)
{
    int slot = m->options.slot;
    const json_t *member = slot >= 0 ? membership_pair(pairs, "member", slot) : NULL;
    char name[ROSTER_NAME];
    membership_name(name, member);
    if (slot >= 0)
        return status_fail(STATUS_FAILED,
                           "slot %d belongs to island %s, which is at work: every island needs a slot of its own", slot,
                           name);
    return status_fail(STATUS_FAILED, "all %d slots (outer.slots) have islands at work", m->options.slots);
}

static status try_server(bool *done, membership *m, const json_t *pairs)
{
    const json_t *there = membership_pair(pairs, "server", -1);
    char name[ROSTER_NAME];
    membership_name(name, there);
    if (there && !membership_is_ours(m, there))
        return status_fail(STATUS_FAILED, "outer.run %s has a server at work, %s: give this one another outer.run",
                           m->options.run, name);
    return take(done, m, pairs, ROSTER_SERVER, membership_revision(there));
}

/* The slot that a claim without an answer has given us; -1: none. */
static int claimed(const membership *m, const json_t *pairs)
{
    for (int i = 0; i < m->options.slots; i++)
        if (membership_is_ours(m, membership_pair(pairs, "member", i)))
            return i;
    return -1;
}

/* An island that has ended without a word keeps its slot until its lease has run out; so does a server. */
static status claim_once(bool *done, bool *reached, membership *m)
{
    json_t *pairs = NULL;
    TRY(membership_read(&pairs, m));
    *reached = true;
    status s = check_fingerprint(m, pairs);
    int best = -1, ours = claimed(m, pairs);
    bool mine_is_held = false;
    for (int i = 0; i < m->options.slots && !m->options.server; i++) {
        best = fitness(m, pairs, i) > (best < 0 ? 0 : fitness(m, pairs, best)) ? i : best;
        mine_is_held |=
            membership_pair(pairs, "member", i) && !strcmp(text_of(membership_pair(pairs, "name", i)), m->name);
    }
    if (s == STATUS_OK && m->options.server)
        s = try_server(done, m, pairs);
    else if (s == STATUS_OK && ours >= 0)
        s = take(done, m, pairs, ours, membership_revision(membership_pair(pairs, "member", ours)));
    else if (s == STATUS_OK && (best < 0 || (mine_is_held && m->options.slot < 0)))
        s = refuse_slot(m, pairs);
    else if (s == STATUS_OK)
        s = take(done, m, pairs, best, 0);
    json_decref(pairs);
    return s;
}

status membership_claim(membership *m)
{
    double until = clock_seconds() + m->options.patience;
    for (bool done = false, there = true;;) {
        bool was_there = there;
        there = false;
        status s = m->lease ? STATUS_OK : etcd_lease(&m->lease, m->etcd, m->options.lease);
        if (s == STATUS_OK)
            s = claim_once(&done, &there, m);
        if (s == STATUS_OK && done)
            return STATUS_OK;
        double now = clock_seconds();
        if (there && !was_there) /* leases begin anew when etcd is back */
            until = now + m->options.patience;
        if (now > until)
            return s != STATUS_OK ? s : status_fail(STATUS_FAILED, "no slot could be claimed");
        bool alive = false;
        if (m->lease && (etcd_keep_alive(&alive, m->etcd, m->lease) != STATUS_OK || !alive))
            m->lease = 0;
        usleep(200000);
    }
}
