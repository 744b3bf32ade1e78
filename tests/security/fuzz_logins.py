"""Mutated logins and TLS starts against real brokers: `python -m tests.security.fuzz_logins --count 100000`.

A case is made from a seed: the beginning of a login as a client of the protocol would send it, changed in several
places, cut, spliced with another protocol's, or no login at all; by TLS, a ClientHello that is changed in the same way,
and sometimes a login inside a real handshake. The client then ends its side, or says nothing more, and waits for the
broker's end. What must hold, for each of the eight listeners (`KINDS`):

- nothing hangs: every connection is over within `CLOSED_S`, which is the configured limits and some room;
- memory and open files are bounded: what the process has at its most, and what is left of it;
- the log has no failure of the broker's own, and a real login still works.
"""

from __future__ import annotations

import argparse
import base64
import random
import socket
import ssl
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psutil
from pamqp import commands, frame

from tests.protocols.native.kit import frame_of
from tests.security.tls_kit import client_context, make_certificates, write_config
from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server
from waystation.protocol import MAGIC, Authenticate, Hello

LOGIN_S = 5.0
"""What the brokers are told for `waystation.login.timeout.ms`; AMQP and TLS have 10 s of their own."""
CLOSED_S = 30.0
GROWTH_BYTES = 200 * 1024 * 1024
PARALLEL = 24
SILENT = 2_000
"""One in so many says nothing more, instead of ending its side."""
INSIDE = 20
"""By TLS, one in so many shakes hands first."""
SETTINGS: dict[str, str | int | bool] = {
    "connection.failed.authentication.delay.ms": 1,
    "waystation.login.timeout.ms": int(LOGIN_S * 1000),
    "waystation.audit": "off",  # it is bounded by itself; here it would be most of what is written
}
KINDS = tuple(f"{protocol}{tls}" for tls in ("", "+tls") for protocol in ("kafka", "native", "amqp", "http"))

# -- beginnings of logins ----------------------------------------------------------------------------------------------

USERS = [b"alice", b"admin", b"nobody", b"", b"a" * 300, b"\xff\xfe", b"x=3D,y"]
WORDS = [b"secret", b"", b"wsk_0123456789_abc", b"eyJhbGciOiJub25lIn0.e30.", b"\0" * 5, PASSWORDS["alice"].encode()]


def sasl(rng: random.Random) -> tuple[str, list[bytes]]:
    """A mechanism, and messages of it."""
    user, word = rng.choice(USERS), rng.choice(WORDS)
    nonce = rng.randbytes(9).hex().encode()
    scram = [b"n,,n=%b,r=%b" % (user, nonce), b"c=biws,r=%b,p=%b" % (nonce, base64.b64encode(rng.randbytes(32)))]
    found: list[tuple[str, list[bytes]]] = [
        ("SCRAM-SHA-256", scram),
        ("SCRAM-SHA-512", [scram[0] + b",tokenauth=true", scram[1]]),
        ("OAUTHBEARER", [b"n,,\x01auth=Bearer %b\x01\x01" % word, b"\x01"]),
        ("GSSAPI", [b"\x60\x82\x01\x00\x06\x09" + rng.randbytes(rng.randrange(80))]),
        ("WAYSTATION-NODE", [rng.randbytes(40), rng.randbytes(40)]),
        ("EXTERNAL", [b""]),
        (rng.randbytes(5).hex().upper(), [word]),
    ]
    if rng.random() < 0.1:  # checking a password takes milliseconds: a tenth of them is enough
        return "PLAIN", [b"\0%b\0%b" % (user, word)]
    return rng.choice(found)


def kafka(rng: random.Random) -> bytes:
    mechanism, messages = sasl(rng)

    def request(api: int, version: int, body: bytes) -> bytes:
        head = api.to_bytes(2) + version.to_bytes(2) + rng.randbytes(4) + b"\0\x01t"
        return (len(head) + len(body)).to_bytes(4) + head + body

    parts = [request(18, rng.choice((0, 0, 3)), b"")] if rng.random() < 0.3 else []
    parts.append(request(17, 1, len(mechanism).to_bytes(2) + mechanism.encode()))
    parts += [request(36, rng.choice((0, 1)), len(one).to_bytes(4) + one) for one in messages]
    if rng.random() < 0.2:
        parts.append(request(rng.choice((0, 1, 3, 38)), 1, rng.randbytes(20)))
    return b"".join(parts)


def native(rng: random.Random) -> bytes:
    mechanism, messages = sasl(rng)
    if rng.random() < 0.3:
        user, word = (base64.b64encode(rng.choice(one)).decode() for one in (USERS, WORDS))
        return b'{"action": "hello", "id": 1, "user": "%b", "password": "%b"}\n' % (user.encode(), word.encode())
    first = frame_of(Hello(id=1, client="fuzz", mechanism=mechanism, data=messages[0]))
    return MAGIC + first + b"".join(frame_of(Authenticate(id=2, data=one)) for one in messages[1:])


def amqp(rng: random.Random) -> bytes:
    mechanism, messages = sasl(rng)
    if rng.random() < 0.5:
        mechanism = rng.choice(("AMQPLAIN", "EXTERNAL"))
    answer = messages[0].decode("latin-1")
    properties: Any = {"capabilities": {"authentication_failure_close": rng.random() < 0.5}, "product": "fuzz"}
    parts = [b"AMQP\0\0\x09\x01", frame.marshal(commands.Connection.StartOk(properties, mechanism, answer, "en_US"), 0)]
    if rng.random() < 0.5:
        parts.append(frame.marshal(commands.Connection.TuneOk(10, 131072, 60), 0))
        parts.append(frame.marshal(commands.Connection.Open("/"), 0))
    return b"".join(parts)


def http(rng: random.Random) -> bytes:
    user, word = rng.choice(USERS), rng.choice(WORDS)
    said = rng.choice(
        (
            b"Bearer " + word,
            b"Basic " + base64.b64encode(user + b":" + word[: 0 if rng.random() < 0.7 else None]),
            b"Basic " + word,
            b"Negotiate " + base64.b64encode(rng.randbytes(30)),
        )
    )
    if said.startswith(b"Basic ") and rng.random() < 0.8:
        said = b"Digest x"  # checking a password takes milliseconds
    path = rng.choice((b"/v1/overview", b"/api/whoami", b"/v1/subscriptions/stream?topic=t", b"/v1/live", b"/v1/login"))
    body = b'{"user": 5, "password": "x"}' if path == b"/v1/login" else b""
    method = b"POST" if body else b"GET"
    head = [b"%b %b HTTP/1.1" % (method, path), b"Host: 127.0.0.1", b"Authorization: " + said]
    head += [b"Content-Length: %d" % len(body), b"Content-Type: application/json"] if body else []
    if b"stream" in path:
        head += [b"Connection: Upgrade", b"Upgrade: websocket", b"Sec-WebSocket-Version: 13"]
        head.append(b"Sec-WebSocket-Key: " + base64.b64encode(rng.randbytes(16)))
    return b"\r\n".join(head) + b"\r\n\r\n" + body


BEGINNINGS: dict[str, Callable[[random.Random], bytes]] = {
    "kafka": kafka,
    "native": native,
    "amqp": amqp,
    "http": http,
}


def client_hello() -> bytes:
    """As OpenSSL sends it."""
    out = ssl.MemoryBIO()
    wire = ssl.create_default_context().wrap_bio(ssl.MemoryBIO(), out, server_hostname="localhost")
    try:
        wire.do_handshake()
    except ssl.SSLWantReadError:
        pass
    return out.read()


def mutated(rng: random.Random, data: bytes, other: bytes) -> bytes:
    """Changed in up to six places; now and then nothing of it is left."""
    found = bytearray(data)
    for _ in range(rng.randrange(7)):
        at = rng.randrange(len(found) + 1)
        size = rng.choice((1, 1, 2, 4, 16, 200))
        how = rng.randrange(8)
        if how == 0 and at < len(found):
            found[at] ^= 1 << rng.randrange(8)
        elif how == 1:
            found[at : at + size] = rng.randbytes(size)
        elif how == 2:
            del found[at : at + size]
        elif how == 3:
            found[at:at] = found[at : at + size]
        elif how == 4:
            found[at : at + 4] = rng.choice((b"\xff\xff\xff\xff", b"\x7f\xff\xff\xff", b"\0\0\0\0", b"\x80\0\0\0"))
        elif how == 5:
            del found[at:]
        elif how == 6:
            found[at:] = other[at:]
        else:
            found[at:at] = rng.randbytes(size) * rng.choice((1, 1, 1, 50))
    if rng.random() < 0.02:
        return rng.randbytes(rng.randrange(2000))
    return bytes(found)


# -- one listener ------------------------------------------------------------------------------------------------------


@dataclass
class Figures:
    """What became of the cases of one kind."""

    kind: str
    cases: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: list[float] = field(default_factory=list)  # from the last byte to the broker's end
    silent: list[float] = field(default_factory=list)  # the same, of those that say nothing more
    late: list[int] = field(default_factory=list)  # seeds of those that the broker did not end
    took_s: float = 0.0

    def line(self) -> str:
        times = sorted(self.seconds) or [0.0]
        p99, most = times[int(len(times) * 0.99)], times[-1]
        told = ", ".join(f"{what} {number}" for what, number in sorted(self.outcomes.items()))
        silent = f"; silent ones {len(self.silent)}, at most {max(self.silent):.1f} s" if self.silent else ""
        return (
            f"{self.kind:11} {self.cases} cases in {self.took_s:.0f} s ({told}); closed within {p99 * 1000:.0f} ms"
            f" (p99), at most {most:.2f} s{silent}; not closed: {len(self.late)}"
        )


class Listener:
    """One kind of listener of a broker, and what is sent to it."""

    def __init__(self, kind: str, address: str, certificates: Path) -> None:
        self.figures = Figures(kind)
        self._protocol, _, self._tls = kind.partition("+")
        host, _, port = address.rpartition(":")
        self._address = (host, int(port))
        self._hello = client_hello()
        self._context = client_context(certificates)
        self._lock = threading.Lock()

    def run(self, first: int, cases: int) -> None:
        """In bounded parallel."""
        began = time.monotonic()
        seeds = count(first)
        threads = [threading.Thread(target=self._work, args=(seeds, first + cases)) for _ in range(PARALLEL)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.figures.took_s = time.monotonic() - began

    def _work(self, seeds: Iterator[int], end: int) -> None:
        while True:
            with self._lock:
                seed = next(seeds)
            if seed >= end:
                return
            self._note(seed, *self.case(seed))

    def case(self, seed: int) -> tuple[str, float, bool]:
        """(what became of it, how long it took, whether it said nothing more)"""
        rng = random.Random(f"{self.figures.kind} {seed}")
        begin = BEGINNINGS[self._protocol](rng)
        others = [name for name in BEGINNINGS if name != self._protocol]
        silent = self._protocol != "http" and rng.randrange(SILENT) == 0
        try:
            with ExitStack() as stack:
                link = stack.enter_context(socket.create_connection(self._address, timeout=CLOSED_S))
                if self._tls and rng.randrange(INSIDE):
                    data = mutated(rng, self._hello, begin)
                else:
                    data = mutated(rng, begin, BEGINNINGS[rng.choice(others)](rng))
                    if self._tls:
                        link = stack.enter_context(self._context.wrap_socket(link, server_hostname="localhost"))
                return self._talk(link, data, rng, silent=silent)
        except TimeoutError:
            return "late", CLOSED_S, silent
        except (OSError, ValueError):
            return "reset", 0.0, silent

    def _talk(self, link: socket.socket, data: bytes, rng: random.Random, *, silent: bool) -> tuple[str, float, bool]:
        cut = rng.randrange(len(data) + 1) if rng.random() < 0.2 else len(data)
        answered = False
        began = time.monotonic()
        try:
            for part in (data[:cut], data[cut:]):
                if part:
                    link.sendall(part)
            if not silent:
                link.shutdown(socket.SHUT_WR)
            began = time.monotonic()
            while link.recv(65536):
                answered = True
                if time.monotonic() - began > CLOSED_S:
                    raise TimeoutError
        except TimeoutError:
            raise
        except OSError:
            return "reset", time.monotonic() - began, silent
        return ("answered" if answered else "closed"), time.monotonic() - began, silent

    def _note(self, seed: int, outcome: str, seconds: float, silent: bool) -> None:
        with self._lock:
            figures = self.figures
            figures.cases += 1
            figures.outcomes[outcome] += 1
            (figures.silent if silent else figures.seconds).append(seconds)
            if outcome == "late":
                figures.late.append(seed)


# -- the brokers -------------------------------------------------------------------------------------------------------

CONFIG = """
[tls]
certificate = "server.crt"
key = "server.key"
"""


class Brokers:
    """One that speaks plainly, and one that speaks TLS alone."""

    def __init__(self, plain: Server, encrypted: Server, certificates: Path) -> None:
        self.servers = {"": plain, "tls": encrypted}
        self.certificates = certificates
        self.before = {name: self.used(name) for name in self.servers}

    def used(self, name: str) -> tuple[int, int]:
        """(bytes of memory, open files)"""
        process = self._process(name)
        return process.memory_info().rss, process.num_fds()

    def _process(self, name: str) -> psutil.Process:
        started = self.servers[name].process
        if started is None:
            raise RuntimeError("the broker does not run")
        return psutil.Process(started.pid)

    def peak(self, name: str) -> int:
        status = Path(f"/proc/{self._process(name).pid}/status").read_text()
        return int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmHWM"))) * 1024

    def listener(self, kind: str) -> Listener:
        protocol, _, tls = kind.partition("+")
        server = self.servers[tls]
        address = server.addresses["kafka" if protocol == "native" else protocol]
        return Listener(kind, address, self.certificates)

    def wrong(self) -> list[str]:
        """What is not as it should be now."""
        found = []
        for name, server in self.servers.items():
            what = name or "plain"
            if server.process is None or server.process.poll() is not None:
                found.append(f"{what}: the broker has ended\n{server.tail()}")
                continue
            files = self._files_left(name)
            if files > self.before[name][1] + 10:
                found.append(f"{what}: {files} open files, {self.before[name][1]} before")
            if self.peak(name) - self.before[name][0] > GROWTH_BYTES:
                found.append(f"{what}: {self.peak(name)} bytes of memory, {self.before[name][0]} before")
            log = server.log.read_text(errors="replace")
            for word in ("Traceback", "request.failed", "never retrieved", "connection.broke", "level=error"):
                if word in log:
                    at = log.index(word)
                    found.append(f"{what}: the log has {word!r}: {log[max(0, at - 1500) : at + 1500]}")
        return found

    def _files_left(self, name: str) -> int:
        """When those that are about to be closed are."""
        until_s = time.monotonic() + CLOSED_S
        while self.used(name)[1] > self.before[name][1] + 10 and time.monotonic() < until_s:
            time.sleep(0.2)
        return self.used(name)[1]

    def report(self) -> str:
        mib = 1024 * 1024
        return "; ".join(
            f"{name or 'plain'}: {memory / mib:.0f} MiB before, {self.peak(name) / mib:.0f} at most,"
            f" {self.used(name)[0] / mib:.0f} after; open files {files} before, {self.used(name)[1]} after"
            for name, (memory, files) in self.before.items()
        )


@contextmanager
def brokers(folder: Path) -> Iterator[Brokers]:
    """With users, so that everybody has to log in."""
    certificates = folder / "certificates"
    certificates.mkdir()
    make_certificates(certificates)
    told = write_config(certificates, CONFIG)
    for name in ("plain", "encrypted"):
        add_users(folder / name / "data", PASSWORDS, superusers=("admin",))
    with (
        Server(folder / "plain", settings=SETTINGS) as plain,
        Server(folder / "encrypted", settings=SETTINGS, arguments=told) as encrypted,
    ):
        yield Brokers(plain, encrypted, certificates)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=100_000, help="cases for each kind of listener")
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=list(KINDS))
    arguments = parser.parse_args()
    failed = False
    with tempfile.TemporaryDirectory() as folder, brokers(Path(folder)) as under_test:
        for kind in arguments.kinds:
            listener = under_test.listener(kind)
            listener.run(arguments.first, arguments.count)
            print(listener.figures.line(), flush=True)
            if listener.figures.late:
                failed = True
                print(f"  not closed within {CLOSED_S:.0f} s: seeds {listener.figures.late[:20]}", flush=True)
        print(under_test.report(), flush=True)
        for one in under_test.wrong():
            failed = True
            print(one, flush=True)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
