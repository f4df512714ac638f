#include "tests/engine/store/stores.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "memory/log.h"

object_store *stores_open(const char *bucket, double patience)
{
    object_store *s = NULL;
    assert_int_equal(object_open(&s, bucket, &(object_limits){.patience = patience, .first_pause = 0.001}), STATUS_OK);
    return s;
}

char *stores_bytes(int64_t count, unsigned seed)
{
    char *out = must_alloc((unsigned long)count + 1);
    uint64_t x = seed + 1;
    for (int64_t i = 0; i < count; i++) {
        x = x * 6364136223846793005u + 1442695040888963407u;
        out[i] = (char)(x >> 33);
    }
    return out;
}

void stores_assert_ok(status s)
{
    if (s != STATUS_OK)
        fail_msg("%s", status_message());
}

void stores_assert_failed(status s, const char *words)
{
    assert_int_not_equal(s, STATUS_OK);
    assert_null(strstr(status_message(), S3_SERVER_SECRET));
    assert_null(strstr(status_message(), S3_SERVER_TOKEN));
    assert_null(strstr(status_message(), S3_SERVER_ID));
    char *all = must_strdup(words), *save = NULL;
    for (char *word = strtok_r(all, "|", &save); word; word = strtok_r(NULL, "|", &save))
        if (!strstr(status_message(), word))
            fail_msg("\"%s\" does not say \"%s\"", status_message(), word);
    free(all);
}
