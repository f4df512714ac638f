/* A parameter: one array of weights as this rank's part of the model has it, described once and then const. Its storage
 * (kernels/record/storage.h) has its bytes; the recorder keeps its state in a recording.
 *
 * `rows x columns` is the rank's tensor-parallel part (a vector is one row).
 *
 * A parameter is known to the world by Hugging Face's names: each *piece* says which rectangle of which named tensor is
 * where in the rank's part; an empty piece says that the rank has none of that tensor. Elements that no piece covers
 * are padding: zero, never stored, its gradient never counted.
 */
#pragma once

#include "kernels/table/axis.h"
#include "memory/box.h"
#include "memory/tensor.h"

typedef enum parameter_init { INIT_NORMAL, INIT_ZERO, INIT_ONE } parameter_init;

typedef struct parameter_block {
    rectangle of;        /* rectangle of Hugging Face's tensor, which has 1 or 2 dimensions */
    bool transposed;     /* element (i, j) of the named tensor is (j, i) here (GPT-2's Conv1D) */
    int stacked;         /* the number of matrices that the named tensor stacks, one after the other; 0: it is one */
    int64_t row, column; /* where the rectangle starts in the rank's part */
} parameter_block;

enum { PARAMETER_COPIES = 3 };

/* Other holders of some of a parameter: the ranks along an axis, rows (of a vector: elements) from `from` on. The first
 * of them counts and writes these (engine/compile/model/owner_role.h). */
typedef struct parameter_copies {
    axis along;
    int64_t from;
} parameter_copies;

typedef struct parameter {
    const char *name; /* "layer 3/attention/qkv" */
    int64_t rows, columns;
    bool vector;      /* shape [columns], one row */
    bool of_block;    /* a layer's, not of the model's ends */
    bool counted;     /* fp32; no gradient changes it, but counts of tokens do (op expert_bias) */
    placements place; /* the weight's placement */
    /* The axis along which ranks hold the same part and see other tokens: its gradient is a sum along it, and it may
     * divide the rows. */
    axis replicas;
    parameter_copies copies[PARAMETER_COPIES];
    int copy_count;
    unsigned sums; /* slots (kernels/table/axis.h) along which its gradient is a sum over the ranks */
    bool decay;
    parameter_init init;
    float deviation; /* standard deviation of INIT_NORMAL */
    int chunk;       /* this stage's chunk */
    /* Number of this rank's parameter that shares its weight but has a gradient of its own, which is added to the
     * other's; -1: none. So sums over micro-batches are the same whether the two are on one stage or apart. */
    int shares;
    parameter_block *pieces; /* one for each name that shares the array; the parameter's pool owns them */
    int piece_count;
    /* Index in the stage's order of parameters: the same on every rank of the tensor group, whichever of them it lacks.
     * Tables of parameters' properties are indexed by it. */
    int number;
} parameter;

/* Rows; of a vector, elements. */
static inline int64_t parameter_rows(const parameter *p)
{
    return p->vector ? p->columns : p->rows;
}

/* True if two ranks hold equally much of a parameter, and of its copies. */
static inline bool parameter_same_sizes(const parameter *p, const parameter *q)
{
    bool same = p->rows == q->rows && p->columns == q->columns && p->copy_count == q->copy_count;
    for (int i = 0; same && i < p->copy_count; i++)
        same = p->copies[i].along == q->copies[i].along && p->copies[i].from == q->copies[i].from;
    return same;
}

/* Returns the first row that other ranks along the axis hold, too; the number of rows, if they hold none. */
static inline int64_t parameter_copied_from(const parameter *p, axis along)
{
    for (int i = 0; i < p->copy_count; i++)
        if (p->copies[i].along == along)
            return p->copies[i].from;
    return parameter_rows(p);
}

/* `place` of rows [first, first + rows) of its gradient alone: they are no sum over copies of other rows. */
static inline placements parameter_place_rows(const parameter *p, placements place, int64_t first, int64_t rows)
{
    for (int i = 0; i < p->copy_count; i++)
        for (int slot = 0; slot < AXIS_SLOTS; slot++) {
            bool others = p->copies[i].from > 0 && (rows == 0 || first + rows <= p->copies[i].from);
            if (others && axis_slots(p->copies[i].along) >> slot & 1)
                place.along[slot] = place_replicate();
        }
    return place;
}

/* Returns the placement of a gradient as products make it, of all rows: a share of the sum along each axis of
 * `sums`. */
static inline placements parameter_gradient_place(const parameter *p)
{
    placements all = place_cotangent(p->place);
    for (int i = 0; i < AXIS_SLOTS; i++)
        if (p->sums >> i & 1)
            all.along[i] = place_partial();
    return all;
}
