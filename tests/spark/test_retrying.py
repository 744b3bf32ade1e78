"""A broker that is away is waited for, with a word in the log, for as long as was asked for and no longer."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from tests.support.ports import free_port, split_address
from tests.support.server import Server
from waystation.errors import ConnectionLost, Unavailable
from waystation.spark.links.native_link import link_to_any
from waystation.spark.links.retrying import patiently
from waystation.spark.links.servers import Servers

pytestmark = pytest.mark.quick


def test_when_the_time_is_over_it_is_said_which_broker_and_what_to_do() -> None:
    servers = Servers((("127.0.0.1", free_port()),))
    forgotten: list[int] = []
    with pytest.raises(ConnectionLost, match=rf"{servers} cannot be reached .*retryTimeout"):
        patiently(lambda: link_to_any(servers, "t"), servers, 0.3, forget=lambda: forgotten.append(1))
    assert len(forgotten) > 1, "it was tried more than once"


def test_a_broker_that_comes_back_answers_and_both_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, logger="waystation.spark")
    with Server(tmp_path) as server:
        servers = Servers((split_address(server.bootstrap),))
        server.stop()
        later = threading.Timer(0.5, server.start)
        later.start()
        patiently(lambda: link_to_any(servers, "t"), servers, 60).close()
        later.join()
    assert "cannot be reached" in caplog.text
    assert "answers again" in caplog.text


def test_only_what_means_away_is_tried_again() -> None:
    asked: list[int] = []

    def refused() -> None:
        asked.append(1)
        raise Unavailable("not yet")

    with pytest.raises(Unavailable, match="not yet"):
        patiently(refused, Servers((("h", 1),)), 60)
    assert len(asked) == 1
    with pytest.raises(ConnectionLost, match=r"cannot answer now \(not yet\)"):
        patiently(refused, Servers((("h", 1),)), 0.2, away=(Unavailable,))
    assert len(asked) > 2
