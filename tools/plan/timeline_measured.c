/* Reads a run's trace: one file for each rank, one event for each line. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/run/trace.h"
#include "engine/system/reading.h"
#include "memory/log.h"
#include "tools/plan/timeline_picture.h"

enum { MOST_RANKS = 64 };
#define NANOSECOND 1e-3

typedef struct reading {
    picture_row *row;
    picture_names *names;
    const char *path;
    int64_t step; /* wanted step, or the last one so far */
    bool any;     /* the last step is wanted */
    int latest;   /* op of the step; -1: none yet */
    json_t *open; /* start times of open transfers, by id */
    int bad;      /* unreadable lines */
} reading;

static int along_of(const char *name)
{
    for (int a = 0; a < PICTURE_ALONG; a++)
        if (name && strcmp(picture_along(a), name) == 0)
            return a;
    return PICTURE_ALONG;
}

static void forget(reading *r)
{
    r->row->span_count = r->row->transfer_count = r->row->flow_count = 0;
    r->latest = -1;
    json_object_clear(r->open);
}

/* Tells whether an event belongs to the wanted step. Discards events of an earlier step, and of the same step if it was
 * undone and redone, which an op out of order shows. */
static bool wanted(reading *r, int64_t step, int index)
{
    if (r->any && step > r->step) {
        r->step = step;
        forget(r);
    }
    if (step == r->step && index < r->latest)
        forget(r);
    return step == r->step;
}

static void take_transfer(reading *r, const char *name, const char *kind, const char *id, const char *along, double at)
{
    if (*kind == 'b') {
        json_object_set_new(r->open, id, json_real(at));
        return;
    }
    const json_t *began = json_object_get(r->open, id);
    if (began && along_of(along) < PICTURE_ALONG)
        picture_add_transfer(
            r->row, (picture_transfer){json_real_value(began), at, along_of(along), picture_name(r->names, name)});
    json_object_del(r->open, id);
}

/* Returns the kind of a span; `about`: an op's name. */
static picture_kind kind_of(const char *about, phase p, bool stages)
{
    if (strcmp(about, op_rows[OP_wait].name) == 0)
        return stages ? PICTURE_BUBBLE : PICTURE_WAIT;
    for (int k = 0; k < OP_COUNT; k++)
        if (strcmp(about, op_rows[k].name) == 0 &&
            (op_rows[k].class == OP_CLASS_COMMUNICATION || op_rows[k].class == OP_CLASS_HOST))
            return PICTURE_LAUNCH;
    return picture_kind_of(p);
}

static void take_event(reading *r, json_t *event)
{
    const char *name, *kind, *about = "", *within = "", *along = "";
    double at = 0, lasts = 0;
    json_int_t step = 0;
    int index = 0, chunk = 0, microbatch = -1;
    if (json_unpack(event, "{s:s, s:s, s?s, s?F, s?F}", "name", &name, "ph", &kind, "cat", &about, "ts", &at, "dur",
                    &lasts)) {
        r->bad++;
        return;
    }
    if (*kind == 'M' || *kind == 'C')
        return;
    if (json_unpack(event, "{s:{s:I, s:i, s:s, s:i, s:i, s?s}}", "args", "step", &step, "op", &index, "phase", &within,
                    "chunk", &chunk, "micro_batch", &microbatch, "axis", &along)) {
        r->bad++;
        return;
    }
    int p = 0;
    while (p < PHASE_COUNT && strcmp(phase_name((phase)p), within) != 0)
        p++;
    bool spans = *kind == 'X';
    if (p == PHASE_COUNT || index < 0 || !wanted(r, step, spans ? index : r->latest))
        return;
    r->latest = spans ? index : r->latest;
    const json_t *id = json_object_get(event, "id");
    if (json_is_integer(id)) {
        picture_add_flow(r->row, (picture_flow){at, json_integer_value(id), *kind == 'f'});
        return;
    }
    if (!spans) {
        take_transfer(r, name, kind, json_is_string(id) ? json_string_value(id) : "", about, at);
        return;
    }
    int what = along_of(along);
    bool stages = what == PICTURE_ALONG || (what < AXIS_COUNT && axis_rows[what].edges);
    picture_add_span(r->row, (picture_span){.begin = at,
                                            .end = at + lasts,
                                            .kind = kind_of(about, (phase)p, stages),
                                            .name = picture_name(r->names, name),
                                            .microbatch = microbatch,
                                            .chunk = chunk,
                                            .op = index,
                                            .along = what});
}

static status read_rank(reading *r)
{
    AUTO_FREE char *line = NULL;
    size_t room = 0;
    ssize_t bytes;
    AUTO(FILE) *in = reading_stream(r->path);
    if (!in)
        return status_fail(STATUS_FAILED, "%s cannot be read: %s", r->path, strerror(errno));
    while ((bytes = getline(&line, &room, in)) > 0) {
        while (bytes > 0 && (line[bytes - 1] == '\n' || line[bytes - 1] == ','))
            bytes--;
        if (bytes < 2)
            continue;
        json_auto_t *event = json_loadb(line, (size_t)bytes, 0, NULL);
        if (event)
            take_event(r, event);
        else
            r->bad++; /* a killed run's last line */
    }
    if (ferror(in))
        return status_fail(STATUS_FAILED, "%s cannot be read", r->path);
    if (r->bad > 1)
        return status_fail(STATUS_FAILED, "%s has %d lines that are no events of a trace", r->path, r->bad);
    return STATUS_OK;
}

static status add_rank(picture *out, picture_names *names, const char *run, int64_t *step, const compile_options *all,
                       int rank)
{
    compile_options o = *all;
    AUTO_FREE char *path = must_format("%s/" TRACE_FOLDER "/" TRACE_FILE, run, rank);
    reading r = {.names = names, .path = path, .step = *step, .any = *step < 0, .latest = -1, .open = json_object()};
    r.row = &APPEND(out->rows, out->count);
    o.grid = grid_for_rank(&all->grid, rank);
    *r.row = (picture_row){.name = must_format("rank %d, stage %d", rank, o.grid.at[GRID_PIPELINE]), .rank = rank};
    status s = read_rank(&r);
    if (s == STATUS_OK && r.row->span_count == 0)
        s = *step < 0 ? status_fail(STATUS_FAILED, "%s has no step", path)
                      : status_fail(STATUS_FAILED, "%s has no step %lld", path, (long long)*step);
    *step = r.step;
    json_decref(r.open);
    TRY(s);
    RELEASED_BY(compile_free) compiled c = {0};
    TRY(compile(&c, &o));
    if (c.training.list.count > r.row->spans[r.row->span_count - 1].op)
        picture_take_memory(r.row, &c);
    return STATUS_OK;
}

/* Makes times relative to the first rank's start, and sets ends of ops: a launch ends with the op before it. */
static void set_times(picture *p)
{
    double first = INFINITY;
    for (int i = 0; i < p->count; i++)
        for (int k = 0; k < p->rows[i].span_count; k++)
            first = p->rows[i].spans[k].begin < first ? p->rows[i].spans[k].begin : first;
    for (int i = 0; i < p->count; i++) {
        picture_row *r = &p->rows[i];
        for (int k = 0; k < r->transfer_count; k++) {
            r->transfers[k].begin -= first;
            r->transfers[k].end -= first;
        }
        for (int k = 0; k < r->flow_count; k++)
            r->flows[k].at -= first - NANOSECOND; /* the trace shifted it into its span */
        for (int k = 0; k < r->span_count; k++) {
            picture_span *s = &r->spans[k];
            s->begin -= first;
            s->end -= first;
            p->length = s->end > p->length ? s->end : p->length;
            if (s->op < r->ops)
                r->ends[s->op] = s->end;
        }
        for (int k = 1; k < r->ops; k++)
            r->ends[k] = r->ends[k] > r->ends[k - 1] ? r->ends[k] : r->ends[k - 1];
    }
}

status timeline_measure(picture *out, bool *traced, picture_names *names, const char *run, int64_t step,
                        const compile_options *o)
{
    *out = (picture){.each = "rank", .chunks = o->layout.virtual_stages};
    AUTO_FREE char *first = must_format("%s/" TRACE_FOLDER "/" TRACE_FILE, run, 0);
    *traced = access(first, F_OK) == 0;
    status s = STATUS_OK;
    for (int rank = 0; *traced && s == STATUS_OK && rank < o->grid.ranks; rank++) {
        grid g = grid_for_rank(&o->grid, rank);
        if (g.ranks <= MOST_RANKS || grid_is_first(&g, AXIS_PIPELINE)) /* of a large run, the first of each stage */
            s = add_rank(out, names, run, &step, o, rank);
    }
    if (s != STATUS_OK || !*traced)
        return s;
    out->name = must_format("measured, step %lld", (long long)step);
    out->note =
        must_strdup("Bubble: waiting for other stages, or for the last rank. Launching: handing what travels to MPI. "
                    "Between ops: moving messages that are under way, or another process has the core.");
    set_times(out);
    picture_complete(out, names);
    return STATUS_OK;
}
