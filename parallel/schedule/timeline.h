/* Drawings of a simulated schedule: a row per stage, time to the right, with each stage's bubble and what it holds. */
#pragma once

#include <stdbool.h>
#include <stdio.h>

#include "parallel/schedule/simulate.h"

typedef struct timeline_style {
    int width; /* columns of a line; no line is longer */
    bool colour;
} timeline_style;

/* The terminal's width and colours (none if NO_COLOR is set); for anything but a terminal 120 columns and none. */
timeline_style timeline_style_of(FILE *out);

/* In a line too narrow for the whole schedule its beginning and its end are drawn, which is where the bubble is. */
void timeline_print(FILE *out, const simulation *sim, timeline_style style);

/* The drawing as an SVG document; `sim`: a simulation. */
void timeline_svg(FILE *out, const void *sim);
