# How tests/run.sh runs the test programs: the one home of lanes and rings, which tests/lint/lanes.sh holds to the
# sources. Names are those of programs without test_; one that is in no list runs in the first lane, in `make check`.

# They share cores: they start no ranks, and no clock decides. One at a time runs beside those of the first lane, at a
# low priority; then two at a time.
SHARED := account adjoint adjoint_axes arena atomic axes bits box bpe causes checkpoint checkpoint_damage columns config config_edit deal \
          config_refusals configs convert cover cpu_kernels cuda_attention decoder documents dtype duty etcd exact_sum export families \
          first_run flops fuse golden grid help hosts huggingface huggingface_refusals indexed inspect inspect_huggingface judge_pace keys \
          kill_calls latent_ops layouts learning_rate log_line loss_chunk loss_scale lowering nearest news no_memory normal ops optimizer \
          options order order_parts outer parquet partition pieces placements plan plan_launch plan_search plan_window planner \
          planner_real profile published recompute reductions reference reference_experts reference_program report resources rounding \
          safetensors samples schedule schedule_command schedule_search schedule_share search shape simulate signature siphash \
          spike status tensorboard threads timing tokenizer tokenizer_json workspace

# Of those the ones that take longest, which begin first: the last to end would run alone.
LONGEST := ops

# Tables of which `make check` runs a covering third (tests/cover.h); `make check-all` runs the other rows as well.
HAS_REST := layouts parity optimizers qk_clip narrow_state compress read_errors gpu_kit

# Not under ASan: matrices of whole runs on many ranks and searches of every layout (minutes), and promises about
# resident memory and about time.
ASAN_LEFT_OUT := bubble campaign comm compress configs cuda_attention cuda_context cuda_host cuda_offload cuda_queue cuda_tuning endings \
                 faults golden gpu_kit help island_experts islands kill_calls layouts memory merges narrow_state no_memory node_copies \
                 optimizers pace parquet parity parity_mutants phases read_errors recovery resume schedule_search search server stored supervise \
                 transport watch \
                 watchdog
