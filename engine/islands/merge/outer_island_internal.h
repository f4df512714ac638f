/* An island: the core (outer_internal.h) and its training part. A topology is a struct of functions; offering, awaiting
 * and settling are common to all (outer_island.c, start there). outer_merge.c has topology all, outer_gossip.c groups,
 * outer_push.c islands with a server. outer_apply.c has the arithmetic on units and weights. */
#pragma once

#include "engine/islands/merge/outer_internal.h"
#include "engine/run/executor.h"

/* ---- outer_move.c ---- */

/* Moves a unit's weights between an island's training ranks and the rank that keeps its outer state.
 *
 * The pieces of the training state (state.h) determine each rank's part of a unit, as in a checkpoint: one rank gives
 * each element, and all holders write it, masters and compute weights. The calls are collective; every rank makes them
 * for the same units in the same order. Only outer_move_open allocates. */
typedef struct outer_move outer_move;

/* Collective; the core must outlive it. */
status outer_move_open(outer_move **out, const compiled *k, executor *e, const outer *core);
void outer_move_close(outer_move *m); /* NULL is accepted */
AUTO_CLOSES(outer_move, outer_move_close)

/* values[elements], at the unit's owner = the weights as fp32. */
void outer_move_gather(outer_move *m, float *values, int unit);
/* Copies the owner's values[elements] to all ranks that hold them. */
void outer_move_scatter(outer_move *m, int unit, const float *values);
/* Zeroes the optimizer's states of all parameters. Not collective. */
void outer_move_clear_states(outer_move *m);

/* ---- an island ---- */

typedef enum outer_stage {
    OUTER_IDLE,
    OUTER_OFFERED,     /* a change is offered for the next merge */
    OUTER_WITHDRAWING, /* being withdrawn, not yet confirmed by etcd */
    OUTER_PULLING,     /* topology server: fetching the model into `rest` */
    OUTER_MERGED,      /* the reference is new, the weights are still old */
} outer_stage;

/* This island's offer. */
typedef struct outer_offered {
    int64_t step;     /* step of the offer */
    int64_t id;       /* unique; answers to the offer repeat it */
    int64_t apply_at; /* the weights take the reference after this step */
    double deadline;
    double end;        /* 2 x outer.timeout after the offer: training waits for nothing any more */
    bool reported;     /* the end of that wait has been logged */
    int64_t withdrawn; /* number of the writing, membership.h */
} outer_offered;

/* A merge of topology all; belongs to outer_merge.c. */
typedef struct outer_all {
    uint64_t reported;              /* bits of the slots that this job has reported to hold */
    double whole_since;             /* time since this job has every change for it; 0: it lacks some */
    double blocked_since;           /* time since merges wait for islands that take the model; 0: not waiting */
    uint64_t named_late;            /* bits of the slots that were logged as late */
    int64_t left_out[ROSTER_SLOTS]; /* changes of each slot left out of merges */
} outer_all;

/* Doubts about the head in etcd; belongs to outer_merge.c. */
typedef struct outer_doubt {
    double since;        /* time since no island at work has etcd's merge; 0: one has */
    bool reported;       /* the doubt has been logged */
    int64_t drawn, base; /* history that this island has begun, or wants to, after merge `base`; 0: none */
} outer_doubt;

/* outer.undo: the last merge that can be undone, and this island's vote. Belongs to outer_merge.c. */
typedef struct outer_undo {
    int64_t merge; /* 0: none */
    int64_t taken; /* the weights took it after this step; -1: not yet */
    bool wanted;   /* this island wants it undone */
    char of[256];  /* names of the islands in it */
} outer_undo;

/* An exchange of topology gossip; belongs to outer_gossip.c. */
typedef struct outer_gossip {
    int64_t number;                       /* number of the offered exchange */
    uint64_t partners;                    /* bits of the partners' slots */
    uint64_t owed;                        /* partners that may still fetch it */
    char name[ROSTER_SLOTS][ROSTER_NAME]; /* partners' names, which leave the roster with them */
} outer_gossip;

/* State of topology server; belongs to outer_push.c. */
typedef struct outer_push {
    int64_t pulls;      /* requesting the model after this merge, or a later one */
    bool reported_away; /* the server's absence has been logged */
} outer_push;

typedef struct outer_topology {
    /* Joins the islands, taking their model if they have one. */
    status (*join)(islands *o, islands_position *p);
    /* Offers a fragment, if an island is there to take it. */
    status (*begin)(islands *o, islands_position *p, int fragment);
    /* Checks once on the state of the offer. */
    status (*push)(islands *o, islands_position *p);
    /* Copies the result of the merge to the weights. */
    void (*finish_merge)(islands *o, const islands_position *p);
    /* Ends the job once no merge is under way. */
    status (*leave)(islands *o, islands_position *p);
    /* Runs after train.steps in place of the above; NULL: ends as usual. */
    status (*end)(islands *o, islands_position *p);
} outer_topology;

extern const outer_topology outer_topology_all, outer_topology_gossip, outer_topology_server;

struct islands {
    outer core;
    compiled *compiled;
    executor *executor;
    outer_move *move;
    const outer_topology *topology;
    int hint;              /* slot from a checkpoint; or -1 */
    double began;          /* time of training's start */
    double stalled_since;  /* time since training waits for a merge; 0: it does not */
    int64_t releases;      /* total of noisy changes offered, including former processes */
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

/* Encodes the fragment's change, or, for gossip, its weights, and offers it for a merge; the stage stays idle if it is
 * not finite. */
void outer_offer(islands *o, const islands_position *p, int fragment, int64_t merge);
/* True if the offer has been awaited for as long as it may be, plus `grace` seconds. */
bool outer_is_overdue(const islands *o, double grace);
/* Withdraws the offer; training continues. */
void outer_withdraw(islands *o, const char *why);
/* Ends a withdrawal once etcd has confirmed it; the merge counts as missed. */
void outer_end_withdrawal(islands *o);
/* True if the state before this island's last merge is kept. Never without outer.undo. The same on all ranks. */
bool outer_undo_holds(const islands *o);
/* Wait until the offer is merged or withdrawn, and, with outer_finish, until the weights have the result. Without etcd
 * neither is known, and training continues. */
status outer_await(islands *o, islands_position *p);
status outer_finish(islands *o, islands_position *p);
/* Hands over the change since the last `what` before this island leaves. */
status outer_hand_over(islands *o, islands_position *p, const char *what);

/* ---- outer_apply.c ---- */

/* Encodes the fragment's change; for gossip, its weights. False on all ranks: not finite somewhere. */
bool outer_encode(islands *o, int fragment);
/* True if steps have been done since the weights should have taken the merge: their change is kept. Not with
 * outer.noise, since the difference of two changes would show less of it. */
bool outer_is_late(const islands *o);
/* Updates the reference by the roster's merge. Moves the weights by others' changes, unless they become the reference
 * soon: if this island's change is not in it, or is late. */
void outer_merge_changes(islands *o, bool took_part);
/* Gossip: updates the reference by the exchange with the partners; `mean`: sets it to the mean of their weights. */
void outer_merge_weights(islands *o, bool mean);
/* Moves a fragment's weights to the reference, partly with outer.mix. */
void outer_apply_merge(islands *o, int fragment);
/* Sets all units' weights to reference + rest, or to the reference alone. */
void outer_take_reference(islands *o, bool with_rest);
/* Adds this island's offered change to the reference. */
void outer_take_offered(islands *o);
/* Set a fragment's weights to the reference, and the reference to its weights. */
void outer_give_reference(islands *o, int fragment);
void outer_take_weights(islands *o, int fragment);

/* ---- outer_merge.c: takes over other islands' state, if this one lags -------------------------------------------- */

/* Starts a newcomer with empty moments at the model's step. */
void outer_begin_anew(islands *o, islands_position *p, int64_t step, int64_t updates);
/* Fetches model and outer state of the last merge from an island that has them. `keep`: this island's change stays on
 * top. */
status outer_catch_up(islands *o, islands_position *p, bool keep);
