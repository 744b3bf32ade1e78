"""A JSON-lines connection's talk: the lines engine, a session, and the plain actions.

Every line is answered by one line: `{"status": "success", …}` or `{"status": "error", "error": …}`. Requests that carry
an `id` are answered as they are ready, with that id; those without one, in their order. Messages for consumers come
in between, as lines with `push`.

Lines that come together are dealt with a part at a time (`LINES_AT_ONCE`), each in a turn of the line of long work.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from waystation.errors import Invalid, NotAuthenticated
from waystation.message import Run
from waystation.protocol import Answer, AnyCommand, Ceased, Deliver, Failure, Outgoing, Publish, Settle, Touch
from waystation.protocols.native.commands.login import LOG_IN
from waystation.protocols.native.connection import FULL_BYTES, Out
from waystation.protocols.native.framing.json_lines import (
    COMMANDS,
    LINES_AT_ONCE,
    SHORT_LINES,
    BadLine,
    Line,
    Lines,
    answer_value,
    encode_line,
    push,
    to_command,
    unknown_action,
)
from waystation.protocols.native.plain_actions.plain import PLAIN_NUMBERS, PlainActions
from waystation.protocols.native.plain_actions.plain_subscriptions import PlainSubscriptions
from waystation.protocols.native.session import NativeSession, describe

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.world.long_work import LongWork

MAX_ANSWERS = 10_000
"""Lines of one connection that are not answered yet."""


class AnswerPlace:
    """The place of one answer: by its request's id, or in the order of those that have none."""

    __slots__ = ("id", "line")

    def __init__(self, id: Any) -> None:
        self.id = id
        self.line: bytes | None = None


class LinesTalk:
    """Made by the listener for each JSON-lines connection."""

    def __init__(
        self,
        broker: Node,
        name: str,
        subscriptions: PlainSubscriptions,
        long_work: LongWork,
        out: Out,
        on_room: Callable[[], None],
    ) -> None:
        self._long_work = long_work
        self._in_line = False  # more lines are for another turn
        self._has_taken = False  # as many as one turn has time for
        self._lines = Lines()
        self.intake = self._lines.intake
        self._out = out
        self._on_room = on_room
        self.session = NativeSession(broker, self._receive, name, on_room=on_room)
        self._plain = PlainActions(self.session, subscriptions, self.ask)
        self._left: deque[Line | AnyCommand] = deque()
        self._in_order: deque[AnswerPlace] = deque()
        self._asked: dict[int, Callable[[Answer | Failure], None]] = {}
        self._waiting = 0
        self._number = 0

    # -- in -----------------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        return self.session.busy or self._in_line or self._waiting >= MAX_ANSWERS

    @property
    def awaited(self) -> int:
        return self._lines.awaited

    def work(self) -> bool:
        while not (self.busy or self._full):
            if not self._left:
                if self._has_taken and self._lines.more:
                    self._has_taken = False
                    self._in_line = True
                    self._long_work.then(self._turn_came, self.session.wire)
                    return False
                self._left += self._lines.lines(SHORT_LINES if self.session.others_wait else LINES_AT_ONCE)
                self._has_taken = True
                if not (self._left or self._lines.more):
                    self._has_taken = False
                    return False
            self._take()
        return self._full

    def _turn_came(self) -> None:
        self._in_line = False
        self._on_room()

    @property
    def _full(self) -> bool:
        return len(self._out.buffer) >= FULL_BYTES

    def _take(self) -> None:
        """Deals with the lines at hand: neighbours that are commands reach the session together."""
        commands: list[AnyCommand] = []
        while self._left and not (self.busy or self._full):
            line = self._left.popleft()
            if isinstance(line, BadLine):
                self._fill(self._place(None), _error("Invalid", line.why))
            elif not isinstance(line, dict):
                commands.append(line)
            elif commands and line.get("action") in self._plain.actions:
                self._left.appendleft(line)  # what came first happens first
                break
            else:
                self._understand(line, commands)
        self.session.full = self._full
        taken = self.session.handle_all(commands) if commands else 0
        self._left.extendleft(reversed(commands[taken:]))

    def _understand(self, line: dict[str, Any], commands: list[AnyCommand]) -> None:
        place = self._place(line.get("id"))
        try:
            action = line.get("action")
            if self.session.guarded and action not in ("hello", "authenticate"):
                raise NotAuthenticated(LOG_IN)
            if isinstance(action, str) and action in self._plain.actions:
                self._plain.perform(action, line, lambda answer: self._fill(place, answer))
            else:
                commands.append(self._command(line, action, place))
        except RecursionError:
            self._fill(place, _error("Invalid", "the line is nested too deeply"))
        except Exception as error:
            self._fill(place, _error(*describe(error, self.session)))

    def _command(self, line: dict[str, Any], action: Any, place: AnswerPlace) -> AnyCommand:
        if not isinstance(action, str) or action not in COMMANDS:
            raise unknown_action(action, tuple(self._plain.actions))
        if place.id is not None and (not isinstance(place.id, int) or isinstance(place.id, bool)):
            raise Invalid("id: must be a whole number")
        command = to_command(line, action)
        if getattr(command, "consumer", 0) > PLAIN_NUMBERS:
            raise Invalid(f"consumer: must be below {PLAIN_NUMBERS}")
        self._number += 1
        command.id = self._number
        if isinstance(command, Publish) and command.acks == "none":
            self._drop(place)
        else:
            self._asked[command.id] = lambda outgoing: self._fill(place, _answer(outgoing, command))
        return command

    def ask(self, command: AnyCommand, told: Callable[[Answer | Failure], None]) -> None:
        """Has the session do something, and calls `told` with what it answers."""
        self._number += 1
        command.id = self._number
        self._asked[command.id] = told
        self.session.handle(command)

    # -- out ----------------------------------------------------------------------------------------------------------

    def _receive(self, outgoing: Outgoing) -> None:
        """What the session sends."""
        if isinstance(outgoing, Answer | Failure):
            told = self._asked.pop(outgoing.id, None)
            if told is not None:
                told(outgoing)
        elif isinstance(outgoing, Deliver | Ceased) and not self._plain.receive(outgoing):
            consumer = self.session.consumers.get(outgoing.consumer)
            queue = consumer.queue if consumer is not None else ""
            spoken = self.session.spoken
            self._write(encode_line(push(outgoing, queue if spoken is None else spoken.queue(queue))))

    def _place(self, id: Any) -> AnswerPlace:
        place = AnswerPlace(id)
        self._waiting += 1
        if id is None:
            self._in_order.append(place)
        return place

    def _drop(self, place: AnswerPlace) -> None:
        """No answer is wanted."""
        self._waiting -= 1
        if place.id is None:
            self._in_order.remove(place)

    def _fill(self, place: AnswerPlace, answer: dict[str, Any]) -> None:
        was_busy = self.busy
        if place.id is not None:
            self._waiting -= 1
            self._write(encode_line({"id": place.id, **answer}))
        else:
            place.line = encode_line(answer)
            while self._in_order and self._in_order[0].line is not None:
                self._waiting -= 1
                self._write(self._in_order.popleft().line or b"")
        if was_busy and not self.busy:
            self._on_room()

    def _write(self, line: bytes) -> None:
        self._out.buffer += line
        self._out.touched()
        if self._full:
            self.session.full = True

    def pause(self) -> None:
        self.session.pause()

    def resume(self) -> None:
        self.session.resume()

    def close(self) -> None:
        self._plain.close()
        self.session.close()


def _answer(outgoing: Answer | Failure, command: AnyCommand) -> dict[str, Any]:
    if isinstance(outgoing, Failure):
        return _error(outgoing.error, outgoing.text)
    if outgoing.value is None:
        return {"status": "success"}
    if isinstance(command, Settle | Touch) and _total(outgoing.value.unknown) >= _total(command.runs) > 0:
        return _error("Conflict", "runs: none of these messages is in flight at this consumer; nothing was done")
    queue = str(getattr(command, "queue", None) or "")
    return {"status": "success", "value": answer_value(outgoing.value, queue)}


def _total(runs: list[Run]) -> int:
    return sum(count for _, count in runs)


def _error(kind: str, text: str) -> dict[str, Any]:
    return {"status": "error", "error": text, "error_type": kind}
