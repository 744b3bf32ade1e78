"""A config file with everything in it, commented out, from the tables that also check it.

What must hold: it is valid as it stands and says nothing; and with every `#` before a key taken away it is valid and
says the defaults.
"""

from __future__ import annotations

import json
import textwrap

from waystation.cli.server.configuration import variable_of
from waystation.cli.server.options import OPTIONS, Option
from waystation.cli.terminal.setting_units import spelled
from waystation.config import BROKER_SETTINGS, Setting, render

WIDTH = 118

HEAD = """\
# Waystation's config file, with everything that it can have. What is commented out shows the default.
#
# `waystation serve --config FILE` reads it, `waystation config check FILE` finds mistakes in it. A variable of the
# environment wins over it (WAYSTATION_DATA for data, WAYSTATION_SET_NUM_PARTITIONS for num.partitions), and what is
# given on the command line wins over both.
"""

BROKER = """
[broker]
# Settings of the broker, which are also the defaults for topics. Those marked "at start" cannot change while it runs;
# the others can, with `waystation config set`.
"""


def as_toml() -> str:
    parts = [HEAD]
    parts += [_commented(option.doc + _choices(option.choices), _option_line(option)) for option in OPTIONS.values()]
    parts.append(BROKER)
    parts += [
        _commented(
            setting.doc + _choices(setting.choices) + _meaning(setting) + ("" if setting.dynamic else " (at start)"),
            _line(setting),
        )
        for _, setting in sorted(BROKER_SETTINGS.items())
    ]
    return "".join(parts)


def as_json() -> dict[str, list[dict[str, object]]]:
    options: list[dict[str, object]] = [
        {"name": o.name, "variable": o.variable, "default": o.default or None, "kind": o.kind, "doc": o.doc}
        for o in OPTIONS.values()
    ]
    settings: list[dict[str, object]] = [
        {
            "name": s.name,
            "variable": variable_of(s.name),
            "default": s.default,
            "kind": s.kind,
            "choices": list(s.choices),
            "dynamic": s.dynamic,
            "doc": s.doc,
        }
        for _, s in sorted(BROKER_SETTINGS.items())
    ]
    return {"options": options, "settings": settings}


def _choices(choices: tuple[str, ...]) -> str:
    return f" One of {', '.join(choices)}." if choices else ""


def _meaning(setting: Setting) -> str:
    """What a number of ms or bytes is."""
    value = render(setting.default)
    shown = spelled(setting.name, value)
    return "" if shown == value else f" {shown}."


def _commented(doc: str, line: str) -> str:
    told = textwrap.fill(doc, WIDTH, initial_indent="# ", subsequent_indent="# ")
    return f"\n{told}\n#{line}\n"


def _option_line(option: Option) -> str:
    if option.kind == "bool":
        return f"{option.name} = {option.default}"
    return f"{option.name} = {json.dumps(option.default or _placeholder(option))}"


def _placeholder(option: Option) -> str:
    """For what has no default."""
    return {
        "cluster": "etcd://10.0.0.1:2379/prod",
        "listeners": "internal=kafka://127.0.0.1:9093",
        "node": "1",
        "rack": "a",
        "ready-file": "/run/waystation/ready.json",
        "pipelines": "/etc/waystation/pipelines",
    }[option.name]


def _line(setting: Setting) -> str:
    value = setting.default
    name = json.dumps(setting.name) if _needs_quotes(setting.name) else setting.name
    if isinstance(value, bool):
        return f"{name} = {'true' if value else 'false'}"
    return f"{name} = {json.dumps(value)}"


def _needs_quotes(name: str) -> bool:
    """For TOML `waystation.flush` cannot be a value where `waystation.flush.interval.ms` is one too."""
    return any(name.startswith(f"{other}.") for other in BROKER_SETTINGS)
