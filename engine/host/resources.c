#include "engine/host/resources.h"

#include <dirent.h>
#include <dlfcn.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "engine/system/atomic.h"
#include "engine/system/lines.h"
#include "engine/system/lock.h"
#include "engine/system/worker.h"
#include "engine/files/tensorboard.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"

/* ---- GPUs by NVML: opened at run time if installed ---- */

typedef struct resources_gpus resources_gpus;

/* -1: unavailable. */
typedef struct resources_gpu {
    double busy; /* share of the last moments in which a kernel ran */
    int64_t memory_used, memory_all;
    double watts, celsius;
    double megahertz;         /* current clock of the multiprocessors */
    double held_back;         /* throttling reasons: the bits of NVML's nvmlClocksEventReasons */
    double uncorrected;       /* memory errors since the driver was loaded that ECC could not correct */
    double rows_remapped;     /* rows of memory remapped for errors, ever */
    double remapping_pending; /* 1: the GPU must be reset for it */
} resources_gpu;

enum { RESOURCES_GPUS = 16 };

/* The part of NVML's C interface in use (nvml.h of CUDA 12 and 13); every function returns 0 on success. */
typedef struct nvml_utilization {
    unsigned gpu, memory; /* per cent */
} nvml_utilization;
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

typedef struct nvml_event {
    void *device;
    unsigned long long type, data; /* data: the Xid's number */
    unsigned gpu_instance, compute_instance;
} nvml_event;

enum { NVML_XID = 8, NVML_CLOCK_SM = 1, NVML_UNCORRECTED = 1, NVML_SINCE_LOADED = 0, NVML_TIMEOUT = 10 };

/* Interval at which the watching thread checks whether to end. */
enum { WATCH_MILLISECONDS = 250 };

struct resources_gpus {
    void *library;
    int count;
    void *device[RESOURCES_GPUS];
    int (*shutdown)(void);
    int (*utilization)(void *, nvml_utilization *);
    int (*memory)(void *, nvml_memory *);
    int (*power)(void *, unsigned *); /* milliwatts */
    int (*temperature)(void *, int sensor, unsigned *);
    /* NULL if the driver is older than these */
    int (*clock)(void *, int which, unsigned *);
    int (*reasons)(void *, unsigned long long *);
    int (*errors)(void *, int kind, int counter, unsigned long long *);
    int (*rows)(void *, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed);
    int (*uuid)(void *, char *, unsigned bytes);
    int (*make_events)(void **);
    int (*free_events)(void *);
    int (*register_events)(void *, unsigned long long types, void *events);
    int (*wait_event)(void *events, nvml_event *, unsigned milliseconds);

    void *events; /* NULL: no thread waits for events */
    worker watcher;
    void (*tell)(void *context, const char *words);
    void *tell_context;
};

/* Finds a function. ISO C has no conversion from an object pointer to one of a function; POSIX has. */
static bool find(void *into, void *library, const char *name)
{
    void **function = into;
    *function = dlsym(library, name);
    return *function != NULL;
}

static void find_newer(resources_gpus *g)
{
    void *l = g->library;
    find(&g->clock, l, "nvmlDeviceGetClockInfo");
    if (!find(&g->reasons, l, "nvmlDeviceGetCurrentClocksEventReasons"))
        find(&g->reasons, l, "nvmlDeviceGetCurrentClocksThrottleReasons"); /* its name before CUDA 12.2 */
    find(&g->errors, l, "nvmlDeviceGetTotalEccErrors");
    find(&g->rows, l, "nvmlDeviceGetRemappedRows");
    find(&g->uuid, l, "nvmlDeviceGetUUID");
    find(&g->make_events, l, "nvmlEventSetCreate");
    find(&g->free_events, l, "nvmlEventSetFree");
    find(&g->register_events, l, "nvmlDeviceRegisterEvents");
    find(&g->wait_event, l, "nvmlEventSetWait_v2");
}

static bool open_devices(resources_gpus *g)
{
    int (*init)(void) = NULL, (*count)(unsigned *) = NULL, (*handle)(unsigned, void **) = NULL;
    void *l = g->library;
    unsigned devices = 0;
    if (!find(&init, l, "nvmlInit_v2") || !find(&g->shutdown, l, "nvmlShutdown") ||
        !find(&count, l, "nvmlDeviceGetCount_v2") || !find(&handle, l, "nvmlDeviceGetHandleByIndex_v2") ||
        !find(&g->utilization, l, "nvmlDeviceGetUtilizationRates") || !find(&g->memory, l, "nvmlDeviceGetMemoryInfo") ||
        !find(&g->power, l, "nvmlDeviceGetPowerUsage") || !find(&g->temperature, l, "nvmlDeviceGetTemperature"))
        return false;
    if (init() != 0)
        return false;
    if (count(&devices) == 0)
        for (unsigned i = 0; i < devices && g->count < RESOURCES_GPUS; i++)
            g->count += handle(i, &g->device[g->count]) == 0;
    if (g->count == 0)
        g->shutdown();
    else
        find_newer(g);
    return g->count > 0;
}

/* Searches the program itself first: a test may bring its own driver. */
static void *find_library(void)
{
    void *self = dlopen(NULL, RTLD_NOW);
    if (self && dlsym(self, "nvmlInit_v2"))
        return self;
    if (self)
        dlclose(self);
    return dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
}

/* Returns NULL without a GPU or a driver. */
static resources_gpus *gpus_open(void)
{
    resources_gpus *g = must_calloc(1, sizeof *g);
    g->library = find_library();
    if (g->library && open_devices(g))
        return g;
    if (g->library)
        dlclose(g->library);
    free(g);
    return NULL;
}

static void read_newer(resources_gpu *out, const resources_gpus *g, void *d)
{
    unsigned megahertz, corrected, uncorrected, pending, failed;
    unsigned long long reasons, errors;
    if (g->clock && g->clock(d, NVML_CLOCK_SM, &megahertz) == 0)
        out->megahertz = megahertz;
    if (g->reasons && g->reasons(d, &reasons) == 0)
        out->held_back = (double)reasons;
    if (g->errors && g->errors(d, NVML_UNCORRECTED, NVML_SINCE_LOADED, &errors) == 0)
        out->uncorrected = (double)errors;
    if (g->rows && g->rows(d, &corrected, &uncorrected, &pending, &failed) == 0) {
        out->rows_remapped = (double)corrected + (double)uncorrected;
        out->remapping_pending = pending;
    }
}

static void gpus_read(resources_gpu *out, const resources_gpus *g, int index)
{
    enum { CORE = 0 };
    void *d = g->device[index];
    nvml_utilization busy;
    nvml_memory memory;
    unsigned milliwatts, degrees;
    *out = (resources_gpu){-1, -1, -1, -1, -1, -1, -1, -1, -1, -1};
    if (g->utilization(d, &busy) == 0)
        out->busy = busy.gpu / 100.0;
    if (g->memory(d, &memory) == 0) {
        out->memory_used = (int64_t)memory.used;
        out->memory_all = (int64_t)memory.total;
    }
    if (g->power(d, &milliwatts) == 0)
        out->watts = milliwatts / 1000.0;
    if (g->temperature(d, CORE, &degrees) == 0)
        out->celsius = degrees;
    read_newer(out, g, d);
}

/* ---- critical errors ---- */

/* Returns the meaning of Xid errors that end training, from NVIDIA's documentation. */
static const char *meaning_of(unsigned long long xid)
{
    static const struct {
        unsigned long long xid;
        const char *meaning;
    } all[] = {
        {13, "a kernel has failed: an error of the program, or of the GPU"},
        {31, "a kernel has touched memory that is not there"},
        {43, "a program's kernels were stopped"},
        {45, "a program's work was removed after an error before"},
        {48, "memory has an error that ECC could not correct"},
        {63, "a row of memory is remapped: reset the GPU soon"},
        {64, "a row of memory could not be remapped: reset the GPU, or replace it"},
        {74, "NVLink has an error"},
        {79, "the GPU has fallen off the bus: restart the host"},
        {92, "memory has many errors that ECC corrects"},
        {94, "memory has an error that only its program suffers from"},
        {95, "memory has an error that any program may suffer from: reset the GPU"},
        {119, "the GPU's system processor does not answer: reset the GPU"},
        {120, "the GPU's system processor has failed: reset the GPU"},
    };
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].xid == xid)
            return all[i].meaning;
    return "see NVIDIA's documentation of Xid errors";
}

static void tell_event(const resources_gpus *g, const nvml_event *e)
{
    char words[256], uuid[96] = "";
    int index = 0;
    while (index < g->count && g->device[index] != e->device)
        index++;
    if (g->uuid && g->uuid(e->device, uuid, sizeof uuid) != 0)
        *uuid = 0;
    snprintf(words, sizeof words, "GPU %d%s%s%s: Xid %llu: %s", index, *uuid ? " (" : "", uuid, *uuid ? ")" : "",
             e->data, meaning_of(e->data));
    g->tell(g->tell_context, words);
}

/* Waits for events until asked to stop, or until the driver fails. */
static void wait_for_events(void *context)
{
    resources_gpus *g = context;
    while (!atomic_load(&g->watcher.stop)) {
        nvml_event e = {0};
        int result = g->wait_event(g->events, &e, WATCH_MILLISECONDS);
        if (result == 0 && e.type == NVML_XID)
            tell_event(g, &e);
        else if (result != 0 && result != NVML_TIMEOUT)
            break;
    }
}

/* Starts a thread that waits for critical errors (Xid) of the GPUs and immediately calls `tell` with a sentence for
 * each, independent of other threads. Returns at once if the driver has no such events. */
static void gpus_watch(resources_gpus *g, void (*tell)(void *context, const char *words), void *context)
{
    int registered = 0;
    if (!g || !g->make_events || !g->free_events || !g->register_events || !g->wait_event ||
        g->make_events(&g->events) != 0)
        return;
    for (int i = 0; i < g->count; i++)
        registered += g->register_events(g->device[i], NVML_XID, g->events) == 0;
    g->tell = tell;
    g->tell_context = context;
    worker_init(&g->watcher);
    if (registered > 0 && worker_start(&g->watcher, wait_for_events, g, "watches GPUs") == STATUS_OK)
        return;
    g->free_events(g->events);
    g->events = NULL;
}

static void gpus_close(resources_gpus *g)
{
    if (!g)
        return;
    if (g->events) {
        worker_close(&g->watcher);
        g->free_events(g->events);
    }
    g->shutdown();
    dlclose(g->library);
    free(g);
}

/* ---- kernel counters of this host ---- */

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

static bool begins_with_any(const char *name, const char *const *prefixes)
{
    for (; *prefixes; prefixes++)
        if (strncmp(name, *prefixes, strlen(*prefixes)) == 0)
            return true;
    return false;
}

/* MAJOR MINOR NAME READS MERGED SECTORS MS WRITES MERGED SECTORS ...: sectors of 512 bytes. Skips devices composed of
 * other disks, and partitions, which follow their disk and begin with its name: they would count twice. */
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
            begins_with_any(name, composed) || (*disk && strncmp(name, disk, strlen(disk)) == 0))
            continue;
        snprintf(disk, sizeof disk, "%s", name);
        h->disk_read += 512 * in;
        h->disk_written += 512 * out;
    }
}

/* NAME: RECEIVED (8 columns) SENT (8 columns), in bytes. Skips bridges and the ends of containers, which carry a port's
 * traffic again. */
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
            begins_with_any(name, inner))
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

/* Remote direct memory access bypasses the kernel's own counters. These are in words of 4 bytes. */
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
    double every, looked; /* seconds; time of the last line by the program's clock */
    bool written;
    resources_host before;
    resources_gpus *gpus;
};

static void add_figure(figures *f, const char *name, double value)
{
    snprintf(f->item[f->count].name, sizeof f->item[f->count].name, "%s", name);
    f->item[f->count++].value = value;
}

static void add_rate(figures *f, const char *name, int64_t before, int64_t now, double seconds)
{
    if (before >= 0 && now >= before && seconds > 0)
        add_figure(f, name, (double)(now - before) / seconds);
}

static void add_gpu(figures *f, const resources_gpus *gpus, int index)
{
    resources_gpu g;
    gpus_read(&g, gpus, index);
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
            add_figure(f, name, all[i].value);
    }
}

static void gather_figures(figures *f, const resources *r, const resources_host *now)
{
    const resources_host *before = &r->before;
    double seconds = now->time - before->time;
    if (before->cpu_all >= 0 && now->cpu_all > before->cpu_all)
        add_figure(f, "cpu_busy",
                   (double)(now->cpu_busy - before->cpu_busy) / (double)(now->cpu_all - before->cpu_all));
    if (now->memory_all >= 0) {
        add_figure(f, "memory_bytes", (double)now->memory_used);
        add_figure(f, "memory_total_bytes", (double)now->memory_all);
    }
    add_rate(f, "disk_read_bytes_per_second", before->disk_read, now->disk_read, seconds);
    add_rate(f, "disk_written_bytes_per_second", before->disk_written, now->disk_written, seconds);
    add_rate(f, "network_received_bytes_per_second", before->network_received, now->network_received, seconds);
    add_rate(f, "network_sent_bytes_per_second", before->network_sent, now->network_sent, seconds);
    for (int i = 0; r->gpus && i < r->gpus->count; i++)
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
    return lines_write(r->lines, text, (int64_t)bytes, false);
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
    TRY(lock_check(o->owner));
    TRY(atomic_make_folders(o->folder));
    TRY(lines_open(&r->lines, path, o->owner));
    if (o->tensorboard)
        TRY(tensorboard_open(&r->events, o->folder, o->first_step, r->before.time, o->owner));
    r->gpus = gpus_open();
    if (o->tell)
        gpus_watch(r->gpus, o->tell, o->context);
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
    gather_figures(&f, r, &here);
    r->before = here;
    r->written = true;
    status s = write_line(r, &f, step, here.time), events = write_events(r, &f, step, here.time);
    return s == STATUS_OK ? events : s;
}

void resources_close(resources *r)
{
    if (!r)
        return;
    lines_close(r->lines);
    tensorboard_close(r->events);
    gpus_close(r->gpus);
    free(r->root);
    free(r);
}
