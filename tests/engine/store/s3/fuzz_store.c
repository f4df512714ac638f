/* libFuzzer: whatever XML a store answers with, it is refused or its elements are read, each path and text bounded. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "engine/store/s3/s3_internal.h"
#include "memory/log.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static status take(void *context, const char *path, const char *text)
{
    size_t *total = context;
    MUST(*path && strlen(path) < 256 && strlen(text) < 8192, "a path or a text without bounds");
    *total += strlen(path) + strlen(text);
    return STATUS_OK;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t total = 0;
    char *copy = must_alloc(size ? size : 1); /* its own block, so that a byte beyond is seen */
    memcpy(copy, data, size);
    status s = xml_read(copy, (int64_t)size, take, &total);
    MUST(s == STATUS_OK || *status_message(), "a failure without words");
    free(copy);
    return 0;
}
