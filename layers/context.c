/* Queries of this rank meet the keys and values of all context ranks (2407.21783). */
#include "layers/layer.h"

#include <stdio.h>

tensor *layer_gather_context(recorder *r, const char *name, tensor *x, const layer_inputs *in)
{
    char label[64];
    snprintf(label, sizeof label, "attention/copy %s", name);
    if (!tensor_contiguous(x))
        x = record_copy(r, label, x);
    snprintf(label, sizeof label, "attention/gather %s", name);
    x = record_all_gather(r, label, AXIS_CONTEXT, x, in->all_places->shape[0]);
    snprintf(label, sizeof label, "attention/arrange %s", name);
    return record_arrange(r, label, x, in->all_places);
}

void layer_share_keys(recorder *r, record_qkv *heads, const layer_inputs *in)
{
    if (r->grid.group[AXIS_CONTEXT].ranks == 1)
        return;
    heads->k = layer_gather_context(r, "k", heads->k, in);
    heads->v = layer_gather_context(r, "v", heads->v, in);
}

tensor *layer_attend(recorder *r, const attention_layer *a, const layer_inputs *in, const record_qkv *heads,
                     tensor *sinks, op_attributes at)
{
    tensor *places = in->run ? in->places : NULL;
    if (in->halves)
        at.group_size = r->grid.group[AXIS_CONTEXT].ranks, at.group_rank = r->grid.group[AXIS_CONTEXT].rank;
    if (!r->training || !in->peaks || tensor_elements(in->peaks) == 0)
        return record_attention(r, "attention/attention", heads, in->document_start, places, sinks, &at);
    tensor *peaks = recorder_row(r, in->peaks, a->index);
    return record_attention_noted(r, "attention/attention", heads, in->document_start, places, peaks, &at);
}
