/* libFuzzer: whatever an index says, opening refuses it or every token can be read. The first byte chooses: odd, the
 * rest is the index from offset 17 on, with a correct beginning; even, the whole index. The second is the length of
 * .bin. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/indexed.h"
#include "memory/log.h"
#include "memory/scope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const uint8_t start[17] = {'M', 'M', 'I', 'D', 'I', 'D', 'X', 0, 0, 1};
    if (size < 2)
        return 0;
    int64_t prefix = data[0] & 1 ? (int64_t)sizeof start : 0, bytes = prefix + (int64_t)size - 2, bin_bytes = data[1];
    AUTO_FREE uint8_t *idx = must_alloc((unsigned long)bytes), *bin = must_calloc((unsigned long)bin_bytes, 1);
    memcpy(idx, start, (size_t)prefix);
    memcpy(idx + prefix, data + 2, size - 2);
    indexed *x;
    if (indexed_parse(&x, idx, bytes, bin, bin_bytes, "fuzz") == STATUS_OK) {
        int64_t tokens = indexed_tokens(x);
        MUST(indexed_document_start(x, indexed_documents(x)) == tokens, "the last document does not end at the end");
        AUTO_FREE int32_t *out = must_alloc((unsigned long)tokens * sizeof *out);
        MUST(indexed_read(x, out, 0, tokens, 1) == STATUS_OK, "zeros are no zeros");
        for (int64_t i = 0; i < tokens; i++) {
            int64_t d = indexed_document_of(x, i);
            MUST(indexed_document_start(x, d) <= i && i < indexed_document_start(x, d + 1), "token in no document");
        }
        indexed_close(x);
    }
    return 0;
}
