/* Estimates a layout's time and memory quickly from a few small programs. Models of two and four layers on one stage
 * are compiled and played for each number of ranks that share a layer or divide its experts, micro-batch, recompute and
 * with or without sequence parallelism; their difference is a layer, the remainder the ends. The schedule is simulated
 * with those costs. The estimates say which layouts are worth an exact program (search.h). */
#pragma once

#include "engine/compile/plan/load.h"
#include "engine/compile/time/profile.h"
#include "engine/config/config.h"

/* The choices of a search. */
typedef struct search_layout {
    config_layout of;
    int micro_batch;
    bool budgeted; /* fit to the memory: `recompute` is none */
    recompute recompute;
    double seconds, bytes; /* estimates: of a step; of the stage that needs most */
    double idle;           /* part of these seconds in which the stages do not work */
} search_layout;

static inline bool search_divides_vocabulary(const search_layout *l)
{
    return config_divides_vocabulary(&l->of, l->of.size[GRID_PIPELINE]);
}

/* True if they are the same choices, whatever their estimates. */
bool search_same(const search_layout *a, const search_layout *b);

/* The grid of a layout with all sizes given, as its first rank sees it. */
grid search_grid(const search_layout *l);
/* Micro-batches that a rank computes in a step of the configuration. */
int search_microbatches(const config *c, const search_layout *l);

typedef struct search_estimate search_estimate;

/* `of`, `prices`, and where they are not NULL `backend` and `law` are borrowed. */
search_estimate *search_estimate_open(const config *of, const profile *prices, const op_backend *backend,
                                      const load_law *law);
/* Plays the small programs that these layouts need, in threads; without it each is played when it is asked for. */
void search_estimate_prepare(search_estimate *e, const search_layout *layouts, int count);
/* SCHEDULE_AUTO is taken for 1F1B with half of the idle time filled: in the same memory no schedule is known before it
 * is found. Sets seconds, bytes and idle of *l for l->recompute; false where no program of these sizes can be made, or
 * its time is certainly above `enough`. */
bool search_estimate_layout(search_estimate *e, search_layout *l, double enough);
/* Lower bound of the seconds of any schedule of the layout: its mean stage's work. INFINITY: no program of these sizes
 * can be made. */
double search_estimate_least(search_estimate *e, const search_layout *l);
void search_estimate_close(search_estimate *e);

/* The configuration with this layout, where ZeRO 2 and 3 shard what they can, each micro-batch; shares pointers with
 * `of`. */
config search_configuration(const config *of, const search_layout *l, int64_t budget);
