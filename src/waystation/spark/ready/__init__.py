"""Ready-made pipelines: each is a pipeline file made from a few words, and is run, looked at and stopped as any other.

`READY` is the whole list: what each is for, what it takes, and how its file is made. A file that was made is the
user's: it is plain TOML to read, change and keep, and is never written over. Imports no Spark. Used by `waystation
pipeline ready NAME …`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from waystation.client.links.servers import parse_urls
from waystation.errors import Conflict, Invalid
from waystation.spark.ready import archive, dead_letters, latest, replay, sessions, traffic
from waystation.spark.ready.parts import Argument, Ready, chosen_name

__all__ = ["READY", "Argument", "Ready", "ready_text", "write_ready"]

READY: dict[str, Ready] = {
    one.name: one
    for one in (
        archive.ARCHIVE,
        replay.REPLAY,
        traffic.TRAFFIC,
        dead_letters.DEAD_LETTERS,
        latest.LATEST,
        sessions.SESSIONS,
    )
}


def ready_text(ready: Ready, values: Mapping[str, Any], name: str | None = None) -> tuple[str, str]:
    """The pipeline's name and its file's text; Invalid if something is missing. `values` by the arguments' names."""
    known = {argument.name for argument in ready.arguments}
    given = {key: value for key, value in values.items() if key in known and value not in (None, [], "")}
    for argument in ready.arguments:
        if argument.needed and argument.name not in given:
            raise Invalid(f"{ready.name} needs --{argument.option}: {argument.help}")
    filled = {argument.name: argument.default for argument in ready.arguments} | given
    name = name or chosen_name(ready.name, filled)
    return name, f"# {ready.help}\n# Made by `waystation pipeline ready {ready.name}`; change it as you like.\n\n" + (
        f'name = "{name}"\n{ready.make(filled)}'
    )


def write_ready(
    ready: Ready, values: Mapping[str, Any], folder: Path, name: str | None = None, servers: str | None = None
) -> Path:
    """The pipeline's file NAME.toml in a folder; Conflict if another one of that name is there."""
    name, text = ready_text(ready, values, name)
    if servers is not None:
        servers = ",".join(map(str, parse_urls(servers)))  # a file has no passwords in it
        text = text.replace(f'name = "{name}"\n', f'name = "{name}"\nservers = "{servers}"\n', 1)
    file = folder / f"{name}.toml"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with file.open("x", encoding="utf-8") as made:
            made.write(text)
    except FileExistsError:
        if file.read_text(encoding="utf-8") != text:
            raise Conflict(
                f"{file} is there already and says something else: run it with `waystation pipeline run {file}`, or"
                " give this one another --name"
            ) from None
    except OSError as error:
        raise Invalid(f"{file} cannot be written ({error.strerror}); give another --folder") from None
    return file
