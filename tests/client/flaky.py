"""A network that cuts connections: a proxy that passes bytes on and hangs up after some number of them, by a seed."""

from __future__ import annotations

import random
import socket
import threading
from types import TracebackType


class FlakyNetwork:
    """Listens on a port of its own; `calm()` ends the cutting."""

    def __init__(self, upstream: tuple[str, int], seed: int, *, shortest: int = 200, longest: int = 30_000) -> None:
        self._upstream = upstream
        self._random = random.Random(seed)
        self._span: tuple[int, int] | None = (shortest, longest)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: set[socket.socket] = set()
        self.cuts = 0
        self.address = "{}:{}".format(*self._listener.getsockname())
        threading.Thread(target=self._accept, daemon=True).start()

    def calm(self) -> None:
        self._span = None

    def __enter__(self) -> FlakyNetwork:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._listener.close()
        for side in list(self._open):
            _hang_up(side)

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._upstream)
            except OSError:
                return
            self._open |= {client, broker}
            span = self._span
            allowed = [self._random.randint(*span)] if span is not None else [1 << 62]
            for source, target in ((client, broker), (broker, client)):
                threading.Thread(target=self._pass_on, args=(source, target, allowed), daemon=True).start()

    def _pass_on(self, source: socket.socket, target: socket.socket, allowed: list[int]) -> None:
        try:
            while data := source.recv(4096):
                part = data[: allowed[0]]
                allowed[0] -= len(part)
                target.sendall(part)
                if allowed[0] <= 0:
                    self.cuts += 1
                    break
        except OSError:
            pass
        for side in (source, target):
            self._open.discard(side)
            _hang_up(side)


def _hang_up(side: socket.socket) -> None:
    try:
        side.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
    side.close()
