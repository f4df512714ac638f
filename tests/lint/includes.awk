# Includes run downward only. A folder that has a row here is a room: what it may include beside itself. Reads scan.awk's facts
# of the product.
BEGIN {
    ground = "memory kernels kernels/table kernels/record"
    abreast = ground " parallel/comm parallel/schedule parallel/watch"
    below = abreast " layers models"
    may["memory"] = ""
    may["kernels/table"] = "memory kernels"
    may["kernels"] = "memory kernels/table"
    may["kernels/record"] = "memory kernels kernels/table"
    may["kernels/ops"] = ground
    may["kernels/cpu"] = may["kernels/cuda"] = ground " kernels/ops"
    may["parallel/comm"] = may["parallel/schedule"] = ground
    may["parallel/comm/nccl"] = ground " parallel/comm kernels/cuda"
    may["parallel/watch"] = ground " parallel/comm"
    may["layers"] = abreast
    may["models"] = abreast " layers"
    may["engine/system"] = "memory"
    may["engine/files"] = "memory engine/system"
    may["engine/text"] = "memory engine/system engine/files engine/store"
    may["engine/tokenizer"] = "memory engine/text"
    may["engine/store"] = "memory engine/system engine/files"
    may["engine/checkpoint"] = "memory engine/system engine/files"
    may["engine/mirror"] = may["engine/store"] " engine/store engine/checkpoint"
    may["engine/config"] = below " engine/system engine/files"
    compiling = below " engine/system engine/files engine/config"
    may["engine/compile/model"] = compiling
    may["engine/compile/order"] = compiling " engine/compile/model"
    may["engine/compile/step"] = may["engine/compile/order"] " engine/compile/order"
    may["engine/compile/time"] = may["engine/compile/step"] " engine/compile/step"
    may["engine/compile"] = may["engine/compile/time"] " engine/compile/time"
    may["engine/compile/plan"] = may["engine/compile"] " engine/compile"
    may["engine/tracking"] = "memory engine/system engine/files"
    may["engine/data"] = below " engine/system engine/files engine/store engine/text engine/tokenizer engine/config"
    may["engine/host"] = below " engine/system engine/files"
    may["engine/run"] = may["engine/compile/plan"] " engine/compile/plan engine/data"
    may["engine/guard"] = may["engine/run"] " engine/run"
    may["engine/state/weights"] = may["engine/run"] " engine/run engine/store engine/checkpoint engine/tokenizer"
    may["engine/state/rank"] = may["engine/state/weights"] " engine/state/weights"
    may["engine/state/save"] = may["engine/state/rank"] " engine/state/rank"
    may["engine/state/nodes"] = may["engine/state/save"] " engine/state/save"
    may["engine/infer"] = may["engine/state/nodes"] " engine/state/nodes"
    may["engine/islands"] = may["engine/infer"] " engine/host"
    may["engine/train/rank"] = may["engine/islands"] " engine/islands engine/guard engine/tracking engine/mirror"
    may["engine/train/report"] = may["engine/train/rank"] " engine/train/rank"
    may["engine/train/saves"] = may["engine/train/report"] " engine/train/report"
    may["engine/train"] = may["engine/train/saves"] " engine/train/saves"
    may["tools"] = may["engine/train"] " engine/text engine/infer engine/islands engine/train"
    may["tools/inspect"] = may["tools/bench"] = may["tools/data"] = may["tools/supervise"] = may["tools"] " tools"
    may["tools/plan"] = may["tools"] " tools"
    may["tools/report"] = may["tools/plan"] " tools/plan"
    # what is behind a room's face is its own
    face["engine/islands"] = "engine/islands/islands.h"
    face["engine/store"] = "engine/store/object.h engine/store/blocks/blocks.h"
    face["engine/mirror"] = "engine/mirror/mirror.h"
    # the threads of transfers are the mirror's, too
    beside["engine/mirror"] = "engine/store/pool.h engine/store/download.h"
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
    if (from != to && to in face && index(" " face[to] " " beside[from] " ", " " $4 " ") == 0) {
        print $2 ":" $3 ": " $4 " is behind " face[to]
        wrong = 1
    }
}

END { exit wrong }
