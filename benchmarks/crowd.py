"""Several connections in one load generator: a queue each at full speed, or very many that only wait.

The work of `benchmarks.generator`, over a selector instead of one blocking socket. Called by it.
"""

import resource
import selectors
import sys
import time
from collections.abc import Iterator

from benchmarks import jobs
from benchmarks.line import STALL_LIMIT_S, Failed, Line, made_beforehand

AT_ONCE = 50  # connections that are being opened: less than any broker's backlog


class _Putter:
    """One queue's connection: keeps `in_flight` messages unanswered until `count` are answered."""

    def __init__(self, line: Line, requests: Iterator[bytes], count: int, batch: int, in_flight: int) -> None:
        self.line, self._requests, self._batch = line, requests, batch
        self._unsent, self._unanswered, self._window = count, 0, max(batch, in_flight)

    def send(self) -> None:
        room = min(self._unsent, self._window - self._unanswered) // self._batch
        if room > 0:
            self.line.send(b"".join(next(self._requests) for _ in range(room)))
            self._unsent -= room * self._batch
            self._unanswered += room * self._batch

    def work(self) -> bool:
        """Whether this was the last answer."""
        self._unanswered -= self.line.wire.answers(self.line.receive())
        self.send()
        return self._unsent + self._unanswered == 0


class _Taker:
    """One queue's connection: takes `count` messages, then waits until its acknowledgements were taken."""

    def __init__(self, line: Line, count: int, size: int) -> None:
        self.line, self._missing, self._size = line, count, size

    def work(self) -> bool:
        data = self.line.receive()
        if self._missing == 0:
            return self.line.wire.left(data)
        taken = self.line.wire.take(data)
        if any(len(payload) != self._size for payload in taken.payloads):
            raise Failed(f"a message came that has not the {self._size} bytes that were sent")
        self._missing -= len(taken.payloads)
        self.line.send(taken.reply if self._missing else taken.reply + self.line.wire.leave())
        return False


def _finish(workers: list[_Putter] | list[_Taker]) -> None:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.line.socket, selectors.EVENT_READ, worker)
        while selector.get_map():
            ready = selector.select(STALL_LIMIT_S)
            if not ready:
                raise Failed(f"nothing came for {STALL_LIMIT_S} s")
            for key, _ in ready:
                if key.data.work():
                    selector.unregister(key.fileobj)


def _each(job: jobs.Put | jobs.Take) -> int:
    each, rest = divmod(job.count, job.queues)
    if rest or (isinstance(job, jobs.Put) and each % job.batch):
        raise Failed(f"{job.count} messages are no whole number of batches of {job.batch} for {job.queues} queues")
    return each


def put(job: jobs.Put) -> jobs.Transfer:
    each, putters = _each(job), []
    for number in range(job.queues):
        line = Line(job.wire, job.address)
        requests = made_beforehand(line.wire, f"{job.queue}{number}", job.size, job.batch)
        putters.append(_Putter(line, requests, each, job.batch, job.in_flight // job.queues))
    start = time.monotonic()
    for putter in putters:
        putter.send()
    _finish(putters)
    return jobs.Transfer(job.count, time.monotonic() - start, time.process_time())


def take(job: jobs.Take) -> jobs.Transfer:
    each = _each(job)
    lines = [Line(job.wire, job.address) for _ in range(job.queues)]
    start = time.monotonic()
    for number, line in enumerate(lines):
        line.send(line.wire.subscribe(f"{job.queue}{number}", job.batch, job.in_flight))
    _finish([_Taker(line, each, job.size) for line in lines])
    return jobs.Transfer(job.count, time.monotonic() - start, time.process_time())


def idle(job: jobs.Idle) -> jobs.Transfer:
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    lines: list[Line] = []
    start = time.monotonic()
    while len(lines) < job.connections:
        fresh = [Line(job.wire, job.address, greet=False) for _ in range(min(AT_ONCE, job.connections - len(lines)))]
        for line in fresh:
            line.send(line.wire.hello())
        for number, line in enumerate(fresh, len(lines)):
            line.await_answers(line.wire.hello_answers)
            line.send(line.wire.subscribe(f"{job.queue}{number % job.queues}", 1, job.in_flight) + line.wire.leave())
        for line in fresh:  # whoever has answered the last question has begun to consume
            line.await_left()
        lines += fresh
    seconds = time.monotonic() - start
    print(jobs.READY, flush=True)
    sys.stdin.readline()
    return jobs.Transfer(len(lines), seconds, time.process_time())
