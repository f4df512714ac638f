/* The generators of latent attention: see op_cases.h. */
#include <math.h>

#include "tests/oracle/op_cases.h"

#define CASES(name) bool op_cases_##name(op_case *c, int variant)
#define COUNT(list) ((int)(sizeof(list) / sizeof *(list)))

static const fill UNIT = {.kind = FILL_NORMAL, .b = 1}, SMALL = {.kind = FILL_NORMAL, .b = 0.1},
                  NOTHING = {.kind = FILL_NOTHING};

enum { GAP = 8 }; /* columns before and after what is used of a row */

/* tokens, heads, nope, rope */
static const int64_t KEYS[][4] = {{1, 1, 1, 1},    {3, 2, 8, 4},     {7, 3, 5, 3},     {19, 4, 16, 8}, {33, 2, 24, 6},
                                  {12, 5, 64, 72}, {9, 16, 128, 64}, {130, 2, 40, 24}, {2, 1, 10, 130}};

/* Every shape twice: kn, or dkn, is a matrix of its own, and columns of a wider one, as a product makes it with values
 * behind the keys. */
static bool keys_shape(op_case *c, tensor **row, int64_t *rope, int variant)
{
    bool fused = op_case_option(&variant, 2);
    if (variant >= COUNT(KEYS))
        return false;
    const int64_t *s = KEYS[variant];
    c->o.at.heads.q = (int32_t)s[1];
    c->o.at.heads.size = (int32_t)s[2];
    *rope = s[3];
    *row = fused ? op_case_tensor(c, "fused row", c->type, c->o.kind == OP_join_keys ? UNIT : NOTHING, s[0],
                                  2 * GAP + s[1] * s[2])
                 : NULL;
    if (c->o.kind == OP_join_keys)
        op_case_in(c, 0, c->type, UNIT, s[0], s[1] * s[2]);
    else
        op_case_in(c, 0, c->type, UNIT, s[0], s[1] * (s[2] + s[3]));
    return true;
}

static void into_columns(tensor *t, tensor *row)
{
    if (!row)
        return;
    t->base = row;
    t->offset = GAP * dtype_bytes((dtype)t->type);
    t->pitch = row->pitch;
}

CASES(join_keys)
{
    tensor *row;
    int64_t rope;
    if (!keys_shape(c, &row, &rope, variant))
        return false;
    into_columns(c->o.in[0], row);
    op_case_in(c, 1, c->type, UNIT, c->o.in[0]->shape[0], rope);
    op_case_infer(c, 1);
    c->exact = true;
    return true;
}

CASES(split_keys)
{
    tensor *row;
    int64_t rope;
    if (!keys_shape(c, &row, &rope, variant))
        return false;
    op_case_infer(c, 3);
    into_columns(c->o.out[0], row);
    c->terms = c->o.at.heads.q;
    c->growth = 2; /* terms of either sign */
    return true;
}

/* heads, nope, rope, v_head_size, rank, samples, positions of the cache */
static const int64_t DECODED[][7] = {{1, 1, 2, 1, 1, 1, 1},         {2, 8, 4, 6, 16, 2, 12},
                                     {4, 32, 16, 32, 64, 3, 12},    {3, 5, 2, 7, 33, 2, 9},
                                     {2, 24, 8, 40, 130, 2, 70},    {3, 16, 8, 16, 40, 2, 530},
                                     {5, 40, 24, 24, 260, 1, 33},   {16, 128, 64, 128, 512, 1, 5},
                                     {2, 128, 64, 128, 512, 2, 40}, {1, 6, 3, 5, 1030, 2, 20}};

/* The last position of the cache, and others. */
static void give_positions(const op_case *c, void *bytes, const tensor *t)
{
    int64_t positions = c->o.in[5]->shape[1];
    for (int64_t i = 0; i < t->shape[0]; i++)
        ((int32_t *)bytes)[i] = (int32_t)((positions - 1 + i * 5) % positions);
}

CASES(latent_decode)
{
    if (variant >= COUNT(DECODED))
        return false;
    const int64_t *s = DECODED[variant], samples = s[5], width = s[4] + s[2];
    c->o.at.heads.q = (int32_t)s[0];
    c->o.at.attention.scale = 1 / sqrtf((float)(s[1] + s[2]));
    op_case_in(c, 0, c->type, UNIT, samples, s[0] * (s[1] + s[2]));
    op_case_in(c, 1, c->type, UNIT, samples, s[4]);
    op_case_in(c, 2, c->type, UNIT, samples, s[2]);
    op_case_in(c, 3, c->type, SMALL, s[0] * (s[1] + s[3]), s[4]);
    op_case_in(c, 4, DTYPE_INT32, (fill){.kind = FILL_GIVEN, .give = give_positions}, samples, 0);
    tensor *cache = op_case_in(c, 5, c->type, UNIT, samples, s[6] * width);
    tensor_describe(cache, "cache", CLASS_TEMPORARY, c->type, 3, (int64_t[]){samples, s[6], width});
    op_case_infer(c, 1);
    c->terms = (double)(s[1] + width + s[4] + s[6]);
    c->growth = 2;
    return true;
}
