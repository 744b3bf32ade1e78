"""The load generator of the queue figures: requests made beforehand, one socket, no client library.

Run as `python -m benchmarks.generator JOB`, one job a process. The same loop loads every broker; only the wire differs.
"""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Iterator
from itertools import count as count_from

import msgspec

from benchmarks import crowd, jobs
from benchmarks.latency import STAMP, Pace, summary
from benchmarks.line import DISTINCT_PAYLOADS, STALL_LIMIT_S, Failed, Line, made_beforehand, payloads
from benchmarks.wires import Refused, Wire

KNOCK_PAUSE_S = 0.005
HOUR_MS, YEAR_MS = 3_600_000, 365 * 24 * 3_600_000


def pump(line: Line, requests: Iterator[bytes], count: int, answers_each: int, in_flight: int) -> float:
    """Send `count` requests, at most `in_flight` unanswered; seconds from the first send to the last answer."""
    window, total, sent, answered = in_flight * answers_each, count * answers_each, 0, 0
    start = time.monotonic()
    while answered < total:
        room = min(count - sent, (window - (sent * answers_each - answered)) // answers_each)
        if room > 0:
            line.send(b"".join(next(requests) for _ in range(room)))
            sent += room
        answered += line.wire.answers(line.receive())
    return time.monotonic() - start


def put(job: jobs.Put) -> jobs.Transfer:
    if job.count % job.batch:
        raise Failed(f"{job.count} messages are no whole number of batches of {job.batch}")
    if job.queues > 1:
        return crowd.put(job)
    line = Line(job.wire, job.address)
    requests = _delayed(line.wire, job) if job.delay else made_beforehand(line.wire, job.queue, job.size, job.batch)
    batches, window = job.count // job.batch, max(1, job.in_flight // job.batch)
    seconds = pump(line, requests, batches, line.wire.answers_to(job.batch), window)
    return jobs.Transfer(job.count, seconds, time.process_time())


def _delayed(wire: Wire, job: jobs.Put) -> Iterator[bytes]:
    bodies, source = payloads(job.size), random.Random(job.count)
    for number in count_from():
        delays = [source.randint(HOUR_MS, YEAR_MS) for _ in range(job.batch)]
        chosen = [bodies[(number + i) % DISTINCT_PAYLOADS] for i in range(job.batch)]
        yield wire.put(number, job.queue, chosen, delays)


def take(job: jobs.Take) -> jobs.Transfer:
    if job.queues > 1:
        return crowd.take(job)
    line, got = Line(job.wire, job.address), 0
    start = time.monotonic()
    line.send(line.wire.subscribe(job.queue, job.batch, job.in_flight))
    while got < job.count:
        taken = line.wire.take(line.receive())
        for payload in taken.payloads:
            if len(payload) != job.size:
                raise Failed(f"a message of {len(payload)} bytes came, {job.size} were sent")
        got += len(taken.payloads)
        line.send(taken.reply)
    line.send(line.wire.leave())
    line.await_left()
    return jobs.Transfer(got, time.monotonic() - start, time.process_time())


def paced_put(job: jobs.PacedPut) -> jobs.Latencies:
    pace = Pace(job.rate_per_s, job.warm_s, job.measure_s)
    line, bodies = Line(job.wire, job.address), payloads(job.size - STAMP.size)
    stamps: list[int] = []
    latencies: list[int] = []

    def read() -> None:  # a thread of its own, so that an answer is seen when it comes and not at the next tick
        answered = 0
        while answered < pace.total:
            more = line.wire.answers(line.receive())
            now = time.monotonic_ns()
            latencies.extend(now - stamp for stamp in stamps[max(answered, pace.warm) : answered + more])
            answered += more

    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    lags = []
    for number, stamp, lag in pace.ticks():
        stamps.append(stamp)
        lags.append(lag)
        body = STAMP.pack(stamp, number) + bodies[number % DISTINCT_PAYLOADS]
        line.send(line.wire.put(number, job.queue, [body]))
    reader.join(STALL_LIMIT_S)
    if reader.is_alive() or len(latencies) != pace.total - pace.warm:
        raise Failed(f"{len(latencies)} of {pace.total - pace.warm} messages were acknowledged")
    return summary(latencies, lags)


def paced_take(job: jobs.PacedTake) -> jobs.Latencies:
    pace = Pace(job.rate_per_s, job.warm_s, job.measure_s)
    line, got = Line(job.wire, job.address), 0
    line.send(line.wire.subscribe(job.queue, 1, 500))
    latencies: list[int] = []
    print(jobs.READY, flush=True)
    while got < pace.total:
        taken = line.wire.take(line.receive())
        now = time.monotonic_ns()
        for payload in taken.payloads:
            stamp, number = STAMP.unpack_from(payload)
            if number >= pace.warm:
                latencies.append(now - stamp)
        got += len(taken.payloads)
        line.send(taken.reply)
    line.send(line.wire.leave())
    line.await_left()
    return summary(latencies)


def declare(job: jobs.Declare) -> jobs.Transfer:
    line = Line(job.wire, job.address)
    names = [job.queue] if job.count == 1 else [f"{job.queue}{n}" for n in range(job.count)]
    seconds = pump(line, (line.wire.declare(name) for name in names), len(names), 1, job.in_flight)
    return jobs.Transfer(job.count, seconds, time.process_time())


def scatter(job: jobs.Scatter) -> jobs.Transfer:
    line, bodies = Line(job.wire, job.address), payloads(job.size)
    names = (f"{job.queue}{n % job.queues}" for n in range(job.count))
    requests = (line.wire.put(n, name, [bodies[n % DISTINCT_PAYLOADS]]) for n, name in enumerate(names))
    seconds = pump(line, requests, job.count, line.wire.answers_to(1), job.in_flight)
    return jobs.Transfer(job.count, seconds, time.process_time())


def count(job: jobs.Count) -> jobs.Counted:
    line, total = Line(job.wire, job.address), 0
    for queue in job.queues:
        line.send(line.wire.ask_count(queue))
        while (held := line.wire.read_count(line.receive())) is None:
            pass
        total += held
    return jobs.Counted(total)


def knock(job: jobs.Knock) -> jobs.Probed:
    """Any refusal while it starts is a reason to ask again; only the deadline ends it."""
    print(jobs.READY, flush=True)
    address = sys.stdin.readline().strip()
    deadline, reason = time.monotonic() + job.timeout_s, "no connection"
    body = payloads(100)[0]
    while time.monotonic() < deadline:
        try:
            line = Line(job.wire, address)
            line.ask(line.wire.declare(job.queue))
            line.ask(line.wire.put(1, job.queue, [body]))
            now = time.monotonic()
            return jobs.Probed(now, now)
        except (OSError, Refused, Failed) as problem:
            reason = f"{type(problem).__name__}: {problem}"
            time.sleep(KNOCK_PAUSE_S)
    raise Failed(f"nothing was acknowledged in {job.timeout_s} s; the last answer: {reason}")


def main() -> None:
    job = msgspec.json.decode(sys.argv[1], type=jobs.WireJob)
    do: dict[type, Callable[..., msgspec.Struct]] = {
        jobs.Put: put,
        jobs.Take: take,
        jobs.PacedPut: paced_put,
        jobs.PacedTake: paced_take,
        jobs.Declare: declare,
        jobs.Scatter: scatter,
        jobs.Count: count,
        jobs.Idle: crowd.idle,
        jobs.Knock: knock,
    }
    result = do[type(job)](job)
    print(msgspec.json.encode(result).decode(), flush=True)
    os._exit(0)  # a reader thread may still wait for a socket that nobody will write to


if __name__ == "__main__":
    main()
