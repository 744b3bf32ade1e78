"""`waystation request` and `waystation exchanges` against a running broker; what the parser costs."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

import waystation
from tests.cli.kit import Cli, QuickCli, environment
from waystation.client.sync.message import Message


@pytest.fixture
def adder(quick: QuickCli, queue: str) -> Iterator[str]:
    """A name that somebody responds to with the sum of what is asked."""
    with waystation.connect(quick.server) as mq:

        @mq.respond(queue)
        def add(message: Message) -> object:
            if message.headers.get("as") == "bytes":
                return b"\xff\n"
            return sum(message.json())

        yield queue


def test_a_request_is_answered(cli: Cli, adder: str) -> None:
    assert cli("request", adder, "[1, 2, 3]", "--timeout", "10s").out == b"6\n"
    assert cli("request", adder, "--content-type", "application/json", stdin=b"[4]").out == b"4\n"
    (reply,) = cli("request", adder, "[5]", "--json").objects
    assert (reply["payload"], reply["content_type"]) == ("5", "application/json")
    assert cli("request", adder, "x", "--header", "as=bytes").out == b"\xff\n"


def test_a_request_that_fails_says_why(quick: QuickCli, adder: str) -> None:
    assert "TypeError" in quick("request", adder, '["a", "b"]', code=1).err
    assert "not JSON" in quick("request", adder, "[", "--content-type", "application/json", code=1).err
    near = quick("request", f"{adder}x", "[]", code=1).err
    assert f"nobody responds to '{adder}x'" in near
    assert f"did you mean '{adder}'" in near
    assert "--timeout 0" in quick("request", adder, "[]", "--timeout", "0", code=1).err


def test_a_request_that_nobody_takes_ends_in_time(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    assert "within 0.2 s" in quick("request", queue, "x", "--timeout", "200ms", code=1).err
    assert quick("queues", "get", queue, code=1).text == "", "it has expired"


# -- exchanges ---------------------------------------------------------------------------------------------------------


def test_an_exchange_is_made_bound_asked_and_deleted(quick: QuickCli, queue: str) -> None:
    name = f"{queue}-x"
    quick("queues", "create", queue)
    assert quick("exchanges", "create", name, "--kind", "topic").text == f"created exchange {name}\n"
    assert "exists already" in quick("exchanges", "create", name, code=1).err
    quick("exchanges", "create", name, "--kind", "topic", "--if-not-exists")
    quick("exchanges", "bind", name, queue, "--key", "order.#")
    assert quick("exchanges", "route", name, "--routing-key", "order.eu").lines == [f"queue:{queue}"]
    assert quick("exchanges", "route", name, "--routing-key", "other").text.startswith("nowhere")
    (listed,) = quick("exchanges", "list", name, "--json").objects
    assert listed["bindings"] == [{"target": f"queue:{queue}", "key": "order.#", "arguments": {}}]
    assert "order.#" in quick("exchanges", "list").text
    assert "--yes" in quick("exchanges", "delete", name, code=1).err
    assert "--if-unused" in quick("exchanges", "delete", name, "--yes", "--if-unused", code=1).err
    quick("exchanges", "unbind", name, queue, "--key", "order.#")
    assert "no such binding" in quick("exchanges", "unbind", name, queue, "--key", "order.#", code=1).err
    quick("exchanges", "delete", name, "--yes", "--if-unused")
    assert f"there is no exchange '{name}'" in quick("exchanges", "list", name, code=1).err


def test_headers_and_filters_bind(quick: QuickCli, queue: str) -> None:
    quick("queues", "create", queue)
    quick("exchanges", "create", f"{queue}-h", "--kind", "headers")
    quick("exchanges", "bind", f"{queue}-h", queue, "--header", "big:=true", "--header", "by=ada", "--match", "any")
    refused = quick("exchanges", "bind", f"{queue}-h", queue, "--filter", "headers.big", code=1).err
    assert "is of the kind 'headers'" in refused
    assert quick("exchanges", "route", f"{queue}-h", "--header", "big:=true").lines == [f"queue:{queue}"]
    assert quick("exchanges", "route", f"{queue}-h", "--header", "big=true", "--json").objects[0]["targets"] == []
    quick("exchanges", "create", f"{queue}-f", "--kind", "filter", "--alternate", f"{queue}-h")
    quick("exchanges", "bind", f"{queue}-f", queue, "--filter", "json.a = 1")
    assert quick("exchanges", "route", f"{queue}-f", '{"a": 1}').lines == [f"queue:{queue}"]
    bad = quick("exchanges", "bind", f"{queue}-f", queue, "--filter", "json.a = ", code=1).err
    assert bad.rstrip().endswith("^")
    assert "did you mean" in quick("exchanges", "bind", f"{queue}-", queue, code=1).err
    nobody = quick("exchanges", "bind", f"{queue}-f", f"{queue}-none", "--filter", "json.a = 1", code=1)
    assert "there is no queue" in nobody.err


# -- what it costs -----------------------------------------------------------------------------------------------------


def test_the_parser_is_built_without_the_client() -> None:
    """`--help` of everything, and `serve`, pay nothing for the commands of this page."""
    names = ("queues", "dead-letters", "subscribe", "request", "exchanges")
    program = (
        "import sys\nfrom waystation.cli.main import build_parser\n"
        f"for name in {names}: build_parser([name])\n"
        "print(*[m for m in sys.modules if m.startswith('waystation.client') or m in ('msgspec', 'asyncio')])"
    )
    loaded = subprocess.run([sys.executable, "-c", program], env=environment(), capture_output=True, check=True)
    assert loaded.stdout.split() == []
