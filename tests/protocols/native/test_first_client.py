"""What speaks the native protocol is loaded with the first client of its kind, and nobody else waits for that."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, json, sys, threading
from waystation.client.links.address import Address
from waystation.client.links.loops import loop_factory
from waystation.config import BrokerSettings
from waystation.protocol import MAGIC
from waystation.station import Station, plans_of
from waystation.world.memory_disk import MEMORY

HELLO, NATIVE = {hello}, "waystation.protocols.native."
found, failing = {{}}, {failing}

def imported(event, arguments):
    if event == "import" and arguments[0].startswith(NATIVE):
        if failing:
            raise OSError(failing.pop())
        found[arguments[0]] = threading.current_thread() is threading.main_thread()

async def answer(host, port):
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(HELLO)
    said = await reader.read(1)
    writer.close()
    return said

async def main():
    station = Station(MEMORY, BrokerSettings({{}}), plans_of(kafka=Address("127.0.0.1", 0)))
    await station.start()
    try:
        sys.addaudithook(imported)
        host, _, port = station.addresses["kafka"].rpartition(":")
        tries = 2 if failing else 1
        said = [await asyncio.wait_for(answer(host, int(port)), 30) for _ in range(tries)]
        print(json.dumps([[bool(one) for one in said], found]))
    finally:
        await station.stop()

with asyncio.Runner(loop_factory=loop_factory()) as runner:
    runner.run(main())
"""
HELLOS = {"frames": "MAGIC + bytes(20)", "JSON lines": """b'{"action": "list_queues"}\\n'"""}


def run(hello: str, failing: str = "[]") -> tuple[list[bool], dict[str, bool]]:
    program = PROGRAM.format(hello=hello, failing=failing)
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    answered, found = json.loads(done.stdout)
    return answered, found


@pytest.mark.parametrize("hello", HELLOS.values(), ids=HELLOS)
def test_it_is_loaded_on_a_thread_and_the_client_is_answered(hello: str) -> None:
    answered, found = run(hello)
    assert answered == [True]
    assert "waystation.protocols.native.connection" in found
    assert [name for name, on_the_loop in found.items() if on_the_loop] == []


def test_a_client_that_comes_while_nothing_can_be_loaded_ends_and_the_next_one_is_served() -> None:
    answered, _ = run(HELLOS["JSON lines"], "['no file handle is left']")
    assert answered == [False, True]
