# The CUDA side of the build: the library with nvcc, and the kernels as C++ on the shim. Included by the Makefile where
# nvcc, and with it the CUDA headers, is found.

CUDA_ARCH  ?= 80 90a 100
CUDA_UNITS := $(wildcard kernels/cuda/*.cu)
CUDA_HOST  := $(wildcard kernels/cuda/*.c)
ifeq ($(call header,cudnn_graph.h),)
CUDA_HOST  := $(filter-out kernels/cuda/cudnn%,$(CUDA_HOST)) kernels/cuda/absent/cudnn.c
TESTS      := $(filter-out %/test_cuda_attention,$(TESTS))
endif
NVCCFLAGS  := -std=c++17 -O3 -lineinfo -Werror all-warnings -Xptxas -v -Xcompiler -fPIC,-Wall,-Wextra -I. \
              $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch))

# ptxas reports registers and spills: tests/cuda/cuda_resources.sh reads the .ptxas next to the object
$(BUILD)/cuda/%.o: %.cu
	@mkdir -p $(@D)
	@echo "nvcc $<"; $(NVCC) $(NVCCFLAGS) -MMD -MP -MF $(@:.o=.d) -c -o $@ $< >$(@:.o=.ptxas) 2>&1 || { cat $(@:.o=.ptxas); exit 1; }

$(BUILD)/cuda/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(CFLAGS) -fPIC -isystem $(CUDA_HOME)/include -MMD -MP -c -o $@ $<

$(BUILD)/libphalanx_cuda.so: $(CUDA_UNITS:%.cu=$(BUILD)/cuda/%.o) $(CUDA_HOST:%.c=$(BUILD)/cuda/%.o)
	@echo "link $@"; $(NVCC) -shared $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) -o $@ $^ $(CUDA_LIBS)

# ---- the shim: AddressSanitizer throughout (SHIM_SANITIZE= for none); -O1 is the best of compile and run time together

SHIM_SANITIZE ?= -fsanitize=address
SHIM_FLAGS  := -std=c++17 -O1 -g1 -Wall -Wextra -Werror -fno-strict-aliasing -fno-omit-frame-pointer $(SHIM_SANITIZE) \
               -I. -Itests/cuda/shim -isystem $(CUDA_HOME)/include
SHIM_UNITS  := $(CUDA_UNITS:%.cu=$(BUILD)/shim/%.o)
SHIM_OWN    := $(patsubst %.cc,$(BUILD)/shim/%.o,$(wildcard tests/cuda/shim/*.cc))
SHIM_TESTS  := $(patsubst %.cc,$(BUILD)/shim/%.o,$(wildcard tests/cuda/*.cc))
# what entry points ask of tensors, and what messages of compressed gradients are compared with
SHIM_JUDGES := $(patsubst %,$(BUILD)/%.o,kernels/compress memory/dtype memory/tensor memory/log memory/outlet)

$(BUILD)/shim/%.o: %.cu
	@mkdir -p $(@D)
	@echo "c++ $<"; $(CXX) -x c++ $(SHIM_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/shim/%.o: %.cc
	@mkdir -p $(@D)
	@echo "c++ $<"; $(CXX) $(SHIM_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/test_cuda_kernels: $(SHIM_UNITS) $(SHIM_OWN) $(SHIM_TESTS) $(SHIM_JUDGES)
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -rdynamic $(SHIM_SANITIZE) -o $@ $^ -ldl

# the same kernels with every access to shared memory checked for races: tests/cuda/shim/race.cc. The shim and the
# references have no access to be watched: theirs are the objects without a sanitizer (host.mk).
$(BUILD)/race/%.o: %.cu
	@mkdir -p $(@D)
	@echo "c++ $<"; $(CXX) -x c++ $(filter-out $(SHIM_SANITIZE),$(SHIM_FLAGS)) -fsanitize=thread -MMD -MP -c -o $@ $<

RACE_UNITS  := $(SHIM_UNITS:$(BUILD)/shim/%=$(BUILD)/race/%)
PLAIN_OWN   := $(SHIM_OWN:$(BUILD)/shim/%=$(BUILD)/plain/%)
PLAIN_TESTS := $(SHIM_TESTS:$(BUILD)/shim/%=$(BUILD)/plain/%)
# what mutants are linked with
PLAIN_CUDA  := $(SHIM_UNITS:$(BUILD)/shim/%=$(BUILD)/plain/%)

$(BUILD)/tests/test_cuda_races: $(RACE_UNITS) $(PLAIN_OWN) $(PLAIN_TESTS) $(SHIM_JUDGES)
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -rdynamic -o $@ $^ -ldl

# every op's cases (tests/oracle/op_cases.c) through the bindings; the kernels of the race build
$(BUILD)/tests/test_cuda_ops: $(BUILD)/tests/cuda/cuda_ops.o $(BUILD)/tests/libtests.a \
                              $(patsubst %.c,$(BUILD)/%.o,kernels/cuda/bind.c kernels/cuda/scratch.c kernels/cuda/updates.c) \
                              $(RACE_UNITS) $(PLAIN_OWN) $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -rdynamic -fopenmp $(SANITIZE) -o $@ $^ -lcmocka $(LIBS)

# the same test on a GPU
$(BUILD)/gpu/%.o: %.cc
	@mkdir -p $(@D)
	@echo "nvcc $<"; $(NVCC) -x cu -std=c++17 -O1 -I. -MMD -MP -MF $(@:.o=.d) -c -o $@ $<

$(BUILD)/tests/test_cuda_kernels_gpu: $(CUDA_UNITS:%.cu=$(BUILD)/cuda/%.o) $(SHIM_TESTS:$(BUILD)/shim/%=$(BUILD)/gpu/%) $(SHIM_JUDGES)
	@mkdir -p $(@D)
	@echo "link $@"; $(NVCC) $(foreach arch,$(CUDA_ARCH),-gencode arch=compute_$(arch),code=sm_$(arch)) -o $@ $^

CUDA_TESTS := $(BUILD)/tests/test_cuda_kernels $(BUILD)/tests/test_cuda_races $(BUILD)/tests/test_cuda_ops

# one thread each, so that two run at a time; the mutants take all cores themselves
RUN_CUDA_TESTS := $(CUDA_TESTS:$(BUILD)/tests/test_%=run-%)
$(filter-out %-cuda_kernels,$(RUN_CUDA_TESTS)): run-%: $(BUILD)/tests/test_%
	$<

# which kernels that one executed is what test_cuda_coverage.sh reads
run-cuda_kernels: $(BUILD)/tests/test_cuda_kernels
	@rm -f $<.said
	$< --executed >$<.saying || { grep -v '^executed ' $<.saying; exit 1; }
	@mv $<.saying $<.said; grep -v '^executed ' $<.said

# what compiles without the rest of the product
cuda-objects: $(BUILD)/libphalanx_cuda.so $(SHIM_UNITS) $(SHIM_OWN) $(SHIM_TESTS) $(RACE_UNITS) $(PLAIN_OWN) $(PLAIN_TESTS)

check-cuda: $(RUN_CUDA_TESTS) $(PLAIN_CUDA) $(BUILD)/libphalanx_cuda.so ## every CUDA kernel executed without a GPU, its mutants, its resources
	tests/cuda/lint_cuda.sh
	tests/cuda/test_cuda_coverage.sh $(BUILD)
	tests/cuda/cuda_resources.sh $(BUILD)
	tests/cuda/test_cuda_mutants.sh $(BUILD)

.PHONY: check-cuda cuda-objects $(RUN_CUDA_TESTS)
