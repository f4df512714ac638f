# No function above 80 lines, aiming at 60. A file above 700 lines may have two subjects: that is a warning, since a file is cut by
# subject and not by size. Reads scan.awk's facts, and "lines FILE N" of other files.
$1 == "lines" && $3 > 700 { print "warning: " $2 " has " $3 " lines: does it have two subjects?" }

$1 == "function" && $4 - $3 + 1 > 80 {
    complain($2 ":" $3 ": " $5 " has " $4 - $3 + 1 " lines; 80 are the most")
}

function complain(what) {
    print what
    wrong = 1
}

END { exit wrong }
