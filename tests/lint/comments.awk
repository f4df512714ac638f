# A line "comment FILE LINE TEXT" for each comment of C, C++ and CUDA sources: a /* */ whole, or // to the end of its line.
function say() {
    gsub(/[ \t]+\*?[ \t]+/, " ", text)
    sub(/^[ *]+/, "", text)
    if (text ~ /[A-Za-z]/)
        print "comment", FILENAME, first, text
    text = ""
}

FNR == 1 { inside = 0 }

{
    line = $0
    for (;;) {
        if (inside) {
            if (!(at = index(line, "*/"))) {
                sub(/^[ \t]*\*/, " ", line)
                text = text " " line
                next
            }
            text = text " " substr(line, 1, at - 1)
            line = substr(line, at + 2)
            inside = 0
            say()
        }
        if (!match(line, /\/\*|\/\/|"([^"\\]|\\.)*"|'([^'\\]|\\.)*'/))
            next
        found = substr(line, RSTART, 2)
        first = FNR
        if (found == "//") {
            text = substr(line, RSTART + 2)
            say()
            next
        }
        line = substr(line, RSTART + (found == "/*" ? 2 : RLENGTH))
        inside = found == "/*"
    }
}
