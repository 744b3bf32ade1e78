"""AMQP of a broker inside one's own process."""

from __future__ import annotations

import subprocess
import sys

import pika
import pytest

import waystation
from tests.support.ports import split_address
from tests.support.server import ROOT
from waystation.errors import Invalid


def test_it_listens_where_it_is_told_and_shares_everything_with_the_client() -> None:
    with waystation.open(":memory:", amqp="127.0.0.1:0") as broker:
        host, port = split_address(broker.amqp)
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, port))
        channel = connection.channel()
        channel.queue_declare("jobs", durable=True)
        channel.basic_publish("", "jobs", b'{"a": 1}')
        message = broker.queue("jobs").get(timeout=10)
        assert message is not None
        assert message.json() == {"a": 1}
        message.ack()
        connection.close()


def test_it_is_off_by_default_and_never_for_other_machines() -> None:
    with waystation.open(":memory:") as broker:
        assert broker.amqp == ""
    with pytest.raises(Invalid, match="this machine only"):
        waystation.open(":memory:", amqp="0.0.0.0:0")


def test_nothing_of_it_is_loaded_before_the_first_client_comes() -> None:
    code = """
import socket, sys, waystation
with waystation.open(":memory:", amqp="127.0.0.1:0") as broker:
    before = [name for name in ("pamqp", "waystation.protocols.amqp.session") if name in sys.modules]
    host, _, port = broker.amqp.rpartition(":")
    with socket.create_connection((host, int(port))) as client:
        client.sendall(b"AMQP\\x00\\x00\\x09\\x01")
        client.recv(8)
    assert "pamqp" in sys.modules
    sys.exit(repr(before) if before else 0)
"""
    environment = {"PYTHONPATH": str(ROOT / "src"), "PATH": ""}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
