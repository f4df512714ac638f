/* `phalanx bench --profile`: what it cannot do is said before it measures for minutes. */
#include <stdlib.h>
#include <string.h>

#include "memory/scope.h"
#include "tests/jobs/launch.h"
#include "tests/jobs/runs.h"
#include "tests/jobs/workfolder.h"
#include "tests/test.h"

TEST_WITH(a_file_that_cannot_be_written_is_known_at_once, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx");
    launch_result r = launch_run(30, "%s bench --profile %s/none/here.json", phalanx, (char *)*state);
    assert_false(r.timed_out);
    assert_int_equal(r.status, 1);
    assert_non_null(strstr(r.err, "none/here.json"));
    launch_free(&r);
}

/* Nor is a file that is no profile taken for one to be added to. */
TEST_WITH(a_file_of_another_kind_is_not_overwritten, workfolder_setup, workfolder_teardown)
{
    AUTO_FREE char *phalanx = launch_beside("../phalanx"), *path = workfolder_path(*state, "other.json");
    runs_write_text(path, "{\"learning_rate\": 1}\n");
    launch_result r = launch_run(30, "%s bench --profile %s", phalanx, path);
    assert_int_equal(r.status, 2);
    assert_non_null(strstr(r.err, "learning_rate"));
    launch_free(&r);
}

TEST_MAIN(NULL, NULL)
