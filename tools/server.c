/* phalanx server: holds the model for islands that push and take it when they like (outer.topology server). */
#include "engine/islands/islands.h"
#include "tools/job.h"
#include "tools/tools.h"

static const options_command command = {
    .name = "server",
    .operands = "CONFIG.yaml [key=value ...]",
    .summary =
        "Holds the model of islands with outer.topology=server: they push their changes and take the model "
        "when they\n"
        "like, and wait for nobody. CONFIG is theirs, but for run.folder; data and parallel.* are not "
        "looked at. Under\n"
        "mpirun each rank holds a part. What it merges is on the disk before the island is told, so a server that "
        "is\n"
        "killed goes on with the same model. It saves every checkpoint.every merges, and ends with 0 when\n"
        "train.steps are done and the islands have left.",
    .least = 1,
    .most = -1,
};

static status check(const config *c)
{
    if (c->outer.every == 0 || c->outer.topology != CONFIG_OUTER_SERVER)
        return status_fail(
            STATUS_USAGE,
            "a server is for islands that have one: set outer.every and outer.topology=server, there as here");
    if (c->checkpoint.export_every > 0)
        return status_fail(
            STATUS_USAGE,
            "checkpoint.export.every %d: islands export, a server does not: say "
            "checkpoint.export.every=0 here; phalanx convert --from its checkpoints makes the same folder",
            c->checkpoint.export_every);
    if (c->checkpoint.mirror)
        return status_fail(
            STATUS_USAGE,
            "checkpoint.mirror %s: islands have mirrors, a server has none: say checkpoint.mirror=null here",
            c->checkpoint.mirror);
    return STATUS_OK;
}

static status serve(bool *stopped, const config *c, comm *world, watchdog *w, double began)
{
    (void)began;
    TRY(comm_all_status(comm_world(world), check(c)));
    return islands_serve(stopped, c, world, w);
}

int server_main(int argc, char **argv)
{
    return job_run(&command, argc, argv, serve);
}
