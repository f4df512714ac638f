/* How tokens choose experts, as a plan is to assume it, and what follows from that: how many rows the slowest rank has,
 * how often a step has no room on a rung of the ladder (layers/ladder.h) and is played again.
 *
 * A law says which share of the tokens' choices each expert of each layer gets, in a few draws. Balanced: all the same.
 * Log-normal (DeepEP#393 reports that shape): the shares of a layer are exp(sigma z) over their sum, z from a standard
 * normal law, numbered by draw, layer and expert, so that every answer is the same. A run's trace: its own counts, a
 * draw a recorded step.
 *
 * Given the shares, tokens are taken to choose independently, so that the rows of a rank are a sum of (tokens of the
 * block) x (experts of the rank) choices of which each is taken with the same probability: a binomial law, whose tail
 * is no smaller than that of unequal probabilities with the same mean (Hoeffding, 1956). Tokens of one document that
 * choose alike make real rows vary more. Steps of one draw are taken to be independent.
 */
#pragma once

#include "engine/compile/model/compiled.h"

typedef enum load_kind { LOAD_BALANCED, LOAD_LOGNORMAL, LOAD_TRACE, LOAD_KINDS } load_kind;

typedef struct load_law {
    load_kind kind;
    double sigma;               /* of LOAD_LOGNORMAL */
    int draws, layers, experts; /* layers that have experts */
    double *shares;             /* [draws][layers][experts], each layer's summing to 1; NULL: all the same */
    int64_t *steps;             /* [draws] of LOAD_TRACE, ascending; else NULL */
} load_law;

typedef struct load_outcome {
    int rungs;
    double expert, rank;        /* the largest share over the mean one, by expert and by rank: mean over layers */
    double slowest;             /* rows of the slowest rank of a layer and micro-batch, over the mean: expected */
    double lacks[LADDER_RUNGS]; /* share of steps that have no room on a rung, of the last 0 */
    double plays[LADDER_RUNGS]; /* plays of a rung's program, a step: their sum is 1 and the replays */
    double replays;             /* of a step */
    double choices;             /* (layer, micro-batch, rank) a step, each of which must have room */
} load_outcome;

/* "balanced", "lognormal:SIGMA" or a file of loads (a run's loads.jsonl, a line each: {"step": n, "loads": [[count of
 * each expert] of each layer]}). STATUS_USAGE says what is wrong with it. */
status load_open(load_law *out, const char *text, const model_shape *shape);
void load_free(load_law *law);
/* What the options' layout makes of it; nothing to say of a model without experts: all 0, plays[0] 1. */
void load_expect(load_outcome *out, const load_law *law, const compile_options *o);
/* Only `slowest`, from a few draws. */
double load_slowest(const load_law *law, const compile_options *o);
const char *load_word(load_kind kind);
