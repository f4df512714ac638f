#include "engine/compile/step/compile_program.h"

#include <stdlib.h>
#include <string.h>

#include "engine/compile/model/compile_model.h"
#include "engine/compile/model/flops.h"
#include "engine/compile/order/order.h"
#include "engine/compile/step/place.h"
#include "engine/compile/step/unroll.h"
#include "engine/compile/step/update.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "parallel/schedule/schedule_make.h"
#include "engine/compile/step/compile_schedule.h"

/* Does it write what outlives the step and is no gradient? A gather of weights only repeats what other ranks own. */
static bool changes_state(const compiled *c, const op *o)
{
    bool changes = false;
    for (int k = 0; k < OP_MAX_OUT && o->phase != PHASE_BEGIN; k++) {
        const tensor *t = o->out[k] ? tensor_root(o->out[k]) : NULL;
        bool state = t && (t->class == CLASS_WEIGHT || t->class == CLASS_OPTIMIZER) && t->address < c->persistent_bytes;
        changes |= state || (t && t->class == CLASS_HOST);
    }
    return changes;
}

static void finish(compiled_program *out, const compiled *c, compile_order how, bool bound_only)
{
    place_waits(out, how);
    place_transients(out, c, bound_only);
    for (int i = 0; i < out->list.count; i++) {
        const op *o = out->list.ops[i];
        if (!op_waits(o))
            out->flops[o->phase] += op_row_of(o)->cost(o).flops;
    }
}

static void close_bodies(recorded *chunks, int count)
{
    for (int i = 0; i < count; i++)
        unroll_recorded_free(&chunks[i]);
    free(chunks);
}

status compile_program_training(compiled_program *out, const compiled *c, const compile_keep *keep, int microbatches,
                                bool bound_only)
{
    const compile_options *o = &c->options;
    *out = (compiled_program){.enough = keep->enough};
    RELEASED_BY(schedule_free) schedule s = {0};
    TRY(compile_schedule(&s, o, microbatches));
    update_start_losses(out, c);
    tensor *const *whole = update_begin(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c,
                      &(unroll_what){.chunk = i,
                                     .training = true,
                                     .split = schedule_splits(&s),
                                     .recompute = keep->how,
                                     .rung = keep->rung,
                                     .drop = keep->drop && i < o->layout.virtual_stages ? keep->drop[i] : NULL,
                                     .fuse = true,
                                     .whole = whole});
    status ok = unroll(out, c, chunks, &s);
    if (ok == STATUS_OK) {
        order_micro_batches(out, keep->order);
        update_append(out, c);
        finish(out, c, keep->order, bound_only);
        while (out->first_change < out->list.count && !changes_state(c, out->list.ops[out->first_change]))
            out->first_change++;
    }
    close_bodies(chunks, bodies);
    return ok;
}

status compile_program_forward(compiled_program *out, const compiled *c)
{
    const compile_options *o = &c->options;
    *out = (compiled_program){.first_change = -1};
    update_start_losses(out, c);
    int bodies = unroll_bodies(c);
    recorded *chunks = must_calloc((unsigned long)bodies, sizeof *chunks);
    for (int i = 0; i < bodies; i++)
        unroll_record(&chunks[i], &out->pool, c, &(unroll_what){.chunk = i, .rung = LADDER_RUNGS - 1, .fuse = true});
    unroll_forward(out, c, chunks, 1);
    compile_order how = o->order == ORDER_AS_LOWERED ? ORDER_AS_LOWERED : ORDER_EARLY;
    order_micro_batches(out, how);
    if (!o->decode_samples)
        update_loss(out, c);
    finish(out, c, how, false);
    close_bodies(chunks, bodies);
    return STATUS_OK;
}

void compile_program_gathers(compiled_program *out, const compiled *c)
{
    *out = (compiled_program){.first_change = -1};
    update_gather(out, c);
    finish(out, c, c->options.order, false);
}
