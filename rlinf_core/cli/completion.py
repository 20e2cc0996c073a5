"""``rlinf completion``: a script with which bash or zsh completes commands and options."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

SCRIPT = """# rlinf completion {shell}
{zsh}_rlinf() {{
    local current=${{COMP_WORDS[COMP_CWORD]}} line=rlinf word words
    for word in "${{COMP_WORDS[@]:1:COMP_CWORD-1}}"; do
        case "$line $word" in
            {paths}) line="$line $word" ;;
        esac
    done
    case "$line" in
{cases}
    esac
    COMPREPLY=($(compgen -W "$words" -- "$current"))
}}
complete -o default -F _rlinf rlinf
"""
ZSH = "autoload -U +X compinit && compinit && autoload -U +X bashcompinit && bashcompinit\n"


def completion(shell: str) -> None:
    """Print the script: ``eval "$(rlinf completion bash)"``."""
    from rlinf_core.cli.parsers import make_parser

    words = dict(_words("rlinf", make_parser()))
    paths = "|".join(f'"{line}"' for line in words if line != "rlinf")
    cases = "\n".join(
        f'        "{line}") words="{" ".join(after)}" ;;' for line, after in words.items()
    )
    print(
        SCRIPT.format(shell=shell, zsh=ZSH if shell == "zsh" else "", paths=paths, cases=cases),
        end="",
    )


def _words(line: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, list[str]]]:
    """Yield each command without options, with the words that may follow it."""
    options = [
        option
        for action in parser._actions
        for option in action.option_strings
        if option.startswith("--")
    ]
    commands = next(
        (
            action.choices
            for action in parser._actions
            if isinstance(action, argparse._SubParsersAction)
        ),
        {},
    )
    values = [
        str(choice)
        for action in parser._actions
        if not action.option_strings and not commands
        for choice in action.choices or ()
    ]
    yield line, [*commands, *values, *options]
    for name, below in commands.items():
        yield from _words(f"{line} {name}", below)
