# The host side of the CUDA device: what libphalanx_cuda.so links beside the kernels, and the program in which a training
# step of the device runs on stand-ins for CUDA's libraries. Included by the Makefile behind build.mk.

CUDA_LIBS  := -L$(CUDA_HOME)/lib64 -lcublasLt -lnccl -ldl
NCCL_HOST  := $(wildcard parallel/nccl/*.c)

$(BUILD)/libphalanx_cuda.so: $(NCCL_HOST:%.c=$(BUILD)/cuda/%.o)

# ---- the kernels as C++ on the shim, without a sanitizer, for programs that are not sanitized themselves

PLAIN_FLAGS := -std=c++17 -O1 -g -Wall -Wextra -Werror -fno-strict-aliasing -I. -Itests/shim -isystem $(CUDA_HOME)/include
PLAIN_UNITS := $(CUDA_UNITS:%.cu=$(BUILD)/plain/%.o) $(patsubst %.cc,$(BUILD)/plain/%.o,$(wildcard tests/shim/*.cc))

$(BUILD)/plain/%.o: %.cu
	@mkdir -p $(@D)
	$(CXX) -x c++ $(PLAIN_FLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/plain/%.o: %.cc
	@mkdir -p $(@D)
	$(CXX) $(PLAIN_FLAGS) -MMD -MP -c -o $@ $<

# ---- the host side on stand-ins for libcudart, cuBLASLt and NCCL

STANDIN_SRC  := $(wildcard tests/standin/*.c)
STANDIN_OBJ  := $(STANDIN_SRC:%.c=$(BUILD)/cuda/%.o)
STANDIN_HOST := $(CUDA_HOST:%.c=$(BUILD)/cuda/%.o) $(NCCL_HOST:%.c=$(BUILD)/cuda/%.o)

$(BUILD)/tests/rank_standin: $(STANDIN_OBJ) $(STANDIN_HOST) $(PLAIN_UNITS) $(SUPPORT:%.c=$(BUILD)/%.o) $(BUILD)/libphalanx.a
	@mkdir -p $(@D)
	$(CXX) -fopenmp -rdynamic -o $@ $^ -lcmocka $(LIBS)

$(BUILD)/tests/test_cuda_host: | $(BUILD)/tests/rank_standin
