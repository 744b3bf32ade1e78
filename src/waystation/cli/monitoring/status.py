"""`waystation status`: is the broker up, is it healthy, and what does it store, on one page.

The exit code is 1 if the broker does not answer, does not tell, or is failing, so that scripts and monitors can ask. A
warning is only shown.
"""

from __future__ import annotations

import argparse
from typing import Any

from waystation.cli.contexts import ChosenServer
from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import bold, note, print_json, spell_bytes, spell_count, spell_rate, visible
from waystation.cli.terminal.units import spell_about
from waystation.errors import NotAllowed, NotAuthenticated, WaystationError

UNREACHABLE = "unreachable"
UNKNOWN = "unknown"
"""The broker answers, and does not tell this user how it is."""
FAILING = 1


def configure(parser: argparse.ArgumentParser) -> None:
    add_server(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    chosen: ChosenServer = getattr(arguments, "chosen_server", None) or ChosenServer(arguments.server, "--server")
    from waystation.client.links.servers import shown

    asked = {"server": shown(chosen.server), "source": chosen.source, "context": chosen.context}
    try:
        with open_client(arguments) as mq:
            overview = mq.view("overview")
    except (WaystationError, OSError) as error:
        health = UNKNOWN if isinstance(error, NotAllowed | NotAuthenticated) else UNREACHABLE
        if arguments.json:
            print_json({"status": health, **asked, "error": str(error)})
        else:
            _print([("health", health), ("address", str(chosen))])
            note(str(error))
        return FAILING
    if arguments.json:
        print_json(_as_json(overview, asked))
    else:
        _print(_rows(overview, chosen))
    return FAILING if overview["health"]["status"] == "failing" else 0


def _as_json(overview: dict[str, Any], asked: dict[str, str | None]) -> dict[str, Any]:
    """The overview without the busiest names; `status` and where it was asked in front."""
    shown = {name: overview[name] for name in ("broker", "totals", "connections", "rates", "resources")}
    return {"status": overview["health"]["status"], **asked, "reasons": overview["health"]["reasons"], **shown}


def _print(rows: list[tuple[str, str]]) -> None:
    for name, text in rows:
        print(f"{bold(f'{name:<12}')}{text}")


def _rows(overview: dict[str, Any], chosen: ChosenServer) -> list[tuple[str, str]]:
    broker, health, totals = overview["broker"], overview["health"], overview["totals"]
    rates, resources, connections = overview["rates"], overview["resources"], overview["connections"]
    share = resources["disk_free_bytes"] / max(1, resources["disk_total_bytes"])
    return [
        ("health", health["status"]),
        *(("", visible(f"{one['severity']}: {one['what']} {one['advice']}")) for one in health["reasons"]),
        ("version", broker["version"]),
        ("address", str(chosen)),
        ("uptime", f"{spell_about(broker['uptime_ms'])}, process {broker['pid']} on {broker['host']}"),
        (
            "stores",
            f"{spell_count(totals['topics'], 'topic')} with {spell_count(totals['topic_messages'], 'offset')},"
            f" {spell_count(totals['queues'], 'queue')} with {_waiting(totals)},"
            f" {spell_count(totals['groups'], 'group')}",
        ),
        (
            "connections",
            f"{sum(connections.values())}"
            + (f" ({', '.join(f'{protocol} {count}' for protocol, count in connections.items() if count)})"),
        ),
        (
            "rates",
            f"publish {spell_rate(rates['publish'])}/s, deliver {spell_rate(rates['deliver'])}/s,"
            f" ack {spell_rate(rates['ack'])}/s; in {spell_bytes(int(rates['publish_bytes']))}/s,"
            f" out {spell_bytes(int(rates['deliver_bytes']))}/s",
        ),
        (
            "disk",
            f"{spell_bytes(resources['data_bytes'])} of data in {visible(broker['data'])},"
            f" {spell_bytes(resources['disk_free_bytes'])} free ({share:.0%})",
        ),
        ("memory", spell_bytes(resources["memory_bytes"])),
    ]


def _waiting(totals: dict[str, Any]) -> str:
    counts = totals["messages_ready"] + totals["messages_parked"] + totals["messages_held"]
    return spell_count(counts, "message")
