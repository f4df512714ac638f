#include "memory/status.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define MESSAGE_BYTES 2048

static _Thread_local char message[MESSAGE_BYTES];

status(status_fail)(status code, const char *format, ...) /* parenthesised: a macro for the analyzer */
{
    int error = errno;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    errno = error;
    return code;
}

status status_context(status code, const char *format, ...)
{
    char previous[MESSAGE_BYTES];
    memcpy(previous, message, sizeof previous);
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(message, sizeof message, format, arguments);
    va_end(arguments);
    size_t used = strlen(message);
    if (used + 2 < sizeof message)
        snprintf(message + used, sizeof message - used, ": %.*s", (int)(sizeof message - used - 3), previous);
    return code;
}

const char *status_message(void)
{
    return message;
}
