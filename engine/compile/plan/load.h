/* Expert load: how tokens choose experts in a plan, and the consequences: how many rows the slowest rank has, how often
 * a step overflows a capacity bucket (layers/capacity.h) and is played again.
 *
 * A law gives each expert of each layer its share of the tokens' choices, in a few draws. Balanced: all the same.
 * Log-normal (DeepEP#393 reports that shape): the shares of a layer are exp(sigma z) over their sum, z from a standard
 * normal law, numbered by draw, layer and expert, so that every answer is the same. A run's trace: its own counts, a
 * draw per recorded step.
 *
 * Given the shares, tokens are taken to choose independently, so that the rows of a rank are a sum of (tokens of the
 * block) x (experts of the rank) choices, each taken with the same probability: a binomial law; its tail is no smaller
 * than with unequal probabilities of the same mean (Hoeffding, 1956). Tokens of one document that choose alike make
 * real rows vary more. Steps of one draw are taken to be independent. */
#pragma once

#include "engine/compile/model/compiled.h"

typedef enum load_kind { LOAD_BALANCED, LOAD_LOGNORMAL, LOAD_TRACE, LOAD_KINDS } load_kind;

typedef struct load_law {
    load_kind kind;
    double sigma;               /* LOAD_LOGNORMAL only */
    int draws, layers, experts; /* layers that have experts */
    double *shares;             /* [draws][layers][experts], each layer's summing to 1; NULL: all the same */
    int64_t *steps;             /* [draws] of LOAD_TRACE, ascending; else NULL */
} load_law;

typedef struct load_outcome {
    int buckets;
    double expert, rank;            /* the largest share over the mean one, by expert and by rank: mean over layers */
    double slowest;                 /* rows of the slowest rank of a layer and micro-batch, over the mean: expected */
    double lacks[CAPACITY_BUCKETS]; /* share of steps that overflow a bucket; 0 for the last */
    double plays[CAPACITY_BUCKETS]; /* plays of a bucket's program per step: they sum to 1 plus the replays */
    double replays;                 /* per step */
    double choices;                 /* (layer, micro-batch, rank) triples per step, each of which must have room */
} load_outcome;

/* Opens "balanced", "lognormal:SIGMA" or a file of loads (a run's loads.jsonl, a line each: {"step": n, "loads":
 * [[count of each expert] of each layer]}). A STATUS_USAGE message describes the mistake. */
status load_open(load_law *out, const char *text, const model_shape *shape);
void load_free(load_law *law);
/* Computes the outcome for the options' layout; for a model without experts: all 0, plays[0] 1. */
void load_expect(load_outcome *out, const load_law *law, const compile_options *o);
/* Only `slowest`, from a few draws. */
double load_slowest(const load_law *law, const compile_options *o);
extern const char *const load_words[LOAD_KINDS];
