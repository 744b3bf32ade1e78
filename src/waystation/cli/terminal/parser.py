"""argparse, which says what was meant: `waystation topcs lst --jsn` is answered with the nearest command and option.

Parsers of subcommands are of the same class as the one they are added to, so `main` makes the first one and all are.
An option that a subcommand does not have is its own error, with its own usage, not that of the whole program. Options
that nearly all commands have may be written before the command, too.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

DEFAULT_COLUMNS = 80

SYNONYMS = {
    "list": ("ls",),
    "describe": ("show", "info", "inspect", "get", "view", "status"),
    "create": ("add", "new", "declare", "make"),
    "delete": ("rm", "remove", "del", "drop", "destroy"),
    "alter": ("set", "change", "update", "edit"),
    "close": ("kill", "delete", "end"),
    "cancel": ("delete", "rm"),
    "--server": ("--bootstrap-server", "--bootstrap-servers", "--bootstrap", "--broker", "--broker-list", "-b"),
    "--from": ("--from-beginning", "--offset", "-o"),
    "--count": ("--max-messages", "--limit", "-n", "-c"),
    "--follow": ("--tail", "-f"),
    "--timeout": ("--timeout-ms", "--wait"),
    "--kind": ("--type", "-t"),
    "--kafka": ("--port", "--host", "--bind", "--listen"),
    "--set": ("--config", "-c"),
}
"""What other programs call a verb or an option. The first one in this order that a command has is what was meant."""

POSITIONAL = ("topic", "queue", "group", "exchange")
"""What a command may want as an argument, where other programs have an option of that name."""


ANYWHERE = {"--server": True, "--context": True, "--json": False}
"""Options that may be written before a command, where `kubectl` and others have such; whether a value follows."""


def options_behind(words: list[str]) -> list[str]:
    """The same words, with such options behind the command that follows them: there they are parsed."""
    end = 0
    while end < len(words) and (name := words[end].partition("=")[0]) in ANYWHERE:
        end += 2 if ANYWHERE[name] and words[end] == name else 1
    return [*words[end : end + 1], *words[:end], *words[end + 1 :]] if 0 < end < len(words) else words


class _Formatter(argparse.HelpFormatter):
    """As wide as the terminal. argparse asks `shutil` for that, whenever an argument is added: 2.5 ms to load."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog, width=_columns() - 2)


def _columns() -> int:
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told) > 0:
        return int(told)
    try:
        return os.get_terminal_size(sys.__stdout__.fileno()).columns or DEFAULT_COLUMNS  # type: ignore[union-attr]
    except (AttributeError, ValueError, OSError):  # there is none, or it is no terminal
        return DEFAULT_COLUMNS


class _Verbs(argparse._SubParsersAction):  # type: ignore[type-arg]
    """What the list of verbs says of one is also the beginning of its own help."""

    def add_parser(self, name: str, **options: Any) -> Any:
        said = options.get("help")
        if said and "description" not in options:
            options["description"] = f"{said[0].upper()}{said[1:]}."
        return super().add_parser(name, **options)


class Parser(argparse.ArgumentParser):
    """Of a command, at any depth."""

    _mixing = False

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": _Formatter, **options})
        self.register("action", "parsers", _Verbs)

    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Any = None
    ) -> tuple[Any, list[str]]:
        words = list(sys.argv[1:] if args is None else args)
        if self._verbs() and not words:
            self.print_help(sys.stderr)
            self.exit(2, f"\n{self.prog}: error: a command is missing: `{self.prog} COMMAND`\n")
        if self._verbs():
            words = options_behind(words)
            if words[:1] and words[0].startswith("-") and not self._knows(words[0]):
                self._refuse_option(words[0])
        found, rest = super().parse_known_args(words, namespace)
        if self._mixing:
            return found, rest
        if rest and not self._verbs():
            # argparse wants all arguments side by side; `publish orders --key k hello` has an option in between.
            self._mixing = True
            try:
                found, rest = self.parse_known_intermixed_args(words, namespace)
            finally:
                self._mixing = False
        for word in rest:
            if word.startswith("-") and word != "-":
                self._refuse_option(word)
        if rest:
            self.error(f"too many arguments: {' '.join(rest)}")
        return found, rest

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        if action.choices is None or value in action.choices:
            return
        known = [str(choice) for choice in action.choices]
        hint = near(value, known)
        if not isinstance(action, argparse._SubParsersAction):
            chosen = ", ".join(repr(choice) for choice in known if choice)
            raise argparse.ArgumentError(action, f"invalid choice: {value!r} (choose from {chosen}){hint}")
        hint = hint or f"; there are {', '.join(known)}"
        raise argparse.ArgumentError(None, f"there is no command `{self.prog} {value}`{hint}")

    def _verbs(self) -> bool:
        return any(isinstance(action, argparse._SubParsersAction) for action in self._actions)

    def _knows(self, word: str) -> bool:
        """An option may be shortened, as long as it begins like one of ours."""
        name = word.partition("=")[0]
        return any(text.startswith(name) for text in self._option_string_actions)

    def _refuse_option(self, word: str) -> None:
        name = word.partition("=")[0]
        if self._verbs():
            if name in ANYWHERE:
                self.error(f"a command is missing: `{self.prog} {name}{' …' if ANYWHERE[name] else ''} COMMAND`")
            before = " and ".join(", ".join(ANYWHERE).rsplit(", ", 1))
            self.error(
                f"{name} is no option of `{self.prog}` itself: write it after the command it is for,"
                f" `{self.prog} COMMAND … {name}`; only {before} may come before it"
            )
        shown = [
            text
            for action in self._actions
            for text in action.option_strings
            if text.startswith("--") and action.help != argparse.SUPPRESS
        ]
        argument = name.removeprefix("--")
        if argument in POSITIONAL and any(action.dest == argument for action in self._get_positional_actions()):
            self.error(f"the {argument} is no option of `{self.prog}`: write its name alone, without {name}")
        self.error(f"`{self.prog}` has no option {name}{near(name, shown)}")


def near(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'list'?`, or nothing."""
    from waystation.errors import near_matches

    words = list(known)
    meant = next((verb for verb, others in SYNONYMS.items() if word in others and verb in words), None)
    begins = [other for other in words if word and other.startswith(word)]
    if meant is None and len(begins) == 1:
        meant = begins[0]
    return near_matches(word, words) if meant is None else f"; did you mean {meant!r}?"
