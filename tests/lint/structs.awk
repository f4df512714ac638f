# No struct of more than 40 fields, but the configuration, whose fields are the table of keys. What anonymous structs within it hold
# counts, too. Reads sources of the product.

# the line without comments, strings and characters
function code_of(line,   out, found) {
    out = ""
    for (;;) {
        if (in_comment) {
            if (!(found = index(line, "*/")))
                return out
            line = substr(line, found + 2)
            in_comment = 0
        }
        gsub(/"([^"\\]|\\.)*"/, "", line)
        if (!match(line, /\/\*|\/\//))
            return out line
        out = out substr(line, 1, RSTART - 1) " "
        if (substr(line, RSTART, 2) == "//")
            return out
        line = substr(line, RSTART + 2)
        in_comment = 1
    }
}

FNR == 1 { in_comment = depth = 0 }

{
    code = code_of($0)
    if (depth == 0) {
        if (code !~ /(^|[^A-Za-z_0-9])struct([ \t]+[A-Za-z_0-9]+)?[ \t]*\{/)
            next
        name = code
        sub(/[ \t]*\{.*/, "", name)
        sub(/.*struct[ \t]*/, "", name)
        first = FNR
        sub(/^[^{]*/, "", code)
        fields = parentheses = 0
        declared = ""
    }
    for (i = 1; i <= length(code); i++) {
        c = substr(code, i, 1)
        if (c == "{") {
            depth++
            declared = ""
        } else if (c == "}" && --depth == 0) {
            if (fields > 40 && name != "config")
                complain(FILENAME ":" first ": struct " name " has " fields " fields; 40 are the most")
            break
        } else if (c == "(" || c == ")")
            parentheses += c == "(" ? 1 : -1
        else if (parentheses == 0 && (c == "," || c == ";")) {
            fields += declared ~ /[A-Za-z_]/
            declared = c == "," ? declared : ""
        } else
            declared = declared c
    }
}

function complain(what) {
    print what
    wrong = 1
}

END { exit wrong }
