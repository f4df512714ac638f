#include "engine/host/resources_gpu.h"

#include <dlfcn.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/system/worker.h"
#include "memory/log.h"

/* NVML's C interface, as far as it is used (nvml.h of CUDA 12 and 13); every function returns 0 where it worked. */
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

/* Between two looks of the watching thread at whether it is to end. */
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
    /* The driver may be older than these: NULL */
    int (*clock)(void *, int which, unsigned *);
    int (*reasons)(void *, unsigned long long *);
    int (*errors)(void *, int kind, int counter, unsigned long long *);
    int (*rows)(void *, unsigned *corrected, unsigned *uncorrected, unsigned *pending, unsigned *failed);
    int (*uuid)(void *, char *, unsigned bytes);
    int (*make_events)(void **);
    int (*free_events)(void *);
    int (*register_events)(void *, unsigned long long types, void *events);
    int (*wait_event)(void *events, nvml_event *, unsigned milliseconds);

    void *events; /* NULL: nobody waits for any */
    worker watcher;
    void (*tell)(void *context, const char *words);
    void *tell_context;
};

/* ISO C has no conversion from an object pointer to one of a function; POSIX has. */
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

/* The program itself first: a test may bring a driver of its own. */
static void *find_library(void)
{
    void *self = dlopen(NULL, RTLD_NOW);
    if (self && dlsym(self, "nvmlInit_v2"))
        return self;
    if (self)
        dlclose(self);
    return dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
}

resources_gpus *resources_gpu_open(void)
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

int resources_gpu_count(const resources_gpus *g)
{
    return g ? g->count : 0;
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

void resources_gpu_read(resources_gpu *out, const resources_gpus *g, int index)
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

/* What NVIDIA's documentation of Xid errors says of those that end training. */
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

/* A driver that fails where it should wait is asked no further. */
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

void resources_gpu_watch(resources_gpus *g, void (*tell)(void *context, const char *words), void *context)
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

void resources_gpu_close(resources_gpus *g)
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
