#include "tools/dataset.h"

#include <string.h>

#include "engine/tokenizer_files.h"

#define ANY_ID ((int64_t)INT32_MAX + 1) /* a vocabulary in which every stored id lies */

int64_t dataset_room(indexed *const *inputs, int count)
{
    for (int i = 0; i < count; i++)
        if (strcmp(indexed_dtype(inputs[i]), "uint16") != 0 && strcmp(indexed_dtype(inputs[i]), "uint8") != 0)
            return ANY_ID - 1;
    return 65499;
}

status dataset_copy(indexed_writer *w, buffer_ids *ids, const indexed *x, int64_t document)
{
    int64_t start = indexed_document_start(x, document), count = indexed_document_start(x, document + 1) - start;
    ids->count = 0;
    buffer_ids_reserve(ids, count + 1);
    TRY(indexed_read(x, ids->ids, start, count, ANY_ID));
    return indexed_writer_document(w, ids->ids, count);
}

status dataset_finish(status s, indexed_writer *w)
{
    if (s == STATUS_OK)
        return indexed_writer_close(w);
    indexed_writer_abandon(w);
    return s;
}

status dataset_tokenizer(tokenizer **out, const char *prefix)
{
    *out = NULL;
    return tokenizer_files_is_beside(prefix) ? tokenizer_files_open_beside(out, prefix) : STATUS_OK;
}
