/* Gathers, scatters and sums that a layer records pass the adjoint test in float64 along every axis on which layers may
 * record, and one of their backward pass that is left out fails it. */

#include "tests/oracle/adjoint.h"
#include "tests/test.h"

enum { TOKENS = 10, HIDDEN = 6, RANKS = 3 }; /* which divide neither tokens nor rows */

/* A layer whose tokens and weights are divided over the group: gathered, used, summed and scattered. */
static void gathered(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    int64_t first, count;
    recorder_part(&first, &count, &r->grid, a->along, TOKENS);
    tensor *x = adjoint_input(a, "x", count, HIDDEN, place_shard(0));
    tensor *up = recorder_weight(r, adjoint_parameter(a, "up", 4, HIDDEN, place_shard(0)));
    tensor *down = recorder_weight(r, adjoint_parameter(a, "down", HIDDEN, 4, place_shard(1)));
    tensor *whole = record_all_gather(r, "gather", a->along, record_gelu(r, "gelu", x), TOKENS);
    tensor *y = record_linear(r, "down", record_gelu(r, "other", record_linear(r, "up", whole, up, NULL)), down, NULL);
    a->output = record_add(r, "sum", record_reduce_scatter(r, "scatter", a->along, y), x);
}

/* One that every rank has all tokens of: shared, used and summed. */
static void summed(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    tensor *x = record_gelu(r, "gelu", adjoint_input(a, "x", TOKENS, HIDDEN, place_replicate()));
    tensor *up = recorder_weight(r, adjoint_parameter(a, "up", 4, HIDDEN, place_shard(0)));
    tensor *down = recorder_weight(r, adjoint_parameter(a, "down", HIDDEN, 4, place_shard(1)));
    tensor *h =
        record_gelu(r, "other", record_linear(r, "up", record_copy_to_shards(r, "share", a->along, x), up, NULL));
    tensor *y = record_all_reduce(r, "reduce", a->along, record_linear(r, "down", h, down, NULL));
    a->output = record_add(r, "sum", record_gelu(r, "third", y), x);
}

/* Queries and keys whose heads are divided over the group, normalised over all of them. */
static void normalised(adjoint_rank *a, const void *options)
{
    (void)options;
    recorder *r = &a->r;
    const int q = 4, k = 2;
    op_attributes at = {
        .norm = {.epsilon = 1e-5f,
                 .width = {q * a->r.grid.group[AXIS_TENSOR].ranks, k * a->r.grid.group[AXIS_TENSOR].ranks}}};
    tensor *x = record_gelu(r, "gelu", adjoint_input(a, "x", TOKENS, HIDDEN, place_replicate()));
    tensor *up = recorder_weight(r, adjoint_parameter(a, "up", q + k, HIDDEN, place_shard(0)));
    tensor *down = recorder_weight(r, adjoint_parameter(a, "down", HIDDEN, q, place_shard(1)));
    tensor *other = recorder_weight(r, adjoint_parameter(a, "other", HIDDEN, k, place_shard(1)));
    tensor *both = record_linear(r, "up", record_copy_to_shards(r, "share", AXIS_TENSOR, x), up, NULL);
    record_qkv h = {.q = recorder_columns(r, both, 0, q), .k = recorder_columns(r, both, q, k)};
    tensor *wq = recorder_weight(r, adjoint_parameter(a, "q norm", q, 0, place_shard(0)));
    tensor *wk = recorder_weight(r, adjoint_parameter(a, "k norm", k, 0, place_shard(0)));
    record_width_norm(r, "norm", &h, wq, wk, &at);
    tensor *y =
        record_add(r, "both", record_linear(r, "down", h.q, down, NULL), record_linear(r, "other", h.k, other, NULL));
    a->output = record_add(r, "sum", record_gelu(r, "third", record_all_reduce(r, "reduce", AXIS_TENSOR, y)), x);
}

static const struct {
    const char *name;
    void (*record)(adjoint_rank *a, const void *options);
    int collectives; /* of its backward pass, which gathers once more what it reads */
    bool of_tensor;  /* along the axis of tensor ranks only */
} ALONG[] = {{"gather and scatter", gathered, 3, false},
             {"share and sum", summed, 1, false},
             {"norm over all heads", normalised, 2, true}};
enum { ALONG_COUNT = sizeof ALONG / sizeof *ALONG };

static bool records(int i, axis along)
{
    return along == AXIS_TENSOR || !ALONG[i].of_tensor;
}

static double worst_of(const adjoint_spec *s, char *why)
{
    adjoint *a = adjoint_open(s);
    double worst = adjoint_worst(why, a);
    adjoint_close(a);
    return worst;
}

static void passes(adjoint_spec s)
{
    char why[256];
    for (int how = RECOMPUTE_NONE; how <= RECOMPUTE_FULL; how++) {
        s.recompute = (recompute)how;
        s.split = how == RECOMPUTE_SELECTIVE;
        double worst = worst_of(&s, why);
        if (!(worst <= 1))
            fail_msg("%d ranks along %s, recompute %d: %.3g times what is allowed; %s", s.ranks, axis_name(s.along),
                     how, worst, why);
    }
}

TEST(communication_passes_along_every_axis_of_layers)
{
    for (axis along = 0; along < AXIS_COUNT; along++)
        for (int i = 0; i < ALONG_COUNT && axis_rows[along].layers; i++)
            for (int ranks = 1; ranks <= RANKS && records(i, along); ranks++)
                passes(
                    (adjoint_spec){.name = ALONG[i].name, .record = ALONG[i].record, .along = along, .ranks = ranks});
    assert_true(axis_rows[AXIS_TENSOR].layers && axis_rows[AXIS_CONTEXT].layers && axis_rows[AXIS_GRADIENT].layers);
}

/* Each collective of the backward pass in turn. */
TEST(one_that_is_left_out_fails)
{
    for (axis along = 0; along < AXIS_COUNT; along++)
        for (int i = 0; i < ALONG_COUNT && axis_rows[along].layers; i++) {
            if (!records(i, along))
                continue;
            adjoint_spec s = {.name = ALONG[i].name, .record = ALONG[i].record, .along = along, .ranks = RANKS};
            adjoint *a = adjoint_open(&s);
            assert_int_equal(adjoint_collectives(a), ALONG[i].collectives);
            adjoint_close(a);
            s.leave_out = true;
            for (s.skip = 0; s.skip < ALONG[i].collectives; s.skip++) {
                char why[256];
                if (worst_of(&s, why) <= 1)
                    fail_msg("%s along %s: collective %d was left out, and nothing was noticed", s.name,
                             axis_name(along), s.skip);
            }
        }
}

TEST_MAIN(NULL, NULL)
