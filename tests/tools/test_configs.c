/* The configurations that we ship: each states its ranks, which `plan` then answers for without being told, fits its
 * devices, and promises nothing that plan does not say. */
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "engine/config/config.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "models/parts.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static const struct {
    const char *name;
    int ranks;
} clusters[] = {{"llama-1b", 8},  {"llama-8b-64gpu", 64}, {"llama-8b-128k", 64}, {"llama-70b-512gpu", 512},
                {"gemma3-4b", 8}, {"pythia-1b", 8},       {"llama-405b", 16384}};

enum { CLUSTERS = sizeof clusters / sizeof *clusters };

/* 80 GB less what CUDA, NCCL and cuBLAS keep for themselves */
static const double MOST_BYTES = 72.0 * 1024 * 1024 * 1024;

static json_t *plan(const char *name, const char *keys)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(300, "%s plan models/configs/%s.yaml --json %s", phalanx, name, keys);
    if (r.status)
        fail_msg("%s: status %d: %s", name, r.status, r.err);
    json_t *root = json_loads(r.out, 0, NULL);
    assert_non_null(root);
    launch_free(&r);
    return root;
}

TEST(a_configuration_of_a_cluster_states_its_ranks_and_fits)
{
    for (int i = 0; i < CLUSTERS; i++) {
        json_t *root = plan(clusters[i].name, ""), *rank;
        json_int_t ranks = 0;
        size_t k;
        json_array_foreach(json_object_get(root, "ranks"), k, rank)
        {
            ranks += json_integer_value(json_object_get(rank, "count"));
            double bytes = (double)json_integer_value(json_object_get(rank, "arena_bytes"));
            if (bytes > MOST_BYTES)
                fail_msg("%s: rank %lld needs %.1f GiB", clusters[i].name,
                         (long long)json_integer_value(json_object_get(rank, "rank")), bytes / (1 << 30));
        }
        assert_int_equal(ranks, clusters[i].ranks);
        json_decref(root);
    }
}

/* The stage with long samples is of the model and of the run that the stage before leaves, with its rope base and as
 * many tokens a step. */
TEST(a_long_stage_goes_on_from_the_short_one)
{
    config before, behind;
    assert_int_equal(config_load(&before, "models/configs/llama-8b-64gpu.yaml", 0, NULL), STATUS_OK);
    assert_int_equal(config_load(&behind, "models/configs/llama-8b-128k.yaml", 0, NULL), STATUS_OK);
    assert_int_equal(behind.train.sequence, 131072);
    assert_int_equal(behind.model.shape.max_sequence, 131072);
    assert_true(behind.model.shape.rope_theta == 500000 && before.model.shape.rope_theta == 500000);
    assert_true(parts_parameters(&behind.model.shape) == parts_parameters(&before.model.shape));
    assert_string_equal(behind.checkpoint.resume, before.run.folder);
    assert_int_equal(behind.train.global_batch * behind.train.sequence,
                     before.train.global_batch * before.train.sequence);
    assert_true(behind.optimizer.lr == before.optimizer.min_lr);
    config_free(&before);
    config_free(&behind);
}

/* A figure in a comment is one that nobody keeps true. */
TEST(no_comment_gives_a_figure_that_plan_prints)
{
    for (int i = 0; i < CLUSTERS; i++) {
        AUTO_FREE char *path = must_format("models/configs/%s.yaml", clusters[i].name);
        int64_t bytes;
        char *text = (char *)workfolder_read(path, &bytes);
        for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
            size_t length = strcspn(line, "\n");
            const char *comment = memchr(line, '#', length), *figure = comment ? strchr(comment, '%') : NULL;
            if (figure && figure < line + length)
                fail_msg("%s: %.*s", path, (int)length, line);
        }
        free(text);
    }
}

/* Which layout is better is plan's to say; these are slower, as the configurations' comments have it. */
TEST(a_configuration_is_laid_out_faster_than_what_it_argues_against)
{
    static const struct {
        const char *name, *keys;
    } slower[] = {
        {"llama-70b-512gpu", "parallel.tensor=8 parallel.data=8 parallel.pipeline=8 parallel.virtual_stages=5"},
        {"gemma3-4b", "parallel.tensor=2 parallel.data=4"},
        {"gemma3-4b", "parallel.pipeline=2 parallel.data=4"},
        {"pythia-1b", "parallel.tensor=2 parallel.data=4"},
        {"pythia-1b", "train.micro_batch=4"},
        {"pythia-1b", "train.micro_batch=32"}, /* recomputes */
    };
    for (size_t i = 0; i < sizeof slower / sizeof *slower; i++) {
        json_t *ours = plan(slower[i].name, ""), *other = plan(slower[i].name, slower[i].keys);
        double a = json_number_value(json_object_get(ours, "step_seconds")),
               b = json_number_value(json_object_get(other, "step_seconds"));
        if (!(a > 0 && a < b))
            fail_msg("%s takes %g s, with %s %g", slower[i].name, a, slower[i].keys, b);
        json_decref(ours);
        json_decref(other);
    }
}

static int64_t arena_of(const char *name, const char *keys)
{
    json_t *root = plan(name, keys);
    int64_t bytes =
        json_integer_value(json_object_get(json_array_get(json_object_get(root, "ranks"), 0), "arena_bytes"));
    json_decref(root);
    return bytes;
}

/* ZeRO 2 saves memory where micro-batches' gradients are reduced, and there only. */
TEST(gemma_needs_no_more_than_the_first_stage_of_zero)
{
    int64_t first = arena_of("gemma3-4b", ""), second = arena_of("gemma3-4b", "parallel.zero=2");
    assert_true((double)second > 0.99 * (double)first);
    assert_true((double)arena_of("gemma3-4b", "parallel.zero=2 parallel.zero_reduce=micro_batch") <
                0.9 * (double)first);
}

/* The device of the configuration is priced, and it is said. */
TEST(a_plan_for_the_cpu_says_whose_figures_it_prints)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(60, "%s plan models/configs/demo.yaml", phalanx);
    assert_int_equal(r.status, 0);
    assert_non_null(strstr(r.out, "on cpu: "));
    assert_non_null(strstr(r.out, "these are a small CPU's figures, as train.device is cpu"));
    launch_free(&r);
    static const char *const others[] = {"--flops 0.5", "--device h100"};
    for (int i = 0; i < 2; i++) {
        r = launch_run(60, "%s plan models/configs/demo.yaml %s", phalanx, others[i]);
        assert_int_equal(r.status, 0);
        assert_null(strstr(r.out, "these are a small CPU's figures"));
        launch_free(&r);
    }
}

TEST_MAIN(NULL, NULL)
