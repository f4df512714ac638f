#include "tools/report_plan.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/compile/plan/plan.h"
#include "engine/compile/plan/plan_text.h"
#include "engine/config/config.h"
#include "engine/state/weights.h"
#include "kernels/device.h"
#include "memory/log.h"

enum { MOST_SPANS = 8000 }; /* of all stages together: about 250 KB of text */

static const char *const kinds[ACTION_KINDS] = {[ACTION_FORWARD] = "forward",
                                                [ACTION_BACKWARD] = "backward",
                                                [ACTION_BACKWARD_INPUT] = "backward, input",
                                                [ACTION_BACKWARD_WEIGHT] = "backward, weights"};

/* In millionths of the whole. */
static int place_of(double time, const simulation *sim)
{
    return sim->length > 0 ? (int)lround(1e6 * time / sim->length) : 0;
}

static json_t *spans_of(const simulation *sim, int stage, double until)
{
    json_t *spans = json_array();
    for (int i = 0; i < sim->schedule->counts[stage]; i++) {
        action a = sim->schedule->actions[stage][i];
        simulate_span s = sim->spans[stage][i];
        if (s.start < until)
            json_array_append_new(spans, json_pack("[i, i, i, i, i]", a.kind, a.chunk, a.microbatch,
                                                   place_of(s.start, sim), place_of(s.end, sim)));
    }
    return spans;
}

static json_t *timeline_of(const simulation *sim)
{
    const schedule *s = sim->schedule;
    int all = 0;
    for (int i = 0; i < s->stages; i++)
        all += s->counts[i];
    double shown = all > MOST_SPANS ? sim->length * MOST_SPANS / all : sim->length;
    json_t *stages = json_array(), *names = json_array();
    for (int i = 0; i < s->stages; i++)
        json_array_append_new(stages, json_pack("{s:f, s:i, s:o}", "bubble", sim->stages[i].bubble, "in_flight",
                                                sim->stages[i].in_flight, "spans", spans_of(sim, i, shown)));
    for (int i = 0; i < ACTION_KINDS; i++)
        json_array_append_new(names, json_string(kinds[i]));
    return json_pack("{s:f, s:f, s:i, s:o, s:o}", "length", sim->length, "shown", shown, "chunks", s->chunks, "kinds",
                     names, "stages", stages);
}

/* [name, size] of each coordinate that the page shows, the one along which ranks are neighbours first. */
static json_t *coordinates_of(const grid *g)
{
    json_t *list = json_array();
    for (int i = 0; i < GRID_AXES; i++)
        if (grid_named(g->size) >> i & 1)
            json_array_append_new(list, json_pack("[s, i]", axis_coordinates[i].name, g->size[i]));
    return list;
}

static json_t *object_of(const plan *p)
{
    char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    plan_text_json(out, p, "");
    fclose(out);
    json_t *object = json_loadb(text, bytes, 0, NULL);
    MUST(object, "a plan that is no JSON");
    free(text);
    json_object_set_new(object, "timeline", timeline_of(&p->spans));
    json_object_set_new(object, "coordinates", coordinates_of(&p->options.grid));
    return object;
}

static status plan_of(json_t **out, config *c, int ranks)
{
    grid g;
    compile_options o;
    const device_interface *cuda = NULL;
    plan p = {0};
    bool planned = c->train.device != CONFIG_CUDA;
    if (!planned)
        planned = device_load(&cuda, "cuda") == STATUS_OK;
    const op_backend *backend = cuda ? cuda->backend : planned ? &cpu_backend : NULL;
    TRY(weights_configure(c));
    TRY(config_lay_out(&g, c, ranks, 0));
    TRY(compile_options_from(&o, c, &g, backend, c->train.threads > 0 ? c->train.threads : 1));
    o.evaluate = c->data.validation.count > 0 && c->evaluate.every > 0;
    profile prices = profile_named("h100");
    status s = plan_make(&p, &o, &prices, false, -1);
    if (s == STATUS_OK)
        *out = object_of(&p);
    plan_free(&p);
    return s;
}

status report_plan_make(json_t **out, const char *path, int ranks)
{
    config c;
    TRY(config_load(&c, path, 0, NULL));
    status s = plan_of(out, &c, ranks);
    config_free(&c);
    return s;
}
