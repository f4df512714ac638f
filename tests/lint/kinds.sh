#!/bin/bash
# Nobody asks which op it is: passes ask an op's class or a flag (kernels/table/ops.def). Kinds are compared only where
# ops are matched as patterns, and listed only in tables of kernels, a backend's or communication's. Usage:
# tests/lint/kinds.sh [TREE]
set -u
cd "${1:-$(dirname "$0")/../..}" || exit 1
names=$(sed -nE 's/^OP\(([a-z_]+),.*/\1/p' kernels/table/ops.def | paste -sd'|')
[ -n "$names" ] || { echo "kernels/table/ops.def has no rows"; exit 1; }
patterns='kernels/record/fuse\.c|engine/compile/order/order\.c'
tables='kernels/cpu/backend\.c|kernels/cuda/scratch\.c|kernels/cuda/updates\.c|engine/compile/model/collective\.c'

# prints each comparison with a kind, and each list by kind, in the files named
kinds() {
    NAMES=$names PATTERNS=$patterns TABLES=$tables perl -0777 -ne '
        my $kind = qr/\bOP_(?:$ENV{NAMES})\b/;
        my $matches = $ARGV =~ /^(?:$ENV{PATTERNS})$/;
        my $lists = $ARGV =~ /^(?:$ENV{TABLES})$/;
        s{/\*.*?\*/}{my $t = $&; $t =~ tr/\n//cd; $t}gse;
        my $n = 0;
        for my $line (split /\n/) {
            $n++;
            print "$ARGV:$n: compares an op with a kind\n"
                if !$matches && $line =~ /[=!]=\s*$kind|$kind\s*[=!]=|\bcase\s+$kind/;
            print "$ARGV:$n: lists ops by kind\n" if !$lists && $line =~ /(?<!\bop_rows)(?<!\bkernels)\[\s*$kind\s*\]/;
        }' "$@"
}

export -f kinds
export names patterns tables
sample=$(mktemp)
trap 'rm -f "$sample"' EXIT
for listed in 'bool is = o->kind == OP_linear;' 'return OP_add != o->kind;' 'switch (o->kind) { case OP_wait: return 1; }' \
    'static const bool is[OP_COUNT] = {[OP_linear] = true};'; do
    echo "$listed" >"$sample"
    [ -n "$(kinds "$sample")" ] || { echo "kinds.sh does not see: $listed"; exit 1; }
done
printf '%s\n' 'op like = {.kind = OP_add, .in = {a, b}}; /* o->kind == OP_add */' 'kernels[OP_linear](&o, &r);' >"$sample"
[ -z "$(kinds "$sample")" ] || { echo "kinds.sh takes the making of an op for a question"; exit 1; }

found=$(find kernels parallel layers models engine tools \( -name '*.[ch]' -o -name '*.cc' -o -name '*.cu' -o -name '*.cuh' \) \
    ! -path 'kernels/ops/*' -print0 | sort -z | xargs -0 bash -c 'kinds "$@"' kinds)
[ -z "$found" ] || { echo "$found"; exit 1; }
