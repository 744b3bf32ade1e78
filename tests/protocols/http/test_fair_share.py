"""What users of HTTP share has a bound, and who reaches it loses its own and nobody else's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.broker.kit import broker_on, run
from tests.support.entrances import entrance_of
from waystation.broker.access.types import LoginPeer, Principal
from waystation.protocols.http import request_dispatcher
from waystation.protocols.http.auth import login
from waystation.protocols.http.auth.fair_share import oldest_of_most
from waystation.protocols.http.request_dispatcher import RequestDispatcher
from waystation.security.credentials import verifiers_of
from waystation.security.users import User
from waystation.world.random import SystemRandom

HERE = LoginPeer("http", "127.0.0.1")


def test_the_oldest_of_who_has_most_makes_way() -> None:
    assert oldest_of_most(["a1", "b1", "b2", "c1"], lambda key: key[0]) == "b1"
    assert oldest_of_most(["a1", "b1"], lambda key: key[0]) == "a1"


def test_who_names_ever_other_namespaces_takes_nothing_from_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`mallory@x1`, `mallory@x2`…: each was another one, and what somebody else had taken was requeued."""
    monkeypatch.setattr(request_dispatcher, "MOST_DISPATCHERS", 10)

    async def play() -> None:
        async with broker_on(tmp_path) as broker:
            nothing: Any = None
            every = RequestDispatcher(broker, entrance_of(broker, "http"), "127.0.0.1", nothing, {})
            alice = every.of(Principal("alice"))
            for number in range(100):
                every.of(Principal("mallory", namespace=f"x{number}"))
                every.of(Principal("mallory", host=f"fe80::{number}"))
            assert every.of(Principal("alice")) is alice

    run(play())


def test_who_logs_in_again_and_again_ends_no_session_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "MOST_SESSIONS", 10)

    async def play() -> None:
        async with broker_on(tmp_path) as broker:
            for name in ("alice", "mallory"):
                await broker.users.add(name, User(verifiers_of(name, SystemRandom().token)))
            sessions = login.HttpLogin(broker, entrance_of(broker, "http"))
            cookie = await sessions.log_in("alice", "alice", HERE, secure=False)
            for number in range(30):
                await sessions.log_in(f"mallory@x{number}", "mallory", HERE, secure=False)
            shown = await sessions.principal({"cookie": cookie}, ["v1", "queues"], HERE, own=True)
            assert shown.principal.name == "alice"

    run(play())
