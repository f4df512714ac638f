#include "tools/data/tokenize_parts.h"

#include <stdatomic.h>
#include <string.h>

#include "engine/files/output.h"
#include "engine/train/report/report.h"
#include "engine/tokenizer/sentencepiece.h"
#include "engine/system/worker.h"
#include "engine/text/documents.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "tools/stop.h"

/* The library reads all sentences, then trains without output: a thread of ours shows the progress. */
typedef struct work {
    const train_vocab_options *options;
    documents *documents;
    sentences *sentences;
    _Atomic int64_t consumed; /* bytes of the inputs */
    atomic_bool read;
    worker watcher;
} work;

static bool next(void *context, const char **text, int64_t *length)
{
    work *w = context;
    bool more = sentences_next(w->sentences, text, length);
    atomic_store(&w->consumed, documents_consumed(w->documents));
    if (!more && !atomic_exchange(&w->read, true) && !w->options->quiet)
        log_info("%.1f MB of text read, training on it", 1e-6 * (double)sentences_bytes(w->sentences));
    return more;
}

static void watch(void *context)
{
    work *w = context;
    bool quiet = w->options->quiet, training = false;
    report_progress bar =
        report_progress_begin(stderr, "reading text for the vocabulary", (double)w->options->total, true);
    while (worker_pause(&w->watcher, 0.05)) {
        if (stop_asked() != STATUS_OK) {
            report_progress_end(&bar);
            log_error("tokenize: %s", status_message());
            (void)stop_exit(STATUS_FAILED);
        }
        if (!training && atomic_load(&w->read)) {
            training = true;
            report_progress_end(&bar);
            bar = report_progress_begin(stderr, "training the vocabulary", -1, false);
        }
        if (!quiet)
            report_progress_update(&bar, (double)atomic_load(&w->consumed));
    }
    report_progress_end(&bar);
}

status train_vocab(const train_vocab_options *o, documents *d)
{
    double start = clock_seconds();
    work w = {.options = o, .documents = d, .sentences = sentences_open(d, o->skip_bad)};
    sentencepiece_training how = {
        .vocab_size = o->vocab_size, .type = o->type, .most_sentences = 1000000, .threads = 4};
    if (!o->quiet)
        log_info("training a SentencePiece %s model of %lld tokens", how.type, (long long)how.vocab_size);
    buffer model = {0};
    worker_init(&w.watcher);
    MUST(worker_start(&w.watcher, watch, &w, "shows progress") == STATUS_OK, "%s", status_message());
    status trained = sentencepiece_train(&model, &how, next, &w);
    worker_close(&w.watcher);
    status s = sentences_result(w.sentences); /* a read failure causes the trainer's message */
    if (s == STATUS_OK)
        s = trained == STATUS_OK ? output_write(o->output, model.bytes, model.length)
                                 : status_context(trained, "--train-vocab");
    if (s == STATUS_OK && !o->quiet)
        log_info("%s: %lld tokens from %.1f MB of text in %.1f s", o->output, (long long)how.vocab_size,
                 1e-6 * (double)sentences_bytes(w.sentences), clock_seconds() - start);
    buffer_free(&model);
    sentences_close(w.sentences);
    return s;
}
