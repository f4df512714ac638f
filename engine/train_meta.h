/* What a checkpoint holds besides tensors: the run's position, and what it was trained on.
 *
 * Written by us, and yet not believed: every value that is read is checked before anything uses it as a position, a count or
 * a scale.
 */
#ifndef PHALANX_ENGINE_TRAIN_META_H
#define PHALANX_ENGINE_TRAIN_META_H

#include <jansson.h>
#include <stdint.h>

#include "engine/config/config.h"
#include "engine/samples.h"

typedef struct train_meta {
    int64_t step, updates, samples; /* done; of them not skipped; consumed */
    int64_t moments;             /* updates before those that the optimizer's states have seen; it may be missing: 0 */
    int64_t good_steps, skipped; /* since the loss scale last changed; in a row */
    double loss_scale;           /* 0: not fp16 */
} train_meta;

/* The caller's reference. `validation` may be NULL. */
json_t *train_meta_write(const train_meta *m, const config *c, const samples *train, const samples *validation);

/* One line says which value is impossible. A model that was converted has no position: it begins at 0. */
status train_meta_read(train_meta *out, const json_t *meta, int global_batch, const char *where);

/* Are the data sets those that the checkpoint was made with? A checkpoint that does not say is believed. Fails, unless data.
 * allow_changed, if those trained on are others; says so if those evaluated on are. */
status train_meta_check_data(const json_t *meta, const config *c, const samples *train, const samples *validation,
                             const char *where);

#endif
