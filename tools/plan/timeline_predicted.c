/* Converts the plan's step, played on simulated queues, into a picture. */
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tools/plan/timeline_picture.h"

enum { CAUSES = 5 };

static int along_of(const op *o)
{
    return op_copies(o) ? PICTURE_HOST : (int)o->where.axis;
}

/* Splits a wait into waits for other stages, for the earlier transfers of its queue, and for its own transfer. */
static void take_wait(picture_row *r, picture_names *names, picture_span s, const timing_span *at, const op *from)
{
    const double begins[] = {1e6 * at->begin, 1e6 * (at->begin + at->idle), 1e6 * (at->begin + at->idle + at->behind),
                             1e6 * at->end};
    for (int k = 0; k < 3; k++) {
        AUTO_FREE char *words = k == 1 ? must_format("wait for %s, behind %s", from->label, axis_name((axis)at->before))
                                       : must_format("wait for %s", from->label);
        s.begin = begins[k];
        s.end = begins[k + 1];
        s.kind = k == 0 ? PICTURE_BUBBLE : PICTURE_WAIT;
        s.along = k == 1 ? at->before : along_of(from);
        s.name = picture_name(names, words);
        if (s.end > s.begin)
            picture_add_span(r, s);
    }
}

/* Adds a message's start, where its sender launched it, or its end. Rows and the ends of a message are stages. */
static void take_message(picture_row *r, const timing *t, const op *o, int number, int stage, double at)
{
    bool leaves = op_has(o, OP_LEAVES);
    int peer = grid_for_rank(&t->ranks[stage].grid, o->where.peer).at[GRID_PIPELINE];
    picture_add_flow(
        r,
        (picture_flow){at, trace_marks_flow(0, leaves ? stage : peer, leaves ? peer : stage, o->where.upstream, number),
                       !leaves});
}

/* Adds the span or transfer of op `i` of the stage; `launched`: the launching op of each request. */
static void take_op(picture_row *r, picture_names *names, const timing *t, const program *list, const int *launched,
                    int stage, int i)
{
    const op *o = list->ops[i];
    timing_span at = timing_op_at(t, stage, i);
    r->ends[i] = 1e6 * at.free;
    int from = op_waits(o) ? launched[o->where.request] : i, number = r->marks.message[from];
    if (number >= 0 && op_has(list->ops[from], OP_LEAVES) != op_waits(o))
        take_message(r, t, list->ops[from], number, stage, r->ends[i]);
    if (op_starts(o)) {
        if (at.end > at.begin)
            picture_add_transfer(
                r, (picture_transfer){1e6 * at.begin, 1e6 * at.end, along_of(o), picture_name(names, o->label)});
        return;
    }
    if (at.end <= at.begin)
        return;
    picture_span s = {.begin = 1e6 * at.begin,
                      .end = 1e6 * at.end,
                      .kind = picture_kind_of((phase)o->phase),
                      .microbatch = o->microbatch,
                      .chunk = o->chunk,
                      .op = i,
                      .along = PICTURE_ALONG};
    if (op_waits(o)) {
        take_wait(r, names, s, &at, list->ops[launched[o->where.request]]);
        return;
    }
    s.name = picture_name(names, o->label);
    picture_add_span(r, s);
}

static status add_stage(picture *out, picture_names *names, const plan *p, int stage)
{
    compile_options o = p->options;
    RELEASED_BY(compile_free) compiled c = {0};
    o.grid = p->timing.ranks[stage].grid;
    picture_row *r = &out->rows[out->count++];
    *r = (picture_row){.name = must_format("stage %d", stage), .rank = o.grid.rank};
    TRY(compile(&c, &o));
    const program *list = &c.training.list;
    AUTO_FREE int *launched = must_calloc((unsigned long)c.training.requests + 1, sizeof *launched);
    picture_take_memory(r, &c);
    for (int i = 0; i < list->count; i++)
        if (op_starts(list->ops[i]))
            launched[list->ops[i]->where.request] = i;
    for (int i = 0; i < list->count; i++)
        take_op(r, names, &p->timing, list, launched, stage, i);
    return STATUS_OK;
}

static char *note_of(const plan *p)
{
    const char *bubble = "Bubble: waiting for other stages before their transfers begin, or for the last rank.";
    if (p->timing.cores <= 0)
        return must_strdup(bubble);
    return must_format("%s Waiting for a core: %d ranks share %d cores; when in the step a rank waits is not known, so "
                       "it is drawn at the end.",
                       bubble, p->options.grid.ranks, p->profile.cores);
}

status timeline_predict(picture *out, picture_names *names, const plan *p)
{
    const timing *t = &p->timing;
    *out = (picture){.name = must_format("predicted, %s", p->profile.name),
                     .each = "stage",
                     .note = note_of(p),
                     .length = 1e6 * t->seconds,
                     .causes = json_array(),
                     .chunks = p->options.layout.virtual_stages};
    out->rows = must_calloc((unsigned long)t->count, sizeof *out->rows);
    for (int i = 0; i < t->cause_count && i < CAUSES; i++)
        json_array_append_new(out->causes, json_pack("[s, f]", t->causes[i].text, t->causes[i].seconds / t->seconds));
    for (int stage = 0; stage < t->count; stage++) {
        TRY(add_stage(out, names, p, stage));
        /* A rank is idle until the last rank is done; then come the seconds for which all have waited for a core. */
        double played = 1e6 * (t->seconds - t->cores);
        picture_fill(&out->rows[stage], 1e6 * t->ranks[stage].end, played, PICTURE_BUBBLE,
                     picture_name(names, PICTURE_LAST));
        picture_fill(&out->rows[stage], played, 1e6 * t->seconds, PICTURE_CORES,
                     picture_name(names, picture_kind_words(PICTURE_CORES)));
    }
    picture_complete(out, names);
    return STATUS_OK;
}
