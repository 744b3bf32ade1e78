"""What `serve` can be told besides the broker's settings: one table for the config file, the environment and the flags.

A row is a key of the config file (`log-level`), a variable (`WAYSTATION_LOG_LEVEL`) and a flag (`--log-level`), with
one check for all three. So the three cannot come to differ, and `config example` has all of them.

Nothing here reads a file or the environment; anyone in `cli` may call it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import msgspec

from waystation.cli.server.listeners import OFF, check_name, parse_listener
from waystation.cli.server.logs import FORMATS, LEVELS
from waystation.cli.terminal.arguments import DEFAULT_SERVER
from waystation.errors import Invalid
from waystation.station import AMQP_PORT, HTTP_PORT, ListenerPlan

DEFAULT_DATA = "./waystation-data"

_TRUE, _FALSE = ("true", "yes", "1", "on"), ("false", "no", "0", "off")


class Option(msgspec.Struct, frozen=True):
    """One row."""

    name: str
    kind: Literal["text", "bool", "address", "listeners"]
    default: str  # empty: none
    doc: str
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return "WAYSTATION_" + self.name.upper().replace("-", "_")

    def check(self, text: str) -> str:
        """The value as it is kept (`true` for `yes`), or Invalid that says what would do; it does not name itself."""
        if self.kind == "bool":
            return "true" if truth(text) else "false"
        if self.choices and text not in self.choices:
            raise Invalid(f"{text!r}: expected one of {', '.join(self.choices)}{nearest(text, self.choices)}")
        if self.kind == "address":
            parse_listener(self.name, text)
        if self.kind == "listeners":
            pairs_of_listeners(text.split())
        if self.name == "node-listener":
            check_name(text)
        if not text:
            raise Invalid("it is empty: give a value, or leave it out")
        return text


def truth(text: str) -> bool:
    word = text.strip().lower()
    if word not in _TRUE + _FALSE:
        raise Invalid(f"{text!r}: expected true or false")
    return word in _TRUE


OPTIONS: dict[str, Option] = {
    option.name: option
    for option in (
        Option("data", "text", DEFAULT_DATA, "The data folder; created if it does not exist."),
        Option("memory", "bool", "false", "Keep all data in memory: no data folder, and nothing survives a restart."),
        Option("kafka", "address", DEFAULT_SERVER, "Address of the Kafka listener; port 0: a free one; off: none."),
        Option("amqp", "address", f"127.0.0.1:{AMQP_PORT}", "Address of the AMQP listener, or off."),
        Option("amqps", "address", OFF, "Address of a listener for AMQP over TLS alone (port 5671), or off."),
        Option("http", "address", f"127.0.0.1:{HTTP_PORT}", "Address of the HTTP listener and the dashboard, or off."),
        Option(
            "listeners",
            "listeners",
            "",
            "Further listeners, separated by spaces: NAME=PROTOCOL://HOST:PORT, with ?advertised=HOST:PORT and more.",
        ),
        Option("insecure", "bool", "false", "Allow addresses that other machines reach, without authentication."),
        Option("log-level", "text", "info", "How much is logged.", LEVELS),
        Option(
            "log-format",
            "text",
            "auto",
            "How lines of the log look; auto: human on a terminal, else text.",
            FORMATS,
        ),
        Option("ready-file", "text", "", "When the listeners are open, their addresses are written there as JSON."),
        Option("cluster", "text", "", "The cluster that the broker is a node of: etcd://HOST:PORT,HOST:PORT/NAME."),
        Option("node", "text", "", "The id of this node in its cluster, a number of its own."),
        Option("rack", "text", "", "Where this node is: the replicas of a partition are spread over racks."),
        Option("node-listener", "text", "kafka", "The listener, of Kafka's protocol, by which nodes reach this one."),
        Option("pipelines", "text", "", "A folder of pipeline files that may be started from the dashboard and API."),
    )
}


def pairs_of_listeners(texts: Iterable[str]) -> dict[str, str]:
    """`NAME=PROTOCOL://HOST:PORT`, by name, each checked."""
    found: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise Invalid(f"{text!r}: write NAME=PROTOCOL://HOST:PORT, like external=kafka://0.0.0.0:9093")
        check_name(name)
        if name in found:
            raise Invalid(f"listener {name!r} is there twice: leave one out")
        try:
            parse_listener(name, value)
        except Invalid as error:
            raise Invalid(f"listener {name!r}: {error}") from None
        found[name] = value
    return found


def check_exposed(plan: ListenerPlan, said: str, *, insecure: bool, closed: bool) -> None:
    """Raises Invalid for a listener that others can reach and that asks nobody who they are. `said` is how it was told
    so, for the error: `--kafka 0.0.0.0`. `insecure`: whoever starts the broker says that others may. `closed`: clients
    have to log in, unless the listener says otherwise."""
    asks = closed if plan.terms.auth_required is None else plan.terms.auth_required
    if not plan.address.loopback and not insecure and not asks:
        raise Invalid(
            f"{said} can be reached from other machines while authentication is off: anybody could read and write."
            " Listen on 127.0.0.1; or add a user (`waystation users add NAME --data DIR`), or set auth.required; or say"
            " --insecure (insecure = true in the file) if the network keeps others out"
        )


def nearest(name: str, names: Iterable[str]) -> str:
    """`; did you mean 'kafka'?`, or nothing."""
    near = closest(name, names)
    return "" if near is None else f"; did you mean {near!r}?"


def closest(name: str, names: Iterable[str], alike: float = 0.6) -> str | None:
    """The one of `names` that `name` may be a slip of."""
    from difflib import get_close_matches

    near = get_close_matches(name, list(names), n=1, cutoff=alike)
    return near[0] if near else None
