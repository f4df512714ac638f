#include "memory/beside.h"

#include <string.h>
#include <sys/types.h>
#include <unistd.h>

#include "memory/log.h"

char *beside_program(const char *name)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        length = 0;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    return must_format("%.*s/libphalanx_%s.so", slash ? (int)(slash - path) : 1, slash ? path : ".", name);
}
