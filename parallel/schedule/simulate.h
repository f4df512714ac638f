/* Simulates a schedule: each action's begin and end, the bubble, and the micro-batches in flight.
 *
 * Every stage performs its list in order, one action at a time, an action beginning as soon as the stage is free and
 * its input has arrived; messages take a fixed time and do not occupy the stage. The caller owns the result and frees
 * it with simulate_free. Times are in whatever unit the caller gives them.
 */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "parallel/schedule/schedule.h"

typedef struct simulate_cost {
    double forward; /* F */
    double input;   /* I: gradient of the input */
    double weight;  /* W: gradient of the weights; a whole backward takes I + W */
} simulate_cost;

typedef struct simulate_span {
    double start, end;
} simulate_span;

typedef struct simulate_stage {
    double busy;   /* sum of the actions' times */
    double idle;   /* the whole schedule's length - busy: the bubble in time */
    double bubble; /* idle / length */
    int in_flight; /* most forwards begun with backward (input's part) not ended, in chunks x micro-batches */
    int deferred;  /* weight gradients to come, in chunks x micro-batches, when `peak` is reached */
    double peak;   /* most of (in flight + weight_share * deferred) / chunks: in M_B, a stage's micro-batch */
} simulate_stage;

typedef struct simulation {
    const schedule *schedule; /* borrowed */
    simulate_span **spans;    /* [stages][counts[stage]] */
    simulate_stage *stages;   /* [stages] */
    double length;            /* time from 0 to the end of the last action */
    double span;              /* the longest over stages from a stage's first action to its last */
    double shortest;          /* the shortest action of layers that takes time; 0 if none does */
    double bubble;            /* idle time of all stages / (stages * length) */
} simulation;

/* `costs`: of all chunks (schedule_all_chunks), by global number. `hop`: from the end of an action to its result at
 * another stage. `weight_share`: M_W / M_B, the share of a chunk's activations that stays between I and W. A schedule
 * that cannot end (schedule_check) fails. */
status simulate_run(simulation *out, const schedule *s, const simulate_cost *costs, double hop, double weight_share);
/* The same cost for every chunk. */
status simulate_uniform(simulation *out, const schedule *s, simulate_cost cost, double hop, double weight_share);
void simulate_free(simulation *sim);

/* Draws a simulated schedule: a row per stage, time to the right, with each stage's bubble and its memory. */

typedef struct timeline_style {
    int width; /* columns of a line; no line is longer */
    bool colour;
} timeline_style;

/* The terminal's width and colours (none if NO_COLOR is set); 120 columns and none for other outputs. */
timeline_style timeline_style_of(FILE *out);

/* Draws only the beginning and the end, where the bubble is, if a line is too narrow for the whole schedule. */
void timeline_print(FILE *out, const simulation *sim, timeline_style style);

/* Writes the drawing as an SVG document; `sim`: a simulation. */
void timeline_svg(FILE *out, const void *sim);
