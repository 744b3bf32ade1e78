"""Brokers with users, as the command line makes them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.security.users_kit import PASSWORDS, add_users
from tests.support.server import Server

ServerCall = Callable[..., Server]


@pytest.fixture(scope="session")
def closed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A broker with the users of `users_kit.PASSWORDS`, for all tests that only log in."""
    folder = tmp_path_factory.mktemp("closed")
    add_users(folder / "data", PASSWORDS, superusers=("admin",))
    with Server(folder, settings={"connection.failed.authentication.delay.ms": 1}) as server:
        yield server


@pytest.fixture
def own_closed(tmp_path: Path) -> Iterator[ServerCall]:
    """A factory of brokers with the same users and settings of their own."""
    with ExitStack() as stack:

        def start(*arguments: str, **settings: str | int | bool) -> Server:
            folder = tmp_path / f"broker{len(list(tmp_path.iterdir()))}"
            add_users(folder / "data", PASSWORDS, superusers=("admin",))
            told = {"connection.failed.authentication.delay.ms": 1, **settings}
            return stack.enter_context(Server(folder, settings=told, arguments=arguments))

        yield start
