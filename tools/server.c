/* phalanx server: holds the model for islands that push and take it when they like (outer.topology server). */
#include <stdio.h>
#include <stdlib.h>

#include "engine/config/config.h"
#include "engine/server.h"
#include "engine/weights.h"
#include "memory/log.h"
#include "parallel/comm.h"
#include "parallel/signals.h"
#include "tools/options.h"
#include "tools/tools.h"

static status check(const config *c)
{
    if (c->outer.every == 0 || c->outer.topology != CONFIG_OUTER_SERVER)
        return status_fail(
            STATUS_USAGE,
            "a server is for islands that have one: set outer.every and outer.topology=server, there as here");
    return STATUS_OK;
}

/* The configuration is read before the job is joined; what that brought is known to all ranks then. */
static status serve(bool *stopped, config *c, comm *world, status loaded, const char *words)
{
    comm_group *all = comm_world(world);
    TRY(comm_all_status(all, loaded == STATUS_OK ? STATUS_OK : status_fail(loaded, "%s", words)));
    TRY(comm_all_status(all, weights_configure(c)));
    TRY(comm_all_status(all, check(c)));
    return server_run(stopped, c, world);
}

int server_main(int argc, char **argv)
{
    const options_command command = {
        .name = "server",
        .operands = "CONFIG.yaml [key=value ...]",
        .summary = "Holds the model of islands with outer.topology=server: they push their changes and take the model "
                   "when they\n"
                   "like, and wait for nobody. CONFIG is theirs, but for run.folder; data and parallel.* are not "
                   "looked at. Under\n"
                   "mpirun each rank holds a part. It saves every checkpoint.every merges, goes on from the latest "
                   "checkpoint, and\n"
                   "ends with 0 when train.steps are done and the islands have left.",
        .least = 1,
        .most = -1,
    };
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    comm *world = NULL;
    config c = {0};
    bool stopped = false;
    log_set_rank(comm_expected_rank(), 1);
    signals_install();
    status loaded = config_load(&c, argv[1], operands - 1, argv + 2);
    char *words = must_strdup(status_message());
    status s = comm_open(&world);
    if (s != STATUS_OK) {
        log_error("%s", status_message());
    } else {
        signals_install();
        log_set_rank(comm_rank(world), comm_ranks(world));
        s = serve(&stopped, &c, world, loaded, words);
        if (s != STATUS_OK && comm_rank(world) == 0)
            fprintf(stderr, "phalanx: %s\n", status_message());
    }
    code = s == STATUS_OK && stopped ? c.run.exit_when_stopped : (int)s;
    if (loaded == STATUS_OK)
        config_free(&c);
    free(words);
    comm_close(world);
    return code;
}
