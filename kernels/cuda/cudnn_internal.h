/* What an op of attention is to cuDNN: its operands by name, the parts that it is divided into, and the scratch.
 *
 * The backward pass writes dS, 2 bytes for each pair of a query and a key of each head (cudnn_graph.c). So that its
 * workspace stays bounded it is divided: into equal numbers of samples, or within a sample into equal numbers of
 * key/value heads with the query heads that share them, as many at once as the plan has left memory for
 * (op_attributes.workspace). Parts run one after the other.
 *
 * The statistics that cuDNN reads in the backward pass must be [sample, head, query] without gaps (before 9.26 other
 * strides are misread without a word), and are.
 *
 * Where ranks divide samples by halves (parallel.context), the queries are two runs of each sample, and a part has a
 * graph for each: the run against the keys up to its last query, its place added to the index of its queries. The later
 * run's gradients of keys go where they belong and the earlier run's into scratch, they are added in that order, and
 * the gradients of keys behind the later run are cleared. Scratch has the size that the rank with most keys needs, so
 * that the ranks' plans are alike.
 *
 *     scratch of the backward pass      delta of one part | dk, dv of the earlier run | workspace
 */
#pragma once

#include "kernels/cuda/cudnn_graph.h"
#include "kernels/table/op.h"

typedef struct cudnn_operands {
    const tensor *q, *k, *v, *y, *lse, *document_start, *places, *dy, *dq, *dk, *dv;
} cudnn_operands;

cudnn_operands cudnn_operands_of(const op *o);
/* Samples whose keys there are. */
int64_t cudnn_samples_of(const op *o);
/* Runs of each sample that its queries are: 1, all of it, or TOKEN_HALVES. */
int cudnn_runs_of(const op *o);
/* The place of one of two runs in its sample, in runs. */
int64_t cudnn_run_of(const op *o, int run);
/* Keys of its sample up to the last that one of two runs sees. */
int64_t cudnn_keys_of(const op *o, int run);

enum { CUDNN_ALIGNMENT = 16 };

/* The largest part of the op whose workspace is not too large, with all keys of its samples; false: cuDNN takes none.
 */
bool cudnn_part_of(cudnn_graph_shape *out, const op *o);
/* What a graph computes of a part `a`: the queries of one of its runs. */
cudnn_graph_shape cudnn_shape_of_run(const cudnn_graph_shape *a, const op *o, int run);

/* Offsets within the scratch. */
typedef struct cudnn_layout {
    int64_t delta, dk, dv, workspace, bytes;
} cudnn_layout;

cudnn_layout cudnn_layout_of(const cudnn_graph_shape *a, const op *o);
