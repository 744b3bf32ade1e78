"""What security costs: topics and queues with TLS, with logins and rules, with both, and with encryption at rest,
beside the same broker without; and Kafka with TLS beside Kafka without.

What is done to them is what the parts of topics and of queues do. All brokers run at the same time and take turns with
each piece of work, since differences of a few per cent are looked for: a minute later the machine may be another one.
For the same reason the ratio to the plain broker is taken within each round, and its median is what counts. Every
broker started here is gone after `stop`. Called by `benchmarks.cli`.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks import figures
from benchmarks.lab import Lab, size_name
from benchmarks.peers import Peer, Running, Waystation
from benchmarks.plan import Plan
from benchmarks.queue_scenarios import IN_FLIGHT, Queues
from benchmarks.scenarios import FIRST, Topics, delete_topic

PLAIN = {
    "waystation-tls": "waystation",
    "waystation-acls": "waystation",
    "waystation-tls-acls": "waystation",
    "waystation-encrypted": "waystation",
    "kafka-tls": "kafka",
}
"""Beside which broker each is held."""
QUEUE_SIZE = 100
TIMES = 2
"""As many small messages as the part of topics has: the logins of a sample cost 3 ms of CPU, which is 1.5 % of that of
a million of them."""


class Security:
    """Keeps the brokers of the part, and puts what it sees into the report."""

    def __init__(self, plan: Plan, work: Path, report: figures.Report) -> None:
        self._plan, self._report = plan, report
        self._lab = Lab(work, report, figures.SECURITY)
        self._topics = Topics(plan, work, report, figures.SECURITY)
        self._queues = Queues(plan, work, report, figures.SECURITY)
        self._running: dict[str, tuple[Peer, Running, ExitStack]] = {}
        self._names = (f"security-{number}" for number in count())
        self._compared: set[figures.Figure] = set()

    @property
    def running(self) -> Sequence[Peer]:
        return [peer for peer, _, _ in self._running.values()]

    def start(self, peer: Peer) -> None:
        """Also warms it up, unrecorded: a JVM compiles first."""
        with ExitStack() as stack:
            broker = stack.enter_context(self._lab.broker(peer, FIRST, record=False))
            self._topics.warm_up(peer, broker)
            if isinstance(peer, Waystation):
                self._queues.warm_up(peer, broker)
            self._running[peer.name] = (peer, broker, stack.pop_all())

    def stop(self, peer: Peer) -> None:
        _, _, stack = self._running.pop(peer.name)
        stack.close()

    def steps(self) -> Iterator[tuple[str, Callable[[Peer], None]]]:
        """Each piece of work, and who does it; the next one is asked for when all rounds of it are over."""
        for size in self._plan.sizes:
            yield f"topics, {size_name(size)}", partial(self._stream, size=size)
            self._compare()
        for how in IN_FLIGHT:
            yield f"queues, {how}", partial(self._queue, how=how)
            self._compare()

    def _stream(self, peer: Peer, size: int) -> None:
        _, broker, _ = self._running[peer.name]
        topic = next(self._names)
        self._topics.throughput(peer, broker, size, topic, TIMES)
        delete_topic(broker, topic)

    def _queue(self, peer: Peer, how: str) -> None:
        if isinstance(peer, Waystation):
            _, broker, _ = self._running[peer.name]
            self._queues.throughput(peer, broker, QUEUE_SIZE, how, next(self._names))

    def _compare(self) -> None:
        """The CPU of each beside that of the plain one, round by round."""
        for figure in self._report.figures(figures.SECURITY):
            if figure.unit == figures.CPU and figure not in self._compared:
                self._compared.add(figure)
                for peer, plain in PLAIN.items():
                    pairs = zip(self._report.values(peer, figure), self._report.values(plain, figure), strict=False)
                    for mine, without in pairs:
                        self._report.add(peer, figure.work, figures.CPU_RATIO, mine / without, figures.SECURITY)
