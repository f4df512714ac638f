/* cuDNN's backend interface: descriptors that check what they are told, ENGINES engines of which some tempt, and graphs
 * executed by the definitions of their operations (cudnn_meaning.c). */
#include "tests/cuda/standin/libraries/cudnn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/cuda/standin/standin.h"

/* Those that must not be taken are the fastest by far. The heuristics know the first four; on compute capability 10.x
 * what keeps an order in the backward pass is ORDERED alone, which is asked for by its number and knobs. */
enum { UNREPEATABLE, GREEDY, GOOD, SLOWER, ORDERED, ENGINES, HEURISTIC = ORDERED };

static const double milliseconds[ENGINES] = {0.001, 0.001, 0.25, 0.5, 0.3};

struct cudnnContext {
    cudaStream_t stream;
};

static int64_t executed[ENGINES];

/* Type, and least and greatest count of what a descriptor may be told. */
static const struct {
    cudnnBackendDescriptorType_t of;
    cudnnBackendAttributeName_t name;
    cudnnBackendAttributeType_t type;
    int64_t least, most;
    bool optional;
} rules[] = {
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_UNIQUE_ID, CUDNN_TYPE_INT64, 1, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DATA_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_DIMENSIONS, CUDNN_TYPE_INT64, 4, 4, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_STRIDES, CUDNN_TYPE_INT64, 4, 4, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, CUDNN_TYPE_INT64, 1, 1, false},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_VIRTUAL, CUDNN_TYPE_BOOLEAN, 1, 1, true},
    {CUDNN_BACKEND_TENSOR_DESCRIPTOR, CUDNN_ATTR_TENSOR_IS_BY_VALUE, CUDNN_TYPE_BOOLEAN, 1, 1, true},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MODE, CUDNN_TYPE_POINTWISE_MODE, 1, 1, false},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_MATH_PREC, CUDNN_TYPE_DATA_TYPE, 1, 1, false},
    {CUDNN_BACKEND_POINTWISE_DESCRIPTOR, CUDNN_ATTR_POINTWISE_AXIS, CUDNN_TYPE_INT64, 1, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_PW_DESCRIPTOR,
     CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_TDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, true},
    {CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR, CUDNN_ATTR_OPERATION_POINTWISE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false},
    {CUDNN_BACKEND_MATMUL_DESCRIPTOR, CUDNN_ATTR_MATMUL_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_ADESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_BDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_CDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR, CUDNN_ATTR_OPERATION_MATMUL_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_OPERATOR, CUDNN_TYPE_REDUCTION_OPERATOR_TYPE, 1, 1,
     false},
    {CUDNN_BACKEND_REDUCTION_DESCRIPTOR, CUDNN_ATTR_REDUCTION_COMP_TYPE, CUDNN_TYPE_DATA_TYPE, 1, 1, false},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false},
    {CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR, CUDNN_ATTR_OPERATION_REDUCTION_DESC, CUDNN_TYPE_BACKEND_DESCRIPTOR,
     1, 1, false},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_XDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, false},
    {CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR, CUDNN_ATTR_OPERATION_RESHAPE_YDESC, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, false},
    {CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR, CUDNN_ATTR_OPERATIONGRAPH_OPS, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 64,
     false},
    {CUDNN_BACKEND_DEVICEPROP_DESCRIPTOR, CUDNN_ATTR_DEVICEPROP_DEVICE_ID, CUDNN_TYPE_INT32, 1, 1, false},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, CUDNN_TYPE_INT64, 1, 1, false},
    {CUDNN_BACKEND_ENGINE_DESCRIPTOR, CUDNN_ATTR_ENGINE_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_TYPE_KNOB_TYPE, 1, 1, false},
    {CUDNN_BACKEND_KNOB_CHOICE_DESCRIPTOR, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, CUDNN_TYPE_INT64, 1, 1, false},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_ENGINE, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false},
    {CUDNN_BACKEND_ENGINECFG_DESCRIPTOR, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 8, false},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_MODE, CUDNN_TYPE_HEUR_MODE, 1, 1, false},
    {CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR, CUDNN_ATTR_ENGINEHEUR_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1, false},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1,
     1, false},
    {CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR, CUDNN_ATTR_EXECUTION_PLAN_DEVICEPROP, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, 1,
     false},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, CUDNN_TYPE_INT64, 1, 16, false},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, CUDNN_TYPE_VOID_PTR, 1, 16, false},
    {CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR, CUDNN_ATTR_VARIANT_PACK_WORKSPACE, CUDNN_TYPE_VOID_PTR, 1, 1, false},
};
enum { RULES = sizeof rules / sizeof *rules };

/* Of the environment. */
static int64_t number_in(const char *name, int64_t otherwise)
{
    const char *text = getenv(name);
    return text ? atoll(text) : otherwise;
}

static int64_t bytes_of(cudnnBackendAttributeType_t type)
{
    switch (type) {
    case CUDNN_TYPE_INT64:
        return 8;
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
        return sizeof(void *);
    case CUDNN_TYPE_BOOLEAN:
        return sizeof(bool);
    default:
        return sizeof(int32_t); /* enumerations */
    }
}

/* ---- descriptors ----------------------------------------------------------------------------------------------- */

const attribute *descriptor_find(const descriptor *d, cudnnBackendAttributeName_t name)
{
    for (const attribute *a = d->attributes; a; a = a->next)
        if (a->name == name)
            return a;
    return NULL;
}

const void *descriptor_values(const descriptor *d, cudnnBackendAttributeName_t name)
{
    const attribute *a = descriptor_find(d, name);
    if (!a)
        standin_fail("cuDNN: descriptor of type %d without attribute %d", (int)d->type, (int)name);
    return a->values;
}

const descriptor *descriptor_of(const descriptor *d, cudnnBackendAttributeName_t name)
{
    return *(descriptor *const *)descriptor_values(d, name);
}

int64_t descriptor_number(const descriptor *d, cudnnBackendAttributeName_t name, int64_t otherwise)
{
    const attribute *a = descriptor_find(d, name);
    int64_t wide = 0;
    if (!a)
        return otherwise;
    memcpy(&wide, a->values, (size_t)bytes_of(a->type)); /* little-endian, and no attribute is negative */
    return wide;
}

cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t *out)
{
    descriptor *d = must_calloc(1, sizeof *d);
    d->type = type;
    *out = d;
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t at)
{
    AUTO_FREE descriptor *d = at;
    for (attribute *a = d->attributes, *next; a; a = next) {
        next = a->next;
        free(a->values);
        free(a);
    }
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t to, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t count, const void *values)
{
    descriptor *d = to;
    int i = 0;
    while (i < RULES && (rules[i].of != d->type || rules[i].name != name))
        i++;
    if (i == RULES || rules[i].type != type || count < rules[i].least || count > rules[i].most || d->finished ||
        descriptor_find(d, name))
        standin_fail("cudnnBackendSetAttribute: attribute %d of type %d, %lld of them, to a%s descriptor of type %d",
                     (int)name, (int)type, (long long)count, d->finished ? " finished" : "", (int)d->type);
    if (type == CUDNN_TYPE_BACKEND_DESCRIPTOR)
        for (int64_t k = 0; k < count; k++) {
            const descriptor *other = ((descriptor *const *)values)[k];
            if (!other || !other->finished)
                standin_fail("cudnnBackendSetAttribute: attribute %d is a descriptor that is not finished", (int)name);
        }
    attribute *a = must_calloc(1, sizeof *a);
    *a = (attribute){name, type, count, must_alloc((unsigned long)(count * bytes_of(type))), d->attributes};
    memcpy(a->values, values, (size_t)(count * bytes_of(type)));
    d->attributes = a;
    return CUDNN_STATUS_SUCCESS;
}

/* The engine of a configuration that the library is told: ORDERED. Another number, or other knobs, would add in any
 * order. */
static int engine_of(const descriptor *config)
{
    bool later = cudnnGetVersion() >= 92300, last = number_in("STANDIN_MINOR", 0) > 3;
    const char *in_order = later ? "40=3 41=2 24=2 38=0 27=0 14=2 " : "24=31 14=2 ";
    const descriptor *engine = descriptor_of(config, CUDNN_ATTR_ENGINECFG_ENGINE);
    const attribute *knobs = descriptor_find(config, CUDNN_ATTR_ENGINECFG_KNOB_CHOICES);
    char given[128] = "";
    for (int64_t i = 0; i < knobs->count; i++) {
        const descriptor *knob = ((descriptor *const *)knobs->values)[i];
        size_t used = strlen(given);
        snprintf(given + used, sizeof given - used, "%lld=%lld ",
                 (long long)descriptor_number(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, -1),
                 (long long)descriptor_number(knob, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, -1));
    }
    int64_t number = descriptor_number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, -1);
    if (number_in("STANDIN_MAJOR", 9) != 10 || cudnnGetVersion() < 91801 || number != (last ? 17 : 5) ||
        strcmp(given, in_order) != 0)
        standin_fail("cuDNN: engine %lld, %sadds in any order", (long long)number, given);
    return ORDERED;
}

cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t at)
{
    descriptor *d = at;
    for (int i = 0; i < RULES; i++)
        if (rules[i].of == d->type && !rules[i].optional)
            (void)descriptor_values(d, rules[i].name);
    if (d->type == CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR &&
        descriptor_find(d, CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS)->count !=
            descriptor_find(d, CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS)->count)
        standin_fail("cudnnBackendFinalize: as many addresses as unique ids");
    if (d->type == CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)
        d->engine = descriptor_of(d, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG)->engine;
    if (d->type == CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
        d->engine = engine_of(d);
    d->finished = true;
    return CUDNN_STATUS_SUCCESS;
}

/* ---- what the library answers ---------------------------------------------------------------------------------- */

static const descriptor *graph_of(const descriptor *plan)
{
    const descriptor *config = descriptor_of(plan, CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
    if (config->engine == ORDERED)
        return descriptor_of(descriptor_of(config, CUDNN_ATTR_ENGINECFG_ENGINE), CUDNN_ATTR_ENGINE_OPERATION_GRAPH);
    return descriptor_of(config, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
}

static int64_t workspace_of(const descriptor *plan)
{
    return plan->engine == GREEDY ? (int64_t)1 << 40 : 256 + meaning_workspace(graph_of(plan));
}

static void answer_configs(const descriptor *heuristic, int64_t most, int64_t *count, void *const *out)
{
    *count = most < HEURISTIC ? most : HEURISTIC;
    for (int64_t i = 0; i < *count; i++) {
        descriptor *config = out[i];
        if (config->type != CUDNN_BACKEND_ENGINECFG_DESCRIPTOR)
            standin_fail("cudnnBackendGetAttribute: results go into descriptors of configurations");
        const attribute *graph = descriptor_find(heuristic, CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH);
        attribute *a = must_calloc(1, sizeof *a);
        *a = *graph;
        a->values = must_alloc(sizeof(void *));
        memcpy(a->values, graph->values, sizeof(void *));
        a->next = NULL;
        config->attributes = a;
        config->engine = (int)i;
        config->finished = true;
    }
}

/* The engine of a configuration, or its knobs: those that it was told, or one. */
static int64_t answer_parts(const descriptor *config, cudnnBackendAttributeName_t name, int64_t most, void *const *out)
{
    const attribute *told = descriptor_find(config, name);
    int64_t count = told && told->count < most ? told->count : 1;
    for (int64_t i = 0; i < count; i++) {
        descriptor *part = out[i];
        part->engine = config->engine;
        part->same = told ? ((descriptor *const *)told->values)[i] : NULL;
        part->finished = true;
    }
    return count;
}

cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t const from, cudnnBackendAttributeName_t name,
                                       cudnnBackendAttributeType_t type, int64_t most, int64_t *count, void *out)
{
    const descriptor *d = from;
    (void)type;
    if (!d->finished || most < 1)
        standin_fail("cudnnBackendGetAttribute: attribute %d of a descriptor that is not finished", (int)name);
    *count = 1;
    switch (name) {
    case CUDNN_ATTR_ENGINEHEUR_RESULTS:
        answer_configs(d, most, count, out);
        break;
    case CUDNN_ATTR_ENGINECFG_ENGINE:
    case CUDNN_ATTR_ENGINECFG_KNOB_CHOICES:
        *count = answer_parts(d, name, most, out);
        break;
    case CUDNN_ATTR_ENGINE_NUMERICAL_NOTE:
        *(cudnnBackendNumericalNote_t *)out =
            d->engine == UNREPEATABLE ? CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC : CUDNN_NUMERICAL_NOTE_TENSOR_CORE;
        break;
    case CUDNN_ATTR_ENGINE_GLOBAL_INDEX:
        *(int64_t *)out = descriptor_number(d, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, d->engine);
        break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE:
        *(cudnnBackendKnobType_t *)out = (cudnnBackendKnobType_t)descriptor_number(
            d->same ? d->same : d, CUDNN_ATTR_KNOB_CHOICE_KNOB_TYPE, CUDNN_KNOB_TYPE_KERNEL_CFG);
        break;
    case CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE:
        *(int64_t *)out = descriptor_number(d->same ? d->same : d, CUDNN_ATTR_KNOB_CHOICE_KNOB_VALUE, 10 + d->engine);
        break;
    case CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE:
        *(int64_t *)out = workspace_of(d);
        break;
    default:
        standin_fail("cudnnBackendGetAttribute: attribute %d", (int)name);
    }
    return CUDNN_STATUS_SUCCESS;
}

/* ---- the library ----------------------------------------------------------------------------------------------- */

size_t cudnnGetVersion(void)
{
    return (size_t)number_in("STANDIN_CUDNN", CUDNN_VERSION);
}

const char *cudnnGetErrorString(cudnnStatus_t s)
{
    return s == CUDNN_STATUS_SUCCESS ? "success" : "failure";
}

cudnnStatus_t cudnnCreate(cudnnHandle_t *out)
{
    if (!standin_library_takes())
        return CUDNN_STATUS_ALLOC_FAILED;
    *out = must_calloc(1, sizeof **out);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnDestroy(cudnnHandle_t handle)
{
    if (getenv("STANDIN_REPORT"))
        fprintf(stderr, "standin: rank %d: cuDNN %lld %lld %lld %lld %lld\n", log_rank(), (long long)executed[0],
                (long long)executed[1], (long long)executed[2], (long long)executed[3], (long long)executed[ORDERED]);
    free(handle);
    return CUDNN_STATUS_SUCCESS;
}

cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream)
{
    (void)standin_stream(stream, "cudnnSetStream");
    handle->stream = stream;
    return CUDNN_STATUS_SUCCESS;
}

typedef struct execution {
    const descriptor *plan, *pack;
} execution;

static void execute(int queue, void *what)
{
    const execution *x = what;
    char *workspace = *(char *const *)descriptor_values(x->pack, CUDNN_ATTR_VARIANT_PACK_WORKSPACE);
    int64_t bytes = workspace_of(x->plan);
    standin_tick(queue);
    standin_busy();
    standin_take(queue, milliseconds[x->plan->engine] * (getenv("STANDIN_CUDNN_SLOW") ? 1000 : 1));
    standin_access(queue, workspace, bytes, true, "cuDNN's workspace");
    memset(workspace, 0xFF, (size_t)bytes);
    executed[x->plan->engine]++;
    meaning_execute(graph_of(x->plan), x->pack, queue);
}

cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan, cudnnBackendDescriptor_t pack)
{
    execution x = {plan, pack};
    int queue = standin_stream(handle->stream, "cudnnBackendExecute");
    if (x.plan->type != CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR || !x.plan->finished ||
        x.pack->type != CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR || !x.pack->finished)
        standin_fail("cudnnBackendExecute: a finished plan and a finished pack");
    if (!standin_keep(queue, execute, &x, sizeof x))
        execute(queue, &x);
    return CUDNN_STATUS_SUCCESS;
}
