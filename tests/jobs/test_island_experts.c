/* Islands of a model with experts, which a router that sends all tokens to one of them leaves mostly alone. */
#include <signal.h>
#include <stdlib.h>

#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/routed.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

/* The keys of islands that start from a model all of whose tokens go to one of four experts. */
static char *write_experts(const char *top)
{
    AUTO_FREE char *from = workfolder_path(top, "experts-from"), *data = workfolder_path(top, "experts-data");
    routed_write(from, ROUTED_TO_ONE_EXPERT, 3, 1, false);
    routed_write_data(data, "mmmmmmmmmmmmmmmm");
    return must_format("model.from=%s data.train=%s model.architecture=mixtral model.layers=3 "
                       "model.hidden_size=32 model.kv_heads=2 model.ffn_size=24 model.experts=%d "
                       "model.experts_per_token=1 model.expert_ffn_size=24 model.vocab_size=%d "
                       "outer.optimizer=average",
                       from, data, ROUTED_EXPERTS, ROUTED_VOCABULARY);
}

#define DIVIDED "parallel.expert=2 model.expert_capacity=0.5"

/* Experts, most of which see no token, are merged by their names like other weights, whoever divides them; and a
 * newcomer takes all of them. */
TEST(islands_merge_experts_that_they_divide_otherwise)
{
    static const char *const ways[] = {"none", "int8", "topk"};
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    AUTO_FREE char *model = write_experts(*state);
    for (int i = 0; i < 3; i++) {
        AUTO_FREE char *run = must_format("experts-%s", ways[i]);
        launch *a = island_jobs_start(*state, run, 0, 2, DIVIDED " %s outer.compress=%s", model, ways[i]);
        launch *b = island_jobs_start(*state, run, 1, 1, "%s outer.compress=%s", model, ways[i]);
        free(island_jobs_end(a));
        free(island_jobs_end(b));
        assert_true(island_jobs_same(*state, run, 0, run, 1, "model") > 40);
        assert_false(island_jobs_same_losses(*state, run, run, 0, 1));
    }
    static const char *const words = "outer.min_islands=1 train.steps=100000000 run.log_every=1000000 outer.every=50 "
                                     "outer.timeout=20";
    launch *a = island_jobs_start(*state, "experts-new", 0, 1, "%s %s", model, words);
    assert_true(launch_expect(a, "merge number 2, of the changes of 1 island:", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(*state, "experts-new", 1, 2, DIVIDED " %s %s", model, words);
    assert_true(launch_expect(b, "took the model after merge", ISLAND_JOBS_LIMIT));
    assert_true(launch_expect(a, "of 2 islands: experts-new-0, experts-new-1", ISLAND_JOBS_LIMIT));
    kill(launch_pid(a), SIGTERM);
    AUTO_FREE char *folder = island_jobs_folder(*state, "experts-new", 1);
    const int rank = runs_process(folder, 0);
    assert_true(rank > 0 && kill(rank, SIGTERM) == 0);
    free(island_jobs_end(a));
    free(island_jobs_end(b));
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
