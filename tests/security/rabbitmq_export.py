"""A real RabbitMQ with users, permissions and what they use, and its own export of that.

`python -m tests.security.rabbitmq_export` starts Debian's rabbitmq-server in a folder and on ports of its own, makes
all of `SETUP` by its management API, and writes what `GET /api/definitions` answers to `EXPORT`, which the tests import
where no RabbitMQ is installed. `OUTCOMES` is what its clients then may and may not, the same on both brokers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pika
import requests
from pika.exceptions import AMQPChannelError, AMQPConnectionError

from tests.protocols.amqp.same_rabbit import free_port, rabbitmq

EXPORT = Path(__file__).parent / "data" / "rabbitmq-export.json"
PASSWORDS = {
    "exported-admin": "the admin's, wíth ümlauts",
    "exported-app": "app:secret/1",
    "exported-topics": "topics-secret",
    "exported-monitor": "monitor-secret",
    "exported-sha512": "longer-secret",
}


def _sha512(password: str) -> str:
    salt = b"\x01\x02\x03\x04"
    return base64.b64encode(salt + hashlib.sha512(salt + password.encode()).digest()).decode()


def _permission(configure: str, write: str, read: str) -> dict[str, str]:
    return {"configure": configure, "write": write, "read": read}


SETUP: list[tuple[str, dict[str, Any]]] = [
    ("vhosts/exported", {"description": "a shop", "tags": "shop"}),
    ("users/exported-admin", {"password": PASSWORDS["exported-admin"], "tags": "administrator"}),
    ("users/exported-app", {"password": PASSWORDS["exported-app"], "tags": ""}),
    ("users/exported-topics", {"password": PASSWORDS["exported-topics"], "tags": ""}),
    ("users/exported-monitor", {"password": PASSWORDS["exported-monitor"], "tags": "monitoring,management"}),
    ("users/exported-nobody", {"password_hash": "", "tags": ""}),  # logs in by certificate alone
    (
        "users/exported-sha512",
        {
            "password_hash": _sha512(PASSWORDS["exported-sha512"]),
            "hashing_algorithm": "rabbit_password_hashing_sha512",
            "tags": "",
        },
    ),
    ("permissions/exported/exported-admin", _permission(".*", ".*", ".*")),
    ("permissions/%2F/exported-admin", _permission(".*", ".*", ".*")),
    ("permissions/exported/exported-app", _permission("^app-", "^(orders|app-.*|amq\\.default)$", "^app-")),
    ("permissions/exported/exported-topics", _permission("^$", "^news$", "^$")),
    ("permissions/exported/exported-monitor", _permission("^$", "^$", "^$")),
    ("permissions/exported/exported-sha512", _permission(".*", ".*", ".*")),
    ("exchanges/exported/orders", {"type": "direct", "durable": True}),
    ("exchanges/exported/news", {"type": "topic", "durable": True}),
    ("queues/exported/app-jobs", {"durable": True}),
    ("topic-permissions/exported/exported-topics", {"exchange": "news", "write": "^sport\\.", "read": ".*"}),
    ("policies/exported/short", {"pattern": "^app-", "definition": {"max-length": 100}, "apply-to": "queues"}),
    ("vhost-limits/exported/max-queues", {"value": 50}),
    ("user-limits/exported-app/max-channels", {"value": 20}),
]

BIND = ("bindings/exported/e/orders/q/app-jobs", {"routing_key": "new"})

OUTCOMES: dict[tuple[str, str], str] = {
    ("exported-admin", "publish to orders"): "done",
    ("exported-admin", "declare mine"): "done",
    ("exported-app", "publish to orders"): "done",
    ("exported-app", "declare app-own"): "done",
    ("exported-app", "declare mine"): "403",
    ("exported-app", "get from app-jobs"): "done",
    ("exported-app", "publish sport.ball to news"): "403",
    ("exported-topics", "publish sport.ball to news"): "done",
    ("exported-topics", "publish politics.x to news"): "403",
    ("exported-topics", "get from app-jobs"): "403",
    ("exported-monitor", "get from app-jobs"): "403",
    ("exported-sha512", "publish to orders"): "done",
    ("exported-nobody", "publish to orders"): "no login",
    ("guest", "publish to orders"): "done",  # it made the virtual host, so it may everything there
}
"""What a user gets for what it does in the virtual host."""


class Api:
    """RabbitMQ's management API, as `guest`."""

    def __init__(self, port: int) -> None:
        self._url = f"http://127.0.0.1:{port}/api/"
        self._auth = ("guest", "guest")

    def ready(self) -> bool:
        try:
            return requests.get(self._url + "overview", auth=self._auth, timeout=20).ok
        except requests.RequestException:
            return False

    def set_up(self) -> None:
        for path, body in SETUP:
            answer = requests.put(self._url + path, json=body, auth=self._auth, timeout=20)
            assert answer.ok, f"{path}: {answer.status_code} {answer.text}"
        path, body = BIND
        answer = requests.post(self._url + path, json=body, auth=self._auth, timeout=20)
        assert answer.ok, answer.text

    def export(self) -> dict[str, Any]:
        found: dict[str, Any] = requests.get(self._url + "definitions", auth=self._auth, timeout=20).json()
        return found


@contextmanager
def real_rabbitmq(folder: Path) -> Iterator[tuple[str, Api]]:
    """Its address, and its management API; all of `SETUP` is there."""
    port = free_port()
    with rabbitmq(folder, port) as address:
        api = Api(port)
        until_s = time.monotonic() + 60
        while not api.ready():
            if time.monotonic() > until_s:
                raise TimeoutError("RabbitMQ's management API")
            time.sleep(0.2)
        api.set_up()
        yield address, api


def attempt(address: str, user: str, what: str) -> str:
    """What becomes of it: done, 403, or no login."""
    host, _, port = address.rpartition(":")
    credentials = pika.PlainCredentials(user, PASSWORDS.get(user, "guest"))
    try:
        connection = pika.BlockingConnection(pika.ConnectionParameters(host, int(port), "exported", credentials))
    except AMQPConnectionError:
        return "no login"
    try:
        channel = connection.channel()
        channel.confirm_delivery()
        verb, *words = what.split()
        if verb == "declare":
            channel.queue_declare(words[0], durable=True)
        elif verb == "get":
            channel.basic_get(words[1], auto_ack=True)
        else:
            key = "new" if words[0] == "to" else words[0]
            channel.basic_publish(words[-1], key, b"x")
        return "done"
    except AMQPChannelError as error:
        return str(error.args[0])
    finally:
        connection.close()


def main() -> None:
    with tempfile.TemporaryDirectory() as folder, real_rabbitmq(Path(folder)) as (_, api):
        EXPORT.write_text(json.dumps(api.export(), indent=1, sort_keys=True, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
