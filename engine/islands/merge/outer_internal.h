/* What the files of the outer loop share: outer_setup.c (memory, checkpoints), outer_reach.c (the roster, fetching),
 * outer_apply.c (arithmetic on units), outer_norms.c (what is too large), islands_join.c
 * (joining, taking over), outer_merge.c (the merges; start there), outer_undo.c (undoing one), outer_gossip.c (the same
 * for groups of islands), outer_push.c (the same with a server), outer_topology.c (which of them it is); and server.c,
 * the server's own. */
#pragma once

#include "kernels/compress.h"
#include "engine/islands/meet/membership.h"
#include "engine/islands/merge/norms.h"
#include "engine/islands/merge/robust.h"
#include "engine/islands/merge/rule.h"
#include "engine/islands/wire/transport.h"
#include "engine/islands/islands.h"
#include "engine/islands/merge/outer_move.h"

enum { OUTER_PEERS = 64 }; /* ranks of one other island that a rank fetches from at a time */

/* A unit that this rank keeps the outer state of. */
typedef struct outer_unit {
    int unit;
    int64_t at;                 /* its first element among the rank's */
    int64_t coded, coded_bytes; /* its encoding among its fragment's */
} outer_unit;

typedef enum outer_stage {
    OUTER_IDLE,
    OUTER_OFFERED,     /* a change is offered for merge + 1 */
    OUTER_WITHDRAWING, /* it shall be no more; etcd may not have heard */
    OUTER_PULLING,     /* of topology server: the model is on its way, into `rest` */
    OUTER_MERGED,      /* the reference is new, the weights are not yet */
} outer_stage;

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
    float *reference, *momentum, *error; /* momentum, error: NULL where there is none */
    float *rest;                         /* what an offer would keep; a change while its base is replaced */
    float *values, *other;               /* [largest unit] */
    float *each[ROSTER_SLOTS];           /* likewise, of every island; NULL unless robust_by_coordinate() */
    double *products;                    /* [units of the largest fragment][outer_product_count(slots)] */
    uint8_t *out, *in[ROSTER_SLOTS];     /* encodings of a fragment: offered, fetched */
    checkpoint_piece *pieces;            /* of it that checkpoints hold */
    int piece_count;
} outer_memory;

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
    int64_t left_out[ROSTER_SLOTS]; /* and those that merges have left out */
    double own_norm;                /* of this island's offer */
} outer_fetches;

/* What the transport's thread may serve; under its lock. */
typedef struct outer_served {
    int64_t merge, offer, state; /* -1: none */
    int fragment;
} outer_served;

/* This island's offer. */
typedef struct outer_offered {
    int64_t step;      /* the step after which it was offered */
    int64_t id;        /* not another's; the answers to it have it */
    int64_t settle_at; /* the step after which the weights take the reference */
    double deadline;
    int64_t withdrawn; /* number of the writing, membership.h */
} outer_offered;

/* outer.undo: the state before the merge that the reference is of, and what this island thinks of it. */
typedef struct outer_undo {
    float *reference, *momentum; /* by unit as the reference is; NULL without outer.undo, or without momentum */
    int64_t merge;               /* they are of before this one; 0: of none */
    int64_t taken;               /* the step after which the weights took it; -1: they have not */
    bool wanted;                 /* this island wants it undone */
    char of[256];                /* the islands that took part in it */
} outer_undo;

/* A merge of topology all. */
typedef struct outer_all {
    uint64_t reported;    /* bits of the slots whose change this job has said to hold */
    double whole_since;   /* this job has every change for it; 0: it lacks some */
    double blocked_since; /* merges wait for islands that take the model; 0: they do not */
    double stalled_since; /* training stands still for this merge; 0: it does not */
    uint64_t named_late;  /* bits of the slots that it has been said to wait for */
    double doubted_since; /* no island at work has the merge that etcd holds; 0: one has */
    bool head_reported;   /* and that has been said */
    int64_t history;      /* of the merges of this island's state (meet/roster.h); 0: a former version's */
    int64_t drawn, base;  /* the history that this island has begun, or wants to, after this merge; 0: none */
    outer_undo undo;
} outer_all;

/* An exchange of topology gossip. */
typedef struct outer_gossip {
    int64_t number;                       /* of the exchange that is offered */
    uint64_t partners;                    /* bits of the slots that it is with */
    uint64_t owed;                        /* those that may still fetch it */
    char name[ROSTER_SLOTS][ROSTER_NAME]; /* the partners' names, which go from the roster with them */
} outer_gossip;

/* Topology server. */
typedef struct outer_push {
    int64_t pulls;      /* the model after this merge, or a later one, is asked for */
    bool reported_away; /* the server is away, and that has been said */
} outer_push;

/* The core of an island, with one struct for each topology. */
struct islands {
    const config *config;
    compiled *compiled;
    executor *executor;
    comm *world;
    watchdog *watchdog;
    bool holds; /* a server: no weights to train, no compiled model and no executor */
    outer_units units;
    outer_memory memory;
    outer_move *move;
    compress_method method;
    rule rule;
    uint64_t fingerprint;

    keys keys;
    credentials login; /* until etcd is open */
    transport *transport;
    membership *membership; /* rank 0's */
    roster roster;          /* as last broadcast, the same on all ranks */
    int slot;
    int hint;           /* the slot that a checkpoint knows; -1 */
    double now;         /* rank 0's clock, likewise */
    double asked_since; /* some rank has been asked to stop, as outer_look has seen; 0: none has */

    outer_stage stage;
    int64_t step;          /* of the run, for the watchdog */
    double told;           /* when it was */
    double began;          /* when training did */
    int64_t releases;      /* changes with noise that have been offered, ever */
    int64_t merge;         /* the reference is that after this one */
    int64_t merged_at[64]; /* by fragment: this island's step at its last merge */
    int fragment;
    bool parting, joined, resumed;
    outer_offered offered;
    outer_fetches fetches;
    outer_served serves;
    outer_all all;
    outer_gossip gossip;
    outer_push push;
    islands_counts counts;
};

/* outer_setup.c */
void outer_assign_buffers(islands *o); /* once the slot is known */
/* A server's: memory and transport, without weights; the reference is all zeros. */
status outer_open_holder(islands **out, const config *c, comm *world, watchdog *w);
/* Sections "outer_reference" and so on, where they are, of a checkpoint. */
status outer_read_sections(islands *o, checkpoint *from);

/* outer_reach.c */
/* An island of topology server. */
bool outer_pushes(const islands *o);
/* The rank that talks to etcd, and to the reader. */
bool outer_first_rank(const islands *o);
/* Reads the roster on all ranks; a millisecond or so. */
status outer_look(islands *o);
/* Is this island's state that after the last merge? */
bool outer_is_at_head(const islands *o);
void outer_nap(const islands *o);
/* Has some rank been asked to stop, so long ago that nothing is waited for any more? The same on all ranks. */
bool outer_must_end(const islands *o);
/* The set of slots for which the condition holds on every rank. */
uint64_t outer_everywhere(const islands *o, uint64_t here);
/* This island's state is that after o->merge, offered after `step`; from now on it is given to others. */
void outer_announce(islands *o, int64_t step, int64_t updates);
/* What is encoded may be fetched; merge -1: no more. */
void outer_serve_change(islands *o, int64_t merge, int64_t offer, int fragment);
/* From every rank of an island that keeps some of our units of the fragment, a stream each. False: not all can be
 * asked. */
bool outer_fetch(islands *o, int slot, int fragment, wire_kind kind, int64_t merge, int64_t offered);
void outer_drop_fetch(islands *o, int slot);
/* Of what was asked for last from a slot, or the server. 1: it is here on all ranks; 0: not yet; -1: it is not to be
 * had. */
int outer_fetched(islands *o, int slot);
/* Exchanges of gossip are numbered by the step and the fragment, which islands at the same step know without asking. */
int64_t outer_gossip_number(int64_t step, int fragment);

/* outer_norms.c: this rank's part of changes, of which each rank judges its own. */
/* out[elements of the unit] = what a slot, this island's own or another, has sent of it. */
void outer_decode_part(const islands *o, float *out, int slot, const outer_unit *m);
double outer_squares(const float *x, int64_t n); /* their sum, in float64 */
/* What is above this is refused of a slot: ten times what is usual (norms.h), or, before that is known, a
 * hundred times the reference or this island's own change. */
double outer_norm_limit(const islands *o, int fragment, int slot);
/* outer.robust clip, of gossip and of a server: what a slot's change is to be scaled by, so that its norm is at most
 * what is usual. */
float outer_norm_scale(const islands *o, int fragment, int slot);
/* The slot's change, this island's own or one that is fetched, is merged. */
void outer_note_norm(islands *o, int fragment, int slot);
/* How many products of a merge of so many changes outer.robust asks for: 0 where it does not compare whole changes. */
int outer_product_count(const config *c, int parts);
/* outer.robust clip, of topology all, and trimmed: what the parts of the merge in the roster are to be scaled by, and
 * with trimmed which of them are left out. Every island comes to the same bits: products are summed by unit, and the
 * units in their sequence. Collective. */
void outer_judge_parts(islands *o, robust_judgement *judged);

/* outer_apply.c */
/* How a merge moves a unit: as the configuration says; a router's bias, which each island moves by the signs of its
 * own counts, becomes the mean of theirs. */
rule outer_rule_of(const islands *o, const outer_unit *m);
/* Encodes the fragment's change; of gossip, its weights. False on all ranks: it is not finite somewhere. */
bool outer_encode(islands *o, int fragment);
/* Goes on fetching what these slots offer for the merge; of gossip, for that or a later one. Bits of the slots whose
 * change this rank holds, its own among them. */
uint64_t outer_fetch_changes(islands *o, int64_t merge, uint64_t from);
/* Has what this rank fetches of the slot arrived (o->fetches.got)? Is it finite? */
void outer_look_after_fetch(islands *o, int slot);
/* Fails on all ranks, with a tensor's name, unless what they keep of a state by unit is finite; NULL is. */
status outer_check_finite(const islands *o, const float *values, const char *what);
/* Slots whose change some rank has refused. */
uint64_t outer_refused(const islands *o);
/* The reference after the merge in the roster, and, if this island's change is not in it, the weights. */
void outer_merge_changes(islands *o, bool took_part);
/* Gossip: the reference after the exchange with the partners; `mean`: it becomes the mean of their weights. */
void outer_merge_weights(islands *o, bool mean);
/* The weights of a fragment take the reference. */
void outer_settle(islands *o, int fragment);
/* rest = weights - reference, of all units; and the weights = reference + rest, or the reference alone. */
void outer_keep_change(islands *o);
void outer_take_reference(islands *o, bool with_rest);

/* The weights of a fragment become the reference, and the reverse. */
void outer_give_reference(islands *o, int fragment);
void outer_take_weights(islands *o, int fragment);

/* outer_undo.c, which does nothing without outer.undo. */
/* Before the merge in the roster is made: the state that it may be undone to. */
void outer_undo_keep(islands *o);
/* The weights have taken the merge. */
void outer_undo_taken(islands *o);
/* Is the state before this island's last merge here? The same on all ranks. */
bool outer_undo_holds(const islands *o);
/* Do more than half of the slots want the last merge undone, rather than a merge of their changes? */
bool outer_undo_wins(const islands *o, uint64_t takes);
/* What this island has learnt since the reference, and what its sent changes lacked, is of no use any more. */
void outer_undo_forget(islands *o);
/* The head in the roster undoes this island's last merge: reference, momentum and weights are those before it. */
void outer_undo_take(islands *o);

/* outer_merge.c */
/* Encodes the fragment's change and offers it, for the merge after this island's; no stage where it is not finite. */
void outer_offer(islands *o, const islands_position *p, int fragment);
/* Withdraws the offer; training continues. */
void outer_withdraw(islands *o, const char *why);
/* Has etcd heard of it? Then it is over, and missed. */
void outer_end_withdrawal(islands *o);

/* The calls of outer.h by topology (outer_topology.c). outer_merge.c, where it is all; outer_gossip.c. `fragment`: the
 * one that is due, or -1. */
status outer_merge_step(islands *o, islands_position *p, int fragment);
status outer_merge_save(islands *o, islands_position *p);
status outer_merge_leave(islands *o, islands_position *p);
status outer_gossip_step(islands *o, islands_position *p, int fragment);
status outer_gossip_save(islands *o, islands_position *p);
status outer_gossip_leave(islands *o, islands_position *p);

/* outer_push.c: the same where it is server. */
status outer_push_join(islands *o, islands_position *p);
status outer_push_step(islands *o, islands_position *p, int fragment);
status outer_push_save(islands *o, islands_position *p);
status outer_push_leave(islands *o, islands_position *p);

/* islands_join.c: an island's state becomes that of the last merge; of gossip, that of one that is further, if it is
 * behind. */
status outer_join_all(islands *o, islands_position *p);
status outer_join_gossip(islands *o, islands_position *p);
/* rank 0 claims a slot, or a server's place, with the endpoints of all ranks. */
status outer_claim(islands *o);
/* A newcomer begins with empty moments, at the model's step. */
void outer_begin_anew(islands *o, islands_position *p, int64_t step, int64_t updates);
/* Topology all: is the merge that etcd holds one that neither this island nor another one at work has? It is not
 * believed, and after outer.timeout the island that has come furthest writes its own. The same on all ranks. */
bool outer_doubts_head(islands *o, const islands_position *p);
/* Says in `head` of which history it is: of that of the last head, or one that begins after this island's merge. */
void outer_name_history(islands *o, json_t *head, bool goes_on);
/* Model and outer state of the last merge, from an island that has them. `keep`: this island's change stays on top. */
status outer_catch_up(islands *o, islands_position *p, bool keep);
