#include "memory/fault.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/outlet.h"

static const struct {
    int number;
    const char *name;
} caught[] = {{SIGSEGV, "SIGSEGV"}, {SIGBUS, "SIGBUS"}, {SIGFPE, "SIGFPE"}, {SIGILL, "SIGILL"}};

enum { CAUGHT = sizeof caught / sizeof *caught };

/* global, since a signal's handler has no other argument */
static struct {
    void (*tell)(void *, fault_kind, const char *);
    void *context;
} listener;

/* One line of /proc/self/maps: "first-last mode offset device inode   path". */
static bool parse(const char *line, uintptr_t address, char *path, int64_t *offset)
{
    unsigned long first, last, start;
    char name[PATH_MAX] = "";
    if (sscanf(line, "%lx-%lx %*s %lx %*s %*s %4095s", &first, &last, &start, name) < 3)
        return false;
    if (address < first || address >= last || name[0] != '/')
        return false;
    const char *at = strchr(line, '/'); /* a name may hold spaces */
    snprintf(path, PATH_MAX, "%s", at);
    *offset = (int64_t)(start + (address - first));
    return true;
}

/* Finds the file mapped at an address, and the byte in it. Reads with read(2) alone: this runs within a handler. */
static bool find_file(const void *address, char *path, int64_t *offset)
{
    char line[PATH_MAX + 128], block[4096];
    int file = open("/proc/self/maps", O_RDONLY | O_CLOEXEC);
    size_t used = 0;
    bool found = false;
    ssize_t got = 0;
    while (file >= 0 && !found && (got = read(file, block, sizeof block)) > 0)
        for (ssize_t i = 0; i < got && !found; i++) {
            if (block[i] != '\n') {
                if (used < sizeof line - 1)
                    line[used++] = block[i];
                continue;
            }
            line[used] = 0;
            used = 0;
            found = parse(line, (uintptr_t)address, path, offset);
        }
    if (file >= 0)
        close(file);
    return found;
}

static fault_kind describe(char *out, size_t bytes, int number, const void *address)
{
    char path[PATH_MAX];
    int64_t offset;
    struct stat info;
    const char *name = "a signal";
    for (int i = 0; i < CAUGHT; i++)
        name = caught[i].number == number ? caught[i].name : name;
    if (number != SIGBUS || !find_file(address, path, &offset)) {
        snprintf(out, bytes, "%s at address %p", name, address);
        return FAULT_CRASH;
    }
    bool shorter = stat(path, &info) != 0 || info.st_size <= offset;
    snprintf(out, bytes, "%s: byte %lld cannot be read: %s (%s)", path, (long long)offset,
             shorter ? "the file has been cut short since it was opened" : "its storage fails", name);
    return shorter ? FAULT_FILE : FAULT_STORAGE;
}

static void on_fault(int number, siginfo_t *info, void *machine)
{
    char words[PATH_MAX + 256], line[PATH_MAX + 1024], where[512];
    (void)machine;
    fault_kind kind = describe(words, sizeof words, number, info->si_addr);
    log_where(where, (int)sizeof where);
    int length = snprintf(line, sizeof line, "phalanx: rank %d: fatal: %s%s%s\n", log_rank(), words,
                          *where ? "; at " : "", where);
    outlet_last_words(line, (size_t)length < sizeof line ? (size_t)length : sizeof line, OUTLET_LAST_SECONDS);
    if (listener.tell)
        listener.tell(listener.context, kind, words);
    if (kind != FAULT_CRASH)
        _exit(1);
    signal(number, SIG_DFL);
    raise(number);
}

/* True if a handler is the one of UCX, a library of Open MPI's, which installs it before main(). */
static bool is_of_ucx(const struct sigaction *handler)
{
    Dl_info of;
    void *address = NULL;
    memcpy(&address, &handler->sa_sigaction, sizeof address);
    return address && dladdr(address, &of) && of.dli_fname && strstr(of.dli_fname, "/libucs.so");
}

void fault_install(void (*tell)(void *, fault_kind, const char *), void *context)
{
    struct sigaction action = {.sa_sigaction = on_fault, .sa_flags = SA_SIGINFO}, before;
    listener.tell = tell;
    listener.context = context;
    sigemptyset(&action.sa_mask);
    for (int i = 0; i < CAUGHT; i++)
        if (sigaction(caught[i].number, NULL, &before) == 0 && (before.sa_handler == SIG_DFL || is_of_ucx(&before)))
            sigaction(caught[i].number, &action, NULL);
}
