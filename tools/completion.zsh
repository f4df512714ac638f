#compdef phalanx
# zsh completion of phalanx: its commands, options and their words, topics, keys of the configuration and what they may be,
# as the program itself lists them.
_phalanx() {
    local program=${words[1]} command=${words[2]} word=${words[CURRENT]} before=${words[CURRENT - 1]}
    local -a lines choices
    if (( CURRENT == 2 )); then
        compadd -- ${(f)"$($program help commands 2>/dev/null)"}
        return
    fi
    if [[ $command == help ]]; then
        compadd -- ${(f)"$($program help topics 2>/dev/null)"}
        return
    fi
    if [[ $word == *.*=* ]]; then
        lines=(${(M)${(f)"$($program help keys 2>/dev/null)"}:#${word%%=*}=*})
        choices=(${${=lines}[2,-1]})
        compset -P '*='
        if (( $#choices )); then compadd -- $choices; else _files; fi
        return
    fi
    lines=(${(f)"$($program $command --help-words 2>/dev/null)"})
    choices=(${${=${(M)lines:#$before *}}[2,-1]})
    if (( $#choices )); then
        compadd -- $choices
    elif [[ $word == -* ]]; then
        compadd -- ${lines%% *}
    else
        _files
        if [[ ($command == train || $command == plan) && -n $word ]]; then
            compadd -S '' -- ${${(f)"$($program help keys 2>/dev/null)"}%% *}
        fi
    fi
}
_phalanx "$@"
