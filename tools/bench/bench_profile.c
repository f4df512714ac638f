#include "tools/bench/bench_parts.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <omp.h>

#include "engine/run/batch.h"
#include "engine/compile/time/profile.h"
#include "engine/run/executor.h"
#include "engine/files/output.h"
#include "engine/state/rank/state.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { STEPS = 5, WARM = 2, TIMES = 15 };

/* Model sizes span a tenth of the demo's to GPT-2's; sizes between are interpolated. Two micro-batches make gradients
 * both written and added to. */
static const struct {
    const char *words;
    int sequence, micro_batch;
} models[] = {
    {"architecture: llama, layers: 2, hidden_size: 64, heads: 2, ffn_size: 176, vocab_size: 512", 64, 2},
    {"architecture: llama, layers: 2, hidden_size: 128, heads: 4, kv_heads: 2, ffn_size: 352, vocab_size: 2048", 128,
     4},
    {"architecture: llama, layers: 2, hidden_size: 256, heads: 4, kv_heads: 2, ffn_size: 704, vocab_size: 4096", 256,
     4},
    {"architecture: llama, layers: 2, hidden_size: 256, heads: 4, kv_heads: 2, ffn_size: 704, vocab_size: 4096", 256,
     16},
    {"architecture: llama, layers: 1, hidden_size: 768, heads: 12, ffn_size: 2048, vocab_size: 8192", 256, 4},
    {"architecture: gpt2, layers: 2, hidden_size: 128, heads: 4, vocab_size: 2048", 128, 4},
    {"architecture: gpt2, layers: 2, hidden_size: 256, heads: 4, vocab_size: 4096", 256, 4},
    {"architecture: gpt2, layers: 1, hidden_size: 768, heads: 12, vocab_size: 16384", 512, 2},
};

/* Samples how attention's share of the peak grows with the sequence: a host gets cases of some seconds, a GPU enough
 * tokens that launch time is negligible. */
static const struct {
    const char *words;
    int tokens, sequences[6];
} lengths[] = {
    {"architecture: llama, layers: 1, hidden_size: 256, heads: 4, ffn_size: 64, vocab_size: 64",
     4096,
     {256, 1024, 4096}},
    {"architecture: llama, layers: 1, hidden_size: 2048, heads: 16, ffn_size: 64, vocab_size: 64",
     65536,
     {512, 1024, 2048, 4096, 8192, 16384}},
};

typedef struct measuring {
    profile *into;
    comm *world;
    const device_interface *device;
    int threads;
    bool rates; /* the profile stores attention's rate at this length */
} measuring;

/* ---- points ------------------------------------------------------------------------------------------------------ */

static bool same_kind(const profile_point *a, const profile_point *b)
{
    bool same = a->kind == b->kind && a->type == b->type && a->adds == b->adds && a->threads == b->threads;
    for (int i = 0; i < 3; i++)
        same &= fabs(a->size[i] - b->size[i]) < 0.5;
    return same;
}

/* Merges the new points (index >= `from`) of one size into their median, and drops the file's older points of the same
 * size and thread count. */
static void merge_points(profile *p, int from)
{
    profile_point *kept = must_alloc(((unsigned long)p->count + 1) * sizeof *kept);
    AUTO_FREE double *seconds = must_alloc(((unsigned long)p->count + 1) * sizeof *seconds);
    AUTO_FREE bool *taken = must_calloc((unsigned long)p->count + 1, sizeof *taken);
    int count = 0;
    for (int i = from; i < p->count; i++) {
        int same = 0;
        if (taken[i])
            continue;
        for (int k = 0; k < p->count; k++)
            if (!taken[k] && same_kind(&p->points[i], &p->points[k])) {
                taken[k] = true;
                if (k >= from)
                    seconds[same++] = p->points[k].seconds;
            }
        kept[count] = p->points[i];
        kept[count++].seconds = bench_median(seconds, same);
    }
    for (int i = 0; i < from; i++)
        if (!taken[i])
            kept[count++] = p->points[i];
    free(p->points);
    p->points = kept;
    p->count = count;
}

/* ---- ops --------------------------------------------------------------------------------------------------------- */

/* Times ops while all ranks play at the same time, as in training: they share caches and memory. */
static void time_ops(const measuring *m, executor *e, const compiled_program *of)
{
    int count = of->list.count;
    double *seconds[STEPS];
    for (int i = 0; i < WARM; i++)
        executor_play(e, of);
    bench_times *t = bench_times_open(e, of);
    for (int i = 0; i < STEPS; i++) {
        seconds[i] = must_calloc((unsigned long)count, sizeof *seconds[i]);
        comm_any(comm_world(m->world), false);
        (void)bench_times_play(t, seconds[i]);
    }
    bench_times_close(t);
    for (int i = 0; i < count; i++) {
        double each[STEPS];
        for (int k = 0; k < STEPS; k++)
            each[k] = seconds[k][i];
        seconds[0][i] = bench_median(each, STEPS);
        if (m->rates && seconds[0][i] > 0 && op_does(of->list.ops[i], OP_PAIRS))
            profile_take_attention(m->into, of->list.ops[i], seconds[0][i]);
    }
    for (int i = 0; i < count; i++)
        if (seconds[0][i] > 0 && !op_communicates(of->list.ops[i]) && !op_waits(of->list.ops[i]))
            APPEND(m->into->points, m->into->count) = profile_point_of(m->into, of->list.ops[i], seconds[0][i]);
    for (int i = 0; i < STEPS; i++)
        free(seconds[i]);
}

static status time_model(const measuring *m, const char *words, int sequence, int micro_batch, const char *precision)
{
    AUTO_FREE char *text =
        must_format("model: {%s, max_sequence: %d}\ntrain: {sequence: %d, micro_batch: %d, global_batch: %d, "
                    "precision: %s, threads: %d}\n",
                    words, sequence, sequence, micro_batch, 2 * micro_batch, precision, m->threads);
    RELEASED_BY(config_free) config c = {0};
    RELEASED_BY(bench_step_close) bench_step b = {0};
    TRY(config_parse(&c, "bench", text, strlen(text), 0, NULL));
    TRY(bench_step_open(&b, &c, m->device, m->threads, m->world, NULL));
    time_ops(m, b.executor, &b.compiled.training);
    return STATUS_OK;
}

/* Measures attention in bf16, which has the peak of half precision. A file that was measured before keeps its rates;
 * the points are added. */
static status time_lengths(measuring *m, bool host, bool fresh)
{
    const int which = host ? 0 : 1;
    status s = STATUS_OK;
    m->rates = fresh;
    m->into->lengths = fresh ? 0 : m->into->lengths;
    m->into->attention_pair = fresh ? 0 : m->into->attention_pair; /* measured rates include it */
    for (int i = 0; i < 6 && lengths[which].sequences[i] > 0 && s == STATUS_OK; i++) {
        const int sequence = lengths[which].sequences[i], batch = lengths[which].tokens / sequence;
        log_info("attention, %d x %d, bf16", batch, sequence);
        s = comm_all_status(comm_world(m->world), time_model(m, lengths[which].words, sequence, batch, "bf16"));
    }
    m->rates = false;
    return s;
}

/* ---- messages ---------------------------------------------------------------------------------------------------- */

/* Returns half of a round trip between the first two ranks, in seconds. */
static double time_message(const measuring *m, void *buffer, int64_t bytes)
{
    int me = comm_rank(m->world);
    double seconds[TIMES];
    comm_call send = {.kind = COMM_SEND,
                      .group = comm_world(m->world),
                      .type = DTYPE_UINT8,
                      .send = buffer,
                      .count = bytes,
                      .peer = 1 - me};
    comm_call receive = {.kind = COMM_RECEIVE,
                         .group = comm_world(m->world),
                         .type = DTYPE_UINT8,
                         .receive = buffer,
                         .count = bytes,
                         .source = 1 - me};
    for (int i = 0; i < TIMES; i++) {
        comm_any(comm_world(m->world), false);
        double begun = clock_seconds();
        if (me < 2) {
            comm_run(me ? &receive : &send);
            comm_run(me ? &send : &receive);
        }
        seconds[i] = (clock_seconds() - begun) / 2;
    }
    return bench_median(seconds, TIMES);
}

static void time_collectives(const measuring *m, char *send, char *receive, int64_t bytes)
{
    static const struct {
        comm_kind kind;
        op_kind of;
    } kinds[] = {
        {COMM_ALL_REDUCE, OP_all_reduce}, {COMM_ALL_GATHER, OP_all_gather}, {COMM_REDUCE_SCATTER, OP_reduce_scatter}};
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        comm_call call = {.kind = kinds[k].kind,
                          .group = comm_world(m->world),
                          .type = DTYPE_FP32,
                          .send = send,
                          .receive = receive,
                          .count = bytes / 4};
        comm_shape shape = comm_call_shape(&call);
        int64_t scratch = comm_scratch_bytes(&shape);
        call.scratch = scratch ? aligned_alloc(64, (size_t)(scratch + 63) / 64 * 64) : NULL;
        /* Seconds of the call on all members at the same time; the median is used. */
        double seconds[TIMES];
        for (int i = 0; i < TIMES; i++) {
            comm_any(comm_world(m->world), false);
            double begun = clock_seconds();
            comm_run(&call);
            seconds[i] = clock_seconds() - begun;
        }
        double took = bench_median(seconds, TIMES);
        APPEND(m->into->points, m->into->count) = profile_point_of_transfer(
            m->into, kinds[k].of, (double)comm_expected_bytes(&shape), comm_ranks(m->world), took);
        free(call.scratch);
    }
}

static void time_messages(const measuring *m)
{
    enum { MOST = 8 << 20 };
    AUTO_FREE char *send = must_calloc(1, MOST), *receive = must_calloc(1, MOST);
    profile *p = m->into;
    p->latency = time_message(m, send, 8);
    p->node = MOST / (time_message(m, send, MOST) - p->latency);
    for (int64_t bytes = 4096; bytes <= MOST; bytes *= 8) {
        APPEND(p->points, p->count) =
            profile_point_of_transfer(p, OP_send, (double)bytes, 1, time_message(m, send, bytes));
        time_collectives(m, send, receive, bytes);
    }
}

/* ------------------------------------------------------------------------------------------------------------------ */

/* Opens the profile that an earlier call has written, or the one that such a device begins with. */
static status begin(profile *out, const char *path, const devices_row *row, bool host, bool writes)
{
    if (writes) /* checks writability first, since measuring takes minutes */
        TRY(output_check(path));
    if (access(path, F_OK) == 0)
        return profile_open(out, path);
    TRY(profile_open(out, row && row->word ? row->word : DEVICES_ASSUMED));
    snprintf(out->name, sizeof out->name, "%.*s", PROFILE_NAME - 1, path);
    out->cores = host ? (int)sysconf(_SC_NPROCESSORS_ONLN) : 0;
    return STATUS_OK;
}

status bench_profile(const char *path, config_device where, comm *world)
{
    profile p = {0};
    measuring m = {.into = &p, .world = world, .device = &device_cpu};
    bool host = where == CONFIG_CPU;
    if (!host)
        TRY(device_find(&m.device, "cuda"));
    TRY(comm_all_status(comm_world(world),
                        begin(&p, path, m.device->row(comm_local_rank(world)), host, comm_rank(world) == 0)));
    int cores = omp_get_num_procs() / comm_local_ranks(world), from = p.count;
    m.threads = p.threads = cores > 0 ? cores : 1;
    omp_set_num_threads(m.threads);
    status s = STATUS_OK;
    /* Ranks that take turns on a core make an op's time meaningless. */
    bool turns = host && comm_local_ranks(world) > p.cores;
    if (!turns)
        s = time_lengths(&m, host, from == 0);
    for (size_t i = 0; i < sizeof models / sizeof *models && !turns; i++)
        for (int k = 0; k < PRECISION_COUNT && s == STATUS_OK; k++) {
            bool first = true; /* equal peaks take the same time: the first precision of each is measured */
            for (int other = 0; other < k; other++)
                first &= precision_rows[other].peak != precision_rows[k].peak;
            if (!first)
                continue;
            log_info("%s, %d x %d, %s", models[i].words, models[i].micro_batch, models[i].sequence, precision_words[k]);
            s = comm_all_status(comm_world(world), time_model(&m, models[i].words, models[i].sequence,
                                                              models[i].micro_batch, precision_words[k]));
        }
    if (s == STATUS_OK && comm_ranks(world) > 1 && host)
        time_messages(&m);
    merge_points(&p, from);
    if (s == STATUS_OK)
        s = comm_all_status(comm_world(world), comm_rank(world) == 0 ? profile_save(path, &p) : STATUS_OK);
    if (s == STATUS_OK)
        log_info("%s: %d measurements, of %d rank%s with %d thread%s each", path, p.count, comm_ranks(world),
                 comm_ranks(world) > 1 ? "s" : "", m.threads, m.threads > 1 ? "s" : "");
    profile_free(&p);
    return s;
}
