# Figures of the house out of the facts of scan.awk and comments.awk, held to the budget; house.sh says what they mean.
BEGIN {
    split("compile_options_from update_append saver_begin", roots, " ")
    split("begin with a preposition|say what ...|say whose or whoever|say nobody or nothing|say those of or those that|say so many|say behind", \
          habit, "|")
    pattern[1] = "^(of|by|for|in|on|at|to|from|with|without|as|after|before|beside|behind|between|within|along|until|since|into|over|under) "
    pattern[2] = "(^|[^a-z])what [a-z]"
    pattern[3] = "(^|[^a-z])(whose|whoever|whosoever) "
    pattern[4] = "(^|[^a-z])(nobody|nothing)([^a-z]|$)"
    pattern[5] = "(^|[^a-z])those (of|that) "
    pattern[6] = "(^|[^a-z])so many([^a-z]|$)"
    pattern[7] = "(^|[^a-z])behind([^a-z]|$)"
}

FILENAME != ARGV[1] { # the budget: NAME VALUE, with dashes in the name; what stands behind says why it rose
    if ($0 ~ /^#/ || NF < 2)
        next
    if ($1 in budget && $2 > budget[$1] && NF < 3)
        complain("tests/lint/budget:" FNR ": " $1 " rises, and no word says why")
    budget[$1] = $2
    next
}

$1 == "tests" { figure("lines-tests", $2) }

$1 == "lines" {
    room = $2
    sub(/\/[^\/]*$/, "", room)
    lines[room] += $3
    total += $3
    if (room ~ /^engine\/(islands|outer|server|store|mirror)/ || $2 ~ /^engine\/data\/stored/)
        apart += $3
    tiny += $3 <= 30
    largest = $3 > largest ? $3 : largest
}

$1 == "function" {
    name = $5
    length_of[++functions] = $4 - $3 + 1
    longest = length_of[functions] > longest ? length_of[functions] : longest
    where[functions] = $2
    first[functions] = $3
    last[functions] = $4
    named[functions] = name
    kind[functions] = $6
    if ($6 == "static")
        static_of[$2, name] = functions
    else
        extern_of[name] = functions
}

$1 == "use" { used[++uses] = $2 SUBSEP $3 SUBSEP $4 SUBSEP ($5 == "call") }

$1 == "comment" {
    comments++
    text = tolower($0)
    sub(/^comment [^ ]+ [0-9]+ /, "", text)
    for (i = 1; i in pattern; i++)
        habits[i] += text ~ pattern[i]
}

function figure(name, value) {
    order[++figures] = name
    value_of[name] = value
}

function complain(what) {
    if (how == "check")
        print what
    wrong = 1
}

function reach(name,   n, queue, head, f, i, next_of, seen) {
    if (!(name in extern_of))
        return 0
    queue[n = 1] = extern_of[name]
    seen[queue[1]] = 1
    for (head = 1; head <= n; head++) {
        split(calls[queue[head]], next_of, " ")
        for (i = 1; i in next_of; i++)
            if (!(next_of[i] in seen)) {
                seen[next_of[i]] = 1
                queue[++n] = next_of[i]
            }
    }
    return n
}

END {
    for (i = 1; i <= functions; i++)
        within[where[i]] = within[where[i]] " " i
    for (i = 1; i <= uses; i++) {
        split(used[i], u, SUBSEP)
        callee = (u[1], u[3]) in static_of ? static_of[u[1], u[3]] : u[3] in extern_of ? extern_of[u[3]] : 0
        if (!callee)
            continue
        caller = 0
        n = split(within[u[1]], at, " ")
        for (j = 1; j <= n; j++)
            if (u[2] >= first[at[j]] && u[2] <= last[at[j]])
                caller = at[j]
        if (caller == callee) # its own name, or itself once more
            continue
        count[callee]++
        pointer[callee] = pointer[callee] || !u[4]
        if (caller)
            calls[caller] = calls[caller] " " callee
        if (!((callee, u[1]) in seen_in) && u[1] != where[callee]) {
            seen_in[callee, u[1]] = 1
            files[callee]++
        }
    }
    for (i = 1; i <= functions; i++) {
        if (where[i] ~ /h$/)
            continue
        if (kind[i] == "static" && !pointer[i]) {
            statics++
            once += count[i] == 1
        } else if (kind[i] == "extern" && files[i] > 0) {
            exports++
            single += count[i] == 1 && !pointer[i]
        }
    }
    for (i = 1; i <= functions; i++)
        by_length[length_of[i]]++
    figure("lines-product", total)
    figure("lines-but-islands-and-store", total - apart)
    m = 0
    for (room in lines)
        sorted[++m] = room
    for (i = 2; i <= m; i++)
        for (j = i; j > 1 && sorted[j] < sorted[j - 1]; j--) {
            room = sorted[j]
            sorted[j] = sorted[j - 1]
            sorted[j - 1] = room
        }
    for (i = 1; i <= m; i++)
        figure("lines-" sorted[i], lines[sorted[i]])
    figure("statics-used-once", int(1000 * once / statics + 0.5))
    figure("exports-of-one-file", int(1000 * single / exports + 0.5))
    figure("files-of-30-lines", tiny)
    figure("longest-function", longest)
    figure("function-99th-percentile", percentile())
    figure("largest-file", largest)
    for (i = 1; i in habit; i++) {
        name = "comments-that-" habit[i]
        gsub(/ \.\.\./, "", name)
        gsub(/ /, "-", name)
        figure(name, int(1000 * habits[i] / comments + 0.5))
    }
    for (i = 1; i in roots; i++)
        figure("reached-from-" roots[i], reach(roots[i]))
    for (i = 1; i <= figures; i++) {
        name = order[i]
        if (how != "check") # what is written never rises
            print name, how == "write" && name in budget && budget[name] < value_of[name] ? budget[name] : value_of[name]
        else if (!(name in budget))
            complain("tests/lint/budget has no line of " name ", which is " value_of[name])
        else if (value_of[name] > budget[name])
            complain(name " is " value_of[name] "; the budget has " budget[name])
    }
    for (name in budget)
        if (how == "check" && !(name in value_of))
            complain("tests/lint/budget: there is no figure " name)
    exit how == "check" && wrong
}

function percentile(   n, i) {
    for (i = longest; i > 0; i--) {
        n += by_length[i]
        if (n > functions / 100)
            return i
    }
}
