"""A broker without users works as ever on loopback; the first user closes it; others reach only a closed one."""

from __future__ import annotations

import random
import socket
import ssl
from contextlib import closing
from http.client import HTTPConnection
from pathlib import Path

import pytest
import requests
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

import waystation as ws
from tests.protocols.native.kit import JsonLines
from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.errors import NotAuthenticated

SERVE = ("serve", "--amqp", "off", "--http", "off")
STARTS = 150
"""Mutated beginnings of each protocol, on each kind of listener. `SOAK_STARTS` in the soak test has more."""


def test_the_first_user_closes_a_running_broker_and_the_last_one_opens_it(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        open_admin = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        assert open_admin.list_topics(timeout=20)
        nobody = ws.connect(server.bootstrap)
        assert nobody.view("users")["users"] == []
        told = waystation(
            *("users", "add", "admin", "--superuser", "--password-stdin", "--server", server.bootstrap), stdin="pw\n"
        )
        assert "from now on every client has to log in" in told.stdout + told.stderr
        with pytest.raises(NotAuthenticated):
            ws.connect(server.bootstrap)
        fresh = AdminClient({"bootstrap.servers": server.bootstrap, "log_level": 0})
        with pytest.raises(KafkaException):
            fresh.list_topics(timeout=2)
        assert requests.get(f"http://{server.addresses['http']}/v1/overview", timeout=20).status_code == 401
        server_url = f"waystation://admin:pw@{server.bootstrap}"
        with ws.connect(server_url) as mq:
            wait_for(
                lambda: {one["user"] for one in mq.view("connections")["connections"]} == {"admin"} or None,
                "connections of nobody are ended",
            )
        told = waystation("users", "remove", "admin", "--server", server_url)
        assert "it was the last user" in told.stdout + told.stderr
        with ws.connect(server.bootstrap) as mq:
            assert mq.view("users")["required"] is False
        nobody.close()


def test_who_logs_in_just_now_or_need_not_stays_when_users_change(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",))
    listeners = "inside=kafka://127.0.0.1:0?auth-required=false"
    with (
        Server(tmp_path, arguments=["--listeners", listeners]) as server,
        JsonLines(server.bootstrap) as late,
        JsonLines(server.addresses["inside"]) as nobody,
        JsonLines(server.bootstrap) as bob,
        ws.connect(f"waystation://admin:{PASSWORDS['admin']}@{server.bootstrap}") as admin,
    ):
        assert late.try_ask("list_queues")["error_type"] == "NotAuthenticated"
        nobody.ask("list_queues")
        bob.ask("hello", user="bob", password=PASSWORDS["bob"])
        wait_for(lambda: len(admin.view("connections")["connections"]) == 4 or None, "all are connected")
        admin.act("add-user", user="eve", password="another one")
        admin.act("remove-user", user="bob")
        assert bob.socket.recv(1) == b"", "what is to end has ended"
        late.ask("hello", user="alice", password=PASSWORDS["alice"])
        nobody.ask("list_queues")


def test_the_first_user_ends_only_those_whom_it_makes_log_in(tmp_path: Path) -> None:
    """Not those of listeners that ask nobody, nor those that are logging in where everybody always has to."""
    free, asking = "auth-required=false", "auth-required=true"
    listeners = [f"inside=kafka://127.0.0.1:0?{free}", f"web=http://127.0.0.1:0?{free}"]
    listeners.append(f"outside=kafka://127.0.0.1:0?{asking}")
    with (
        Server(tmp_path, arguments=[f"--listeners={one}" for one in listeners]) as server,
        JsonLines(server.bootstrap) as stranger,
        JsonLines(server.addresses["inside"]) as nobody,
        JsonLines(server.addresses["outside"]) as late,
        closing(HTTPConnection(*split_address(server.addresses["web"]), timeout=20)) as web,
        socket.create_connection(split_address(server.addresses["inside"]), 20) as kafka,
    ):
        versions = b"\x00\x00\x00\x0a\x00\x12\x00\x00\x00\x00\x00\x01\xff\xff"  # Kafka's ApiVersions
        stranger.ask("list_queues")
        nobody.ask("list_queues")
        assert late.try_ask("list_queues")["error_type"] == "NotAuthenticated"
        web.request("GET", "/healthz")
        assert web.getresponse().read()
        kafka.sendall(versions)
        size = int.from_bytes(kafka.recv(4, socket.MSG_WAITALL), "big")
        assert len(kafka.recv(size, socket.MSG_WAITALL)) == size
        with ws.connect(server.bootstrap) as first:
            first.act("add-user", user="alice", password=PASSWORDS["alice"])
            assert stranger.socket.recv(1) == b"", "who is to end has ended"
        nobody.ask("list_queues")
        late.ask("hello", user="alice", password=PASSWORDS["alice"])
        web.request("GET", "/healthz")
        assert web.getresponse().read(), "by the same connection"
        kafka.sendall(versions)
        assert int.from_bytes(kafka.recv(4, socket.MSG_WAITALL), "big") == size


def test_users_survive_a_restart_and_kill_9(tmp_path: Path) -> None:
    with Server(tmp_path) as server:
        waystation(
            *("users", "add", "admin", "--superuser", "--password-stdin", "--server", server.bootstrap), stdin="pw\n"
        )
        server.kill()
        server.restart()
        with pytest.raises(NotAuthenticated):
            ws.connect(server.bootstrap)
        ws.connect(f"waystation://admin:pw@{server.bootstrap}").close()


def test_no_password_and_nothing_like_it_is_in_the_data_folder_or_the_log(tmp_path: Path) -> None:
    import base64

    secret = "correct horse battery staple"
    add_users(tmp_path / "data", {"admin": secret})
    with Server(tmp_path) as server:
        with pytest.raises(NotAuthenticated):
            ws.connect(f"waystation://admin:{secret.replace(' ', '%20')}x@{server.bootstrap}?mechanism=PLAIN")
        ws.connect(f"waystation://admin:{secret.replace(' ', '%20')}@{server.bootstrap}?mechanism=PLAIN").close()
        server.stop()
    needles = (secret.encode(), base64.b64encode(secret.encode()), secret.encode().hex().encode())
    for file in tmp_path.rglob("*"):
        if file.is_file():
            data = file.read_bytes()
            assert not any(needle in data for needle in needles), file


def test_users_of_a_stopped_broker_are_edited_in_its_folder_and_not_while_it_runs(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    add_users(Path(data), PASSWORDS, superusers=("admin",))
    again = waystation("users", "add", "admin", "--password-stdin", "--data", data, stdin="x\n", check=False)
    assert again.returncode == 1
    assert "exists already" in again.stderr
    assert "admin" in waystation("users", "list", "--data", data).stdout
    waystation("users", "passwd", "bob", "--password-stdin", "--data", data, stdin="new\n")
    waystation("users", "remove", "alice", "--data", data)
    with Server(tmp_path) as server:
        ws.connect(f"waystation://bob:new@{server.bootstrap}").close()
        with pytest.raises(NotAuthenticated):
            ws.connect(f"waystation://alice:x@{server.bootstrap}")
        running = waystation("users", "list", "--data", data, check=False)
        assert running.returncode == 1
        assert "in use by another broker" in running.stderr


@pytest.mark.parametrize(("name", "password"), [("", "x"), ("a/b", "x"), ("ANONYMOUS", "x"), (" x", "x"), ("eve", "")])
def test_what_can_be_no_user_is_refused(tmp_path: Path, name: str, password: str) -> None:
    done = waystation(
        *("users", "add", name, "--password-stdin", "--data", str(tmp_path)), stdin=f"{password}\n", check=False
    )
    assert done.returncode == 1
    assert not waystation("users", "list", "--data", str(tmp_path), "--json").stdout.strip("[]\n")


def test_an_address_that_others_reach_needs_a_login_or_insecure(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    refused = waystation(*SERVE, "--kafka", "0.0.0.0:0", "--data", data, check=False)
    assert refused.returncode == 1
    assert "while authentication is off" in refused.stderr
    off = waystation(*SERVE, "--kafka", "0.0.0.0:0", "--data", data, "--set", "auth.required=false", check=False)
    assert off.returncode == 1
    add_users(Path(data), {"admin": "pw"})
    with Server(tmp_path) as server:
        server.stop()
        server.addresses["kafka"] = server.addresses["kafka"].replace("127.0.0.1", "0.0.0.0")
        server.restart()
        near = server.bootstrap.replace("0.0.0.0", "127.0.0.1")
        told = waystation("users", "remove", "admin", "--server", f"waystation://admin:pw@{near}")
        assert "it was the last user" not in told.stdout + told.stderr
        with pytest.raises(NotAuthenticated):
            ws.connect(near)


def test_auth_required_asks_without_any_user(tmp_path: Path) -> None:
    with Server(tmp_path, settings={"auth.required": True}) as server, pytest.raises(NotAuthenticated):
        ws.connect(server.bootstrap)


def test_auth_required_false_lets_users_log_in_and_others_too(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS)
    with Server(tmp_path, settings={"auth.required": False}) as server:
        ws.connect(server.bootstrap).close()
        ws.connect(f"waystation://bob:builder@{server.bootstrap}").close()
        with pytest.raises(NotAuthenticated):
            ws.connect(f"waystation://bob:wrong@{server.bootstrap}")


def test_logins_are_counted(own_closed: object) -> None:
    server = own_closed()  # type: ignore[operator]
    for password in ("wrong", "builder", "wrong"):
        requests.get(f"http://{server.addresses['http']}/v1/topics", auth=("bob", password), timeout=20)
    metrics = requests.get(
        f"http://{server.addresses['http']}/metrics", auth=("admin", PASSWORDS["admin"]), timeout=20
    ).text
    assert 'waystation_logins_total{protocol="http",result="failure"} 2' in metrics
    assert 'waystation_logins_total{protocol="http",result="success"} 2' in metrics


# -- mutated beginnings ------------------------------------------------------------------------------------------------


def beginnings(context: ssl.SSLContext) -> dict[str, list[bytes]]:
    """What clients of each listener send first: plain, and as TLS."""
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    tls = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    with pytest.raises(ssl.SSLWantReadError):
        tls.do_handshake()
    hello = outgoing.read()
    kafka = bytes.fromhex("00000015 0011 0001 00000007 0001 74 0005 504c41494e".replace(" ", ""))
    native = b"\xd7WS1\x00\x00\x00\x0d\x82\xa6action\xa5hello"
    line = b'{"action": "hello", "user": "bob", "password": "wrong"}\n'
    return {
        "kafka": [hello, kafka, native, line],
        "amqp": [hello, b"AMQP\x00\x00\x09\x01" + bytes.fromhex("0100000000000c000a000b00000000000000ce")],
        "http": [hello, b"GET /v1/overview HTTP/1.1\r\nHost: localhost\r\nAuthorization: Basic YTpi\r\n\r\n"],
    }


def mutated(chance: random.Random, data: bytes) -> bytes:
    made = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(made))
        if chance.random() < 0.5:
            made[at] = chance.randrange(256)
        else:
            made[at : at + chance.randint(0, 8)] = chance.randbytes(chance.randint(0, 8))
        if not made:
            made += b"\0"
    return bytes(made)


@pytest.mark.parametrize("listener", ["kafka", "amqp", "http"])
def test_mutated_beginnings_harm_nobody(tmp_path: Path, listener: str) -> None:
    certificates = make_certificates(tmp_path / "certificates")
    add_users(tmp_path / "broker" / "data", PASSWORDS)
    config = '[tls]\ncertificate = "server.crt"\nkey = "server.key"\nplain = true\n'
    settings = {"connection.failed.authentication.delay.ms": 0}
    with Server(tmp_path / "broker", settings=settings, arguments=write_config(certificates, config)) as server:
        chance = random.Random(7)
        host, _, port = server.addresses[listener].rpartition(":")
        firsts = beginnings(client_context(certificates))[listener]
        for _ in range(STARTS):
            with socket.create_connection((host, int(port)), timeout=20) as link:
                link.sendall(mutated(chance, chance.choice(firsts)))
                link.shutdown(socket.SHUT_WR)
                try:
                    while link.recv(65536):
                        pass
                except ConnectionResetError:
                    pass
        place = f"{server.bootstrap}?ca={certificates / 'ca.crt'}"
        with ws.connect(f"waystations://bob:builder@{place}") as mq:
            assert mq.view("overview")["health"]["status"] == "ok"
        log = server.log.read_text()
    assert "Traceback" not in log
    assert "internal error" not in log
