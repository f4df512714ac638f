# No function above 80 lines, aiming at 60; of the product's functions at most 30 in 10,000 take eight or more parameters: the others
# take structs. A file above 800 lines may have two subjects: that is a warning, since a file is cut by subject and not by size.
# No comment beyond 120 columns: code is
# clang-format's. Reads scan.awk's facts, and "lines FILE N" and "wide FILE LINE COLUMNS" of other files.
$1 == "lines" && $3 > 800 { print "warning: " $2 " has " $3 " lines: does it have two subjects?" }

$1 == "function" && $4 - $3 + 1 > 80 {
    complain($2 ":" $3 ": " $5 " has " $4 - $3 + 1 " lines; 80 are the most")
}

$1 == "function" && $2 !~ /^tests\// {
    functions++
    if ($7 >= 8)
        wide[++many] = $2 ":" $3 ": " $5 " has " $7 " parameters"
}

$1 == "wide" { complain($2 ":" $3 ": a comment of " $4 " columns; 120 are the most") }

function complain(what) {
    print what
    wrong = 1
}

END {
    if (many * 10000 > functions * 30) {
        complain(many " of " functions " functions have eight or more parameters; 30 in 10,000 are the most")
        for (i = 1; i <= many; i++)
            print wide[i]
    }
    exit wrong
}
