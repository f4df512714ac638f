#include "kernels/program.h"

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
