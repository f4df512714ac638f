#include "engine/host/resources.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/files/tensorboard.h"
#include "engine/host/resources_gpu.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- counters of this host as the kernel keeps them ---- */

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
    *out = (resources_host){clock_of(CLOCK_REALTIME), -1, -1, -1, -1, -1, -1, -1, -1};
    read_cores(out, root);
    read_memory(out, root);
    read_disks(out, root);
    read_ports(out, root);
    if (out->network_received >= 0)
        read_infiniband(out, root);
}

/* A figure and its name; the figures of GPU 0 are gpu0_..., as TensorBoard's host/gpu0_... */
typedef struct figure {
    char name[48];
    double value;
} figure;

enum { HOST_FIGURES = 8, GPU_FIGURES = 10, FIGURES = HOST_FIGURES + GPU_FIGURES * RESOURCES_GPUS };

typedef struct figures {
    int count;
    figure item[FIGURES];
} figures;

struct resources {
    lines *lines;
    tensorboard *events;
    char *root;
    double every, looked; /* seconds, and of the program's clock */
    bool written;
    resources_host before;
    resources_gpus *gpus;
};

static void add(figures *f, const char *name, double value)
{
    snprintf(f->item[f->count].name, sizeof f->item[f->count].name, "%s", name);
    f->item[f->count++].value = value;
}

static void add_rate(figures *f, const char *name, int64_t before, int64_t now, double seconds)
{
    if (before >= 0 && now >= before && seconds > 0)
        add(f, name, (double)(now - before) / seconds);
}

static void add_gpu(figures *f, const resources_gpus *gpus, int index)
{
    resources_gpu g;
    resources_gpu_read(&g, gpus, index);
    const struct {
        const char *name;
        double value;
    } all[GPU_FIGURES] = {{"busy", g.busy},
                          {"memory_bytes", (double)g.memory_used},
                          {"memory_total_bytes", (double)g.memory_all},
                          {"watts", g.watts},
                          {"celsius", g.celsius},
                          {"megahertz", g.megahertz},
                          {"held_back", g.held_back},
                          {"uncorrected_errors", g.uncorrected},
                          {"rows_remapped", g.rows_remapped},
                          {"remapping_pending", g.remapping_pending}};
    for (int i = 0; i < GPU_FIGURES; i++) {
        char name[48];
        snprintf(name, sizeof name, "gpu%d_%s", index, all[i].name);
        if (all[i].value >= 0)
            add(f, name, all[i].value);
    }
}

static void gather(figures *f, const resources *r, const resources_host *now)
{
    const resources_host *before = &r->before;
    double seconds = now->time - before->time;
    if (before->cpu_all >= 0 && now->cpu_all > before->cpu_all)
        add(f, "cpu_busy", (double)(now->cpu_busy - before->cpu_busy) / (double)(now->cpu_all - before->cpu_all));
    if (now->memory_all >= 0) {
        add(f, "memory_bytes", (double)now->memory_used);
        add(f, "memory_total_bytes", (double)now->memory_all);
    }
    add_rate(f, "disk_read_bytes_per_second", before->disk_read, now->disk_read, seconds);
    add_rate(f, "disk_written_bytes_per_second", before->disk_written, now->disk_written, seconds);
    add_rate(f, "network_received_bytes_per_second", before->network_received, now->network_received, seconds);
    add_rate(f, "network_sent_bytes_per_second", before->network_sent, now->network_sent, seconds);
    for (int i = 0; i < resources_gpu_count(r->gpus); i++)
        add_gpu(f, r->gpus, i);
}

static status write_line(resources *r, const figures *f, int64_t step, double time)
{
    AUTO_FREE char *text = NULL;
    size_t bytes;
    FILE *out = open_memstream(&text, &bytes);
    MUST(out, "out of host memory");
    fprintf(out, "{\"time\": %.3f, \"step\": %lld", time, (long long)step);
    for (int i = 0; i < f->count; i++)
        fprintf(out, ", \"%s\": %.12g", f->item[i].name, f->item[i].value);
    fputs("}\n", out);
    fclose(out);
    return lines_write(r->lines, text, false);
}

static status write_events(resources *r, const figures *f, int64_t step, double time)
{
    char tag[FIGURES][64];
    tensorboard_value value[FIGURES];
    if (!r->events)
        return STATUS_OK;
    for (int i = 0; i < f->count; i++) {
        snprintf(tag[i], sizeof tag[i], "host/%s", f->item[i].name);
        value[i] = (tensorboard_value){tag[i], f->item[i].value};
    }
    return tensorboard_write(r->events, value, f->count, step, time);
}

status resources_open(resources **out, const resources_options *o)
{
    AUTO(resources) *r = must_calloc(1, sizeof *r);
    r->root = must_strdup(o->root);
    r->every = o->every;
    resources_host_read(&r->before, r->root);
    r->looked = clock_seconds();
    AUTO_FREE char *path = must_format("%s/resources.jsonl", o->folder);
    TRY(atomic_make_folders(o->folder));
    TRY(lines_open(&r->lines, path));
    if (o->tensorboard)
        TRY(tensorboard_open(&r->events, o->folder, o->first_step, r->before.time));
    r->gpus = resources_gpu_open();
    if (o->tell)
        resources_gpu_watch(r->gpus, o->tell, o->context);
    *out = TAKE(r);
    return STATUS_OK;
}

status resources_look(resources *r, int64_t step, bool now)
{
    double least = r && r->written ? 1 : 0; /* rates over less are noise */
    resources_host here;
    figures f = {0};
    double passed = r ? clock_seconds() - r->looked : 0;
    if (!r || passed < (now ? least : r->every))
        return STATUS_OK;
    r->looked = clock_seconds();
    resources_host_read(&here, r->root);
    gather(&f, r, &here);
    r->before = here;
    r->written = true;
    status s = write_line(r, &f, step, here.time);
    return s == STATUS_OK ? write_events(r, &f, step, here.time) : s;
}

void resources_close(resources *r)
{
    if (!r)
        return;
    lines_close(r->lines);
    tensorboard_close(r->events);
    resources_gpu_close(r->gpus);
    free(r->root);
    free(r);
}
