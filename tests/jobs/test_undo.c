/* outer.undo: a merge that spoils the model is undone by all islands alike, to the bits before it, and they go on.
 *
 * The key whose effect is seen here: outer.undo. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "memory/clock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/island_jobs.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/servers.h"
#include "tests/jobs/workfolder.h"
#include "tests/skip.h"
#include "tests/test.h"

enum { EVERY = 20, MERGES = 5 };

/* A made-up island in slot 0 of three takes part in all merges, the second one of which undoes the first. Its first
 * change is within the limit of norms, and so large that the model is noise afterwards; its later ones are tiny. */
static void take_part(servers_fake *f)
{
    double until = clock_seconds() + ISLAND_JOBS_LIMIT;
    int64_t offered = 0;
    for (bool done = false; !done; usleep(20000)) {
        AUTO_FREE char *text = membership_roster(f->membership);
        roster r;
        assert_true(clock_seconds() < until);
        assert_int_equal(roster_read(&r, text, NULL), STATUS_OK);
        done = r.merge >= MERGES;
        if (r.merge >= 0 && offered != r.merge + 1 && !done) {
            offered = r.merge + 1;
            transport_lock(f->transport);
            f->number = offered;
            f->width = offered == 1 ? 10 : 1e-6f;
            transport_unlock(f->transport);
            membership_set_state(
                f->membership,
                &(membership_state){.ready = true, .merge = r.merge, .step = r.step, .updates = r.updates});
            membership_set_offer(f->membership,
                                 json_pack("{s:I, s:I, s:I, s:I, s:i, s:b}", "merge", (json_int_t)offered, "offer",
                                           (json_int_t)(EVERY * offered), "tokens", (json_int_t)1, "updates",
                                           (json_int_t)1, "fragment", 0, "parting", 0));
            membership_set_have(f->membership,
                                json_pack("{s:I, s:[i, i, i]}", "merge", (json_int_t)offered, "slots", 0, 1, 2));
        }
        roster_free(&r);
    }
}

static void expect_said(const char *top, const char *run, launch *l, int slot)
{
    static const char *const lines[] = {"the loss jumps after merge 1, of the changes of keys, ",
                                        "is undone by merge 2: more than half of the islands saw their loss jump"};
    AUTO_FREE char *folder = island_jobs_folder(top, run, slot);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++)
        assert_true(launch_expect(l, lines[i], ISLAND_JOBS_LIMIT));
    free(island_jobs_end(l));
    launch_result incidents = launch_run(ISLAND_JOBS_LIMIT, "grep -c 'undone by merge 2' %s/incidents.jsonl", folder);
    assert_int_equal(atoi(incidents.out), 1);
    launch_free(&incidents);
    json_t *summary = runs_read_summary(folder);
    assert_int_equal(json_integer_value(json_object_get(json_object_get(summary, "islands"), "undone")), 1);
    json_decref(summary);
}

static double loss_at(const char *top, const char *run, int slot, int64_t step)
{
    AUTO_FREE char *folder = island_jobs_folder(top, run, slot);
    runs_metrics m = runs_read_metrics(folder);
    double loss = -1;
    for (int i = 0; i < m.count; i++)
        loss = m.step[i].step == step ? m.step[i].loss : loss;
    return loss;
}

/* Merge 3 is made on what merge 1 was made on. */
static void check_that_it_is_as_before(const char *top, int slot)
{
    char *first = must_format("%s/undone-merges/slot-%d/merge-00000001", top, slot),
         *third = must_format("%s/undone-merges/slot-%d/merge-00000003", top, slot), difference[256];
    assert_true(runs_compare_section(difference, sizeof difference, first, third, "before") > 20);
    assert_string_equal(difference, "");
    assert_int_equal(runs_compare_section(difference, sizeof difference, first, third, "after"), 0);
    free(third);
    free(first);
}

TEST(a_merge_after_which_losses_jump_is_undone_by_all)
{
    static const char *const words =
        "outer.slots=3 outer.min_islands=3 outer.weights=equal outer.undo=true run.spike.zscore=6";
    const char *top = *state;
    if (!island_jobs_etcd)
        skip_because(SKIP_NO_ETCD);
    island_jobs_record(top, "undone");
    AUTO_FREE char *all = must_format("%s outer.every=%d train.steps=%d", words, EVERY, EVERY * MERGES);
    launch *a = island_jobs_start(top, "undone", 1, 1, "%s", all);
    assert_true(launch_expect(a, "has slot 1 of 3", ISLAND_JOBS_LIMIT));
    launch *b = island_jobs_start(top, "undone", 2, 2, "parallel.tensor=2 %s", all);
    servers_fake *f = servers_open_fake(top, "undone", 0, "keys");
    take_part(f);
    expect_said(top, "undone", a, 1);
    expect_said(top, "undone", b, 2);
    servers_close_fake(f);
    assert_true(island_jobs_same(top, "undone", 1, "undone", 2, "outer_reference") > 20);
    assert_true(island_jobs_same(top, "undone", 1, "undone", 2, "outer_momentum") > 20);
    check_that_it_is_as_before(top, 1);
    check_that_it_is_as_before(top, 2);
    double before = loss_at(top, "undone", 1, EVERY), spoiled = loss_at(top, "undone", 1, EVERY + 1),
           last = loss_at(top, "undone", 1, EVERY * MERGES);
    printf("loss %.3f before the merge, %.3f after it, %.3f at the end\n", before, spoiled, last);
    assert_true(spoiled > before + 1 && last > 0 && last < before);
}

/* Bytes of host memory that outer.* takes, as the plan says; -1: it is refused. */
static int64_t planned(const char *top, const char *words)
{
    AUTO_FREE char *program = launch_beside("../phalanx");
    launch_result r = launch_run(ISLAND_JOBS_LIMIT, "%s plan --json %s/run.yaml %s", program, top, words);
    json_t *plan = r.status == 0 ? json_loads(r.out, 0, NULL) : NULL;
    int64_t bytes = plan ? json_integer_value(json_object_get(json_object_get(plan, "islands"), "arena_bytes")) : -1;
    if (!plan) {
        assert_int_equal(r.status, 2);
        assert_non_null(strstr(r.err, "outer.undo"));
    }
    json_decref(plan);
    launch_free(&r);
    return bytes;
}

/* A copy of the reference, and one of the momentum where there is one; nothing unless it is asked for. */
TEST(what_is_held_is_in_the_plan)
{
    const char *top = *state;
    int64_t with = planned(top, "outer.undo=true run.spike.zscore=6"), without = planned(top, ""),
            average = planned(top, "outer.optimizer=average"),
            average_with = planned(top, "outer.optimizer=average outer.undo=true run.spike.zscore=6"),
            copy = without - average; /* the momentum itself */
    assert_true(copy > 4 * 1000);
    assert_int_equal(with - without, 2 * copy);
    assert_int_equal(average_with - average, copy);
    assert_int_equal(planned(top, "outer.undo=true"), -1);
    assert_int_equal(planned(top, "outer.undo=true run.spike.zscore=6 outer.topology=gossip"), -1);
    assert_int_equal(planned(top, "outer.undo=true run.spike.zscore=6 outer.fragments=2"), -1);
}

TEST_MAIN(island_jobs_prepare, island_jobs_finish)
