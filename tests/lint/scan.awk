# Facts about C, C++ and CUDA sources, a line each, for the lints beside this file:
#   include FILE LINE PATH           a header named in quotes
#   function FILE FIRST LAST NAME KIND N   a definition; KIND is static or extern, or macro for one whose name a macro makes; N
#                                    parameters, 0 for a kernel
#   use FILE LINE NAME [call]        a name in a body, an initializer or a macro: not its declaration, not a member's; called, or named
#   closes FILE LINE NAME            the function by which locals of a type are released (memory/scope.h)
#   paste FILE PREFIX                PREFIX##name in a macro: with the rows of the .def files, a use of each PREFIXrow
#   row NAME                         the first argument of a row of a .def file
#   named NAME                       a function that the expression of another row calls
#   lines FILE N
#   wide FILE LINE COLUMNS          a line with a comment that is wider than 120 columns
# It relies on clang-format's shape: a definition's braces, and nothing else, are alone at the left edge.

function finish_file() {
    if (file != "")
        print "lines", file, count
}

# the line without comments; a string or a character becomes a space
function code_of(line,   out, found) {
    out = ""
    for (;;) {
        if (in_comment) {
            if (!(found = index(line, "*/")))
                return out
            line = substr(line, found + 2)
            in_comment = 0
        }
        if (!match(line, /\/\*|\/\/|["']/))
            return out line
        found = substr(line, RSTART, RLENGTH)
        out = out substr(line, 1, RSTART - 1) " "
        line = substr(line, RSTART + RLENGTH)
        commented = commented || found == "//" || found == "/*"
        if (found == "//")
            return out
        if (found == "/*")
            in_comment = 1
        else if (found == "\"" && match(line, /^([^"\\]|\\.)*"/))
            line = substr(line, RLENGTH + 1)
        else if (found == "'" && match(line, /^([^'\\]|\\.[0-9a-fA-F]*)'/))
            line = substr(line, RLENGTH + 1)
    }
}

function uses_of(code,   words, n, i, made) {
    while (match(code, /[A-Za-z_0-9]+##[A-Za-z_0-9]+\(?/)) { # a name that a macro makes; with a parenthesis, declares
        made = substr(code, RSTART, RLENGTH)
        code = substr(code, 1, RSTART - 1) " " substr(code, RSTART + RLENGTH)
        if (made !~ /\($/) {
            sub(/##.*/, "", made)
            print "paste", file, made
        }
    }
    gsub(/(->|\.)[ \t]*[A-Za-z_][A-Za-z_0-9]*/, " ", code)
    gsub(/\(/, " @ ", code)
    gsub(/[^A-Za-z_0-9@]+/, " ", code)
    n = split(code, words, " ")
    for (i = 1; i <= n; i++)
        if (words[i] ~ /^[A-Za-z_]/)
            print "use", file, count, words[i], (i < n && words[i + 1] == "@" ? "call" : "")
}

# the name that is declared: before the first parenthesis that no macro in capitals owns
function name_of(signature,   name) {
    name = ""
    gsub(/__attribute__ *\(\([^()]*(\([^()]*\))?[^()]*\)\)/, " ", signature)
    while (match(signature, /[A-Za-z_][A-Za-z_0-9]*\(/)) {
        name = substr(signature, RSTART, RLENGTH - 1)
        if (name !~ /^[A-Z_0-9]+$/ && name != "alignas")
            return name
        signature = substr(signature, RSTART + RLENGTH)
    }
    return ""
}

# the number of parameters: commas outside all parentheses but the first pair behind the name; a kernel's are not counted
function parameters_of(signature, name,   list, depth, n, i, c) {
    if (signature ~ /(^|[^A-Za-z_])KERNEL\(/ || !match(signature, "(^|[^A-Za-z_0-9])" name "\\("))
        return 0
    list = substr(signature, RSTART + RLENGTH)
    n = list ~ /^ *(void *)?\)/ ? 0 : 1
    for (i = 1; depth >= 0 && i <= length(list); i++) {
        c = substr(list, i, 1)
        depth += (c ~ /[(<[]/) - (c ~ /[])>]/)
        n += c == "," && depth == 0
    }
    return n
}

FNR == 1 {
    finish_file()
    file = FILENAME
    in_comment = directive = in_body = in_signature = in_type = nameless = 0
    signature = ""
}

{ count = FNR }

/^[ \t]*#[ \t]*include[ \t]*"/ {
    split($0, quoted, "\"")
    print "include", file, count, quoted[2]
    next
}

{
    commented = in_comment
    code = code_of($0)
    if (length($0) > 120 && commented)
        print "wide", file, count, length($0)
    if (code ~ /^[ \t]*$/) {
        directive = 0
        next
    }
}

file ~ /\.def$/ {
    if (match(code, /^[A-Z]+\([a-z_0-9]+/)) {
        uses_of(code)
        sub(/^[A-Z]+\(/, "", code)
        sub(/[^a-z_0-9].*/, "", code)
        print "row", code
    } else
        while (match(code, /[a-z][a-z_0-9]*\(/)) { # an expression of a row whose first word is no name
            print "named", substr(code, RSTART, RLENGTH - 1)
            code = substr(code, RSTART + RLENGTH)
        }
    next
}

directive || code ~ /^[ \t]*#/ { # macros
    if (!directive && match(code, /^#define [A-Z]+\(name\)[^#]*[^A-Za-z_#][a-z_]+##name/)) { # one that declares PREFIX##name
        macro = code
        sub(/^#define /, "", macro)
        sub(/\(.*/, "", macro)
        prefix = code
        sub(/##name.*/, "", prefix)
        sub(/.*[^a-z_]/, "", prefix)
        made_by[macro] = prefix
    } else {
        sub(/^[ \t]*#[ \t]*(define[ \t]+[A-Za-z_0-9]+)?/, "", code)
        uses_of(code)
    }
    directive = $0 ~ /\\$/
    next
}

code ~ /^AUTO_CLOSES\(/ { # the closing function declared above it
    sub(/.*, */, "", code)
    sub(/\).*/, "", code)
    print "closes", file, count, code
    next
}

in_body {
    if (code ~ /^}/) {
        print "function", file, first, count, name, kind, parameters
        in_body = 0
    } else
        uses_of(code)
    next
}

in_type {
    if (code ~ /^}/)
        in_type = 0
    else if (file !~ /\.[ch]$/) # a member function's body
        uses_of(code)
    next
}

code ~ /^\{[ \t]*$/ && signature != "" {
    name = name_of(signature)
    kind = nameless || (" " signature " ") ~ /[^A-Za-z_](static|template|KERNEL|DEVICE)[^A-Za-z_]/ ? "static" : "extern"
    if (name == "" && match(signature, /^[A-Z]+\([a-z_0-9]+\)/)) {
        macro = substr(signature, 1, index(signature, "(") - 1)
        name = signature
        sub(/^[A-Z]+\(/, "", name)
        sub(/\).*/, "", name)
        if (macro in made_by)
            name = made_by[macro] name
        else
            kind = "macro"
    }
    if (name == "") {
        name = "?"
        kind = "macro"
    }
    parameters = parameters_of(signature, name)
    in_body = 1
    in_signature = 0
    signature = ""
    next
}

in_signature {
    signature = signature " " code
    if (code ~ /;[ \t]*$/) {
        in_signature = 0
        signature = ""
    }
    next
}

code ~ /^namespace *$/ || code ~ /^namespace *\{/ { # one without a name: what is in it is static
    nameless = 1
    next
}

nameless && code ~ /^}[ \t]*$/ {
    nameless = 0
    next
}

code ~ /^(typedef )?(struct|union|enum)[^;()]*\{[ \t]*$/ {
    in_type = 1
    next
}

code ~ /^[A-Z_0-9]+\(.*\)[ \t]*$/ { # a macro: of a definition that follows, or one that makes something of what it names
    uses_of(code)
    signature = code
    gsub(/[a-z][A-Za-z_0-9]*\(/, "", signature) # a call in its arguments declares nothing
    first = count
    next
}

code ~ /^[A-Za-z_]/ {
    before = code
    sub(/\(.*/, "", before)
    if (code ~ /\(/ && before !~ /=/ && code !~ /= *\{|\) = / && code !~ /^(_Static_assert|static_assert)/) {
        if (signature == "" || signature !~ /^template/)
            first = count
        signature = signature " " code
        sub(/^ /, "", signature)
        if (code ~ /;[ \t]*$/)
            signature = ""
        else
            in_signature = 1
        next
    }
    if (code ~ /^template/) {
        first = count
        signature = code
        next
    }
    signature = ""
}

{ uses_of(code) }

END { finish_file() }
