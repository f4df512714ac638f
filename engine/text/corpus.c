#include "engine/text/corpus.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/log.h"

#define STRETCH_BYTES (1 << 20)
#define STRETCH_COUNT 8192 /* documents */

typedef enum stage { FREE, READ, TAKEN, DONE } stage;

/* A few documents on their way: read, encoded, handed over. */
typedef struct stretch {
    stage stage;
    bool last;
    buffer bytes;
    documents_raw *raw; /* [room], count in use */
    int count, room;
    buffer_ids ids;
    int64_t *ends; /* [room] where each document's ids end */
    int64_t text_bytes, malformed;
    status result;
    char *message; /* of a failure: messages belong to the thread that failed */
} stretch;

typedef struct line_up {
    const tokenizer *tokenizer;
    documents *documents;
    const corpus_settings *settings;
    stretch *stretches; /* [count], used in a circle */
    int count;
    int64_t to_encode; /* number of the next stretch to be encoded */
    bool stop;
    pthread_mutex_t lock;
    pthread_cond_t changed;
} line_up;

static void fail_stretch(stretch *s, status code)
{
    s->result = code;
    free(s->message);
    s->message = must_strdup(status_message());
}

/* Wait until the stretch is at the stage; false: stop. Called with the lock held. */
static bool wait_for(line_up *l, const stretch *s, stage wanted)
{
    while (!l->stop && s->stage != wanted)
        pthread_cond_wait(&l->changed, &l->lock);
    return !l->stop;
}

static void set_stage(line_up *l, stretch *s, stage next)
{
    pthread_mutex_lock(&l->lock);
    s->stage = next;
    pthread_cond_broadcast(&l->changed);
    pthread_mutex_unlock(&l->lock);
}

static void read_stretch(documents *d, stretch *s)
{
    bool more = true;
    s->bytes.length = s->count = 0;
    while (s->bytes.length < STRETCH_BYTES && s->count < STRETCH_COUNT) {
        if (s->count == s->room) {
            s->room = 2 * s->room + 64;
            s->raw = must_realloc(s->raw, (unsigned long)s->room * sizeof *s->raw);
            s->ends = must_realloc(s->ends, (unsigned long)s->room * sizeof *s->ends);
        }
        status code = documents_next(d, &s->bytes, &s->raw[s->count], &more);
        if (code != STATUS_OK)
            fail_stretch(s, code);
        if (code != STATUS_OK || !more) {
            s->last = true;
            return;
        }
        s->count++;
    }
}

static void *read_all(void *argument)
{
    line_up *l = argument;
    for (int64_t number = 0;; number++) {
        stretch *s = &l->stretches[number % l->count];
        pthread_mutex_lock(&l->lock);
        bool go_on = wait_for(l, s, FREE);
        pthread_mutex_unlock(&l->lock);
        if (!go_on)
            return NULL;
        read_stretch(l->documents, s);
        bool last = s->last;
        set_stage(l, s, READ);
        if (last)
            return NULL;
    }
}

static status encode_stretch(const line_up *l, stretch *s, tokenizer_scratch *scratch, buffer *text_scratch)
{
    int32_t end = tokenizer_end_of_document(l->tokenizer);
    int64_t repaired = tokenizer_scratch_repaired(scratch);
    s->ids.count = s->text_bytes = 0;
    for (int i = 0; i < s->count; i++) {
        const char *text;
        int64_t length;
        TRY(documents_text(l->documents, &text, &length, text_scratch, s->bytes.bytes + s->raw[i].offset, &s->raw[i]));
        int64_t before = s->ids.count;
        TRY(tokenizer_encode(l->tokenizer, scratch, &s->ids, text, length, l->settings->flags));
        if (l->settings->end_of_document && s->ids.count > before)
            buffer_ids_append(&s->ids, &end, 1);
        s->ends[i] = s->ids.count;
        s->text_bytes += length;
    }
    s->malformed = tokenizer_scratch_repaired(scratch) - repaired;
    return STATUS_OK;
}

static void *encode_all(void *argument)
{
    line_up *l = argument;
    tokenizer_scratch *scratch = tokenizer_scratch_open(l->tokenizer);
    buffer text_scratch = {0};
    for (;;) {
        pthread_mutex_lock(&l->lock);
        int64_t number = l->to_encode++;
        stretch *s = &l->stretches[number % l->count];
        bool go_on = wait_for(l, s, READ);
        if (go_on)
            s->stage = TAKEN; /* one whole circle ahead, another must not take it, too */
        pthread_mutex_unlock(&l->lock);
        if (!go_on)
            break;
        status code = encode_stretch(l, s, scratch, &text_scratch);
        if (code != STATUS_OK) /* it stands before what may have failed in reading on */
            fail_stretch(s, code);
        set_stage(l, s, DONE);
    }
    buffer_free(&text_scratch);
    tokenizer_scratch_close(scratch);
    return NULL;
}

static status hand_over(const stretch *s, corpus_count *out, corpus_sink *sink, void *context)
{
    if (s->result != STATUS_OK)
        return status_fail(s->result, "%s", s->message);
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

/* Wait a tenth of a second at most; true when the stretch is done. */
static bool wait_a_little(line_up *l, const stretch *s)
{
    struct timespec until;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    pthread_mutex_lock(&l->lock);
    if (s->stage != DONE)
        pthread_cond_timedwait(&l->changed, &l->lock, &until);
    bool done = s->stage == DONE;
    pthread_mutex_unlock(&l->lock);
    return done;
}

static status receive_all(line_up *l, corpus_count *out, corpus_sink *sink, corpus_tick *tick, void *context)
{
    for (int64_t number = 0;; number++) {
        stretch *s = &l->stretches[number % l->count];
        while (!wait_a_little(l, s))
            if (tick)
                TRY(tick(context, out));
        bool last = s->last;
        TRY(hand_over(s, out, sink, context));
        if (tick)
            TRY(tick(context, out));
        if (last)
            return STATUS_OK;
        set_stage(l, s, FREE);
    }
}

status corpus_encode(const tokenizer *t, documents *d, const corpus_settings *settings, corpus_count *out,
                     corpus_sink *sink, corpus_tick *tick, void *context)
{
    int threads = settings->threads;
    MUST(threads >= 1, "%d threads", threads);
    if (settings->end_of_document && tokenizer_end_of_document(t) < 0)
        return status_fail(STATUS_FAILED, "the tokenizer has no token that ends a document: append none");
    line_up l = {.tokenizer = t, .documents = d, .settings = settings, .count = 2 * threads + 2};
    l.stretches = must_calloc((unsigned long)l.count, sizeof *l.stretches);
    pthread_mutex_init(&l.lock, NULL);
    pthread_cond_init(&l.changed, NULL);
    *out = (corpus_count){0};
    pthread_t *workers = must_alloc((unsigned long)(threads + 1) * sizeof *workers);
    for (int i = 0; i <= threads; i++) {
        int failed = pthread_create(&workers[i], NULL, i ? encode_all : read_all, &l);
        MUST(!failed, "thread %d does not start: %s", i, strerror(failed));
    }
    status s = receive_all(&l, out, sink, tick, context);
    if (s != STATUS_OK)
        documents_stop(d);
    pthread_mutex_lock(&l.lock);
    l.stop = true;
    pthread_cond_broadcast(&l.changed);
    pthread_mutex_unlock(&l.lock);
    for (int i = 0; i <= threads; i++)
        pthread_join(workers[i], NULL);
    for (int i = 0; i < l.count; i++) {
        buffer_free(&l.stretches[i].bytes);
        buffer_ids_free(&l.stretches[i].ids);
        free(l.stretches[i].raw);
        free(l.stretches[i].ends);
        free(l.stretches[i].message);
    }
    free(l.stretches);
    free(workers);
    pthread_cond_destroy(&l.changed);
    pthread_mutex_destroy(&l.lock);
    return s;
}
