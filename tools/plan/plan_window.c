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
    char sent[UNITS_TEXT], unseen[UNITS_TEXT];
    units_bytes(sent, (double)w->sent);
    units_bytes(unseen, (double)w->unseen);
    fprintf(out,
            "\nwindows           of the %s of keys, values and their gradients that rank %d sends along context in a "
            "step,\n"
            "                  %s (%.0f%%) are of no use to the receiver, whose queries see %lld tokens: with fewer\n"
            "                  parallel.context, or parallel.tensor instead, less is sent\n",
            sent, w->rank, unseen, 100 * (double)w->unseen / (double)w->sent,
            (long long)p->options.shape.sliding_window);
}

char *plan_window_json(const plan_window *w, const plan *p)
{
    return must_format("\"context_windows\": {\"window\": %lld, \"rank\": %d, \"bytes_sent\": %lld, "
                       "\"unseen_bytes\": %lld}",
                       (long long)p->options.shape.sliding_window, w->rank, (long long)w->sent, (long long)w->unseen);
}
