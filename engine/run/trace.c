#include "engine/run/trace.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/compile/model/tokens.h"
#include "engine/compile/step/place.h"
#include "engine/system/atomic.h"
#include "engine/system/lock.h"
#include "memory/machine.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- marks ---- */

static bool is_backward(const op *o)
{
    return o->microbatch >= 0 && (o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT);
}

/* Counts tokens as done at the last op of their micro-batch's backward pass over all chunks. */
static void count_tokens(int64_t *tokens, const program *list, const compile_options *o)
{
    int64_t each = tokens_count(o).rank, done = 0;
    int most = 0;
    for (int i = 0; i < list->count; i++)
        most = list->ops[i]->microbatch > most ? list->ops[i]->microbatch : most;
    AUTO_FREE int *last = must_calloc((unsigned long)most + 1, sizeof *last);
    for (int i = 0; i < list->count; i++)
        if (is_backward(list->ops[i]))
            last[list->ops[i]->microbatch] = i;
    for (int i = 0; i < list->count; i++) {
        done += is_backward(list->ops[i]) && last[list->ops[i]->microbatch] == i ? each : 0;
        tokens[i] = done;
    }
}

static bool one_way(const op *a, const op *b)
{
    return op_has(a, OP_MESSAGE) && a->where.peer == b->where.peer && a->where.upstream == b->where.upstream &&
           op_has(a, OP_LEAVES) == op_has(b, OP_LEAVES);
}

/* Numbers messages by searching backwards for the previous one of the same peer and direction: a rank has few peers. */
static void number_messages(int *message, const program *list)
{
    int ways[64], count = 0;
    for (int i = 0; i < list->count; i++) {
        const op *at = list->ops[i];
        message[i] = -1;
        if (!op_has(at, OP_MESSAGE))
            continue;
        int w = 0;
        while (w < count && !one_way(list->ops[ways[w]], at))
            w++;
        MUST(w < 64, "a rank with more than 64 kinds of messages");
        message[i] = w < count ? message[ways[w]] + 1 : 0;
        count += w == count;
        ways[w] = i;
    }
}

void trace_marks_make(trace_marks *out, const compiled_program *p, const compile_options *o)
{
    unsigned long ops = (unsigned long)p->list.count + 1;
    *out = (trace_marks){.kept = must_alloc(ops * sizeof *out->kept),
                         .rest = must_alloc(ops * sizeof *out->rest),
                         .tokens = must_alloc(ops * sizeof *out->tokens),
                         .message = must_alloc(ops * sizeof *out->message)};
    alive_find(out->kept, out->rest, p);
    count_tokens(out->tokens, &p->list, o);
    number_messages(out->message, &p->list);
}

void trace_marks_free(trace_marks *m)
{
    free(m->kept);
    free(m->rest);
    free(m->tokens);
    free(m->message);
    *m = (trace_marks){0};
}

/* FNV-1a over the five values. */
int64_t trace_marks_flow(int64_t step, int from, int to, bool upstream, int number)
{
    const uint64_t parts[] = {(uint64_t)step, (uint64_t)from, (uint64_t)to, upstream, (uint64_t)number};
    uint64_t hash = 14695981039346656037u;
    for (unsigned i = 0; i < sizeof parts / sizeof *parts; i++)
        for (int byte = 0; byte < 8; byte++)
            hash = (hash ^ (parts[i] >> 8 * byte & 255)) * 1099511628211u;
    return (int64_t)((hash ^ hash >> 52) & ((1ULL << 52) - 1));
}

#define NANOSECOND 1e-3 /* 1 ns in microseconds: the precision of a trace */
enum { ROUNDS = 9, COMPUTES = 0, COMMUNICATES = 1, LABEL = 256 };

struct trace {
    executor *executor;
    const device_interface *interface;
    device *device;
    int rank;
    grid grid;
    char *folder, *path;
    lock *owner;
    FILE *file; /* NULL: not begun, or given up */
    bool lost, on;
    double *times; /* [2 * ops] begin and end: seconds of this host's clock, or of the device since `began` */
    int *launched; /* [requests] the op that launched it; -1: not in this step */
    const compiled *compiled;
    trace_marks *marks; /* [COMPILE_PROGRAMS] */
    double origin;      /* begin of the first traced step on rank 0, by this host's clock */
    double offset;      /* this host's clock minus rank 0's */
    comm_group *all;
    double began;  /* begin of this step, by this host's clock */
    double within; /* microseconds: in the latest span, near its end, or where a launch begins */
    bool first;    /* true until a step is traced */
};

/* ---- clocks ------------------------------------------------------------------------------------------------------ */

static int compare_doubles(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* Estimates this host's clock minus rank 0's: ranks leave an exchange at about the same time; takes the median of
 * several. Other work that delays a rank adds its delay as error; ranks on one machine need no estimate. */
static double offset_to_first(comm_group *all, int ranks, int rank)
{
    double more[ROUNDS], *times = must_alloc((unsigned long)ranks * sizeof *times);
    for (int i = 0; i < ROUNDS; i++) {
        double now = clock_seconds();
        comm_all_gather_bytes(all, times, &now, sizeof now);
        more[i] = now - times[0];
    }
    free(times);
    qsort(more + 1, ROUNDS - 1, sizeof *more, compare_doubles); /* unaligned before the first exchange */
    /* Ranks on rank 0's machine share its clock. */
    char mine[MACHINE_BOOT], *every = must_alloc((unsigned long)ranks * MACHINE_BOOT);
    bool same = machine_boot(mine);
    comm_all_gather_bytes(all, every, mine, MACHINE_BOOT);
    same &= memcmp(every, mine, MACHINE_BOOT) == 0;
    free(every);
    return rank && !same ? more[1 + (ROUNDS - 1) / 2] : 0;
}

/* ---- recording --------------------------------------------------------------------------------------------------- */

static bool is_launched(const op *o)
{
    return op_starts(o);
}

static void stamp_op(trace *t, int at, const op *o)
{
    if (t->on && t->interface->times.stamp)
        t->interface->times.stamp(t->device, CLOCK_TRACE, at, o);
    else if (t->on)
        t->times[at] = clock_seconds();
}

static void before_op(void *context, const compiled_program *p, int i)
{
    stamp_op(context, 2 * i, p->list.ops[i]);
}

static void after_op(void *context, const compiled_program *p, int i)
{
    stamp_op(context, 2 * i + 1, p->list.ops[i]);
}

static int most_ops(const compiled *c, int *requests)
{
    int most = 1;
    *requests = 1;
    for (int i = 0; i < COMPILE_PROGRAMS; i++) {
        const compiled_program *p = compile_program_at((compiled *)c, i);
        most = p->list.count > most ? p->list.count : most;
        *requests = p->requests > *requests ? p->requests : *requests;
    }
    return most;
}

status trace_open(trace **out, const compiled *c, executor *e, comm *world, const char *run, lock *owner)
{
    int requests, ops = most_ops(c, &requests);
    trace *t = must_calloc(1, sizeof *t);
    t->folder = must_format("%s/" TRACE_FOLDER, run);
    t->owner = owner;
    t->executor = e;
    t->interface = executor_device(e, &t->device);
    t->rank = comm_rank(world);
    t->grid = c->options.grid;
    t->all = comm_world(world);
    t->path = must_format("%s/" TRACE_FILE, t->folder, t->rank);
    t->times = must_calloc(2 * (unsigned long)ops, sizeof *t->times);
    t->launched = must_calloc((unsigned long)requests, sizeof *t->launched);
    t->first = true;
    t->compiled = c;
    t->marks = must_calloc(COMPILE_PROGRAMS, sizeof *t->marks);
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        trace_marks_make(&t->marks[i], compile_program_at((compiled *)c, i), &c->options);
    *out = t;
    TRY(comm_all_status(t->all, t->rank == 0 ? atomic_make_folders(t->folder) : STATUS_OK));
    t->offset = offset_to_first(t->all, comm_ranks(world), t->rank);
    if (t->interface->times.stamps)
        t->interface->times.stamps(t->device, CLOCK_TRACE, 2 * ops);
    executor_observe(e, OBSERVES_TIMES, (executor_observer){t, before_op, after_op, NULL});
    return STATUS_OK;
}

/* Removes files left by an earlier start with more ranks. */
static void remove_older(const trace *t)
{
    char *path = NULL;
    for (int rank = t->grid.ranks, there = 1; there; rank++) {
        path = must_format("%s/" TRACE_FILE, t->folder, rank);
        there = unlink(path) == 0;
        free(path);
    }
}

void trace_begin(trace *t)
{
    t->on = true;
    executor_op_by_op(t->executor, true);
    t->began = clock_seconds();
    if (t->first) {
        double origin = t->began;
        if (t->rank == 0 && lock_check(t->owner) == STATUS_OK)
            remove_older(t);
        comm_broadcast_bytes(t->all, &origin, sizeof origin, 0);
        t->origin = origin + t->offset;
        t->first = false;
    }
}

/* ---- writing ----------------------------------------------------------------------------------------------------- */

/* Replaces characters that JSON would escape. */
static const char *plain_label(char out[LABEL], const char *text)
{
    int n = 0;
    for (; *text && n < LABEL - 1; text++)
        out[n++] = (char)(*text == '"' || *text == '\\' || (unsigned char)*text < ' ' ? '_' : *text);
    out[n] = 0;
    return out;
}

static double microseconds(const trace *t, double time)
{
    return 1e6 * (t->interface->times.stamp ? t->began + time - t->origin : time - t->origin);
}

/* Writes the arguments of an op; `along`: the axis of the message that a wait waits for; else NULL. */
static void write_where(trace *t, const op *o, int i, int64_t step, const char *along)
{
    fprintf(t->file, ",\"args\":{\"step\":%lld,\"op\":%d,\"phase\":\"%s\",\"chunk\":%d,\"micro_batch\":%d",
            (long long)step, i, phase_name((phase)o->phase), o->chunk, o->microbatch);
    if (along)
        fprintf(t->file, ",\"axis\":\"%s\"", along);
    fprintf(t->file, "}},\n");
}

static void write_span(trace *t, const op *o, int i, int64_t step, const char *label, const char *along)
{
    char name[LABEL];
    double from = microseconds(t, t->times[2 * i]), to = microseconds(t, t->times[2 * i + 1]);
    fprintf(t->file, "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f",
            plain_label(name, label), op_row_of(o)->name, t->rank, COMPUTES, from, to > from ? to - from : 0);
    t->within = to - NANOSECOND > from ? to - NANOSECOND : from;
    write_where(t, o, i, step, along);
}

static const char *along_of(const op *o)
{
    return op_copies(o) ? TRACE_HOST : axis_name((axis)o->where.axis);
}

/* Writes a transfer as a pair of events with an id, since transfers overlap. */
static void write_transfer(trace *t, const op *o, int i, int64_t step, double begin, double end)
{
    char name[LABEL];
    for (int k = 0; k < 2; k++) {
        fprintf(t->file,
                "{\"name\":\"%s\",\"cat\":\"%s\",\"ph\":\"%s\",\"id\":\"%lld.%d\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f",
                plain_label(name, o->label), along_of(o), k ? "e" : "b", (long long)step, i, t->rank, COMMUNICATES,
                microseconds(t, k ? end : begin));
        write_where(t, o, i, step, NULL);
    }
}

static void write_head(trace *t)
{
    char place[GRID_WORDS];
    int stage = t->grid.at[GRID_PIPELINE];
    grid_words(place, t->grid.at, grid_shown(t->grid.size) & ~(1u << GRID_PIPELINE), ", ", NULL);
    fprintf(t->file, "[\n");
    fprintf(t->file,
            "{\"name\":\"process_name\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"name\":\"rank %d: stage %d, %s\","
            "\"stage\":%d}},\n",
            t->rank, t->rank, stage, place, stage);
    fprintf(t->file, "{\"name\":\"process_sort_index\",\"ph\":\"M\",\"pid\":%d,\"args\":{\"sort_index\":%d}},\n",
            t->rank, t->rank);
    for (int thread = COMPUTES; thread <= COMMUNICATES; thread++)
        fprintf(t->file, "{\"name\":\"thread_name\",\"ph\":\"M\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}},\n",
                t->rank, thread, thread == COMPUTES ? "compute" : "transfers");
}

/* Writes one end of a message's arrow, within the span after which it was sent or the one that waited for it. */
static void write_flow(trace *t, const op *o, int number, int i, int64_t step)
{
    bool leaves = op_has(o, OP_LEAVES);
    int from = leaves ? t->rank : o->where.peer, to = leaves ? o->where.peer : t->rank;
    fprintf(t->file,
            "{\"name\":\"message\",\"cat\":\"message\",\"ph\":\"%s\",\"id\":%lld,\"pid\":%d,\"tid\":%d,\"ts\":%.3f%s",
            leaves ? "s" : "f", (long long)trace_marks_flow(step, from, to, o->where.upstream, number), t->rank,
            COMPUTES, t->within, leaves ? "" : ",\"bp\":\"e\"");
    write_where(t, o, i, step, NULL);
}

static void write_memory(trace *t, const trace_marks *m, int i)
{
    if (i > 0 && m->kept[i] == m->kept[i - 1] && m->rest[i] == m->rest[i - 1])
        return;
    fprintf(t->file,
            "{\"name\":\"memory\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"persistent\":%lld,\"kept\":%lld,"
            "\"temporary\":%lld}},\n",
            t->rank, microseconds(t, t->times[2 * i]), (long long)t->compiled->persistent_bytes, (long long)m->kept[i],
            (long long)m->rest[i]);
}

/* Writes the counters after an op. Skips launches: on a device their time is their transfer's. */
static void write_counters(trace *t, const trace_marks *m, const op *o, int i)
{
    if (is_launched(o))
        return;
    write_memory(t, m, i);
    if (i == 0 || m->tokens[i] > m->tokens[i - 1])
        fprintf(t->file, "{\"name\":\"tokens\",\"ph\":\"C\",\"pid\":%d,\"ts\":%.3f,\"args\":{\"done\":%lld}},\n",
                t->rank, microseconds(t, t->times[2 * i + (i > 0)]), (long long)m->tokens[i]);
}

/* Writes an op's span. If the host moves messages, each lasts until it has been waited for. */
static void write_op(trace *t, const compiled_program *p, const trace_marks *m, int i, int64_t step)
{
    const op *o = p->list.ops[i];
    char label[LABEL];
    write_counters(t, m, o, i);
    if (is_launched(o)) {
        t->launched[o->where.request] = i;
        snprintf(label, sizeof label, "launch %s", o->label);
        if (!t->interface->times.stamp) {
            write_span(t, o, i, step, label, NULL);
            t->within = microseconds(t, t->times[2 * i]); /* it may arrive before the launch ends */
        }
        if (m->message[i] >= 0 && op_has(o, OP_LEAVES))
            write_flow(t, o, m->message[i], i, step);
        if (t->interface->times.stamp && o->where.bundle + 1 >= o->where.bundle_of)
            write_transfer(t, o, i, step, t->times[2 * i], t->times[2 * i + 1]);
    } else if (op_waits(o)) {
        int from = t->launched[o->where.request];
        const op *launch = p->list.ops[from];
        snprintf(label, sizeof label, "wait for %s", launch->label);
        write_span(t, o, i, step, label, along_of(launch));
        if (!t->interface->times.stamp)
            write_transfer(t, launch, from, step, t->times[2 * from + 1], t->times[2 * i + 1]);
        if (m->message[from] >= 0 && !op_has(launch, OP_LEAVES))
            write_flow(t, launch, m->message[from], from, step);
    } else {
        write_span(t, o, i, step, o->label, NULL);
    }
}

static FILE *open_new(const char *path)
{
    int file = atomic_create(path, 0666);
    return file < 0 ? NULL : fdopen(file, "w");
}

void trace_end(trace *t, const compiled_program *p, int64_t step)
{
    t->on = false;
    executor_op_by_op(t->executor, false);
    t->lost = t->lost || lock_check(t->owner) != STATUS_OK;
    if (t->lost)
        return;
    for (int i = 0; t->interface->times.stamp && i < 2 * p->list.count; i++)
        t->times[i] = t->interface->times.seconds(t->device, CLOCK_TRACE, 0, i);
    if (!t->file && (t->file = open_new(t->path)))
        write_head(t);
    int which = 0;
    while (which + 1 < COMPILE_PROGRAMS && compile_program_at((compiled *)t->compiled, which) != p)
        which++;
    if (t->file)
        for (int i = 0; i < p->list.count; i++)
            write_op(t, p, &t->marks[which], i, step);
    if (!t->file || fflush(t->file) != 0) {
        log_warn("%s cannot be written: %s; the run goes on untraced", t->path, strerror(errno));
        t->lost = true;
    }
}

void trace_close(trace *t)
{
    if (!t)
        return;
    if (t->file && (t->lost || lock_check(t->owner) != STATUS_OK)) {
        fclose(t->file);
    } else if (t->file) {
        fprintf(t->file, "{\"name\":\"end\",\"ph\":\"M\",\"pid\":%d,\"args\":{}}\n]\n", t->rank);
        if (fclose(t->file) != 0)
            log_warn("%s cannot be written: %s", t->path, strerror(errno));
    }
    if (t->interface->times.stamps)
        t->interface->times.stamps(t->device, CLOCK_TRACE, 0);
    executor_observe(t->executor, OBSERVES_TIMES, (executor_observer){0});
    free(t->folder);
    free(t->path);
    free(t->times);
    free(t->launched);
    for (int i = 0; i < COMPILE_PROGRAMS; i++)
        trace_marks_free(&t->marks[i]);
    free(t->marks);
    free(t);
}
