#include "engine/files/json_memory.h"

#include <jansson.h>
#include <stdlib.h>

#include "memory/log.h"

static void *allocate(size_t bytes)
{
    return must_alloc(bytes);
}

void json_memory_guard(void)
{
    json_set_alloc_funcs(allocate, free);
}
