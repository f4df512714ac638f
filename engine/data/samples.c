#include "engine/data/samples.h"

#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "kernels/philox.h"
#include "memory/log.h"
#include "memory/scope.h"

/* The site of philox_draws() for data order; the initialiser has 0xffff. */
enum { ORDER_SITE = 0xfffe, FEISTEL_ROUNDS = 6, MOST_RUNS = 64 };

typedef struct source {
    indexed *data;
    stored_set *set; /* NULL: its files are local */
    int64_t count;   /* samples */
    int per_period;  /* samples per SAMPLES_PERIOD */
} source;

/* Expected runs of samples of data sets in a store; the first has been passed on up to sample `at`. */
typedef struct ahead {
    struct {
        int64_t at, end;
    } run[MOST_RUNS];
    int count;
} ahead;

struct samples {
    int slot, slots; /* samples_interleave; 0 of 1 */
    int64_t sequence, vocab_size;
    bool shuffle;
    uint64_t seed;
    int sources;
    source *source;
    stored *remote; /* NULL: all files are local */
    ahead *ahead;
    void (*told)(void *context, const char *words); /* hears of samples left out; NULL: none may be */
    void *told_context;
    uint16_t slot_source[SAMPLES_PERIOD]; /* data set of number i of a period */
    uint16_t slot_before[SAMPLES_PERIOD]; /* numbers of that data set earlier in the period */
};

/* ---- blending -------------------------------------------------------------------------------------------------- */

/* Rounds to whole shares of SAMPLES_PERIOD in proportion to the weights; every data set gets at least one. */
static void share_out(samples *s, const config_sources *sources)
{
    double total = 0;
    for (int i = 0; i < s->sources; i++)
        total += sources->item[i].weight;
    int given = 0;
    AUTO_FREE double *rest = must_alloc((unsigned long)s->sources * sizeof *rest);
    for (int i = 0; i < s->sources; i++) {
        double exact = sources->item[i].weight / total * SAMPLES_PERIOD;
        s->source[i].per_period = exact < 1 ? 1 : (int)exact;
        rest[i] = exact - s->source[i].per_period;
        given += s->source[i].per_period;
    }
    while (given != SAMPLES_PERIOD) {
        int best = -1, step = given < SAMPLES_PERIOD ? 1 : -1;
        for (int i = 0; i < s->sources; i++)
            if ((step > 0 || s->source[i].per_period > 1) && (best < 0 || step * rest[i] > step * rest[best]))
                best = i;
        s->source[best].per_period += step;
        rest[best] -= step;
        given += step;
    }
}

static void lay_period(samples *s)
{
    AUTO_FREE int *used = must_calloc((unsigned long)s->sources, sizeof *used);
    for (int slot = 0; slot < SAMPLES_PERIOD; slot++) {
        int best = 0;
        double most = -1;
        for (int i = 0; i < s->sources; i++) {
            double lag = (double)s->source[i].per_period * (slot + 1) / SAMPLES_PERIOD - used[i];
            if (lag > most && used[i] < s->source[i].per_period) {
                most = lag;
                best = i;
            }
        }
        s->slot_source[slot] = (uint16_t)best;
        s->slot_before[slot] = (uint16_t)used[best]++;
    }
}

/* ---- order ----------------------------------------------------------------------------------------------------- */

/* A permutation of [0, count) chosen by (seed, source, epoch): a Feistel network on 2 x half bits, repeated until the
 * value lies within. */
static int64_t permute_value(const samples *s, int which, int64_t epoch, int64_t value, int64_t count)
{
    int half = 1;
    while (half < 31 && ((int64_t)1 << (2 * half)) < count)
        half++;
    uint64_t mask = ((uint64_t)1 << half) - 1;
    uint64_t x = (uint64_t)value;
    do {
        uint64_t left = x >> half, right = x & mask;
        for (uint32_t round = 0; round < FEISTEL_ROUNDS; round++) {
            uint32_t draw[4];
            philox_draws(draw, s->seed, ORDER_SITE, (uint64_t)epoch, (uint64_t)which << 8 | round, right);
            uint64_t next = left ^ (draw[0] & mask);
            left = right;
            right = next;
        }
        x = left << half | right;
    } while (x >= (uint64_t)count);
    return (int64_t)x;
}

void samples_locate(const samples *s, int *which, int64_t *sample, int64_t index)
{
    int slot = (int)(index % SAMPLES_PERIOD);
    *which = s->slot_source[slot];
    const source *from = &s->source[*which];
    int64_t n = index / SAMPLES_PERIOD * from->per_period + s->slot_before[slot];
    *sample = n % from->count;
    if (s->shuffle)
        *sample = permute_value(s, *which, n / from->count, *sample, from->count);
}

/* ---- opening and reading --------------------------------------------------------------------------------------- */

static status open_source(source *out, samples *s, const char *path, stored *from)
{
    if (!object_is_url(path))
        TRY(indexed_open(&out->data, path));
    else if (!from)
        return status_fail(STATUS_USAGE, "%s: a data set in an object store cannot be read here", path);
    else {
        s->remote = from;
        TRY(stored_indexed(&out->data, &out->set, from, path, s->shuffle));
    }
    out->count = (indexed_tokens(out->data) - 1) / s->sequence;
    if (out->count < 1)
        return status_fail(STATUS_USAGE, "%s: %lld tokens are too few for one sample of train.sequence + 1 = %lld",
                           path, (long long)indexed_tokens(out->data), (long long)s->sequence + 1);
    return STATUS_OK;
}

status samples_open(samples **out, const config_sources *sources, stored *from, int64_t sequence, int64_t vocab_size,
                    bool shuffle, uint64_t seed)
{
    if (sources->count > SAMPLES_PERIOD)
        return status_fail(STATUS_USAGE, "%d data sets are more than can be blended (%d): merge some (phalanx merge)",
                           sources->count, SAMPLES_PERIOD);
    AUTO(samples) *s = must_calloc(1, sizeof *s);
    s->slots = 1;
    s->sequence = sequence;
    s->vocab_size = vocab_size;
    s->shuffle = shuffle;
    s->seed = seed;
    s->source = must_calloc((unsigned long)sources->count, sizeof *s->source);
    for (int i = 0; i < sources->count; i++) {
        s->sources = i + 1;
        TRY(open_source(&s->source[i], s, sources->item[i].path, from));
    }
    s->ahead = s->remote ? must_calloc(1, sizeof *s->ahead) : NULL;
    share_out(s, sources);
    lay_period(s);
    *out = TAKE(s);
    return STATUS_OK;
}

void samples_close(samples *s)
{
    if (!s)
        return;
    for (int i = 0; i < s->sources; i++)
        indexed_close(s->source[i].data);
    free(s->source);
    free(s->ahead);
    free(s);
}

/* ---- fetching ahead -------------------------------------------------------------------------------------------- */

bool samples_are_remote(const samples *s)
{
    return s->remote != NULL;
}

/* Finds the data set and the first token of sample `index` of all slots. */
static const source *find_sample(int64_t *first, const samples *s, int64_t index)
{
    int which;
    samples_locate(s, &which, first, s->slot + index * s->slots);
    *first *= s->sequence;
    return &s->source[which];
}

static void drop_runs(ahead *a, int count)
{
    a->count -= count;
    memmove(&a->run[0], &a->run[count], (size_t)a->count * sizeof a->run[0]);
}

/* Passes on the expected samples for which the store has room. */
static void pass_on(const samples *s)
{
    ahead *a = s->ahead;
    while (a->count > 0) {
        for (int64_t first; a->run[0].at < a->run[0].end; a->run[0].at++) {
            const source *from = find_sample(&first, s, a->run[0].at);
            if (from->set && !stored_expect(from->set, from->data, first, s->sequence + 1))
                return;
        }
        drop_runs(a, 1);
    }
}

bool samples_expect(samples *s, int64_t first, int64_t count)
{
    ahead *a = s->ahead;
    if (!a || a->count == MOST_RUNS)
        return false;
    a->run[a->count].at = first;
    a->run[a->count++].end = first + count;
    pass_on(s);
    return true;
}

void samples_expect_nothing(samples *s)
{
    if (!s->ahead)
        return;
    s->ahead->count = 0;
    stored_expect_nothing(s->remote);
}

void samples_interleave(samples *s, int slot, int slots)
{
    s->slot = slot;
    s->slots = slots;
}

int64_t samples_count(const samples *s)
{
    int64_t n = 0;
    for (int i = 0; i < s->sources; i++)
        n += s->source[i].count;
    return n;
}

double samples_epochs(const samples *s, int which, double taken)
{
    const source *from = &s->source[which];
    return taken * from->per_period / SAMPLES_PERIOD / (double)from->count;
}

double samples_epoch(const samples *s, int64_t index)
{
    double most = 0;
    for (int i = 0; i < s->sources; i++) {
        double passes = samples_epochs(s, i, (double)index);
        most = passes > most ? passes : most;
    }
    return most;
}

/* Restarts positions, and stops attention, where a document begins. */
static void mark_documents(const samples *s, const indexed *data, int32_t *positions, int32_t *document_start,
                           int64_t first)
{
    int64_t document = indexed_document_of(data, first), next = indexed_document_start(data, document + 1);
    int64_t start = first;
    for (int64_t i = 0; i < s->sequence; i++) {
        while (first + i >= next) {
            start = next;
            next = indexed_document_start(data, ++document + 1);
        }
        positions[i] = (int32_t)(first + i - start);
        document_start[i] = (int32_t)(start - first);
    }
}

void samples_leave_out(samples *s, void (*told)(void *context, const char *words), void *context)
{
    s->told = told;
    s->told_context = context;
}

static status read_ids(const samples *s, bool *left_out, int32_t *tokens, int32_t *targets, const source *from,
                       int64_t first)
{
    const indexed *data = from->data;
    status ok = indexed_read(data, tokens, first, s->sequence, s->vocab_size);
    if (ok == STATUS_OK)
        ok = indexed_read(data, targets, first + 1, s->sequence, s->vocab_size);
    *left_out = ok != STATUS_OK;
    if (ok == STATUS_OK || !s->told || (from->set && stored_failed(from->set)))
        return ok;
    s->told(s->told_context, status_message());
    for (int64_t i = 0; i < s->sequence; i++) {
        tokens[i] = 0;
        targets[i] = -1;
    }
    return STATUS_OK;
}

status samples_read(const samples *s, bool *left_out, int32_t *const into[INPUT_COUNT], int64_t index)
{
    int32_t *positions = into[INPUT_positions], *document_start = into[INPUT_document_start];
    int32_t *second = into[INPUT_second_targets];
    int64_t first;
    const source *from = find_sample(&first, s, index);
    /* Sample `index` is read now, so drops earlier expected samples that were not passed on. */
    ahead *a = s->ahead;
    for (int i = 0; a && i < a->count; i++)
        if (index >= a->run[i].at && index < a->run[i].end) {
            drop_runs(a, i);
            a->run[0].at = index + 1;
            break;
        }
    if (a)
        pass_on(s);
    TRY(read_ids(s, left_out, into[INPUT_tokens], into[INPUT_targets], from, first));
    if (document_start)
        mark_documents(s, from->data, positions, document_start, first);
    else if (positions)
        for (int64_t i = 0; i < s->sequence; i++)
            positions[i] = (int32_t)i;
    for (int64_t i = 0; second && i < s->sequence;
         i++) { /* the target after the next, of the same sample and document */
        bool goes_on = i + 1 < s->sequence && (!document_start || document_start[i + 1] == document_start[i]);
        second[i] = goes_on ? into[INPUT_targets][i + 1] : -1;
    }
    return STATUS_OK;
}

void samples_identify(indexed_identity *out, const samples *s, int which)
{
    MUST(which >= 0 && which < s->sources, "data set %d of %d", which, s->sources);
    indexed_identify(out, s->source[which].data);
}
