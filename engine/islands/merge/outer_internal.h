/* The core that an island and the server of islands have in common: the model in units, of which each rank
 * keeps the outer state of some; planned memory; the roster; what other islands may fetch, and what is fetched of them.
 * outer.c opens it, outer_reach.c talks to others, outer_norms.c judges what they send. Its owner's to hold; calls that
 * say so are collective over the job's ranks, and all ranks see the same roster. */
#pragma once

#include <stdbool.h>

#include "engine/islands/islands.h"
#include "engine/islands/meet/membership.h"
#include "engine/islands/meet/roster.h"
#include "engine/islands/merge/robust.h"
#include "engine/islands/merge/rule.h"
#include "engine/islands/merge/units.h"
#include "engine/islands/wire/keys.h"
#include "engine/islands/wire/transport.h"
#include "kernels/compress.h"
#include "parallel/comm/comm.h"
#include "parallel/watch/watchdog.h"

enum { OUTER_PEERS = 64 }; /* ranks of one other island that a rank fetches from at a time */

/* A unit that this rank keeps the outer state of. */
typedef struct outer_unit {
    int unit;
    int64_t at;                 /* its first element among the rank's */
    int64_t coded, coded_bytes; /* its encoding among its fragment's */
} outer_unit;

/* The model in units, and those that this rank keeps the outer state of. */
typedef struct outer_units {
    names_tensor *tensors;
    int tensor_count;
    unit *list;
    int *owner; /* [count] ranks */
    int count;
    outer_unit *mine;
    int mine_count;
    int *mine_of;     /* [count] index in `mine`, or -1 */
    int64_t elements; /* of mine */
} outer_units;

/* Planned memory: [elements of mine], then [largest unit], then [bytes of the largest fragment]. */
typedef struct outer_memory {
    struct arena *arena;
    float *reference, *momentum, *error;       /* momentum, error: NULL where there is none */
    float *rest;                               /* what an offer would keep; a change while its base is replaced */
    float *reference_before, *momentum_before; /* the last merge; NULL without outer.undo */
    float *values, *other, *scratch;           /* [largest unit]; a server has no scratch */
    float *each[ROSTER_SLOTS];                 /* likewise, of every island; NULL unless robust_by_coordinate() */
    double *products;                          /* [units of the largest fragment][outer_product_count(slots)] */
    uint8_t *out, *in[ROSTER_SLOTS];           /* encodings of a fragment: offered, fetched */
    checkpoint_piece *pieces;                  /* of it that checkpoints hold */
    int piece_count;
} outer_memory;

/* How large are honest changes? Each island counts once, by the norm of its change that was merged last, so that one
 * that sends many small ones does not decide what is large.
 *
 * Islands are told apart by their keys, since one with a good key can claim several slots and names: the slots of one
 * key count together, by their median. Where all islands share one key, slots are told apart instead.
 *
 *     three or more are known: the median    two: the larger    one: what is usual for itself alone, unless it is the
 *     judge's own
 */

typedef struct norms {
    struct {
        bool known;
        double norm; /* of the slot's change that was merged last */
        char key[KEYS_TEXT];
    } of[ROSTER_SLOTS];
} norms;

/* The change of the slot, from an island with this public key, is merged. */
void norms_note(norms *n, int slot, const char *key, double norm);
/* What is usual beside a change of the slot, for an island in slot `self`, or for one without a slot, -1; 0: not
 * known. */
double norms_usual(const norms *n, int slot, int self);

/* What is fetched of other islands. */
typedef struct outer_fetches {
    struct {
        int64_t offer; /* being fetched, or here; 0: none */
        bool here, bad;
        int jobs;
        double norm;         /* of this rank's part of it; of gossip, its distance from this island's */
        char key[KEYS_TEXT]; /* whose it is */
    } got[ROSTER_MEMBERS];
    transport_part *parts;          /* [slots][mine_count] */
    norms norms[64];                /* by fragment, of this rank's part of what was merged */
    int64_t refusals[ROSTER_SLOTS]; /* changes of each slot that this rank has refused */
    double own_norm;                /* of this island's offer */
} outer_fetches;

/* What the transport's thread may serve; under its lock. */
typedef struct outer_served {
    int64_t merge, offer, state; /* -1: none */
    int fragment;
} outer_served;

typedef struct outer {
    const config *config;
    comm *world;
    watchdog *watchdog;
    outer_units units;
    outer_memory memory;
    compress_method method;
    rule rule;
    uint64_t fingerprint;

    keys keys;
    etcd_login login; /* until etcd is open */
    transport *transport;
    membership *membership; /* rank 0's */
    int slot;               /* ROSTER_SERVER: of the server */
    roster roster;          /* as last broadcast, the same on all ranks */
    double now;             /* rank 0's clock, likewise */
    double told;            /* when the watchdog was told of progress */
    double asked_since;     /* some rank has been asked to stop, as outer_look has seen; 0: none has */

    int64_t step;           /* of the run, for the watchdog */
    int64_t merge, history; /* the reference is that after this merge of this history (meet/roster.h) */
    int fragment;           /* that is being merged */
    outer_fetches fetches;
    outer_served serves;
    islands_counts counts;
} outer;

/* ---- outer.c ---- */

/* Memory and transport, without a place among islands: outer_claim. Of a server the reference is all zeros.
 * Collective. */
status outer_open(outer *o, const config *c, comm *world, watchdog *w, bool server);
/* Leaves the other islands. What was never opened is accepted. */
void outer_close(outer *o);
/* Sections "outer_reference" and so on, where they are, of a checkpoint. */
status outer_read_sections(outer *o, checkpoint *from);
/* Transport's counts over all ranks, and those of fetches. Collective. */
islands_counts outer_counted(const outer *o);

/* How a merge moves a unit: as the configuration says; a router's bias, which each island moves by the signs of its
 * own counts, becomes the mean of theirs. */
rule outer_rule_of(const outer *o, const outer_unit *m);

/* ---- outer_reach.c ---- */

/* rank 0 claims a slot, rather `hint` (-1: any), or the server's place, with the endpoints of all ranks. Collective. */
status outer_claim(outer *o, int hint);
/* The rank that talks to etcd, and to the reader. */
bool outer_first_rank(const outer *o);
/* Reads the roster on all ranks; a millisecond or so. */
status outer_look(outer *o);
/* Is this island's state that after the last merge? */
bool outer_is_at_head(const outer *o);
/* Between looks. */
void outer_nap(const outer *o);
/* Has some rank been asked to stop, so long ago that nothing is waited for any more? The same on all ranks. */
bool outer_must_end(const outer *o);
/* The set of slots for which the condition holds on every rank. */
uint64_t outer_everywhere(const outer *o, uint64_t here);

/* The state is that after o->merge, offered after `step`; from now on it is given to others. */
void outer_announce(outer *o, int64_t step, int64_t updates);
/* The state is about to change: nobody gets it. */
void outer_hide_state(outer *o);
/* What is encoded may be fetched; merge -1: no more. */
void outer_serve_change(outer *o, int64_t merge, int64_t offer, int fragment);
/* This island offers and holds nothing any more. Returns the number of the writing, membership.h; on rank 0, else 0. */
int64_t outer_clear_offer(outer *o);
/* Says whose changes this island holds, for a merge. */
void outer_report_held(outer *o, int64_t merge, uint64_t slots);

/* From every rank of an island that keeps some of our units of the fragment, a stream each. False: not all can be
 * asked. */
bool outer_fetch(outer *o, int slot, int fragment, wire_kind kind, int64_t merge, int64_t offered);
void outer_drop_fetch(outer *o, int slot);
/* Of what was asked for last from a slot, or the server. 1: it is here on all ranks; 0: not yet; -1: it is not to be
 * had. */
int outer_fetched(outer *o, int slot);
/* Goes on fetching what the slot offers, known by `id`; true when this rank has it (o->fetches.got). */
bool outer_fetch_offer(outer *o, int slot, int64_t id);
/* The same for what these slots offer for a merge; of gossip, for that or a later one. The slots whose change all ranks
 * hold, this island's own among them. Collective. */
uint64_t outer_fetch_offers(outer *o, int64_t merge, uint64_t from);
/* Slots whose change some rank has refused. Collective. */
uint64_t outer_refused(const outer *o);

/* ---- outer_norms.c: this rank's part of changes, of which each rank judges its own ---- */

/* To people, and into incidents.jsonl when it happens for the 1st, 2nd, 4th, 8th time and so on. Takes the words. */
void outer_say_incident(const outer *o, char *words, int64_t times);
/* out[elements of the unit] = what a slot, this island's own or another, has sent of it. */
void outer_decode_part(const outer *o, float *out, int slot, const outer_unit *m);
double outer_squares(const float *x, int64_t n); /* their sum, in float64 */
/* Fails on all ranks, with a tensor's name, unless what they keep of a state by unit is finite; NULL is. */
status outer_check_finite(const outer *o, const float *values, const char *what);
/* What was fetched of a slot has arrived: is it finite, and no larger than honest ones are? Else it is refused. */
void outer_judge_fetched(outer *o, int slot);
/* outer.robust clip, of gossip and of a server: what a slot's change is to be scaled by, so that its norm is at most
 * what is usual. */
float outer_norm_scale(const outer *o, int slot);
/* The slot's change, this island's own or one that is fetched, is merged. */
void outer_note_norm(outer *o, int slot);
/* How many products of a merge of so many changes outer.robust asks for: 0 where it does not compare whole changes. */
int outer_product_count(const config *c, int parts);
/* outer.robust clip, of topology all, and trimmed: what the parts of the merge in the roster are to be scaled by, and
 * with trimmed which of them are left out. Every island comes to the same bits: products are summed by unit, and the
 * units in their sequence. Collective. */
void outer_judge_parts(outer *o, robust_judgement *judged);
