#include "kernels/record/program.h"

#include <stdio.h>
#include <stdlib.h>

#include "memory/log.h"

void program_append(program *p, op *o)
{
    if (p->count == p->capacity) {
        p->capacity = p->capacity ? 2 * p->capacity : 64;
        p->ops = must_realloc(p->ops, (unsigned long)p->capacity * sizeof(op *));
    }
    p->ops[p->count++] = o;
}

void program_free(program *p)
{
    free(p->ops);
    *p = (program){0};
}

const char *phase_name(phase p)
{
    static const char *names[PHASE_COUNT] = {"begin", "forward", "backward", "weight", "update"};
    return names[p];
}

void program_place(char *out, int bytes, int64_t step, const op *o)
{
    char text[256], part[48] = "";
    if (o && o->microbatch >= 0)
        snprintf(part, sizeof part, " of chunk %d, micro-batch %d", o->chunk, o->microbatch);
    if (o)
        snprintf(out, (size_t)bytes, "step %lld, %s%s, op %s", (long long)step, phase_name((phase)o->phase), part,
                 op_text(text, sizeof text, o));
    else
        snprintf(out, (size_t)bytes, "step %lld, between programs", (long long)step);
}
