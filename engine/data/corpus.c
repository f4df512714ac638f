#include "engine/data/corpus.h"

#include <stdlib.h>
#include <string.h>

#include "engine/system/worker.h"
#include "memory/clock.h"
#include "memory/log.h"

#define BATCH_BYTES     (1 << 20)
#define BATCH_DOCUMENTS 8192
#define LONG_BYTES      (16 << 20) /* memory for more is given back after use */

typedef enum stage { FREE, READ, TAKEN, DONE } stage;

/* A batch of documents: read, encoded, handed over. */
typedef struct batch {
    stage stage;
    bool last;
    buffer bytes;
    documents_raw *raw; /* [room], count in use */
    int count, room;
    buffer_ids ids;
    int64_t *ends; /* [room] where each document's ids end */
    int64_t text_bytes, malformed, bad;
    buffer rejects; /* a line for each bad record */
    status result;
    char *message; /* copy of a failure's message, which belongs to the thread that failed */
} batch;

typedef struct queue {
    const tokenizer *tokenizer;
    documents *documents;
    const corpus_settings *settings;
    batch *batches; /* [count], a ring */
    int count;
    int64_t to_encode; /* index of the next batch to encode */
    int64_t held;      /* bytes of the batches that are not free */
    worker worker;
} queue;

static void fail_batch(batch *s, status code)
{
    s->result = code;
    free(s->message);
    s->message = must_strdup(status_message());
}

/* Waits until the batch is at the stage; false: stop. The caller holds the lock. */
static bool wait_for(queue *l, const batch *s, stage wanted)
{
    while (s->stage != wanted && worker_wait(&l->worker))
        continue;
    return !atomic_load(&l->worker.stop);
}

static void set_stage(queue *l, batch *s, stage next)
{
    worker_lock(&l->worker);
    s->stage = next;
    worker_tell(&l->worker);
    worker_unlock(&l->worker);
}

static void read_batch(documents *d, batch *s)
{
    bool more = true;
    s->bytes.length = s->count = 0;
    while (s->bytes.length < BATCH_BYTES && s->count < BATCH_DOCUMENTS) {
        if (s->count == s->room) {
            s->room = 2 * s->room + 64;
            s->raw = must_realloc(s->raw, (unsigned long)s->room * sizeof *s->raw);
            s->ends = must_realloc(s->ends, (unsigned long)s->room * sizeof *s->ends);
        }
        status code = documents_next(d, &s->bytes, &s->raw[s->count], &more);
        if (code != STATUS_OK)
            fail_batch(s, code);
        if (code != STATUS_OK || !more) {
            s->last = true;
            return;
        }
        s->count++;
    }
}

static void read_all(void *argument)
{
    queue *l = argument;
    for (int64_t number = 0;; number++) {
        batch *s = &l->batches[number % l->count];
        worker_lock(&l->worker);
        bool go_on = wait_for(l, s, FREE);
        while (go_on && l->held > 2 * (int64_t)BATCH_BYTES * l->count) /* long documents: few at once */
            go_on = worker_wait(&l->worker);
        worker_unlock(&l->worker);
        if (!go_on)
            return;
        read_batch(l->documents, s);
        bool last = s->last;
        worker_lock(&l->worker);
        l->held += s->bytes.length;
        worker_unlock(&l->worker);
        set_stage(l, s, READ);
        if (last)
            return;
    }
}

static status encode_batch(const queue *l, batch *s, tokenizer_scratch *scratch, buffer *text_scratch)
{
    const tokenizer_ids *ids = tokenizer_ids_of(l->tokenizer);
    int64_t repaired = tokenizer_scratch_repaired(scratch);
    s->ids.count = s->text_bytes = s->bad = s->rejects.length = 0;
    for (int i = 0; i < s->count; i++) {
        const char *text, *bytes = s->bytes.bytes + s->raw[i].offset;
        int64_t length, before = s->ids.count, begun = before + l->settings->begin;
        status found = documents_text(l->documents, &text, &length, text_scratch, bytes, &s->raw[i]);
        if (found != STATUS_OK) {
            s->bad++;
            if (!l->settings->reject)
                return found;
            /* The record has no text, as documents_text() says. */
            const char *why = status_message();
            buffer_append(&s->rejects, why, (int64_t)strlen(why));
            buffer_append(&s->rejects, "\n", 1);
            s->ends[i] = s->ids.count;
            continue;
        }
        buffer_ids_append(&s->ids, &ids->bos, l->settings->begin);
        TRY(tokenizer_encode(l->tokenizer, scratch, &s->ids, text, length, l->settings->flags));
        if (s->ids.count == begun)
            s->ids.count = before;
        else
            buffer_ids_append(&s->ids, &ids->end_of_document, l->settings->end_of_document);
        s->ends[i] = s->ids.count;
        s->text_bytes += length;
    }
    s->malformed = tokenizer_scratch_repaired(scratch) - repaired;
    return STATUS_OK;
}

static void encode_all(void *argument)
{
    queue *l = argument;
    AUTO(tokenizer_scratch) *scratch = tokenizer_scratch_open(l->tokenizer);
    RELEASED_BY(buffer_free) buffer text_scratch = {0};
    for (;;) {
        worker_lock(&l->worker);
        int64_t number = l->to_encode++;
        batch *s = &l->batches[number % l->count];
        bool go_on = wait_for(l, s, READ);
        if (go_on)
            s->stage = TAKEN; /* keeps another thread from taking it one round of the ring later */
        worker_unlock(&l->worker);
        if (!go_on)
            return;
        status code = encode_batch(l, s, scratch, &text_scratch);
        if (code != STATUS_OK) /* reports this first: it precedes any failure of reading further */
            fail_batch(s, code);
        if (s->bytes.length > LONG_BYTES) {
            tokenizer_scratch_close(scratch);
            scratch = tokenizer_scratch_open(l->tokenizer);
            buffer_free(&text_scratch);
        }
        set_stage(l, s, DONE);
    }
}

static status hand_over(const batch *s, const corpus_settings *settings, corpus_count *out, corpus_sink *sink,
                        void *context)
{
    out->bad += s->bad;
    if (s->result != STATUS_OK)
        return status_fail(s->result, "%s", s->message);
    if (s->bad)
        TRY(settings->reject(context, s->rejects.bytes, s->rejects.length));
    int64_t start = 0;
    for (int i = 0; i < s->count; i++) {
        if (s->ends[i] > start) {
            TRY(sink(context, s->ids.ids + start, s->ends[i] - start));
            out->documents++;
        }
        start = s->ends[i];
    }
    out->bytes += s->text_bytes;
    out->tokens += start;
    out->malformed += s->malformed;
    return STATUS_OK;
}

/* Waits a tenth of a second at most; true when the batch is done. */
static bool wait_a_little(queue *l, const batch *s)
{
    WORKER_HELD(&l->worker);
    if (s->stage != DONE)
        (void)worker_wait_until(&l->worker, clock_seconds() + 0.1);
    return s->stage == DONE;
}

static status receive_all(queue *l, corpus_count *out, corpus_sink *sink, corpus_tick *tick, void *context)
{
    for (int64_t number = 0;; number++) {
        batch *s = &l->batches[number % l->count];
        while (!wait_a_little(l, s))
            if (tick)
                TRY(tick(context, out));
        bool last = s->last;
        TRY(hand_over(s, l->settings, out, sink, context));
        if (tick)
            TRY(tick(context, out));
        if (last)
            return STATUS_OK;
        worker_lock(&l->worker);
        l->held -= s->bytes.length;
        worker_unlock(&l->worker);
        if (s->bytes.length > LONG_BYTES) {
            buffer_free(&s->bytes);
            buffer_ids_free(&s->ids);
        }
        set_stage(l, s, FREE);
    }
}

status corpus_encode(const tokenizer *t, documents *d, const corpus_settings *settings, corpus_count *out,
                     corpus_sink *sink, corpus_tick *tick, void *context)
{
    int threads = settings->threads;
    MUST(threads >= 1, "%d threads", threads);
    if (settings->end_of_document && tokenizer_ids_of(t)->end_of_document < 0)
        return status_fail(STATUS_FAILED, "the tokenizer has no token that ends a document: append none");
    if (settings->begin && tokenizer_ids_of(t)->bos < 0)
        return status_fail(STATUS_FAILED, "--begin: the tokenizer has no token that begins a text (bos_token of its "
                                          "tokenizer_config.json): leave it out, the end of one document then begins "
                                          "the next");
    queue l = {.tokenizer = t, .documents = d, .settings = settings, .count = 2 * threads + 2};
    l.batches = must_calloc((unsigned long)l.count, sizeof *l.batches);
    worker_init(&l.worker);
    *out = (corpus_count){0};
    for (int i = 0; i <= threads; i++)
        MUST(worker_start(&l.worker, i ? encode_all : read_all, &l, i ? "encodes text" : "reads text") == STATUS_OK,
             "%s", status_message());
    status s = receive_all(&l, out, sink, tick, context);
    if (s != STATUS_OK)
        documents_stop(d);
    worker_close(&l.worker);
    for (int i = 0; i < l.count; i++) {
        buffer_free(&l.batches[i].bytes);
        buffer_free(&l.batches[i].rejects);
        buffer_ids_free(&l.batches[i].ids);
        free(l.batches[i].raw);
        free(l.batches[i].ends);
        free(l.batches[i].message);
    }
    free(l.batches);
    return s;
}
