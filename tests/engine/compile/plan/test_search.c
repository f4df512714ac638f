/* The search's answer against every layout of a small space, compiled and played. */
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/compile/plan/search.h"
#include "engine/compile/plan/search_estimate.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

enum { RANKS = 4 };

static const char *const text =
    "model: {architecture: llama, layers: 4, hidden_size: 4096, heads: 2, kv_heads: 2, "
    "head_size: 128, ffn_size: 14336, vocab_size: 32000, max_sequence: 4096}\n"
    "data: {train: none}\n"
    "train: {steps: 10, sequence: 4096, micro_batch: 1, global_batch: 4, precision: bf16}\n";

static config small(void)
{
    config c;
    if (config_parse(&c, "small", text, strlen(text), 0, NULL) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

static config narrow(int hidden_size)
{
    config c;
    char text_of[512];
    snprintf(text_of, sizeof text_of,
             "model: {architecture: llama, layers: 4, hidden_size: %d, heads: 16, kv_heads: 16, "
             "head_size: 128, ffn_size: %d, vocab_size: 32000, max_sequence: 4096}\n"
             "data: {train: none}\n"
             "train: {steps: 10, sequence: 4096, micro_batch: 1, global_batch: 4, precision: bf16}\n",
             hidden_size, hidden_size / 2 * 7);
    if (config_parse(&c, "narrow", text_of, strlen(text_of), 0, NULL) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

static config routed(void)
{
    static const char text_of[] =
        "model: {architecture: mixtral, layers: 4, hidden_size: 2048, heads: 16, kv_heads: 4, head_size: 128, "
        "experts: 8, experts_per_token: 2, expert_ffn_size: 4096, vocab_size: 32000, max_sequence: 4096}\n"
        "data: {train: none}\n"
        "train: {steps: 10, sequence: 4096, micro_batch: 1, global_batch: 4, precision: bf16}\n";
    config c;
    if (config_parse(&c, "routed", text_of, strlen(text_of), 0, NULL) != STATUS_OK)
        fail_msg("%s", status_message());
    return c;
}

/* An H100's, with links so many times slower: what is found is found for them. */
static profile slow_links(config *c, const char *top, double times)
{
    profile p;
    char *file = workfolder_path(top, "slow.json");
    AUTO_FREE char *slow = must_format("{\"base\": \"h100\", \"node\": %.17g, \"network\": %.17g}",
                                       profile_named("h100").node / times, profile_named("h100").network / times);
    workfolder_write(file, slow, (int64_t)strlen(slow));
    assert_int_equal(profile_open(&p, file), STATUS_OK);
    free(c->parallel.schedule_for);
    c->parallel.schedule_for = file;
    return p;
}

static const profile *h100(void)
{
    static profile p;
    p = profile_named("h100");
    return &p;
}

static search_terms terms_of(const config *c, double gib)
{
    return (search_terms){
        .config = c, .ranks = RANKS, .prices = h100(), .memory = (int64_t)(gib * 1073741824.0), .most = 20};
}

typedef struct every {
    int count, fit;
    double best;           /* seconds, of those that fit */
    double named;          /* likewise, of those whose schedule has a name */
    int64_t least, median; /* bytes */
} every;

static int by_bytes(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Every layout, exactly. */
static every exhaustive(const search_terms *t)
{
    search_layout *all;
    every e = {.count = search_all(&all, t), .best = 1e300, .named = 1e300};
    int64_t *bytes = calloc((size_t)e.count, sizeof *bytes);
    search_result *results = calloc((size_t)e.count, sizeof *results);
    assert_true(bytes && results);
#pragma omp parallel for schedule(dynamic, 1)
    for (int i = 0; i < e.count; i++)
        bytes[i] =
            search_exact(&results[i], t, &all[i]) == STATUS_OK ? results[i].arena + results[i].beside : INT64_MAX;
    for (int i = 0; i < e.count; i++) {
        const search_result *r = &results[i];
        if (bytes[i] == INT64_MAX || !r->fits)
            continue;
        e.fit++;
        e.best = r->seconds < e.best ? r->seconds : e.best;
        if (all[i].of.schedule != SCHEDULE_AUTO)
            e.named = r->seconds < e.named ? r->seconds : e.named;
    }
    qsort(bytes, (size_t)e.count, sizeof *bytes, by_bytes);
    e.median = bytes[e.count / 2];
    e.least = bytes[0];
    free(results);
    free(bytes);
    free(all);
    return e;
}

static search run(const search_terms *t)
{
    search s;
    if (search_run(&s, t) != STATUS_OK)
        fail_msg("%s", status_message());
    return s;
}

/* In all the memory, and in what half of the layouts need more than. */
TEST(no_layout_is_faster_than_the_answer_by_a_hundredth)
{
    config c = small();
    search_terms t = terms_of(&c, 79);
    for (int tight = 0; tight < 2; tight++) {
        every e = exhaustive(&t);
        search s = run(&t);
        assert_true(e.count >= 300 && s.layouts == e.count);
        assert_true(s.count > 0 && s.exact <= t.most);
        assert_true(tight ? e.fit < e.count : e.fit == e.count);
        print_message("%d layouts, %d fit, the fastest takes %.5f s, the answer %.5f, of %d played\n", e.count, e.fit,
                      e.best, s.results[0].seconds, s.exact);
        assert_true(s.results[0].seconds <= 1.01 * e.best);
        for (int i = 0; i < s.count; i++) {
            assert_true(s.results[i].arena + s.results[i].beside <= t.memory);
            assert_true(i == 0 || s.results[i].seconds >= s.results[i - 1].seconds);
        }
        t.memory = e.median;
        search_free(&s);
    }
    config_free(&c);
}

/* In all the memory, and in hardly more than the layout needs that needs least. */
TEST(experts_are_divided_where_that_is_best)
{
    config c = routed();
    search_terms t = terms_of(&c, 79);
    search_layout *all;
    t.ranks = 2;
    int count = search_all(&all, &t), divided = 0;
    for (int i = 0; i < count; i++)
        divided += all[i].of.expert == 2;
    free(all);
    assert_true(divided > 0 && divided < count);
    for (int tight = 0; tight < 2; tight++) {
        every e = exhaustive(&t);
        search s = run(&t);
        assert_true(s.count > 0 && s.layouts == e.count && e.count == count);
        print_message("%d layouts, %d fit, the fastest takes %.5f s, the answer %.5f with expert %d, of %d played\n",
                      e.count, e.fit, e.best, s.results[0].seconds, s.results[0].layout.of.expert, s.exact);
        assert_true(s.results[0].seconds <= 1.01 * e.best);
        t.memory = e.least + ((int64_t)1 << 28);
        search_free(&s);
    }
    config_free(&c);
}

/* In memory that most layouts do not fit into. */
TEST(a_schedule_is_found_where_no_named_one_is_as_good)
{
    config c = narrow(2048);
    profile slow = slow_links(&c, *state, 10);
    search_terms t = terms_of(&c, 5.2);
    t.prices = &slow;
    t.most = 0;
    every e = exhaustive(&t);
    search s = run(&t);
    assert_true(e.count >= 300 && s.layouts == e.count && s.count > 0);
    print_message(
        "%d layouts, %d fit, the fastest takes %.5f s, with a named schedule %.5f, the answer %.5f, of %d played\n",
        e.count, e.fit, e.best, e.named, s.results[0].seconds, s.exact);
    assert_int_equal(s.results[0].layout.of.schedule, SCHEDULE_AUTO);
    assert_true(s.results[0].seconds <= 1.01 * e.best);
    assert_true(s.results[0].seconds < 0.98 * e.named);
    search_free(&s);
    profile_free(&slow);
    config_free(&c);
}

/* Eight programs, which is what large ones are given, end a search of small ones too early. */
TEST(small_programs_are_tried_in_greater_number)
{
    config c = narrow(1024);
    profile slow = slow_links(&c, *state, 30); /* of which estimates know too little */
    search_terms t = terms_of(&c, 79);
    t.prices = &slow;
    t.most = SEARCH_LEAST;
    search few = run(&t);
    t.most = 0;
    search chosen = run(&t);
    assert_true(few.count > 0 && chosen.count > 0);
    print_message("%d played: %.5f s, %d played: %.5f s\n", few.exact, few.results[0].seconds, chosen.exact,
                  chosen.results[0].seconds);
    assert_true(few.exact == SEARCH_LEAST && chosen.exact > few.exact);
    assert_true(chosen.results[0].seconds < 0.95 * few.results[0].seconds);
    search_free(&few);
    search_free(&chosen);
    profile_free(&slow);
    config_free(&c);
}

TEST(the_answer_hangs_on_no_number_of_threads)
{
    config c = small();
    search_terms t = terms_of(&c, 79);
    omp_set_num_threads(1);
    search one = run(&t);
    omp_set_num_threads(3);
    search three = run(&t);
    assert_int_equal(one.count, three.count);
    for (int i = 0; i < one.count; i++) {
        assert_memory_equal(&one.results[i].seconds, &three.results[i].seconds, sizeof(double));
        assert_int_equal(one.results[i].arena, three.results[i].arena);
    }
    search_free(&one);
    search_free(&three);
    config_free(&c);
}

TEST(where_nothing_fits_the_least_is_told)
{
    config c = small();
    search_terms t = terms_of(&c, 4);
    search s = run(&t);
    assert_int_equal(s.count, 0);
    assert_true(s.least.arena + s.least.beside > t.memory);
    t.memory = s.least.arena + s.least.beside + ((int64_t)3 << 30); /* what is kept free for communicators */
    search_free(&s);
    s = run(&t);
    assert_true(s.count > 0);
    search_free(&s);
    config_free(&c);
}

/* A model of 8 layers with wide attention and a narrow window, of which `full` layers see all tokens. */
static search_layout estimated(int full)
{
    config c;
    char text_of[512];
    snprintf(text_of, sizeof text_of,
             "model: {architecture: qwen3, layers: 8, hidden_size: 1024, heads: 32, kv_heads: 32, head_size: 128, "
             "ffn_size: 1024, vocab_size: 1000, max_sequence: 16384, sliding_window: 128, full_first: %d}\n"
             "data: {train: none}\n"
             "train: {steps: 10, sequence: 16384, micro_batch: 1, global_batch: 4, precision: bf16}\n",
             full);
    if (config_parse(&c, "windows", text_of, strlen(text_of), 0, NULL) != STATUS_OK)
        fail_msg("%s", status_message());
    search_estimate *e = search_estimate_open(&c, h100(), NULL, NULL);
    search_layout l = {.of = c.parallel, .micro_batch = 1};
    l.of.size[GRID_DATA] = 1;
    l.of.zero = 0;
    assert_true(search_estimate_layout(e, &l, 1e9));
    search_estimate_close(e);
    config_free(&c);
    return l;
}

/* What a layer costs is asked of each kind. */
TEST(layers_are_estimated_as_what_they_are)
{
    search_layout none = estimated(0), some = estimated(2), all = estimated(8);
    assert_true(all.seconds > 2 * none.seconds);
    double mean = (6 * none.seconds + 2 * all.seconds) / 8;
    if (fabs(some.seconds / mean - 1) > 0.01)
        fail_msg("2 of 8 layers see all tokens: %g s, where none do %g, all %g", some.seconds, none.seconds,
                 all.seconds);
}

/* A million tokens: a micro-batch of one sample, on some ranks or all. */
TEST(a_sample_of_any_length_has_layouts)
{
    config c = small();
    c.train.sequence = c.model.shape.max_sequence = 1 << 20;
    search_terms t = terms_of(&c, 80);
    search_layout *all;
    int count = search_all(&all, &t), divided = 0;
    for (int i = 0; i < count; i++) {
        assert_int_equal(all[i].micro_batch, 1);
        divided += all[i].of.size[GRID_CONTEXT] > 1;
    }
    assert_true(divided > 0 && divided < count);
    free(all);
    config_free(&c);
}

TEST_MAIN(workfolder_setup, workfolder_teardown)
