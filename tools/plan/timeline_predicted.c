/* The plan's step, played on simulated queues. */
#include <string.h>

#include "memory/log.h"
#include "tools/plan/timeline_sources.h"

enum { CAUSES = 5 };

static int along_of(const op *o)
{
    return op_copies(o) ? PICTURE_HOST : (int)o->at.axis;
}

/* What op `i` of the stage launched; the request's. */
static void take_op(picture_row *r, picture_names *names, const timing *t, const program *list, const int *launched,
                    int stage, int i)
{
    const op *o = list->ops[i];
    timing_span at = timing_op_at(t, stage, i);
    r->ends[i] = 1e6 * at.free;
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
        const op *from = list->ops[launched[o->at.request]];
        char *words = must_format("wait for %s", from->label);
        s.kind = PICTURE_WAIT;
        s.along = along_of(from);
        s.name = picture_name(names, words);
        free(words);
    } else {
        s.name = picture_name(names, o->label);
    }
    picture_add_span(r, s);
}

static status add_stage(picture *out, picture_names *names, const plan *p, int stage)
{
    compile_options o = p->options;
    compiled c = {0};
    o.grid = p->timing.ranks[stage].grid;
    picture_row *r = &out->rows[out->count++];
    *r = (picture_row){.name = must_format("stage %d", stage), .rank = o.grid.rank};
    status s = compile(&c, &o);
    if (s == STATUS_OK) {
        const program *list = &c.training.list;
        int *launched = must_calloc((unsigned long)c.training.requests + 1, sizeof *launched);
        picture_take_memory(r, &c);
        for (int i = 0; i < list->count; i++)
            if (op_starts(list->ops[i]))
                launched[list->ops[i]->at.request] = i;
        for (int i = 0; i < list->count; i++)
            take_op(r, names, &p->timing, list, launched, stage, i);
        free(launched);
    }
    compile_free(&c);
    return s;
}

status timeline_predict(picture *out, picture_names *names, const plan *p)
{
    const timing *t = &p->timing;
    *out = (picture){.name = must_format("predicted, %s", p->profile.name),
                     .each = "stage",
                     .note = must_strdup("Bubble: waiting for other stages before their transfers begin."),
                     .length = 1e6 * t->seconds,
                     .bubble = t->bubble,
                     .causes = json_array(),
                     .chunks = p->options.layout.virtual_stages};
    out->rows = must_calloc((unsigned long)t->count, sizeof *out->rows);
    for (int a = 0; a < AXIS_COUNT; a++)
        out->exposed[a] = t->exposed[a] / t->seconds;
    out->exposed[PICTURE_HOST] = t->copies / t->seconds;
    for (int i = 0; i < t->cause_count && i < CAUSES; i++)
        json_array_append_new(out->causes, json_pack("[s, f]", t->causes[i].text, t->causes[i].seconds / t->seconds));
    for (int stage = 0; stage < t->count; stage++)
        TRY(add_stage(out, names, p, stage));
    return STATUS_OK;
}
