#include "engine/system/retry.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "memory/clock.h"
#include "memory/log.h"

static const double FIRST_PAUSE = 0.05; /* seconds; doubled after each failure: 8 tries last 6.4 s */

/* Transient errors and the number of tries for each. EACCES and ELOOP pass within a moment (renewed credentials, an
 * automounter) or are a user's mistake, so that few tries let him read the message soon. */
static const struct {
    int error, tries;
} transient_errors[] = {
    {EINTR, 100},      {EAGAIN, 8},       {EIO, 8},      {ESTALE, 8},       {ETIMEDOUT, 8}, {EBUSY, 8},
    {ENOLINK, 8},      {EREMOTEIO, 8},    {ENOMEM, 8},   {ENFILE, 8},       {ENETDOWN, 8},  {ENETUNREACH, 8},
    {EHOSTDOWN, 8},    {EHOSTUNREACH, 8}, {ENOTCONN, 8}, {ECONNREFUSED, 8}, {ESHUTDOWN, 8}, {ECONNRESET, 8},
    {ECONNABORTED, 8}, {EACCES, 3},       {ELOOP, 3},
};

bool retry_again(retry *r, int error, const char *path)
{
    enum { WARNED_FAILURE = 4 }; /* the failure that warns: shorter trouble stays silent */
    int tries = 1;
    for (size_t i = 0; i < sizeof transient_errors / sizeof *transient_errors; i++)
        if (transient_errors[i].error == error)
            tries = transient_errors[i].tries;
    bool again = ++r->failures < tries;
    if (again && error != EINTR) {
        if (r->failures == WARNED_FAILURE)
            log_warn("%s: %s; trying again", path, strerror(error));
        struct timespec left = clock_timespec(FIRST_PAUSE * (double)(1 << (r->failures < 16 ? r->failures - 1 : 15)));
        while (nanosleep(&left, &left) != 0 && errno == EINTR)
            ;
    }
    errno = error;
    return again;
}

status retry_failed(const char *what, const char *path)
{
    return status_fail(STATUS_FAILED, "cannot %s %s: %s%s", what, path, strerror(errno),
                       errno == ENOSPC || errno == EDQUOT ? " (free some, then try again)" : "");
}
