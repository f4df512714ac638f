/* A call that depends on the outside world (files, configuration, arguments, peers) returns a status.
 *
 * On failure the sentence for the user (error, place, remedy) is kept for the calling thread until its next failure, so
 * that a caller may add context on the way up, print it, or drop it. Broken invariants are no status: they are MUST()
 * of log.h.
 */
#pragma once

#include <stdarg.h>

typedef enum status {
    STATUS_OK = 0,
    STATUS_FAILED = 1, /* the outside world failed; also the exit status of the program */
    STATUS_USAGE = 2,  /* wrong arguments or configuration; also the exit status of the program */
    STATUS_LOST = 75,  /* another run has the folder by now; the program exits as it does when it is stopped */
} status;

/* Records the message of a failure and returns `code`, so that a function can end with `return status_fail(...)`. errno
 * stays. */
status status_fail(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

#ifdef __clang_analyzer__ /* the analyzer sees one file at a time, and must know that a failure is never STATUS_OK */
#define status_fail(code, ...) ((void)status_fail(code, __VA_ARGS__), code)
#endif

/* Puts "prefix: " before the message of the current failure; returns `code` unchanged. */
status status_context(status code, const char *format, ...) __attribute__((format(printf, 2, 3)));

/* Returns the message of this thread's last failure; never NULL. Valid until the thread's next failure. */
const char *status_message(void);

/* Returns from the calling function if `expression` failed. Where something must be undone first, use goto instead. */
#define TRY(expression)                                                                                                \
    do {                                                                                                               \
        status try_status_ = (expression);                                                                             \
        if (try_status_ != STATUS_OK)                                                                                  \
            return try_status_;                                                                                        \
    } while (0)
