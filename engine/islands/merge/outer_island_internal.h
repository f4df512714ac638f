/* An island: the core (outer_internal.h) and what belongs to training. A topology is a struct of functions; offering,
 * awaiting and settling are the same for all (outer_island.c, start there): outer_merge.c is of topology all,
 * outer_gossip.c of groups, outer_push.c of islands with a server. outer_apply.c has the arithmetic, on units and
 * weights. */
#pragma once

#include "engine/islands/merge/outer_internal.h"
#include "engine/run/executor.h"

/* ---- outer_move.c ---- */

/* A unit's weights between the ranks of an island that train with them and the one that keeps its outer state.
 *
 * Which ranks hold what of a unit follows from the pieces of the training state (state.h), as in a checkpoint: each
 * element is given by one rank, and written by all that hold it, masters and compute weights. The calls are collective,
 * and every rank makes them for the same units in the same order. Nothing is allocated after outer_move_open. */
typedef struct outer_move outer_move;

/* Collective; the core outlives it. */
status outer_move_open(outer_move **out, const compiled *k, executor *e, const outer *core);
void outer_move_close(outer_move *m); /* NULL is accepted */
AUTO_CLOSES(outer_move, outer_move_close)

/* At the unit's owner: values[elements] as fp32. */
void outer_move_gather(outer_move *m, float *values, int unit);
/* From the owner's values[elements] to wherever they are. */
void outer_move_scatter(outer_move *m, int unit, const float *values);
/* The optimizer's states of all parameters become zero. Not collective. */
void outer_move_clear_states(outer_move *m);

/* ---- an island ---- */

typedef enum outer_stage {
    OUTER_IDLE,
    OUTER_OFFERED,     /* a change is offered for the next merge */
    OUTER_WITHDRAWING, /* being withdrawn, not yet confirmed by etcd */
    OUTER_PULLING,     /* of topology server: the model is on its way, into `rest` */
    OUTER_MERGED,      /* the reference is new, the weights are not yet */
} outer_stage;

/* This island's offer. */
typedef struct outer_offered {
    int64_t step;      /* the step after which it was offered */
    int64_t id;        /* not another's; the answers to it have it */
    int64_t settle_at; /* the step after which the weights take the reference */
    double deadline;
    int64_t withdrawn; /* number of the writing, membership.h */
} outer_offered;

/* A merge of topology all: outer_merge.c's. */
typedef struct outer_all {
    uint64_t reported;              /* bits of the slots whose change this job has said to hold */
    double whole_since;             /* this job has every change for it; 0: it lacks some */
    double blocked_since;           /* merges wait for islands that take the model; 0: they do not */
    uint64_t named_late;            /* bits of the slots that it has been said to wait for */
    int64_t left_out[ROSTER_SLOTS]; /* changes of each slot that merges have left out */
} outer_all;

/* Is the head that etcd holds to be believed? outer_merge.c's. */
typedef struct outer_doubt {
    double since;        /* no island at work has the merge that etcd holds; 0: one has */
    bool reported;       /* and that has been said */
    int64_t drawn, base; /* the history that this island has begun, or wants to, after this merge; 0: none */
} outer_doubt;

/* outer.undo: the merge that the reference before is of, and what this island thinks of it. outer_merge.c's. */
typedef struct outer_undo {
    int64_t merge; /* 0: of none */
    int64_t taken; /* the step after which the weights took it; -1: they have not */
    bool wanted;   /* this island wants it undone */
    char of[256];  /* the islands that took part in it */
} outer_undo;

/* An exchange of topology gossip: outer_gossip.c's. */
typedef struct outer_gossip {
    int64_t number;                       /* of the exchange that is offered */
    uint64_t partners;                    /* bits of the slots that it is with */
    uint64_t owed;                        /* those that may still fetch it */
    char name[ROSTER_SLOTS][ROSTER_NAME]; /* the partners' names, which go from the roster with them */
} outer_gossip;

/* Topology server: outer_push.c's. */
typedef struct outer_push {
    int64_t pulls;      /* the model after this merge, or a later one, is asked for */
    bool reported_away; /* the server is away, and that has been said */
} outer_push;

typedef struct outer_topology {
    /* Becomes one of the islands: their model, if they have one. */
    status (*join)(islands *o, islands_position *p);
    /* Offers a fragment, if anybody is there to take it. */
    status (*begin)(islands *o, islands_position *p, int fragment);
    /* Looks once at what has become of the offer. */
    status (*push)(islands *o, islands_position *p);
    /* The weights take what was merged. */
    void (*settle)(islands *o, const islands_position *p);
    /* Nothing is under way any more, and the job is to end. */
    status (*leave)(islands *o, islands_position *p);
    /* After train.steps, in place of all that; NULL: they end as others do. */
    status (*end)(islands *o, islands_position *p);
} outer_topology;

extern const outer_topology outer_topology_all, outer_topology_gossip, outer_topology_server;

struct islands {
    outer core;
    compiled *compiled;
    executor *executor;
    outer_move *move;
    const outer_topology *topology;
    int hint;              /* the slot that a checkpoint knows; -1 */
    double began;          /* when training did */
    double stalled_since;  /* training stands still for a merge; 0: it does not */
    int64_t releases;      /* changes with noise that have been offered, ever */
    int64_t merged_at[64]; /* by fragment: this island's step at its last merge */
    bool parting, joined, resumed;
    outer_stage stage;
    outer_offered offered;
    outer_all all;
    outer_doubt doubt;
    outer_undo undo;
    outer_gossip gossip;
    outer_push push;
};

/* ---- outer_island.c ---- */

/* Encodes the fragment's change, or of gossip its weights, and offers it for a merge; no stage where it is not
 * finite. */
void outer_offer(islands *o, const islands_position *p, int fragment, int64_t merge);
/* Withdraws the offer; training continues. */
void outer_withdraw(islands *o, const char *why);
/* Has etcd heard of it? Then it is over, and missed. */
void outer_end_withdrawal(islands *o);
/* Is the state before this island's last merge here? Never without outer.undo. The same on all ranks. */
bool outer_undo_holds(const islands *o);
/* Until what is offered is merged, or is not offered any more; and then until the weights have it. Without etcd nobody
 * knows, and training continues. */
status outer_await(islands *o, islands_position *p);
status outer_finish(islands *o, islands_position *p);
/* Hands over the change since the last `what` before this island leaves. */
status outer_hand_over(islands *o, islands_position *p, const char *what);

/* ---- outer_apply.c ---- */

/* Encodes the fragment's change; of gossip, its weights. False on all ranks: it is not finite somewhere. */
bool outer_encode(islands *o, int fragment);
/* The reference after the merge in the roster, and, if this island's change is not in it, the weights. */
void outer_merge_changes(islands *o, bool took_part);
/* Gossip: the reference after the exchange with the partners; `mean`: it becomes the mean of their weights. */
void outer_merge_weights(islands *o, bool mean);
/* The weights of a fragment take the reference. */
void outer_settle(islands *o, int fragment);
/* The weights of all units become reference + rest, or the reference alone. */
void outer_take_reference(islands *o, bool with_rest);
/* The weights of a fragment become the reference, and the reverse. */
void outer_give_reference(islands *o, int fragment);
void outer_take_weights(islands *o, int fragment);

/* ---- outer_merge.c: an island's state becomes that of others, if it lags ---- */

/* A newcomer begins with empty moments, at the model's step. */
void outer_begin_anew(islands *o, islands_position *p, int64_t step, int64_t updates);
/* Model and outer state of the last merge, from an island that has them. `keep`: this island's change stays on top. */
status outer_catch_up(islands *o, islands_position *p, bool keep);
