/* Checks a device at its start: versions, hardware queues, each PTX instruction of device.cuh, and pinned memory. */
#include <cublasLt.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cudnn.h"
#include "kernels/cuda/host.h"
#include "kernels/cuda/launch.h"

enum { WORDS = 512, COPY_BYTES = 16 << 20, NEEDED_SHARED = 99 << 10 };

static const double TOLERANCE = 1e-6;

static void check_versions(const check *c)
{
    char words[WORDS];
    int driver = 0;
    CUDA_MUST(cudaDriverGetVersion(&driver));
    snprintf(words, sizeof words, "the driver is for CUDA %d.%d, this build is of %d.%d", driver / 1000,
             driver % 1000 / 10, CUDART_VERSION / 1000, CUDART_VERSION % 1000 / 10);
    c->say(c->context, driver >= CUDART_VERSION ? DEVICE_RIGHT : DEVICE_REFUSED, "driver", words);
    snprintf(words, sizeof words, "version %zu, built with %d", cublasLtGetVersion(), (int)CUBLAS_VERSION);
    c->say(c->context, cublasLtGetVersion() >= CUBLAS_VERSION ? DEVICE_RIGHT : DEVICE_REFUSED, "cuBLASLt", words);
    bool there = cudnn_words(words, sizeof words, c->cudnn);
    c->say(c->context, there ? DEVICE_RIGHT : DEVICE_REFUSED, "cuDNN", words);
    const char *queues = getenv("CUDA_DEVICE_MAX_CONNECTIONS");
    snprintf(words, sizeof words, "CUDA_DEVICE_MAX_CONNECTIONS=%s", queues ? queues : "");
    c->say(c->context, queues && atoi(queues) >= 16 ? DEVICE_RIGHT : DEVICE_REFUSED, "hardware queues", words);
}

static void check_instruction(const check *c, const launch_check *which)
{
    char in[LAUNCH_CHECK_BYTES] = {0}, out[LAUNCH_CHECK_BYTES], words[WORDS];
    void *memory = NULL;
    cudaStream_t stream = c->stream;
    which->give(in);
    memset(out, 0xFF, sizeof out);
    CUDA_MUST(cudaMalloc(&memory, sizeof in + sizeof out));
    char *there = memory;
    CUDA_MUST(cudaMemcpyAsync(there, in, sizeof in, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaMemcpyAsync(there + sizeof in, out, sizeof out, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    int error = which->launch(stream, there + sizeof in, there);
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaMemcpyAsync(out, there + sizeof in, sizeof out, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaStreamSynchronize(stream));
    CUDA_MUST(cudaFree(memory));
    double worst = which->error(out, in);
    if (error)
        snprintf(words, sizeof words, "the launch failed: %s", cudaGetErrorString((cudaError_t)error));
    else
        snprintf(words, sizeof words, "worst error %.3g of %.3g", worst, TOLERANCE);
    c->say(c->context, error ? DEVICE_REFUSED : worst <= TOLERANCE ? DEVICE_RIGHT : DEVICE_WRONG, which->name, words);
}

/* Copies pinned memory to the device and back, and reports the time of each way. */
static void check_pinned_copies(const check *c)
{
    void *host = NULL, *arena = NULL;
    char words[WORDS];
    cudaStream_t stream = c->stream;
    cudaError_t e = cudaHostAlloc(&host, (size_t)2 * COPY_BYTES, cudaHostAllocDefault);
    if (e != cudaSuccess) {
        c->say(c->context, DEVICE_REFUSED, "pinned host memory", cudaGetErrorString(e));
        return;
    }
    cudaEvent_t at[3];
    float in = 0, out = 0;
    uint32_t *from = host, *back = from + COPY_BYTES / 4;
    for (uint32_t i = 0; i < COPY_BYTES / 4; i++)
        from[i] = i * 2654435761u;
    memset(back, 0xFF, COPY_BYTES);
    CUDA_MUST(cudaMalloc(&arena, COPY_BYTES));
    for (int i = 0; i < 3; i++)
        CUDA_MUST(cudaEventCreate(&at[i]));
    CUDA_MUST(cudaEventRecord(at[0], stream));
    CUDA_MUST(cudaMemcpyAsync(arena, from, COPY_BYTES, cudaMemcpyHostToDevice, stream));
    CUDA_MUST(cudaEventRecord(at[1], stream));
    CUDA_MUST(cudaMemcpyAsync(back, arena, COPY_BYTES, cudaMemcpyDeviceToHost, stream));
    CUDA_MUST(cudaEventRecord(at[2], stream));
    for (int i = 0; i < 3; i++)
        CUDA_MUST(cudaEventSynchronize(at[i]));
    CUDA_MUST(cudaEventElapsedTime(&in, at[0], at[1]));
    CUDA_MUST(cudaEventElapsedTime(&out, at[1], at[2]));
    snprintf(words, sizeof words, "%d MiB there in %.3f ms, back in %.3f ms", COPY_BYTES >> 20, (double)in,
             (double)out);
    c->say(c->context, memcmp(from, back, COPY_BYTES) == 0 ? DEVICE_RIGHT : DEVICE_WRONG, "pinned host memory", words);
    for (int i = 0; i < 3; i++)
        CUDA_MUST(cudaEventDestroy(at[i]));
    CUDA_MUST(cudaFree(arena));
    CUDA_MUST(cudaFreeHost(host));
}

void check_all(const check *c)
{
    char words[WORDS];
    const struct cudaDeviceProp *p = c->properties;
    snprintf(
        words, sizeof words,
        "%s, compute capability %d.%d, %d multiprocessors, %.1f GiB, L2 %.1f MiB, %zu KiB of shared memory a block",
        p->name, p->major, p->minor, p->multiProcessorCount, (double)p->totalGlobalMem / (1 << 30),
        (double)p->l2CacheSize / (1 << 20), p->sharedMemPerBlockOptin >> 10);
    c->say(c->context, p->sharedMemPerBlockOptin >= NEEDED_SHARED ? DEVICE_RIGHT : DEVICE_WRONG, "GPU", words);
    check_versions(c);
    for (int which = 0; which < LAUNCH_CHECKS; which++)
        check_instruction(c, &launch_checks[which]);
    check_pinned_copies(c);
    c->say(c->context, DEVICE_NOT_ASKED, "stream-ordered allocation",
           "one cudaMalloc takes the arena, and nothing after it");
}
