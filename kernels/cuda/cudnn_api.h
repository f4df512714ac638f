/* cuDNN, found at run time: the functions of its backend interface that are used, and descriptors that are remembered.
 *
 * The library is 400 MB and not shipped with us: where cudnn_api_open fails, a machine uses our own kernels. A
 * `builder` owns the descriptors that are made with it, in the order in which they were made; the first call that fails
 * is remembered, and later calls have no effect.
 */
#pragma once

#include <cudnn_graph.h>
#include <stdbool.h>

#include "memory/status.h"

/* The oldest version that keeps to a row's strides when it writes the statistics of a softmax. */
enum { CUDNN_API_OLDEST = 91200 };

#define CUDNN_API_FUNCTIONS(X)                                                                                         \
    X(cudnnGetVersion)                                                                                                 \
    X(cudnnGetErrorString)                                                                                             \
    X(cudnnCreate)                                                                                                     \
    X(cudnnDestroy)                                                                                                    \
    X(cudnnSetStream)                                                                                                  \
    X(cudnnBackendCreateDescriptor)                                                                                    \
    X(cudnnBackendDestroyDescriptor)                                                                                   \
    X(cudnnBackendSetAttribute)                                                                                        \
    X(cudnnBackendGetAttribute)                                                                                        \
    X(cudnnBackendFinalize)                                                                                            \
    X(cudnnBackendExecute)

typedef struct cudnn_api {
    void *library;
#define CUDNN_API_FIELD(name) __typeof__(&name) name;
    CUDNN_API_FUNCTIONS(CUDNN_API_FIELD)
#undef CUDNN_API_FIELD
} cudnn_api;

/* Fails if cuDNN is missing or too old. */
status cudnn_api_open(cudnn_api **out);
void cudnn_api_close(cudnn_api *a);

typedef struct cudnn_api_builder {
    const cudnn_api *api;
    cudnnBackendDescriptor_t *made;
    int count;
    cudnnStatus_t failed; /* CUDNN_STATUS_SUCCESS: none so far */
} cudnn_api_builder;

cudnnBackendDescriptor_t cudnn_api_make(cudnn_api_builder *b, cudnnBackendDescriptorType_t type);
void cudnn_api_set(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                   cudnnBackendAttributeType_t type, int64_t count, const void *values);
/* Sets an attribute to another descriptor. */
void cudnn_api_link(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                    cudnnBackendDescriptor_t to);
/* Returns the number of values, and at most `most` of them in `values`. */
int64_t cudnn_api_get(cudnn_api_builder *b, cudnnBackendDescriptor_t d, cudnnBackendAttributeName_t name,
                      cudnnBackendAttributeType_t type, int64_t most, void *values);
cudnnBackendDescriptor_t cudnn_api_finish(cudnn_api_builder *b, cudnnBackendDescriptor_t d);
/* Destroys the builder's descriptors, the last first. */
void cudnn_api_drop(cudnn_api_builder *b);
