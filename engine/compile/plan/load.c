#include "engine/compile/plan/load.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/tokens.h"
#include "kernels/philox.h"
#include "kernels/record/storage.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { DRAWS = 32, DRAFT_DRAWS = 4, DRAFT_LAYERS = 8 };

const char *const load_words[LOAD_KINDS] = {"balanced", "lognormal", "trace"};

/* ---- laws -------------------------------------------------------------------------------------------------------- */

/* A standard normal number of its own for each draw, layer and expert (Box and Muller). */
static double draw_normal(int draw, int layer, int expert)
{
    const uint32_t counter[4] = {(uint32_t)expert, (uint32_t)layer, (uint32_t)draw, 0}, key[2] = {28, 0};
    uint32_t word[4];
    philox_block(word, counter, key);
    double u = ((double)word[0] + 0.5) / 4294967296.0, v = (double)word[1] / 4294967296.0;
    return sqrt(-2 * log(u)) * cos(2 * M_PI * v);
}

static double *shares_at(const load_law *law, int draw, int layer)
{
    return law->shares + ((long)draw * law->layers + layer) * law->experts;
}

static void scale_to_one(double *share, int count)
{
    double sum = 0;
    for (int i = 0; i < count; i++)
        sum += share[i];
    for (int i = 0; i < count; i++)
        share[i] /= sum;
}

static double *room_for(const load_law *law, int draws)
{
    return must_calloc((unsigned long)draws * (unsigned long)law->layers * (unsigned long)law->experts, sizeof(double));
}

/* ---- a run's trace ----------------------------------------------------------------------------------------------- */

/* False: the line is no record of a model with these layers and experts. */
static bool read_record(double *share, int64_t *step, const load_law *law, const json_t *line)
{
    const json_t *loads = json_object_get(line, "loads"), *number = json_object_get(line, "step");
    if (!json_is_integer(number) || json_array_size(loads) != (size_t)law->layers)
        return false;
    *step = json_integer_value(number);
    for (int l = 0; l < law->layers; l++) {
        const json_t *counts = json_array_get(loads, (size_t)l);
        double sum = 0;
        if (json_array_size(counts) != (size_t)law->experts)
            return false;
        for (int e = 0; e < law->experts; e++) {
            double count = json_number_value(json_array_get(counts, (size_t)e));
            if (count < 0)
                return false;
            sum += share[(long)l * law->experts + e] = count;
        }
        if (sum <= 0)
            return false;
        scale_to_one(share + (long)l * law->experts, law->experts);
    }
    return true;
}

static status read_trace(load_law *law, const char *path)
{
    AUTO(FILE) *file = fopen(path, "r");
    AUTO_FREE double *share = room_for(law, 1);
    if (!file)
        return status_fail(STATUS_USAGE, "--load %s: %s; say balanced, lognormal:SIGMA or a run's loads.jsonl", path,
                           strerror(errno));
    for (int line = 1;; line++) {
        json_error_t why;
        int64_t step;
        json_auto_t *record = json_loadf(file, JSON_DISABLE_EOF_CHECK, &why);
        if (!record && json_error_code(&why) == json_error_premature_end_of_input)
            break;
        if (!record)
            return status_fail(STATUS_USAGE, "--load %s: record %d is no JSON: %s", path, line, why.text);
        if (!read_record(share, &step, law, record))
            return status_fail(STATUS_USAGE,
                               "--load %s: record %d is not {\"step\": n, \"loads\": [...]} with %d counts for each of "
                               "%d layers, as the configuration has them",
                               path, line, law->experts, law->layers);
        /* The latest record of a step counts: a resumed run writes some again. */
        unsigned long size = (unsigned long)law->layers * (unsigned long)law->experts;
        while (law->draws > 0 && law->steps[law->draws - 1] >= step)
            law->draws--;
        law->shares = must_realloc(law->shares, (unsigned long)(law->draws + 1) * size * sizeof *law->shares);
        law->steps = must_realloc(law->steps, (unsigned long)(law->draws + 1) * sizeof *law->steps);
        memcpy(shares_at(law, law->draws, 0), share, size * sizeof *share);
        law->steps[law->draws++] = step;
    }
    return law->draws > 0 ? STATUS_OK : status_fail(STATUS_USAGE, "--load %s: no record of loads is in it", path);
}

status load_open(load_law *out, const char *text, const model_shape *shape)
{
    static const char word[] = "lognormal:";
    *out = (load_law){.draws = 1, .layers = shape_routers(shape), .experts = shape->experts};
    if (shape->experts == 0)
        return status_fail(STATUS_USAGE, "--load %s is of experts, and the model has none: leave it out", text);
    if (strcmp(text, "balanced") == 0)
        return STATUS_OK;
    if (strncmp(text, word, sizeof word - 1) == 0) {
        char *end;
        out->kind = LOAD_LOGNORMAL;
        out->sigma = strtod(text + sizeof word - 1, &end);
        if (end == text + sizeof word - 1 || *end || !(out->sigma >= 0 && out->sigma <= 10))
            return status_fail(STATUS_USAGE, "--load %s: SIGMA is a number from 0 to 10, as in lognormal:0.3", text);
        out->draws = DRAWS;
        out->shares = room_for(out, DRAWS);
        for (int d = 0; d < DRAWS; d++)
            for (int l = 0; l < out->layers; l++) {
                double *share = shares_at(out, d, l);
                for (int e = 0; e < out->experts; e++)
                    share[e] = exp(out->sigma * draw_normal(d, l, e));
                scale_to_one(share, out->experts);
            }
        return STATUS_OK;
    }
    out->kind = LOAD_TRACE;
    out->draws = 0;
    status s = read_trace(out, text);
    if (s != STATUS_OK)
        load_free(out);
    return s;
}

void load_free(load_law *law)
{
    free(law->shares);
    free(law->steps);
    *law = (load_law){0};
}

/* ---- rows of ranks ----------------------------------------------------------------------------------------------- */

/* One layer of one draw: for each rank how many choices may be its own, and with which probability one is. */
typedef struct ranks_load {
    int ranks;
    double *trials, *chance; /* [ranks] */
    double expert, rank;     /* the largest over the mean */
    double mean;             /* rows of a rank */
} ranks_load;

static void load_ranks(ranks_load *out, const load_law *law, int draw, int layer, const capacity_shape *s)
{
    const double *share = law->shares ? shares_at(law, draw, layer) : NULL;
    out->mean = (double)s->tokens * s->active / s->ranks;
    out->expert = out->rank = 0;
    for (int r = 0; r < s->ranks; r++) {
        int64_t first, count;
        double own = 0;
        shard_rows(&first, &count, s->experts, s->ranks, r);
        for (int64_t e = first; e < first + count; e++) {
            double of = share ? share[e] : 1.0 / s->experts;
            out->expert = of * s->experts > out->expert ? of * s->experts : out->expert;
            own += of;
        }
        out->rank = own * s->ranks > out->rank ? own * s->ranks : out->rank;
        out->trials[r] = (double)s->tokens * (double)(count < s->active ? count : s->active);
        out->chance[r] = out->trials[r] > 0 ? own * (double)s->tokens * s->active / out->trials[r] : 0;
        out->chance[r] = out->chance[r] < 1 ? out->chance[r] : 1;
    }
}

/* Probability of more than `room` of n trials, added up term by term from the nearer side. */
static double binomial_above(double n, double p, double room)
{
    double k = room + 1, mean = n * p;
    if (k > n || p <= 0)
        return 0;
    if (p >= 1)
        return 1;
    bool above = k > mean;
    double at = above ? k : room, sum = 0;
    double term = exp(lgamma(n + 1) - lgamma(at + 1) - lgamma(n - at + 1) + at * log(p) + (n - at) * log1p(-p));
    while (at >= 0 && at <= n && term > sum * 1e-15 && term > 0) {
        sum += term;
        term *= above ? (n - at) / (at + 1) * (p / (1 - p)) : at / (n - at + 1) * ((1 - p) / p);
        at += above ? 1 : -1;
    }
    sum = sum < 1 ? sum : 1;
    return above ? sum : 1 - sum;
}

/* The mean of the largest of the ranks' rows, each normal, over the mean: the integral of 1 - the product of their
 * distribution functions, from where all are certainly exceeded. */
static double mean_largest(const ranks_load *l)
{
    enum { POINTS = 64 };
    static const double far = 6;
    double low = 0, high = 0;
    for (int r = 0; r < l->ranks; r++) {
        double mean = l->trials[r] * l->chance[r], spread = sqrt(mean * (1 - l->chance[r]));
        low = mean - far * spread > low ? mean - far * spread : low;
        high = mean + far * spread > high ? mean + far * spread : high;
    }
    double step = (high - low) / POINTS, sum = low;
    for (int i = 0; i < POINTS && step > 0; i++) {
        double x = low + (i + 0.5) * step, all = 1;
        for (int r = 0; r < l->ranks && all > 0; r++) {
            double mean = l->trials[r] * l->chance[r], spread = sqrt(mean * (1 - l->chance[r]));
            if (mean + far * spread > low && spread > 0)
                all *= 0.5 * erfc((mean - x) / (spread * M_SQRT2));
        }
        sum += (1 - all) * step;
    }
    return sum / l->mean;
}

static void open_ranks(ranks_load *out, const capacity_shape *s)
{
    *out = (ranks_load){.ranks = s->ranks};
    out->trials = must_calloc((unsigned long)s->ranks, sizeof *out->trials);
    out->chance = must_calloc((unsigned long)s->ranks, sizeof *out->chance);
}

static void close_ranks(ranks_load *l)
{
    free(l->trials);
    free(l->chance);
}

double load_slowest(const load_law *law, const compile_options *o)
{
    capacity_shape s = buckets_capacity(o);
    RELEASED_BY(close_ranks) ranks_load l = {0};
    double sum = 0;
    if (s.experts == 0)
        return 1;
    int draws = law->draws < DRAFT_DRAWS ? law->draws : DRAFT_DRAWS;
    int layers = law->layers < DRAFT_LAYERS ? law->layers : DRAFT_LAYERS;
    open_ranks(&l, &s);
    for (int d = 0; d < draws; d++)
        for (int i = 0; i < layers; i++) {
            load_ranks(&l, law, law->draws - 1 - d, i, &s);
            sum += mean_largest(&l) / (draws * layers);
        }
    return sum;
}

/* ---- capacity buckets ------------------------------------------------------------------------------------------- */

/* Probability of each state of the bucket choice. */
typedef struct capacity_chain {
    double at[CAPACITY_BUCKETS][BUCKET_QUIET][CAPACITY_BUCKETS]; /* bucket, quiet, most */
} capacity_chain;

/* Adds a step's plays to `plays`; a share lacks[i] of steps has no room in bucket i. */
static void play_step(capacity_chain *c, double plays[CAPACITY_BUCKETS], const double lacks[CAPACITY_BUCKETS])
{
    capacity_chain next = {0};
    for (int at = 0; at < CAPACITY_BUCKETS; at++)
        for (int quiet = 0; quiet < BUCKET_QUIET; quiet++)
            for (int most = 0; most < CAPACITY_BUCKETS; most++) {
                double here = c->at[at][quiet][most];
                for (int needed = 0; needed < CAPACITY_BUCKETS && here > 0; needed++) {
                    double chance = here * ((needed ? lacks[needed - 1] : 1) - lacks[needed]);
                    bucket_state s = {at, quiet, most};
                    plays[at] += chance;
                    plays[needed] += needed > at ? chance : 0;
                    bucket_after(&s, needed);
                    next.at[s.at][s.quiet][s.most] += chance;
                }
            }
    *c = next;
}

/* Steps of a draw are played until the first ones do not matter; of a trace, those until its next record. */
static void play_draw(load_outcome *out, capacity_chain *c, const load_law *law, int draw,
                      const double lacks[CAPACITY_BUCKETS])
{
    enum { WARM = 256, STEPS = 256 };
    double plays[CAPACITY_BUCKETS] = {0}, weight = 1.0 / law->draws;
    int64_t steps = STEPS;
    if (law->kind == LOAD_TRACE) {
        int64_t all = law->steps[law->draws - 1] - law->steps[0] + 1;
        steps = draw + 1 < law->draws ? law->steps[draw + 1] - law->steps[draw] : 1;
        weight = (double)steps / (double)all;
        steps = steps < STEPS ? steps : STEPS;
    } else {
        double ignored[CAPACITY_BUCKETS] = {0};
        *c = (capacity_chain){.at[0][0][0] = 1};
        for (int i = 0; i < WARM; i++)
            play_step(c, ignored, lacks);
    }
    for (int64_t i = 0; i < steps; i++)
        play_step(c, plays, lacks);
    for (int i = 0; i < CAPACITY_BUCKETS; i++) {
        out->plays[i] += weight * plays[i] / (double)steps;
        out->lacks[i] += weight * lacks[i];
    }
}

/* Adds one draw's shares of steps without room. `blocks`: how often per step each rank of a block has such rows. */
static void expect_draw(load_outcome *out, double lacks[CAPACITY_BUCKETS], ranks_load *l, const load_law *law, int draw,
                        const capacity_shape *s, double blocks)
{
    double holds[CAPACITY_BUCKETS] = {0}; /* log of the chance that all have room */
    for (int i = 0; i < law->layers; i++) {
        load_ranks(l, law, draw, i, s);
        out->expert += l->expert / law->layers / law->draws;
        out->rank += l->rank / law->layers / law->draws;
        out->slowest += mean_largest(l) / law->layers / law->draws;
        for (int bucket = 0; bucket + 1 < out->buckets; bucket++) {
            const capacity_passes w = capacity_passes_of(s, bucket);
            for (int r = 0; r < s->ranks; r++)
                holds[bucket] += blocks * log1p(-binomial_above(l->trials[r], l->chance[r], (double)capacity_rows(&w)));
        }
    }
    for (int i = 0; i < CAPACITY_BUCKETS; i++)
        lacks[i] = -expm1(holds[i]);
}

void load_expect(load_outcome *out, const load_law *law, const compile_options *o)
{
    capacity_shape s = buckets_capacity(o);
    *out = (load_outcome){.buckets = compile_buckets(o), .plays[0] = s.experts == 0};
    if (s.experts == 0)
        return;
    int stage = o->grid.ranks / o->grid.size[GRID_PIPELINE];
    double blocks =
        (double)stage / s.ranks * o->microbatches * (o->transfers.slots ? s.ranks : 1); /* each rank fills slots */
    capacity_chain chain = {.at[0][0][0] = 1};
    RELEASED_BY(close_ranks) ranks_load l = {0};
    open_ranks(&l, &s);
    out->choices = (double)law->layers * blocks * s.ranks;
    for (int d = 0; d < law->draws; d++) {
        double lacks[CAPACITY_BUCKETS];
        expect_draw(out, lacks, &l, law, d, &s, blocks);
        play_draw(out, &chain, law, d, lacks);
    }
    for (int i = 0; i < CAPACITY_BUCKETS; i++)
        out->replays += out->plays[i];
    out->replays = out->replays > 1 ? out->replays - 1 : 0;
}
