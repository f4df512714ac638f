/* What a layout needs and does, found by compiling the ranks that differ: nothing runs, no device and no data is asked
 * for.
 *
 * Ranks are grouped. One rank of each pipeline stage is compiled, and more where tensor ranks hold different parameters
 * or different numbers of tokens. Along the data axis the owned rows can differ by a row, and small parameters belong
 * to one rank each: the rank that owns the most is listed for all of them, and `spread` says how much less the least
 * one holds. A plan owns its lists and frees them with plan_free.
 */
#pragma once

#include <stdio.h>

#include "engine/compile/compile.h"
#include "engine/compile/time/prices.h"
#include "engine/compile/time/timing.h"
#include "engine/files/facts.h"

/* Facts of one compiled rank. Bytes, unless it says otherwise. */
typedef struct plan_rank {
    int rank, at[GRID_AXES];
    int count;      /* ranks that are like this one, itself included */
    int64_t spread; /* of owned state: how much less the smallest of them holds */
    int layers;
    int64_t arena, lower_bound;         /* the whole arena; the least it could be with these tensors */
    int64_t pinned, offloaded;          /* host memory, on a GPU; of it, optimizer state */
    int communicators;                  /* on a GPU */
    int64_t graph_nodes;                /* of CUDA graphs; 0: there are none */
    int64_t transient, transient_bound; /* of the training step */
    int64_t memory[CLASS_COUNT];        /* persistent classes; kept and temporary where the training step peaks */
    int64_t tensors;
    char *decision; /* what a budget recomputes, in words; NULL without */
    compile_order order;
    int64_t order_bytes; /* what the order adds to what is alive where the training step peaks; plan_price_order() */
    int ops, dropped;
    int64_t feedback;                               /* what compressed gradients lack, kept between steps */
    int64_t attention;                              /* working memory of attention's backward pass, the most */
    int64_t loss_tokens, loss_bytes;                /* logits that exist at a time; 0: this stage has no loss */
    double loss_seconds, loss_seconds_whole;        /* of a micro-batch; the same in one piece */
    double flops;                                   /* of a training step */
    plan_update update;                             /* of those, the optimizer's */
    int64_t sent[AXIS_COUNT], messages[AXIS_COUNT]; /* in a training step */
    int64_t windowed;                               /* of sent[AXIS_CONTEXT], by layers that have a window */
    int arena_rung;                                 /* whose program needs the whole arena */
    int in_flight;                                  /* micro-batches x chunks whose activations it holds at its peak */
} plan_rank;

/* One choice of when to gather weights and reduce gradients. */
typedef struct plan_choice {
    bool gather_each, reduce_each, chosen;
    int64_t arena, sent; /* of the rank that needs most; bytes sent along the data axis in a step */
} plan_choice;

enum { PLAN_CHOICES = 4 };

typedef struct plan {
    compile_options options;                     /* of rank 0 */
    profile profile;                             /* borrows its points */
    int64_t parameters, active, tokens_per_step; /* active: parameters that compute one token */
    double flops_per_token;                      /* causal attention counted as half */
    double flops_per_token_full;                 /* attention's square counted whole, as some do */
    plan_rank *ranks;
    int count;
    schedule *schedule;
    schedule found; /* with SCHEDULE_AUTO: options.found */
    schedule few;   /* where the vocabulary is divided: options.few */
    timing timing;
    simulation spans; /* of the actions, as they are played */
    double peak;      /* FLOP/s that products of its precision can reach: those of a step are the MFU of it */
    double step_seconds, mfu;
    /* With profile.load: the first rung's program where all ranks have the mean's rows, and the programs of the rungs
     * above it; rung_seconds: of all rungs, those without a program 0. */
    timing even, higher[LADDER_RUNGS - 1];
    profile even_prices;
    double even_seconds, rung_seconds[LADDER_RUNGS];
    plan_choice choices[PLAN_CHOICES];
    int choice_count;
} plan;

/* `every`: list each rank of the grid instead of groups. `only` >= 0: list this rank alone, exactly. */
status plan_make(plan *out, const compile_options *options, const profile *prices, bool every, int only);
/* The same without what other choices of ZeRO would cost. */
status plan_make_step(plan *out, const compile_options *options, const profile *prices);
void plan_free(plan *p);
/* What the order costs, of one rank of each stage. */
status plan_price_order(plan *p);
/* Bytes of a GPU that a rank's process has beside its arena. */
int64_t plan_rank_beside(const plan_rank *k, const reserve *r);
/* The listed rank that needs most of a GPU, and what is taken beside its arena. */
const plan_rank *plan_neediest(const plan *p);
/* Does it fit into the profile's device, which may have no memory of its own? */
bool plan_fits(const plan *p);
/* One rank, compiled: its facts; `decision` is the caller's to free. */
void plan_measure(plan_rank *out, const compiled *c);

/* A plan in words: for a person, for programs, and the program of one rank op by op. */

/* STATUS_USAGE where the plan does not fit the profile's device, with how much is missing, and where. */
status plan_text_verdict(const plan *p);
/* For a person. */
void plan_text_report(FILE *out, const plan *p);
/* The same facts for programs, as members of an object. */
void plan_text_facts(fact_writer *out, const plan *p);
/* The coordinates of `shown` as members of an object: "tensor": 2, "data": 4 */
void plan_text_coordinates(fact_writer *out, const int value[GRID_AXES], unsigned shown);
/* The training program of a rank, one op a line. */
void plan_text_listing(FILE *out, const compiled *c);
