"""A msgpack connection's talk: the frames engine and a session, joined.

A request that only looks at messages may be answered with megabytes at once, as often as its client likes. Of those
there is one in a turn of the loop, whatever the number of connections; while such a request waits for its turn, those
behind it wait too. The same goes for many requests at once that are none of those which come in masses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from waystation.protocol import (
    MAX_FRAME_BYTES,
    AnyCommand,
    Credit,
    Failure,
    Outgoing,
    Peek,
    Ping,
    Publish,
    Put,
    ReadBatches,
    ReadEntries,
    Settle,
)
from waystation.protocols.native.commands.login import FRAME_BYTES
from waystation.protocols.native.connection import FULL_BYTES, Out, TalkOver
from waystation.protocols.native.framing.frames import BadFrame, Frames, UnreadableRequest, encode_into
from waystation.protocols.native.session import NativeSession

if TYPE_CHECKING:
    from waystation.broker.access.node import Node
    from waystation.world.long_work import LongWork

LOOKS = frozenset((Peek, ReadEntries, ReadBatches))
"""Up to 8 MiB of messages in an answer, for a request of a few bytes."""


IN_MASSES = frozenset((Put, Publish, Settle, Credit, Ping))
"""Neighbours of these are dealt with as one, or take next to nothing."""

LONG_ANSWER_BYTES = 64 * 1024
"""Behind a longer one, the next look waits for its turn."""

OTHERS_AT_ONCE = 32
"""Of all others that have come together. One takes some ten microseconds, as opening a consumer does."""


class BinaryTalk:
    """Made by the listener for each msgpack connection."""

    def __init__(self, broker: Node, name: str, long_work: LongWork, out: Out, on_room: Callable[[], None]) -> None:
        self._long_work = long_work
        self._on_room = on_room
        self._in_line = False  # the next command waits for its turn
        self._has_turn = False
        self._many = False  # those that are next need one
        self._frames = Frames()
        self.intake = self._frames.intake
        self._out = out
        self.session = NativeSession(broker, self._send, name, on_room=on_room)
        self._left: list[AnyCommand | UnreadableRequest] = []

    @property
    def busy(self) -> bool:
        return self.session.busy or self._in_line

    @property
    def awaited(self) -> int:
        return self._frames.awaited

    def work(self) -> bool:
        session = self.session
        session.full = len(self._out.buffer) >= FULL_BYTES
        self._frames.max_frame = FRAME_BYTES if session.guarded else MAX_FRAME_BYTES
        while not (self.busy or session.full):
            try:
                commands = self._left or self._frames.commands()
            except BadFrame as error:
                self._send(Failure(0, "Invalid", f"{error}; the connection is closed"))
                raise TalkOver(str(error)) from None
            if not commands:
                return False
            if self._many and not self._has_turn:
                self._left = commands
                self._get_in_line()
                return False
            self._left = commands[self._handle(commands) :]
            if not (self._left or self.intake.unread):
                return session.full
        return session.full

    def _handle(self, commands: list[AnyCommand | UnreadableRequest]) -> int:
        """How many were dealt with."""
        others = 0
        if self._many:
            self._many = self._has_turn = False
        for at, command in enumerate(commands):
            if isinstance(command, UnreadableRequest):
                if at:
                    return self.session.handle_all(commands[:at])  # type: ignore[arg-type]  # none of them is refused
                if command.id:
                    self._send(Failure(command.id, "Invalid", command.why))
                return 1
            kind = type(command)
            if kind in LOOKS:
                return self.session.handle_all(commands[:at]) if at else self._look(command)  # type: ignore[arg-type]
            if kind not in IN_MASSES:
                others += 1
                if others > OTHERS_AT_ONCE:
                    self._many = True
                    return self.session.handle_all(commands[:at])  # type: ignore[arg-type]
        return self.session.handle_all(commands)  # type: ignore[arg-type]

    def _look(self, command: AnyCommand) -> int:
        if not self._has_turn and self._long_work.taken_from(self.session.wire):
            self._get_in_line()
            return 0
        self._has_turn = False
        before = len(self._out.buffer)
        handled = self.session.handle_all((command,))
        if len(self._out.buffer) - before > LONG_ANSWER_BYTES:
            self._long_work.took(self.session.wire)
        return handled

    def _get_in_line(self) -> None:
        self._in_line = True
        self._long_work.then(self._turn_came, self.session.wire)

    def _turn_came(self) -> None:
        self._in_line, self._has_turn = False, True
        self._on_room()

    def _send(self, outgoing: Outgoing) -> None:
        out = self._out
        encode_into(out.buffer, outgoing)
        out.touched()
        if len(out.buffer) >= FULL_BYTES:
            self.session.full = True
            self._long_work.took(self.session.wire)

    def pause(self) -> None:
        self.session.pause()

    def resume(self) -> None:
        self.session.resume()

    def close(self) -> None:
        self.session.close()
