#include "tests/tools/conversion.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/system/atomic.h"
#include "memory/log.h"
#include "memory/scope.h"
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
    AUTO_FREE char *path = workfolder_path(folder, name);
    return atomic_exists(path);
}

void conversion_put(const char *folder, const char *name, const char *text)
{
    AUTO_FREE char *path = workfolder_path(folder, name);
    workfolder_write(path, text, (int64_t)strlen(text));
}

void conversion_same_file(const char *a, const char *b, const char *name)
{
    AUTO_FREE char *x = workfolder_path(a, name), *y = workfolder_path(b, name);
    int64_t bytes, other;
    AUTO_FREE uint8_t *ours = workfolder_read(x, &bytes), *theirs = workfolder_read(y, &other);
    assert_int_equal(bytes, other);
    assert_memory_equal(ours, theirs, bytes);
}

void conversion_copy_file(const char *from, const char *to, const char *name)
{
    AUTO_FREE char *x = workfolder_path(from, name), *y = workfolder_path(to, name);
    int64_t bytes;
    AUTO_FREE uint8_t *data = workfolder_read(x, &bytes);
    workfolder_write(y, data, bytes);
}
