/* Walking over schedules: see schedules.h. */
#include "tests/parallel/schedule/schedules.h"

#include <stdio.h>
#include <string.h>

#include "memory/log.h"
#include "parallel/schedule/schedule_make.h"

int schedules_each(int stages, int chunks, int microbatches, void (*visit)(const schedule *s))
{
    int n = 0;
    for (int kind = 0; kind < SCHEDULE_KINDS; kind++)
        for (int v = 1; v <= chunks; v++)
            for (int p = 1; p <= stages; p++)
                for (int m = 1; m <= microbatches; m++) {
                    schedule s;
                    if ((kind == SCHEDULE_1F1B && v > 1) || (kind == SCHEDULE_INTERLEAVED && v == 1))
                        continue; /* the same as the other */
                    int needed = schedule_kind_chunks((schedule_kind)kind);
                    if (needed && v != needed)
                        continue;
                    status made = schedule_make(&s, (schedule_kind)kind, p, v, m);
                    MUST(made == STATUS_OK, "%s", status_message());
                    visit(&s);
                    schedule_free(&s);
                    n++;
                }
    return n;
}

schedule schedules_copy(const schedule *s)
{
    schedule copy = *s;
    copy.actions = must_alloc(sizeof *copy.actions * s->stages);
    copy.counts = must_alloc(sizeof *copy.counts * s->stages);
    memcpy(copy.counts, s->counts, sizeof *copy.counts * s->stages);
    for (int stage = 0; stage < s->stages; stage++) {
        copy.actions[stage] = must_alloc(sizeof **copy.actions * (s->counts[stage] + 1));
        memcpy(copy.actions[stage], s->actions[stage], sizeof **copy.actions * s->counts[stage]);
    }
    return copy;
}

const char *schedules_title(const schedule *s)
{
    static _Thread_local char title[96];
    snprintf(title, sizeof title, "%s, %d stages, %d chunks, %d micro-batches", schedule_name(s->kind), s->stages,
             s->chunks, s->microbatches);
    return title;
}
