"""Names for brokers, kept in a file of this user: `prod` for an address; and which broker a command talks to.

The file is `contexts.json` below `$XDG_CONFIG_HOME/waystation` (else `~/.config/waystation`), readable by its owner
alone. A change appears whole or not at all. `waystation context` writes it, every command that connects reads it.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from waystation.cli.terminal.arguments import CONTEXT_VARIABLE, DEFAULT_SERVER, SERVER_VARIABLE
from waystation.cli.terminal.output import note
from waystation.errors import Invalid, NotFound, near_matches

FILE = "contexts.json"
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


BY_DEFAULT = "the default"
"""Where an address comes from that nobody chose."""


class Context(msgspec.Struct):
    """A broker that has a name."""

    server: str


class Contexts(msgspec.Struct):
    """The file's content."""

    current: str | None = None
    contexts: dict[str, Context] = {}

    def find(self, name: str) -> Context:
        found = self.contexts.get(name)
        if found is None:
            near = near_matches(name, self.contexts)
            raise NotFound(f"there is no context {name!r}{near}; `waystation context list` shows what there is")
        return found


@dataclass(frozen=True, slots=True)
class ChosenServer:
    """The broker to talk to, and why it is this one."""

    server: str
    source: str
    context: str | None = None

    def __str__(self) -> str:
        from waystation.client.links.servers import shown

        named = f"context {self.context}, " if self.context is not None else ""
        by = "default" if self.source == BY_DEFAULT else f"by {self.source}"
        return f"{shown(self.server)} ({named}{by})"


def choose_server(arguments: argparse.Namespace, environment: Mapping[str, str] = os.environ) -> ChosenServer:
    """What is typed goes before what the environment says: --server, --context, $WAYSTATION_SERVER,
    $WAYSTATION_CONTEXT, the current context, this machine."""
    flag: str | None = getattr(arguments, "server", None)
    if flag is not None:
        return ChosenServer(flag, "--server")
    name, said_by = getattr(arguments, "context", None), "--context"
    if name is None and (variable := environment.get(SERVER_VARIABLE)):
        return ChosenServer(variable, f"${SERVER_VARIABLE}")
    if name is None and (variable := environment.get(CONTEXT_VARIABLE)):
        name, said_by = variable, f"${CONTEXT_VARIABLE}"
    known = load(environment)
    if name is None and known.current is not None:
        name, said_by = known.current, "the current context"
    if name is None:
        return ChosenServer(DEFAULT_SERVER, BY_DEFAULT)
    return ChosenServer(known.find(name).server, said_by, name)


def note_ignored(arguments: argparse.Namespace) -> None:
    """Says so if somebody names a context, and --server wins over it."""
    if arguments.context is not None and getattr(arguments, "server", None) is not None:
        note(f"--context {arguments.context} has no effect: --server overrides it")


# -- the file ----------------------------------------------------------------------------------------------------------


def path(environment: Mapping[str, str] = os.environ) -> Path:
    base = environment.get("XDG_CONFIG_HOME") or ""
    folder = Path(base) if os.path.isabs(base) else Path.home() / ".config"  # the specification ignores relative ones
    return folder / "waystation" / FILE


def load(environment: Mapping[str, str] = os.environ) -> Contexts:
    """What the file says; no file says nothing. Invalid if it is not one of ours."""
    file = path(environment)
    try:
        return msgspec.json.decode(file.read_bytes(), type=Contexts)
    except (FileNotFoundError, NotADirectoryError):
        return Contexts()
    except msgspec.MsgspecError as error:
        raise Invalid(f"{file} is not a list of contexts ({error}): fix it, or delete it") from None


def save(contexts: Contexts, environment: Mapping[str, str] = os.environ) -> None:
    """Rewrites the file: a reader sees all of it or the one before, also after a power cut."""
    import tempfile

    file = path(environment)
    file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(prefix=f".{FILE}.", dir=file.parent)  # with mode 0600
    try:
        with os.fdopen(descriptor, "wb") as written:
            written.write(msgspec.json.format(msgspec.json.encode(contexts)) + b"\n")
            written.flush()
            os.fsync(descriptor)
        os.replace(temporary, file)
    except BaseException:
        with suppress(OSError):
            os.unlink(temporary)
        raise
