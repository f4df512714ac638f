#!/bin/sh
# Registers, shared memory, stack and spills of every kernel, the largest over the architectures, from what ptxas said
# when the objects were made. A spill anywhere is a failure. Usage: tests/cuda/cuda_resources.sh BUILD [--all]
set -eu
build=$1
cat "$build"/cuda/kernels/cuda/*.ptxas | awk -v all="${2:-}" '
    /Compiling entry function/ { split($0, part, "\047"); name = part[2]; archs[part[4]] = 1 }
    /bytes stack frame/ {
        for (i = 1; i <= NF; i++) {
            if ($(i + 1) == "bytes" && $(i + 2) == "stack") stack[name] = $i > stack[name] ? $i : stack[name]
            if ($(i + 1) == "bytes" && $(i + 2) == "spill") spill[name] += $i
        }
    }
    /Used [0-9]+ registers/ {
        for (i = 1; i <= NF; i++) {
            if ($i == "Used") registers[name] = $(i + 1) > registers[name] ? $(i + 1) + 0 : registers[name]
            if ($(i + 1) == "bytes" && $(i + 2) ~ /^smem/) shared[name] = $i + 0
        }
    }
    END {
        for (name in registers) {
            kernels++
            spilled += spill[name] > 0
            stacked += stack[name] > 0
            if (all != "" || spill[name] > 0 || stack[name] > 0)
                printf "%3d registers %6d shared %5d stack %5d spilled  %s\n", registers[name], shared[name], stack[name], spill[name], name
        }
        for (arch in archs) list = list " " arch
        printf "cuda_resources: %d kernels,%s: %d with spills, %d with a stack\n", kernels, list, spilled, stacked
        exit !kernels || spilled
    }'
