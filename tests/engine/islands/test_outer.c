/* Outer steps and compression: against float64 (tests/golden/islands/outer.py), and what encoding promises. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/islands/merge/outer_internal.h"
#include "engine/islands/merge/rule.h"
#include "engine/islands/merge/units.h"
#include "kernels/compress.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/test.h"

enum { ISLANDS = 3, STEPS = 5, ELEMENTS = 300, KINDS = COMPRESS_KINDS };
static const double LIMIT = 1e-6; /* of a tensor's change, L2, relative */

static void draw(float *out, int island, int step)
{
    uint64_t state = (uint64_t)(island * 1000 + step * 10 + 7);
    for (int i = 0; i < ELEMENTS; i++) {
        state = state * 6364136223846793005u + 1442695040888963407u;
        double x = (double)(state >> 40) / 16777216.0 - 0.5;
        out[i] = (float)(x * x * x);
    }
}

typedef struct played {
    float reference[STEPS + 1][ELEMENTS];
} played;

/* `mutant`: a small mistake, to see that it is noticed; 0: none */
static void play(played *out, const compress_method *method, const rule *r, float decay, const double *tokens,
                 int mutant)
{
    float momentum[ELEMENTS] = {0}, error[ISLANDS][ELEMENTS] = {{0}}, zero[ELEMENTS] = {0};
    double all = tokens[0] + tokens[1] + tokens[2];
    memset(out, 0, sizeof *out);
    for (int step = 0; step < STEPS; step++) {
        float mean[ELEMENTS] = {0};
        for (int i = 0; i < ISLANDS; i++) {
            float change[ELEMENTS], values[ELEMENTS], sent[ELEMENTS];
            uint8_t coded[8 * ELEMENTS];
            draw(change, i, step);
            memcpy(values, zero, sizeof zero);
            rule_change(values, change, mutant == 1 ? zero : error[i], decay, 1, ELEMENTS);
            compress_encode(coded, values, method, ELEMENTS);
            memcpy(error[i], values, sizeof values);
            assert_true(compress_decode(sent, coded, method, ELEMENTS));
            rule_add(mean, sent, (float)(mutant == 2 ? 1.0 / ISLANDS : tokens[i] / all), ELEMENTS);
        }
        memcpy(out->reference[step + 1], out->reference[step], sizeof zero);
        rule_step(out->reference[step + 1], momentum, mean, r, ELEMENTS);
    }
}

/* |x - golden| / |change of the step|, over the last step */
static double error_of(const played *p, const json_t *c)
{
    const json_t *after = json_object_get(c, "after");
    double difference = 0, change = 0;
    for (size_t i = 0; i < ELEMENTS; i++) {
        double before = json_number_value(json_array_get(json_array_get(after, 0), i));
        double want = json_number_value(json_array_get(json_array_get(after, 1), i));
        difference += pow((double)p->reference[STEPS][i] - want, 2);
        change += pow(want - before, 2);
    }
    return sqrt(difference / change);
}

static double number(const json_t *c, const char *key)
{
    return json_number_value(json_object_get(c, key));
}

/* The worst error over all cases, and how many are beyond the limit. */
static int compare_all(int mutant, bool print)
{
    json_t *root = json_load_file("tests/golden/islands/outer.json", 0, NULL), *c;
    size_t k;
    int beyond = 0;
    double tokens[ISLANDS];
    assert_non_null(root);
    for (size_t i = 0; i < ISLANDS; i++)
        tokens[i] = json_number_value(json_array_get(json_object_get(root, "tokens"), i));
    assert_int_equal(json_array_size(json_object_get(root, "cases")), 3 * KINDS);
    json_array_foreach(json_object_get(root, "cases"), k, c)
    {
        played p;
        int kind = 0;
        while (strcmp(compress_words[kind], json_string_value(json_object_get(c, "method"))) != 0)
            kind++;
        bool average = !strcmp(json_string_value(json_object_get(c, "rule")), "average");
        const compress_method method = {(compress_kind)kind, number(root, "density")};
        const rule r = {average ? RULE_AVERAGE : RULE_NESTEROV, (float)number(c, "lr"), (float)number(c, "momentum")};
        play(&p, &method, &r, (float)number(c, "decay"), tokens, mutant);
        double error = error_of(&p, c);
        if (print)
            printf("%-9s %-5s error %.1e\n", average ? "average" : "nesterov", compress_words[kind], error);
        beyond += !(error <= LIMIT);
    }
    json_decref(root);
    return beyond;
}

TEST(every_method_is_its_formula_in_float64)
{
    assert_int_equal(compare_all(0, true), 0);
}

TEST(a_slightly_different_outer_step_is_caught)
{
    assert_int_equal(compare_all(1, false), 3 * (KINDS - 1)); /* no error feedback: all but fp32, which has none */
    assert_int_equal(compare_all(2, false), 3 * KINDS);       /* equal weights */
}

/* NoLoCo, four islands, each with a reference of its own. `mutant`: the mean of the changes alone, without the distance
 * to the others' references. The worst error, relative to the change of the last step. */
static double play_gossip(const json_t *c, bool mutant)
{
    enum { MANY = 4 };
    static const uint64_t groups[STEPS][MANY] = {
        {3, 3, 12, 12}, {5, 10, 5, 10}, {9, 6, 6, 9}, {7, 7, 7, 8}, {3, 3, 12, 12}};
    static float reference[MANY][ELEMENTS], momentum[MANY][ELEMENTS], weights[MANY][ELEMENTS], change[ELEMENTS];
    const rule r = {RULE_NESTEROV, (float)number(c, "lr"), (float)number(c, "momentum")};
    memset(momentum, 0, sizeof momentum);
    for (int i = 0; i < MANY; i++)
        draw(reference[i], i, 9);
    for (int step = 0; step < STEPS; step++) {
        for (int i = 0; i < MANY; i++) {
            draw(change, i, step);
            for (int e = 0; e < ELEMENTS; e++)
                weights[i][e] = reference[i][e] - change[e];
        }
        for (int i = 0; i < MANY; i++) {
            float mean[ELEMENTS] = {0};
            for (int k = 0; k < MANY; k++)
                if (groups[step][i] >> k & 1)
                    rule_add(mean, weights[k], 1 / (float)__builtin_popcountll(groups[step][i]), ELEMENTS);
            for (int e = 0; e < ELEMENTS && mutant; e++)
                mean[e] = weights[i][e];
            rule_gossip(reference[i], momentum[i], mean, &r, ELEMENTS);
        }
    }
    double worst = 0;
    for (size_t i = 0; i < MANY; i++) {
        double difference = 0, moved = 0;
        for (size_t e = 0; e < ELEMENTS; e++) {
            double want = json_number_value(json_array_get(json_array_get(json_object_get(c, "after"), i), e));
            double old = json_number_value(json_array_get(json_array_get(json_object_get(c, "before"), i), e));
            difference += pow((double)reference[i][e] - want, 2);
            moved += pow(want - old, 2);
        }
        worst = fmax(worst, sqrt(difference / moved));
    }
    return worst;
}

TEST(gossip_is_its_formula_in_float64)
{
    json_t *root = json_load_file("tests/golden/islands/outer.json", 0, NULL), *c;
    size_t k;
    assert_int_equal(json_array_size(json_object_get(root, "gossip")), 2);
    json_array_foreach(json_object_get(root, "gossip"), k, c)
    {
        double error = play_gossip(c, false);
        printf("gossip, momentum %.1f: error %.1e\n", number(c, "momentum"), error);
        assert_true(error <= LIMIT);
        assert_true(play_gossip(c, true) > 100 * LIMIT);
    }
    json_decref(root);
}

/* Changes one by one, as a server merges them. `mutant`: no change is older than another. */
static double play_server(const json_t *c, const double *tokens, bool mutant)
{
    static const int pushes[][2] = {{0, 0}, {1, 0}, {2, 0}, {0, 1}, {1, 2}, {1, 5}, {2, 3}, {0, 4}};
    enum { PUSHES = sizeof pushes / sizeof *pushes };
    static played p;
    float momentum[ELEMENTS] = {0}, change[ELEMENTS];
    int64_t last[ISLANDS] = {0};
    bool average = !strcmp(json_string_value(json_object_get(c, "rule")), "average");
    bool equal = !strcmp(json_string_value(json_object_get(c, "weights")), "equal");
    const rule r = {average ? RULE_AVERAGE : RULE_NESTEROV, (float)number(c, "lr"), (float)number(c, "momentum")};
    memset(&p, 0, sizeof p);
    for (int merge = 0; merge < PUSHES; merge++) {
        int64_t all = 0, age = mutant ? 0 : merge - pushes[merge][1];
        int island = pushes[merge][0], there = 0;
        last[island] = (int64_t)tokens[island] + 512 * merge;
        for (int i = 0; i < ISLANDS; i++) {
            all += last[i];
            there += last[i] > 0;
        }
        draw(change, island, merge);
        rule_scale(change, (float)(equal ? rule_share(age, 1, 1, 1) : rule_share(age, last[island], all, there)),
                   ELEMENTS);
        rule_step(p.reference[STEPS], momentum, change, &r, ELEMENTS);
    }
    return error_of(&p, c);
}

TEST(a_server_is_its_formula_in_float64)
{
    json_t *root = json_load_file("tests/golden/islands/outer.json", 0, NULL), *c;
    double tokens[ISLANDS];
    size_t k;
    for (size_t i = 0; i < ISLANDS; i++)
        tokens[i] = json_number_value(json_array_get(json_object_get(root, "tokens"), i));
    assert_int_equal(json_array_size(json_object_get(root, "server")), 4);
    json_array_foreach(json_object_get(root, "server"), k, c)
    {
        double error = play_server(c, tokens, false);
        printf("server, case %zu: error %.1e\n", k, error);
        assert_true(error <= LIMIT);
        assert_true(play_server(c, tokens, true) > 100 * LIMIT);
    }
    json_decref(root);
}

/* outer.group: every island is in one group, all of a group draw the same, and over time everybody meets everybody. */
TEST(groups_divide_whoever_is_there)
{
    enum { MOST = 9, DRAWS = 200 };
    for (int count = 1; count <= MOST; count++)
        for (int size = 2; size <= 4; size++) {
            uint64_t among = ((1ull << count) - 1) << 2, met[MOST + 2] = {0};
            for (int64_t number = 0; number < DRAWS; number++)
                for (int s = 2; s < count + 2; s++) {
                    uint64_t group = rule_group(among, s, size, 5, number * 64);
                    int members = __builtin_popcountll(group);
                    assert_true(group >> s & 1 && (group & ~among) == 0);
                    assert_true(members <= size + 1 && (members > 1 || count == 1));
                    for (int other = 2; other < count + 2; other++)
                        if (group >> other & 1)
                            assert_true(rule_group(among, other, size, 5, number * 64) == group);
                    met[s] |= group;
                }
            for (int s = 2; s < count + 2; s++)
                assert_true(met[s] == among);
        }
}

/* The closed form is the minimum over the orders; the noise is normal, of the deviation asked for, and never the
 * same. */
TEST(privacy_is_what_it_says)
{
    enum { N = 200000 };
    static const struct {
        int64_t releases;
        double noise, delta;
    } cases[] = {{1, 1, 1e-5}, {100, 4, 1e-6}, {3000, 30, 1e-5}};
    static float x[N], y[N];
    for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
        double least = INFINITY, z = cases[k].noise, said = privacy_epsilon(cases[k].releases, z, cases[k].delta);
        for (double a = 1.0001; a < 1000; a += 1e-3)
            least = fmin(least, (double)cases[k].releases * a / (2 * z * z) + log(1 / cases[k].delta) / (a - 1));
        assert_true(fabs(said - least) < 1e-3 * least);
    }
    double sum = 0, squares = 0, products = 0, fourth = 0;
    privacy_add_noise(x, 3, N);
    privacy_add_noise(y, 3, N);
    for (int i = 0; i < N; i++) {
        double a = (double)x[i] / 3, b = (double)y[i] / 3;
        sum += a;
        squares += a * a;
        fourth += a * a * a * a;
        products += a * b;
    }
    double many = 8 * sqrt(N); /* deviations of such sums: once in 10^15 */
    assert_true(fabs(sum) < many && fabs(products) < many);
    assert_true(fabs(squares - N) < many * sqrt(2) && fabs(fourth - 3.0 * N) < many * sqrt(96));
}

/* Sizes that are no multiple of blocks and chunks, values over many magnitudes. */
static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = ldexpf((float)(int32_t)(seed >> 32), -40 - (int)(seed >> 8 & 15));
    }
}

TEST(what_is_sent_and_what_is_kept_is_what_changed)
{
    static const int64_t sizes[] = {1, 2, 63, 64, 65, 255, 257, 4095, 4096, 4097, 10000};
    static float x[10000], kept[10000], sent[10000];
    static uint8_t coded[40000 + 64];
    for (int kind = 0; kind < KINDS; kind++)
        for (size_t s = 0; s < sizeof sizes / sizeof *sizes; s++) {
            const compress_method m = {(compress_kind)kind, 0.02};
            int64_t n = sizes[s], bytes = compress_bytes(&m, n);
            fill(x, n, (uint64_t)n);
            memcpy(kept, x, sizeof x);
            memset(coded, 0xA5, sizeof coded);
            compress_encode(coded, kept, &m, n);
            for (int i = 0; i < 64; i++) /* not a byte beyond */
                assert_int_equal(coded[bytes + i], 0xA5);
            assert_true(compress_decode(sent, coded, &m, n));
            for (int64_t i = 0; i < n; i++) {
                double whole = (double)sent[i] + (double)kept[i];
                double most = kind >= COMPRESS_TOPK ? ldexp(fabs((double)x[i]) + fabs((double)sent[i]), -24) : 0;
                assert_true(fabs(whole - (double)x[i]) <= most);
            }
        }
}

/* Whoever encodes a chunk at a time gets the bytes of the whole. */
TEST(an_encoding_is_its_chunks_one_after_another)
{
    enum { N = 2 * COMPRESS_CHUNK + 100 };
    static float x[N], y[N];
    static uint8_t whole[4 * N], parts[4 * N];
    for (int kind = 0; kind < KINDS; kind++) {
        const compress_method m = {(compress_kind)kind, 0.05};
        int64_t at = 0;
        fill(x, N, 3);
        memcpy(y, x, sizeof x);
        compress_encode(whole, x, &m, N);
        for (int64_t first = 0; first < N; first += COMPRESS_CHUNK) {
            int64_t n = N - first < COMPRESS_CHUNK ? N - first : COMPRESS_CHUNK;
            compress_encode(parts + at, y + first, &m, n);
            at += compress_bytes(&m, n);
        }
        assert_int_equal(at, compress_bytes(&m, N));
        assert_memory_equal(whole, parts, at);
        assert_memory_equal(x, y, sizeof x);
    }
}

TEST(topk_sends_fifty_times_less_than_fp32)
{
    const compress_method m = {COMPRESS_TOPK, 0.02};
    const int64_t n = 1 << 18;
    double ratio = 4.0 * (double)n / (double)compress_bytes(&m, n);
    printf("density 0.02: %.0f x\n", ratio);
    assert_true(ratio >= 50);
}

/* Whatever bytes come, decoding stays within its arrays and says whether they can be used. */
TEST(bytes_that_are_no_encoding_are_refused)
{
    enum { N = 5000 };
    static float x[N + 1];
    static uint8_t coded[4 * N + 64];
    int refused = 0;
    for (int kind = 0; kind < KINDS; kind++) {
        const compress_method m = {(compress_kind)kind, 0.02};
        memset(coded, 0xFF, sizeof coded); /* NaN as fp32, bf16 and as scales; places out of order */
        x[N] = 77;
        refused += !compress_decode(x, coded, &m, N);
        assert_true(x[N] == 77);
    }
    assert_int_equal(refused, KINDS);
}

TEST(units_cover_every_tensor_once_in_every_layout)
{
    model_shape shape = {.architecture = SHAPE_LLAMA, .layers = 3, .hidden_size = 640, .heads = 4, .vocab_size = 5000};
    shape_fill(&shape);
    for (int fragments = 1; fragments <= 3; fragments++) {
        int tensors, count;
        names_tensor *list = names_list(&tensors, &shape);
        AUTO_FREE unit *units = units_list(&count, list, tensors, fragments);
        AUTO_FREE int *owner = must_alloc((unsigned long)count * sizeof *owner);
        int64_t rows = 0;
        for (int i = 0, at = 0; i < tensors; i++, rows = 0) {
            for (; at < count && units[at].tensor == i; at++) {
                assert_int_equal(units[at].first, rows);
                rows += units[at].rows;
                assert_true(units[at].elements <= UNITS_ELEMENTS && units[at].fragment < fragments);
            }
            assert_int_equal(rows, list[i].shape[0]);
        }
        for (int ranks = 1; ranks <= 5; ranks++) {
            int64_t held[5][3] = {{0}}, all[3] = {0};
            units_own(owner, units, count, fragments, ranks);
            for (int i = 0; i < count; i++) {
                assert_true(owner[i] >= 0 && owner[i] < ranks);
                held[owner[i]][units[i].fragment] += units[i].elements;
                all[units[i].fragment] += units[i].elements;
            }
            for (int r = 0; r < ranks; r++)
                for (int f = 0; f < fragments; f++)
                    assert_true(held[r][f] <= all[f] / ranks + UNITS_ELEMENTS);
        }
        names_free(list, tensors);
    }
}

/* ---- what is usual ----------------------------------------------------------------------------------------------- */

/* One island, or one key in several slots, that has many small changes merged makes no honest one too large. */
TEST(an_island_counts_once_however_much_it_sends)
{
    norms n = {0};
    assert_true(norms_usual(&n, 0, -1) == 0);
    for (int i = 0; i < 100; i++)
        norms_note(&n, 0, "hostile", 1e-9);
    assert_true(norms_usual(&n, 0, -1) == 1e-9 && norms_usual(&n, 1, -1) == 0); /* it is usual for itself alone, */
    assert_true(norms_usual(&n, 1, 1) == 0 && norms_usual(&n, 1, 0) == 1e-9);   /* or for itself as the judge */
    norms_note(&n, 1, "a", 1.0);
    assert_true(norms_usual(&n, 0, -1) == 1.0 && norms_usual(&n, 1, -1) == 1.0 && norms_usual(&n, 2, -1) == 1.0);
    norms_note(&n, 2, "b", 0.5);
    for (int i = 0; i < 100; i++)
        norms_note(&n, 0, "hostile", 1e-9 * i);
    assert_true(norms_usual(&n, 3, -1) == 0.5);
    for (int s = 3; s < ROSTER_SLOTS; s++) /* comes and goes, under other names */
        norms_note(&n, s, "hostile", 1e-9);
    assert_true(norms_usual(&n, 1, -1) == 0.5);
    norms_note(&n, 0, "hostile", 3e38);
    assert_true(norms_usual(&n, 1, -1) == 0.5);
    norms_note(&n, 1, "a", 0.75); /* the latest of each replaces its former one */
    norms_note(&n, 2, "b", 0.625);
    assert_true(norms_usual(&n, 1, -1) == 0.625);
}

/* Islands that share one key are told apart by their slots. */
TEST(islands_of_one_key_count_by_slot)
{
    norms n = {0};
    norms_note(&n, 5, "all", 2.0);
    assert_true(norms_usual(&n, 5, -1) == 2.0 && norms_usual(&n, 0, -1) == 0);
    norms_note(&n, 0, "all", 1e-9);
    assert_true(norms_usual(&n, 0, -1) == 2.0 && norms_usual(&n, 7, -1) == 2.0);
    norms_note(&n, 63, "all", 3.0);
    assert_true(norms_usual(&n, 0, -1) == 2.0);
    norms_note(&n, 1, "all", 4.0);
    assert_true(norms_usual(&n, 0, -1) == 2.5);
}

TEST_MAIN(NULL, NULL)
