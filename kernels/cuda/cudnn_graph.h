/* Attention, forward and backward, as cuDNN's operation graphs, and the library's candidates to compute them.
 *
 * No GPU is needed here: the library plans for the device that a descriptor of its properties describes. A graph owns
 * its descriptors and plans. Plans are compiled (0.5 s) when they are first asked for.
 */
#pragma once

#include "kernels/cuda/cudnn_api.h"

/* The attention that one graph computes: `samples` samples and `heads` heads of them. Compared as bytes. */
typedef struct cudnn_graph_shape {
    int64_t samples, sequence, heads, kv_heads; /* sequence: queries of a sample */
    int64_t keys;                               /* keys of a sample; its last query is at the last of them */
    int64_t keys_apart, gradients_apart;        /* rows from a sample's first key to the next one's; of dk and dv */
    int64_t head_size, v_head_size;             /* head sizes of q and k; of v and y */
    int64_t window;                             /* 0: none */
    int64_t q_pitch, k_pitch, v_pitch, y_pitch; /* elements from token to token */
    int64_t dq_pitch, dk_pitch, dv_pitch, dy_pitch;
    int64_t workspace; /* bytes that there are */
    int32_t fp16;      /* 1: fp16, 0: bf16 */
    int32_t backward;
    int32_t varies;       /* 1: candidates that sum in any order are taken, too */
    int32_t documents;    /* 1: attention stays within documents; an operand has their first tokens */
    int32_t major, minor; /* compute capability of the device that it is computed on */
} cudnn_graph_shape;

/* Operands: unique ids of a variant pack. The last five are numbers in host memory, fp32 but for the shift. */
typedef enum cudnn_graph_operand {
    CUDNN_GRAPH_Q = 1,
    CUDNN_GRAPH_K,
    CUDNN_GRAPH_V,
    CUDNN_GRAPH_Y,
    CUDNN_GRAPH_LSE, /* fp32 [samples, heads, sequence], as delta is */
    CUDNN_GRAPH_DY,
    CUDNN_GRAPH_DQ,
    CUDNN_GRAPH_DK,
    CUDNN_GRAPH_DV,
    CUDNN_GRAPH_START, /* int32 [samples, sequence]: index within the sample of the first token that a query sees */
    CUDNN_GRAPH_DELTA, /* working memory, fp32 [samples, heads, sequence] */
    CUDNN_GRAPH_SCALE,
    CUDNN_GRAPH_MASKED, /* the lowest finite number */
    CUDNN_GRAPH_WINDOW,
    CUDNN_GRAPH_SHIFT, /* int32: keys before the first query; given where it is not 0 */
    CUDNN_GRAPH_ONE,
    CUDNN_GRAPH_OPERANDS,
} cudnn_graph_operand;

enum { CUDNN_GRAPH_CANDIDATES = 6, CUDNN_GRAPH_WORDS = 160 };

typedef struct cudnn_graph cudnn_graph;

/* Bytes of workspace that the library is known to need. */
int64_t cudnn_graph_workspace(const cudnn_graph_shape *a);
/* `device`: a descriptor of properties. Returns NULL if the library has no candidate that is known to give the same
 * bits each time. */
cudnn_graph *cudnn_graph_open(const cudnn_api *api, cudnnBackendDescriptor_t device, const cudnn_graph_shape *a);
void cudnn_graph_close(cudnn_graph *g);
int cudnn_graph_candidates(const cudnn_graph *g);
/* Writes the candidate's engine and its knobs: "engine 6, 24 = 26". */
const char *cudnn_graph_words(const cudnn_graph *g, int candidate);
/* Returns NULL if it does not compile, or needs more than the workspace; then cudnn_graph_refusal writes why. */
cudnnBackendDescriptor_t cudnn_graph_plan(cudnn_graph *g, int candidate);
void cudnn_graph_refusal(char *out, int bytes, const cudnn_graph *g, int candidate);
