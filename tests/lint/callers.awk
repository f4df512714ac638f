# Every function of the product has a caller in the product: one that only tests call is given a use or removed, one that only
# its own file and no test calls is static. Reads scan.awk's facts of all sources.
#
# `excuse` names what may have no caller, and why; an excuse without need is refused too.
BEGIN {
    excuse["scanner_pattern"] = "the patterns with a scanner of their own, each of which is compared with the plain engine"
    excuse["object_counted"] = "object storage: tests count requests"
}

function of_tests(path) {
    return path ~ /^tests\//
}


$1 == "function" && !of_tests($2) && $6 != "macro" && $5 != "main" {
    defined[++functions] = $2 " " $3 " " $4 " " $5 " " $6
}

$1 == "use" || $1 == "closes" { use($2, $3, $4) }

$1 == "paste" { pasted[++pastes] = $2 " " $3 }

$1 == "row" { row[++rows] = $2 }

$1 == "named" { in_table[$2] = 1 }

# outside: in another file; inside: in its own file; last_inside: the line, so that a function's own body can be left out
function use(path, line, name) {
    if (of_tests(path)) {
        tested[name] = 1
        return
    }
    if (path ~ /\.def$/) # whoever includes the table may make a use of it
        in_table[name] = 1
    if (!((path, name) in lines)) {
        users[name]++
        last_user[name] = path
    }
    lines[path, name] = lines[path, name] " " line
}

function used_inside(path, first, last, name,   at, n, i) {
    n = split(lines[path, name], at, " ")
    for (i = 1; i <= n; i++)
        if (at[i] < first || at[i] > last)
            return 1
    return 0
}

function complain(path, line, name, what) {
    if (name in excuse) {
        needed[name] = 1
        return
    }
    print path ":" line ": " name " " what
    wrong = 1
}

END {
    for (i = 1; i <= pastes; i++)
        for (j = 1; j <= rows; j++) {
            split(pasted[i], part, " ")
            use(part[1], 0, part[2] row[j])
        }
    for (i = 1; i <= functions; i++) {
        split(defined[i], part, " ")
        path = part[1]
        name = part[4]
        if (name in in_table)
            continue
        others = users[name] - ((path, name) in lines)
        if (others > 0 && part[5] == "extern")
            continue
        if (path ~ /h$/ && others > 0)
            continue
        if (!used_inside(path, part[2] + 0, part[3] + 0, name))
            complain(path, part[2], name, name in tested ? "is called by tests only" : "is never called")
        else if (part[5] == "extern" && path !~ /h$/ && !(name in tested))
            complain(path, part[2], name, "is called in its own file only: make it static")
    }
    for (name in excuse)
        if (!(name in needed)) {
            print "callers.awk: " name " is excused and has no need of it"
            wrong = 1
        }
    exit wrong
}
