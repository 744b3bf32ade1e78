"""A client with several addresses connects to the first that answers, and looks for another when that is gone."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.client.conftest import REMOTE, open_client
from tests.client.kit import LoopOnThread
from tests.support.names import unique
from tests.support.ports import free_port
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation import aio, errors


class Detour:
    """An address that leads to a broker, until it is closed."""

    def __init__(self, target: str, port: int = 0) -> None:
        host, _, to = target.rpartition(":")
        self._target = (host, int(to))
        self._listener = socket.create_server(("127.0.0.1", port))
        self._open: list[socket.socket] = []
        self.taken = 0
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            self.taken += 1
            far = socket.create_connection(self._target)
            self._open += [near, far]
            for one, other in ((near, far), (far, near)):
                threading.Thread(target=self._carry, args=(one, other), daemon=True).start()

    @staticmethod
    def _carry(source: socket.socket, target: socket.socket) -> None:
        try:
            while data := source.recv(65536):
                target.sendall(data)
        except OSError:
            pass
        finally:
            for one in (source, target):
                try:
                    one.shutdown(socket.SHUT_RDWR)
                except OSError:
                    pass

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._open:
            try:
                one.shutdown(socket.SHUT_RDWR)
            except OSError:
                pass
            one.close()


@contextmanager
def detours(server: Server, count: int) -> Iterator[list[Detour]]:
    made = [Detour(server.bootstrap) for _ in range(count)]
    yield made
    for detour in made:
        try:
            detour.close()
        except OSError:
            pass


@pytest.fixture(params=REMOTE)
def connect(request: pytest.FixtureRequest, home: LoopOnThread) -> Iterator[Any]:
    made: list[Any] = []

    def make(url: Any, **options: Any) -> Any:
        made.append(open_client(request.param, url, home, **options))
        return made[-1]

    yield make
    for client in made:
        client.close()


@pytest.mark.parametrize("as_list", [True, False])
def test_the_first_address_that_answers_is_used(server: Server, connect: Any, as_list: bool) -> None:
    addresses = [f"127.0.0.1:{free_port()}", server.addresses["http"], server.bootstrap]
    mq = connect(addresses if as_list else "waystation://" + ",".join(addresses))
    mq.queue(unique("jobs")).put("x")


def test_another_address_is_used_when_one_is_gone(server: Server, connect: Any) -> None:
    """Consumers go on, and what is put meanwhile arrives."""
    with detours(server, 3) as (first, second, third):
        mq = connect(f"{first.address},{second.address},{third.address}")
        jobs, seen = mq.queue(unique("jobs")), []

        def work(message: Any) -> None:
            seen.append(message.text())

        mq.on(queue=jobs)(work)
        jobs.put("first")
        wait_for(lambda: seen == ["first"], "it works")
        mq.flush()
        assert (first.taken, second.taken, third.taken) == (1, 0, 0)
        first.close()
        jobs.put("second")
        wait_for(lambda: seen == ["first", "second"], "it goes on")
        mq.flush()
        assert (second.taken, third.taken) == (1, 0)
        second.close()
        jobs.put("third")
        wait_for(lambda: seen == ["first", "second", "third"], "it goes on once more")
        mq.flush()
        reopened = Detour(server.bootstrap, int(first.address.rpartition(":")[2]))
        third.close()
        jobs.put("fourth")
        wait_for(lambda: len(seen) == 4, "it begins again with the first")
        reopened.close()


def test_an_address_that_hangs_up_at_once_is_left(server: Server, connect: Any) -> None:
    """It accepts connections, so it looks like a broker."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        threading.Thread(target=_hang_up, args=(silent,), daemon=True).start()
        mq = connect(f"127.0.0.1:{silent.getsockname()[1]},{server.bootstrap}")
        mq.ping()
        silent.shutdown(socket.SHUT_RDWR)


def test_a_server_that_answers_before_it_was_greeted_is_left(connect: Any) -> None:
    """Its answer may come before the client has sent its greeting, or just then: it must not wait for another."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=_hang_up, args=(server, b"HTTP/1.1 400 Bad Request\r\n\r\n"), daemon=True).start()
        for _ in range(50):
            with pytest.raises(errors.ConnectionLost, match=r"speaks HTTP|closed the connection"):
                connect(f"127.0.0.1:{server.getsockname()[1]}", timeout=DEADLINE_S)
        server.shutdown(socket.SHUT_RDWR)


def test_an_address_that_says_nothing_takes_its_share_of_the_timeout(server: Server, connect: Any) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        mq = connect(f"{address},{server.bootstrap}", timeout=2.0)
        mq.ping()
        with pytest.raises(errors.ConnectionLost, match=f"the broker at {address} did not greet within 0.5 s"):
            connect(f"{address},127.0.0.1:{free_port()}", timeout=1.0)


def _hang_up(listener: socket.socket, answer: bytes = b"") -> None:
    try:
        while True:
            with listener.accept()[0] as taken:
                taken.sendall(answer)
    except OSError:
        pass


def test_no_address_that_answers_is_an_error_that_names_each(server: Server, connect: Any) -> None:
    gone, other = f"127.0.0.1:{free_port()}", server.addresses["http"]
    with pytest.raises(errors.ConnectionLost, match="none of 2 addresses answers") as caught:
        connect([gone, other], timeout=DEADLINE_S)
    assert gone in str(caught.value)
    assert f"{other} speaks HTTP" in str(caught.value)


def test_a_client_that_loses_all_addresses_says_so(tmp_path: Path, connect: Any) -> None:
    with Server(tmp_path) as own, detours(own, 2) as (first, second):
        mq = connect(f"{first.address},{second.address}", timeout=2.0)
        jobs = mq.queue(unique("jobs"))
        first.close()
        second.close()
        with pytest.raises(errors.ConnectionLost, match="none of 2 addresses") as caught:
            wait_for(lambda: jobs.put("x") is None, "nothing")
        assert first.address in str(caught.value)
        assert second.address in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"), [([], "an address is missing"), ("a:1,,b:2", "an address"), (["a:x"], "'a:x'")]
)
def test_wrong_lists_of_addresses_are_refused(url: Any, said: str) -> None:
    for connect in (waystation.connect, aio.connect):
        with pytest.raises(errors.Invalid, match=said):
            connect(url)


def test_the_environment_may_name_several(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WAYSTATION_SERVER", f"127.0.0.1:{free_port()},{server.bootstrap}")
    with waystation.connect() as mq:
        assert server.bootstrap in repr(mq)
