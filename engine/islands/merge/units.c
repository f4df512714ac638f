#include "engine/islands/merge/units.h"

#include <stddef.h>

#include "memory/log.h"

void units_rectangle(rectangle *of, box_memory *at, const unit *u, const names_tensor *tensors, float *values)
{
    const names_tensor *t = &tensors[u->tensor];
    *of = box_whole(t->name, t->dims, t->shape);
    of->part.start[0] = u->first;
    of->part.size[0] = u->rows;
    *at = (box_memory){.data = values, .type = DTYPE_FP32};
    box_row_major(at->stride, t->dims, t->shape);
}

unit *units_list(int *count, const names_tensor *tensors, int tensor_count, int fragments)
{
    unit *list = NULL;
    *count = 0;
    for (int i = 0; i < tensor_count; i++) {
        const names_tensor *t = &tensors[i];
        int64_t columns = t->dims > 1 ? t->shape[1] : 1;
        int64_t rows = columns < UNITS_ELEMENTS ? UNITS_ELEMENTS / columns : 1;
        parts_place place = parts_row_of(t->slot)->place;
        bool begins = place == PARTS_AT_EMBEDDING || place == PARTS_AT_FIRST;
        int fragment = t->layer >= 0 ? t->layer % fragments : begins ? 0 : fragments - 1;
        for (int64_t first = 0; first < t->shape[0]; first += rows) {
            int64_t here = t->shape[0] - first < rows ? t->shape[0] - first : rows;
            APPEND(list, *count) = (unit){i, fragment, first, here, here * columns};
        }
    }
    return list;
}

void units_own(int *owner, const unit *units, int count, int fragments, int ranks)
{
    for (int f = 0; f < fragments; f++) {
        int64_t all = 0, before = 0;
        for (int i = 0; i < count; i++)
            all += units[i].fragment == f ? units[i].elements : 0;
        for (int i = 0; i < count; i++) {
            if (units[i].fragment != f)
                continue;
            /* its middle's position among the fragment's elements decides */
            owner[i] = (int)(((double)before + 0.5 * (double)units[i].elements) * ranks / (double)all);
            before += units[i].elements;
        }
    }
}
