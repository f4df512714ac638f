#include "memory/machine.h"

#include <ctype.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/log.h"
#include "memory/scope.h"

/* Reads the first line of a file; false: there is none. */
static bool read_line(char *out, int bytes, const char *path)
{
    AUTO(FILE) *file = fopen(path, "re");
    return file && fgets(out, bytes, file);
}

bool machine_boot(char out[MACHINE_BOOT])
{
    memset(out, 0, MACHINE_BOOT);
    if (read_line(out, MACHINE_BOOT, "/proc/sys/kernel/random/boot_id"))
        memset(out + strcspn(out, "\n"), 0, MACHINE_BOOT - strcspn(out, "\n"));
    return *out;
}

char *machine_object(const char *name)
{
    char path[4096];
    ssize_t length = readlink("/proc/self/exe", path, sizeof path - 1);
    if (length < 0)
        length = 0;
    path[length] = 0;
    char *slash = strrchr(path, '/');
    return must_format("%.*s/libphalanx_%s.so", slash ? (int)(slash - path) : 1, slash ? path : ".", name);
}

int machine_node_of(const char *root, const char *pci)
{
    char path[600], id[64], line[32];
    size_t length = strlen(pci);
    if (length >= sizeof id)
        return -1;
    for (size_t i = 0; i <= length; i++)
        id[i] = (char)tolower((unsigned char)pci[i]);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node1/cpulist", root);
    if (!read_line(line, sizeof line, path))
        return -1;
    snprintf(path, sizeof path, "%s/sys/bus/pci/devices/%s/numa_node", root, id);
    return read_line(line, sizeof line, path) ? atoi(line) : -1;
}

/* Reads the cores of a node, "0-3,8,10-11"; false: it has none, or is unknown. */
static bool cores_of(cpu_set_t *out, const char *root, int node)
{
    char path[600], line[4096];
    CPU_ZERO(out);
    snprintf(path, sizeof path, "%s/sys/devices/system/node/node%d/cpulist", root, node);
    if (!read_line(line, sizeof line, path))
        return false;
    for (char *at = line, *end; isdigit((unsigned char)*at); at = *end == ',' ? end + 1 : end) {
        long first = strtol(at, &end, 10), last = first;
        if (*end == '-')
            last = strtol(end + 1, &end, 10);
        for (long i = first; i <= last && i < CPU_SETSIZE; i++)
            CPU_SET((size_t)i, out);
    }
    return CPU_COUNT(out) > 0;
}

machine_verdict machine_stay_near(const char *root, int node)
{
    cpu_set_t near, mine, both;
    if (node < 0 || !cores_of(&near, root, node) || sched_getaffinity(0, sizeof mine, &mine) != 0)
        return MACHINE_UNKNOWN;
    CPU_AND(&both, &near, &mine);
    if (CPU_COUNT(&both) == 0)
        return MACHINE_ELSEWHERE;
    if (CPU_EQUAL(&both, &mine))
        return MACHINE_NEAR;
    AUTO(DIR) *tasks = opendir("/proc/self/task"); /* binds threads that libraries have made before, too */
    for (struct dirent *e; tasks && (e = readdir(tasks));)
        if (isdigit((unsigned char)*e->d_name))
            sched_setaffinity((pid_t)atoi(e->d_name), sizeof both, &both);
    return MACHINE_NEAR;
}
