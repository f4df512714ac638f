/* Between the two halves of the stand-in for cuDNN: descriptors that remember their attributes, and the graph's
 * meaning. */
#pragma once

#include <cudnn_graph.h>
#include <stdbool.h>

typedef struct descriptor descriptor;

typedef struct attribute {
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t count;
    void *values;
    struct attribute *next;
} attribute;

struct descriptor {
    cudnnBackendDescriptorType_t type;
    bool finished;
    attribute *attributes;
    int engine;             /* of an engine, its configuration, its plan */
    const descriptor *same; /* an answer that repeats what the library was told, or NULL */
};

const attribute *descriptor_find(const descriptor *d, cudnnBackendAttributeName_t name);
/* Its values; an attribute that was not set is an error. */
const void *descriptor_values(const descriptor *d, cudnnBackendAttributeName_t name);
const descriptor *descriptor_of(const descriptor *d, cudnnBackendAttributeName_t name);
int64_t descriptor_number(const descriptor *d, cudnnBackendAttributeName_t name, int64_t otherwise);

/* cudnn_meaning.c: compute the graph by its operations' definitions, on the addresses of a pack. */
void meaning_execute(const descriptor *graph, const descriptor *pack, int queue);
/* Bytes that dS and the heads' own dK and dV take, where the graph has them. */
int64_t meaning_workspace(const descriptor *graph);
