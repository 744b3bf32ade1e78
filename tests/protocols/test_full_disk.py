"""A disk that is really full: what is refused has no effect, through HTTP and the native protocol alike."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.protocols.http.kit import Http, name
from tests.protocols.native.kit import JsonLines
from tests.support.server import Server

COUNT = 400
"""Messages to acknowledge: more than fit into the room that a log has allocated ahead."""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[Server]:
    server = Server(tmp_path, settings={"waystation.queue.shards": 1, "waystation.disk.free.min.bytes": 0})
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("a small file system can only be mounted by root on Linux")
    server.data.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=32m", "tmpfs", server.data], capture_output=True)
    if mounted.returncode:
        pytest.skip(f"no file system can be mounted here: {mounted.stderr.decode().strip()}")
    try:
        with server:
            yield server
    finally:
        subprocess.run(["umount", "-l", server.data], check=True)


def _fill(server: Server) -> Path:
    """Leaves no room at all beside what the broker's files have already."""
    filler = server.data / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 4096, 1):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
    return filler


def _use_up(http: Http, queue: str) -> None:
    """Puts to a queue until not even an empty message fits any more."""
    path = f"/v1/queues/{queue}/messages"
    for size in (20_000, 1_000, 0):
        while (answer := http("POST", path, [{"payload": "x" * size}], ok=False)).status < 300:
            pass
        assert answer.status == 507, answer


def test_acks_that_a_full_disk_refuses_have_no_effect(server: Server) -> None:
    http = Http(server.addresses["http"])
    queue, other = name("jobs"), name("ballast")
    for one in (queue, other):
        http("PUT", f"/v1/queues/{one}", {"hold_ms": 600_000})
    http.put(queue, *["job"] * COUNT)
    taken = http.take(queue, COUNT // 2)
    with JsonLines(server.bootstrap) as lines:
        held = lines.get(queue, COUNT // 2)
        filler = _fill(server)
        _use_up(http, other)
        refused_http = [one for one in taken if _ack(http, queue, one["ack_id"]) == 507]
        refused_native = [one for one in held if not _settled(lines, one)]
        assert len(refused_http) > 100
        assert len(refused_native) > 100
        assert http.queue(queue)["held"] == len(refused_http) + len(refused_native), "they are in flight as before"
        filler.unlink()
        assert [_ack(http, queue, one["ack_id"]) for one in refused_http] == [200] * len(refused_http)
        assert all(_settled(lines, one) for one in refused_native)
        info = http.queue(queue)
        assert (info["ready"], info["held"]) == (0, 0)


def _ack(http: Http, queue: str, ack_id: str) -> int:
    return http("POST", f"/v1/queues/{queue}/ack", {"ack_ids": [ack_id]}, ok=False).status


def _settled(lines: JsonLines, message: dict[str, object]) -> bool:
    answer = lines.try_ask("settle", consumer=message["consumer"], tags=[message["tag"]], verdict="ack")
    assert answer["status"] == "success" or answer["error_type"] == "StorageFailed", answer
    return bool(answer["status"] == "success")
