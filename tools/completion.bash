# bash completion of phalanx: its commands, options and their words, keys of the configuration, as the program itself lists them.
_phalanx() {
    local program=${COMP_WORDS[0]} command=${COMP_WORDS[1]} word=${COMP_WORDS[COMP_CWORD]} before=${COMP_WORDS[COMP_CWORD - 1]}
    local options choices
    if [ "$COMP_CWORD" -eq 1 ]; then
        mapfile -t COMPREPLY < <(compgen -W "$("$program" help commands 2>/dev/null)" -- "$word")
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
            mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -W "$("$program" help keys 2>/dev/null)" -- "$word")
            [[ ${COMPREPLY[0]-} == *= ]] && compopt -o nospace 2>/dev/null
        fi
    fi
    return 0
}
complete -o filenames -F _phalanx phalanx
