#include "tests/tools/conversion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/files/atomic.h"
#include "memory/log.h"
#include "tests/jobs/golden.h"
#include "tests/jobs/workfolder.h"

char *conversion_golden(const char *model)
{
    return must_format(GOLDEN_MODELS "/%s", model);
}

status conversion(const char *from, const char *to, weights_format format, int type, int64_t shard_bytes)
{
    weights *w;
    TRY(weights_open(&w, from));
    const weights_copy_options o = {.format = format, .type = type, .shard_bytes = shard_bytes};
    status s = weights_copy(w, to, &o);
    weights_close(w);
    return s;
}

void conversion_must(const char *from, const char *to, weights_format format, int type, int64_t shard_bytes)
{
    if (conversion(from, to, format, type, shard_bytes) != STATUS_OK)
        fail_msg("%s", status_message());
}

bool conversion_has(const char *folder, const char *name)
{
    char *path = workfolder_path(folder, name);
    bool yes = atomic_exists(path);
    free(path);
    return yes;
}

void conversion_put(const char *folder, const char *name, const char *text)
{
    char *path = workfolder_path(folder, name);
    workfolder_write(path, text, (int64_t)strlen(text));
    free(path);
}
