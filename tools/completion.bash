# bash completion of phalanx: its commands, options and their words, topics, keys of the configuration and what they may be,
# as the program itself lists them.
_phalanx() {
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local options choices key=
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" help commands 2>/dev/null)" -- "$word")
        return
    fi
    if [ "$command" = help ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" help topics 2>/dev/null)" -- "$word")
        return
    fi
    # a = is a word of its own where it breaks words: KEY = VALUE
    if [ "$word" = = ]; then
        key=$before word=
    elif [ "$before" = = ]; then
        key=${COMP_WORDS[COMP_CWORD - 2]}
    elif [[ $word == *.*=* ]]; then
        key=${word%%=*} word=${word#*=}
    fi
    if [ -n "$key" ]; then
        choices=$("$program" help keys 2>/dev/null | awk -v key="$key=" '$1 == key { $1 = ""; print }')
        if [ -n "${choices// /}" ]; then
            mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
        else
            mapfile -t COMPREPLY < <(compgen -f -- "$word")
        fi
        return
    fi
    options=$("$program" "$command" --help-words 2>/dev/null)
    choices=$(awk -v option="$before" '$1 == option { $1 = ""; print }' <<<"$options")
    if [ -n "${choices// /}" ]; then
        mapfile -t COMPREPLY < <(compgen -W "$choices" -- "$word")
    elif [[ $word == -* ]]; then
        mapfile -t COMPREPLY < <(compgen -W "$(awk '{ print $1 }' <<<"$options")" -- "$word")
    else
        mapfile -t COMPREPLY < <(compgen -f -- "$word")
        if [[ $command == train || $command == plan ]] && [ -n "$word" ]; then
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$("$program" help keys 2>/dev/null | awk '{ print $1 }')" -- "$word")
            [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null
        fi
    fi
    return 0
}
complete -o filenames -F _phalanx phalanx
