#!/bin/bash
# Types are decided once, by kernels/table/precision.def, and devices are described once, by kernels/table/devices.def:
# no other file of the product compares a type with a name to choose, or states a device's peak. Usage:
# tests/lint/types.sh [TREE]
set -u
here=$(cd "$(dirname "$0")" && pwd)
cd "${1:-$here/../..}" || exit 1

# prints each decision in the files named. Backends ask which kernel takes the types that tensors have, and
# OPERANDS_CHECK states which types an op's operands have: neither decides. Sums are fp32 in every precision.
decisions() {
    perl -0777 -ne '
        my $type = qr/\b(?:DTYPE_(?:FP|BF)\w+|PRECISION_(?!COUNT)[A-Z0-9]+)\b/;
        s{/\*.*?\*/}{$& =~ s/[^\n]//gr}gse;
        sub line { 1 + (substr($_, 0, $_[0]) =~ tr/\n//) }
        while (/\bdtype_bytes\(DTYPE_(?!FP32)\w+\)|\b\d+(?:\.\d+)?e1[2-4]\b/g) {
            my ($what, $at) = ($&, $-[0]);
            next if $what =~ /^1e/; # a unit
            print "$ARGV:@{[line($at)]}: $what: ", $what =~ /^d/ ? "ask the table for the type, not a type for its bytes\n"
                                                                 : "a figure of a device belongs to kernels/table/devices.def\n";
        }
        print "$ARGV:@{[line($-[0])]}: $&: kernels/table/precision.def decides types\n" while /$type\s*\)?\s*\?(?!\?)/g;
        next if $ARGV =~ m{(?:^|/)kernels/(?:cpu|cuda)/};
        s{\bOPERANDS_CHECK(\((?:[^()]|(?1))*\))}{$& =~ s/[^\n]//gr}ge;
        print "$ARGV:@{[line($-[0])]}: $&: kernels/table/precision.def decides types\n" while /(?:[=!]=|\bcase)\s*$type(?!\s*\)?\s*\?)/g;
        ' "$@"
}

sample=$(mktemp -d)
trap 'rm -rf "$sample"' EXIT
sees() { # TEXT: it is a decision
    echo "$1" >"$sample/a.c"
    [ -n "$(decisions "$sample/a.c")" ] || { echo "types.sh does not see: $1"; exit 1; }
}
sees 'int bytes = type == DTYPE_FP32 ? 4 : 2;'
sees 'if (c->train.precision != PRECISION_FP32) return half;'
sees 'switch (t) { case DTYPE_BF16: return 2; }'
sees 'int64_t bytes = count * dtype_bytes(DTYPE_BF16);'
sees 'double peak = 989e12;'
echo 'OPERANDS_CHECK(x->type == DTYPE_FP32 && same(x, y), "fp32"); dtype t[] = {[DTYPE_FP32] = 1}; /* 989e12 */ double tera = 1e12;' >"$sample/a.c"
[ -z "$(decisions "$sample/a.c")" ] || { echo "types.sh takes for decisions: $(decisions "$sample/a.c")"; exit 1; }

found=$(decisions $(find kernels parallel layers models engine tools -name '*.[ch]' ! -path kernels/table/precision.c ! -path kernels/table/devices.c | sort))
[ -z "$found" ] || { echo "$found"; exit 1; }
