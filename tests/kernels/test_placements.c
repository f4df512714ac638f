/* The recorder refuses an op on operands whose placements it does not accept, communication whose gradient it could not
 * record, and routing that kernels have no room for: a forgotten collective is an error where the layer is recorded,
 * not a wrong loss. */
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/record/record.h"
#include "tests/test.h"

enum { TOKENS = 10, HIDDEN = 6 };

static void begin(recorder *r, pool *p)
{
    recorder_grid grid = recorder_alone();
    grid.group[AXIS_TENSOR] = (axis_group){.ranks = 2, .slots = axis_slots(AXIS_TENSOR)};
    recorder_open(r, p, &grid, DTYPE_FP32, NULL, 0);
    r->tokens = TOKENS;
}

static tensor *placed(recorder *r, const char *name, int64_t rows, int64_t columns, placement place)
{
    return recorder_input(r, name, DTYPE_FP32, 2, (int64_t[]){rows, columns},
                          place_along(AXIS_COORDINATE_TENSOR, place));
}

static void forgets_to_share(recorder *r)
{
    record_linear(r, "mlp/up", placed(r, "x", TOKENS, HIDDEN, place_replicate()),
                  placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
}

static void forgets_to_reduce(recorder *r)
{
    tensor *x = record_copy_to_shards(r, "share", AXIS_TENSOR, placed(r, "x", TOKENS, HIDDEN, place_replicate()));
    tensor *h = record_linear(r, "mlp/up", x, placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
    tensor *y = record_linear(r, "mlp/down", h, placed(r, "v", HIDDEN, 4, place_shard(1)), NULL);
    record_gelu(r, "mlp/gelu", y); /* of partial sums */
}

static void forgets_to_gather(recorder *r)
{
    record_linear(r, "mlp/up", placed(r, "x", TOKENS / 2, HIDDEN, place_shard(0)),
                  placed(r, "w", 4, HIDDEN, place_shard(0)), NULL);
}

static void adds_a_bias_on_every_rank(recorder *r)
{
    tensor *h = placed(r, "h", TOKENS, 4, place_shard(1));
    tensor *b = recorder_input(r, "b", DTYPE_FP32, 1, (int64_t[]){HIDDEN}, (placements){0});
    record_linear(r, "mlp/down", h, placed(r, "v", HIDDEN, 4, place_shard(1)), b);
}

/* ---- what is not in one piece --------------------------------------------------------------------------------- */

static tensor *columns(recorder *r, int64_t rows, placement place)
{
    return recorder_columns(r, placed(r, "x", rows, 2 * HIDDEN, place), HIDDEN, HIDDEN);
}

static void gathers_columns(recorder *r)
{
    record_all_gather(r, "gather", AXIS_TENSOR, columns(r, TOKENS / 2, place_shard(0)), TOKENS);
}

static void scatters_columns(recorder *r)
{
    record_reduce_scatter(r, "scatter", AXIS_TENSOR, columns(r, TOKENS, place_partial()));
}

static void sums_columns(recorder *r)
{
    record_all_reduce(r, "reduce", AXIS_TENSOR, columns(r, TOKENS, place_partial()));
}

static void exchanges_columns(recorder *r)
{
    op exchange = {.kind = OP_all_to_all, .where = op_along(r->grid.group, AXIS_TENSOR)};
    exchange.in[0] = columns(r, 2, place_partial());
    recorder_record(r, "exchange", &exchange, 1, NULL);
}

static void gathers_into_columns(recorder *r)
{
    op gather = {.kind = OP_all_gather, .where = op_along(r->grid.group, AXIS_TENSOR)};
    gather.in[0] = placed(r, "x", TOKENS / 2, HIDDEN, place_shard(0));
    recorder_record(r, "into", &gather, 0, (tensor *[OP_MAX_OUT]){columns(r, TOKENS, place_shared())});
}

/* ---- what has no gradient --------------------------------------------------------------------------------------- */

static axis along; /* of what is recorded next */

static void gathers_along_it(recorder *r)
{
    tensor *x = recorder_input(r, "x", DTYPE_FP32, 2, (int64_t[]){TOKENS, HIDDEN}, (placements){0});
    record_all_gather(r, "gather", along, x, TOKENS);
}

static void differentiate(recorder *r, tensor *y)
{
    placements place = place_cotangent(y->place);
    recorder_differentiate(r, NULL, y, recorder_input(r, "dy", DTYPE_FP32, y->dims, y->shape, place));
}

/* By no function for layers. */
static void gathers_by_hand(recorder *r)
{
    r->grid.group[AXIS_KV] = (axis_group){.ranks = 2, .slots = axis_slots(AXIS_KV)};
    op gather = {.kind = OP_all_gather, .where = op_along(r->grid.group, AXIS_KV)};
    gather.in[0] = recorder_input(r, "x", DTYPE_FP32, 2, (int64_t[]){TOKENS / 2, HIDDEN},
                                  place_along(AXIS_SLOT_KV, place_shard(0)));
    differentiate(r, recorder_record(r, "gather", &gather, 1, NULL)->out[0]);
}

static void differentiates_a_gather_for_replicas(recorder *r)
{
    tensor *x = placed(r, "x", TOKENS / 2, HIDDEN, place_shard(0));
    differentiate(r, record_all_gather_replicate(r, "gather", AXIS_TENSOR, x, TOKENS));
}

/* A weight's gradient is no cotangent that flows. */
static void gathers_a_weight(recorder *r)
{
    static const parameter p;
    static tensor w;
    tensor_describe(&w, "w", CLASS_WEIGHT, DTYPE_FP32, 2, (int64_t[]){TOKENS / 2, HIDDEN});
    w.place = place_along(AXIS_COORDINATE_TENSOR, place_shard(0));
    w.parameter = &p;
    differentiate(r, record_all_gather(r, "gather", AXIS_TENSOR, &w, TOKENS));
}

/* ---- routing ---------------------------------------------------------------------------------------------------- */

static op_routing routing; /* of what is recorded next */

static void routes(recorder *r)
{
    int64_t columns = routing.experts;
    tensor *logits = recorder_input(r, "logits", DTYPE_FP32, 2, (int64_t[]){TOKENS, columns}, (placements){0}), *w, *e;
    record_route(r, "router", &w, &e, logits, NULL, &routing);
}

/* Only the gradient of combine has weights. */
static void dispatches_by_weights(recorder *r)
{
    tensor *x = placed(r, "x", TOKENS, HIDDEN, place_replicate()), *weights, *experts;
    op_routing as = {.experts = HIDDEN, .active = 2, .scale = 1, .local = HIDDEN};
    record_route(r, "router", &weights, &experts, x, NULL, &as);
    record_row_ids to = record_assign(r, "assign", experts, 2 * TOKENS, &as, 0);
    op like = {.kind = OP_dispatch, .in = {x, to.row_ids, to.offsets, weights}, .at.routing.rows = 2 * TOKENS};
    differentiate(r, recorder_record(r, "dispatch", &like, 1, NULL)->out[0]);
}

/* A rank's rows for the others must be its own. */
static void exchanges_shared_rows(recorder *r)
{
    record_all_to_all(r, "exchange", AXIS_TENSOR, placed(r, "rows", TOKENS, HIDDEN, place_shared()));
}

static void exchanges_rows_that_ranks_do_not_divide(recorder *r)
{
    record_all_to_all(r, "exchange", AXIS_TENSOR, placed(r, "rows", TOKENS + 1, HIDDEN, place_shard(0)));
}

/* As compressed gradients are. */
static void differentiates_an_exchange_of_sums(recorder *r)
{
    op exchange = {.kind = OP_all_to_all, .where = op_along(r->grid.group, AXIS_TENSOR)};
    exchange.in[0] = placed(r, "x", 2, HIDDEN, place_partial());
    differentiate(r, recorder_record(r, "exchange", &exchange, 1, NULL)->out[0]);
}

static void packs_slots_of_other_sizes(recorder *r)
{
    tensor *experts = recorder_input(r, "experts", DTYPE_INT32, 2, (int64_t[]){TOKENS, 2}, (placements){0}), *out[3];
    tensor *x = recorder_input(r, "x", DTYPE_FP32, 2, (int64_t[]){TOKENS, HIDDEN}, (placements){0});
    const op_routing as = {.experts = 4, .slots = 2};
    record_slots(r, "slots", &(record_slots_out){&out[0], &out[1], &out[2]}, experts, 8, &as);
    record_dispatch(r, "pack", x, out[0], out[2], 9, 2);
}

static void combines_another_ranks_rows(recorder *r)
{
    tensor *x = placed(r, "x", TOKENS, HIDDEN, place_replicate()), *weights, *experts;
    op_routing as = {.experts = HIDDEN, .active = 2, .scale = 1, .local = HIDDEN};
    record_route(r, "router", &weights, &experts, x, NULL, &as);
    record_row_ids to = record_assign(r, "assign", experts, 2 * TOKENS, &as, 0);
    tensor *rows = placed(r, "rows", 2 * TOKENS, HIDDEN, place_shard(0));
    record_combine(r, "combine", &(record_combine_in){rows, to.row_ids, weights, to.offsets, NULL, 0});
}

static void refused(void (*record)(recorder *r), const char *label, const char *why)
{
    int ends[2], result;
    char message[4096] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        signal(SIGABRT, SIG_DFL);
        dup2(ends[1], STDERR_FILENO);
        recorder r;
        pool p = {0};
        begin(&r, &p);
        record(&r);
        _exit(0);
    }
    close(ends[1]);
    size_t used = 0;
    ssize_t more;
    while (used < sizeof message - 1 && (more = read(ends[0], message + used, sizeof message - 1 - used)) > 0)
        used += (size_t)more;
    message[used] = 0;
    close(ends[0]);
    assert_int_equal(waitpid(child, &result, 0), child);
    assert_true(WIFSIGNALED(result) && WTERMSIG(result) == SIGABRT);
    if (!strstr(message, label) || !strstr(message, why))
        fail_msg("the message does not say \"%s\" of %s: %s", why, label, message);
}

TEST(a_forgotten_collective_is_refused_when_recorded)
{
    refused(forgets_to_share, "mlp/up", "placement");
    refused(forgets_to_reduce, "mlp/gelu", "placement");
    refused(forgets_to_gather, "mlp/up", "placement");
    refused(adds_a_bias_on_every_rank, "mlp/down", "placement");
}

/* Else the bytes between the columns would travel in their place. */
TEST(communication_of_columns_is_refused)
{
    refused(gathers_columns, "gather", "contiguous");
    refused(scatters_columns, "scatter", "contiguous");
    refused(sums_columns, "reduce", "contiguous");
    refused(exchanges_columns, "exchange", "contiguous");
    refused(gathers_into_columns, "into", "contiguous");
}

TEST(communication_without_a_gradient_is_refused)
{
    int axes = 0;
    for (along = 0; along < AXIS_COUNT; along++)
        if (!axis_rows[along].layers) {
            refused(gathers_along_it, axis_name(along), "no layer may record all_gather");
            axes++;
        }
    assert_true(axes > 0 && axes < AXIS_COUNT);
    refused(gathers_by_hand, axis_name(AXIS_KV), "no layer may record reduce_scatter");
    refused(differentiates_a_gather_for_replicas, "gather", "it has no gradient");
    refused(gathers_a_weight, "w is a weight", "recorder_gradient()");
}

TEST(routing_beyond_what_kernels_have_room_for_is_refused)
{
    static const struct {
        op_routing as;
        const char *why;
    } cases[] = {
        {{.experts = 513, .active = 2, .scale = 1}, "between 1 and 512 experts"},
        {{.experts = 64, .active = 33, .scale = 1}, "between 1 and 32 experts a token"},
        {{.experts = 4, .active = 5, .scale = 1}, "no more than there are"},
        {{.experts = 4, .active = 2}, "something positive"},
        {{.experts = 10, .active = 2, .scale = 1, .groups = 4, .groups_kept = 2, .group_best = 1}, "a multiple of"},
        {{.experts = 8, .active = 2, .scale = 1, .groups = 4, .groups_kept = 5, .group_best = 1}, "must be kept"},
        {{.experts = 8, .active = 2, .scale = 1, .groups = 4, .groups_kept = 2, .group_best = 3}, "a group's score"},
        {{.experts = 8, .active = 5, .scale = 1, .groups = 4, .groups_kept = 2, .group_best = 1}, "groups kept"},
    };
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        routing = cases[i].as;
        refused(routes, "router", cases[i].why);
    }
    refused(dispatches_by_weights, "dispatch", "has no gradient");
    refused(combines_another_ranks_rows, "combine", "placement");
    refused(exchanges_shared_rows, "exchange", "placement");
    refused(exchanges_rows_that_ranks_do_not_divide, "exchange", "as many for each rank");
    refused(differentiates_an_exchange_of_sums, "exchange", "has no gradient");
    refused(packs_slots_of_other_sizes, "pack", "as many rows in each slot");
}

TEST_MAIN(NULL, NULL)
