/* What a run's incidents say about why it ended, and when starting again is of no use. */
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/host/causes.h"
#include "engine/host/incident_log.h"
#include "engine/system/lock.h"
#include "memory/log.h"
#include "memory/scope.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

static cause trouble(incident_verdict verdict, int rank, int64_t step)
{
    cause c = {.known = true, .verdict = verdict, .rank = rank, .step = step};
    strcpy(c.host, "node7");
    return c;
}

TEST_WITH(what_says_most_counts, workfolder_setup, workfolder_teardown)
{
    const char *folder = *state;
    const incident before = {
        .verdict = INCIDENT_DATA, .rank = 9, .ranks = 4, .run = "a1", .words = "of a job before", .ends = true};
    const incident dead = {.verdict = INCIDENT_DEAD,
                           .rank = 2,
                           .ranks = 4,
                           .host = "node\"7",
                           .phase = DURING_SAVE,
                           .step = 40,
                           .quiet = 2,
                           .run = "b2",
                           .words = "rank 2 is gone",
                           .ends = true};
    incident storage = dead, warning = dead, link = dead;
    link.verdict = INCIDENT_LINK;
    link.rank = 1;
    storage.verdict = INCIDENT_STORAGE;
    storage.rank = 3;
    storage.words = "its storage \\ does not answer\n";
    warning.verdict = INCIDENT_DATA;
    warning.ends = false;
    assert_int_equal(causes_position(folder), 0);
    assert_false(causes_read(folder, 0, "b2").known);
    assert_int_equal(incident_log_append(folder, &before), STATUS_OK);
    int64_t position = causes_position(folder);
    assert_true(position > 0);
    assert_false(causes_read(folder, position, "b2").known);
    assert_int_equal(incident_log_append(folder, &warning), STATUS_OK);
    assert_false(causes_read(folder, position, "b2").known); /* nothing has ended with it */
    assert_int_equal(incident_log_append(folder, &link), STATUS_OK);
    assert_int_equal(causes_read(folder, position, "b2").verdict, INCIDENT_LINK);
    assert_int_equal(incident_log_append(folder, &dead), STATUS_OK);
    cause c = causes_read(folder, position, "b2");
    assert_true(c.known && c.verdict == INCIDENT_DEAD && c.rank == 2 && c.step == 40);
    assert_string_equal(c.host, "node\"7");
    assert_int_equal(incident_log_append(folder, &storage), STATUS_OK);
    assert_int_equal(incident_log_append(folder, &dead), STATUS_OK);
    c = causes_read(folder, position, "b2");
    assert_true(c.verdict == INCIDENT_STORAGE && c.rank == 3);
    assert_string_equal(c.words, "its storage \\ does not answer?"); /* for a terminal */
}

/* A start that stood still: another one has held its lock since. */
TEST_WITH(a_start_that_has_lost_its_lock_reports_no_incident, workfolder_setup, workfolder_teardown)
{
    const char *folder = *state;
    AUTO_FREE char *path = workfolder_path(folder, "lock");
    lock *first = NULL, *next = NULL;
    incident what = {.verdict = INCIDENT_FROZEN, .run = "a1", .words = "rank 0 is frozen", .ends = true};
    assert_int_equal(lock_take(&first, path, "a1", 30), STATUS_OK);
    assert_int_equal(incident_log_append(folder, &what), STATUS_OK);
    int64_t position = causes_position(folder);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lock_take(&next, path, "b2", 30), STATUS_OK);
    assert_int_equal(incident_log_append(folder, &what), STATUS_LOST);
    assert_int_equal(causes_position(folder), position);
    what.run = "b2";
    assert_int_equal(incident_log_append(folder, &what), STATUS_OK);
    lock_release(next);
    lock_release(first);
}

/* Whoever is refused in a folder, or was there before, writes into it, too. */
TEST_WITH(incidents_of_other_starts_say_nothing, workfolder_setup, workfolder_teardown)
{
    const char *folder = *state;
    incident what = {.verdict = INCIDENT_REFUSED, .run = "c3", .words = "another run is at work here", .ends = true};
    int64_t position = causes_position(folder);
    assert_int_equal(incident_log_append(folder, &what), STATUS_OK);
    what.run = NULL; /* one that does not say whose it is */
    assert_int_equal(incident_log_append(folder, &what), STATUS_OK);
    assert_false(causes_read(folder, position, "d4").known);
    what.run = "d4";
    what.words = "\033[2J\302\233H\177\303\251";
    assert_int_equal(incident_log_append(folder, &what), STATUS_OK);
    cause c = causes_read(folder, position, "d4");
    assert_true(c.known);
    assert_string_equal(c.words, "?[2J??H?\303\251"); /* nothing that a terminal obeys, but letters */
}

TEST_WITH(who_has_begun_and_saved_is_known_by_its_id, workfolder_setup, workfolder_teardown)
{
    static const char events[] = "{\"event\": \"started\", \"run\": \"aa\", \"step\": 0}\n";
    char *checkpoints = workfolder_path(*state, "checkpoints"), *latest = workfolder_path(*state, "checkpoints/latest");
    static const char manifest[] = "{\"format\": \"phalanx checkpoint\", \"run\": \"aa\"}\n";
    char *path = workfolder_path(*state, "events.jsonl");
    assert_false(causes_began(*state, "aa") || causes_saved(*state, "aa"));
    workfolder_write(path, events, sizeof events - 1);
    assert_true(causes_began(*state, "aa"));
    assert_false(causes_began(*state, "a"));
    free(path);
    mkdir(checkpoints, 0755);
    workfolder_write(latest, "step-00000120", 13);
    free(latest);
    free(checkpoints);
    AUTO_FREE char *folder = workfolder_path(*state, "checkpoints/step-00000120");
    path = must_format("%s/manifest.json", folder);
    mkdir(folder, 0755);
    workfolder_write(path, manifest, sizeof manifest - 1);
    assert_true(causes_saved(*state, "aa"));
    assert_false(causes_saved(*state, "ab"));
    free(path);
}

TEST_WITH(progress_is_the_last_step_of_the_metrics, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *metrics = workfolder_path(*state, "metrics.jsonl"),
                   *folder = workfolder_path(*state, "checkpoints");
    AUTO_FREE char *latest = workfolder_path(*state, "checkpoints/latest");
    assert_int_equal(causes_progress(*state), 0);
    mkdir(folder, 0755);
    workfolder_write(latest, "step-00000120", 13);
    assert_int_equal(causes_progress(*state), 120);
    static const char lines[] = "{\"step\": 121, \"loss\": 1}\n{\"step\": 122, \"eval_loss\": 3}\n{\"step\": 12";
    workfolder_write(metrics, lines, sizeof lines - 1);
    assert_int_equal(causes_progress(*state), 122); /* what is torn is not done */
    AUTO_FREE char *many = must_alloc(40000);
    memset(many, 'x', 40000);
    memcpy(many + 39950, "\n{\"step\": 77, \"loss\": 2}\n", 25);
    workfolder_write(metrics, many, 39975);
    assert_int_equal(causes_progress(*state), 77);
    unlink(metrics);
    AUTO_FREE char *merges = workfolder_path(*state, "merges.jsonl");
    static const char server[] = "{\"merge\":3,\"slot\":0}\n{\"merge\":4,\"slot\":1}\n{\"merge\":5";
    workfolder_write(merges, server, sizeof server - 1);
    assert_int_equal(causes_progress(*state), 4); /* of a server */
}

/* Weighs the same trouble until it is given up; how often it was started again. */
static int restarts(causes *k, cause why, int64_t progress, int64_t each)
{
    for (int n = 0; n < 50; n++, progress += each) {
        causes_advice a = causes_weigh(k, &why, true, progress);
        if (a.give_up)
            return n;
        why.step += each;
    }
    return 50;
}

TEST(trouble_that_comes_again_is_given_up)
{
    causes k = {0};
    assert_int_equal(restarts(&k, trouble(INCIDENT_DATA, 0, 8), 7, 0), 1); /* the second time is proof */
    k = (causes){0};
    assert_int_equal(restarts(&k, trouble(INCIDENT_NUMBERS, 0, 8), 7, 0), 1);
    k = (causes){0}; /* the first job came to step 7; the next three came no further */
    assert_int_equal(restarts(&k, trouble(INCIDENT_DEAD, 3, 8), 7, 0), 2);
    k = (causes){0}; /* each time further: as often as it takes */
    assert_int_equal(restarts(&k, trouble(INCIDENT_DEAD, 3, 8), 7, 5), 50);
    k = (causes){0}; /* no rank begins, although somebody else's metrics grow */
    int starts = 0;
    cause none = {.rank = -1, .step = -1};
    for (causes_advice a = {0}; !a.give_up && starts < 50; starts++)
        a = causes_weigh(&k, &none, false, starts);
    assert_int_equal(starts, 8);
    k = (causes){0}; /* nobody says why, and nothing moves */
    assert_int_equal(restarts(&k, (cause){.rank = -1, .step = -1}, 0, 0), 7);
}

TEST(different_troubles_are_no_repetition)
{
    causes k = {0};
    for (int i = 0; i < 7; i++) {
        cause why = trouble(i % 2 ? INCIDENT_DEAD : INCIDENT_FROZEN, i % 3, 8);
        assert_null(causes_weigh(&k, &why, true, 0).give_up);
    }
    cause why = trouble(INCIDENT_DEAD, 0, 8);
    assert_non_null(causes_weigh(&k, &why, true, 0).give_up); /* but eight starts without a step are */
}

TEST(waits_grow_and_begin_anew_with_progress)
{
    causes k = {0};
    const double expected[] = {0, 1, 2, 4, 8, 16};
    for (int i = 0; i < 6; i++) {
        cause why = trouble(INCIDENT_DEAD, i, 8);
        assert_true(causes_weigh(&k, &why, true, 7).wait == expected[i]);
    }
    cause why = trouble(INCIDENT_DEAD, 0, 9);
    assert_true(causes_weigh(&k, &why, true, 8).wait == 0);
}

TEST_MAIN(NULL, NULL)
