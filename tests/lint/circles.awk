# No circle of files. A unit is x.c and x.h (or x.cu and x.cuh); one uses another whose header it includes or whose function it
# names. Reads scan.awk's facts of the product.
#
# `allow` names units that may still use one another in a circle, and why.
function unit_of(path) {
    if (!sub(/\.(h|c|cc)$/, "", path))
        sub(/\.cuh?$/, ".cu", path)
    return path
}

# `from` uses `to`; why: where and what
function add_edge(from, to, why) {
    if (from == to || (from, to) in reason)
        return
    reason[from, to] = why
    targets[from] = targets[from] " " to
}

# The shortest list of units from `start` to itself, "" if there is none.
function circle_of(start,   queue, came, head, tail, at, next_units, n, i, path) {
    split("", came)
    queue[head = tail = 1] = start
    while (head <= tail) {
        at = queue[head++]
        n = split(targets[at], next_units, " ")
        for (i = 1; i <= n; i++) {
            if (next_units[i] == start) {
                for (path = at " " start; at != start; path = at " " path)
                    at = came[at]
                return path
            }
            if (!(next_units[i] in came)) {
                came[next_units[i]] = at
                queue[++tail] = next_units[i]
            }
        }
    }
    return ""
}

function tolerated(path,   units, n, i, line, all) {
    n = split(path, units, " ")
    for (line = 1; line <= allowances; line++) {
        all = 1
        for (i = 1; i <= n; i++)
            if (index(" " allowed[line] " ", " " units[i] " ") == 0)
                all = 0
        if (all) {
            needed[line] = 1
            return 1
        }
    }
    return 0
}

function allow(units) {
    allowed[++allowances] = units
}

{ known[unit_of($2)] = 1 }

$1 == "include" { included[++includes] = $2 " " $3 " " $4 }

$1 == "function" { own[$2, $5] = 1 }

$1 == "function" && $6 == "extern" && $2 !~ /h$/ { home[$5] = home[$5] " " unit_of($2) }

$1 == "use" && !(($2, $4) in seen) {
    seen[$2, $4] = 1
    used[++uses] = $2 " " $3 " " $4
}

$1 == "paste" { pasted[++pastes] = $2 " " $3 }

$1 == "row" { row[++rows] = $2 }

END {
    for (i = 1; i <= includes; i++) {
        split(included[i], part, " ")
        if (unit_of(part[3]) in known)
            add_edge(unit_of(part[1]), unit_of(part[3]), part[1] ":" part[2] " includes " part[3])
    }
    for (i = 1; i <= pastes; i++)
        for (j = 1; j <= rows; j++) {
            split(pasted[i], part, " ")
            used[++uses] = part[1] " 0 " part[2] row[j]
        }
    for (i = 1; i <= uses; i++) {
        split(used[i], part, " ")
        if ((part[1], part[3]) in own || index(home[part[3]] " ", " " unit_of(part[1]) " "))
            continue # its own, though others may have that name too
        n = split(home[part[3]], homes, " ")
        for (j = 1; j <= n; j++)
            add_edge(unit_of(part[1]), homes[j], part[1] ":" part[2] " uses " part[3])
    }
    for (unit in targets) {
        if (unit in told || (path = circle_of(unit)) == "")
            continue
        n = split(path, member, " ")
        for (i = 1; i <= n; i++)
            told[member[i]] = 1
        if (tolerated(path))
            continue
        print "circle: " unit
        from = unit
        for (i = 1; i <= n; i++)
            if (member[i] != from || n == 1) {
                print "    " from " -> " member[i] " (" reason[from, member[i]] ")"
                from = member[i]
            }
        wrong = 1
    }
    for (line = 1; line <= allowances; line++)
        if (!(line in needed)) {
            print "circles.awk: " allowed[line] ": allowed, but no circle any more"
            wrong = 1
        }
    exit wrong
}
