/* phalanx train: reads the configuration, joins the job, trains. */
#include <stdio.h>

#include "engine/config/config.h"
#include "engine/train.h"
#include "engine/weights.h"
#include "memory/clock.h"
#include "memory/log.h"
#include "parallel/comm.h"
#include "tools/options.h"
#include "tools/tools.h"

static const options_command command = {
    .name = "train",
    .operands = "CONFIG.yaml [key=value ...]",
    .summary =
        "Trains a model as CONFIG.yaml says; key=value overrides the file (`optimizer.lr=1e-4`, `data.train=[a,b]`).\n"
        "On several ranks: mpirun -np N phalanx train ..., or srun. A run resumes from its latest checkpoint.",
    .least = 1,
    .most = -1,
    .more_help = config_help,
};

int train_main(int argc, char **argv)
{
    double began = clock_seconds();
    int operands, code = options_parse(&command, &operands, argc, argv);
    if (code != OPTIONS_GO_ON)
        return code;
    comm *world = NULL;
    config c;
    status s = comm_open(&world);
    if (s != STATUS_OK) {
        log_error("%s", status_message());
        return (int)s;
    }
    log_set_rank(comm_rank(world), comm_ranks(world));
    s = comm_all_status(comm_world(world), config_load(&c, argv[1], operands - 1, argv + 2));
    if (s == STATUS_OK) {
        s = comm_all_status(comm_world(world), weights_configure(&c));
        if (s == STATUS_OK)
            s = train_run(&c, world, began);
        config_free(&c);
    }
    /* One rank says what all know: every status was agreed on, and names the rank it came from. */
    if (s != STATUS_OK && comm_rank(world) == 0)
        fprintf(stderr, "phalanx: %s\n", status_message());
    comm_close(world);
    return (int)s;
}
