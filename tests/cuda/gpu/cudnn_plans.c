/* What the real cuDNN says of our graphs, without a GPU: the library plans for the device that a description names, and
 * compiles for it. One line for each shape, direction and candidate, with the workspace it asks for and the one we
 * promise.
 *
 *     cudnn_plans [b200] [all]      exit status 77: there is no cuDNN
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cudnn_graph.h"
#include "memory/log.h"

enum { NONE = 77 };

typedef struct gpu {
    int32_t major, minor;
    const char *description;
} gpu;

/* An H100 SXM, as cuDNN describes it to itself. */
static const gpu h100 = {
    9, 0,
    "{\"deviceName\": \"NVIDIA H100 80GB HBM3\", \"deviceVer\": 900, \"driverVer\": 13000, \"cudaDeviceId\": 0, "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 132, \"smClockRateKHz\": 1980000, \"memClockRateKHz\": 2619000, "
    "\"l2CacheSize\": 52428800, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
    "\"maxSharedMemoryPerBlockOptin\": 232448, \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
    "\"pciDeviceId\": 0, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, "
    "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": 85000000000}"};

/* A B200, by NVIDIA's tables of compute capability 10.0 and of the product. */
static const gpu b200 = {
    10, 0,
    "{\"deviceName\": \"NVIDIA B200\", \"deviceVer\": 1000, \"driverVer\": 13000, \"cudaDeviceId\": 0, "
    "\"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, "
    "\"multiProcessorCount\": 148, \"smClockRateKHz\": 1965000, \"memClockRateKHz\": 3996000, "
    "\"l2CacheSize\": 132120576, \"warpSize\": 32, \"maxSharedMemoryPerBlock\": 49152, "
    "\"maxSharedMemoryPerBlockOptin\": 232448, \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, "
    "\"pciDeviceId\": 0, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, \"maxThreadsPerSM\": 2048, "
    "\"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"totalGlobalMem\": 192000000000}"};

static const struct {
    const char *name;
    int64_t samples, sequence, heads, kv_heads, head_size, window;
    bool documents;
    int64_t v_head_size; /* 0: head_size */
    int64_t keys;        /* 0: as many as queries */
} shapes[] = {
    {"gpt2", 4, 1024, 12, 12, 64, 0, false, 0, 0},
    {"llama", 1, 4096, 32, 8, 128, 0, false, 0, 0},
    {"mistral", 1, 4096, 4, 1, 128, 1024, false, 0, 0},
    {"uneven", 2, 1000, 4, 2, 80, 0, false, 0, 0},
    {"size 256", 1, 1024, 8, 4, 256, 0, false, 0, 0},
    {"gpt2, documents", 4, 1024, 12, 12, 64, 0, true, 0, 0},
    {"llama, documents", 1, 4096, 32, 8, 128, 0, true, 0, 0},
    {"mistral, documents", 1, 4096, 4, 1, 128, 1024, true, 0, 0},
    {"uneven, documents", 2, 1000, 4, 2, 80, 0, true, 0, 0},
    {"a late run", 1, 2048, 8, 2, 128, 0, false, 0, 8192},
    {"a late run, two samples", 2, 1024, 8, 8, 64, 0, false, 0, 3072},
    {"a late run, documents", 1, 2048, 8, 2, 128, 0, true, 0, 8192},
};

/* How many candidates compile and keep to the promise, of the first or of all. */
static int try_shape(const cudnn_api *api, cudnnBackendDescriptor_t device, const gpu *on, size_t i, bool backward,
                     bool all)
{
    int64_t h = shapes[i].heads, kv = shapes[i].kv_heads, d = shapes[i].head_size, s = shapes[i].sequence;
    bool fp16 = i % 2;
    int64_t e = shapes[i].v_head_size ? shapes[i].v_head_size : d, row = (h + kv) * d + kv * e;
    cudnn_graph_shape a = {.samples = shapes[i].samples,
                           .sequence = s,
                           .keys = shapes[i].keys ? shapes[i].keys : s,
                           .keys_apart = shapes[i].keys ? 2 * shapes[i].keys : s,
                           .gradients_apart = shapes[i].keys ? 2 * shapes[i].keys : s,
                           .heads = h,
                           .kv_heads = kv,
                           .head_size = d,
                           .window = shapes[i].window,
                           .v_head_size = e,
                           .q_pitch = row,
                           .k_pitch = row,
                           .v_pitch = row,
                           .y_pitch = h * e,
                           .dy_pitch = h * e,
                           .dq_pitch = row,
                           .dk_pitch = row,
                           .dv_pitch = row,
                           .workspace = (int64_t)1 << 40,
                           .fp16 = fp16,
                           .documents = shapes[i].documents,
                           .backward = backward,
                           .major = on->major,
                           .minor = on->minor};
    cudnn_graph *g = cudnn_graph_open(api, device, &a);
    int candidates = g ? cudnn_graph_candidates(g) : 0, good = 0;
    for (int candidate = 0; candidate < candidates; candidate++) {
        cudnnBackendDescriptor_t plan = candidate == 0 || all ? cudnn_graph_plan(g, candidate) : NULL;
        bool compiles = plan != NULL;
        int64_t asked = 0;
        cudnn_api_builder b = {.api = api};
        if (compiles)
            cudnn_api_get(&b, plan, CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, CUDNN_TYPE_INT64, 1, &asked);
        good += compiles && asked <= cudnn_graph_workspace(&a);
        printf("%s %s %s: %s: %s, workspace %lld of %lld\n", shapes[i].name, fp16 ? "fp16" : "bf16",
               backward ? "backward" : "forward", cudnn_graph_words(g, candidate), compiles ? "compiled" : "listed",
               (long long)asked, (long long)cudnn_graph_workspace(&a));
    }
    cudnn_graph_close(g);
    return good;
}

int main(int count, char **arguments)
{
    bool all = count > 1 && !strcmp(arguments[count - 1], "all");
    const gpu *on = count > 1 && !strcmp(arguments[1], "b200") ? &b200 : &h100;
    cudnn_api *api;
    if (cudnn_api_open(&api) != STATUS_OK) {
        printf("cudnn_plans: skipped: %s\n", status_message());
        return NONE;
    }
    cudnn_api_builder b = {.api = api};
    cudnnBackendDescriptor_t device = cudnn_api_make(&b, CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR);
    cudnn_api_set(&b, device, CUDNN_ATTR_DEVICEPROP_JSON_REPRESENTATION, CUDNN_TYPE_CHAR,
                  (int64_t)strlen(on->description), on->description);
    cudnn_api_finish(&b, device);
    MUST(b.failed == CUDNN_STATUS_SUCCESS, "%s", api->cudnnGetErrorString(b.failed));
    int none = 0;
    for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++)
        for (int backward = 0; backward < 2; backward++)
            none += try_shape(api, device, on, i, backward, all) == 0;
    printf("cudnn_plans: cuDNN %zu, %d graphs without a candidate\n", api->cudnnGetVersion(), none);
    cudnn_api_drop(&b);
    cudnn_api_close(api);
    return none > 0;
}
