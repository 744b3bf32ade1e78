"""One broker for all tests of this protocol; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.protocols.native.kit import Frames, JsonLines
from tests.support.server import Server


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("native")) as server:
        yield server


@pytest.fixture
def lines(server: Server) -> Iterator[JsonLines]:
    with JsonLines(server.bootstrap) as connection:
        yield connection


@pytest.fixture
def other(server: Server) -> Iterator[JsonLines]:
    """A second client."""
    with JsonLines(server.bootstrap) as connection:
        yield connection


@pytest.fixture
def frames(server: Server) -> Iterator[Frames]:
    with Frames(server.bootstrap) as connection:
        yield connection
