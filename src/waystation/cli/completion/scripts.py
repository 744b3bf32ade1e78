"""The scripts that complete commands in bash, zsh and fish, made from the parser.

Commands, options and fixed choices are in the script. Names of topics and the like are asked of the broker with
`waystation completion --names`, which gives up after a second. Such names may be anything: they are never evaluated by
the shell, and what it would have to quote is quoted.

shtab makes such scripts too, but in bash it goes by words that bash has cut at colons: it counts `--server HOST:PORT`
as three, so that no name is found behind it, and asks for `eu` where `orders:eu` is to be completed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from waystation.cli.completion.tree import FILE, FOLDER, Spot


def script(shell: str, tree: Sequence[Spot]) -> str:
    return {"bash": _bash, "zsh": _zsh, "fish": _fish}[shell](tree)


def _kinds(spot: Spot) -> str:
    """The arguments of a place as one word each, with `*` behind the last if it may come again."""
    return " ".join(spot.arguments) + ("*" if spot.repeats else "")


def _values(spot: Spot) -> str:
    return " ".join(f"{flag.name}={flag.takes}" for flag in spot.flags if flag.takes is not None)


# -- bash --------------------------------------------------------------------------------------------------------------

_BASH = r"""# Completes waystation in bash. To have it always:
#   waystation completion bash > ~/.local/share/bash-completion/completions/waystation

_waystation_at() {
    commands="" flags="" values="" kinds=""
    case "$1" in
@CASES@
    esac
}

_waystation_is() {
    local cur=$2 name
    case "$1" in
        @*)
            while IFS= read -r name; do
                [[ $name == "$cur"* ]] && COMPREPLY+=("$(printf '%q' "$name")")
            done < <("$3" completion --names "${1#@}" --search "$cur" ${4:+--server "$4"} 2>/dev/null)
            ;;
        /file)
            compopt -o filenames 2>/dev/null
            while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -f -- "$cur")
            ;;
        /folder)
            compopt -o filenames 2>/dev/null
            while IFS= read -r name; do COMPREPLY+=("$name"); done < <(compgen -d -- "$cur")
            ;;
        -) ;;
        *) COMPREPLY=($(compgen -W "${1//,/ }" -- "$cur")) ;;
    esac
}

_waystation() {
    local commands flags values kinds at="" server="" cur="" value="" place=0 i word kind strip
    local line=${COMP_LINE:0:COMP_POINT}
    local -a words list
    IFS=$' \t\n' read -ra words <<<"$line"
    [[ $line == *[[:space:]] ]] && words+=("")
    cur=${words[${#words[@]} - 1]}
    COMPREPLY=()
    _waystation_at ""
    for ((i = 1; i < ${#words[@]} - 1; i++)); do
        word=${words[i]} value=""
        if [[ $word == -* ]]; then
            for kind in $values; do
                [[ $kind == "$word="* ]] && value=${kind#*=}
            done
            if [[ -n $value ]] && ((i + 1 < ${#words[@]} - 1)); then
                i=$((i + 1))
                [[ $word == --server ]] && server=${words[i]}
                value=""
            fi
        elif [[ " $commands " == *" $word "* ]]; then
            at="${at:+$at }$word"
            _waystation_at "$at"
        else
            place=$((place + 1))
        fi
    done
    if [[ -n $value ]]; then
        _waystation_is "$value" "$cur" "${words[0]}" "$server"
    elif [[ $cur == -* ]]; then
        COMPREPLY=($(compgen -W "$flags" -- "$cur"))
    elif [[ -n $commands ]]; then
        COMPREPLY=($(compgen -W "$commands" -- "$cur"))
    else
        read -ra list <<<"${kinds%\*}"
        if ((place >= ${#list[@]})) && [[ $kinds == *\* ]]; then
            place=$((${#list[@]} - 1))
        fi
        ((place < ${#list[@]})) && _waystation_is "${list[place]}" "$cur" "${words[0]}" "$server"
    fi
    if [[ $cur == *:* && $COMP_WORDBREAKS == *:* ]]; then  # bash has cut the word there
        strip=${cur%"${cur##*:}"}
        COMPREPLY=("${COMPREPLY[@]#"$strip"}")
    fi
}

complete -F _waystation waystation
"""


def _bash(tree: Sequence[Spot]) -> str:
    return _BASH.replace("@CASES@", "\n".join(_case(spot) for spot in tree))


def _case(spot: Spot) -> str:
    parts = (
        f'commands="{" ".join(name for name, _ in spot.commands)}"',
        f'flags="{" ".join(flag.name for flag in spot.flags)}"',
        f'values="{_values(spot)}"',
        f'kinds="{_kinds(spot)}"',
    )
    return f'        "{" ".join(spot.path)}") {" ".join(parts)} ;;'


# -- zsh ---------------------------------------------------------------------------------------------------------------

_ZSH = r"""#compdef waystation
# Completes waystation in zsh. To have it always, in a folder of your $fpath:
#   waystation completion zsh > ~/.zsh/completions/_waystation

_waystation_at() {
    verbs=() flags=() values=() kinds=() again=0
    case "$1" in
@CASES@
    esac
}

_waystation_is() {
    local -a found ask
    case "$1" in
        @*)
            ask=("$2" completion --names "${1#@}" --search "$PREFIX" ${3:+--server} ${3:+"$3"})
            found=("${(@f)$("${ask[@]}" 2>/dev/null)}")
            found=("${(@)found:#}")
            (( $#found )) && compadd -a found
            ;;
        /file) _files ;;
        /folder) _files -/ ;;
        -) ;;
        *) found=("${(@s:,:)1}"); compadd -a found ;;
    esac
}

_waystation() {
    local at="" server="" value="" word="" i
    local -i place=1 again=0
    local -a verbs flags values kinds matching
    _waystation_at ""
    for ((i = 2; i < CURRENT; i++)); do
        word=$words[i] value=""
        if [[ $word == -* ]]; then
            matching=(${(M)values:#${word}=*})
            value=${matching[1]#*=}
            if [[ -n $value ]] && ((i + 1 < CURRENT)); then
                i=$((i + 1))
                [[ $word == --server ]] && server=$words[i]
                value=""
            fi
        elif matching=(${(M)verbs:#${word}:*}) && (( $#matching )); then
            at="${at:+$at }$word"
            _waystation_at "$at"
        else
            place=$((place + 1))
        fi
    done
    if [[ -n $value ]]; then
        _waystation_is "$value" "$words[1]" "$server"
    elif [[ $words[CURRENT] == -* ]]; then
        _describe -o option flags
    elif (( $#verbs )); then
        _describe command verbs
    else
        (( again && place > $#kinds )) && place=$#kinds
        (( place <= $#kinds )) && _waystation_is "$kinds[place]" "$words[1]" "$server"
    fi
}

if [[ $zsh_eval_context[-1] == loadautofunc ]]; then
    _waystation "$@"
else
    compdef _waystation waystation
fi
"""


def _zsh(tree: Sequence[Spot]) -> str:
    return _ZSH.replace("@CASES@", "\n".join(_zsh_case(spot) for spot in tree))


def _zsh_case(spot: Spot) -> str:
    verbs = (f"'{name}:{_plain(text)}'" for name, text in spot.commands)
    flags = (f"'{flag.name}:{flag.help}'" for flag in spot.flags)
    values = (f"'{word}'" for word in _values(spot).split())
    kinds = (f"'{kind}'" for kind in spot.arguments)
    parts = (f"verbs=({_joined(verbs)})", f"flags=({_joined(flags)})", f"values=({_joined(values)})")
    return f'        "{" ".join(spot.path)}") {" ".join(parts)} kinds=({_joined(kinds)}) again={int(spot.repeats)} ;;'


# -- fish --------------------------------------------------------------------------------------------------------------

_FISH = r"""# Completes waystation in fish. To have it always:
#   waystation completion fish > ~/.config/fish/completions/waystation.fish

set -g __waystation_paths @PATHS@

# Whether the commands so far are these.
function __waystation_at
    set -l at ""
    for word in (commandline -opc)[2..-1]
        if contains -- (string trim "$at $word") $__waystation_paths
            set at (string trim "$at $word")
        end
    end
    test "$at" = "$argv[1]"
end

function __waystation_names
    set -l words (commandline -opc)
    set -l server
    if set -l i (contains -i -- --server $words)
        set -q words[(math $i + 1)]; and set server --server $words[(math $i + 1)]
    end
    $words[1] completion --names $argv[1] --search (commandline -ct) $server 2>/dev/null
end

complete -c waystation -f
@LINES@
"""


def _fish(tree: Sequence[Spot]) -> str:
    paths = _joined(f"'{' '.join(spot.path)}'" for spot in tree if spot.path)
    lines = [line for spot in tree for line in _fish_lines(spot)]
    return _FISH.replace("@PATHS@", paths).replace("@LINES@", "\n".join(lines))


def _fish_lines(spot: Spot) -> Iterable[str]:
    start = f"complete -c waystation -n '__waystation_at \"{' '.join(spot.path)}\"'"
    for name, text in spot.commands:
        yield f"{start} -a {name} -d '{_plain(text)}'"
    for flag in spot.flags:
        name = f"-l {flag.name[2:]}" if flag.name.startswith("--") else f"-s {flag.name[1:]}"
        yield f"{start} {name} {_fish_kind(flag.takes)}-d '{flag.help}'".rstrip()
    for kind in dict.fromkeys(spot.arguments):
        if kind == FILE:
            yield f"{start} -F"
        elif kind != "-":
            yield f"{start} {_fish_kind(kind).replace('-x ', '')}".rstrip()


def _fish_kind(kind: str | None) -> str:
    if kind is None:
        return ""
    if kind.startswith("@"):
        return f"-x -a '(__waystation_names {kind[1:]})' "
    if kind == FILE:
        return "-r -F "
    if kind == FOLDER:
        return "-x -a '(__fish_complete_directories)' "
    return "-x " if kind == "-" else f"-x -a '{kind.replace(',', ' ')}' "


def _plain(text: str) -> str:
    return "".join(char for char in text if char not in "'\"`$\\:")


def _joined(words: Iterable[str]) -> str:
    return " ".join(words)
