#include "tools/bench/self_check_parts.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/time/profile.h"
#include "memory/log.h"
#include "parallel/comm/comm_backend.h"

enum { COPIED = 1 << 20, WORDS = 160 };

/* Counts printed lines by verdict. */
typedef struct tally {
    int of[DEVICE_NOT_ASKED + 1];
} tally;

/* Prints a line and counts it; this is a device_say with a tally as its context. */
static void count_verdict(void *tally_, device_verdict v, const char *name, const char *words)
{
    static const char *const names[] = {[DEVICE_RIGHT] = "right",
                                        [DEVICE_WRONG] = "WRONG",
                                        [DEVICE_REFUSED] = "refused",
                                        [DEVICE_NOT_ASKED] = "not asked"};
    tally *t = tally_;
    t->of[v]++;
    printf("%-9s  %s: %s\n", names[v], name, words);
    fflush(stdout);
}

static void say_if(tally *t, bool right, const char *name, const char *words)
{
    count_verdict(t, right ? DEVICE_RIGHT : DEVICE_WRONG, name, words);
}

static void idle(void *context)
{
    (void)context;
}

/* Copies the host's mirror into the arena and back, as a step does with its inputs and results. */
static void mirror(tally *t, const device_interface *on, device *d)
{
    unsigned char *host = (unsigned char *)on->host(d);
    for (int i = 0; i < COPIED; i++)
        host[i] = (unsigned char)(i * 7 + i / 251);
    on->copy_in(d, COPIED, 0, COPIED);
    on->copy_in(d, 0, 0, COPIED);
    on->synchronise(d, idle, NULL);
    memset(host, 0xFF, COPIED);
    on->copy_out(d, 0, COPIED);
    on->synchronise(d, idle, NULL);
    bool same = true;
    unsigned char *arena = on->borrow(d, COPIED, COPIED);
    for (int i = 0; i < COPIED; i++)
        same = same && host[i] == (unsigned char)(i * 7 + i / 251) && arena[i] == host[i];
    on->give_back(d, arena, COPIED, COPIED, false);
    say_if(t, same, "copies of inputs and results", "1 MiB there and back");
}

/* Copies into pinned host memory, as a checkpoint does. */
static void aside(tally *t, const device_interface *on, device *d)
{
    unsigned char *host = aligned_alloc(4096, COPIED), *arena = on->borrow(d, 0, COPIED);
    MUST(host, "out of memory");
    status s = on->aside.pin(d, host, COPIED);
    if (s != STATUS_OK) {
        count_verdict(t, DEVICE_REFUSED, "registered host memory", status_message());
    } else {
        memset(host, 0xFF, COPIED);
        on->aside.copy(d, host, 0, COPIED);
        on->aside.first(d);
        bool done = on->aside.done(d, true);
        say_if(t, done && memcmp(host, arena, COPIED) == 0, "registered host memory", "1 MiB set aside");
        (void)on->aside.pin(d, host, 0);
    }
    on->give_back(d, arena, 0, COPIED, false);
    free(host);
}

/* Prints the device memory that a kernel graph takes, beside the value that plans assume without a measurement. */
static void graph_memory(tally *t, const device_interface *on, device *d)
{
    enum { NODES = 1000 };
    device_facts before, after;
    char words[WORDS];
    on->facts(&before, d);
    on->capture(d, 0);
    for (int i = 0; i < NODES; i++)
        on->mark(d, 0);
    on->captured(d);
    on->facts(&after, d);
    on->replay(d, 0);
    on->synchronise(d, idle, NULL);
    bool played = on->passed(d, 0);
    on->forget(d);
    int64_t took = before.free_memory - after.free_memory;
    snprintf(words, sizeof words, "%d nodes take %lld bytes, %.0f each; plans assume %.0f", NODES, (long long)took,
             (double)took / NODES, reserve_assumed.node);
    say_if(t, played, "memory of a CUDA graph", words);
}

static void check_libraries(tally *t, const device_interface *on, const op_backend *backend)
{
    char words[WORDS];
    if (backend->words) {
        backend->words(words, sizeof words);
        count_verdict(t, DEVICE_RIGHT, backend->name, words);
    }
    if (on->communication && on->communication->version) {
        status s = on->communication->version(words, sizeof words);
        count_verdict(t, s == STATUS_OK ? DEVICE_RIGHT : DEVICE_REFUSED, on->communication->name,
                      s == STATUS_OK ? words : status_message());
        count_verdict(t, DEVICE_NOT_ASKED, "order of several communicators, and collectives in a graph",
                      "a self-check is one rank's: check-gpu trains two on one GPU");
    }
}

/* `second`: a second pass, run as with train.deterministic: false */
static status check_ops(tally *t, const device_interface *on, const op_backend *backend, int threads, comm *self,
                        bool second)
{
    enum { REQUESTS = 1, MARKS = 1 };
    device *d = NULL;
    const device_options how = {
        .requests = REQUESTS, .marks = MARKS, .backend = backend, .threads = threads, .varies = second};
    TRY(on->open(&d, &how));
    status s = on->allocate(d, SELF_CHECK_ARENA, 2 * COPIED);
    if (s == STATUS_OK && !second) {
        if (on->check)
            on->check(d, count_verdict, t);
        if (on != &device_cpu) {
            mirror(t, on, d);
            on->mark(d, 0);
            on->synchronise(d, idle, NULL);
            say_if(t, on->passed(d, 0), "marks", "a kernel sets a word that the host reads");
        }
        if (on->capture)
            graph_memory(t, on, d);
        if (on->aside.copy)
            aside(t, on, d);
    }
    if (s == STATUS_OK)
        s = self_check_ops(&(self_check_on){.on = on,
                                            .d = d,
                                            .backend = backend,
                                            .threads = threads,
                                            .varies = second,
                                            .self = self,
                                            .say = count_verdict,
                                            .context = t});
    on->close(d);
    return s;
}

status self_check(const device_interface *on, int threads, comm *self)
{
    tally t = {{0}};
    const op_backend *backend = on->backend ? on->backend : &cpu_backend;
    check_libraries(&t, on, backend);
    TRY(check_ops(&t, on, backend, threads, self, false));
    if (on != &device_cpu) {
        printf("with train.deterministic: false\n");
        TRY(check_ops(&t, on, backend, threads, self, true));
    }
    printf("self-check: %d right, %d wrong, %d refused, %d not asked\n", t.of[DEVICE_RIGHT], t.of[DEVICE_WRONG],
           t.of[DEVICE_REFUSED], t.of[DEVICE_NOT_ASKED]);
    return t.of[DEVICE_WRONG] == 0
               ? STATUS_OK
               : status_fail(STATUS_FAILED,
                             "%d things are wrong on this device: do not train on it, and send these "
                             "lines to whoever builds phalanx",
                             t.of[DEVICE_WRONG]);
}
