/* phalanx inspect: shows data sets. */
#include "tools/inspect/inspect_parts.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "engine/tokenizer/tokenizer.h"
#include "engine/data/stored.h"
#include "engine/data/tokenizer_files.h"
#include "memory/log.h"
#include "memory/scope.h"

#define OCTAVES 32

/* Gathers document lengths: extremes, mean, spread, and counts between powers of two. */
static json_t *gather_lengths(const indexed *x)
{
    int64_t documents = indexed_documents(x), least = INT64_MAX, most = 0, octaves[OCTAVES + 1] = {0};
    double sum = 0, squares = 0;
    for (int64_t d = 0; d < documents; d++) {
        int64_t length = indexed_document_start(x, d + 1) - indexed_document_start(x, d);
        int octave = 0; /* 0: empty; k: 2^(k-1) <= length < 2^k */
        while (octave < OCTAVES && length >> octave)
            octave++;
        octaves[octave]++;
        least = length < least ? length : least;
        most = length > most ? length : most;
        sum += (double)length;
        squares += (double)length * (double)length;
    }
    if (documents == 0)
        return json_object();
    double mean = sum / (double)documents, variance = squares / (double)documents - mean * mean;
    json_t *histogram = json_array();
    for (int k = 0; k <= OCTAVES; k++)
        if (octaves[k])
            json_array_append_new(histogram, json_pack("{s:I, s:I}", "from", (json_int_t)(k ? 1LL << (k - 1) : 0),
                                                       "documents", (json_int_t)octaves[k]));
    return json_pack("{s:I, s:I, s:f, s:f, s:o}", "shortest", (json_int_t)least, "longest", (json_int_t)most, "mean",
                     mean, "deviation", sqrt(variance > 0 ? variance : 0), "histogram", histogram);
}

/* Adds the sample's text if the tokenizer that made the data is stored with it. */
static void add_text(json_t *sample, const tokenizer *t, const int32_t *ids, int64_t count)
{
    RELEASED_BY(buffer_free) buffer text = {0};
    if (!t)
        return;
    tokenizer_decode(t, &text, ids, count, true);
    json_t *string = json_stringn(text.bytes ? text.bytes : "", (size_t)text.length);
    if (string) /* ids cut within a character give no text */
        json_object_set_new(sample, "text", string);
}

static status gather_samples(json_t *object, const indexed *x, const tokenizer *t, const inspect_request *r)
{
    json_t *samples = json_array();
    json_object_set_new(object, "samples", samples);
    AUTO_FREE int32_t *ids = must_alloc((unsigned long)r->ids * sizeof *ids);
    status s = STATUS_OK;
    for (int64_t d = 0; d < indexed_documents(x) && d < r->samples && s == STATUS_OK; d++) {
        int64_t first = indexed_document_start(x, d), length = indexed_document_start(x, d + 1) - first;
        int64_t shown = length < r->ids ? length : r->ids;
        json_t *array = json_array();
        s = indexed_read(x, ids, first, shown, INT64_MAX);
        for (int64_t i = 0; i < shown && s == STATUS_OK; i++)
            json_array_append_new(array, json_integer(ids[i]));
        json_t *sample =
            json_pack("{s:I, s:I, s:o}", "document", (json_int_t)d, "tokens", (json_int_t)length, "ids", array);
        if (s == STATUS_OK)
            add_text(sample, t, ids, shown);
        json_array_append_new(samples, sample);
    }
    return s;
}

/* Counts of the ids seen so far. */
typedef struct counts {
    int64_t *seen;
    int32_t room, largest;
} counts;

static void count_ids(counts *c, const int32_t *ids, int64_t count)
{
    for (int64_t i = 0; i < count; i++) {
        if (ids[i] >= c->room) {
            int32_t before = c->room;
            while (ids[i] >= c->room)
                c->room = c->room ? 2 * c->room : 1 << 16;
            c->seen = must_realloc(c->seen, (unsigned long)c->room * sizeof *c->seen);
            memset(c->seen + before, 0, (size_t)(c->room - before) * sizeof *c->seen);
        }
        c->largest = ids[i] > c->largest ? ids[i] : c->largest;
        c->seen[ids[i]]++;
    }
}

/* Implements --verify: reads every token, refusing negative ids and ids beyond any vocabulary. Gathers the largest id,
 * and the entropy of the tokens' frequencies in nats: the loss of a model that knows these alone. */
static status read_tokens(json_t *object, const indexed *x)
{
    enum { BLOCK = 1 << 16, MOST_IDS = 1 << 24 };
    AUTO_FREE int32_t *ids = must_alloc(BLOCK * sizeof *ids);
    counts c = {.largest = -1};
    int64_t tokens = indexed_tokens(x);
    status s = STATUS_OK;
    for (int64_t first = 0, now; first < tokens && s == STATUS_OK; first += now) {
        now = tokens - first < BLOCK ? tokens - first : BLOCK;
        s = indexed_read(x, ids, first, now, MOST_IDS);
        if (s == STATUS_OK)
            count_ids(&c, ids, now);
    }
    double entropy = 0;
    for (int32_t i = 0; i <= c.largest; i++)
        if (c.seen[i] > 0)
            entropy -= (double)c.seen[i] / (double)tokens * log((double)c.seen[i] / (double)tokens);
    free(c.seen);
    json_object_set_new(object, "largest_id", json_integer(c.largest));
    json_object_set_new(object, "unigram_entropy", json_real(entropy));
    return s;
}

status inspect_gather_data(json_t **out, const inspect_request *r)
{
    indexed *x;
    AUTO_FREE char *prefix = must_strdup(r->path);
    if (inspect_ends_with(prefix, ".idx") || inspect_ends_with(prefix, ".bin"))
        prefix[strlen(prefix) - 4] = 0;
    stored_set *set;
    stored *store = object_is_url(prefix) ? stored_open_once() : NULL; /* read without a cache on disk */
    status s = store ? stored_indexed(&x, &set, store, prefix, true) : indexed_open(&x, prefix);
    if (s == STATUS_OK) {
        json_auto_t *object = inspect_object("data", prefix);
        json_object_set_new(object, "dtype", json_string(indexed_dtype(x)));
        json_object_set_new(object, "documents", json_integer(indexed_documents(x)));
        json_object_set_new(object, "tokens", json_integer(indexed_tokens(x)));
        json_object_set_new(object, "lengths", gather_lengths(x));
        AUTO(tokenizer) *t = NULL;
        tokenizer_begin begin;
        s = tokenizer_files_begin(&begin, prefix);
        if (s == STATUS_OK)
            json_object_set_new(object, "document_begin", json_string(tokenizer_begin_words[begin]));
        if (s == STATUS_OK && tokenizer_files_is_beside(prefix))
            s = tokenizer_files_open_beside(&t, prefix);
        if (s == STATUS_OK)
            s = gather_samples(object, x, t, r);
        if (s == STATUS_OK && r->verify)
            s = read_tokens(object, x);
        indexed_close(x);
        if (s == STATUS_OK)
            *out = TAKE(object);
    }
    stored_close(store);
    return s;
}

void inspect_print_data(const json_t *object)
{
    const json_t *lengths = json_object_get(object, "lengths"), *histogram = json_object_get(lengths, "histogram");
    const json_t *samples = json_object_get(object, "samples");
    printf("data set %s\n  documents: %" PRId64 "\n", inspect_text(object, "path"), inspect_get(object, "documents"));
    printf("  tokens: %" PRId64, inspect_get(object, "tokens"));
    if (inspect_get(object, "tokens") >= 1000)
        printf(" (%s)", COUNT_IN_WORDS(inspect_get(object, "tokens")));
    printf(", stored as %s\n", inspect_text(object, "dtype"));
    printf("  begins a document: %s (phalanx help data)\n", inspect_text(object, "document_begin"));
    if (json_object_get(object, "largest_id"))
        printf("  largest token id: %" PRId64 "\n  unigram entropy: %.4f nats a token\n",
               inspect_get(object, "largest_id"), json_number_value(json_object_get(object, "unigram_entropy")));
    if (histogram)
        printf("  tokens per document: %" PRId64 " to %" PRId64 ", mean %.1f, standard deviation %.1f; documents of\n",
               inspect_get(lengths, "shortest"), inspect_get(lengths, "longest"),
               json_number_value(json_object_get(lengths, "mean")),
               json_number_value(json_object_get(lengths, "deviation")));
    for (size_t i = 0; i < json_array_size(histogram); i++) {
        const json_t *row = json_array_get(histogram, i);
        printf("    %10" PRId64 " and more: %" PRId64 "\n", inspect_get(row, "from"), inspect_get(row, "documents"));
    }
    for (size_t i = 0; i < json_array_size(samples); i++) {
        const json_t *sample = json_array_get(samples, i), *ids = json_object_get(sample, "ids");
        printf("  document %" PRId64 ":", inspect_get(sample, "document"));
        for (size_t k = 0; k < json_array_size(ids); k++)
            printf(" %lld", (long long)json_integer_value(json_array_get(ids, k)));
        printf("%s\n", inspect_get(sample, "tokens") > (int64_t)json_array_size(ids) ? " ..." : "");
        if (json_object_get(sample, "text"))
            printf("    \"%s\"\n", inspect_text(sample, "text"));
    }
}
