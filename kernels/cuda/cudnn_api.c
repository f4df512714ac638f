#include "kernels/cuda/cudnn_api.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"

status cudnn_api_open(cudnn_api **out)
{
    void *library = dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE);
    *out = NULL;
    if (!library)
        return status_fail(STATUS_FAILED, "%s", dlerror());
    cudnn_api *a = must_calloc(1, sizeof *a);
    a->library = library;
    bool whole = true;
#define FIND(name)                                                                                                     \
    {                                                                                                                  \
        void *at = dlsym(library, #name);                                                                              \
        memcpy(&a->name, &at, sizeof at);                                                                              \
        whole = whole && at;                                                                                           \
    }
    CUDNN_API_FUNCTIONS(FIND)
#undef FIND
    if (whole && a->cudnnGetVersion() >= CUDNN_API_OLDEST) {
        *out = a;
        return STATUS_OK;
    }
    size_t version = a->cudnnGetVersion ? a->cudnnGetVersion() : 0;
    cudnn_api_close(a);
    return status_fail(STATUS_FAILED, "cuDNN %zu is too old, or lacks a function: %d is the least", version,
                       CUDNN_API_OLDEST);
}

void cudnn_api_close(cudnn_api *a)
{
    if (!a)
        return;
    dlclose(a->library);
    free(a);
}

/* ---- descriptors ----------------------------------------------------------------------------------------------- */

static void note(cudnn_api_builder *b, cudnnStatus_t s)
{
    if (b->failed == CUDNN_STATUS_SUCCESS)
        b->failed = s;
}

cudnnBackendDescriptor_t cudnn_api_make(cudnn_api_builder *b, cudnnBackendDescriptorType_t type)
{
    cudnnBackendDescriptor_t made = NULL;
    if (b->failed != CUDNN_STATUS_SUCCESS)
        return NULL;
    note(b, b->api->cudnnBackendCreateDescriptor(type, &made));
    if (!made)
        return NULL;
    b->made = must_realloc(b->made, (unsigned long)(b->count + 1) * sizeof *b->made);
    b->made[b->count++] = made;
    return made;
}

void cudnn_api_set(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    if (b->failed == CUDNN_STATUS_SUCCESS)
        note(b, b->api->cudnnBackendSetAttribute(d, name, type, count, values));
}

void cudnn_api_link(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                    cudnnBackendDescriptor_t to)
{
    cudnn_api_set(b, d, name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &to);
}

int64_t cudnn_api_get(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                      cudnnBackendAttributeType_t type, int64_t most, void *values)
{
    int64_t count = 0;
    if (b->failed == CUDNN_STATUS_SUCCESS)
        note(b, b->api->cudnnBackendGetAttribute(d, name, type, most, &count, values));
    return b->failed == CUDNN_STATUS_SUCCESS ? count : 0;
}

cudnnBackendDescriptor_t cudnn_api_finish(cudnn_api_builder *b, cudnnBackendDescriptor_t d)
{
    if (b->failed == CUDNN_STATUS_SUCCESS)
        note(b, b->api->cudnnBackendFinalize(d));
    return d;
}

void cudnn_api_drop(cudnn_api_builder *b)
{
    while (b->count > 0)
        b->api->cudnnBackendDestroyDescriptor(b->made[--b->count]);
    free(b->made);
    b->made = NULL;
}
