#include "kernels/cuda/cudnn_internal.h"

#include <string.h>

#include "kernels/attention_sizes.h"
#include "kernels/attention_work.h"
#include "kernels/heads.h"
#include "kernels/token.h"

enum { PIECE = 256 };

/* What a part may always ask for; a test divides small ops, too. */
#ifndef CUDNN_WORKSPACE_MOST
#define CUDNN_WORKSPACE_MOST (128 << 20)
#endif

cudnn_operands cudnn_operands_of(const op *o)
{
    if (!op_has(o, OP_GRADIENT))
        return (cudnn_operands){.q = o->in[0],
                                .k = o->in[1],
                                .v = o->in[2],
                                .document_start = o->in[3],
                                .places = o->in[4],
                                .y = o->out[0],
                                .lse = o->out[1]};
    return (cudnn_operands){.dy = o->in[0],
                            .q = o->in[1],
                            .k = o->in[2],
                            .v = o->in[3],
                            .y = o->in[4],
                            .lse = o->in[5],
                            .document_start = o->in[6],
                            .places = o->in[7],
                            .dq = o->out[0],
                            .dk = o->out[1],
                            .dv = o->out[2]};
}

/* Do all rows begin at multiples of 16 bytes, if the arena's tensors do? */
static bool rows_are_aligned(const cudnn_operands *x)
{
    const tensor *rows[] = {x->q, x->k, x->v, x->y, x->dy, x->dq, x->dk, x->dv};
    for (int i = 0; i < 8; i++)
        if (rows[i] && (rows[i]->pitch % (CUDNN_ALIGNMENT / 2) || (rows[i]->base && rows[i]->offset % CUDNN_ALIGNMENT)))
            return false;
    return true;
}

int cudnn_runs_of(const op *o)
{
    return o->at.run ? TOKEN_HALVES : 1;
}

int64_t cudnn_run_of(const op *o, int run)
{
    return token_half(o->at.group_rank, o->at.group_size, run);
}

int64_t cudnn_keys_of(const op *o, int run)
{
    return token_last_key((int32_t)((cudnn_run_of(o, run) + 1) * o->at.run) - 1) + 1;
}

int64_t cudnn_samples_of(const op *o)
{
    return cudnn_operands_of(o).k->shape[0] / o->at.sequence;
}

/* Are the queries whole samples, or two runs of each that are known before the batch is? With a window the library has
 * no candidate for the latter. Rows of four-byte numbers begin at multiples of 16 bytes. */
static bool runs_are_known(const op *o, const cudnn_operands *x)
{
    if (!x->places)
        return true;
    return o->at.group_size > 1 && token_window(o->at.window, o->at.sequence) == 0 &&
           o->at.run * 4 % CUDNN_ALIGNMENT == 0 && x->q->shape[0] == TOKEN_HALVES * cudnn_samples_of(o) * o->at.run &&
           (!x->dk || (tensor_contiguous(x->dk) && tensor_contiguous(x->dv)));
}

static bool takes(const op *o)
{
    if (!op_is(o, OP_CLASS_ATTENTION))
        return false;
    /* its softmax has no sinks, and says no largest score; its gradient reads y and lse alone */
    if (!op_has(o, OP_GRADIENT) && (o->in[5] || o->out[2]))
        return false;
    cudnn_operands x = cudnn_operands_of(o);
    return runs_are_known(o, &x) && rows_are_aligned(&x) && tensor_contiguous(x.lse) && x.q->type != DTYPE_FP32 &&
           x.q->shape[0] > 0 && x.q->shape[0] % attention_run(o) == 0 && o->at.cap == 0 &&
           attention_suits_cudnn((int)o->at.head_size) && attention_suits_cudnn((int)attention_v_head_size(o, x.v)) &&
           heads_divide(o->at.heads, o->at.kv_heads);
}

/* The next smaller number that divides n, or 0. */
static int64_t divisor_below(int64_t n, int64_t d)
{
    do
        d--;
    while (d > 0 && n % d);
    return d;
}

static int64_t rounded(int64_t bytes)
{
    return (bytes + PIECE - 1) / PIECE * PIECE;
}

cudnn_layout cudnn_layout_of(const cudnn_graph_shape *a, const op *o)
{
    cudnn_layout l = {0};
    l.dk = a->backward ? rounded(a->samples * a->heads * a->sequence * 4) : 0;
    /* the earlier run ends within a sample's first half */
    int64_t keys = a->backward && o->at.run ? a->samples * (o->at.sequence / TOKEN_HALVES) * a->kv_heads : 0;
    l.dv = l.dk + rounded(keys * a->head_size * 2);
    l.workspace = l.dv + rounded(keys * a->v_head_size * 2);
    l.bytes = l.workspace + a->workspace;
    return l;
}

static bool too_large(const cudnn_graph_shape *a, const op *o)
{
    cudnn_graph_shape with = *a;
    with.workspace = cudnn_graph_workspace(a);
    return with.workspace > CUDNN_WORKSPACE_MOST && cudnn_layout_of(&with, o).bytes > o->at.workspace;
}

bool cudnn_part_of(cudnn_graph_shape *out, const op *o)
{
    if (!takes(o))
        return false;
    cudnn_operands x = cudnn_operands_of(o);
    int64_t s = attention_run(o), samples = cudnn_samples_of(o), shared = heads_sharing(o->at.heads, o->at.kv_heads);
    cudnn_graph_shape a;
    memset(&a, 0, sizeof a);
    a.samples = samples;
    a.sequence = s;
    a.keys = a.keys_apart = a.gradients_apart = o->at.sequence;
    a.heads = o->at.heads;
    a.kv_heads = o->at.kv_heads;
    a.head_size = o->at.head_size;
    a.v_head_size = attention_v_head_size(o, x.v);
    a.window = token_window(o->at.window, o->at.sequence);
    a.q_pitch = x.q->pitch;
    a.k_pitch = x.k->pitch;
    a.v_pitch = x.v->pitch;
    a.y_pitch = x.y->pitch;
    a.fp16 = x.q->type == DTYPE_FP16;
    a.backward = op_has(o, OP_GRADIENT);
    if (a.backward) {
        a.dy_pitch = x.dy->pitch;
        a.dq_pitch = x.dq->pitch;
        a.dk_pitch = x.dk->pitch;
        a.dv_pitch = x.dv->pitch;
    }
    a.documents = x.document_start != NULL;
    while (a.samples > 1 && too_large(&a, o))
        a.samples = divisor_below(samples, a.samples);
    while (a.kv_heads > 0 && too_large(&a, o)) {
        a.kv_heads = divisor_below(o->at.kv_heads, a.kv_heads);
        a.heads = a.kv_heads * shared;
    }
    bool whole = a.samples == samples && a.heads == o->at.heads;
    if (a.kv_heads == 0 || (!whole && a.samples * a.heads * s * 4 % CUDNN_ALIGNMENT) ||
        (a.documents && a.samples < samples && a.samples * s * 4 % CUDNN_ALIGNMENT))
        return false;
    a.workspace = cudnn_graph_workspace(&a);
    *out = a;
    return true;
}

cudnn_graph_shape cudnn_shape_of_run(const cudnn_graph_shape *a, const op *o, int run)
{
    cudnn_graph_shape of = *a;
    if (!o->at.run)
        return of;
    of.keys = cudnn_keys_of(o, run);
    if (a->backward && run == 0) {
        of.gradients_apart = of.keys;
        of.dk_pitch = a->kv_heads * a->head_size;
        of.dv_pitch = a->kv_heads * a->v_head_size;
    }
    return of;
}
