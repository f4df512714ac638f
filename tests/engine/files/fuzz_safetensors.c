/* libFuzzer: whatever a header says, it is refused or every byte of every tensor can be read. The first byte chooses:
 * odd, the rest is the JSON, and the second byte the length of the data after it; even, the rest is the whole file. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/files/safetensors.h"
#include "memory/log.h"
#include "memory/scope.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 2)
        return 0;
    uint64_t header = size - 2, prefix = data[0] & 1 ? 8 : 0, after = data[0] & 1 ? data[1] : 0;
    uint64_t bytes = prefix + header + after;
    AUTO_FREE uint8_t *file = must_calloc(bytes, 1);
    memcpy(file, &header, prefix);
    memcpy(file + prefix, data + 2, header);
    safetensors *s;
    if (safetensors_parse(&s, file, (int64_t)bytes, "fuzz") == STATUS_OK) {
        int64_t total = 0;
        for (int i = 0; i < safetensors_count(s); i++) {
            const safetensors_tensor *t = safetensors_at(s, i);
            AUTO_FREE uint8_t *copy = must_alloc((unsigned long)t->bytes);
            if (t->bytes)
                memcpy(copy, safetensors_data(s, t), (size_t)t->bytes);
            total += t->bytes;
        }
        MUST(total < (int64_t)bytes, "more data than the file has");
        safetensors_close(s);
    } else
        MUST(!strchr(status_message(), '\n'), "two lines: %s", status_message());
    return 0;
}
