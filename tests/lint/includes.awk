# Includes run downward only. A folder that has a row here is a room: what it may include beside itself. Reads scan.awk's facts
# of the product.
BEGIN {
    below = "memory kernels parallel layers models"
    may["memory"] = ""
    may["kernels"] = "memory"
    may["kernels/cpu"] = "memory kernels"
    may["kernels/cuda"] = "memory kernels"
    may["parallel"] = "memory kernels"
    may["parallel/nccl"] = "memory kernels parallel kernels/cuda"
    may["layers"] = "memory kernels parallel"
    may["models"] = "memory kernels parallel layers"
    may["engine/text"] = "memory"
    may["engine/files"] = "memory"
    may["engine/config"] = below " engine/files"
    may["engine/compile"] = below " engine/files engine/config"
    may["engine/islands"] = below " engine/files"
    may["engine"] = below " engine/files engine/text engine/config engine/compile engine/islands"
    may["tools"] = may["engine"] " engine"
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
