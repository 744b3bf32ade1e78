"""One broker for all tests of the command line; each test uses names of its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.kit import Cli, QuickCli
from tests.support.names import unique
from tests.support.server import Server


@pytest.fixture(scope="session")
def cli(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cli]:
    """Runs commands against a running broker."""
    settings: dict[str, str | int | bool] = {"group.consumer.heartbeat.interval.ms": 200}
    with Server(tmp_path_factory.mktemp("cli"), settings=settings) as server:
        yield Cli(server.bootstrap)


@pytest.fixture(scope="session")
def quick(cli: Cli) -> QuickCli:
    """Runs commands against the same broker, in this process."""
    return QuickCli(cli.server)


@pytest.fixture
def topic() -> str:
    """A topic name of this test only; nobody has created it."""
    return unique("cli")


@pytest.fixture
def queue() -> str:
    """A queue name of this test only; nobody has created it."""
    return unique("q")


@pytest.fixture
def group() -> str:
    return unique("g")
