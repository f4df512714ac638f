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
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (!place_equal(a->place.along[i], b->place.along[i]))
            return false;
    return true;
}

static tensor *new_tensor(pool *p, op *o)
{
    tensor *t = pool_alloc(p, sizeof *t);
    t->name = o->label;
    t->class = CLASS_TEMPORARY;
    t->id = -1;
    t->address = t->first = t->last = -1;
    t->producer = o;
    return t;
}

/* True if `t` is placed as the input that has its bytes, so that the op replaces the value described there. */
static bool replaces(const op *o, tensor *t)
{
    for (int i = 0; i < OP_MAX_IN; i++)
        if (o->in[i] && tensor_root(o->in[i]) == tensor_root(t) && same_place(o->in[i], t))
            return true;
    return false;
}

/* Gives `t`, inferred, the bytes of `at`. */
static void share_bytes(const op *o, tensor *t, tensor *at)
{
    OPERANDS_CHECK(same_shape(t, at), "the result has another shape or type than what it is to be stored in");
    OPERANDS_CHECK(replaces(o, at) || same_place(t, at),
                   "the result is placed otherwise than what it is to be stored in");
    t->base = tensor_root(at);
    t->offset = at->offset;
    t->pitch = at->pitch;
    t->address = at->address;
    t->class = at->class;
    t->name = at->name;
    t->parameter = at->parameter;
}

/* Checks that a message is contiguous, as its address and element count demand: columns have gaps between them. */
static void check_contiguous(const op *o)
{
    bool whole = true;
    for (int i = 0; i < OP_MAX_IN; i++)
        whole &= !o->in[i] || tensor_contiguous(o->in[i]);
    for (int i = 0; i < OP_MAX_OUT; i++)
        whole &= !o->out[i] || tensor_contiguous(o->out[i]);
    OPERANDS_CHECK(whole, "what is communicated must be contiguous: copy columns first");
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
            o->out[i] = new_tensor(p, o);
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
    if (op_communicates(o))
        check_contiguous(o);
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
