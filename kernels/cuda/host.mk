# The host side of the CUDA device: what libphalanx_cuda.so links with the kernels, and the program in which a training
# step of the device runs on stand-ins for CUDA's libraries. Included by the Makefile after build.mk.

comma      := ,
CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -lcublasLt -lnccl -ldl
# machines newer than the newest built for compile it from PTX
NVCCFLAGS  += $(if $(filter 100,$(CUDA_ARCH)),-gencode arch=compute_100$(comma)code=compute_100)
NCCL_HOST  := $(wildcard parallel/comm/nccl/*.c)

$(BUILD)/libphalanx_cuda.so: $(NCCL_HOST:%.c=$(BUILD)/cuda/%.o)

# ---- the kernels as C++ on the shim, without a sanitizer, for programs that are not sanitized themselves

PLAIN_FLAGS := -std=c++17 -O1 -g1 -Wall -Wextra -Werror -fno-strict-aliasing -I. -Itests/cuda/shim -isystem $(CUDA_HOME)/include
PLAIN_UNITS := $(CUDA_UNITS:%.cu=$(BUILD)/plain/%.o) $(PLAIN_OWN)

$(BUILD)/plain/%.o: %.cu
	@mkdir -p $(@D)
	@echo "c++ $<"; $(CXX) -x c++ $(PLAIN_FLAGS) -MMD -MP -c -o $@ $<

# the shim and the references take most of the tests' time: optimised further
$(BUILD)/plain/%.o: %.cc
	@mkdir -p $(@D)
	@echo "c++ $<"; $(CXX) $(PLAIN_FLAGS:-O1=-O2) -MMD -MP -c -o $@ $<

# ---- the host side on stand-ins for libcudart, cuBLASLt and NCCL

STANDIN_SRC  := $(wildcard tests/cuda/standin/*.c)
STANDIN_OBJ  := $(STANDIN_SRC:%.c=$(BUILD)/cuda/%.o)
STANDIN_HOST := $(CUDA_HOST:%.c=$(BUILD)/cuda/%.o) $(NCCL_HOST:%.c=$(BUILD)/cuda/%.o)
# the op table's cuda_NAME through tests/cuda/standin/ops.c, and others whose order with the device's work is looked at
STANDIN_WRAP := $(shell sed -n 's/^OP.\([a-z_]*\),.*/-Wl,--wrap=cuda_\1/p' kernels/table/ops.def) \
                -Wl,--wrap=launch_mark -Wl,--wrap=launch_sum_bits -Wl,--wrap=launch_finish_bits -Wl,--wrap=updates_add -Wl,--wrap=updates_launch -Wl,--wrap=samples_read \
                -Wl,--wrap=executor_ahead -Wl,--wrap=warming_play

# phalanx itself, its CUDA device linked in, on the stand-ins
$(BUILD)/tests/phalanx_standin: $(STANDIN_OBJ) $(STANDIN_HOST) $(PLAIN_UNITS) $(TOOLS:%.c=$(BUILD)/%.o) $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(STANDIN_WRAP) -o $@ $^ $(LIBS)

$(BUILD)/tests/test_cuda_host $(BUILD)/tests/test_cuda_queue $(BUILD)/tests/test_cuda_offload: | $(BUILD)/tests/phalanx_standin $(BUILD)/phalanx $(BUILD)/tests/patient_waits.so

# libraries that the device opens at run time; the stand-in for cuDNN uses the program's tracker
$(BUILD)/tests/standin/libcudnn.so.9: tests/cuda/standin/libraries/cudnn.c tests/cuda/standin/libraries/cudnn_meaning.c tests/cuda/standin/libraries/cudnn.h
	@mkdir -p $(@D)
	@echo "link $@"; $(CC) $(CFLAGS) -fPIC -shared -isystem $(CUDA_HOME)/include -o $@ $(filter %.c,$^)

$(BUILD)/tests/driver/libcuda.so.1: tests/cuda/standin/libraries/cuda.c
	@mkdir -p $(@D)
	@echo "link $@"; $(CC) $(CFLAGS) -fPIC -shared -Wl,-soname,libcuda.so.1 -o $@ $<

# the same, where a workspace of 104 KiB divides small ops into parts
$(BUILD)/cuda/narrow/cudnn.o: kernels/cuda/cudnn.c
	@mkdir -p $(@D)
	@echo "cc $<"; $(CC) $(CFLAGS) -fPIC -isystem $(CUDA_HOME)/include -DCUDNN_WORKSPACE_MOST=106496 -MMD -MP -c -o $@ $<

$(BUILD)/tests/device_ops_narrow: $(BUILD)/tests/cuda/gpu/device_ops.o $(STANDIN_OBJ) $(BUILD)/cuda/narrow/cudnn.o \
                                  $(filter-out %/kernels/cuda/cudnn.o,$(STANDIN_HOST)) $(PLAIN_UNITS) $(BUILD)/tests/libtests.a $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(STANDIN_WRAP) -o $@ $^ -lcmocka $(LIBS)

# what the real cuDNN says of our graphs
$(BUILD)/tests/cudnn_plans: $(BUILD)/cuda/tests/cuda/gpu/cudnn_plans.o $(BUILD)/cuda/kernels/cuda/cudnn_api.o $(BUILD)/cuda/kernels/cuda/cudnn_graph.o \
                            $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp $(SANITIZE) -Wl,-rpath,$(CUDA_HOME)/lib64 -o $@ $^ $(LIBS)

$(BUILD)/tests/test_cuda_attention: | $(BUILD)/tests/phalanx_standin $(BUILD)/tests/patient_waits.so $(BUILD)/tests/standin/libcudnn.so.9 $(BUILD)/tests/cudnn_plans \
                                      $(BUILD)/tests/driver/libcuda.so.1 $(BUILD)/tests/device_ops_standin $(BUILD)/tests/device_ops_narrow

$(BUILD)/tests/test_cuda_context: | $(BUILD)/tests/phalanx_standin $(BUILD)/tests/patient_waits.so $(BUILD)/tests/standin/libcudnn.so.9
$(BUILD)/tests/test_cuda_tuning: | $(BUILD)/tests/phalanx_standin

# every op through the device's interface: on the stand-ins, and on a GPU
$(BUILD)/tests/device_ops_standin: $(BUILD)/tests/cuda/gpu/device_ops.o $(STANDIN_OBJ) $(STANDIN_HOST) $(PLAIN_UNITS) \
                                   $(BUILD)/tests/libtests.a $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(STANDIN_WRAP) -o $@ $^ -lcmocka $(LIBS)

# libphalanx_cuda.so finds all of the product's symbols in the program that loads it, used there or not
WHOLE_PRODUCT := -Wl,--whole-archive $(BUILD)/libphalanx.a -Wl,--no-whole-archive

$(BUILD)/device_ops: $(BUILD)/tests/cuda/gpu/device_ops.o $(BUILD)/tests/libtests.a $(BUILD)/libphalanx.a
	@echo "link $@"; $(CXX) -fopenmp -rdynamic -o $@ $(filter-out %/libphalanx.a,$^) $(WHOLE_PRODUCT) -lcmocka $(LIBS)

# what libraries and the machine do with work that is not the engine's, likewise
PROBES := $(BUILD)/cuda/tests/cuda/gpu/probes.o $(BUILD)/cuda/tests/cuda/gpu/probe.o

$(BUILD)/tests/probes_standin: $(PROBES) $(STANDIN_OBJ) $(STANDIN_HOST) $(PLAIN_UNITS) $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	@echo "link $@"; $(CXX) -fopenmp -rdynamic $(STANDIN_WRAP) -o $@ $^ $(LIBS)

$(BUILD)/probes: $(PROBES) $(BUILD)/libphalanx.a
	@echo "link $@"; $(CXX) -fopenmp -rdynamic -o $@ $(PROBES) $(WHOLE_PRODUCT) $(LIBS)

$(BUILD)/tests/test_cuda_host: | $(BUILD)/tests/device_ops_standin
$(BUILD)/tests/test_gpu_kit: | $(BUILD)/phalanx $(BUILD)/device_ops $(BUILD)/probes $(BUILD)/tests/phalanx_standin $(BUILD)/tests/probes_standin $(BUILD)/tests/device_ops_standin $(BUILD)/tests/standin/libcudnn.so.9

# Named for themselves, too: make leaves out a missing file (.SECONDARY) whose test is newer, as one is that was built
# before there was a toolkit.
BESIDE_TESTS := $(BUILD)/device_ops $(BUILD)/probes $(addprefix $(BUILD)/tests/,phalanx_standin device_ops_standin device_ops_narrow \
                probes_standin cudnn_plans standin/libcudnn.so.9 driver/libcuda.so.1)
tests: $(if $(filter %/test_cuda_host,$(TESTS)),$(BESIDE_TESTS))

# ---- the product

all: $(BUILD)/libphalanx_cuda.so

cuda: $(BUILD)/phalanx $(BUILD)/libphalanx_cuda.so ## the CUDA device (needs the CUDA toolkit with cuBLASLt and NCCL)

check-gpu: cuda $(BUILD)/device_ops $(BUILD)/probes $(BUILD)/tests/test_cuda_kernels_gpu ## on a GPU: kernels and ops against float64, losses, resume, memory, NCCL ranks
	@tests/cuda/gpu/check.sh $(BUILD)

bench-gpu: cuda ## on a GPU: tokens/s, TFLOP/s and MFU, beside PyTorch where PYTHON has it
	@PYTHON="$(PYTHON)" tests/cuda/gpu/bench.sh $(BUILD)

profile: cuda ## on a GPU: steps 5 to 7 of a run under nsys; CONFIG=FILE
	@tests/cuda/gpu/profile.sh $(BUILD) $(CONFIG)

bundle: all ## a folder to copy to a cluster: program, device, shared libraries, mpirun
	@tools/bundle.sh $(BUILD)

gpu-kit: all $(BUILD)/device_ops $(BUILD)/probes $(BUILD)/tests/test_cuda_kernels_gpu ## the same with check.sh and bench.sh, for a borrowed machine with a GPU
	@tools/bundle.sh $(BUILD) gpu-kit

gpu-kit-standins: $(BUILD)/tests/phalanx_standin $(BUILD)/tests/device_ops_standin $(BUILD)/tests/probes_standin $(BUILD)/tests/standin/libcudnn.so.9 ## its scripts, tried without a GPU
	@tools/bundle.sh $(BUILD) gpu-kit-standins

.PHONY: cuda check-gpu bench-gpu profile bundle gpu-kit gpu-kit-standins
