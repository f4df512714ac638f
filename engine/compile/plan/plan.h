/* Finds a layout's needs and work by compiling the ranks that differ; needs no device and no data. Ranks are grouped.
 * One rank of each pipeline stage is compiled, and more where tensor ranks hold different parameters or different
 * numbers of tokens. Along the data axis the owned rows can differ by a row, and small parameters belong to one rank
 * each: the rank that owns the most is listed for all of them, and `spread` says how much less the least one holds. A
 * plan owns its lists and frees them with plan_free. */
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
    int64_t spread; /* bytes of owned state that the smallest of them holds less */
    int layers;
    int64_t arena, lower_bound;         /* the whole arena; the least it could be with these tensors */
    int64_t pinned, offloaded;          /* host memory, on a GPU; of it, optimizer state */
    int communicators;                  /* GPU only */
    int64_t graph_nodes;                /* nodes of CUDA graphs; 0: there are none */
    int64_t transient, transient_bound; /* training step */
    int64_t memory[CLASS_COUNT];        /* persistent classes; kept and temporary where the training step peaks */
    int64_t tensors;
    char *decision; /* a budget's recomputed ops, in words; NULL without */
    compile_order order;
    int64_t order_bytes; /* bytes that the order adds to those alive at the training step's peak; plan_price_order() */
    int ops, dropped;
    int64_t feedback;                               /* error feedback of compressed gradients, kept between steps */
    int64_t attention;                              /* working memory of attention's backward pass, the most */
    int64_t loss_tokens, loss_bytes;                /* logits that exist at a time; 0: this stage has no loss */
    double loss_seconds, loss_seconds_whole;        /* a micro-batch; the same in one piece */
    double flops;                                   /* FLOPs of a training step */
    plan_update update;                             /* part of it: the optimizer's */
    int64_t sent[AXIS_COUNT], messages[AXIS_COUNT]; /* per training step */
    int64_t windowed;                               /* part of sent[AXIS_CONTEXT]: layers that have a window */
    int arena_bucket;                               /* capacity bucket that needs the whole arena */
    int in_flight;                                  /* micro-batches x chunks of activations held at its peak */
} plan_rank;

/* One choice of when to gather weights and reduce gradients. */
typedef struct plan_choice {
    bool gather_each, reduce_each, chosen;
    int64_t arena, sent; /* the neediest rank's; bytes sent along the data axis in a step */
} plan_choice;

enum { PLAN_CHOICES = 4 };

typedef struct plan {
    compile_options options;                     /* rank 0's */
    profile profile;                             /* borrows its points */
    int64_t parameters, active, tokens_per_step; /* active: parameters that compute one token */
    double flops_per_token;                      /* causal attention counted as half */
    double flops_per_token_full;                 /* attention's square counted whole, as some do */
    plan_rank *ranks;
    int count;
    schedule *schedule;
    schedule found; /* SCHEDULE_AUTO: options.found */
    schedule few;   /* where the vocabulary is divided: options.few */
    timing timing;
    simulation spans; /* the actions, as they are played */
    double peak;      /* FLOP/s that products of its precision can reach: the base of the step's MFU */
    double step_seconds, mfu;
    /* Only with profile.load: the first bucket's program at balanced load, and the programs of the buckets above it;
     * bucket_seconds: all buckets, 0 without a program. */
    timing even, higher[CAPACITY_BUCKETS - 1];
    profile even_prices;
    double even_seconds, bucket_seconds[CAPACITY_BUCKETS];
    plan_choice choices[PLAN_CHOICES];
    int choice_count;
} plan;

/* `every`: list each rank of the grid instead of groups. `only` >= 0: list this rank alone, exactly. */
status plan_make(plan *out, const compile_options *options, const profile *prices, bool every, int only);
/* Makes the same plan, without the costs of other choices of ZeRO. */
status plan_make_step(plan *out, const compile_options *options, const profile *prices, bool every);
void plan_free(plan *p);
/* Computes the cost of the order, for one rank of each stage. */
status plan_price_order(plan *p);
/* Bytes of a GPU that a rank's process has beside its arena. */
int64_t plan_rank_beside(const plan_rank *k, const reserve *r);
/* The neediest listed rank of a GPU, and its bytes beside the arena. */
const plan_rank *plan_neediest(const plan *p);
/* True if it fits the profile's device, which may have no memory of its own. */
bool plan_fits(const plan *p);
/* One rank, compiled: its facts; `decision` is the caller's to free. */
void plan_measure(plan_rank *out, const compiled *c);

/* A plan in words: for a person, for programs, and the program of one rank op by op. */

/* Returns STATUS_USAGE if the plan does not fit the profile's device: how much is missing, and where. */
status plan_text_verdict(const plan *p);
/* Prints a plan for a person. */
void plan_text_report(FILE *out, const plan *p);
/* Says how far off predictions by a GPU's prices are that nothing has measured; nothing for other prices. */
void plan_text_doubt(FILE *out, const profile *h, int indent);
/* The same facts for programs, as members of an object. */
void plan_text_facts(fact_writer *out, const plan *p);
/* The coordinates of `shown` as members of an object: "tensor": 2, "data": 4 */
void plan_text_coordinates(fact_writer *out, const int value[GRID_AXES], unsigned shown);
/* The training program of a rank, one op a line. */
void plan_text_listing(FILE *out, const compiled *c);
