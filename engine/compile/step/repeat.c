#include "engine/compile/step/repeat.h"

bool repeat_may(const op *o)
{
    bool pass = o->phase == PHASE_FORWARD || o->phase == PHASE_BACKWARD || o->phase == PHASE_WEIGHT;
    return pass && op_computes(o) && o->microbatch >= 0;
}

bool repeat_changes(const op *o)
{
    if (o->at.accumulate != OP_WRITES || op_has(o, OP_STATEFUL))
        return true;
    for (int k = 0; k < OP_MAX_OUT; k++)
        for (int i = 0; o->out[k] && i < OP_MAX_IN; i++) {
            const tensor *a = o->out[k], *b = o->in[i];
            if (b && a->address < b->address + tensor_bytes(b) && b->address < a->address + tensor_bytes(a))
                return true;
        }
    return false;
}

device_rows repeat_rows(const tensor *t)
{
    int64_t element = dtype_bytes((dtype)t->type), all = tensor_elements(t) * element;
    if (t->address < 0 || all == 0)
        return (device_rows){0};
    if (tensor_contiguous(t))
        return (device_rows){.at = t->address, .pitch = all, .bytes = all, .rows = 1};
    return (device_rows){
        .at = t->address, .pitch = t->pitch * element, .bytes = all / t->shape[0], .rows = t->shape[0]};
}

int64_t repeat_bytes(const compiled_program *p)
{
    int64_t most = 0;
    for (int i = 0; i < p->list.count; i++) {
        const op *o = p->list.ops[i];
        int64_t bytes = 0;
        for (int k = 0; k < OP_MAX_OUT && repeat_may(o) && repeat_changes(o); k++)
            if (o->out[k]) {
                device_rows r = repeat_rows(o->out[k]);
                bytes += r.rows * r.bytes;
            }
        most = bytes > most ? bytes : most;
    }
    return most;
}
