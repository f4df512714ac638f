#include "engine/train/rank/train_meta.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "engine/config/config.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- data sets ---- */

/* Facts of a data set, in the order of a row of numbers. */
static const struct {
    const char *key, *words;
    size_t offset;
} facts[] = {
    {"tokens", "tokens", offsetof(indexed_identity, tokens)},
    {"bin_bytes", "bytes of .bin", offsetof(indexed_identity, bin_bytes)},
    {"idx_bytes", "bytes of .idx", offsetof(indexed_identity, idx_bytes)},
    {"bin_crc32c", "as the sampled checksum of .bin", offsetof(indexed_identity, bin_crc32c)},
    {"idx_crc32c", "as the sampled checksum of .idx", offsetof(indexed_identity, idx_crc32c)},
};

enum { FACTS = sizeof facts / sizeof *facts };

static int64_t identity_field(const indexed_identity *x, int i)
{
    int64_t value;
    memcpy(&value, (const char *)x + facts[i].offset, sizeof value);
    return value;
}

static json_t *list_sources(const config_sources *sources, const samples *s)
{
    json_t *list = json_array();
    for (int i = 0; s && i < sources->count; i++) {
        indexed_identity x;
        samples_identify(&x, s, i);
        json_t *entry = json_pack("{s:s}", "path", sources->item[i].path);
        for (int k = 0; k < FACTS && entry; k++)
            json_object_set_new(entry, facts[k].key, json_integer(identity_field(&x, k)));
        MUST(entry && json_array_append_new(list, entry) == 0, "a path that is not UTF-8, or out of host memory");
    }
    return list;
}

/* Returns the difference between a data set and its saved facts, which the caller frees; NULL: none. */
static char *find_difference(const json_t *saved, const config_source *source, const indexed_identity *now)
{
    for (int k = 0; k < FACTS; k++) {
        const json_t *before = json_object_get(saved, facts[k].key);
        if (!json_is_integer(before))
            return must_format("%s: the checkpoint does not say its %s", source->path, facts[k].key);
        if (json_integer_value(before) != identity_field(now, k))
            return must_format("%s is not the data set that the checkpoint was made with: it had %lld %s, and has %lld",
                               source->path, (long long)json_integer_value(before), facts[k].words,
                               (long long)identity_field(now, k));
    }
    return NULL;
}

/* Returns the first difference between the data sets and their saved facts, which the caller frees; NULL: none. */
static char *compare_sources(const json_t *saved, const config_sources *sources, const samples *s)
{
    if (!saved || !s)
        return NULL;
    for (int i = 0; i < sources->count; i++) {
        indexed_identity now;
        const json_t *entry = json_array_get(saved, (size_t)i);
        const char *path = json_string_value(json_object_get(entry, "path"));
        if (!path || strcmp(path, sources->item[i].path) != 0)
            return must_format("the checkpoint was made with other data sets than %s", sources->item[i].path);
        samples_identify(&now, s, i);
        char *words = find_difference(entry, &sources->item[i], &now);
        if (words)
            return words;
    }
    return NULL;
}

status train_meta_check_data(const json_t *meta, const config *c, const samples *train, const samples *validation,
                             bool other_data, const char *where)
{
    const json_t *saved = json_object_get(meta, "data");
    AUTO_FREE char *held = compare_sources(json_object_get(saved, "validation"), &c->data.validation, validation);
    AUTO_FREE char *words = other_data ? NULL : compare_sources(json_object_get(saved, "train"), &c->data.train, train);
    if (held)
        log_info("resume: data.validation: %s; losses before and after do not compare", held);
    if (words && c->data.allow_changed)
        log_warn("resume: data.train: %s; going on (data.allow_changed)", words);
    else if (words)
        return status_fail(
            STATUS_USAGE,
            "%s: data.train: %s: bring the data back, or go on with what is there (data.allow_changed=true)", where,
            words);
    return STATUS_OK;
}

/* ---- position ---- */

static const int64_t MOST_STEPS = (int64_t)1 << 40;
static const double LEAST_SCALE = 0.5, MOST_SCALE = 4294967296.0; /* train.loss_scale's, halved down to 1 */

static const struct {
    const char *key;
    size_t offset;
    bool may_lack; /* defaults to 0 */
} counts[] = {
    {"step", offsetof(training_position, step), false},
    {"updates", offsetof(training_position, updates), false},
    {"samples", offsetof(training_position, samples), false},
    {"good_steps", offsetof(training_position, good_steps), false},
    {"skipped", offsetof(training_position, skipped), false},
    {"stage_step", offsetof(training_position, stage_step), true},
    {"stage_samples", offsetof(training_position, stage_samples), true},
    {"schedule_step", offsetof(training_position, schedule_step), true},
    {"schedule_updates", offsetof(training_position, schedule_updates), true},
    {"ramp_step", offsetof(training_position, ramp_step), true},
    {"moments", offsetof(training_position, moments), true},
    {"rung", offsetof(training_position, bucket.at), true},
    {"rung_quiet", offsetof(training_position, bucket.quiet), true},
    {"rung_most", offsetof(training_position, bucket.most), true},
};

enum { COUNTS = sizeof counts / sizeof *counts };

int64_t train_past_omitted(const train_past *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->omissions; i++)
        sum += p->omission[i].count;
    return sum;
}

static json_t *list_reals(const double *values, int count)
{
    json_t *list = json_array();
    for (int i = 0; i < count; i++)
        json_array_append_new(list, json_real(values[i]));
    return list;
}

static void write_past(json_t *meta, const train_past *p)
{
    json_t *omitted = json_array();
    for (int i = 0; i < p->omissions; i++) {
        const train_omission *o = &p->omission[i];
        json_array_append_new(omitted, json_pack("[I, I, I, I]", (json_int_t)o->after, (json_int_t)o->first,
                                                 (json_int_t)o->count, (json_int_t)o->times));
    }
    json_object_set_new(meta, "began", json_integer(p->began));
    if (p->verified > 0)
        json_object_set_new(meta, "verified", json_integer(p->verified));
    json_object_set_new(meta, "omitted", omitted);
    json_object_set_new(meta, "losses", list_reals(p->window.loss, p->window.count));
    json_object_set_new(meta, "norms", list_reals(p->window.norm, p->window.count));
}

json_t *train_meta_write(const training_position *m, const config *c, const samples *train, const samples *validation)
{
    AUTO_FREE char *text = config_text(c);
    json_t *meta = json_object();
    for (int i = 0; i < COUNTS; i++) {
        int64_t value;
        memcpy(&value, (const char *)m + counts[i].offset, sizeof value);
        json_object_set_new(meta, counts[i].key, json_integer(value));
    }
    json_object_set_new(meta, "loss_scale", json_real(m->loss_scale));
    if (m->begin)
        json_object_set_new(meta, "document_begin", json_string(tokenizer_begin_words[m->begin]));
    write_past(meta, &m->past);
    json_object_set_new(meta, "config", json_string(text));
    json_object_set_new(meta, "data",
                        json_pack("{s:o, s:o}", "train", list_sources(&c->data.train, train), "validation",
                                  list_sources(&c->data.validation, validation)));
    return meta;
}

static status refuse_value(const char *where, const char *key, const json_t *value, const char *why)
{
    AUTO_FREE char *text =
        json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_ENSURE_ASCII | JSON_REAL_PRECISION(9));
    status s =
        status_fail(STATUS_FAILED, "%s: its manifest says %s: %.40s, which %s", where, key, text ? text : "?", why);
    return s;
}

static status read_counts(training_position *out, const json_t *meta, bool begun, const char *where)
{
    for (int i = 0; i < COUNTS; i++) {
        const json_t *value = json_object_get(meta, counts[i].key);
        int64_t n = json_integer_value(value);
        if (!value && begun && !counts[i].may_lack)
            return status_fail(STATUS_FAILED, "%s: its manifest does not say %s", where, counts[i].key);
        if (value && (!json_is_integer(value) || n < 0))
            return refuse_value(where, counts[i].key, value, "is no count");
        memcpy((char *)out + counts[i].offset, &n, sizeof n);
    }
    return STATUS_OK;
}

/* Reads a list; older checkpoints lack it, which makes it empty. */
static status read_reals(double *out, int *count, const json_t *meta, const char *key, const char *where)
{
    const json_t *list = json_object_get(meta, key);
    *count = (int)json_array_size(list);
    if (list && (!json_is_array(list) || json_array_size(list) > SPIKE_WINDOW))
        return refuse_value(where, key, list, "is no list of at most 64 numbers");
    for (int i = 0; i < *count; i++) {
        const json_t *value = json_array_get(list, (size_t)i);
        out[i] = json_number_value(value);
        if (!json_is_number(value) || !isfinite(out[i]))
            return refuse_value(where, key, value, "is no number");
    }
    return STATUS_OK;
}

/* Returns the samples consumed by the first `step` steps, except those left out; -1: more than any run consumes. */
static int64_t samples_at(const training_position *m, const config *saved, int64_t step)
{
    int64_t ramp = m->ramp_step, all;
    int64_t taken = step < m->stage_step ? -1 : batch_ramp_total(saved, m->stage_step - ramp, step - ramp);
    return taken < 0 || __builtin_add_overflow(taken, m->stage_samples, &all) ? -1 : all;
}

static status check_samples(const training_position *m, const config *saved, const char *where)
{
    if (m->stage_step > m->step || m->ramp_step > m->stage_step || m->schedule_step > m->step ||
        m->schedule_updates > m->updates)
        return status_fail(STATUS_FAILED, "%s: its manifest says a stage that begins after step %lld: impossible",
                           where, (long long)m->step);
    int64_t all = samples_at(m, saved, m->step), omitted = train_past_omitted(&m->past);
    if (all < 0 || __builtin_add_overflow(all, omitted, &all) || all != m->samples)
        return status_fail(
            STATUS_FAILED, "%s: its manifest says samples: %lld, which is not step %lld x train.global_batch %d%s%s",
            where, (long long)m->samples, (long long)m->step, saved->train.global_batch,
            saved->train.batch_ramp.count ? " as train.batch_ramp has it" : "", omitted ? " and those left out" : "");
    return STATUS_OK;
}

/* Reads omissions: each must begin where training would have continued after its step. */
static status read_omissions(train_past *out, const json_t *meta, const training_position *m, const config *saved,
                             const char *where)
{
    const json_t *list = json_object_get(meta, "omitted");
    int64_t before = 0, after = 0;
    if (list && (!json_is_array(list) || json_array_size(list) > TRAIN_OMISSIONS))
        return refuse_value(where, "omitted", list, "is no list of at most 256 entries");
    for (size_t i = 0; i < json_array_size(list); i++) {
        int64_t n[4], first;
        const json_t *entry = json_array_get(list, i);
        for (size_t k = 0; k < 4; k++)
            n[k] = json_is_integer(json_array_get(entry, k)) ? json_integer_value(json_array_get(entry, k)) : -1;
        bool good = json_array_size(entry) == 4 && n[0] >= after && n[0] <= m->step && n[2] > 0 && n[3] > 0 &&
                    n[3] <= TRAIN_OMISSIONS && (first = samples_at(m, saved, n[0])) >= 0 &&
                    !__builtin_add_overflow(first, before, &first) && n[1] == first &&
                    !__builtin_add_overflow(before, n[2], &before);
        if (!good)
            return refuse_value(where, "omitted", entry, "is no range of samples that was left out");
        after = n[0];
        out->omission[out->omissions++] = (train_omission){n[0], n[1], n[2], n[3]};
    }
    return STATUS_OK;
}

static status read_past(train_past *out, const json_t *meta, const training_position *m, const config *saved,
                        const char *where)
{
    int norms;
    const json_t *began = json_object_get(meta, "began");
    out->began = json_integer_value(began);
    if (began && (!json_is_integer(began) || out->began < 0 || out->began > m->step))
        return refuse_value(where, "began", began, "is none of its steps");
    const json_t *verified = json_object_get(meta, "verified");
    out->verified = json_integer_value(verified);
    if (verified && (!json_is_integer(verified) || out->verified < 0 || out->verified > m->step))
        return refuse_value(where, "verified", verified, "is none of its steps");
    TRY(read_reals(out->window.loss, &out->window.count, meta, "losses", where));
    TRY(read_reals(out->window.norm, &norms, meta, "norms", where));
    if (norms != out->window.count)
        return status_fail(STATUS_FAILED, "%s: its manifest says %d losses and %d norms", where, out->window.count,
                           norms);
    return read_omissions(out, meta, m, saved, where);
}

status train_meta_read(training_position *out, const json_t *meta, const config *saved, const char *where)
{
    const json_t *step = json_object_get(meta, "step"), *scale = json_object_get(meta, "loss_scale");
    training_position m = {0};
    bool begun = !json_is_integer(step) || json_integer_value(step) != 0;
    TRY(read_counts(&m, meta, begun, where));
    if (m.step > MOST_STEPS)
        return refuse_value(where, "step", step, "no run reaches");
    if (m.moments > m.updates)
        return refuse_value(where, "moments", json_object_get(meta, "moments"), "is more than its updates");
    if (m.updates > m.step || m.skipped > m.step - m.updates)
        return status_fail(
            STATUS_FAILED,
            "%s: its manifest says %lld updates and %lld steps skipped in a row, of %lld steps: impossible", where,
            (long long)m.updates, (long long)m.skipped, (long long)m.step);
    if (m.good_steps > m.step)
        return refuse_value(where, "good_steps", json_object_get(meta, "good_steps"), "is more than its steps");
    (void)tokenizer_begin_find(&m.begin, json_string_value(json_object_get(meta, "document_begin")));
    TRY(read_past(&m.past, meta, &m, saved, where));
    TRY(check_samples(&m, saved, where));
    if (scale && !json_is_number(scale))
        return refuse_value(where, "loss_scale", scale, "is no number");
    m.loss_scale = json_number_value(scale);
    if (!isfinite(m.loss_scale) || (m.loss_scale != 0 && (m.loss_scale < LEAST_SCALE || m.loss_scale > MOST_SCALE)))
        return refuse_value(where, "loss_scale", scale, "is no scale of fp16");
    *out = m;
    return STATUS_OK;
}

static const double FACTOR = 2.0;

void loss_scale_after(double *scale, int64_t *good_steps, bool skipped, int window)
{
    *good_steps = skipped ? 0 : *good_steps + 1;
    if (skipped && *scale > LOSS_SCALE_SMALLEST)
        *scale /= FACTOR;
    if (*good_steps >= window && *scale < LOSS_SCALE_LARGEST) {
        *scale *= FACTOR;
        *good_steps = 0;
    }
}
