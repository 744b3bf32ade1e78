"""`waystation top`: what the broker is doing, on the terminal, as long as you look.

Every few seconds it asks for the same overview that the dashboard shows. On a terminal it takes the whole screen and
gives it back; into a pipe, or with `--once`, it prints and ends. `q` or Ctrl-C leaves.
"""

from __future__ import annotations

import argparse
import contextlib
import select
import shutil
import sys
from collections.abc import Iterator
from typing import Any

from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.native import open_client
from waystation.cli.terminal.output import bold, print_json, spell_bytes, spell_rate, visible
from waystation.cli.terminal.units import duration

ENTER, LEAVE, HOME, CLEAR_LINE, CLEAR_REST = (
    "\033[?1049h\033[?25l",
    "\033[?25h\033[?1049l",
    "\033[H",
    "\033[K",
    "\033[J",
)
BLOCKS = "▁▂▃▄▅▆▇█"
NAME = 34


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--every", type=duration, metavar="TIME", default=2.0, help="time between two updates (default: 2s)"
    )
    parser.add_argument("--once", action="store_true", help="print once and exit")
    add_server(parser)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    screen = sys.stdout.isatty() and sys.stdin.isatty() and not arguments.once and not arguments.json
    with open_client(arguments) as mq, _terminal(screen) as keys:
        while True:
            overview = mq.view("overview")
            if arguments.json:
                print_json(overview)
                sys.stdout.flush()
            else:
                _show(frame(overview, mq.view("history")), screen=screen)
            if arguments.once or not (screen or arguments.json):
                return 0
            if keys(max(0.2, arguments.every)):
                return 0


def _show(lines: list[str], *, screen: bool) -> None:
    if not screen:
        print("\n".join(lines))
        return
    size = shutil.get_terminal_size()
    shown = [line[: size.columns] if "\033" not in line else line for line in lines[: size.lines - 1]]
    sys.stdout.write(HOME + "".join(f"{line}{CLEAR_LINE}\n" for line in shown) + CLEAR_REST)
    sys.stdout.flush()


@contextlib.contextmanager
def _terminal(screen: bool) -> Iterator[Any]:
    """The screen for us alone, and a function that waits and says whether `q` was pressed."""
    if not screen:
        import time

        def wait(wait_s: float) -> bool:
            time.sleep(wait_s)
            return False

        yield wait
        return
    import termios
    import tty

    before = termios.tcgetattr(sys.stdin)

    def pressed(wait_s: float) -> bool:
        ready, _, _ = select.select([sys.stdin], [], [], wait_s)
        return bool(ready) and sys.stdin.read(1) in ("q", "Q")

    try:
        tty.setcbreak(sys.stdin)
        sys.stdout.write(ENTER)
        yield pressed
    finally:
        sys.stdout.write(LEAVE)
        sys.stdout.flush()
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, before)


# -- one look ----------------------------------------------------------------------------------------------------------


def frame(overview: dict[str, Any], history: dict[str, Any]) -> list[str]:
    """One look, as lines."""
    broker, rates, resources = overview["broker"], overview["rates"], overview["resources"]
    totals, connections, health = overview["totals"], overview["connections"], overview["health"]
    lines = [
        bold(f"waystation {broker['version']}")
        + f"  up {spell_duration(broker['uptime_ms'])}  {health['status']}"
        + f"  connections: {', '.join(f'{protocol} {count}' for protocol, count in connections.items())}",
    ]
    lines += [visible(f"  {one['severity']}: {one['what']}; {one['advice']}") for one in health["reasons"]]
    lines += [
        "",
        *(_rate(name, rates[name], history) for name in ("publish", "deliver", "ack")),
        f"  bytes    in {spell_bytes(int(rates['publish_bytes']))}/s, out {spell_bytes(int(rates['deliver_bytes']))}/s",
        "",
        f"  topics {totals['topics']}, partitions {totals['partitions']}, queues {totals['queues']},"
        f" exchanges {totals['exchanges']}, groups {totals['groups']}",
        f"  in queues: ready {totals['messages_ready']}, delayed {totals['messages_parked']},"
        f" in flight {totals['messages_held']}",
        f"  memory {spell_bytes(resources['memory_bytes'])}, cpu {resources['cpu_share']:.0%} of a core,"
        f" data {spell_bytes(resources['data_bytes'])}, disk free {spell_bytes(resources['disk_free_bytes'])}",
        f"  loop delay {resources['loop_delay_ms']:.1f} ms, fsync {resources['fsync_ms']:.2f} ms",
        "",
    ]
    lines += _busiest("topic", overview["busiest"]["topics"], ("publish", "publish_bytes"))
    lines += _busiest("queue", overview["busiest"]["queues"], ("put", "deliver", "ack", "ready"))
    return lines


def _rate(name: str, rate: float, history: dict[str, Any]) -> str:
    return f"  {name:<8} {spell_rate(rate):>9}/s  {sparkline(history['series'].get(name, []))}"


def sparkline(values: list[float], width: int = 48) -> str:
    """The last of these values as a row of blocks; the highest of them fills its block."""
    shown = [value or 0.0 for value in values[-width:]]
    high = max(shown, default=0.0)
    if high <= 0:
        return BLOCKS[0] * len(shown)
    return "".join(BLOCKS[min(len(BLOCKS) - 1, int(value / high * len(BLOCKS)))] for value in shown)


def _busiest(kind: str, rows: list[dict[str, Any]], columns: tuple[str, ...]) -> list[str]:
    if not rows:
        return []
    head = f"  {kind.upper():<{NAME}}" + "".join(f"{_title(column):>14}" for column in columns)
    lines = [bold(head)]
    for row in rows:
        name = visible(row["name"])
        name = name if len(name) <= NAME else f"{name[: NAME - 1]}…"
        lines.append(f"  {name:<{NAME}}" + "".join(f"{_cell(column, row.get(column)):>14}" for column in columns))
    return [*lines, ""]


def _title(column: str) -> str:
    return {"publish_bytes": "BYTES/S", "ready": "READY"}.get(column, f"{column.upper()}/S")


def _cell(column: str, value: float | None) -> str:
    if value is None:
        return "-"
    if column == "publish_bytes":
        return spell_bytes(int(value))
    return str(int(value)) if column == "ready" else spell_rate(value)


def spell_duration(ms: int) -> str:
    """How long something has been so: 12 s, 5 min, 3.5 h, 2.1 d."""
    for size, unit in ((86_400_000, "d"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * size:
            return f"{ms / size:.1f} {unit}".replace(".0 ", " ")
    return f"{ms // 1000} s"
