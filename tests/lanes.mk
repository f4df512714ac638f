# How tests/run.sh runs the test programs: the one home of lanes and rings, which tests/lint/lanes.sh holds to the
# sources. Names are those of programs without test_; one that is in no list runs beside others, in `make check`.

# What is measured bears no other work: they run first, and nothing runs beside them.
ALONE := bubble

# A clock decides something in them: they run one after another, and what runs beside them yields to them.
CLOCKED := islands lock membership outlet pace phases remote s3_faults supervise timeline tracker transport watch watchdog
CLOCKED_SCRIPTS := tests/jobs/test_slurm.sh

# Of the others, which run together, those that take longest begin first: the last to end would run alone.
LONGEST := cuda_host parity recovery cuda_attention search node_copies ops server_model merges configs replays campaign stored generate

# Tables of which `make check` runs a covering third (tests/cover.h); `make check-all` runs the other rows as well.
HAS_REST := layouts pairs parity parity_mutants recorded_mutants optimizers qk_clip narrow_state compress read_errors gpu_kit

# Not under ASan: matrices of whole runs on many ranks and searches of every layout (minutes), and promises about
# resident memory and about time.
ASAN_LEFT_OUT := bubble campaign comm compress configs cuda_attention cuda_context cuda_host cuda_offload cuda_queue \
                 cuda_tuning endings faults golden gpu_kit help island_experts islands kill_calls layouts memory \
                 merges narrow_state no_memory node_copies optimizers pace pairs parity parity_mutants parquet phases \
                 read_errors recovery resume schedule_search search server stored supervise supervised_hosts transport \
                 watch watchdog
