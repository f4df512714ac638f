/* Verification over all ranks: each rank's findings, the sums of their messages, and the weights of replicas against
 * one another. */
#include <stdlib.h>
#include <string.h>

#include "engine/guard/verify.h"
#include "engine/host/incident_log.h"
#include "engine/train/training_loop.h"
#include "engine/train/report/training_report.h"
#include "engine/train/saves/training_saves.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "memory/seal.h"

/* Most rewinds in a row without a passing verification: after them a fault is permanent. */
enum { MOST_TIMES = 3 };

typedef struct rank_report {
    uint64_t weights[AXIS_COUNT]; /* checksum of weights replicated along an axis */
    int replica[AXIS_COUNT];      /* rank of the first replica along it, or -1 */
    comm_sums messages;
    double seconds;
    bool bad;
} rank_report;

typedef struct verdict {
    int rank; /* -1: unknown */
    char words[512];
} verdict;

status training_open_verify(training *t)
{
    int every = t->config->run.verify_every;
    if (every == 0)
        return STATUS_OK;
    if (t->device != &device_cpu && !t->config->train.deterministic)
        return status_fail(STATUS_USAGE, "run.verify_every compares bits of what is computed twice: it needs "
                                         "train.deterministic=true");
    t->guards.verify = verify_open(&t->compiled, t->executor, every);
    t->guards.pairs = must_calloc((unsigned long)comm_ranks(t->world), sizeof *t->guards.pairs);
    comm_check(t->world);
    return STATUS_OK;
}

/* ---- identification of the faulty rank --------------------------------------------------------------------------- */

/* Finds two ranks with different sums of the messages between them. */
static void find_pair(verdict *out, training *t)
{
    int ranks = comm_ranks(t->world);
    seal_open();
    AUTO_FREE comm_sums *all = must_alloc((unsigned long)ranks * (unsigned long)ranks * sizeof *all);
    comm_all_gather_bytes(comm_world(t->world), all, t->guards.pairs, ranks * (int64_t)sizeof *all);
    for (int i = 0; i < ranks && out->rank < 0; i++)
        for (int j = 0; j < ranks && out->rank < 0; j++)
            if (all[i * ranks + j].sent != all[j * ranks + i].received) {
                out->rank = i;
                snprintf(out->words, sizeof out->words,
                         "step %lld: a message from rank %d on %s to rank %d on %s has arrived changed",
                         (long long)t->at.step, i, t->hosts[i], j, t->hosts[j]);
            }
    seal_close();
}

static bool judge_messages(verdict *out, training *t, const rank_report *all, int ranks)
{
    comm_sums sum = {0};
    for (int i = 0; i < ranks; i++) {
        sum.sent += all[i].messages.sent;
        sum.received += all[i].messages.received;
    }
    out->rank = -1;
    if (sum.sent != sum.received)
        find_pair(out, t);
    return sum.sent != sum.received;
}

static int count_like(const rank_report *all, int ranks, int i, axis a, bool same)
{
    int count = 0;
    for (int j = 0; j < ranks && all[i].replica[a] >= 0; j++)
        count += j != i && all[j].replica[a] == all[i].replica[a] && (all[j].weights[a] == all[i].weights[a]) == same;
    return count;
}

/* Finds a rank that differs from most of its replicas along an axis. */
static bool judge_along(verdict *out, const training *t, const rank_report *all, int ranks, axis a)
{
    for (int i = 0; i < ranks; i++) {
        int like = count_like(all, ranks, i, a, true), unlike = count_like(all, ranks, i, a, false);
        if (unlike <= like) /* if they are equal, later ranks are examined */
            continue;
        out->rank = unlike > 1 ? i : -1;
        if (unlike > 1)
            snprintf(
                out->words, sizeof out->words,
                "step %lld: the weights of rank %d on %s are not those of %d other ranks that should have the same",
                (long long)t->at.step, i, t->hosts[i], unlike);
        else
            snprintf(out->words, sizeof out->words,
                     "step %lld: the weights of rank %d on %s are not those of the one other rank that should have the "
                     "same: which of the two is wrong cannot be told",
                     (long long)t->at.step, i, t->hosts[i]);
        return true;
    }
    return false;
}

static bool find_bad_rank(verdict *out, training *t, const rank_report *all, const verify_finding *mine)
{
    int ranks = comm_ranks(t->world), first = 0;
    while (first < ranks && !all[first].bad)
        first++;
    if (first < ranks) {
        out->rank = first;
        char words[sizeof mine->words];
        memcpy(words, mine->words, sizeof words);
        comm_broadcast_bytes(comm_world(t->world), words, sizeof words, out->rank);
        snprintf(out->words, sizeof out->words, "rank %d on %s: %s", out->rank, t->hosts[out->rank], words);
        return true;
    }
    bool bad = judge_messages(out, t, all, ranks);
    for (axis a = 0; a < AXIS_COUNT && !bad; a++)
        bad = judge_along(out, t, all, ranks, a);
    return bad;
}

/* ---- reactions --------------------------------------------------------------------------------------------------- */

static status undo_step(training *t, const verdict *v)
{
    int64_t from = t->at.step;
    if (comm_rank(t->world) == 0) {
        watchdog_text text;
        incident what = training_make_incident(t, &text, INCIDENT_NUMBERS, v->words, v->rank);
        what.host = v->rank >= 0 ? t->hosts[v->rank] : NULL;
        log_warn("%s", v->words);
        if (t->guards.unverified + 1 >= MOST_TIMES)
            incident_log_hold(&t->ending, &what);
        else
            (void)incident_log_append(t->folder, &what);
    }
    if (++t->guards.unverified >= MOST_TIMES)
        return status_fail(STATUS_FAILED, "%s; %d verifications in a row have failed: leave out that host", v->words,
                           t->guards.unverified);
    TRY(training_go_back(t));
    verify_begin(t->guards.verify);
    comm_check(t->world);
    log_info("going on after step %lld, the last that is verified", (long long)t->at.step);
    const report_event event = {.kind = "undone", .step = t->at.step, .from = from, .words = v->words};
    return training_report_undone(t, &event);
}

/* Reports, between two verifications, the share of time that verification takes. */
static void say_price(training *t, const rank_report *all)
{
    double most = 0, trained = t->counts.trained_seconds;
    for (int i = 0; i < comm_ranks(t->world); i++)
        most = all[i].seconds > most ? all[i].seconds : most;
    double price = (most - t->guards.verify_seconds) / (trained - t->guards.verify_trained);
    if (t->device != &device_cpu) /* its repetition is not timed */
        price += 1.0 / t->config->run.verify_every / t->compiled.options.microbatches;
    if (t->guards.verify_trained > 0 && !t->guards.price_reported) {
        t->guards.price_reported = true;
        if (price > 0.02)
            log_info("run.verify_every=%d takes %.1f%% of the time, 1 / %d of the forward and backward passes being "
                     "repeated",
                     t->config->run.verify_every, 100 * price,
                     t->config->run.verify_every * t->compiled.options.microbatches);
    }
    t->guards.verify_seconds = most;
    t->guards.verify_trained = trained;
}

status training_verify(bool *undone, training *t)
{
    int ranks = comm_ranks(t->world);
    *undone = false;
    if (!t->guards.verify || t->at.past.verified == t->at.step)
        return STATUS_OK;
    watchdog_enter(t->watchdog, DURING_STEP, false, t->at.step, "verifying");
    verify_finding mine = verify_find(t->guards.verify);
    rank_report here = {.messages = comm_sums_with(t->world, -1), .seconds = mine.seconds, .bad = mine.bad},
                *all = must_alloc((unsigned long)ranks * sizeof *all);
    memcpy(here.weights, mine.weights, sizeof here.weights);
    for (axis a = 0; a < AXIS_COUNT; a++)
        here.replica[a] = mine.compared >> a & 1 ? grid_member(&t->compiled.options.grid, a, 0) : -1;
    for (int i = 0; i < ranks; i++)
        t->guards.pairs[i] = comm_sums_with(t->world, i);
    comm_all_gather_bytes(comm_world(t->world), all, &here, sizeof here);
    verdict v = {.rank = -1};
    status s = STATUS_OK;
    *undone = find_bad_rank(&v, t, all, &mine);
    if (*undone) {
        s = undo_step(t, &v);
    } else {
        say_price(t, all);
        t->at.past.verified = t->at.step;
        t->guards.unverified = 0;
    }
    free(all);
    return s;
}
