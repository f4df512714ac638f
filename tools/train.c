/* phalanx train: reads the configuration, joins the job, trains. */
#include "engine/train/train.h"
#include "tools/job.h"
#include "tools/tools.h"

int train_main(int argc, char **argv)
{
    static const options_command command = {
        .name = "train",
        .operands = "[CONFIG.yaml] [key=value ...]",
        .summary =
            "Trains a model as CONFIG.yaml says; key=value overrides the file (`optimizer.lr=1e-4`, "
            "`data.train=[a,b]`).\n"
            "On several ranks: mpirun -np N phalanx train ..., or srun. A run resumes from its latest checkpoint.",
        .least = 1,
        .most = -1,
        .more_help = config_help,
        .help_about = config_help_about,
    };
    return job_run(&command, argc, argv, train_run);
}
