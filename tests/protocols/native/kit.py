"""Plain sockets that speak to a broker: JSON lines as a person with `nc` would, and msgpack frames."""

from __future__ import annotations

import json
import socket
from collections import deque
from types import TracebackType
from typing import Any

import msgspec

from tests.support.ports import split_address
from waystation.protocol import MAGIC, Answer, Ceased, Command, Deliver, Failure, Outgoing

PATIENCE_S = 30.0


class Refused(AssertionError):
    """The broker answered with an error; `kind` is its type."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer.get('error_type')}: {answer.get('error')}")
        self.kind = answer.get("error_type")
        self.text = str(answer.get("error"))


class JsonLines:
    """A connection that sends a JSON object per line and reads lines back."""

    def __init__(self, address: str) -> None:
        self.socket = socket.create_connection(split_address(address), PATIENCE_S)
        self._file = self.socket.makefile("rb")
        self.pushes: deque[dict[str, Any]] = deque()

    def __enter__(self) -> JsonLines:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, action: str, **fields: Any) -> None:
        self.send_raw(json.dumps({"action": action, **fields}).encode() + b"\n")

    def send_raw(self, data: bytes) -> None:
        self.socket.sendall(data)

    def line(self) -> dict[str, Any]:
        """The next line, whatever it is."""
        line = self._file.readline()
        assert line.endswith(b"\n"), f"the broker closed the connection after {line[:200]!r}"
        found = json.loads(line)
        assert isinstance(found, dict)
        return found

    def answer(self) -> dict[str, Any]:
        """The next answer; pushes that come before it are kept."""
        while True:
            line = self.line()
            if "push" not in line:
                return line
            self.pushes.append(line)

    def try_ask(self, action: str, **fields: Any) -> dict[str, Any]:
        """The whole answer, success or not."""
        self.send(action, **fields)
        return self.answer()

    def ask(self, action: str, **fields: Any) -> Any:
        """The answer's value; raises Refused."""
        answer = self.try_ask(action, **fields)
        if answer["status"] != "success":
            raise Refused(answer)
        return answer.get("value", answer.get("stats"))

    def refusal(self, action: str, **fields: Any) -> Refused:
        """The error that this gets."""
        answer = self.try_ask(action, **fields)
        assert answer["status"] == "error", answer
        return Refused(answer)

    def push(self) -> dict[str, Any]:
        """The next push."""
        if self.pushes:
            return self.pushes.popleft()
        line = self.line()
        assert "push" in line, line
        return line

    def delivered(self, count: int) -> list[dict[str, Any]]:
        """The next `count` messages that are pushed."""
        messages: list[dict[str, Any]] = []
        while len(messages) < count:
            push = self.push()
            assert push["push"] == "deliver", push
            messages += push["messages"]
        assert len(messages) == count
        return messages

    # The usual, shorter.

    def queue(self, name: str, **settings: Any) -> str:
        self.ask("declare_queue", queue=name, settings=settings)
        return name

    def put(self, queue: str, *messages: Any, **fields: Any) -> dict[str, Any]:
        """Messages as JSON objects, or their payloads."""
        objects = [message if isinstance(message, dict) else {"payload": message} for message in messages]
        answer = self.ask("put", queue=queue, messages=objects, **fields)
        assert isinstance(answer, dict)
        return answer

    def get(self, queue: str, count: int = 1, wait_ms: int = 0, **fields: Any) -> list[dict[str, Any]]:
        got = self.ask("get", queue=queue, count=count, wait_ms=wait_ms, **fields)
        for message in got["messages"]:
            message["consumer"] = got["consumer"]
        messages = got["messages"]
        assert isinstance(messages, list)
        return messages

    def get_payloads(self, queue: str, count: int = 100, wait_ms: int = 0, **fields: Any) -> list[str]:
        return [message["payload"] for message in self.get(queue, count, wait_ms, **fields)]

    def settle(self, message: dict[str, Any], verdict: str = "ack", **fields: Any) -> Any:
        return self.ask("settle", consumer=message["consumer"], tags=[message["tag"]], verdict=verdict, **fields)

    def counts(self, queue: str) -> tuple[int, int, int]:
        """(ready, delayed, in flight)."""
        info = self.ask("describe_queue", queue=queue)
        return info["ready"], info["parked"], info["held"]


class Frames:
    """A connection that speaks msgpack frames."""

    def __init__(self, address: str, *, greet: bool = True) -> None:
        self.socket = socket.create_connection(split_address(address), PATIENCE_S)
        self._file = self.socket.makefile("rb")
        self._ids = 0
        if greet:
            self.socket.sendall(MAGIC)

    def __enter__(self) -> Frames:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._file.close()
        self.socket.close()

    def send(self, *commands: Command) -> None:
        self.socket.sendall(b"".join(map(frame_of, commands)))

    def receive(self) -> Answer | Failure | Deliver | Ceased | None:
        """The next answer or push; None at the end of the connection."""
        head = self._file.read(4)
        if len(head) < 4:
            return None
        body = self._file.read(int.from_bytes(head, "big"))
        found: Answer | Failure | Deliver | Ceased = msgspec.msgpack.decode(body, type=Outgoing)
        return found

    def ask(self, command: Command) -> Any:
        """What it answers, a Failure included; pushes in between are lost."""
        self._ids += 1
        command.id = 1_000_000 + self._ids
        self.send(command)
        while True:
            found = self.receive()
            assert found is not None, "the broker closed the connection"
            if isinstance(found, Answer) and found.id == command.id:
                return found.value
            if isinstance(found, Failure):
                return found


def frame_of(command: Any) -> bytes:
    body = msgspec.msgpack.encode(command)
    return len(body).to_bytes(4, "big") + body
