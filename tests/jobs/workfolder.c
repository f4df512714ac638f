#include "tests/jobs/workfolder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/system/atomic.h"
#include "memory/log.h"

int workfolder_setup(void **state)
{
    const char *top = getenv("TMPDIR");
    if (!top)
        top = access("/dev/shm", W_OK) == 0 ? "/dev/shm" : "/tmp"; /* tests write little, and often */
    char *path = must_format("%s/phalanx-test-XXXXXX", top);
    *state = mkdtemp(path);
    return *state ? 0 : -1;
}

int workfolder_teardown(void **state)
{
    status s = atomic_remove(*state);
    free(*state);
    return s == STATUS_OK ? 0 : -1;
}

char *workfolder_path(const char *folder, const char *name)
{
    return must_format("%s/%s", folder, name);
}

uint8_t *workfolder_read(const char *path, int64_t *bytes)
{
    FILE *file = fopen(path, "rb");
    assert_non_null(file);
    fseek(file, 0, SEEK_END);
    *bytes = ftell(file);
    rewind(file);
    uint8_t *data = must_calloc((unsigned long)*bytes + 1, 1);
    assert_int_equal(fread(data, 1, (size_t)*bytes, file), *bytes);
    fclose(file);
    return data;
}

void workfolder_write(const char *path, const void *data, int64_t bytes)
{
    FILE *file = fopen(path, "wb");
    assert_non_null(file);
    if (bytes > 0)
        assert_int_equal(fwrite(data, 1, (size_t)bytes, file), bytes);
    assert_int_equal(fclose(file), 0);
}

void workfolder_message_has(const char *part)
{
    if (!strstr(status_message(), part))
        fail_msg("\"%s\" does not say \"%s\"", status_message(), part);
    if (strchr(status_message(), '\n'))
        fail_msg("\"%s\" is more than one line", status_message());
}
