#!/bin/bash
# Only kernels/table/axes.def lists the axes: no other file names two of them in one initializer, enumeration or switch.
# Only storage.c asks for the level of ZeRO: others ask what it means (engine/compile/model/storage.h). Only
# kernels/record/replicas.c describes gathers of weights and sums of gradients: layers' are recorded by their family,
# the stages' meetings by compile_program.c.
set -u
cd "$(dirname "$0")/../.."
names=$(sed -nE 's/^AXIS\(([A-Z]+),.*/\1/p' kernels/table/axes.def | paste -sd'|')
[ -n "$names" ] || { echo "kernels/table/axes.def has no rows"; exit 1; }

# prints each list of axes in the files named
lists() {
    NAMES=$names perl -0777 -ne '
        my $axis = qr/\bAXIS_(?:$ENV{NAMES})\b/;
        s{/\*.*?\*/}{}gs;
        1 while s/\([^(){}]*\)//g;    # arguments of calls are no list
        my %cases;
        $cases{$1}++ while /\bcase\s+($axis)/g;
        print "$ARGV: a switch over axes: @{[sort keys %cases]}\n" if keys %cases > 1;
        while (/(\{(?:[^{};]|(?1))*\})/g) {
            my ($list, %seen) = ($1);
            $seen{$1}++ while $list =~ /($axis)/g;
            print "$ARGV: a list of axes: @{[sort keys %seen]}\n" if keys %seen > 1;
        }' "$@"
}

sample=$(mktemp)
trap 'rm -f "$sample"' EXIT
for listed in 'static int t[AXIS_COUNT] = {[AXIS_TENSOR] = 1, [AXIS_KV] = 2};' 'axis a[] = {AXIS_TIE, AXIS_GRID};' \
    'switch (a) { case AXIS_TENSOR: return 1; case AXIS_CONTEXT: return 2; }'; do
    echo "$listed" >"$sample"
    [ -n "$(lists "$sample")" ] || { echo "axes.sh does not see: $listed"; exit 1; }
done
echo 'x = (grid){.kv = f(g, AXIS_KV), .gradient = f(g, AXIS_GRADIENT)};' >"$sample"
[ -z "$(lists "$sample")" ] || { echo "axes.sh takes arguments for a list"; exit 1; }

# the tests of the table say what they expect of pairs of axes
excused='kernels/table/axis\.[ch]|tests/parallel/comm/test_grid\.c'
found=$(lists $(git ls-files '*.c' '*.h' '*.cc' '*.cu' '*.cuh' | grep -vxE "$excused"))
[ -z "$found" ] || { echo "$found"; exit 1; }

# an option of a layout or of the configuration, compared or tested; config itself refuses keys by name
asks_zero() {
    grep -nE '\b(options|o|parallel)(\.|->)zero *([<>=!]=|[<>?&|])|\b(options|o)(\.|->)zero\b' "$@"
}
echo 'if (c->options.zero > 1) return o->zero; x = c->parallel.zero == 3;' >"$sample"
[ "$(asks_zero "$sample" | wc -l)" = 1 ] || { echo "axes.sh does not see who asks for the level of ZeRO"; exit 1; }
found=$(asks_zero $(git ls-files 'memory/*.[ch]' 'kernels/*.[ch]' 'layers/*.[ch]' 'models/*.[ch]' 'parallel/*.[ch]' 'engine/*.[ch]' \
    'tools/*.[ch]' | grep -vE '^engine/config/|^engine/compile/model/storage\.c$'))
[ -z "$found" ] || { echo "$found: only storage.c asks for the level of ZeRO"; exit 1; }

makes_gather() {
    grep -nE '\.kind = [^=;]*OP_(all_gather|reduce_scatter|all_to_all)\b' "$@"
}
echo 'op o = {.kind = OP_all_gather, .in = {x}};' >"$sample"
[ -n "$(makes_gather "$sample")" ] || { echo "axes.sh does not see who makes a gather"; exit 1; }
makers='kernels/record/replicas\.c|kernels/ops/communication\.c|engine/compile/step/compile_program\.c'
found=$(makes_gather $(git ls-files 'kernels/*.[ch]' 'layers/*.[ch]' 'models/*.[ch]' 'engine/*.[ch]' | grep -vxE "$makers"))
[ -z "$found" ] || { echo "$found: replicas.c describes what the ranks that share a parameter exchange"; exit 1; }
