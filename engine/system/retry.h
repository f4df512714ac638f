/* Retries calls on storage that fails for a moment: decides whether a failed call is worth another try.
 *
 * A network file system says ESTALE, EIO or ETIMEDOUT while a server restarts, and answers a second later. Permanent
 * errors (no such file, no space, a name too long) are not retried. A zeroed `retry` is one call that has not failed
 * yet.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

#include "memory/status.h"

typedef struct retry {
    int failures;
} retry;

/* Decides whether a call on `path` that failed with errno `error` is tried again. true, after a pause that doubles with
 * each failure: retry. false: give up; errno is `error`. */
bool retry_again(retry *r, int error, const char *path);

/* Fails with "cannot WHAT PATH: " and why, by errno. */
status retry_failed(const char *what, const char *path);

/* Repeats a call on `path` that returns a negative number, with errno, on failure, while that may help; its last
 * value. */
#define RETRY(path, call)                                                                                              \
    __extension__({                                                                                                    \
        retry retry_ = {0};                                                                                            \
        int value_;                                                                                                    \
        do                                                                                                             \
            value_ = (call);                                                                                           \
        while (value_ < 0 && retry_again(&retry_, errno, path));                                                       \
        value_;                                                                                                        \
    })
