#include "engine/run/batch.h"

#include "models/rope.h"

void batch_rope_table(const compiled *c, executor *e)
{
    const tensor *t = c->values.rope_table;
    if (t->shape[0] == 0)
        return;
    rope_fill(executor_at(e, t), &c->options.shape, t->shape[0]);
    executor_send(e, t);
}

typedef void *place(executor *e, const tensor *t);

static status fill(int64_t *left_out, const compiled *c, executor *e, place *at, const samples *s, int64_t first,
                   int64_t count)
{
    int32_t *into[INPUT_COUNT];
    *left_out = 0;
    for (int k = 0; k < INPUT_COUNT; k++)
        into[k] = c->values.ids[k]->shape[0] ? at(e, c->values.ids[k]) : NULL;
    for (int64_t i = 0; i < count; i++) {
        bool out = false;
        TRY(samples_read(s, &out, into, first + i));
        *left_out += out;
        for (int k = 0; k < INPUT_COUNT; k++)
            into[k] += into[k] ? c->options.sequence : 0;
    }
    return STATUS_OK;
}

int64_t batch_first(const compile_options *o, int64_t first, int microbatches)
{
    return first + (int64_t)microbatches * o->micro_batch * grid_index(&o->grid, AXIS_SAMPLES);
}

status batch_fill(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first, int microbatches)
{
    return fill(left_out, c, e, executor_at, s, batch_first(&c->options, first, microbatches),
                (int64_t)microbatches * c->options.micro_batch);
}

status batch_read_ahead(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first,
                        int microbatches)
{
    return fill(left_out, c, e, executor_ahead, s, batch_first(&c->options, first, microbatches),
                (int64_t)microbatches * c->options.micro_batch);
}

status batch_fill_evaluation(int64_t *left_out, const compiled *c, executor *e, const samples *s, int64_t first,
                             int64_t end)
{
    int64_t mine = c->options.micro_batch, length = c->options.sequence;
    first += mine * grid_index(&c->options.grid, AXIS_SAMPLES);
    TRY(fill(left_out, c, e, executor_at, s, first, mine));
    int32_t *targets = executor_at(e, c->values.targets);
    for (int64_t i = end > first ? end - first : 0; i < mine; i++) {
        *left_out -= targets[i * length] < 0; /* it would not have counted anyway */
        for (int64_t k = 0; k < length; k++)
            targets[i * length + k] = -1;
    }
    return STATUS_OK;
}
