"""A process that forks while it has a client or a broker open: the child ends, and the parent does not notice.

Every program here is a process of its own, since a child that hangs has to be noticed from outside.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest

import waystation
from tests.support.names import unique
from tests.support.server import Server
from tests.support.waiting import DEADLINE_S, wait_for
from waystation.client.links import forks
from waystation.errors import WaystationError

OPENED = {
    "connect": "mq = waystation.connect(sys.argv[1])",
    "open": "mq = waystation.open(':memory:')",
    "aio-connect": "mq = Held(waystation.aio.connect(sys.argv[1]))",
    "aio-open": "mq = Held(waystation.aio.open(':memory:'))",
}
"""What the parent has open. `Held` is in `PREPARED`."""

FORKED = {
    "os.fork": """
pid = os.fork()
if pid == 0:
    child()
    sys.exit(7)
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
""",
    "multiprocessing": """
process = multiprocessing.get_context("fork").Process(target=child)
process.start()
process.join()
assert process.exitcode == 0
""",
    "ProcessPoolExecutor": """
with concurrent.futures.ProcessPoolExecutor(2, mp_context=multiprocessing.get_context("fork")) as pool:
    assert [pool.submit(child).result() for _ in range(2)] == ["done", "done"]
""",
}

PREPARED = """
import asyncio, concurrent.futures, multiprocessing, os, sys, threading, waystation
from waystation.errors import Conflict

class Held:
    '''An asyncio client whose loop runs on a thread.'''
    def __init__(self, opening):
        self.loop = asyncio.new_event_loop()
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        async def opened():
            return await opening
        self.client = asyncio.run_coroutine_threadsafe(opened(), self.loop).result()
    def put(self, queue, value):
        async def work():
            return await (await self.client.queue(queue)).put(value)
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result()
    def close(self):
        asyncio.run_coroutine_threadsafe(self.client.close(), self.loop).result()

def child():
    return "done"
"""


def run(program: str, *arguments: str) -> tuple[int, str, str]:
    """Its exit code and what it wrote. What hangs is ended, children too."""
    parent = subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    try:
        out, error = parent.communicate(timeout=DEADLINE_S)
    except BaseException:
        os.killpg(parent.pid, signal.SIGKILL)
        parent.communicate()
        raise
    return parent.returncode, out, error


@pytest.mark.parametrize("way", FORKED)
@pytest.mark.parametrize("kind", OPENED)
def test_a_forked_child_ends_and_the_parent_goes_on(kind: str, way: str, url: str) -> None:
    name = unique("forked")
    if kind.startswith("aio"):
        before, after = f"mq.put('{name}', 1)", f"mq.put('{name}', 2)"
    else:
        before, after = f"jobs = mq.queue('{name}'); jobs.put(1)", "jobs.put(2)"
    program = "\n".join([PREPARED, OPENED[kind], before, FORKED[way], after, "mq.close()", "print('parent is well')"])
    assert run(program, url) == (0, "parent is well\n", "")


USED = """
def refused(what, call):
    try:
        result = call()
    except Conflict as error:
        if str(os.getppid()) not in str(error) or "fork" not in str(error):
            print(what, "says", error)
    except BaseException as error:
        print(what, "raised", repr(error))
    else:
        print(what, "gave", result)
"""

USED_BY_THREADS = """
jobs = mq.queue("used-by-a-child")
jobs.put_many([1, 2, 3, 4])
got = jobs.get(timeout=5)
settled_later = jobs.get(timeout=5)
settled_later.ack(wait=False)
feed = jobs.consume()
feed.get_message(timeout=5)
live = mq.subscribe("used-by-a-child-too")
tx = mq.transaction("used-by-a-child")
tx.__enter__()
handled = threading.Event()
@mq.on("used-by-a-handler")
def handle(message):
    handled.set()

descriptors = len(os.listdir("/dev/fd"))

def child():
    if len(os.listdir("/dev/fd")) > descriptors:
        print("the copy has opened", len(os.listdir("/dev/fd")) - descriptors)
    refused("put", lambda: jobs.put(1))
    refused("put_nowait", lambda: jobs.put_nowait(1))
    refused("put_many", lambda: jobs.put_many([1, 2]))
    refused("get", lambda: jobs.get(timeout=1))
    refused("ack", lambda: got.ack())
    refused("touch", lambda: got.touch())
    refused("take", lambda: feed.get_message(timeout=1))
    refused("iterate", lambda: next(iter(feed)))
    refused("live", lambda: live.get_message(timeout=1))
    refused("publish", lambda: mq.publish("t", 1))
    refused("queue", lambda: mq.queue("other"))
    refused("subscribe", lambda: mq.subscribe("other"))
    refused("flush", lambda: mq.flush())
    refused("run", lambda: mq.run())
    refused("tx.put", lambda: tx.put("used-by-a-child", 1))
    if not mq.closed:
        print("it is not closed")
    mq.close()
"""


@pytest.mark.parametrize("kind", ["connect", "open"])
def test_a_child_that_uses_its_copy_is_told(kind: str, url: str) -> None:
    after = [
        "got.ack()", "jobs.put(5)", "tx.abort()",
        "mq.publish('used-by-a-handler', 1)", "print('handled', handled.wait(10))", "mq.close()",
    ]  # fmt: skip
    program = [PREPARED, OPENED[kind], USED, USED_BY_THREADS, FORKED["os.fork"], *after]
    assert run("\n".join(program), url) == (0, "handled True\n", "")


USED_BY_TASKS = """
async def prepared():
    jobs = await mq.client.queue("used-by-a-child")
    await jobs.put_many([1, 2])
    return jobs, await jobs.get(timeout=5), await jobs.consume()
jobs, got, feed = asyncio.run_coroutine_threadsafe(prepared(), mq.loop).result()

def child():
    def task(make):
        async def work():
            return await make()
        return lambda: asyncio.run(asyncio.wait_for(work(), 5))
    refused("put", task(lambda: jobs.put(1)))
    refused("get", task(lambda: jobs.get(timeout=1)))
    refused("ack", task(lambda: got.ack()))
    refused("feed", task(lambda: feed.get_message(timeout=1)))
    refused("publish", task(lambda: mq.client.publish("t", 1)))
    refused("queue", task(lambda: mq.client.queue("other")))
    asyncio.run(mq.client.close())
"""


@pytest.mark.parametrize("kind", ["aio-connect", "aio-open"])
def test_a_child_that_uses_its_asyncio_copy_is_told(kind: str, url: str) -> None:
    program = [PREPARED, OPENED[kind], USED, USED_BY_TASKS, FORKED["os.fork"], "mq.put('x', 1)", "mq.close()"]
    assert run("\n".join(program), url) == (0, "", "")


STAYS = """
pid = os.fork()
if pid == 0:
    sys.stdin.read()  # as long as the parent's parent says
    os._exit(0)
"""


def test_a_child_that_stays_does_not_keep_the_parents_connection(server: Server, url: str) -> None:
    name = unique("stays")
    program = [PREPARED, f"mq = waystation.connect(sys.argv[1], name='{name}')", STAYS, "os._exit(0)"]
    parent = subprocess.Popen([sys.executable, "-c", "\n".join(program), url], stdin=subprocess.PIPE)
    try:
        assert parent.wait(DEADLINE_S) == 0
        with waystation.connect(url) as mq:
            gone = lambda: not [c for c in mq.view("connections")["connections"] if name in str(c)]  # noqa: E731
            wait_for(gone, "the broker to see that the parent is gone")
    finally:
        parent.communicate()


def test_a_child_that_stays_keeps_neither_the_brokers_folder_nor_its_port(tmp_path: object) -> None:
    closed = [
        "mq = waystation.open(sys.argv[1])", "other = waystation.connect(mq.url)", "port = int(mq.kafka.split(':')[1])",
        STAYS,
        "mq.close()", "again = waystation.open(sys.argv[1], kafka=f'127.0.0.1:{port}')",
        "again.queue('jobs').put(1)", "again.close()", "other.close()", "print('opened again', flush=True)",
    ]  # fmt: skip
    parent = subprocess.Popen(
        [sys.executable, "-c", "\n".join([PREPARED, *closed]), str(tmp_path)],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert parent.wait(DEADLINE_S) == 0
    finally:
        out, _ = parent.communicate()
    assert out == "opened again\n"


def test_clients_that_are_gone_are_forgotten() -> None:
    class Thing:
        def forked(self, error: WaystationError) -> None:
            raise AssertionError(error)

    opened = forks._Opened()
    kept = Thing()
    opened.add([kept])
    for _ in range(10_000):
        opened.add([Thing()])
    assert len(opened._told) <= 2 * forks._FIRST_LOOK
    assert any(thing() is kept for thing, _ in opened._told)
