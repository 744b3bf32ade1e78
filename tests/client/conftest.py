"""Clients to test: `mq` is each of the four in turn; `remote` and `embedded` only those."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import waystation
from tests.client.kit import LoopOnThread, Proxy
from tests.support.server import Server

REMOTE = ("sync-remote", "aio-remote")
EMBEDDED = ("sync-embedded", "aio-embedded")
Connect = Callable[..., Any]


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("client")) as server:
        yield server


@pytest.fixture(scope="session")
def url(server: Server) -> str:
    return f"waystation://{server.bootstrap}"


@pytest.fixture(scope="session")
def home() -> Iterator[LoopOnThread]:
    home = LoopOnThread()
    yield home
    home.close()


def open_client(kind: str, place: str | Path | list[str], home: LoopOnThread, **options: Any) -> Any:
    """A client of the kind: of the URL, or of a broker in this process on the folder."""
    if kind == "sync-remote":
        return waystation.connect(place if isinstance(place, list) else str(place), **options)
    if kind == "sync-embedded":
        return waystation.open(place, **options)  # type: ignore[arg-type]  # a path
    from waystation import aio

    async def wait() -> Any:
        if kind == "aio-remote":
            return await aio.connect(place if isinstance(place, list) else str(place), **options)
        return await aio.open(place, **options)  # type: ignore[arg-type]  # a path

    return Proxy(home.call(wait), home)


@pytest.fixture(scope="session", params=[*REMOTE, *EMBEDDED])
def shared(request: pytest.FixtureRequest, home: LoopOnThread) -> Iterator[Any]:
    kind = request.param
    place = request.getfixturevalue("url") if kind in REMOTE else ":memory:"
    client = open_client(kind, place, home)
    yield client
    client.close()


@pytest.fixture
def mq(shared: Any) -> Any:
    """Each of the four clients. It is shared between tests: use names of your own."""
    return shared


@pytest.fixture(params=[*REMOTE, *EMBEDDED])
def connect(request: pytest.FixtureRequest, home: LoopOnThread) -> Iterator[Connect]:
    """Makes clients of each of the four kinds; the embedded ones have one broker for all that a test makes."""
    kind = request.param
    made: list[Any] = []

    def make(**options: Any) -> Any:
        place = request.getfixturevalue("url") if kind in REMOTE else ":memory:"
        if kind in EMBEDDED and made:
            remote = f"{kind.split('-')[0]}-remote"
            made.append(open_client(remote, made[0].url, home, **options))
        else:
            made.append(open_client(kind, place, home, **options))
        return made[-1]

    yield make
    for client in reversed(made):
        client.close()
