#include "tools/planning.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/compile/compile.h"
#include "engine/compile/model/tokens.h"
#include "engine/config/config.h"
#include "engine/run/choices.h"
#include "kernels/device.h"
#include "kernels/table/devices.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tools/series.h"

planning_run planning_read_run(const char *folder)
{
    planning_run run = {0};
    AUTO_FREE char *path = must_format("%s/events.jsonl", folder), *end = must_format("%s/summary.json", folder);
    json_auto_t *events = series_lines(path, "ranks");
    const json_t *last = json_array_get(events, json_array_size(events) - 1);
    const char *word = json_string_value(json_object_get(last, "device"));
    run.ranks = (int)json_integer_value(json_object_get(last, "ranks"));
    if (word && devices_named(word))
        snprintf(run.device, sizeof run.device, "%s", word);
    if (run.ranks > 0)
        return run;
    json_auto_t *summary = json_load_file(end, 0, NULL);
    run.ranks = (int)json_array_size(json_object_get(summary, "ranks"));
    return run;
}

const char *planning_device(const config *c, const planning_run *run)
{
    if (run && *run->device)
        return run->device;
    return c->train.device == CONFIG_CPU ? "cpu" : DEVICES_ASSUMED;
}

const op_backend *planning_backend(const config *c, const planning_run *run)
{
    const device_interface *cuda;
    bool on_gpu = run && *run->device && strcmp(run->device, "cpu") != 0;
    if (c->train.device != CONFIG_CUDA && !on_gpu)
        return &cpu_backend;
    return device_load(&cuda, "cuda") == STATUS_OK ? cuda->backend : NULL;
}

status planning_options(compile_options *out, const config *c, const grid *g, const planning_run *run, int node_ranks)
{
    /* as a training rank would choose: the machine's cores divided by the ranks of a node */
    long cores = sysconf(_SC_NPROCESSORS_ONLN) / (g->ranks < node_ranks ? g->ranks : node_ranks);
    int threads = c->train.threads > 0 ? c->train.threads : cores > 0 ? (int)cores : 1;
    TRY(compile_options_from(out, c, g, planning_backend(c, run), threads));
    out->evaluate = c->data.validation.count > 0 && c->evaluate.every > 0;
    return STATUS_OK;
}

status planning_reserve(reserve *out, const char *folder)
{
    RELEASED_BY(choices_free) choices known = {0};
    AUTO_FREE char *path = must_format("%s/" CHOICES_FILE, folder);
    *out = reserve_assumed;
    status s = choices_read(&known, path);
    choices_take_reserve(out, &known);
    return s;
}

/* ---- a load of experts ---- */

status planning_load_open(planning_load *out, profile *prices, const char *text, const compile_options *o)
{
    *out = (planning_load){0};
    TRY(load_open(&out->law, text, &o->shape));
    load_expect(&out->of, &out->law, o);
    prices->load = out->of.slowest;
    return STATUS_OK;
}

void planning_load_close(planning_load *l)
{
    load_free(&l->law);
}

/* Returns the seconds of a step with its replays, each capacity bucket by its own program. */
static double loaded_seconds(const planning_load *l, const plan *p)
{
    double sum = 0;
    for (int i = 0; i < CAPACITY_BUCKETS; i++)
        sum += l->of.plays[i] * p->bucket_seconds[i];
    return sum;
}

void planning_load_print(FILE *out, const planning_load *l, const plan *p)
{
    const load_outcome *of = &l->of;
    fputs("\nload              ", out);
    if (l->law.kind == LOAD_LOGNORMAL)
        fprintf(out, "log-normal shares of experts, sigma %g, mean of %d draws", l->law.sigma, l->law.draws);
    else if (l->law.kind == LOAD_TRACE)
        fprintf(out, "%d recorded steps, %lld to %lld", l->law.draws, (long long)l->law.steps[0],
                (long long)l->law.steps[l->law.draws - 1]);
    else
        fputs("the same share for each expert", out);
    fprintf(out,
            "\n                  largest over mean %.3f by expert, %.3f by rank, %.3f of a micro-batch's rows on the "
            "slowest\n                  rank; %.3g s a step, %.3g s if all ranks had the same\n",
            of->expert, of->rank, of->slowest, p->timing.seconds, p->even_seconds);
    if (of->buckets == 1) {
        fputs("                  no step is played again: every routing has room, or rows are dropped\n", out);
        return;
    }
    fprintf(out,
            "                  %.3g choices a step of (layer, micro-batch, rank) must have room: %.3g steps in a "
            "thousand\n                  are played again; with them a step takes %.4g s\n",
            of->choices, 1000 * of->replays, loaded_seconds(l, p));
    for (int i = 0; i < of->buckets; i++) {
        capacity_shape s = buckets_capacity(&p->options);
        const capacity_passes w = capacity_passes_of(&s, i);
        fprintf(out,
                "    rung %d        room for %.2f x the mean (%d overflow passes): %.3g plays a step, %.3g s each\n", i,
                (double)capacity_rows(&w) * s.ranks / ((double)s.tokens * s.active), w.count, of->plays[i],
                p->bucket_seconds[i]);
    }
    fprintf(out,
            "                  no load changes the arena, which all rungs share: rung %d needs most of it\n"
            "                  tokens are taken to choose independently; those of a document that choose alike make\n"
            "                  micro-batches differ more\n",
            plan_neediest(p)->arena_bucket);
}

void planning_load_facts(fact_writer *out, const planning_load *l, const plan *p)
{
    const load_outcome *of = &l->of;
    facts_open(out, "\n load", '{');
    FACTS(out, FACT("kind", load_words[l->law.kind]), FACT("sigma", l->law.sigma), FACT("draws", l->law.draws),
          FACT("largest_expert", of->expert), FACT("largest_rank", of->rank), FACT("slowest_rows", of->slowest),
          FACT("\n  choices", of->choices), FACT("replays", of->replays), FACT("seconds_even", p->even_seconds),
          FACT("seconds_loaded", p->timing.seconds), FACT("seconds", loaded_seconds(l, p)),
          FACT("arena_rung", plan_neediest(p)->arena_bucket));
    facts_open(out, "\n  rungs", '[');
    for (int i = 0; i < of->buckets; i++)
        FACTS_OBJECT(out, "", FACT("plays", of->plays[i]), FACT("lacks_room", of->lacks[i]),
                     FACT("seconds", p->bucket_seconds[i]));
    facts_close(out, ']');
    facts_close(out, '}');
}
