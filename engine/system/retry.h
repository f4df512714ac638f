/* Storage that fails for a moment is asked again: after a call on a file has failed, is it worth another try?
 *
 * A network file system says ESTALE, EIO or ETIMEDOUT while a server restarts, and answers a second later. What will
 * fail again for certain (no such file, no space, a name too long) is not tried again. A zeroed `retry` is one call
 * that has not failed yet.
 */
#pragma once

#include <errno.h>
#include <stdbool.h>

typedef struct retry {
    int failures;
} retry;

/* The call on `path` has failed with errno `error`. true, after a pause that doubles from one failure to the next: try
 * it again. false: give up; errno is `error`. */
bool retry_again(retry *r, int error, const char *path);

/* The value of a call on `path` that returns a negative number, with errno, where it fails: called again while that may
 * help. */
#define RETRY(path, call)                                                                                              \
    __extension__({                                                                                                    \
        retry retry_ = {0};                                                                                            \
        int value_;                                                                                                    \
        do                                                                                                             \
            value_ = (call);                                                                                           \
        while (value_ < 0 && retry_again(&retry_, errno, path));                                                       \
        value_;                                                                                                        \
    })
