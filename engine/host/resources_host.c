#include "engine/host/resources_host.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "memory/log.h"
#include "memory/scope.h"

static FILE *open_below(const char *root, const char *name)
{
    AUTO_FREE char *path = must_format("%s%s", root, name);
    return fopen(path, "r");
}

/* cpu USER NICE SYSTEM IDLE IOWAIT IRQ SOFTIRQ STEAL: ticks of all cores together */
static void read_cores(resources_host *h, const char *root)
{
    int64_t t[8] = {0};
    AUTO(FILE) *f = open_below(root, "/proc/stat");
    if (!f)
        return;
    int found =
        fscanf(f, "cpu %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64 " %" SCNd64,
               &t[0], &t[1], &t[2], &t[3], &t[4], &t[5], &t[6], &t[7]);
    if (found < 4)
        return;
    h->cpu_all = 0;
    for (int i = 0; i < 8; i++)
        h->cpu_all += t[i];
    h->cpu_busy = h->cpu_all - t[3] - t[4];
}

static void read_memory(resources_host *h, const char *root)
{
    char line[256];
    int64_t all = -1, available = -1;
    AUTO(FILE) *f = open_below(root, "/proc/meminfo");
    while (f && fgets(line, sizeof line, f)) {
        sscanf(line, "MemTotal: %" SCNd64, &all);
        sscanf(line, "MemAvailable: %" SCNd64, &available);
    }
    if (all < 0 || available < 0)
        return;
    h->memory_all = all * 1024;
    h->memory_used = (all - available) * 1024;
}

static bool begins(const char *name, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

/* MAJOR MINOR NAME READS MERGED SECTORS MS WRITES MERGED SECTORS ...: sectors of 512 bytes. What is made of other disks
 * would count twice, and so would partitions, which follow their disk and begin with its name. */
static void read_disks(resources_host *h, const char *root)
{
    static const char *const composed[] = {"loop", "ram", "zram", "dm-", "md", NULL};
    char line[512], name[64], disk[64] = "";
    int64_t in, out;
    AUTO(FILE) *f = open_below(root, "/proc/diskstats");
    if (!f)
        return;
    h->disk_read = h->disk_written = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, "%*d %*d %63s %*d %*d %" SCNd64 " %*d %*d %*d %" SCNd64, name, &in, &out) != 3 ||
            begins(name, composed) || (*disk && strncmp(name, disk, strlen(disk)) == 0))
            continue;
        snprintf(disk, sizeof disk, "%s", name);
        h->disk_read += 512 * in;
        h->disk_written += 512 * out;
    }
}

/* NAME: RECEIVED (8 columns) SENT (8 columns), in bytes. Bridges and the ends of containers carry what a port carries,
 * too. */
static void read_ports(resources_host *h, const char *root)
{
    static const char *const inner[] = {"lo", "veth", "docker", "br-", "virbr", "cni", "flannel", "cali", NULL};
    char line[512], name[64];
    int64_t in, out;
    AUTO(FILE) *f = open_below(root, "/proc/net/dev");
    if (!f)
        return;
    h->network_received = h->network_sent = 0;
    while (fgets(line, sizeof line, f)) {
        if (sscanf(line, " %63[^:]: %" SCNd64 " %*d %*d %*d %*d %*d %*d %*d %" SCNd64, name, &in, &out) != 3 ||
            begins(name, inner))
            continue;
        h->network_received += in;
        h->network_sent += out;
    }
}

static int64_t number_in(const char *root, const char *device, const char *port, const char *name)
{
    AUTO_FREE char *path = must_format("/sys/class/infiniband/%s/ports/%s/counters/%s", device, port, name);
    AUTO(FILE) *f = open_below(root, path);
    int64_t value = 0;
    if (f && fscanf(f, "%" SCNd64, &value) != 1)
        value = 0;
    return value;
}

/* Remote direct memory access passes the kernel's own counters by. These are in words of 4 bytes. */
static void read_infiniband(resources_host *h, const char *root)
{
    AUTO_FREE char *top = must_format("%s/sys/class/infiniband", root);
    AUTO(DIR) *devices = opendir(top);
    for (struct dirent *d; devices && (d = readdir(devices));) {
        AUTO_FREE char *below = must_format("%s/%s/ports", top, d->d_name);
        AUTO(DIR) *ports = *d->d_name == '.' ? NULL : opendir(below);
        for (struct dirent *p; ports && (p = readdir(ports));) {
            if (*p->d_name == '.')
                continue;
            h->network_received += 4 * number_in(root, d->d_name, p->d_name, "port_rcv_data");
            h->network_sent += 4 * number_in(root, d->d_name, p->d_name, "port_xmit_data");
        }
    }
}

void resources_host_read(resources_host *out, const char *root)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (resources_host){(double)now.tv_sec + 1e-9 * (double)now.tv_nsec, -1, -1, -1, -1, -1, -1, -1, -1};
    read_cores(out, root);
    read_memory(out, root);
    read_disks(out, root);
    read_ports(out, root);
    if (out->network_received >= 0)
        read_infiniband(out, root);
}
