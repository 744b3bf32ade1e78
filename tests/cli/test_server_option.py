"""`--server` and the addresses of `serve`, as people write them: understood, or answered with what to write."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.kit import QuickCli
from tests.cli.test_serve import Serving, ended
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("server-option")) as server:
        yield server


@pytest.mark.parametrize(
    "text", ["{port}", ":{port}", "localhost:{port}", "waystation://127.0.0.1:{port}/", "kafka://127.0.0.1:{port}"]
)
def test_the_kafka_listener_is_found_however_it_is_written(server: Server, text: str) -> None:
    _, port = split_address(server.bootstrap)
    assert "no topics yet" in QuickCli(text.format(port=port))("topics", "list").text


@pytest.mark.parametrize(
    "line",
    [
        "--server {there} topics list",
        "--server={there} topics list",
        "topics --server {there} list",
        "--server {there} --json topics list",
        "--json topics --server {there} list --internal",
        "--server nowhere:1 topics list --server {there}",
    ],
)
def test_the_options_of_all_commands_may_come_before_the_command(server: Server, line: str) -> None:
    nowhere = QuickCli("127.0.0.1:1")
    done = nowhere(*line.format(there=server.bootstrap).split())
    assert ("no topics yet" in done.text) == ("--json" not in line)
    assert nowhere("--server", server.bootstrap, "--help").text.startswith("usage: waystation")


@pytest.mark.parametrize(("protocol", "name"), [("http", "HTTP"), ("amqp", "AMQP")])
@pytest.mark.parametrize(
    "text", ["{protocol}://127.0.0.1:{port}", "{protocol}://me:secret@127.0.0.1:{port}/x", "{port}"]
)
def test_another_listener_is_answered_with_what_to_write(server: Server, protocol: str, name: str, text: str) -> None:
    _, port = split_address(server.addresses[protocol])
    said = QuickCli(text.format(protocol=protocol, port=port))("topics", "list", code=1).err
    assert f"127.0.0.1:{port} speaks {name}, not the native protocol" in said
    assert "the broker's Kafka listener, which is 127.0.0.1:9092 unless" in said
    assert "secret" not in said
    assert len(said.splitlines()) == 1


def test_a_server_that_hangs_up_may_be_another_kafka_broker() -> None:
    """Apache Kafka closes the connection at our first four bytes, which no request of its clients begins with."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            while connection.recv(65536):
                connection.shutdown(socket.SHUT_WR)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(DEADLINE_S)
        threading.Thread(target=serve, daemon=True).start()
        said = QuickCli(str(listener.getsockname()[1]))("topics", "list", code=1).err
    assert "closed the connection before it answered; is it a Waystation broker?" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("70000", "a port from 0 to 65535"),
        ("redis://there:6379", "write waystation://HOST:PORT"),
    ],
)
def test_what_is_no_address_is_answered_with_what_to_write(text: str, said: str) -> None:
    done = QuickCli(text)("topics", "list", code=1)
    assert said in done.err
    assert len(done.err.splitlines()) == 1


def test_serve_takes_a_port_alone_as_one_of_this_machine(tmp_path: Path) -> None:
    serving = Serving(tmp_path)
    try:
        process = serving.start("--kafka", "0", "--amqp", "0", "--http", "0", "--ready-file", "ready.json")
        wait_for(lambda: (tmp_path / "ready.json").exists() or process.poll() is not None, "it is ready")
        assert process.poll() is None, ended(process).err
        assert (tmp_path / "ready.json").read_text().count('"127.0.0.1:') == 3
        said = serving.refused("--amqp", "http://127.0.0.1:8080", data="other")
        assert "--amqp: 'http://127.0.0.1:8080' is not an address: leave out http:// and write 127.0.0.1:8080" in said
    finally:
        serving.close()
