"""`waystation audit`: the newest entries of the audit log."""

from __future__ import annotations

import argparse
from datetime import datetime
from typing import Any

from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import print_json, print_table

COLUMNS = ("time", "kind", "user", "from", "by", "what", "result")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation audit",
        "waystation audit --kind refusal --user app",
        "waystation audit --search orders --limit 1000 --json",
    )
    parser.add_argument("--limit", type=int, default=50, metavar="N", help="maximum number of entries (default 50)")
    parser.add_argument("--kind", choices=("login", "refusal", "change", "left-out"), help="entries of this kind only")
    parser.add_argument("--user", metavar="NAME", help="entries about this user only")
    parser.add_argument("--search", metavar="TEXT", help="entries that have the text in one of their fields")
    add_server(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    wanted: dict[str, Any] = {"limit": arguments.limit}
    if arguments.kind:
        wanted["kind"] = arguments.kind
    if arguments.user:
        wanted["user"] = arguments.user if ":" in arguments.user else f"User:{arguments.user}"
    if arguments.search:
        wanted["search"] = arguments.search
    with open_client(arguments) as mq:
        page = mq.view("audit", **wanted)
    entries = page["entries"]
    if arguments.json:
        print_json(entries)
    elif entries:
        print_table(COLUMNS, [_cells(one) for one in entries])
    elif page["on"]:
        print("no entries")
    else:
        print("no entries: nothing is recorded while clients need not log in; see the setting waystation.audit")
    return 0


def _cells(one: dict[str, Any]) -> tuple[str, ...]:
    what = " ".join(part for part in (one["operation"], one["resource"], one["name"]) if part)
    if one["detail"]:
        what += f" ({one['detail']})"
    if one["count"]:
        what = f"{one['count']} entries left out"
    when = datetime.fromtimestamp(one["time_ms"] / 1000).isoformat(" ", "seconds")
    return when, one["kind"], one["user"], one["host"], one["protocol"], what, one["result"]
