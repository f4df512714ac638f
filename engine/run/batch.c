#include "engine/run/batch.h"

#include <math.h>

/* cos | sin, table[positions, head_size]; positions from 0 */
static void fill_rope(float *table, const model_shape *shape, int64_t positions)
{
    int d = shape->head_size;
    const shape_rope_scaling *s = &shape->rope_scaling;
    for (int i = 0; i < d / 2; i++) {
        double frequency = pow(shape->rope_theta, -2.0 * i / d);
        if (s->factor > 0) {
            /* Long waves are stretched by the factor, short ones kept, those between blended smoothly (Llama 3.1). */
            double turns = (double)s->original_max_sequence * frequency / (2 * M_PI);
            double blend = (turns - s->low_frequency_factor) / (s->high_frequency_factor - s->low_frequency_factor);
            blend = blend < 0 ? 0 : blend > 1 ? 1 : blend;
            frequency = frequency * blend + frequency / s->factor * (1 - blend);
        }
        for (int64_t p = 0; p < positions; p++) {
            table[p * d + i] = (float)cos((double)p * frequency);
            table[p * d + d / 2 + i] = (float)sin((double)p * frequency);
        }
    }
}

void batch_rope_table(const compiled *c, executor *e)
{
    const tensor *t = c->inputs.rope_table;
    if (t->shape[0] == 0)
        return;
    fill_rope(executor_at(e, t), &c->options.shape, t->shape[0]);
    executor_send(e, t);
}

typedef void *place(executor *e, const tensor *t);

static status fill(int64_t *left_out, const compiled *c, executor *e, place *at, const samples *s, int64_t first,
                   int64_t count)
{
    const compiled_inputs *in = &c->inputs;
    int64_t length = c->options.sequence;
    int32_t *tokens = at(e, in->tokens), *targets = at(e, in->targets), *positions = at(e, in->positions);
    int32_t *documents = in->document_start->shape[0] ? at(e, in->document_start) : NULL;
    *left_out = 0;
    for (int64_t i = 0; i < count; i++) {
        bool out = false;
        TRY(samples_read(s, &out, tokens + i * length, targets + i * length, positions + i * length,
                         documents ? documents + i * length : NULL, first + i));
        *left_out += out;
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
    int32_t *targets = executor_at(e, c->inputs.targets);
    for (int64_t i = end > first ? end - first : 0; i < mine; i++) {
        *left_out -= targets[i * length] < 0; /* it would not have counted anyway */
        for (int64_t k = 0; k < length; k++)
            targets[i * length + k] = -1;
    }
    return STATUS_OK;
}
