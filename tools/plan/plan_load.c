#include "tools/plan/plan_load.h"

#include <stdlib.h>

#include "engine/compile/model/tokens.h"
#include "memory/log.h"

status plan_load_open(plan_load *out, profile *prices, const char *text, const compile_options *o)
{
    *out = (plan_load){0};
    TRY(load_open(&out->law, text, &o->shape));
    load_expect(&out->of, &out->law, o);
    prices->load = out->of.slowest;
    return STATUS_OK;
}

void plan_load_close(plan_load *l)
{
    load_free(&l->law);
}

/* Of a step with its replays, each rung by its own program. */
static double loaded_seconds(const plan_load *l, const plan *p)
{
    double sum = 0;
    for (int i = 0; i < LADDER_RUNGS; i++)
        sum += l->of.plays[i] * p->rung_seconds[i];
    return sum;
}

void plan_load_print(FILE *out, const plan_load *l, const plan *p)
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
    if (of->rungs == 1) {
        fputs("                  no step is played again: every routing has room, or rows are dropped\n", out);
        return;
    }
    fprintf(out,
            "                  %.3g choices a step of (layer, micro-batch, rank) must have room: %.3g steps in a "
            "thousand\n                  are played again; with them a step takes %.4g s\n",
            of->choices, 1000 * of->replays, loaded_seconds(l, p));
    for (int i = 0; i < of->rungs; i++) {
        ladder_shape s = rungs_ladder(&p->options);
        const ladder_waves w = ladder_waves_of(&s, i);
        fprintf(
            out,
            "    rung %d        room for %.2f x the mean (%d waves behind the first): %.3g plays a step, %.3g s each\n",
            i, (double)ladder_room(&w) * s.ranks / ((double)s.tokens * s.active), w.count, of->plays[i],
            p->rung_seconds[i]);
    }
    fprintf(out,
            "                  no load changes the arena, which all rungs share: rung %d needs most of it\n"
            "                  tokens are taken to choose independently; those of a document that choose alike make\n"
            "                  micro-batches differ more\n",
            plan_neediest(p)->arena_rung);
}

void plan_load_facts(fact_writer *out, const plan_load *l, const plan *p)
{
    const load_outcome *of = &l->of;
    facts_open(out, "\n load", '{');
    FACTS(out, FACT("kind", load_word(l->law.kind)), FACT("sigma", l->law.sigma), FACT("draws", l->law.draws),
          FACT("largest_expert", of->expert), FACT("largest_rank", of->rank), FACT("slowest_rows", of->slowest),
          FACT("\n  choices", of->choices), FACT("replays", of->replays), FACT("seconds_even", p->even_seconds),
          FACT("seconds_loaded", p->timing.seconds), FACT("seconds", loaded_seconds(l, p)),
          FACT("arena_rung", plan_neediest(p)->arena_rung));
    facts_open(out, "\n  rungs", '[');
    for (int i = 0; i < of->rungs; i++)
        FACTS_OBJECT(out, "", FACT("plays", of->plays[i]), FACT("lacks_room", of->lacks[i]),
                     FACT("seconds", p->rung_seconds[i]));
    facts_close(out, ']');
    facts_close(out, '}');
}
