/* Compressed gradients. Costs count operations an element: top-k looks for a threshold bit by bit, and DCT is 64
 * multiply-adds each way. */
#include "kernels/ops/compression.h"

#include "kernels/compress.h"
#include "kernels/ops/family.h"

int64_t compression_part_bytes(const op *o, const tensor *x)
{
    int64_t first, rows, width = x->dims > 1 ? x->shape[1] : 1;
    compress_method m = {(compress_kind)o->at.compression.kind, (double)o->at.compression.density};
    int ranks = o->where.rows > 0 ? o->where.group_size : compression_parts(o, x);
    shard_rows(&first, &rows, o->where.rows > 0 ? o->where.rows : x->shape[0], ranks, 0);
    return compress_bytes(&m, rows * width);
}

static const double operations[COMPRESS_KINDS] = {
    [COMPRESS_BF16] = 3, [COMPRESS_INT8] = 6, [COMPRESS_INT4] = 6, [COMPRESS_TOPK] = 66, [COMPRESS_DCT] = 256};

static void check_method(const op *o)
{
    OPERANDS_CHECK(o->at.compression.kind > COMPRESS_NONE && o->at.compression.kind < COMPRESS_KINDS &&
                       o->where.group_size >= 1 &&
                       (o->at.compression.kind < COMPRESS_TOPK ||
                        (o->at.compression.density > 0 && o->at.compression.density <= 1)),
                   "a method, its density, and parts");
}

void infer_compress(op *o)
{
    const tensor *gradient = o->in[0];
    check_method(o);
    OPERANDS_CHECK(gradient->type == DTYPE_FP32 && gradient->dims <= 2 && infer_same(o->in[1], gradient) &&
                       infer_is_scalars(o->in[2]),
                   "gradient and feedback fp32 of one shape, the step's scalars");
    infer_shape(o->out[0], DTYPE_UINT8, 2, compression_parts(o, gradient), compression_part_bytes(o, gradient), 0);
    infer_shape_like(o->out[1], gradient);
    operands_place(o, "rr.>rr 00.>00 11.>01 pp.>pp");
}

GRADIENTLESS(compress, cost_each(o, operations[o->at.compression.kind] + 2, 0))

void infer_decompress(op *o)
{
    const tensor *messages = o->in[0], *y = o->out[0];
    check_method(o);
    OPERANDS_CHECK(y->type == DTYPE_FP32 && y->dims >= 1 && y->dims <= 2 && infer_is_scalars(o->in[1]),
                   "y fp32 described, the step's scalars");
    OPERANDS_CHECK(o->at.compression.messages >= 1 &&
                       infer_is_matrix(messages, DTYPE_UINT8, o->at.compression.messages * compression_parts(o, y),
                                       compression_part_bytes(o, y)),
                   "messages uint8[count parts, bytes]");
    operands_place(o, "r.>r 0.>0 0.>1");
}

op_cost cost_decompress(const op *o)
{
    double back = o->at.compression.kind == COMPRESS_DCT ? 128 * (double)o->at.compression.density : 2;
    return cost_of(o, back * cost_elements(o->out[0]) * (double)o->at.compression.messages, 0);
}

NO_GRADIENT(decompress)

void infer_store_feedback(op *o)
{
    OPERANDS_CHECK(o->in[0]->type == DTYPE_FP32 && infer_same(o->in[0], o->out[0]) &&
                       infer_is_vector(o->in[1], DTYPE_FP32, CONTROL_COUNT),
                   "kept and feedback fp32 of one shape, control fp32[3]");
    operands_place(o, "r.>r 0.>0 1.>1 p.>p");
}

GRADIENTLESS(store_feedback, cost_moved(o))
