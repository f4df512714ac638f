#include "engine/state/nodes/node_memory.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "memory/arena.h"
#include "memory/units.h"

status node_memory_check_room(int64_t bytes, int shares)
{
    struct statvfs info;
    char needed[UNITS_TEXT], there[UNITS_TEXT];
    if (statvfs(NODE_MEMORY, &info) != 0)
        return status_fail(STATUS_FAILED, "checkpoint.memory_every: there is no " NODE_MEMORY ": %s", strerror(errno));
    int64_t room = (int64_t)info.f_bavail * (int64_t)info.f_frsize, available = arena_available();
    room = room < available ? room : available;
    if (2 * bytes <= room / shares)
        return STATUS_OK;
    units_bytes(needed, 2.0 * (double)bytes * shares);
    units_bytes(there, (double)room);
    return status_fail(STATUS_FAILED,
                       "checkpoint.memory_every needs %s of " NODE_MEMORY
                       " on this node (two generations of its ranks' shares and "
                       "of a neighbour's), and %s are left: set it to 0, or use more nodes",
                       needed, there);
}

status node_memory_check_sticky(void)
{
    struct stat info;
    if (stat(NODE_MEMORY, &info) == 0 && (info.st_mode & S_IWOTH) && !(info.st_mode & S_ISVTX))
        return status_fail(STATUS_FAILED, "checkpoint.memory_every: others could replace what is in " NODE_MEMORY
                                          ": chmod +t it, as it is elsewhere");
    return STATUS_OK;
}
