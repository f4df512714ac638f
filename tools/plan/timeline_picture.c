#include "tools/plan/timeline_picture.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/run/trace.h"
#include "memory/log.h"
#include "memory/scope.h"

enum { SHORT = 2000 }; /* actions absorb waits shorter than 1 / SHORT of a step */

/* ---- names ------------------------------------------------------------------------------------------------------- */

int picture_name(picture_names *n, const char *name)
{
    const json_t *there = json_object_get(n->place, name);
    if (there)
        return (int)json_integer_value(there);
    int place = (int)json_array_size(n->list);
    json_object_set_new(n->place, name, json_integer(place));
    json_array_append_new(n->list, json_string(name));
    return place;
}

const char *picture_along(int along)
{
    return along == PICTURE_HOST ? TRACE_HOST : axis_name((axis)along);
}

/* ---- rows -------------------------------------------------------------------------------------------------------- */

void picture_add_span(picture_row *r, picture_span s)
{
    APPEND(r->spans, r->span_count) = s;
}

void picture_add_transfer(picture_row *r, picture_transfer t)
{
    APPEND(r->transfers, r->transfer_count) = t;
}

void picture_add_flow(picture_row *r, picture_flow f)
{
    APPEND(r->flows, r->flow_count) = f;
}

void picture_take_memory(picture_row *r, const compiled *c)
{
    r->ops = c->training.list.count;
    r->ends = must_calloc((unsigned long)r->ops + 1, sizeof *r->ends);
    trace_marks_make(&r->marks, &c->training, &c->options);
    memcpy(r->class_bytes, c->class_bytes, sizeof r->class_bytes);
    r->arena = c->arena_bytes;
}

picture_kind picture_kind_of(phase p)
{
    static const picture_kind kinds[PHASE_COUNT] = {[PHASE_BEGIN] = PICTURE_UPDATE,
                                                    [PHASE_FORWARD] = PICTURE_FORWARD,
                                                    [PHASE_BACKWARD] = PICTURE_BACKWARD,
                                                    [PHASE_WEIGHT] = PICTURE_WEIGHT,
                                                    [PHASE_UPDATE] = PICTURE_UPDATE};
    return kinds[p];
}

const char *picture_kind_words(picture_kind kind)
{
    static const char *const words[PICTURE_KINDS] = {[PICTURE_FORWARD] = "forward",
                                                     [PICTURE_BACKWARD] = "backward",
                                                     [PICTURE_WEIGHT] = "weights' gradients",
                                                     [PICTURE_UPDATE] = "update",
                                                     [PICTURE_WAIT] = "waiting",
                                                     [PICTURE_BUBBLE] = "bubble",
                                                     [PICTURE_CORES] = "waiting for a core",
                                                     [PICTURE_LAUNCH] = "launching",
                                                     [PICTURE_BETWEEN] = "between ops"};
    return words[kind];
}

/* ---- every moment ------------------------------------------------------------------------------------------------ */

/* Orders spans or transfers, of which `begin` is the first member. */
static int by_begin(const void *a, const void *b)
{
    const double *x = a, *y = b;
    return (*x > *y) - (*x < *y);
}

void picture_fill(picture_row *r, double begin, double end, picture_kind kind, int name)
{
    if (end > begin)
        picture_add_span(r, (picture_span){.begin = begin,
                                           .end = end,
                                           .kind = kind,
                                           .name = name,
                                           .microbatch = -1,
                                           .op = -1,
                                           .along = PICTURE_ALONG});
}

/* Fills the time that no op and no wait covers. */
static void fill_gaps(picture_row *r, double length, picture_names *names)
{
    int between = picture_name(names, picture_kind_words(PICTURE_BETWEEN));
    double now = 0;
    qsort(r->spans, (size_t)r->span_count, sizeof *r->spans, by_begin);
    for (int i = 0, count = r->span_count; i < count; i++) {
        picture_fill(r, now, r->spans[i].begin, PICTURE_BETWEEN, between);
        now = r->spans[i].end > now ? r->spans[i].end : now;
    }
    picture_fill(r, now, length, PICTURE_BUBBLE, picture_name(names, PICTURE_LAST));
    qsort(r->spans, (size_t)r->span_count, sizeof *r->spans, by_begin);
}

void picture_complete(picture *p, picture_names *names)
{
    for (int i = 0; i < p->count; i++) {
        picture_row *r = &p->rows[i];
        fill_gaps(r, p->length, names);
        for (int k = 0; k < r->span_count; k++) {
            const picture_span *s = &r->spans[k];
            double share = p->length > 0 ? (s->end - s->begin) / p->length / p->count : 0;
            r->kinds[s->kind] += s->end - s->begin;
            p->kinds[s->kind] += share;
            if (s->kind == PICTURE_WAIT && s->along < PICTURE_ALONG)
                p->exposed[s->along] += share;
        }
    }
}

void picture_free(picture *p)
{
    for (int i = 0; i < p->count; i++) {
        picture_row *r = &p->rows[i];
        free(r->name);
        free(r->spans);
        free(r->transfers);
        free(r->ends);
        free(r->flows);
        trace_marks_free(&r->marks);
    }
    free(p->rows);
    free(p->name);
    free(p->note);
    json_decref(p->causes);
    *p = (picture){0};
}

/* ---- for the page ------------------------------------------------------------------------------------------------ */

static void append_number(json_t *list, double v)
{
    json_array_append_new(list, json_real(round(v * 1000) / 1000)); /* rounded to nanoseconds */
}

static void append_span(json_t *list, const picture_span *s)
{
    append_number(list, s->begin);
    append_number(list, s->end - s->begin);
    json_array_append_new(list, json_integer(s->kind));
    json_array_append_new(list, json_integer(s->name));
    json_array_append_new(list, json_integer(s->microbatch));
    json_array_append_new(list, json_integer(s->chunk));
}

/* Merges consecutive ops of one action, and short waits between them, into one span without its own name. */
static json_t *actions_of(const picture_row *r, double length, picture_names *names)
{
    json_t *list = json_array();
    picture_span now = {.end = -1};
    for (int i = 0; i < r->span_count; i++) {
        picture_span s = r->spans[i];
        bool wait = s.kind >= PICTURE_WAIT;
        if (wait && s.end - s.begin < length / SHORT)
            continue;
        if (!wait)
            s.name = picture_name(names, picture_kind_words(s.kind));
        bool same = now.kind == s.kind && now.microbatch == s.microbatch && now.chunk == s.chunk;
        if (now.end >= 0 && !wait && same && s.begin - now.end < length / SHORT) {
            now.end = s.end;
            continue;
        }
        if (now.end >= 0)
            append_span(list, &now);
        now = s;
    }
    if (now.end >= 0)
        append_span(list, &now);
    return list;
}

/* Returns the transfers of at least `least` microseconds: if there are many, a ten-thousandth of the step. */
static json_t *transfers_of(const picture_row *r, double least)
{
    json_t *list = json_array();
    for (int i = 0; i < r->transfer_count; i++) {
        const picture_transfer *t = &r->transfers[i];
        if (t->end - t->begin < least)
            continue;
        append_number(list, t->begin);
        append_number(list, t->end - t->begin);
        json_array_append_new(list, json_integer(t->along));
        json_array_append_new(list, json_integer(t->name));
    }
    return list;
}

int picture_sample_memory(picture_moment *out, const picture_row *r, double length)
{
    int count = 0;
    for (int i = 0, part = 0; part < PICTURE_MOMENTS && i < r->ops; part++) {
        double until = length * (part + 1) / PICTURE_MOMENTS;
        int most = i;
        double begin = i ? r->ends[i - 1] : 0;
        for (; i < r->ops && (part == PICTURE_MOMENTS - 1 || r->ends[i] <= until); i++)
            most = r->marks.kept[i] + r->marks.rest[i] > r->marks.kept[most] + r->marks.rest[most] ? i : most;
        out[count++] = (picture_moment){begin, r->marks.kept[most], r->marks.rest[most]};
    }
    return count;
}

static json_t *memory_of(const picture_row *r, double length)
{
    static const tensor_class persistent[] = {CLASS_INPUT, CLASS_WEIGHT, CLASS_GRADIENT, CLASS_OPTIMIZER};
    enum { PERSISTENT = sizeof persistent / sizeof *persistent };
    json_t *times = json_array(), *bytes = json_array(), *kept = json_array(), *rest = json_array();
    picture_moment moments[PICTURE_MOMENTS];
    int sampled = picture_sample_memory(moments, r, length);
    for (int i = 0; i < sampled; i++) {
        append_number(times, moments[i].begin);
        json_array_append_new(kept, json_integer(moments[i].kept));
        json_array_append_new(rest, json_integer(moments[i].rest));
    }
    size_t count = json_array_size(times);
    for (int k = 0; k < PERSISTENT; k++) {
        json_t *flat = json_array();
        for (size_t i = 0; i < count; i++)
            json_array_append_new(flat, json_integer(r->class_bytes[persistent[k]]));
        json_array_append_new(bytes, flat);
    }
    json_array_append_new(bytes, kept);
    json_array_append_new(bytes, rest);
    return json_pack("{s:o, s:o, s:I, s:f}", "times", times, "bytes", bytes, "arena", (json_int_t)r->arena, "length",
                     length);
}

static json_t *kinds_of(const double *kinds, int count)
{
    json_t *list = json_array();
    for (int k = 0; k < count; k++)
        json_array_append_new(list, json_real(kinds[k]));
    return list;
}

json_t *picture_json(const picture *p, const picture_names *names, int most_spans)
{
    json_t *rows = json_array(), *exposed = json_object();
    picture_names all = *names;
    int spans = 0;
    for (int i = 0; i < p->count; i++)
        spans += p->rows[i].span_count;
    bool many = spans > most_spans;
    for (int i = 0; i < p->count; i++) {
        picture_row *r = &p->rows[i];
        qsort(r->transfers, (size_t)r->transfer_count, sizeof *r->transfers, by_begin);
        json_t *shown = many ? actions_of(r, p->length, &all) : json_array();
        for (int k = 0; !many && k < r->span_count; k++)
            append_span(shown, &r->spans[k]);
        json_t *row = json_pack("{s:s, s:o, s:o, s:o}", "name", r->name, "kinds", kinds_of(r->kinds, PICTURE_KINDS),
                                "spans", shown, "transfers", transfers_of(r, many ? p->length / 10000 : 0));
        if (r->ops > 0)
            json_object_set_new(row, "memory", memory_of(r, p->length));
        json_array_append_new(rows, row);
    }
    for (int a = 0; a < PICTURE_ALONG; a++)
        if (p->exposed[a] > 0)
            json_object_set_new(exposed, picture_along(a), json_real(p->exposed[a]));
    AUTO_FREE char *note =
        must_format("%s%s%s", p->note ? p->note : "", p->note && many ? " " : "",
                    many ? "Too many ops for a page: each action is one, and transfers of less than a "
                           "ten-thousandth of the step are "
                           "left out."
                         : "");
    return json_pack("{s:s, s:s, s:s, s:f, s:f, s:o, s:o, s:O?, s:i, s:o}", "name", p->name, "each", p->each, "note",
                     note, "length", p->length, "bubble", p->kinds[PICTURE_BUBBLE], "kinds",
                     kinds_of(p->kinds, PICTURE_KINDS), "exposed", exposed, "causes", p->causes, "chunks", p->chunks,
                     "rows", rows);
}

/* ---- as events --------------------------------------------------------------------------------------------------- */

static const char *words_of(const picture_names *names, int name)
{
    return json_string_value(json_array_get(names->list, (size_t)name));
}

static void add_transfer_events(json_t *into, const picture_transfer *t, const picture_names *names, int process,
                                int id)
{
    char text[16];
    snprintf(text, sizeof text, "p%d", id);
    for (int k = 0; k < 2; k++)
        json_array_append_new(into, json_pack("{s:s, s:s, s:s, s:s, s:i, s:i, s:f}", "name", words_of(names, t->name),
                                              "cat", picture_along(t->along), "ph", k ? "e" : "b", "id", text, "pid",
                                              process, "tid", 1, "ts", k ? t->end : t->begin));
}

static void add_name(json_t *into, const char *what, int process, int thread, const char *name)
{
    json_array_append_new(into, json_pack("{s:s, s:s, s:i, s:i, s:{s:s}}", "name", what, "ph", "M", "pid", process,
                                          "tid", thread, "args", "name", name));
}

/* Adds an end of an arrow just inside the span that ends there. */
static void add_flow_event(json_t *into, const picture_flow *f, int process)
{
    json_t *event = json_pack("{s:s, s:s, s:s, s:I, s:i, s:i, s:f}", "name", "message", "cat", "message", "ph",
                              f->arrives ? "f" : "s", "id", (json_int_t)f->id, "pid", process, "tid", 0, "ts",
                              f->at > 0.001 ? f->at - 0.001 : f->at);
    if (f->arrives)
        json_object_set_new(event, "bp", json_string("e"));
    json_array_append_new(into, event);
}

/* Adds counters: bytes by class where they change, and the tokens that have finished their backward pass. */
static void add_counters(json_t *into, const picture_row *r, double length, int process)
{
    picture_moment moments[PICTURE_MOMENTS];
    json_int_t persistent = 0;
    for (int c = 0; c <= CLASS_OPTIMIZER; c++)
        persistent += r->class_bytes[c];
    for (int i = 0, sampled = picture_sample_memory(moments, r, length); i < sampled; i++)
        json_array_append_new(into,
                              json_pack("{s:s, s:s, s:i, s:f, s:{s:I, s:I, s:I}}", "name", "memory", "ph", "C", "pid",
                                        process, "ts", moments[i].begin, "args", "persistent", persistent, "kept",
                                        (json_int_t)moments[i].kept, "temporary", (json_int_t)moments[i].rest));
    for (int i = 0; i < r->ops; i++)
        if (i == 0 || r->marks.tokens[i] > r->marks.tokens[i - 1])
            json_array_append_new(into, json_pack("{s:s, s:s, s:i, s:f, s:{s:I}}", "name", "tokens", "ph", "C", "pid",
                                                  process, "ts", i ? r->ends[i] : 0.0, "args", "done",
                                                  (json_int_t)r->marks.tokens[i]));
}

void picture_events(json_t *into, const picture *p, const picture_names *names, int first)
{
    int id = first << 20;
    for (int i = 0; i < p->count; i++) {
        const picture_row *r = &p->rows[i];
        char *name = must_format("%s: %s", p->name, r->name);
        add_name(into, "process_name", first + i, 0, name);
        add_name(into, "thread_name", first + i, 0, "compute");
        add_name(into, "thread_name", first + i, 1, "transfers");
        json_array_append_new(into, json_pack("{s:s, s:s, s:i, s:{s:i}}", "name", "process_sort_index", "ph", "M",
                                              "pid", first + i, "args", "sort_index", first + i));
        free(name);
        for (int k = 0; k < r->span_count; k++) {
            const picture_span *s = &r->spans[k];
            json_array_append_new(into,
                                  json_pack("{s:s, s:s, s:s, s:i, s:i, s:f, s:f, s:{s:i, s:i, s:i}}", "name",
                                            words_of(names, s->name), "cat", picture_kind_words(s->kind), "ph", "X",
                                            "pid", first + i, "tid", 0, "ts", s->begin, "dur", s->end - s->begin,
                                            "args", "micro_batch", s->microbatch, "chunk", s->chunk, "op", s->op));
        }
        for (int k = 0; k < r->transfer_count; k++)
            add_transfer_events(into, &r->transfers[k], names, first + i, id++);
        for (int k = 0; k < r->flow_count; k++)
            add_flow_event(into, &r->flows[k], first + i);
        add_counters(into, r, p->length, first + i);
    }
}
