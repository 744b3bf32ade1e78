"""AMQP's clients log in by password, by certificate, and, while there are no users, as guest."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Iterator
from pathlib import Path

import aio_pika
import aiormq.exceptions
import pika
import pika.credentials
import pika.exceptions
import pytest

from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import wait_for

CONFIG = """
[tls]
certificate = "server.crt"
key = "server.key"
client-ca = "ca.crt"
client-certificates = "optional"
plain = true
[broker]
"ssl.principal.mapping.rules" = "RULE:^CN=([^,]+).*$/$1/"
"connection.failed.authentication.delay.ms" = 1
"""


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_certificates(tmp_path_factory.mktemp("certificates"), "alice")


@pytest.fixture(scope="module")
def secure(tmp_path_factory: pytest.TempPathFactory, certificates: Path) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("secure")
    add_users(folder / "data", PASSWORDS)
    with Server(folder, arguments=write_config(certificates, CONFIG)) as server:
        yield server


def address(server: Server) -> tuple[str, int]:
    host, _, port = server.addresses["amqp"].rpartition(":")
    return host, int(port)


def connect(server: Server, name: str, password: str) -> pika.BlockingConnection:
    host, port = address(server)
    return pika.BlockingConnection(
        pika.ConnectionParameters(host, port, credentials=pika.PlainCredentials(name, password))
    )


def use(connection: pika.BlockingConnection) -> None:
    channel = connection.channel()
    queue = unique("queue")
    channel.queue_declare(queue)
    channel.basic_publish("", queue, b"hello")
    wait_for(lambda: channel.basic_get(queue, auto_ack=True)[2] == b"hello" or None, "the message is there")
    connection.close()


@pytest.mark.parametrize("name", ["admin", "alice"])
def test_pika_logs_in_by_password(closed: Server, name: str) -> None:
    use(connect(closed, name, PASSWORDS[name]))


@pytest.mark.parametrize(("name", "password"), [("alice", "wrong"), ("nobody", "wrong"), ("guest", "guest"), ("", "")])
def test_pika_is_refused_with_403_whatever_is_wrong(closed: Server, name: str, password: str) -> None:
    with pytest.raises(pika.exceptions.ProbableAuthenticationError) as caught:
        connect(closed, name, password)
    said = "Login was refused using authentication mechanism PLAIN. For details see the broker logfile."
    assert "403" in str(caught.value)
    assert said in str(caught.value)


def test_aio_pika_logs_in_by_password_and_is_refused_without(closed: Server) -> None:
    host, port = address(closed)

    async def run(password: str) -> None:
        async with await aio_pika.connect(host=host, port=port, login="bob", password=password) as connection:
            channel = await connection.channel()
            await channel.declare_queue(unique("queue"))

    asyncio.run(run(PASSWORDS["bob"]))
    with pytest.raises(aiormq.exceptions.AMQPConnectionError):
        asyncio.run(run("wrong"))


def test_pika_logs_in_by_certificate_alone(secure: Server, certificates: Path) -> None:
    host, port = address(secure)
    options = pika.SSLOptions(client_context(certificates, "alice"), "localhost")
    credentials = pika.credentials.ExternalCredentials()
    use(pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials, ssl_options=options)))


def test_pika_logs_in_by_password_over_tls(secure: Server, certificates: Path) -> None:
    host, port = address(secure)
    options = pika.SSLOptions(client_context(certificates), "localhost")
    credentials = pika.PlainCredentials("bob", PASSWORDS["bob"])
    use(pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials, ssl_options=options)))


def test_external_is_refused_without_a_certificate(secure: Server, certificates: Path) -> None:
    host, port = address(secure)
    options = pika.SSLOptions(client_context(certificates), "localhost")
    credentials = pika.credentials.ExternalCredentials()
    with pytest.raises(pika.exceptions.AMQPConnectionError):
        pika.BlockingConnection(pika.ConnectionParameters(host, port, credentials=credentials, ssl_options=options))


def test_aio_pika_logs_in_by_certificate(secure: Server, certificates: Path) -> None:
    _, port = address(secure)

    async def run() -> str:
        url = f"amqps://localhost:{port}/?auth=external"
        async with await aio_pika.connect(url, ssl_context=client_context(certificates, "alice")) as connection:
            channel = await connection.channel()
            return str((await channel.declare_queue(unique("queue"))).name)

    assert asyncio.run(run()).startswith("queue")


def test_a_client_that_cannot_be_told_sees_the_connection_end(closed: Server) -> None:
    """Without the capability authentication_failure_close, as old clients are."""
    import pamqp.commands as commands
    from pamqp.frame import marshal, unmarshal

    with socket.create_connection(address(closed), timeout=20) as link:
        link.sendall(b"AMQP\x00\x00\x09\x01")
        _, channel, start = unmarshal(link.recv(65536))
        assert channel == 0
        assert isinstance(start, commands.Connection.Start)
        assert "EXTERNAL" not in start.mechanisms
        link.sendall(marshal(commands.Connection.StartOk({}, "PLAIN", "\0alice\0wrong", "en_US"), 0))
        assert link.recv(65536) == b""


def test_guest_enters_while_there_are_no_users_and_the_first_user_ends_that(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        guest = connect(server, "guest", "guest")
        use(connect(server, "guest", "guest"))
        told = waystation(
            *("users", "add", "admin", "--superuser", "--password-stdin", "--server", server.bootstrap),
            stdin="secret\n",
        )
        assert "it is the first user: from now on every client has to log in" in told.stdout + told.stderr
        with pytest.raises(pika.exceptions.ProbableAuthenticationError):
            connect(server, "guest", "guest")
        use(connect(server, "admin", "secret"))
        with pytest.raises(pika.exceptions.ConnectionClosedByBroker, match="clients have to log in now"):
            guest.process_data_events(20)
