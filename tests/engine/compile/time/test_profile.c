/* Profiles as files: what is no profile is refused; and prices grow with sizes. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/time/prices.h"
#include "kernels/attention.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static bool near(double a, double b)
{
    return fabs(a - b) <= 1e-8 * fabs(b);
}

TEST_WITH(a_file_that_is_no_profile_is_refused, workfolder_setup, workfolder_teardown)
{
    static const struct {
        const char *text, *said;
    } cases[] = {
        {"{\"half\": 1e12", "no profile"},
        {"[1]", "not an object"},
        {"{\"base\": \"h101\"}", "h101"},
        {"{\"half\": \"fast\"}", "half"},
        {"{\"memory\": 0}", "memory"},
        {"{\"latency\": -1}", "latency"},
        {"{\"node_ranks\": 0}", "node_ranks"},
        {"{\"capacity\": -5}", "capacity"},
        {"{\"cores\": -1}", "cores"},
        {"{\"tiles\": []}", "tiles"},
        {"{\"tiles\": [[128, 0, 0.5]]}", "tile 0"},
        {"{\"points\": [[\"linears\", \"bf16\", false, [1, 1, 1], 1, 1]]}", "point 0"},
        {"{\"points\": [[\"linear\", \"bf16\", false, [1, 1, 1], 0, 1]]}", "point 0"},
        {"{\"points\": [[\"linear\", \"bf16\", false, [1, -5, 1], 1, 1]]}", "point 0"},
        {"{\"processors\": -1}", "processors"},
        {"{\"half\": 1, \"half\": 2}", "duplicate"},
        {"{\"halff\": 1e12}", "did you mean half?"},
        {"{\"netwrok\": 1e9}", "did you mean network?"},
        {"{\"memory_share\": 7}", "memory_share is a share"},
        {"{\"attention\": 1.5}", "attention is a share"},
        {"{\"taken\": 1}", "taken is a share"},
        {"{\"tiles\": [[128, 128, 2]]}", "tile 0"},
        {"{\"points\": {}}", "points"},
        {"{\"attention_lengths\": 0.5}", "attention_lengths"},
        {"{\"attention_lengths\": [[1024, 0.5]]}", "attention_lengths 0"},
        {"{\"attention_lengths\": [[1024, 0.5, 1.5]]}", "attention_lengths 0"},
        {"{\"attention_lengths\": [[0, 0.5, 0.5]]}", "attention_lengths 0"},
        {"{\"attention_lengths\": [[2048, 0.5, 0.5], [2048, 0.6, 0.6]]}", "attention_lengths 1"},
        {"{\"attention_lengths\": [[1,1,1],[2,1,1],[3,1,1],[4,1,1],[5,1,1],[6,1,1],[7,1,1],[8,1,1],[9,1,1]]}",
         "at most 8"},
        {"{\"name\": 5}", "name"},
        {"{\"base\": 5}", "base"},
        {"{\"host_moves\": \"yes\"}", "host_moves"},
        {"{\"as_lowered\": 1}", "as_lowered"},
        {"{\"node_ranks\": 5000000000}", "node_ranks"},
        {"{\"oversubscription\": 0.5}", "oversubscription"},
    };
    AUTO_FREE char *path = workfolder_path(*state, "bad.json");
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        profile p;
        workfolder_write(path, cases[i].text, (int64_t)strlen(cases[i].text));
        assert_int_equal(profile_open(&p, path), STATUS_USAGE);
        workfolder_message_has(cases[i].said);
        workfolder_message_has("bad.json");
    }
    profile p;
    assert_int_equal(profile_open(&p, "h1000"), STATUS_USAGE);
    workfolder_message_has("a100, a100-2022, h100, h200, b200, cpu");
}

/* A network's file changes nothing of the device, a device's file only what it names; what earlier files say of NCCL's
 * blocks is read and not used. */
TEST_WITH(a_file_says_what_differs, workfolder_setup, workfolder_teardown)
{
    static const char text[] =
        "{\"base\": \"a100\", \"half\": 1e12, \"network\": 5e9, \"node_ranks\": 4, \"blocks\": 24}";
    AUTO_FREE char *path = workfolder_path(*state, "some.json");
    workfolder_write(path, text, sizeof text - 1);
    profile p;
    assert_int_equal(profile_open(&p, path), STATUS_OK);
    assert_true(near(p.peak[PEAK_HALF], 1e12) && near(p.memory, profile_named("a100").memory));
    profile_free(&p);
    p = profile_named("h100");
    assert_int_equal(profile_take_network(&p, path), STATUS_OK);
    assert_true(near(p.peak[PEAK_HALF], profile_named("h100").peak[PEAK_HALF]) && near(p.network, 5e9) &&
                p.node_ranks == 4);
}

/* Of a network's file, too, nothing is passed over: a misspelt bandwidth would be the device's own. */
TEST_WITH(a_network_that_is_none_is_refused, workfolder_setup, workfolder_teardown)
{
    static const char *const texts[] = {"{\"nod\": 1e9}", "{\"node\": 0}", "{\"oversubscription\": \"4:1\"}", "[]"};
    AUTO_FREE char *path = workfolder_path(*state, "network.json");
    for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
        profile p = profile_named("h100");
        workfolder_write(path, texts[i], (int64_t)strlen(texts[i]));
        assert_int_equal(profile_take_network(&p, path), STATUS_USAGE);
        workfolder_message_has("network.json");
    }
}

/* Numbers have their units behind them; one that was meant in another unit is refused, with what to write. */
TEST_WITH(units_are_read_and_absurd_numbers_refused, workfolder_setup, workfolder_teardown)
{
    static const struct {
        const char *text;
        double network, latency;
    } good[] = {{"{\"network\": \"25 GB/s\"}", 25e9, 0},
                {"{\"network\": \"25GB/s\"}", 25e9, 0},
                {"{\"network\": \"400 Gbit/s\"}", 50e9, 0},
                {"{\"network\": \"100 Gb/s\", \"oversubscription\": 2}", 6.25e9, 0},
                {"{\"network\": \"1.5 GiB/s\", \"network_latency\": \"5 us\"}", 1610612736.0, 5e-6},
                {"{\"network\": 45e9, \"network_latency\": \"0.01 ms\"}", 45e9, 1e-5}};
    static const struct {
        const char *text, *said;
    } bad[] = {
        {"{\"network\": 25}", "network is 25 bytes a second, which no machine has: say the unit, as in \"25 GB/s\""},
        {"{\"node\": 1e18}", "node is 1e+18 bytes a second"},
        {"{\"network\": \"25 GB\"}", "a text such as \"25 GB/s\""},
        {"{\"network\": \"GB/s\"}", "a text such as"},
        {"{\"network\": \"-25 GB/s\"}", "above zero"},
        {"{\"network\": \"nan GB/s\"}", "above zero"},
        {"{\"network_latency\": 5}", "network_latency is 5 seconds"},
        {"{\"network_latency\": \"5 m\"}", "\"5 us\""},
        {"{\"taken\": \"5 us\"}", "taken is no number"}};
    AUTO_FREE char *path = workfolder_path(*state, "network.json");
    for (unsigned i = 0; i < sizeof good / sizeof *good; i++) {
        profile p = profile_named("h100");
        workfolder_write(path, good[i].text, (int64_t)strlen(good[i].text));
        assert_int_equal(profile_take_network(&p, path), STATUS_OK);
        assert_true(near(p.network, good[i].network));
        assert_true(good[i].latency == 0 || near(p.network_latency, good[i].latency));
    }
    for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
        profile p = profile_named("h100");
        workfolder_write(path, bad[i].text, (int64_t)strlen(bad[i].text));
        assert_int_equal(profile_take_network(&p, path), STATUS_USAGE);
        workfolder_message_has(bad[i].said);
        assert_true(near(p.network, profile_named("h100").network));
    }
    static const char gpu[] = "{\"half\": \"989 TFLOP/s\", \"memory\": \"3.35 TB/s\", \"capacity\": \"80GiB\"}",
                      small[] = "{\"capacity\": 80}";
    profile p;
    workfolder_write(path, gpu, sizeof gpu - 1);
    assert_int_equal(profile_open(&p, path), STATUS_OK);
    assert_true(near(p.peak[PEAK_HALF], 989e12) && near(p.memory, 3.35e12) && p.capacity == (int64_t)80 << 30);
    profile_free(&p);
    workfolder_write(path, small, sizeof small - 1);
    assert_int_equal(profile_open(&p, path), STATUS_USAGE);
    workfolder_message_has("as in \"80GiB\"");
}

/* 4 nodes' worth of senders share what carries one: a quarter for each. */
TEST_WITH(an_oversubscribed_network_is_divided, workfolder_setup, workfolder_teardown)
{
    static const char text[] = "{\"network\": 40e9, \"oversubscription\": 4}";
    AUTO_FREE char *path = workfolder_path(*state, "network.json");
    profile p = profile_named("h100");
    workfolder_write(path, text, sizeof text - 1);
    assert_int_equal(profile_take_network(&p, path), STATUS_OK);
    assert_true(near(p.network, 10e9) && near(p.node, profile_named("h100").node));
}

/* ---- prices
 * -------------------------------------------------------------------------------------------------------- */

static double product(const profile *p, int64_t tokens, int64_t columns, int64_t depth)
{
    tensor x = {.type = DTYPE_BF16, .dims = 2, .shape = {tokens, depth, 1}, .pitch = depth};
    tensor w = {.type = DTYPE_BF16, .dims = 2, .shape = {columns, depth, 1}, .pitch = depth};
    tensor y = {.type = DTYPE_BF16, .dims = 2, .shape = {tokens, columns, 1}, .pitch = columns};
    op o = {.kind = OP_linear, .in = {&x, &w}, .out = {&y}, .label = "test"};
    return profile_op(p, &o);
}

/* 132 tiles of 128 x 256 are a wave; one more tile is another. */
TEST(a_wave_that_is_not_full_takes_as_long)
{
    const profile *p = (profile[]){profile_named("h100")};
    double whole = product(p, 128LL * 132, 256LL * 8, 8192), more = product(p, 128LL * 133, 256LL * 8, 8192);
    assert_true(whole >= 2.0 * 128 * 132 * 256 * 8 * 8192 / profile_products(p, DTYPE_BF16));
    assert_true(more > 1.03 * whole);
    assert_true(product(p, 64, 64, 64) < 1e-5 && product(p, 64, 64, 64) >= p->product_start);
}

static compile_options of_ranks(int ranks, int expert, int active, const devices_row *row)
{
    return (compile_options){.shape = {.hidden_size = 2048,
                                       .experts = 512,
                                       .experts_per_token = active,
                                       .expert_capacity = 1.25,
                                       .expert_spill = 2},
                             .precision = PRECISION_BF16,
                             .sequence = 4096,
                             .micro_batch = 1,
                             .grid = {.ranks = ranks, .size = {1, 1, ranks, 1}},
                             .layout.expert = expert,
                             .device = row};
}

/* ---- attention: 32 heads of 128, bf16 ---- */

enum { WIDTH = 32 * 128, MANY = 32768 };

typedef struct attending {
    tensor wide, lse;
    op o;
} attending;

/* `a` is filled in place: its op points into it. */
static const op *attend(attending *a, bool gradient, int sequence, int window)
{
    *a = (attending){.wide = {.type = DTYPE_BF16, .dims = 2, .shape = {MANY, WIDTH, 1}, .pitch = WIDTH},
                     .lse = {.type = DTYPE_FP32, .dims = 2, .shape = {32, MANY, 1}, .pitch = MANY}};
    tensor *x = &a->wide, *lse = &a->lse;
    const op_attributes at = {.heads = {32, 32, 128}, .attention = {.sequence = sequence, .window = window}};
    a->o = gradient ? (op){.kind = OP_attention_grad, .in = {x, x, x, x, x, lse}, .out = {x, x, x}, .at = at}
                    : (op){.kind = OP_attention, .in = {x, x, x}, .out = {x, lse}, .at = at};
    return &a->o;
}

/* The share of the peak that the price believes in. */
static double share_of(const profile *p, const op *o)
{
    return op_row_of(o)->cost(o).flops / (p->peak[PEAK_HALF] * (profile_op(p, o) - p->start));
}

TEST(attention_reaches_more_of_the_peak_at_longer_sequences)
{
    profile h = profile_named("h100"), a = profile_named("a100");
    h.memory = a.memory = 1e18; /* short sequences are a matter of bytes */
    h.any_order = true;
    static const struct {
        int sequence;
        double forward, gradient;
    } cases[] = {{256, 0.34, 0.25},  {1024, 0.34, 0.25}, {2048, 0.34 + 0.31 / 3, 0.35}, {4096, 0.34 + 0.62 / 3, 0.45},
                 {8192, 0.65, 0.55}, {MANY, 0.65, 0.55}};
    attending of;
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        assert_true(near(share_of(&h, attend(&of, false, cases[i].sequence, 0)), cases[i].forward));
        assert_true(near(share_of(&h, attend(&of, true, cases[i].sequence, 0)), cases[i].gradient));
        assert_true(near(share_of(&a, attend(&of, true, cases[i].sequence, 0)), a.attention_gradient));
    }
}

/* In one order the scores' gradients pass through memory, 4 bytes for each query and key. */
TEST(a_gradient_in_one_order_takes_longer)
{
    profile h = profile_named("h100");
    compile_options o = of_ranks(1, 1, 1, h.device);
    attending of;
    const op *gradient = attend(&of, true, 8192, 0);
    profile_plan_for(&o, &h);
    double ordered = profile_op(&h, gradient), forward = profile_op(&h, attend(&of, false, 8192, 0));
    o.any_order = true;
    profile_plan_for(&o, &h);
    double pairs = 32.0 * MANY * 8193 / 2, any = profile_op(&h, attend(&of, true, 8192, 0));
    assert_true(near(ordered - any, 4 * pairs / (h.memory * h.memory_share)));
    assert_true(near(profile_op(&h, attend(&of, false, 8192, 0)), forward));
}

/* Queries that see 2,048 keys and those of a whole sample of 4,096, which see as many in the mean. */
TEST(a_window_counts_by_the_keys_that_are_seen)
{
    const profile h = profile_named("h100");
    attending windowed, whole;
    const op *narrow = attend(&windowed, false, MANY, 2048), *all = attend(&whole, false, 4096, 0);
    assert_true(attention_reach(all) == 4096);
    assert_true(attention_reach(narrow) > 3900 && attention_reach(narrow) < 4096);
    assert_true(fabs(share_of(&h, narrow) / share_of(&h, all) - 1) < 0.01);
    assert_true(share_of(&h, narrow) < 0.85 * share_of(&h, attend(&whole, false, MANY, 0)));
}

/* Measured in any order, the best at each length counts; the price is then what was measured. */
TEST(measured_rates_are_the_prices_between_them)
{
    profile p = profile_named("cpu");
    attending of;
    p.peak[PEAK_HALF] = 4e15;
    p.memory = 1e18;
    for (int i = 0; i < 4; i++) { /* 4096, 1024, 2048; and 1024 again, slower */
        int sequence = (const int[]){4096, 1024, 2048, 1024}[i];
        for (int gradient = 0; gradient <= 1; gradient++)
            profile_take_attention(&p, attend(&of, gradient, sequence, 0), (i == 3 ? 0.1 : 0.02) * (1 + gradient));
    }
    assert_int_equal(p.lengths, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(near(p.length[i].sequence, 1024 << i));
        assert_true(near(profile_op(&p, attend(&of, false, 1024 << i, 0)), 0.02));
        assert_true(near(profile_op(&p, attend(&of, true, 1024 << i, 0)), 0.04));
    }
    double between = share_of(&p, attend(&of, false, 1536, 0));
    assert_true(between > p.length[0].forward && between < p.length[1].forward);
    for (int sequence = 4; sequence <= 512; sequence *= 2)
        profile_take_attention(&p, attend(&of, false, sequence, 0), 1e-9); /* faster than any peak */
    assert_int_equal(p.lengths, PROFILE_LENGTHS);
    assert_true(near(p.length[0].forward, 1) && near(p.length[7].sequence, 4096));
}

/* A profile that was saved before lengths were known says one share of all. */
TEST_WITH(a_share_without_lengths_is_of_all, workfolder_setup, workfolder_teardown)
{
    static const char old[] = "{\"name\": \"mine\", \"attention\": 0.5, \"attention_gradient\": 0.4}",
                      based[] = "{\"base\": \"h100\", \"half\": 9e14}",
                      own[] = "{\"attention\": 0.5, \"attention_lengths\": [[512, 0.2, 0.1]]}";
    AUTO_FREE char *path = workfolder_path(*state, "lengths.json");
    attending of;
    profile p;
    workfolder_write(path, old, sizeof old - 1);
    assert_int_equal(profile_open(&p, path), STATUS_OK);
    assert_true(near(share_of(&p, attend(&of, false, 1024, 0)), 0.5));
    assert_true(near(share_of(&p, attend(&of, true, 8192, 0)), 0.4));
    profile_free(&p);
    workfolder_write(path, based, sizeof based - 1);
    assert_int_equal(profile_open(&p, path), STATUS_OK);
    assert_true(near(share_of(&p, attend(&of, false, 8192, 0)), 0.65));
    profile_free(&p);
    workfolder_write(path, own, sizeof own - 1);
    assert_int_equal(profile_open(&p, path), STATUS_OK);
    assert_true(near(share_of(&p, attend(&of, true, 8192, 0)), 0.1));
    profile_free(&p);
}

/* At a measured size the measured time; between two, something between their speeds. */
TEST(what_was_measured_is_the_price)
{
    profile p = profile_named("cpu");
    double slow = product(&p, 256, 256, 256), fast = product(&p, 4096, 4096, 4096),
           middle = product(&p, 1024, 1024, 1024);
    profile_point points[] = {{OP_linear, DTYPE_BF16, false, {256, 256, 256}, 3 * slow, slow, 0},
                              {OP_linear, DTYPE_BF16, false, {4096, 4096, 4096}, 0.5 * fast, fast, 0}};
    p.points = points;
    p.count = 2;
    assert_true(fabs(product(&p, 256, 256, 256) / slow - 3) < 0.01);
    assert_true(fabs(product(&p, 4096, 4096, 4096) / fast - 0.5) < 0.01);
    double share = product(&p, 1024, 1024, 1024) / middle;
    assert_true(share > 0.6 && share < 2.9);
}

/* Of a host with two cores a rank of one thread has half, unless it was measured otherwise. */
TEST(a_rank_has_its_share_of_the_cores)
{
    profile p = profile_named("cpu"), one = p;
    one.threads = 1;
    double both = product(&p, 512, 512, 512);
    assert_true(near(product(&one, 512, 512, 512), 2 * both));
    profile_point points[] = {{OP_linear, DTYPE_BF16, false, {512, 512, 512}, 3 * both, both, 0},
                              {OP_linear, DTYPE_BF16, false, {512, 512, 512}, 5 * both, 2 * both, 1}};
    p.points = one.points = points;
    p.count = one.count = 2;
    assert_true(fabs(product(&p, 512, 512, 512) / both - 3) < 0.01);
    assert_true(fabs(product(&one, 512, 512, 512) / both - 5) < 0.01);
}

/* Ranks of a node have ports for all of what is gathered; rows for one rank pass this rank's port. So few ranks gather,
 * and slots are for blocks of many times as many ranks as a token has experts. */
TEST(tokens_travel_in_slots_where_that_is_faster)
{
    const profile p = profile_named("h100");
    static const struct {
        int expert, active;
        bool slots;
    } cases[] = {{8, 8, false}, {16, 8, false}, {32, 8, false}, {256, 8, true},
                 {8, 1, true},  {64, 1, true},  {2, 2, false},  {1, 1, false}};
    for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
        compile_options o = of_ranks(512, cases[i].expert, cases[i].active, p.device);
        for (int rank = 0; rank < 512; rank += 101) {
            o.grid.rank = rank;
            o.grid.at[GRID_DATA] = rank;
            transfer_choose(&o, NULL);
            assert_int_equal(o.transfers.slots, cases[i].slots); /* whoever asks */
        }
        o.shape.expert_drop = true; /* what is dropped hangs on no price */
        for (int how = CONFIG_DISPATCH_AUTO; how <= CONFIG_DISPATCH_SLOTS; how++) {
            o.layout.expert_dispatch = how;
            transfer_choose(&o, NULL);
            assert_int_equal(o.transfers.slots, how == CONFIG_DISPATCH_SLOTS && cases[i].expert > 1);
        }
    }
}

/* Of 16 ranks on two nodes eight ports share what is gathered, and each rank's takes what it has for eight others. */
TEST(an_exchange_between_nodes_waits_for_a_ranks_own_port)
{
    profile p = profile_named("h100");
    compile_options o = of_ranks(16, 16, 8, p.device);
    o.grid.block[AXIS_EXPERT] = 16;
    p.hop = p.network_latency = 0;
    double bytes = 15e9, port = 8e9 / p.network;
    assert_true(near(profile_collective(&p, &o.grid, AXIS_EXPERT, OP_all_to_all, bytes), port));
    assert_true(near(profile_collective(&p, &o.grid, AXIS_EXPERT, OP_all_gather, bytes), bytes / (8 * p.network)));
    o.grid.block[AXIS_EXPERT] = 8;
    p.latency = 0;
    assert_true(near(profile_collective(&p, &o.grid, AXIS_EXPERT, OP_all_to_all, bytes), bytes / p.node));
}

TEST_WITH(what_is_saved_is_what_is_read, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *path = workfolder_path(*state, "saved.json");
    profile p = profile_named("cpu"), again;
    profile_point points[] = {{OP_linear, DTYPE_BF16, true, {512, 256, 128}, 2e-3, 1e-3, 1},
                              profile_point_of_transfer(&p, OP_all_reduce, 4096, 2, 3e-5)};
    p.points = points;
    p.count = 2;
    p.latency = 12.5e-6;
    p.length[0] = (profile_length){256, 0.2, 0.125};
    p.length[1] = (profile_length){4096, 0.75, 0.5};
    p.lengths = 2;
    assert_int_equal(profile_save(path, &p), STATUS_OK);
    assert_int_equal(profile_open(&again, path), STATUS_OK);
    assert_int_equal(again.count, 2);
    assert_int_equal(again.lengths, 2);
    assert_true(near(again.length[0].gradient, 0.125) && near(again.length[1].sequence, 4096) &&
                near(again.length[1].forward, 0.75));
    assert_true(again.cores == p.cores && again.node_ranks == p.node_ranks && again.host_moves == p.host_moves);
    assert_true(near(again.latency, p.latency) && near(again.peak[PEAK_HALF], p.peak[PEAK_HALF]) &&
                near(again.bus, p.bus));
    for (int i = 0; i < 2; i++) {
        const profile_point *x = &points[i], *y = &again.points[i];
        assert_true(x->kind == y->kind && x->type == y->type && x->adds == y->adds && x->threads == y->threads);
        assert_true(near(x->seconds, y->seconds) && near(x->model, y->model) && near(x->size[0], y->size[0]));
    }
    profile_free(&again);
    assert_int_equal(profile_save(path, (profile[]){profile_named("a100-2022")}), STATUS_OK);
    assert_int_equal(profile_open(&again, path), STATUS_OK);
    assert_true(again.as_lowered && again.attention <= 0 && again.processors == 108);
    profile_free(&again);
}

TEST_MAIN(NULL, NULL)
