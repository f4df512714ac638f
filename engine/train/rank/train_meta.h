/* What a checkpoint holds besides tensors: the run's position, and what it was trained on.
 *
 * Written by us, and yet not believed: every value that is read is checked before anything uses it as a position, a
 * count or a scale.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "engine/data/samples.h"
#include "engine/guard/spike.h"
#include "engine/compile/model/tokens.h"

/* Samples that a run went back over a spike to leave out: none of [first, first + count) is trained on after step
 * `after`. */
typedef struct train_omission {
    int64_t after, first, count;
    int64_t times; /* so often has the run gone back to that step */
} train_omission;

enum { TRAIN_OMISSIONS = 256 };

/* What the numbers of the steps so far have been, and have led to. */
typedef struct train_past {
    int64_t began;    /* the step that the run's folder began with: 0, or that of another run's checkpoint */
    int64_t verified; /* the last step after which everything was verified; 0: none */
    spike_window window;
    int omissions; /* in ascending order */
    train_omission omission[TRAIN_OMISSIONS];
} train_past;

/* Samples left out so far. */
int64_t train_past_omitted(const train_past *p);

/* Where a run is, as it goes on and as its checkpoints say. */
typedef struct training_position {
    int64_t step;                            /* done */
    int64_t updates;                         /* optimizer updates: steps less those skipped */
    int64_t samples;                         /* consumed; the next step begins here */
    int64_t moments;                         /* updates when the optimizer's states were empty last: 0, or taken over */
    int64_t stage_step, stage_samples;       /* steps done, and samples consumed, where this stage of training began */
    int64_t schedule_step, schedule_updates; /* steps and updates done where the learning rate's schedule began */
    int64_t ramp_step;                       /* done when train.batch_ramp began to count; at most stage_step */
    int64_t good_steps, skipped;             /* since the loss scale last changed; in a row */
    rung_state rung;                         /* of experts' programs */
    double loss_scale;                       /* of fp16, else 1; of a checkpoint that is not fp16's, 0 */
    train_past past;
} training_position;

/* The caller's reference. `validation` may be NULL. */
json_t *train_meta_write(const training_position *m, const config *c, const samples *train, const samples *validation);

/* One line says which value is impossible. A model that was converted has no position: it begins at 0. */
status train_meta_read(training_position *out, const json_t *meta, const config *saved, const char *where);

/* Are the data sets those that the checkpoint was made with? A checkpoint that does not say is believed. Fails, unless
 * data. allow_changed, if those trained on are others; says so if those evaluated on are. `other_data`: those trained
 * on are meant to be others. */
status train_meta_check_data(const json_t *meta, const config *c, const samples *train, const samples *validation,
                             bool other_data, const char *where);

/* The dynamic loss scale of fp16 (1710.03740): halved by a step whose gradients are not finite, doubled after a window
 * of steps in a row whose gradients are. A pure function of what came before; the two numbers go with a checkpoint. */
/* Limits of the scale: it is not halved below the first, nor doubled from the second on. */
#define LOSS_SCALE_SMALLEST 1.0
#define LOSS_SCALE_LARGEST  16777216.0

/* After a step: `good_steps` counts steps since the scale last changed. */
void loss_scale_after(double *scale, int64_t *good_steps, bool skipped, int window);
