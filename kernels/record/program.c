#include "kernels/record/program.h"

#include <stdio.h>
#include <stdlib.h>

#include "kernels/record/operands.h"
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

/* ---- making ops ------------------------------------------------------------------------------------------------- */

static bool same_shape(const tensor *a, const tensor *b)
{
    bool same = a->dims == b->dims && a->type == b->type;
    for (int i = 0; i < TENSOR_DIMS && same; i++)
        same = i >= a->dims || a->shape[i] == b->shape[i];
    return same;
}

static bool same_place(const tensor *a, const tensor *b)
{
    bool same = true;
    for (int i = 0; i < AXIS_SLOTS; i++)
        same &= a->place.along[i].kind == b->place.along[i].kind && a->place.along[i].dim == b->place.along[i].dim;
    return same;
}

/* Gives `t`, inferred, the bytes of `at`. If `at` is placed as the input that has its bytes, the op replaces the value
 * described there. */
static void share_bytes(const op *o, tensor *t, tensor *at)
{
    OPERANDS_CHECK(same_shape(t, at), "the result has another shape or type than what it is to be stored in");
    bool placed = same_place(t, at);
    for (int i = 0; i < OP_MAX_IN; i++)
        placed |= o->in[i] && tensor_root(o->in[i]) == tensor_root(at) && same_place(o->in[i], at);
    OPERANDS_CHECK(placed, "the result is placed otherwise than what it is to be stored in");
    t->base = tensor_root(at);
    t->offset = at->offset;
    t->pitch = at->pitch;
    t->address = at->address;
    t->class = at->class;
    t->name = at->name;
    t->parameter = at->parameter;
}

op *op_make(pool *p, const op *like, unsigned outputs, tensor *const *into)
{
    op *o = pool_alloc(p, sizeof *o);
    tensor *there[OP_MAX_OUT] = {0}, inferred[OP_MAX_OUT] = {0};
    *o = *like;
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (o->out[i] && operands_described(o, i))
            continue;
        if (o->out[i]) {
            there[i] = o->out[i];
            o->out[i] = &inferred[i];
        } else if (outputs >> i & 1 || (into && into[i])) {
            tensor *t = o->out[i] = pool_alloc(p, sizeof *t);
            t->name = o->label;
            t->class = CLASS_TEMPORARY;
            t->id = -1;
            t->address = t->first = t->last = -1;
            t->producer = o;
        }
    }
    operands_infer(o);
    for (int i = 0; i < OP_MAX_OUT; i++) {
        if (into && into[i])
            share_bytes(o, o->out[i], into[i]);
        if (!there[i])
            continue;
        OPERANDS_CHECK(same_shape(&inferred[i], there[i]) && same_place(&inferred[i], there[i]),
                       "an output that is there already is not what the op makes");
        o->out[i] = there[i];
    }
    if (!op_communicates(o))
        return o;
    bool contiguous = true; /* a message has an address and a count of elements: columns have gaps */
    for (int i = 0; i < OP_MAX_IN; i++)
        contiguous &= !o->in[i] || tensor_contiguous(o->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        contiguous &= !o->out[i] || tensor_contiguous(o->out[i]);
    OPERANDS_CHECK(contiguous, "what is communicated must be contiguous: copy columns first");
    return o;
}

op *op_make_copy(pool *p, const op *of, tensor *const in[OP_MAX_IN], tensor *const out[OP_MAX_OUT])
{
    op *o = pool_alloc(p, sizeof *o);
    *o = *of;
    for (int i = 0; i < OP_MAX_IN; i++) {
        OPERANDS_CHECK(!in[i] == !of->in[i] && (!in[i] || same_shape(in[i], of->in[i])), "an input of another shape");
        o->in[i] = in[i];
    }
    for (int i = 0; i < OP_MAX_OUT; i++) {
        OPERANDS_CHECK(!out[i] == !of->out[i] && (!out[i] || same_shape(out[i], of->out[i])),
                       "an output of another shape");
        o->out[i] = out[i];
    }
    return o;
}
