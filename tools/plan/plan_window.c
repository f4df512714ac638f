#include "tools/plan/plan_window.h"

#include <math.h>
#include <stdlib.h>

#include "engine/run/batch.h"
#include "memory/log.h"
#include "memory/units.h"

bool plan_window_measure(plan_window *out, const plan *p)
{
    *out = (plan_window){0};
    for (int i = 0; i < p->count; i++)
        if (p->ranks[i].windowed > out->sent)
            *out = (plan_window){.rank = p->ranks[i].rank, .sent = p->ranks[i].windowed};
    if (out->sent > 0)
        out->unseen = (int64_t)llround((double)out->sent * batch_unseen(&p->options));
    return out->unseen > 0;
}

void plan_window_print(FILE *out, const plan_window *w, const plan *p)
{
    fprintf(out,
            "\nwindows           of the %s of keys, values and their gradients that rank %d sends along context in a "
            "step,\n"
            "                  %s (%.0f%%) are of no use to the receiver, whose queries see %lld tokens: with fewer\n"
            "                  parallel.context, or parallel.tensor instead, less is sent\n",
            BYTES_TEXT(w->sent), w->rank, BYTES_TEXT(w->unseen), 100 * (double)w->unseen / (double)w->sent,
            (long long)p->options.shape.sliding_window);
}

void plan_window_facts(fact_writer *out, const plan_window *w, const plan *p)
{
    FACTS_OBJECT(out, "\n context_windows", FACT("window", p->options.shape.sliding_window), FACT("rank", w->rank),
                 FACT("bytes_sent", w->sent), FACT("unseen_bytes", w->unseen));
}
