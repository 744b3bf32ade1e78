"""`waystation config`: what a broker is told and by whom, mistakes in a config file, changes while it runs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import add_context, add_server, examples, parse_pairs
from waystation.cli.terminal.output import note, print_json, print_table, spell_count
from waystation.cli.terminal.setting_units import plain, spelled
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.cli.server.configuration import Chosen, Configuration
    from waystation.config import Setting

HIDDEN = "(hidden)"


def configure(parser: argparse.ArgumentParser) -> None:
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)

    show = verbs.add_parser("show", help="show every setting and where its value comes from")
    show.add_argument("--config", metavar="FILE", help="with this file, as `serve --config` would take it")
    show.add_argument("--changed", action="store_true", help="only settings that differ from their defaults")
    show.add_argument("--server", metavar="HOST:PORT", help="of the broker that runs there, instead")
    add_context(show)
    show.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    show.set_defaults(run=_show)

    check = verbs.add_parser("check", help="find the mistakes in config files")
    check.add_argument("file", nargs="+", metavar="FILE")
    check.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    check.set_defaults(run=_check)

    change = verbs.add_parser("set", help="change settings of a running broker")
    change.add_argument("pair", nargs="*", metavar="NAME=VALUE")
    change.add_argument(
        "--unset",
        metavar="NAME",
        action="append",
        default=[],
        help="reset to its value at the start of the broker; may be repeated",
    )
    change.add_argument("--yes", action="store_true", help="do not ask before retention is shortened")
    add_server(change)
    change.formatter_class = argparse.RawDescriptionHelpFormatter
    change.epilog = examples(
        "waystation config set log.retention.ms=7d num.partitions=4",
        "waystation config set --unset log.retention.ms",
    )
    change.set_defaults(run=_set)

    example = verbs.add_parser("example", help="print a config file with all settings, commented out")
    example.add_argument("--json", action="store_true", help="the same as JSON: names, defaults, kinds")
    example.set_defaults(run=_example)


# -- show --------------------------------------------------------------------------------------------------------------


def _show(arguments: argparse.Namespace) -> int:
    if arguments.server is not None or arguments.context is not None:
        if arguments.config is not None:
            raise Invalid("give --config (what a broker would be told) or --server (what one was told), not both")
        from waystation.cli.contexts import choose_server

        arguments.server = choose_server(arguments).server
        return _show_running(arguments)
    from waystation.cli.server.configuration import gather
    from waystation.cli.server.options import OPTIONS
    from waystation.config import BROKER_SETTINGS, UNUSED_SETTINGS

    told = gather(os.environ, file=arguments.config)
    known = BROKER_SETTINGS | {name: row for name, row in UNUSED_SETTINGS.items() if name in told.settings}
    for doubt in told.doubts:
        note(doubt)
    options = [(name, told.option(name), option.default) for name, option in OPTIONS.items()]
    settings = [_row(name, told, setting) for name, setting in sorted(known.items())]
    if arguments.changed:
        options = [row for row in options if row[1].kind != "default"]
        settings = [row for row in settings if row[1].kind != "default"]
    if arguments.json:
        print_json({"options": [_as_json(*row) for row in options], "settings": [_as_json(*row) for row in settings]})
        return 0
    rows = [
        (name, spelled(name, chosen.text) or "-", chosen.where or chosen.kind) for name, chosen, _ in options + settings
    ]
    if rows:
        print_table(("name", "value", "from"), rows)
    else:
        print("everything is at its default")
    return 0


def _row(name: str, told: Configuration, setting: Setting) -> tuple[str, Chosen, str]:
    from waystation.cli.server.configuration import Chosen
    from waystation.config import render

    chosen = told.setting(name)
    if setting.secret and chosen.text:
        chosen = Chosen(HIDDEN, chosen.kind, chosen.where)
    return name, chosen, render(setting.default)


def _as_json(name: str, chosen: Chosen, default: str) -> dict[str, object]:
    return {
        "name": name,
        "value": chosen.text or None,
        "default": default or None,
        "source": chosen.kind,
        "where": chosen.where or None,
    }


def _show_running(arguments: argparse.Namespace) -> int:
    from waystation.cli.terminal.native import open_client

    with open_client(arguments) as mq:
        answer: Any = mq.view("settings")
    settings = sorted(answer["settings"], key=lambda one: str(one["name"]))
    if arguments.changed:
        settings = [one for one in settings if one["source"] != "default"]
    if arguments.json:
        print_json({"settings": settings})
    elif settings:
        print_table(
            ("name", "value", "default", "from"),
            [(one["name"], _shown(one, "value"), _shown(one, "default"), one["source"]) for one in settings],
        )
    else:
        print("everything is at its default")
    return 0


def _shown(one: dict[str, Any], which: str) -> str:
    from waystation.config import render

    value = one[which]
    if value is None or value == "":
        return "-"
    return spelled(one["name"], render(value) if isinstance(value, bool | int | float) else str(value))


# -- check -------------------------------------------------------------------------------------------------------------


def _check(arguments: argparse.Namespace) -> int:
    from waystation.cli.server.config_file import check_config

    files = [check_config(path) for path in arguments.file]
    found = [mistake for file in files for mistake in file.mistakes]
    if arguments.json:
        fields = ("file", "line", "column", "text")
        print_json([{name: getattr(mistake, name) for name in fields} for mistake in found])
    else:
        for mistake in found:
            print(mistake)
        for file in files:
            if not file.mistakes:
                given = len(file.options) + len(file.settings)
                print(f"{file.path}: valid ({spell_count(given, 'value')} given)")
    return 1 if found else 0


# -- set ---------------------------------------------------------------------------------------------------------------


def _set(arguments: argparse.Namespace) -> int:
    changes = _changes(arguments)
    from waystation.cli.shortening import agreed, default_dangers
    from waystation.cli.terminal.native import open_client

    with open_client(arguments) as mq:
        if not agreed(default_dangers(mq, changes), yes=arguments.yes):
            return 1
        alter: Callable[[dict[str, str | None]], object] = mq.alter_settings
        alter(changes)
        answer: Any = mq.view("settings")
    now = {str(one["name"]): one for one in answer["settings"]}
    if arguments.json:
        print_json({"settings": [now[name] for name in changes if name in now]})
        return 0
    for name in changes:
        if name not in now:  # one of Kafka's without effect, which are listed only while they are set
            print(f"{name} is not set now")
            continue
        print(f"{name} is {_shown(now[name], 'value')} now ({now[name]['source']})")
    return 0


def _changes(arguments: argparse.Namespace) -> dict[str, str | None]:
    """What to change; checked here, so that a slip costs no connection and its sentence has the nearest name."""
    from waystation.cli.server.config_file import unknown
    from waystation.config import BrokerSettings, broker_setting, check_dynamic

    changes: dict[str, str | None] = {}
    for name, text in parse_pairs(arguments.pair, "config set"):
        changes[name] = plain(name, text)
    for name in arguments.unset:
        if name in changes:
            raise Invalid(f"{name} is both set and --unset: leave one out")
        changes[name] = None
    if not changes:
        raise Invalid("nothing to change: give NAME=VALUE, or --unset NAME")
    for name, value in changes.items():
        if broker_setting(name) is None:
            raise Invalid(unknown(name))
        if value is not None:
            check_dynamic(name)
            BrokerSettings.check(name, value)
    return changes


# -- example -----------------------------------------------------------------------------------------------------------


def _example(arguments: argparse.Namespace) -> int:
    from waystation.cli.server.config_example import as_json, as_toml

    if arguments.json:
        print_json(as_json())
    else:
        print(as_toml(), end="")
    return 0
