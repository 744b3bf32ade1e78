"""Who may no longer be in a namespace is in it no longer: what is open there ends, by every protocol."""

from __future__ import annotations

import base64
import json
import socket
import struct
from contextlib import ExitStack, suppress
from pathlib import Path

import pika
import pytest
from pika.exceptions import AMQPError
from websockets.exceptions import ConnectionClosed
from websockets.sync.client import ClientConnection, connect

import waystation as ws
from tests.protocols.native.kit import JsonLines
from tests.security.test_kafka_logins import METADATA, authenticate, handshake, request
from tests.security.test_kafka_logins import _answer as answer_of
from tests.security.users_kit import PASSWORDS, add_users, waystation
from tests.support.ports import split_address
from tests.support.server import Server
from tests.support.waiting import wait_for
from waystation.security.rules import RESOURCES, Rule

RULES = [
    *(
        Rule("User:*", "all", resource, "*", namespace=namespace)
        for resource in RESOURCES
        for namespace in ("shop", "/")
        if resource != "namespace"
    ),
    Rule("User:alice", "read", "namespace", "*"),
    Rule("User:bob", "read", "namespace", "*"),
]


def lines_of(server: Server, user: str) -> JsonLines:
    lines = JsonLines(server.bootstrap)
    lines.ask("hello", user=user, password=PASSWORDS[user.partition("@")[0]])
    return lines


def amqp_of(server: Server, user: str, vhost: str) -> pika.BlockingConnection:
    host, port = split_address(server.addresses["amqp"])
    login = pika.PlainCredentials(user, PASSWORDS[user])
    return pika.BlockingConnection(pika.ConnectionParameters(host, port, vhost, login))


def web_socket_of(
    server: Server, user: str, namespace: str, path: str = "subscriptions/stream?topic=orders"
) -> ClientConnection:
    login = base64.b64encode(f"{user}:{PASSWORDS[user]}".encode()).decode()
    return connect(
        f"ws://{server.addresses['http']}/v1/{path}",
        additional_headers={"authorization": f"Basic {login}", "waystation-namespace": namespace},
    )


def test_a_stream_is_told_of_its_end_by_plain_names(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",), rules=RULES)
    with (
        Server(tmp_path) as server,
        ws.connect(f"waystation://admin:{PASSWORDS['admin']}@{server.bootstrap}") as admin,
    ):
        admin.act("set-namespace", namespace="shop")
        admin.queue("shop/inq")
        with web_socket_of(server, "alice", "shop", "queues/inq/stream") as stream:
            admin.queue("shop/inq").delete()
            assert "shop" not in json.loads(stream.recv(20))["problem"]["detail"]
            with pytest.raises(ConnectionClosed) as closed:
                stream.recv(20)
            assert closed.value.rcvd is not None
            assert "inq" in closed.value.rcvd.reason
            assert "shop" not in closed.value.rcvd.reason


def test_revoking_entry_ends_open_sessions_of_every_protocol_and_nobody_elses(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",), rules=RULES)
    with Server(tmp_path) as server, ExitStack() as stack:
        admin = stack.enter_context(ws.connect(f"waystation://admin:{PASSWORDS['admin']}@{server.bootstrap}"))
        admin.act("set-namespace", namespace="shop")
        admin.create_topic("shop.orders")
        admin.create_topic("orders")
        native, theirs, outside = (lines_of(server, user) for user in ("alice@shop", "bob@shop", "alice"))
        for lines in (native, theirs, outside):
            stack.enter_context(lines)
            lines.ask("list_queues")
        kafka = stack.enter_context(socket.create_connection(split_address(server.bootstrap), 20))
        for one in (handshake("PLAIN"), authenticate(b"\0alice@shop\0" + PASSWORDS["alice"].encode())):
            kafka.sendall(one)
            assert answer_of(kafka) is not None
        amqp, in_default = (amqp_of(server, "alice", vhost) for vhost in ("shop", "/"))
        channel = amqp.channel()
        channel.queue_declare("inq")
        stream, their_stream = (web_socket_of(server, user, "shop") for user in ("alice", "bob"))
        stack.enter_context(stream)
        stack.enter_context(their_stream)
        login = f"waystation://admin:{PASSWORDS['admin']}@{server.bootstrap}"
        waystation("acls", "add", "--user", "alice", "--deny", "read", "--namespace", "shop", "--server", login)

        assert answer_of(kafka) is None
        wait_for(lambda: native.socket.recv(4096) == b"", "what is to end has ended")
        with pytest.raises(AMQPError):
            channel.queue_declare("inq")
        while (last := json.loads(stream.recv(20)))["kind"] != "ceased":
            assert "messages" not in last
        assert "may not read namespace 'shop'" in last["problem"]["detail"]
        with pytest.raises(ConnectionClosed):
            stream.recv(20)
        for topic in ("shop.orders", "orders"):
            admin.publish(topic, "x")
        for lines in (theirs, outside):
            lines.ask("list_queues")
        assert json.loads(their_stream.recv(20))["messages"]
        in_default.channel().queue_declare("q")
        in_default.close()


def test_who_need_not_log_in_is_in_a_listeners_namespace_while_rules_let_it(tmp_path: Path) -> None:
    add_users(tmp_path / "data", PASSWORDS, superusers=("admin",), rules=RULES)
    tenant = "tenant=kafka://127.0.0.1:0?namespace=shop&auth-required=false"
    with Server(tmp_path, arguments=["--listeners", tenant]) as server, ExitStack() as stack:
        login = f"waystation://admin:{PASSWORDS['admin']}@{server.bootstrap}"
        waystation("namespaces", "create", "shop", "--server", login)

        def connected() -> socket.socket:
            return stack.enter_context(socket.create_connection(split_address(server.addresses["tenant"]), 20))

        def answer(kafka: socket.socket) -> bytes | None:
            with suppress(ConnectionError):
                kafka.sendall(request(METADATA, 1, struct.pack(">i", 0)))
                return answer_of(kafka)
            return None

        assert answer(connected()) is None
        everybody = ("read", "--user", "*", "--namespace", "shop", "--server", login)
        waystation("acls", "add", "--allow", *everybody)
        inside = connected()
        assert answer(inside) is not None
        waystation("acls", "add", "--deny", *everybody)
        assert answer_of(inside) is None
        assert answer(connected()) is None
