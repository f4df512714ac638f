#!/bin/bash
# Each lint can fail: a copy of the sources passes, and with one mistake in it the lint names the mistake. TAP, for
# tests/run.sh.
set -u
here=$(cd "$(dirname "$0")" && pwd)
root=$here/../..
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cd "$root" || exit 1
find Makefile memory kernels parallel layers models engine tools tests -type f \
    \( -name Makefile -o -name '*.mk' -o -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' -o -name '*.def' \
    -o -name '*.sh' -o -name '*.py' -o -name '*.awk' -o -name budget \) -print0 | tar --null -cf - -T - | tar -xf - -C "$copy"
cd "$copy" || exit 1
number=0 failed=0

verdict() { # PASSED NAME
    number=$((number + 1))
    if [ "$1" = yes ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        failed=1
    fi
}

# refuses NAME FILE TEXT MESSAGE [LINT]: with TEXT behind what FILE holds, the lint ends with 1 and says MESSAGE. A FILE
# that is not there is made.
refuses() {
    local name=$1 file=$2 text=$3 message=$4 kept= said
    local lint=${5:-$here/sources.sh $copy}
    [ -e "$file" ] && kept=$(mktemp) && cp "$file" "$kept"
    printf '%s\n' "$text" >>"$file"
    if said=$($lint 2>&1); then
        echo "# nothing was found"
        verdict no "$name"
    elif grep -qF -- "$message" <<<"$said"; then
        verdict yes "$name"
    else
        sed 's/^/# /' <<<"$said"
        verdict no "$name"
    fi
    if [ -n "$kept" ]; then
        mv "$kept" "$file"
    else
        rm -f "$file"
    fi
}

# body N: the text of a function `lint_sample` of N lines
body() {
    printf 'static int lint_sample(int a)\n{\n'
    for ((i = 0; i < $1 - 4; i++)); do echo "    a++;"; done
    printf '    return a;\n}\n'
}

if said=$("$here/sources.sh" "$copy"); then
    verdict yes the_sources_pass
else
    sed 's/^/# /' <<<"$said"
    verdict no the_sources_pass
fi

refuses the_clock_of_the_day_decides_nothing engine/system/lock.c \
    'static void lint_sample(struct timespec *t) { clock_gettime(CLOCK_REALTIME, t); }' 'CLOCK_REALTIME'
refuses nobody_waits_by_the_clock_of_the_day engine/state/save/saver.c \
    'static void lint_sample(void) { pthread_cond_timedwait(0, 0, 0); }' 'cond_timedwait'
refuses an_include_upward memory/pool.c '#include "engine/train/train.h"' "memory/ may not include engine/"
refuses an_include_upward_between_sub_rooms engine/files/indexed.c '#include "engine/config/config.h"' \
    "engine/files/ may not include engine/config/"
refuses an_include_sideways engine/text/buffer.c '#include "engine/config/config.h"' "engine/text/ may not include engine/config/"
refuses an_include_behind_a_face engine/train/train.c '#include "engine/islands/meet/roster.h"' \
    "engine/islands/meet/roster.h is behind engine/islands/islands.h"
refuses an_include_of_kernels_by_the_ground_floor memory/tensor.h '#include "kernels/table/op.h"' "memory/ may not include kernels/"
refuses a_device_above_the_kernels layers/block.c '#ifdef USE_CUDA' "#ifdef USE_CUDA"
refuses a_circle_of_headers parallel/schedule/schedule.h '#include "parallel/schedule/lowering.h"' \
    "includes parallel/schedule/lowering.h"
refuses a_circle_of_calls memory/pool.c "$(printf 'void pool_sample(void)\n{\n    arena_close(0);\n}\n')
$(sed -i '1i #include "memory/pool.h"' memory/arena.c)" "uses arena_close"
sed -i 1d memory/arena.c
refuses a_circle_through_a_table kernels/table/op.c "$(printf 'static void *const sample[] = {\n    gradient_attention,\n};\n')" \
    "kernels/table/op -> kernels/ops/attention (kernels/table/op.c:"
refuses a_function_that_nobody_calls memory/units.c "$(printf 'int units_sample(void)\n{\n    return 0;\n}\n')" \
    "units_sample is never called"
refuses a_function_that_only_itself_calls memory/units.c \
    "$(printf 'int units_sample(int n)\n{\n    return n ? units_sample(n - 1) : 0;\n}\n')" "units_sample is never called"
refuses a_function_that_only_tests_call memory/units.c \
    "$(printf 'int units_sample(void)\n{\n    return 0;\n}\n')
$(printf 'int test(void)\n{\n    return units_sample();\n}\n' >tests/memory/sample.c)" "units_sample is called by tests only"
rm tests/memory/sample.c
refuses a_function_that_could_be_static memory/units.c \
    "$(printf 'int units_sample(void)\n{\n    return 0;\n}\nstatic int (*const sample)(void) = units_sample;\n')" \
    "units_sample is called in its own file only: make it static"
refuses an_unused_helper_in_a_header kernels/cpu/simd.h "$(printf 'static inline int simd_sample(void)\n{\n    return 0;\n}\n')" \
    "simd_sample is never called"
refuses an_implementation_without_an_op kernels/cpu/norms.c \
    "$(printf 'void cpu_sample(const op *o, const run_context *r)\n{\n    (void)o, (void)r;\n}\n')" "cpu_sample is never called"
refuses a_gradient_without_an_op kernels/ops/product.c \
    "$(printf 'void gradient_sample(recorder *r, const op *o, tensor *const cotangent[OP_MAX_OUT])\n{\n    (void)r, (void)o;\n}\n')" \
    "gradient_sample is never called"
refuses a_kernel_that_nothing_launches kernels/cuda/reduce.cu \
    "$(printf 'KERNEL(256, 4)\nsample_kernel(float *x)\n{\n    x[0] = 0;\n}\n')" "sample_kernel is never called"
refuses a_long_function tests/memory/sample.c "$(body 81)" "lint_sample has 81 lines"
# fields N: a struct of N fields, two of them in a struct of their own
fields() {
    printf 'typedef struct lint_sample {\n'
    for ((i = 0; i < $1 - 3; i++)); do echo "    int (*a$i)(int, int);"; done
    printf '    struct {\n        int x, y; /* one; two; */\n    } in;\n} lint_sample;\n'
}
refuses a_large_struct memory/sample.h "$(fields 41)" "struct lint_sample has 41 fields"
refuses many_functions_of_eight_parameters memory/sample.c \
    "$(for ((i = 0; i < 40; i++)); do printf 'int sample_%d(int a, int b, int c, int d, int e, int f, int g, int h)\n{\n    return a;\n}\n' $i; done)" \
    "functions have eight or more parameters"
refuses a_conflict_of_a_merge engine/train/README.md "<<<<<<< HEAD" "a conflict that nobody decided"
refuses a_wide_comment memory/tensor.h "/* $(yes so | head -n 40 | tr '\n' ' ')*/" "a comment of 125 columns; 120 are the most"
refuses a_wide_comment_in_a_script tools/sample.sh "# $(yes so | head -n 40 | tr '\n' ' ')" "a comment of 122 columns; 120 are the most"
refuses an_excuse_without_need memory/tensor.c "$(printf 'const char *tensor_sample(void)\n{\n    return scanner_pattern(0);\n}\n')" \
    "scanner_pattern is excused and has no need of it"
refuses a_type_decided_by_hand engine/compile/model/tokens.c \
    'static int sample(dtype t) { return t == DTYPE_FP32 ? 4 : 2; }' "kernels/table/precision.def decides types" "$here/types.sh $copy"
refuses a_precision_asked_by_name engine/train/train.c \
    'static bool sample(const config *c) { return c->train.precision == PRECISION_FP16; }' \
    "kernels/table/precision.def decides types" "$here/types.sh $copy"
refuses a_figure_of_a_device_elsewhere engine/compile/step/recompute.c 'static const double sample = 989e12;' \
    "belongs to kernels/table/devices.def" "$here/types.sh $copy"
refuses raw_cuda kernels/cuda/reduce.cu '__shared__ float sample[4];' 'use SHARED' "tests/cuda/lint_cuda.sh kernels/cuda"
refuses an_open_that_waits_for_a_pipe engine/run/trace.c 'int opened(const char *p) { return open(p, O_RDONLY | O_CLOEXEC); }' \
    "O_RDONLY" "$here/sources.sh $copy"
refuses a_stream_through_a_link engine/run/trace.c 'FILE *opened(const char *p) { return fopen(p, "w"); }' "fopen" "$here/sources.sh $copy"
refuses a_question_after_a_kind engine/run/trace.c 'static bool asks(const op *o) { return o->kind == OP_dropout; }' \
    "compares an op with a kind" "$here/kinds.sh $copy"
refuses a_list_of_kinds engine/run/trace.c 'static const bool is[OP_COUNT] = {[OP_dropout] = true};' "lists ops by kind" "$here/kinds.sh $copy"
refuses a_page_that_names_no_function sample.md 'See `planner_sample()`.' "planner_sample() is not in the sources" "$here/pages.sh $copy"
refuses a_page_that_names_no_file sample.md 'See `engine/sample.c`.' "there is no engine/sample.c" "$here/pages.sh $copy"
refuses a_room_of_two_pages tools/README.md "$(yes word | head -n 751)" "tools/README.md has 751 words" "$here/pages.sh $copy"
refuses a_pattern_without_files tools/sample.sh 'cat memory/*'.cu "no file is memory/*".cu "$here/pages.sh $copy"
refuses a_key_that_is_read_past_the_page models/huggingface_rope.c '/* huggingface_item(r->root, "rope_theta") */' \
    "huggingface_key() reads keys of the root" "$here/pages.sh $copy"

refuses a_span_of_time_beside_other_programs tests/memory/test_dtype.c '/* clock_seconds() - began < 3 */' \
    "CLOCKED lacks dtype" "tests/lint/lanes.sh $copy"
refuses a_skip_without_a_reason tests/memory/test_dtype.c '/* skip(); */' "a test that is skipped says why" "tests/lint/lanes.sh $copy"
refuses a_table_with_a_third_that_no_list_names tests/memory/test_dtype.c '/* cover_take(0, 0, 0, 3); */' "HAS_REST lacks dtype" \
    "tests/lint/lanes.sh $copy"

refuses a_call_that_no_linker_sees engine/run/shard.c "$(printf 'void shard_sample(int32_t *out, const shard_shape *d)\n{\n    shard_zigzag(out, d);\n}\n')" \
    "calls its own shard_zigzag" "tests/lint/lanes.sh $copy"

if said=$("$here/house.sh" "$copy"); then verdict yes the_house_keeps_its_budget; else verdict no "the_house_keeps_its_budget: $said"; fi
refuses a_room_that_grows memory/bits.c "$(yes '/* more */' | head -n 2000)" "lines-memory is" "$here/house.sh $copy"
refuses a_budget_that_rises_without_a_word tests/lint/budget 'lines-memory 999999' "lines-memory rises, and no word says why" \
    "$here/house.sh $copy"

# the limits themselves pass
body 80 >tests/memory/sample.c
fields 40 >memory/sample.h
if "$here/sources.sh" "$copy" >/dev/null; then verdict yes what_is_just_within_the_limits_passes; else verdict no what_is_just_within_the_limits_passes; fi
rm tests/memory/sample.c memory/sample.h

# a long file is a warning
yes '/* */' | head -n 801 >memory/sample.h
yes : | head -n 801 >tools/sample.sh
if said=$("$here/sources.sh" "$copy") && grep -qF "warning: memory/sample.h has 801 lines" <<<"$said" &&
    grep -qF "warning: tools/sample.sh has 801 lines" <<<"$said" && [ "$(grep -c . <<<"$said")" = 2 ]; then
    verdict yes a_long_file_is_a_warning
else
    verdict no a_long_file_is_a_warning
fi

echo "1..$number"
exit $failed
