#include "engine/compile/plan/checkpoint_bytes.h"

#include "engine/compile/model/storage.h"
#include "models/decoder.h"

/* As the world's files have it: padding of the vocabulary is nobody's, and a shared head is the embedding's. */
static int64_t elements_of(const parameter *p)
{
    int64_t sum = 0;
    for (int i = 0; i < p->piece_count && p->shares < 0; i++)
        sum += box_volume(p->pieces[i].of.dims, p->pieces[i].of.part.size);
    return sum;
}

int64_t checkpoint_bytes(const compile_options *o)
{
    const int first = 0, layers = o->shape.layers;
    pool p = {0};
    decoder whole;
    decoder_layout layout = {.grid = recorder_alone(),
                             .compute = precision_compute(o->precision),
                             .chunk_count = 1,
                             .first_layer = &first,
                             .layers = &layers,
                             .total_layers = layers};
    decoder_open(&whole, &p, &o->shape, &layout);
    int64_t sum = 0;
    for (int i = 0; i < whole.parameter_count; i++)
        sum += elements_of(whole.parameters[i]) * storage_saved_bytes(o, whole.parameters[i]);
    pool_free(&p);
    return sum;
}
