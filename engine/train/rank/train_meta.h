/* The metadata of a checkpoint: the run's position, and the data it was trained on.
 *
 * Readers do not trust it: every value is checked before it is used as a position, a count or a scale.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "engine/data/samples.h"
#include "engine/guard/spike.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/compile/model/tokens.h"

/* Samples that a rewind leaves out after a spike: steps after `after` train on none of [first, first + count). */
typedef struct train_omission {
    int64_t after, first, count;
    int64_t times; /* number of rewinds to that step */
} train_omission;

enum { TRAIN_OMISSIONS = 256 };

/* History of the run's loss and norm, and its consequences. */
typedef struct train_past {
    int64_t began;    /* first step of the run's folder: 0, or that of another run's checkpoint */
    int64_t verified; /* last step with everything verified; 0: none */
    spike_window window;
    int omissions; /* sorted in ascending order */
    train_omission omission[TRAIN_OMISSIONS];
} train_past;

/* Returns the number of samples left out so far. */
int64_t train_past_omitted(const train_past *p);

/* Position of a run, in memory and in its checkpoints. */
typedef struct training_position {
    int64_t step;                      /* completed steps */
    int64_t updates;                   /* optimizer updates: steps minus skipped ones */
    int64_t samples;                   /* consumed samples; the next step begins here */
    int64_t moments;                   /* updates when the optimizer's states were last empty: 0, or taken over */
    int64_t stage_step, stage_samples; /* completed steps and consumed samples at the start of this training stage */
    int64_t schedule_step, schedule_updates; /* steps and updates at the start of the learning rate's schedule */
    int64_t ramp_step;                       /* completed steps at the start of train.batch_ramp; at most stage_step */
    int64_t good_steps, skipped;             /* steps since the loss scale last changed; skipped steps in a row */
    bucket_state bucket;                     /* capacity bucket of the experts' programs */
    tokenizer_begin begin;                   /* the beginning of documents in training */
    double loss_scale;                       /* fp16's loss scale, else 1; 0 in a checkpoint of another precision */
    train_past past;
} training_position;

/* Returns the metadata; the caller owns the reference. `validation` may be NULL. */
json_t *train_meta_write(const training_position *m, const config *c, const samples *train, const samples *validation);

/* Reports an impossible value in one line. A converted model has no position: it begins at 0. */
status train_meta_read(training_position *out, const json_t *meta, const config *saved, const char *where);

/* Compares the data sets with the checkpoint's, unless the checkpoint names none. Fails, unless data.allow_changed, if
 * the training sets differ; warns if the validation sets do. `other_data`: the training sets are meant to differ. */
status train_meta_check_data(const json_t *meta, const config *c, const samples *train, const samples *validation,
                             bool other_data, const char *where);

/* The dynamic loss scale of fp16 (1710.03740): halved by a step with a gradient that is not finite, doubled after a
 * window of steps in a row with finite gradients. A pure function of the past; a checkpoint stores both numbers. */
/* Limits of the scale. */
#define LOSS_SCALE_SMALLEST 1.0
#define LOSS_SCALE_LARGEST  16777216.0

/* Updates the scale after a step; `good_steps` counts steps since it last changed. */
void loss_scale_after(double *scale, int64_t *good_steps, bool skipped, int window);
