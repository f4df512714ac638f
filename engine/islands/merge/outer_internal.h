/* The core shared by an island and the server of islands: the model in units, with each rank keeping some units' outer
 * state; planned memory; the roster; the data served to and fetched from other islands. outer.c opens it, outer_reach.c
 * talks to others, outer_norms.c checks their changes. The caller owns it. Some calls are marked as collective over the
 * job's ranks; all ranks see the same roster. */
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

enum { OUTER_PEERS = 64 }; /* ranks of one other island that a rank fetches from concurrently */

/* A unit with its outer state on this rank. */
typedef struct outer_unit {
    int unit;
    int64_t at;                 /* offset of its first element among the rank's */
    int64_t coded, coded_bytes; /* offset and size of its encoding in its fragment's, bytes */
} outer_unit;

/* The model's units, and the ones with their outer state on this rank. */
typedef struct outer_units {
    names_tensor *tensors;
    int tensor_count;
    unit *list;
    int *owner; /* [count] ranks */
    int count;
    outer_unit *mine;
    int mine_count;
    int *mine_of;     /* [count] index in `mine`, or -1 */
    int64_t elements; /* elements of the units in `mine` */
} outer_units;

/* Planned memory: [elements of mine], then [largest unit], then [bytes of the largest fragment]. */
typedef struct outer_memory {
    struct arena *arena;
    float *reference, *momentum, *error;       /* momentum, error: NULL where there is none */
    float *rest;                               /* an offer's remainder; a change while its base is replaced */
    float *reference_before, *momentum_before; /* state before the last merge; NULL without outer.undo */
    float *values, *other, *scratch;           /* [largest unit]; a server has no scratch */
    float *each[ROSTER_SLOTS];                 /* [largest unit] for each island; NULL unless robust_by_coordinate() */
    double *products;                          /* [units of the largest fragment][outer_product_count(slots)] */
    uint8_t *out, *in[ROSTER_SLOTS];           /* encodings of a fragment: offered, fetched */
    checkpoint_piece *pieces;                  /* pieces that checkpoints hold */
    int piece_count;
} outer_memory;

/* Estimates the norm of honest changes. Each island counts once, by the norm of its last merged change, so that one
 * that sends many small ones does not set the scale.
 *
 * Islands are told apart by their keys, since one with a good key can claim several slots and names: the slots of one
 * key count together, by their median. Where all islands share one key, slots are told apart instead.
 *
 *     three or more are known: the median    two: the larger    one: its norm, for itself alone unless it is the
 *     judge's own
 */

typedef struct norms {
    struct {
        bool known;
        double norm; /* norm of the slot's last merged change */
        char key[KEYS_TEXT];
    } of[ROSTER_SLOTS];
} norms;

/* Notes that the slot's change, from an island with this public key, is merged. */
void norms_note(norms *n, int slot, const char *key, double norm);
/* Returns the usual norm beside a change of the slot, for an island in slot `self` (-1: without one); 0: unknown. */
double norms_usual(const norms *n, int slot, int self);

/* Data fetched from other islands. */
typedef struct outer_fetches {
    struct {
        int64_t offer; /* offer being fetched, or here; 0: none */
        bool here, bad;
        int jobs;
        double norm;         /* norm of this rank's part; gossip: its distance from this island's weights */
        char key[KEYS_TEXT]; /* sender's public key */
    } got[ROSTER_MEMBERS];
    transport_part *parts;          /* [slots][mine_count] */
    norms norms[64];                /* by fragment: norms of this rank's part of merged changes */
    int64_t refusals[ROSTER_SLOTS]; /* changes of each slot that this rank has refused */
    double own_norm;                /* norm of this island's offer */
} outer_fetches;

/* Data that the transport's thread may serve; guarded by its lock. */
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
    etcd_login login; /* used until etcd is open */
    transport *transport;
    membership *membership; /* on rank 0 */
    int slot;               /* a server's is ROSTER_SERVER */
    roster roster;          /* last broadcast, the same on all ranks */
    double now;             /* rank 0's clock, also broadcast */
    double told;            /* time of the last progress report to the watchdog */
    double asked_since;     /* time since which outer_look knows that some rank was asked to stop; 0: none */

    int64_t step;           /* step of the run, for the watchdog */
    int64_t merge, history; /* the reference is the state after this merge of this history (meet/roster.h) */
    int fragment;           /* fragment being merged */
    outer_fetches fetches;
    outer_served serves;
    islands_counts counts;
} outer;

/* ---- outer.c ---- */

/* Opens memory and transport; outer_claim claims a place. A server's reference is all zeros. Collective. */
status outer_open(outer *o, const config *c, comm *world, watchdog *w, bool server);
/* Leaves the other islands. Accepts a zeroed core. */
void outer_close(outer *o);
/* Copies a state of all of this rank's units, if both are kept. */
void outer_copy(const outer *o, float *to, const float *from);
/* Reads a checkpoint's sections "outer_reference" and so on, where present. */
status outer_read_sections(outer *o, checkpoint *from);
/* Sums the counts of transport and fetches over all ranks. Collective. */
islands_counts outer_counted(const outer *o);

/* Returns the rule that merges a unit: the configured one, but a router's bias, which each island moves by the signs of
 * its own counts, becomes the mean of theirs. */
rule outer_rule_of(const outer *o, const outer_unit *m);

/* ---- outer_reach.c ---- */

/* Appends a name to a list separated by commas. */
void outer_add_name(char *names, size_t bytes, const char *name);
/* Claims a slot, preferably `hint` (-1: any), or the server's place, with all ranks' endpoints. Collective. */
status outer_claim(outer *o, int hint);
/* True on the rank that talks to etcd and writes the log. */
bool outer_first_rank(const outer *o);
/* Reads the roster on all ranks; takes a millisecond or so. */
status outer_look(outer *o);
/* True if this island's state is the one after the last merge. */
bool outer_is_at_head(const outer *o);
/* Sleeps between looks. */
void outer_nap(const outer *o);
/* True if some rank was asked to stop long enough ago that all waiting must end. The same on all ranks. */
bool outer_must_end(const outer *o);
/* Returns the set of slots for which the condition holds on every rank. */
uint64_t outer_everywhere(const outer *o, uint64_t here);

/* Announces the state after o->merge, offered after `step`; other islands may now fetch it. */
void outer_announce(outer *o, int64_t step, int64_t updates);
/* Stops serving the state, which is about to change. */
void outer_hide_state(outer *o);
/* Serves the encoded change; merge -1: stops. */
void outer_serve_change(outer *o, int64_t merge, int64_t offer, int fragment);
/* Withdraws this island's offer and its report of held changes. Returns the number of the writing (membership.h); on
 * rank 0, else 0. */
int64_t outer_clear_offer(outer *o);
/* Reports the slots with changes that this island holds, for a merge. */
void outer_report_held(outer *o, int64_t merge, uint64_t slots);

/* Fetches our units of the fragment from every rank of an island that keeps some, a stream each. False: some rank
 * cannot be asked. */
bool outer_fetch(outer *o, int slot, int fragment, wire_kind kind, int64_t merge, int64_t offered);
void outer_drop_fetch(outer *o, int slot);
/* State of the last fetch from a slot or the server. 1: it is here on all ranks; 0: not yet; -1: unavailable. */
int outer_fetched(outer *o, int slot);
/* Continues fetching the slot's offer `id`; true when this rank has it (o->fetches.got). */
bool outer_fetch_offer(outer *o, int slot, int64_t id);
/* Continues fetching these slots' offers for a merge; gossip: for that or a later one. Returns the slots with changes
 * that all ranks hold, including this island's own. Collective. */
uint64_t outer_fetch_offers(outer *o, int64_t merge, uint64_t from);
/* Returns the slots with changes that some rank has refused. Collective. */
uint64_t outer_refused(const outer *o);

/* ---- outer_norms.c: each rank checks its own part of changes ----------------------------------------------------- */

/* Logs an incident, also into incidents.jsonl when it happens for the 1st, 2nd, 4th, 8th time and so on. Takes
 * ownership of the words. */
void outer_say_incident(const outer *o, char *words, int64_t times);
/* out[elements of the unit] = a slot's change of it, this island's own or another's. */
void outer_decode_part(const outer *o, float *out, int slot, const outer_unit *m);
double outer_squares(const float *x, int64_t n); /* sum of squares in float64 */
/* Fails on all ranks, with a tensor's name, unless their parts of a state by unit are finite; NULL passes. */
status outer_check_finite(const outer *o, const float *values, const char *what);
/* Checks a slot's change, once fetched; refuses it unless it is finite and no larger than honest ones. */
void outer_judge_fetched(outer *o, int slot);
/* Returns the scale of a slot's change, for outer.robust clip with gossip or a server: it reduces the norm to at most
 * the usual one. */
float outer_norm_scale(const outer *o, int slot);
/* Notes that the slot's change, this island's own or a fetched one, is merged. */
void outer_note_norm(outer *o, int slot);
/* Number of products that outer.robust needs for a merge of `parts` changes: 0 unless it compares whole changes. */
int outer_product_count(const config *c, int parts);
/* Scales the parts of the roster's merge, for outer.robust clip of topology all, and trimmed, which also leaves parts
 * out. Every island gets the same bits: products are summed by unit, and the units in sequence. Collective. */
void outer_judge_parts(outer *o, robust_judgement *judged);
