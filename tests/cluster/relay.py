"""A TCP relay in front of a server, which loses answers, is silent, or refuses, as a test asks."""

from __future__ import annotations

import socket
import threading
from enum import Enum

from tests.support.ports import free_port


class Mode(Enum):
    PASS = "pass"
    LOSE_ANSWERS = "lose answers"  # requests arrive; the connection is cut when their answer comes
    SILENT = "silent"  # connections are accepted, and nothing passes
    CUT = "cut"  # connections are accepted and closed


class Relay:
    """`lose_next` has one answer lost that contains some bytes' request; `mode` is for everything that runs through."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._mode = Mode.PASS
        self._lose: list[bytes] = []
        self._ends: list[socket.socket] = []
        self._listener = socket.create_server(("127.0.0.1", free_port()))
        self.port = int(self._listener.getsockname()[1])
        threading.Thread(target=self._accept, daemon=True).start()

    def set(self, mode: Mode) -> None:
        self._mode = mode
        if mode is Mode.CUT:
            self.cut()

    def lose_answer_to(self, part: bytes) -> None:
        """The answer to the next request that has this in it is lost, and its connection cut."""
        self._lose.append(part)

    def cut(self) -> None:
        ends, self._ends = self._ends, []
        for end in ends:
            _shut(end)

    def close(self) -> None:
        _shut(self._listener)
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while True:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            if self._mode is Mode.CUT:
                near.close()
                continue
            self._ends.append(near)
            threading.Thread(target=self._serve, args=(near,), daemon=True).start()

    def _serve(self, near: socket.socket) -> None:
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._ends.append(far)
        lost = threading.Event()
        back = threading.Thread(target=self._copy_back, args=(far, near, lost), daemon=True)
        back.start()
        try:
            while data := near.recv(65536):
                for part in self._lose:
                    if part in data:
                        self._lose.remove(part)
                        lost.set()
                        break
                if self._mode is not Mode.SILENT:
                    far.sendall(data)
        except OSError:
            pass
        _shut(far)
        back.join()
        near.close()
        far.close()

    def _copy_back(self, far: socket.socket, near: socket.socket, lost: threading.Event) -> None:
        try:
            while data := far.recv(65536):
                if lost.is_set() or self._mode is Mode.LOSE_ANSWERS:
                    break
                if self._mode is not Mode.SILENT:
                    near.sendall(data)
        except OSError:
            pass
        _shut(near)


def _shut(end: socket.socket) -> None:
    try:
        end.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
