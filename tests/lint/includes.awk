# Includes run downward only. A folder that has a row here is a room: what it may include beside itself. Reads scan.awk's facts
# of the product.
BEGIN {
    ground = "memory kernels"
    abreast = ground " parallel/comm parallel/schedule parallel/watch"
    below = abreast " layers models"
    may["memory"] = ""
    may["kernels"] = "memory"
    may["kernels/ops"] = ground
    may["kernels/cpu"] = may["kernels/cuda"] = ground " kernels/ops"
    may["parallel/comm"] = may["parallel/schedule"] = ground
    may["parallel/comm/nccl"] = ground " parallel/comm kernels/cuda"
    may["parallel/watch"] = ground " parallel/comm"
    may["layers"] = abreast
    may["models"] = abreast " layers"
    may["engine/files"] = "memory"
    may["engine/text"] = "memory engine/files engine/store/s3 engine/store"
    may["engine/tokenizer"] = "memory engine/text"
    may["engine/store/s3"] = "memory engine/files"
    may["engine/store/blocks"] = may["engine/store"] = "memory engine/files engine/store/s3"
    may["engine/checkpoint"] = "memory engine/files"
    may["engine/mirror"] = may["engine/store"] " engine/store engine/checkpoint"
    may["engine/config"] = below " engine/files"
    compiling = below " engine/files engine/config"
    may["engine/compile/model"] = compiling
    may["engine/compile/order"] = compiling " engine/compile/model"
    may["engine/compile/step"] = may["engine/compile/order"] " engine/compile/order"
    may["engine/compile/time"] = may["engine/compile/step"] " engine/compile/step"
    may["engine/compile"] = may["engine/compile/time"] " engine/compile/time"
    may["engine/compile/plan"] = may["engine/compile"] " engine/compile"
    may["engine/islands"] = below " engine/files engine/checkpoint"
    may["engine/tracking"] = "memory engine/files"
    may["engine/data"] = below " engine/files engine/store/s3 engine/store/blocks engine/text engine/tokenizer engine/config"
    may["engine/host"] = below " engine/files"
    may["engine/run"] = may["engine/compile/plan"] " engine/compile/plan engine/data"
    may["engine/guard"] = may["engine/run"] " engine/run"
    may["engine/state"] = may["engine/run"] " engine/run engine/store engine/checkpoint engine/tokenizer"
    may["engine/infer"] = may["engine/state"] " engine/state"
    may["engine/outer"] = may["engine/infer"] " engine/islands engine/host"
    may["engine/server"] = may["engine/outer"] " engine/outer"
    may["engine/train/rank"] = may["engine/server"] " engine/guard engine/tracking engine/mirror"
    may["engine/train/report"] = may["engine/train/rank"] " engine/train/rank"
    may["engine/train/saves"] = may["engine/train/report"] " engine/train/report"
    may["engine/train"] = may["engine/train/saves"] " engine/store/s3 engine/train/saves"
    may["tools"] = may["engine/train"] " engine/text engine/store engine/infer engine/server engine/train"
    may["tools/plan"] = may["tools/data"] = may["tools/supervise"] = may["tools"] " tools"
}

# the longest name above that the path begins with; a folder without a row belongs to the room around it
function room_of(path) {
    while (sub(/\/[^\/]*$/, "", path))
        if (path in may)
            return path
    return path
}

$1 == "include" {
    from = room_of($2)
    to = room_of($4)
    if (from != to && index(" " may[from] " ", " " to " ") == 0) {
        print $2 ":" $3 ": " from "/ may not include " to "/"
        wrong = 1
    }
}

END { exit wrong }
