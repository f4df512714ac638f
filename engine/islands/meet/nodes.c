#include "engine/islands/meet/nodes.h"

#include <stdlib.h>

#include "memory/log.h"

static const double TURN = 1; /* seconds between questions */
enum { MISSES = 2 };          /* in a row, until a node is away: one may be a hiccup */

struct nodes {
    etcd *etcd;
    int next;
    double asked;
    int misses[ETCD_NODES];
};

nodes *nodes_open(etcd *e)
{
    nodes *n = must_calloc(1, sizeof *n);
    n->etcd = e;
    return n;
}

void nodes_close(nodes *n)
{
    free(n);
}

static int count_there(const nodes *n)
{
    int there = 0;
    for (int i = 0; i < etcd_nodes(n->etcd); i++)
        there += n->misses[i] < MISSES;
    return there;
}

void nodes_look(nodes *n, double now)
{
    int i = n->next, count = etcd_nodes(n->etcd);
    if (count < 2 || now - n->asked < TURN)
        return;
    n->asked = now;
    n->next = (i + 1) % count;
    bool answers = etcd_answers(n->etcd, i), was_away = n->misses[i] >= MISSES;
    n->misses[i] = answers ? 0 : n->misses[i] + 1 < MISSES ? n->misses[i] + 1 : MISSES;
    if (answers && was_away)
        log_info("islands: etcd's node %s is back: %d of %d are there", etcd_address(n->etcd, i), count_there(n),
                 count);
    else if (!was_away && n->misses[i] >= MISSES)
        log_warn("islands: etcd's node %s is away: %d of %d are there", etcd_address(n->etcd, i), count_there(n),
                 count);
}
