/* Reports in words the signals that kill a process: SIGSEGV, SIGBUS, SIGFPE, SIGILL.
 *
 * A mapped file that was cut short, or has failing storage, is a SIGBUS where it is read: the words name the file and
 * the byte. One line goes to standard error, with where this rank is (log_set_where); then `tell`, from within the
 * signal's handler; then the process ends: after a SIGBUS with exit status 1, otherwise by the signal. Handlers that
 * others have installed before stay (a sanitizer's), but for UCX's, which report only where in UCX a process dies, not
 * the file.
 */
#pragma once

typedef enum fault_kind {
    FAULT_CRASH,
    FAULT_FILE,    /* a mapped file is shorter than it was */
    FAULT_STORAGE, /* a mapped file cannot be read */
} fault_kind;

/* Installs the handlers; `tell` may be NULL. */
void fault_install(void (*tell)(void *context, fault_kind kind, const char *words), void *context);
