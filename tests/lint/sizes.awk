# No file above 600 lines, no function above 80, aiming at 60. Reads scan.awk's facts, and "lines FILE N" of other files.
$1 == "lines" && $3 > 600 { complain($2 " has " $3 " lines: it has two subjects; 600 are the most") }

$1 == "function" && $4 - $3 + 1 > 80 {
    complain($2 ":" $3 ": " $5 " has " $4 - $3 + 1 " lines; 80 are the most")
}

function complain(what) {
    print what
    wrong = 1
}

END { exit wrong }
