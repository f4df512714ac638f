/* Outer steps and compression: against float64 (tests/golden/islands/outer.py), and what encoding promises. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>
#include <jansson.h>

#include "engine/islands/compress.h"
#include "engine/islands/rule.h"
#include "engine/islands/units.h"
#include "memory/log.h"

enum { ISLANDS = 3, STEPS = 5, ELEMENTS = 300, KINDS = COMPRESS_KINDS };
static const double LIMIT = 1e-6; /* of a tensor's change, L2, relative */
static const char *const METHODS[KINDS] = {"none", "bf16", "int8", "int4", "topk"};

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
            rule_change(values, change, mutant == 1 ? zero : error[i], decay, ELEMENTS);
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
        while (strcmp(METHODS[kind], json_string_value(json_object_get(c, "method"))) != 0)
            kind++;
        bool average = !strcmp(json_string_value(json_object_get(c, "rule")), "average");
        const compress_method method = {(compress_kind)kind, number(root, "density")};
        const rule r = {average ? RULE_AVERAGE : RULE_NESTEROV, (float)number(c, "lr"), (float)number(c, "momentum")};
        play(&p, &method, &r, (float)number(c, "decay"), tokens, mutant);
        double error = error_of(&p, c);
        if (print)
            printf("%-9s %-5s error %.1e\n", average ? "average" : "nesterov", METHODS[kind], error);
        beyond += !(error <= LIMIT);
    }
    json_decref(root);
    return beyond;
}

static void every_method_is_its_formula_in_float64(void **state)
{
    (void)state;
    assert_int_equal(compare_all(0, true), 0);
}

static void a_slightly_different_outer_step_is_caught(void **state)
{
    (void)state;
    assert_int_equal(compare_all(1, false), 3 * (KINDS - 1)); /* no error feedback: all but fp32, which has none */
    assert_int_equal(compare_all(2, false), 3 * KINDS);       /* equal weights */
}

/* Sizes that are no multiple of blocks and chunks, values over many magnitudes. */
static void fill(float *x, int64_t n, uint64_t seed)
{
    for (int64_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        x[i] = ldexpf((float)(int32_t)(seed >> 32), -40 - (int)(seed >> 8 & 15));
    }
}

static void what_is_sent_and_what_is_kept_is_what_changed(void **state)
{
    (void)state;
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
                double most = kind == COMPRESS_TOPK ? ldexp(fabs((double)x[i]) + fabs((double)sent[i]), -24) : 0;
                assert_true(fabs(whole - (double)x[i]) <= most);
            }
        }
}

static void topk_sends_fifty_times_less_than_fp32(void **state)
{
    (void)state;
    const compress_method m = {COMPRESS_TOPK, 0.02};
    const int64_t n = 1 << 18;
    double ratio = 4.0 * (double)n / (double)compress_bytes(&m, n);
    printf("density 0.02: %.0f x\n", ratio);
    assert_true(ratio >= 50);
}

/* Whatever bytes come, decoding stays within its arrays and says whether they can be used. */
static void bytes_that_are_no_encoding_are_refused(void **state)
{
    (void)state;
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

static void units_cover_every_tensor_once_in_every_layout(void **state)
{
    (void)state;
    model_shape shape = {.architecture = SHAPE_LLAMA, .layers = 3, .hidden_size = 640, .heads = 4, .vocab_size = 5000};
    shape_fill(&shape);
    for (int fragments = 1; fragments <= 3; fragments++) {
        int tensors, count;
        names_tensor *list = names_list(&tensors, &shape);
        unit *units = units_list(&count, list, tensors, fragments);
        int *owner = must_alloc((unsigned long)count * sizeof *owner);
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
        free(owner);
        free(units);
        names_free(list, tensors);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_method_is_its_formula_in_float64),
        cmocka_unit_test(a_slightly_different_outer_step_is_caught),
        cmocka_unit_test(what_is_sent_and_what_is_kept_is_what_changed),
        cmocka_unit_test(topk_sends_fifty_times_less_than_fp32),
        cmocka_unit_test(bytes_that_are_no_encoding_are_refused),
        cmocka_unit_test(units_cover_every_tensor_once_in_every_layout),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
