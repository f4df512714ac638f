/* Our lease in etcd, and our keys under it. A write whose answer is lost is made again; one that is carried out late,
 * after what followed it, is seen when the keys are read, and undone. */
#include <stdlib.h>
#include <string.h>

#include "engine/islands/meet/membership_internal.h"
#include "memory/clock.h"
#include "memory/log.h"

static void forget(membership *m, own_key k)
{
    free(m->written[k]);
    m->written[k] = NULL;
}

static status say_evicted(membership *m)
{
    pthread_mutex_lock(&m->lock);
    m->evicted = true;
    pthread_mutex_unlock(&m->lock);
    return m->options.server ? status_fail(STATUS_FAILED, "another server has taken this one's place")
                             : status_fail(STATUS_FAILED, "another island has taken slot %d", m->slot);
}

/* Our record again, where there is none, or what a write without an answer has left of ours. */
static status put_record(membership *m, const char *record)
{
    json_t *pairs = NULL;
    bool done = false;
    TRY(membership_read(&pairs, m));
    const json_t *there = membership_own_pair(m, pairs, OWN_MEMBER);
    status s = there && !membership_is_ours(m, there) ? say_evicted(m) : STATUS_OK;
    char *key = membership_own_path(m, OWN_MEMBER), *name = membership_path(m, "name", m->slot);
    const etcd_condition as_read = {key, membership_revision(there)};
    const etcd_change put[] = {{key, record, m->lease}, {name, m->name, 0}};
    if (s == STATUS_OK)
        s = etcd_transact(&done, m->etcd, &as_read, 1, put, m->options.server ? 1 : 2);
    free(name);
    free(key);
    json_decref(pairs);
    TRY(s);
    if (!done) /* by whom is seen in the next turn */
        return status_fail(STATUS_FAILED, "the record in etcd was changed while it was renewed");
    m->written[OWN_MEMBER] = must_strdup(record);
    m->lost = false;
    return STATUS_OK;
}

status membership_keep_lease(membership *m, const char *record)
{
    bool alive = true;
    if (!m->lost && clock_seconds() - m->kept_alive < m->options.lease / 3.0)
        return STATUS_OK;
    TRY(etcd_keep_alive(&alive, m->etcd, m->lease));
    if (!alive) {
        m->lost = true;
        TRY(etcd_lease(&m->lease, m->etcd, m->options.lease));
    }
    m->kept_alive = clock_seconds();
    if (!m->lost)
        return STATUS_OK;
    for (int i = 0; i < OWN_KEYS; i++)
        forget(m, (own_key)i);
    return put_record(m, record);
}

status membership_write_own(membership *m, char *const wanted[OWN_KEYS])
{
    for (int i = 0; i < OWN_KEYS; i++) {
        bool same = wanted[i] && m->written[i] ? !strcmp(wanted[i], m->written[i]) : wanted[i] == m->written[i];
        if (same)
            continue;
        char *key = membership_own_path(m, (own_key)i);
        status s = etcd_write(m->etcd, key, wanted[i], m->lease);
        free(key);
        TRY(s);
        forget(m, (own_key)i);
        m->written[i] = wanted[i] ? must_strdup(wanted[i]) : NULL;
    }
    return STATUS_OK;
}

static bool is_written(const membership *m, own_key k, const json_t *pair)
{
    if (!pair || !m->written[k])
        return !pair && !m->written[k];
    json_t *written = json_loads(m->written[k], 0, NULL);
    bool same = json_equal(written, json_object_get(pair, "value"));
    json_decref(written);
    return same;
}

/* A record of ours at another slot: of a claim that was carried out when we had given it up. */
static void drop_ghosts(membership *m, const json_t *pairs)
{
    for (int i = 0; i < m->options.slots && !m->options.server; i++) {
        const json_t *member = membership_pair(pairs, "member", i);
        if (i == m->slot || !membership_is_ours(m, member))
            continue;
        bool done;
        char *key = membership_path(m, "member", i);
        const etcd_condition still = {key, membership_revision(member)};
        const etcd_change drop = {key, NULL, 0};
        (void)etcd_transact(&done, m->etcd, &still, 1, &drop, 1);
        free(key);
    }
}

bool membership_check_own(membership *m, const json_t *pairs)
{
    bool all = true;
    drop_ghosts(m, pairs);
    for (int i = 0; i < (m->options.server ? 1 : OWN_KEYS); i++) {
        const json_t *pair = membership_own_pair(m, pairs, (own_key)i);
        if (is_written(m, (own_key)i, pair))
            continue;
        all = false;
        if (i == OWN_MEMBER && (!pair || !membership_is_ours(m, pair)))
            m->lost = true; /* the lease, or the slot: keeping the lease finds out */
        forget(m, (own_key)i);
        if (pair && i != OWN_MEMBER)
            m->written[i] = must_strdup(""); /* whatever is wanted is not this */
    }
    return all;
}
