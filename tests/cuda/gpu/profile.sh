#!/bin/sh
# Three steps under Nsight Systems, each op a range with its label. Usage: tests/cuda/gpu/profile.sh BUILD [CONFIG.yaml]
set -eu
build=$1 config=${2:-models/configs/gpt2-124m.yaml}
command -v nsys >/dev/null || { echo "profile: nsys is not installed (package nsight-systems-cli)"; exit 1; }
nsys profile --trace=cuda,nvtx,cublas --capture-range=cudaProfilerApi --capture-range-end=stop -f true -o "$build/profile" \
    "$build/phalanx" train "$config" train.device=cuda train.steps=8 profile.start=5 profile.stop=7 evaluate.every=0 \
    run.folder="$build/profile-run" checkpoint.every=0 checkpoint.resume=never
nsys stats --report nvtx_gpu_proj_sum,cuda_gpu_kern_sum "$build/profile.nsys-rep"
