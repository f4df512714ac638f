#include "tests/parallel/schedule/least.h"

/* bytes x (per_other x (members - 1) + constant) */
static const struct {
    int per_other, constant;
} kinds[COMM_KINDS] = {
    [COMM_ALL_REDUCE] = {2, 0}, [COMM_ALL_GATHER] = {1, 0}, [COMM_REDUCE_SCATTER] = {1, 0}, [COMM_ALL_TO_ALL] = {1, 0},
    [COMM_BROADCAST] = {1, 0},  [COMM_SEND] = {0, 1},       [COMM_RECEIVE] = {0, 0},        [COMM_EXCHANGE] = {0, 1},
};

int64_t least_bytes(const comm_shape *shape)
{
    int64_t times = (int64_t)kinds[shape->kind].per_other * (shape->members - 1) + kinds[shape->kind].constant;
    return shape->count * dtype_bytes(shape->type) * times;
}
