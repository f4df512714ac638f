/* Ops of updates and of communication. */
#include "kernels/infer.h"

#include "kernels/compress.h"
#include "kernels/exact_sum.h"
#include "kernels/parameter.h"

#define CHECK OPERANDS_CHECK

/* ---- optimizer ----------------------------------------------------------------------------------------------- */

void infer_sum_squares(op *o)
{
    operands_present(o);
    CHECK(o->in[0]->type == DTYPE_FP32 && infer_is_vector(o->out[0], DTYPE_INT64, SUM_BINS),
          "gradient fp32, bins int64[SUM_BINS]");
    operands_place(o, "r>. 0>. 1>. 2>.");
}

void infer_clip(op *o)
{
    operands_present(o);
    CHECK(infer_is_vector(o->in[0], DTYPE_INT64, SUM_BINS) && infer_is_scalars(o->in[1]),
          "bins int64[SUM_BINS], the step's scalars");
    infer_shape(o->out[0], DTYPE_FP32, 1, CONTROL_COUNT, 0, 0);
    operands_place(o, "r.>r");
}

/* An update: gradient (or direction), scalars, control -> weight, master and states. */
static void infer_update(op *o)
{
    operands_present(o);
    const tensor *gradient = o->in[0];
    CHECK(gradient->type == DTYPE_FP32 && infer_is_scalars(o->in[1]) &&
              infer_is_vector(o->in[2], DTYPE_FP32, CONTROL_COUNT),
          "gradient fp32, the step's scalars, control fp32[3]");
    for (int i = 1; i < OP_MAX_OUT && o->out[i]; i++)
        CHECK(infer_same_shape(o->out[i], gradient) &&
                  (infer_same(o->out[i], gradient) || o->out[i]->type == DTYPE_BF16),
              "master and states fp32 or bf16 in the gradient's shape");
    CHECK(!o->out[0] || (infer_same_shape(o->out[0], gradient) && infer_is_compute(o->out[0])),
          "the weight in the gradient's shape");
    operands_place(o, "r..>.... 0..>.... 1..>.... 2..>....");
}

void infer_adamw(op *o)
{
    infer_update(o);
}

void infer_lion(op *o)
{
    infer_update(o);
}

void infer_sgd(op *o)
{
    infer_update(o);
}

void infer_muon(op *o)
{
    infer_update(o);
}

void infer_muon_momentum(op *o)
{
    operands_present(o);
    infer_shape_like(o->out[0], o->in[0]);
    infer_update(o);
    o->out[0]->place = o->in[0]->place;
}

static bool is_square(const tensor *t)
{
    return infer_is_matrix(t, DTYPE_FP32, t->shape[0], t->shape[0]);
}

void infer_muon_scale(op *o)
{
    operands_present(o);
    CHECK(is_square(o->in[0]) && o->at.epsilon > 0, "gram[n, n] fp32, epsilon above 0");
    infer_shape_like(o->out[0], o->in[0]);
    infer_shape(o->out[1], DTYPE_FP32, 1, 1, 0, 0);
    operands_place(o, "r>rr");
}

void infer_muon_polynomial(op *o)
{
    operands_present(o);
    const tensor *gram = o->in[0], *scale = o->in[2];
    CHECK(is_square(gram) && infer_same(o->in[1], gram) && (!scale || infer_is_vector(scale, DTYPE_FP32, 1)),
          "gram[n, n] and square[n, n] fp32, scale fp32[1]");
    infer_shape_like(o->out[0], gram);
    operands_place(o, "rrr>r");
}

/* ---- compressed gradients ------------------------------------------------------------------------------------ */

int infer_parts(const op *o, const tensor *x)
{
    return x->dims == 1 || o->at.owner >= 0 || o->at.rows > 0 ? 1 : o->at.group_size;
}

int64_t infer_part_bytes(const op *o, const tensor *x)
{
    int64_t first, rows, width = x->dims > 1 ? x->shape[1] : 1;
    compress_method m = {(compress_kind)o->at.compress, (double)o->at.density};
    int ranks = o->at.rows > 0 ? o->at.group_size : infer_parts(o, x);
    shard_rows(&first, &rows, o->at.rows > 0 ? o->at.rows : x->shape[0], ranks, 0);
    return compress_bytes(&m, rows * width);
}

static void check_method(const op *o)
{
    CHECK(o->at.compress > COMPRESS_NONE && o->at.compress < COMPRESS_KINDS && o->at.group_size >= 1 &&
              (o->at.compress < COMPRESS_TOPK || (o->at.density > 0 && o->at.density <= 1)),
          "a method, its density, and parts");
}

void infer_compress(op *o)
{
    operands_present(o);
    const tensor *gradient = o->in[0];
    check_method(o);
    CHECK(gradient->type == DTYPE_FP32 && gradient->dims <= 2 && infer_same(o->in[1], gradient) &&
              infer_is_scalars(o->in[2]),
          "gradient and feedback fp32 of one shape, the step's scalars");
    infer_shape(o->out[0], DTYPE_UINT8, 2, infer_parts(o, gradient), infer_part_bytes(o, gradient), 0);
    infer_shape_like(o->out[1], gradient);
    operands_place(o, "rr.>rr 00.>00 11.>01 pp.>pp");
}

void infer_decompress(op *o)
{
    operands_present(o);
    const tensor *messages = o->in[0], *y = o->out[0];
    check_method(o);
    CHECK(y->type == DTYPE_FP32 && y->dims >= 1 && y->dims <= 2 && infer_is_scalars(o->in[1]),
          "y fp32 described, the step's scalars");
    CHECK(o->at.count >= 1 &&
              infer_is_matrix(messages, DTYPE_UINT8, o->at.count * infer_parts(o, y), infer_part_bytes(o, y)),
          "messages uint8[count parts, bytes]");
    operands_place(o, "r.>r 0.>0 0.>1");
}

void infer_keep(op *o)
{
    operands_present(o);
    CHECK(o->in[0]->type == DTYPE_FP32 && infer_same(o->in[0], o->out[0]) &&
              infer_is_vector(o->in[1], DTYPE_FP32, CONTROL_COUNT),
          "kept and feedback fp32 of one shape, control fp32[3]");
    operands_place(o, "r.>r 0.>0 1.>1 p.>p");
}

/* ---- communication ------------------------------------------------------------------------------------------- */

static void check_group(const op *o)
{
    CHECK(o->at.group_size >= 1 && o->at.group_rank >= 0 && o->at.group_rank < o->at.group_size,
          "group_rank of group_size");
}

/* This rank's part of `whole` rows. */
static void part(int64_t *first, int64_t *count, const op *o, int64_t whole)
{
    *first = 0;
    if (o->at.owner >= 0)
        *count = o->at.group_rank == o->at.owner ? whole : 0;
    else
        shard_rows(first, count, whole, o->at.group_size, o->at.group_rank);
}

/* shard(0) -> shared, whose cotangent the reduce-scatter sums. With attributes.replicate nobody's cotangent of it will be
 * summed: it is itself the cotangent of a partial tensor (the gradient of a reduce-scatter), or not differentiated. */
/* Between stages, what one has is placed as if it were alone: its own. */
static bool is_a_stages_own(const op *o)
{
    return o->at.owner >= 0 && axis_between_stages((axis)o->at.axis);
}

void infer_all_gather(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    check_group(o);
    if (is_a_stages_own(o))
        operands_place_along(o, o->at.replicate ? "r>r" : "r>s");
    else
        operands_place_along(o, o->at.replicate ? "0>r o>r" : "0>s o>s");
    int64_t rows = o->at.rows ? o->at.rows : x->shape[0] * o->at.group_size, first, count;
    part(&first, &count, o, rows);
    CHECK(x->dims > 0 && x->shape[0] == count, "x must have this rank's share of attributes.rows rows");
    infer_shape(o->out[0], (dtype)x->type, x->dims, rows, x->shape[1], x->shape[2]);
}

void infer_reduce_scatter(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    check_group(o);
    operands_place_along(o, is_a_stages_own(o) ? "p>r" : o->at.owner >= 0 ? "p>o" : "p>0");
    CHECK(x->dims > 0 && (o->at.rows ? x->shape[0] == o->at.rows : x->shape[0] % o->at.group_size == 0),
          "x must have attributes.rows rows, or rows that the group divides");
    int64_t first, count;
    part(&first, &count, o, x->shape[0]);
    infer_shape(o->out[0], (dtype)x->type, x->dims, count, x->shape[1], x->shape[2]);
    if (x->parameter && !parameter_has_copies(x->parameter, first, count)) /* of the rows that are sums over copies */
        o->out[0]->place.along[AXIS_COORDINATES + AXIS_KV] = place_replicate();
}

/* What each rank has for this one: together they are this rank's part of a sum. */
void infer_all_to_all(op *o)
{
    operands_present(o);
    const tensor *x = o->in[0];
    check_group(o);
    operands_place_along(o, o->at.owner >= 0 ? "p>o" : "p>0");
    CHECK(x->dims == 2 && x->shape[0] == (o->at.owner >= 0 ? 1 : o->at.group_size),
          "x[ranks, n], or of the owner [1, n]");
    bool mine = o->at.owner < 0 || o->at.owner == o->at.group_rank;
    infer_shape(o->out[0], (dtype)x->type, 2, mine ? o->at.group_size : 0, x->shape[1], 0);
}

void infer_all_reduce(op *o)
{
    operands_present(o);
    check_group(o);
    operands_place_along(o, "p>r");
    CHECK(o->at.first >= 0 && o->at.rows >= 0 && o->at.first + o->at.rows <= o->in[0]->shape[0],
          "the rows that are summed must be rows of x");
    infer_shape_like(o->out[0], o->in[0]);
}

void infer_share(op *o)
{
    operands_present(o);
    check_group(o);
    operands_place_along(o, "r>s");
    infer_shape_like(o->out[0], o->in[0]);
    tensor *x = o->in[0], *y = o->out[0]; /* a view of x */
    y->base = tensor_root(x);
    y->offset = x->offset;
    y->pitch = x->pitch;
}

void infer_send(op *o)
{
    operands_present(o);
    CHECK(o->at.peer >= 0, "the neighbour's rank");
}

void infer_receive(op *o)
{
    operands_present(o);
    CHECK(o->out[0]->dims > 0 && o->at.peer >= 0, "what is received must be described, and from whom");
}

static void check_copied(const op *o, const tensor *host, const tensor *arena)
{
    operands_present(o);
    CHECK(host->class == CLASS_HOST && arena->class != CLASS_HOST, "one of the two in host memory");
    CHECK(infer_same(host, arena) && tensor_contiguous(host) && tensor_contiguous(arena),
          "the same rows, without gaps");
}

void infer_fetch(op *o)
{
    check_copied(o, o->in[0], o->out[0]);
}

void infer_stow(op *o)
{
    check_copied(o, o->out[0], o->in[0]);
}

/* Its operands are those of the op that it ends, which was checked. */
void infer_wait(op *o)
{
    CHECK(o->at.request >= 0, "the asynchronous op's request");
}
