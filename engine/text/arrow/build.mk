# libphalanx_parquet.so: what reads Parquet and Arrow. Included by the Makefile, and built where Apache's libraries are.
# ARROW says where: pkg-config, or a folder such as pyarrow's, which has include/ and, beside it or in lib/, the
# libraries. Unless it is set, pkg-config is asked, then PYTHON for its pyarrow; without either, or with ARROW empty,
# the reader is left out. One that was only found, and not asked for, may also fail to compile.

ifeq ($(origin ARROW),undefined)
ARROW := $(shell pkg-config --exists arrow parquet 2>/dev/null && echo pkg-config || $(PYTHON) -c \
    'import importlib.util as u; s = u.find_spec("pyarrow"); print(s.submodule_search_locations[0] if s else "")' 2>/dev/null)
ARROW_FOUND := yes
endif
export ARROW ARROW_FOUND

ifeq ($(ARROW),pkg-config)
ARROW_FLAGS := $(patsubst -I%,-isystem %,$(shell pkg-config --cflags arrow parquet))
ARROW_LIBS  := $(shell pkg-config --libs parquet arrow)
ARROW_NAMES := $(firstword $(wildcard $(shell pkg-config --variable=libdir arrow)/libarrow.so))
else ifneq ($(ARROW),)
ARROW_LIBS  := $(foreach l,parquet arrow,$(firstword $(wildcard $(ARROW)/lib$l.so $(ARROW)/lib/lib$l.so $(ARROW)/lib$l.so.*)))
ARROW_FLAGS := $(if $(wildcard $(ARROW)/include/parquet/api/reader.h),-isystem $(ARROW)/include)
ARROW_NAMES := $(word 2,$(ARROW_LIBS))
ifneq ($(and $(ARROW_FLAGS),$(word 2,$(ARROW_LIBS))),)
ARROW_LIBS  += -Wl,-rpath,'$$ORIGIN',-rpath,$(abspath $(dir $(ARROW_NAMES)))
else ifeq ($(ARROW_FOUND),)
$(error ARROW=$(ARROW): no include/parquet/api/reader.h there, or no libparquet.so and libarrow.so)
else
ARROW_LIBS  :=
endif
endif

# not for a sanitizer's build: the libraries are not sanitized
ifneq ($(if $(SANITIZE),,$(ARROW_LIBS)),)
ARROW_READER := $(BUILD)/libphalanx_parquet.so
all tests: $(ARROW_READER)
$(BUILD)/tests/test_parquet: | $(ARROW_READER)

# The older wheels' names of std::string are another ABI's.
$(ARROW_READER): engine/text/arrow/rows.cc engine/text/columns_reader.h
	@mkdir -p $(BUILD)/engine/text/arrow
	@echo "c++ $<"; object=$(BUILD)/engine/text/arrow/rows.o log=$(BUILD)/engine/text/arrow/rows.log; \
	abi=$$(nm -D $(ARROW_NAMES) 2>/dev/null | grep -q _ZNK5arrow6Status8ToStringB5cxx11Ev || echo -D_GLIBCXX_USE_CXX11_ABI=0); \
	if { $(CXX) -std=c++20 $(OPTIMIZE) -Wall -Wextra -Wshadow $(WERROR) -fPIC -fvisibility=hidden $$abi -I. $(ARROW_FLAGS) \
	    -c -o $$object $< && $(CXX) -shared -Wl,-z,defs -o $@ $$object $(ARROW_LIBS); } 2>$$log; then cat $$log; \
	elif [ -n "$(ARROW_FOUND)" ]; then \
	    echo "$(ARROW): phalanx's reader of Parquet does not compile with it, and is left out; $$log says why"; \
	else cat $$log; exit 1; fi
endif
