/* Programs small enough to play by hand, and pipelines whose bubble has a closed form. */
#include <stdlib.h>
#include <string.h>
#include <math.h>

#include "engine/compile/time/timing.h"
#include "memory/log.h"
#include "parallel/schedule/lowering.h"
#include "parallel/schedule/schedule_make.h"
#include "tests/test.h"

/* A token's product takes a second; a byte that travels, half of one: a message of one bf16 number a second. */
static profile unit_profile(void)
{
    return (profile){.name = "unit",
                     .peak = {2, 2, 2},
                     .tile = {{1, 1, 1}},
                     .memory = 1e30,
                     .memory_share = 1,
                     .bus = 2,
                     .node_ranks = 1 << 20,
                     .node = 2,
                     .network = 2};
}

static tensor *tensor_of(pool *p, int64_t rows)
{
    tensor *t = pool_alloc(p, sizeof *t);
    *t = (tensor){.type = DTYPE_BF16, .dims = 2, .shape = {rows, 1, 1}, .pitch = 1};
    return t;
}

static op *add(pool *p, program *list, op like)
{
    op *o = pool_alloc(p, sizeof *o);
    *o = like;
    o->label = "test";
    program_append(list, o);
    return o;
}

static void compute(pool *p, program *list, int seconds, phase when, action a)
{
    add(p, list,
        (op){.kind = OP_linear,
             .phase = (uint8_t)when,
             .chunk = a.chunk,
             .microbatch = a.microbatch,
             .in = {tensor_of(p, seconds), tensor_of(p, 1)},
             .out = {tensor_of(p, seconds)}});
}

/* Two ranks exchange their halves of 2 x `seconds` numbers. */
static void launch_gather(pool *p, program *list, axis a, int seconds, int request)
{
    add(p, list,
        (op){.kind = OP_all_gather,
             .microbatch = -1,
             .in = {tensor_of(p, seconds)},
             .out = {tensor_of(p, 2 * seconds)},
             .where = {.axis = (uint8_t)a, .group_size = 2, .request = request, .owner = -1}});
}

static void launch_message(pool *p, program *list, bool sends, int peer, bool upstream, int seconds, int request)
{
    op o = {.kind = sends ? OP_send : OP_receive,
            .microbatch = -1,
            .where = {.axis = AXIS_PIPELINE, .peer = peer, .upstream = upstream, .request = request, .group_size = 2}};
    *(sends ? &o.in[0] : &o.out[0]) = tensor_of(p, seconds);
    add(p, list, o);
}

static void wait_for(pool *p, program *list, int request)
{
    add(p, list, (op){.kind = OP_wait, .microbatch = -1, .where.request = request});
}

static grid grid_with(int tensor_ranks, int data, int stages, int stage)
{
    grid g;
    int at[GRID_AXES] = {[GRID_PIPELINE] = stage};
    assert_int_equal(grid_make(&g, tensor_ranks * data * stages, 0, GRID_SIZES(tensor_ranks, 1, data, stages)),
                     STATUS_OK);
    return grid_for_rank(&g, grid_rank_at(&g, at));
}

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-9 * (1 + fabs(b));
}

static const action none = {.microbatch = -1};

/* The published runs of 2022 summed gradients when all of them were there: nothing hides that. */
TEST(sums_of_gradients_follow_the_backward_pass_where_nothing_was_overlapped)
{
    profile unit = unit_profile();
    for (int late = 0; late <= 1; late++) {
        pool own = {0};
        program list = {0};
        timing p;
        grid g = grid_with(1, 2, 1, 0);
        unit.as_lowered = late;
        timing_open(&p, &unit, 1);
        compute(&own, &list, 1, PHASE_BACKWARD, (action){.microbatch = 0});
        launch_gather(&own, &list, AXIS_GRADIENT, 3, 0);
        list.ops[list.count - 1]->phase = PHASE_UPDATE;
        compute(&own, &list, 4, PHASE_BACKWARD, (action){.microbatch = 0});
        wait_for(&own, &list, 0);
        compute(&own, &list, 1, PHASE_UPDATE, none);
        timing_add(&p, &g, &list, 1);
        assert_int_equal(timing_run(&p), STATUS_OK);
        assert_true(near(p.seconds, late ? 9 : 6));
        assert_true(near(p.exposed[AXIS_GRADIENT], late ? 3 : 0));
        timing_span sum = timing_op_at(&p, 0, 1);
        assert_true(near(sum.begin, late ? 5 : 1) && near(sum.end, late ? 8 : 4));
        timing_free(&p);
        program_free(&list);
        pool_free(&own);
    }
}

/* Three transfers of 2 s and one along another axis share a link, the last waited for first: all 8 s are exposed, each
 * along the axis that travelled, and none of them is a bubble. */
TEST(a_wait_behind_other_transfers_is_exposed)
{
    profile unit = unit_profile();
    pool own = {0};
    program list = {0};
    timing p;
    grid g = grid_with(2, 2, 1, 0);
    timing_open(&p, &unit, 1);
    compute(&own, &list, 1, PHASE_BACKWARD, none);
    for (int request = 0; request < 4; request++)
        launch_gather(&own, &list, request < 3 ? AXIS_GRADIENT : AXIS_TENSOR, 2, request);
    for (int request = 3; request >= 0; request--)
        wait_for(&own, &list, request);
    timing_add(&p, &g, &list, 4);
    assert_int_equal(timing_run(&p), STATUS_OK);
    assert_true(near(p.seconds, 9));
    assert_true(near(p.exposed[AXIS_GRADIENT], 6));
    assert_true(near(p.exposed[AXIS_TENSOR], 2));
    assert_true(near(p.bubble, 0));
    timing_free(&p);
    program_free(&list);
    pool_free(&own);
}

/* 3 s of a transfer beside 2 s of computing: 1 s is waited for. */
TEST(a_transfer_is_exposed_by_what_nothing_hides)
{
    profile unit = unit_profile();
    for (int hidden = 0; hidden <= 4; hidden++) {
        pool own = {0};
        program list = {0};
        timing p;
        grid g = grid_with(2, 1, 1, 0);
        timing_open(&p, &unit, 1);
        compute(&own, &list, 1, PHASE_FORWARD, none);
        launch_gather(&own, &list, AXIS_TENSOR, 3, 0);
        if (hidden)
            compute(&own, &list, hidden, PHASE_FORWARD, none);
        wait_for(&own, &list, 0);
        compute(&own, &list, 5, PHASE_BACKWARD, none);
        timing_add(&p, &g, &list, 1);
        assert_int_equal(timing_run(&p), STATUS_OK);
        double exposed = hidden < 3 ? 3 - hidden : 0;
        assert_true(near(p.seconds, 6 + hidden + exposed));
        assert_true(near(p.exposed[AXIS_TENSOR], exposed));
        assert_true(near(p.ranks[0].compute, 6 + hidden));
        assert_true(near(p.bubble, 0));
        timing_free(&p);
        program_free(&list);
        pool_free(&own);
    }
}

/* Two loads of 3 s are one after the other, and a store of 3 s is beside them: 1 s of computing hides 1 of 6. */
TEST(copies_to_host_memory_and_from_it_are_queues_of_their_own)
{
    profile unit = unit_profile();
    pool own = {0};
    program list = {0};
    timing p;
    grid g = grid_with(1, 1, 1, 0);
    timing_open(&p, &unit, 1);
    for (int i = 0; i < 3; i++)
        add(&own, &list,
            (op){.kind = i < 2 ? OP_load_host : OP_store_host,
                 .microbatch = -1,
                 .in = {tensor_of(&own, 3)},
                 .out = {tensor_of(&own, 3)},
                 .where.request = i});
    compute(&own, &list, 1, PHASE_UPDATE, none);
    wait_for(&own, &list, 2);
    wait_for(&own, &list, 0);
    wait_for(&own, &list, 1);
    timing_add(&p, &g, &list, 3);
    assert_int_equal(timing_run(&p), STATUS_OK);
    assert_true(near(p.seconds, 6));
    assert_true(near(p.copies, 5));
    assert_true(near(p.exposed[AXIS_TENSOR], 0));
    assert_string_equal(p.causes[0].text, "host transfers of stage 0");
    timing_free(&p);
    program_free(&list);
    pool_free(&own);
}

/* One communicator is serial; two share the rank's link; within the node and beyond are two links. */
TEST(communicators_and_links_serve_one_after_another)
{
    static const struct {
        int node_ranks;
        bool same; /* communicator */
        double seconds;
    } cases[] = {{8, true, 7}, {8, false, 7}, {2, false, 4}};
    for (int i = 0; i < 3; i++) {
        profile unit = unit_profile();
        unit.node_ranks = cases[i].node_ranks;
        pool own = {0};
        program list = {0};
        timing p;
        grid g = grid_with(2, 2, 1, 0);
        timing_open(&p, &unit, 1);
        launch_gather(&own, &list, AXIS_TENSOR, 4, 0);
        launch_gather(&own, &list, cases[i].same ? AXIS_TENSOR : AXIS_GRADIENT, 3, 1);
        wait_for(&own, &list, 0);
        wait_for(&own, &list, 1);
        timing_add(&p, &g, &list, 2);
        assert_int_equal(timing_run(&p), STATUS_OK);
        assert_true(near(p.seconds, cases[i].seconds));
        timing_free(&p);
        program_free(&list);
        pool_free(&own);
    }
}

/* Stages that compute 4 s and 1 s meet at a sum over the grid of 2 s: the second waits 3 s for the first, and both for
 * the sum. */
TEST(a_sum_over_all_ranks_is_a_barrier)
{
    static const int computes[] = {4, 1};
    profile unit = unit_profile();
    pool own = {0};
    program lists[2] = {{0}, {0}};
    timing p;
    timing_open(&p, &unit, 2);
    for (int i = 0; i < 2; i++) {
        grid g = grid_with(1, 1, 2, i);
        compute(&own, &lists[i], computes[i], PHASE_FORWARD, none);
        launch_gather(&own, &lists[i], AXIS_GRID, 2, 0);
        wait_for(&own, &lists[i], 0);
        timing_add(&p, &g, &lists[i], 1);
    }
    assert_int_equal(timing_run(&p), STATUS_OK);
    assert_true(near(p.ranks[0].barrier, 2) && near(p.ranks[1].barrier, 5) && near(p.barrier, 3.5));
    timing_free(&p);
    for (int i = 0; i < 2; i++)
        program_free(&lists[i]);
    pool_free(&own);
}

/* The receiver computes 1 s, then waits: for the sender's 4 s (idle), and for the message's 2 s (exposed). Beside 6 s
 * of another group's transfer on the sender's link, the message takes twice as long. */
TEST(a_message_waits_for_its_sender_and_shares_the_link)
{
    for (int busy = 0; busy < 2; busy++) {
        profile unit = unit_profile();
        pool own = {0};
        program lists[2] = {{0}, {0}};
        timing p;
        timing_open(&p, &unit, 2);
        if (busy)
            launch_gather(&own, &lists[0], AXIS_GRADIENT, 6, 1);
        compute(&own, &lists[0], 4, PHASE_FORWARD, none);
        launch_message(&own, &lists[0], true, 4, false, 2, 0);
        wait_for(&own, &lists[0], 0);
        if (busy)
            wait_for(&own, &lists[0], 1);
        launch_message(&own, &lists[1], false, 0, false, 2, 0);
        compute(&own, &lists[1], 1, PHASE_FORWARD, none);
        wait_for(&own, &lists[1], 0);
        for (int i = 0; i < 2; i++) {
            grid g = grid_with(2, 2, 2, i);
            timing_add(&p, &g, &lists[i], 2);
        }
        assert_int_equal(timing_run(&p), STATUS_OK);
        double message = busy ? 4 : 2;
        assert_true(near(p.ranks[1].end, 4 + message));
        assert_true(near(p.ranks[1].exposed[AXIS_PIPELINE], message));
        assert_true(near(p.ranks[1].idle, 3 + p.seconds - p.ranks[1].end));
        assert_true(p.cause_count > 0);
        timing_free(&p);
        program_free(&lists[0]);
        program_free(&lists[1]);
        pool_free(&own);
    }
}

/* A receive that no send answers. */
TEST(ranks_that_do_not_meet_are_refused)
{
    profile unit = unit_profile();
    pool own = {0};
    program lists[2] = {{0}, {0}};
    timing p;
    timing_open(&p, &unit, 2);
    launch_message(&own, &lists[1], false, 0, false, 2, 0);
    wait_for(&own, &lists[1], 0);
    for (int i = 0; i < 2; i++) {
        grid g = grid_with(1, 1, 2, i);
        timing_add(&p, &g, &lists[i], 1);
    }
    assert_int_equal(timing_run(&p), STATUS_FAILED);
    assert_non_null(strstr(status_message(), "stage 1"));
    timing_free(&p);
    program_free(&lists[1]);
    pool_free(&own);
}

/* ---- pipelines
 * ------------------------------------------------------------------------------------------------------- */

enum { STAGES = 4, F = 2, B = 3 };

static void add_stage(pool *own, program *list, const lowering *l, int stage)
{
    for (int i = 0; i < l->counts[stage]; i++) {
        const lowering_step *s = &l->steps[stage][i];
        bool back = s->action.kind != ACTION_FORWARD;
        if (s->kind == LOWERING_COMPUTE)
            compute(own, list, back ? B : F, back ? PHASE_BACKWARD : PHASE_FORWARD, s->action);
        else if (s->kind == LOWERING_WAIT)
            wait_for(own, list, s->launch);
        else
            launch_message(own, list, s->kind == LOWERING_SEND, s->peer, s->payload == EXCHANGE_COTANGENT, 1,
                           s->launch);
    }
}

/* Idle time is (p - 1) (F + B) / v of each stage, where messages take no time, as the tables of papers have it. */
TEST(bubbles_are_those_of_the_closed_forms)
{
    static const struct {
        schedule_kind kind;
        int chunks, microbatches;
    } cases[] = {{SCHEDULE_GPIPE, 1, 6}, {SCHEDULE_1F1B, 1, 8}, {SCHEDULE_INTERLEAVED, 2, 8}};
    profile unit = unit_profile();
    unit.node = unit.network = 1e30;
    for (int k = 0; k < 3; k++) {
        int v = cases[k].chunks, m = cases[k].microbatches;
        schedule s;
        simulation simulated, spans;
        lowering l;
        pool own = {0};
        timing p;
        assert_int_equal(schedule_make(&s, cases[k].kind, STAGES, v, m), STATUS_OK);
        assert_int_equal(simulate_uniform(&simulated, &s, (simulate_cost){1, 1, 1}, 0, 0), STATUS_OK);
        assert_int_equal(lowering_make(&l, &simulated, LOWERING_DEFAULTS), STATUS_OK);
        timing_open(&p, &unit, STAGES);
        for (int i = 0; i < STAGES; i++) {
            program list = {0};
            grid g = grid_with(1, 1, STAGES, i);
            add_stage(&own, &list, &l, i);
            timing_add(&p, &g, &list, l.launches[i]);
            program_free(&list);
        }
        assert_int_equal(timing_run(&p), STATUS_OK);
        double work = m * v * (F + B), idle = (STAGES - 1) * (F + B); /* a chunk takes F + B, a stage v of them */
        assert_true(near(p.seconds, work + idle));
        for (int i = 0; i < STAGES; i++)
            assert_true(near(p.ranks[i].idle, idle));
        assert_true(near(p.bubble, idle / (work + idle)));
        assert_int_equal(timing_spans(&spans, &p, &s), STATUS_OK);
        assert_true(near(spans.length, p.seconds) && near(spans.bubble, p.bubble));
        assert_true(near(spans.stages[1].busy, work) && near(spans.spans[0][1].start, F));
        simulate_free(&spans);
        timing_free(&p);
        lowering_free(&l);
        simulate_free(&simulated);
        schedule_free(&s);
        pool_free(&own);
    }
}

/* On two cores four ranks of one thread, 3 s of work each: 6 s, and no more than 3 s if they were two. Waiting for a
 * core is no bubble. */
TEST(ranks_share_the_cores_of_a_host)
{
    profile unit = unit_profile();
    unit.cores = 2;
    unit.threads = 1;
    unit.peak[PEAK_HALF] = 4; /* of both cores: a rank's thread has half of it */
    for (int ranks = 2; ranks <= 4; ranks += 2) {
        pool own = {0};
        program list = {0};
        timing p;
        grid g = grid_with(1, ranks, 1, 0);
        timing_open(&p, &unit, 1);
        compute(&own, &list, 3, PHASE_FORWARD, none);
        timing_add(&p, &g, &list, 0);
        assert_int_equal(timing_run(&p), STATUS_OK);
        assert_true(near(p.seconds, ranks == 2 ? 3 : 6) && near(p.ranks[0].compute, p.seconds));
        assert_true(near(p.bubble, 0) && near(p.ranks[0].idle, 0));
        timing_span at = timing_op_at(&p, 0, 0);
        assert_true(near(at.begin, 0) && near(at.end, 3));
        timing_free(&p);
        program_free(&list);
        pool_free(&own);
    }
}

/* A transfer of 150 s takes a fifth of the multiprocessors: 120 s of a product's 200 are done beside it. */
TEST(what_computes_beside_a_transfer_is_slower_until_it_ends)
{
    profile p = unit_profile();
    pool own = {0};
    program list = {0};
    timing t;
    grid g = grid_with(1, 2, 1, 0);
    p.taken = 0.2;
    timing_open(&t, &p, 1);
    launch_gather(&own, &list, AXIS_GRADIENT, 150, 0);
    compute(&own, &list, 200, PHASE_FORWARD, none);
    wait_for(&own, &list, 0);
    compute(&own, &list, 200, PHASE_FORWARD, none);
    timing_add(&t, &g, &list, 1);
    assert_int_equal(timing_run(&t), STATUS_OK);
    assert_true(near(t.seconds, 150 + 80 + 200));
    timing_free(&t);
    program_free(&list);
    pool_free(&own);
}

TEST_MAIN(NULL, NULL)
