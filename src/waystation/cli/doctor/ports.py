"""What `doctor` has to say of the ports: free, ours already, or somebody else's.

Each protocol is asked in its own language, one question, and the connection is closed. Who does not answer within a
second is somebody else.
"""

from __future__ import annotations

import errno
import json
import re
import socket
from collections.abc import Callable

from waystation.cli.doctor.findings import Figures, Finding
from waystation.client.links.address import Address

ANSWER_S = 1.0
MOST_BYTES = 64 * 1024


def look_at_port(name: str, protocol: str, address: Address | None) -> Finding:
    """Whether a protocol could listen there; if not, who does."""
    check = f"{name} port"
    if address is None:
        return Finding(check=check, says="the listener is off", figures={"address": None})
    if address.port == 0:
        return Finding(check=check, says="any free one", figures={"address": str(address)})
    try:
        reason = _taken(address)
    except OSError as error:
        says = f"{address}: {error.strerror or error}"
        advice = "choose another address for it"
        return Finding(check=check, state="problem", says=says, advice=advice, figures={"address": str(address)})
    if not reason:
        return Finding(check=check, says=f"{address} is free", figures={"address": str(address), "free": True})
    version = who_answers(protocol, address)
    figures: Figures = {"address": str(address), "free": False, "waystation": version}
    if version is not None:
        return Finding(check=check, says=f"Waystation {version} answers at {address}", figures=figures)
    port = address.port
    return Finding(
        check=check,
        state="problem",
        says=f"another program has {address}",
        advice=f"`ss -ltnp 'sport = :{port}'` shows which; stop it, or choose another address for it",
        figures=figures,
    )


def _taken(address: Address) -> bool:
    """Tries to have it, as the broker would, and lets go again. Raises OSError where it can never be had."""
    family, kind, protocol, _, where = socket.getaddrinfo(
        address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    with socket.socket(family, kind, protocol) as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(where)
            tried.listen(1)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                return True
            raise
    return False


def who_answers(protocol: str, address: Address) -> str | None:
    """The version of the broker of ours that answers there; None: it is none of ours."""
    ask, read = _QUESTIONS[protocol]
    try:
        with socket.create_connection((_near(address.host), address.port), timeout=ANSWER_S) as connection:
            connection.sendall(ask)
            answer = b""
            while len(answer) < MOST_BYTES:
                more = connection.recv(4096)
                answer += more
                version = read(answer)
                if version is not None or not more:
                    return version
    except OSError:
        return None
    return None


def _near(host: str) -> str:
    """Where to find what listens on every interface."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _of_native(answer: bytes) -> str | None:
    try:
        value = json.loads(answer.partition(b"\n")[0])["value"]
        return str(value["broker"])
    except (ValueError, KeyError, TypeError):
        return None


def _of_amqp(answer: bytes) -> str | None:
    """It says so in its first frame, among what it can do."""
    found = re.search(rb"Waystation (\d[\w.+-]*)", answer)
    return found[1].decode() if found and answer.endswith(b"\xce") else None


def _of_http(answer: bytes) -> str | None:
    """The body has to be whole: of a part of it nothing can be said."""
    try:
        body = json.loads(answer.partition(b"\r\n\r\n")[2])
        return str(body["version"]) if "status" in body else None
    except (ValueError, KeyError, TypeError):
        return None


_QUESTIONS: dict[str, tuple[bytes, Callable[[bytes], str | None]]] = {
    "kafka": (b'{"action": "hello", "client": "waystation-doctor"}\n', _of_native),
    "amqp": (b"AMQP\x00\x00\x09\x01", _of_amqp),
    "http": (b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", _of_http),
}
