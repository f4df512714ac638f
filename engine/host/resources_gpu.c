#include "engine/host/resources_gpu.h"

#include <dlfcn.h>
#include <stdbool.h>
#include <stdlib.h>

#include "memory/log.h"

/* NVML's C interface, as far as it is used; every function returns 0 where it worked. */
typedef struct nvml_utilization {
    unsigned gpu, memory; /* per cent */
} nvml_utilization;
typedef struct nvml_memory {
    unsigned long long total, free, used;
} nvml_memory;

struct resources_gpus {
    void *library;
    int count;
    void *device[RESOURCES_GPUS];
    int (*shutdown)(void);
    int (*utilization)(void *, nvml_utilization *);
    int (*memory)(void *, nvml_memory *);
    int (*power)(void *, unsigned *); /* milliwatts */
    int (*temperature)(void *, int sensor, unsigned *);
};

/* ISO C has no conversion from an object pointer to one of a function; POSIX has. */
static bool find(void *into, void *library, const char *name)
{
    void **function = into;
    *function = dlsym(library, name);
    return *function != NULL;
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

void resources_gpu_read(resources_gpu *out, const resources_gpus *g, int index)
{
    enum { CORE = 0 };
    void *d = g->device[index];
    nvml_utilization busy;
    nvml_memory memory;
    unsigned milliwatts, degrees;
    *out = (resources_gpu){-1, -1, -1, -1, -1};
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
}

void resources_gpu_close(resources_gpus *g)
{
    if (!g)
        return;
    g->shutdown();
    dlclose(g->library);
    free(g);
}
