# phalanx: `make help` lists the targets. Objects go to $(BUILD); a source file is found by its folder.

BUILD   ?= build
ifeq ($(origin CC),default)
CC      := gcc
endif
ifeq ($(origin CXX),default)
CXX     := g++
endif
NVCC    ?= $(firstword $(wildcard /usr/local/cuda/bin/nvcc) $(shell command -v nvcc 2>/dev/null))
PYTHON  ?= python3
OPTIMIZE ?= -O2 -g
SANITIZE ?=

WARNINGS := -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion -Wvla -Wundef -Wpointer-arith -Wwrite-strings \
            -Wformat=2 -Werror
CWARNINGS := $(WARNINGS) -Wstrict-prototypes -Wmissing-prototypes
PACKAGES := libutf8proc yaml-0.1 jansson libpcre2-8 zlib libzstd sentencepiece ompi-c
PKG_CFLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags $(PACKAGES) 2>/dev/null))
PKG_LIBS   := $(shell pkg-config --libs $(PACKAGES) 2>/dev/null)
LIBS := $(PKG_LIBS) -ldnnl -ldl -lm -lpthread

CFLAGS   := -std=c11 -D_GNU_SOURCE $(OPTIMIZE) $(CWARNINGS) -fopenmp -fno-math-errno -ffp-contract=off -I. $(PKG_CFLAGS) $(SANITIZE)
CXXFLAGS := -std=c++17 $(OPTIMIZE) -Wall -Wextra -Wshadow -Werror -fopenmp -I. $(PKG_CFLAGS) $(SANITIZE)

ROOMS    := memory kernels kernels/cpu parallel layers models engine engine/text engine/files
SOURCES  := $(foreach room,$(ROOMS),$(wildcard $(room)/*.c))
CXX_SRC  := $(foreach room,$(ROOMS),$(wildcard $(room)/*.cc))
TOOLS    := $(wildcard tools/*.c)
OBJECTS  := $(SOURCES:%.c=$(BUILD)/%.o) $(CXX_SRC:%.cc=$(BUILD)/%.o)
TESTS    := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/test_*.c))
SUPPORT  := $(filter-out tests/test_%.c tests/rank_%.c tests/fuzz_%.c,$(wildcard tests/*.c))
RANK_PROGRAMS := $(patsubst tests/%.c,$(BUILD)/tests/%,$(wildcard tests/rank_*.c))

all: $(BUILD)/phalanx ## build/phalanx (and, with nvcc, build/libphalanx_cuda.so)

$(BUILD)/phalanx: $(TOOLS:%.c=$(BUILD)/%.o) $(BUILD)/libphalanx.a
	$(CXX) -fopenmp $(SANITIZE) -o $@ $^ $(LIBS)

$(BUILD)/libphalanx.a: $(OBJECTS)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/%.o: %.c
	@mkdir -p $(@D)
	@echo "cc $<"
	@$(CC) $(CFLAGS) $(CFLAGS_$(subst /,_,$*)) -MMD -MP -c -o $@ $<

$(BUILD)/%.o: %.cc
	@mkdir -p $(@D)
	@echo "c++ $<"
	@$(CXX) $(CXXFLAGS) -MMD -MP -c -o $@ $<

$(BUILD)/tests/%: $(BUILD)/tests/%.o $(SUPPORT:%.c=$(BUILD)/%.o) $(BUILD)/tools/options.o $(BUILD)/libphalanx.a
	$(CXX) -fopenmp $(SANITIZE) -o $@ $^ -lcmocka $(LIBS)

# The interposer of promise 1: never sanitized itself.
$(BUILD)/tests/allocation_spy.so: tests/spy/allocation_spy.c memory/seal.h
	@mkdir -p $(@D)
	$(CC) -std=c11 -D_GNU_SOURCE -O2 $(CWARNINGS) -I. -shared -fPIC -o $@ $< -ldl

$(BUILD)/tests/test_arena: | $(BUILD)/tests/allocation_spy.so

tests: $(BUILD)/phalanx $(TESTS) $(RANK_PROGRAMS) $(BUILD)/tests/allocation_spy.so ## build every test program

-include $(shell find $(BUILD) -name '*.d' 2>/dev/null)
.SECONDARY:
.PHONY: all tests
