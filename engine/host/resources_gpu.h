/* The GPUs of this host, as NVIDIA's driver library (NVML) tells: opened at run time, none where it is not
 * installed. */
#pragma once

#include <stdint.h>

typedef struct resources_gpus resources_gpus;

/* -1: the driver does not say. */
typedef struct resources_gpu {
    double busy; /* share of the last moments in which a kernel ran */
    int64_t memory_used, memory_all;
    double watts, celsius;
    double megahertz;         /* of the multiprocessors, now */
    double held_back;         /* why they are no faster: the bits of NVML's nvmlClocksEventReasons */
    double uncorrected;       /* errors of memory since the driver was loaded that ECC could not correct */
    double rows_remapped;     /* of memory, for errors, ever */
    double remapping_pending; /* 1: the GPU wants to be reset for it */
} resources_gpu;

enum { RESOURCES_GPUS = 16 };

/* NULL: there is no GPU, or no driver. */
resources_gpus *resources_gpu_open(void);
/* How many there are, at most RESOURCES_GPUS; 0 of NULL. */
int resources_gpu_count(const resources_gpus *g);
void resources_gpu_read(resources_gpu *out, const resources_gpus *g, int index);
void resources_gpu_close(resources_gpus *g);

/* From now on a thread waits for critical errors (Xid) of the GPUs and calls `tell` with a sentence for each, at once,
 * whatever the other threads do. Returns at once where the driver has no such events. */
void resources_gpu_watch(resources_gpus *g, void (*tell)(void *context, const char *words), void *context);
