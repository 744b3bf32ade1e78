"""How much of everything a run does: the full run, whose figures the aims speak of, and a quick one that only shows
that everything works.

Pure data. Called by `benchmarks.cli` and the scenarios.
"""

import msgspec

AMQP_BATCH = 50  # publishes in one write, messages in one acknowledgement
AMQP_QUEUES = 8


class Plan(msgspec.Struct, frozen=True):
    rounds: int
    sizes: tuple[int, ...]
    rate_per_s: int
    warm_s: float
    measure_s: float
    idle_s: float

    # topics
    messages: int
    """Per produce or consume sample of 100 B; larger messages in half the number."""
    fill: int
    restart_messages: int
    restart_partitions: int

    # queues
    queue_messages: int
    """Per put or take sample of 100 B, batched; larger messages in half the number."""
    singles: int
    """The same with one message a request."""
    library_messages: int
    """The same by a Python client, batched; a tenth of it one at a time."""
    batch: int

    # queues, large
    queues: int
    ready: int
    parked: int

    # AMQP
    amqp_messages: int
    """Per publish or consume sample of 100 B; larger messages in half the number."""
    amqp_library_messages: int
    """The same by a Python client; a fifth of it where every publish is waited for."""
    connections: int

    def scaled(self, scale: float) -> "Plan":
        def times(count: int, multiple: int = 1) -> int:
            return max(multiple, int(count * scale) // multiple * multiple)

        whole = 10 * self.batch  # a tenth of it is a whole number of batches too
        return msgspec.structs.replace(
            self,
            warm_s=self.warm_s * scale,
            measure_s=self.measure_s * scale,
            idle_s=self.idle_s * scale,
            messages=times(self.messages),
            fill=times(self.fill),
            restart_messages=times(self.restart_messages, self.restart_partitions),
            queue_messages=times(self.queue_messages, whole),
            singles=times(self.singles, whole),
            library_messages=times(self.library_messages, whole),
            queues=times(self.queues, 100),
            ready=times(self.ready, whole),
            parked=times(self.parked, whole),
            amqp_messages=times(self.amqp_messages, 2 * AMQP_QUEUES * AMQP_BATCH),
            amqp_library_messages=times(self.amqp_library_messages, 500),
            connections=times(self.connections, 100),
        )


FULL = Plan(
    rounds=3,
    sizes=(100, 1024),
    rate_per_s=1_000,
    warm_s=3.0,
    measure_s=10.0,
    idle_s=3.0,
    messages=1_000_000,
    fill=1_000_000,
    restart_messages=10_000_000,
    restart_partitions=50,
    queue_messages=1_000_000,
    singles=200_000,
    library_messages=100_000,
    batch=500,
    queues=1_000_000,
    ready=10_000_000,
    parked=10_000_000,
    amqp_messages=200_000,
    amqp_library_messages=20_000,
    connections=10_000,
)
QUICK = Plan(
    rounds=1,
    sizes=(100, 1024),
    rate_per_s=1_000,
    warm_s=0.2,
    measure_s=1.0,
    idle_s=0.2,
    messages=20_000,
    fill=20_000,
    restart_messages=50_000,
    restart_partitions=5,
    queue_messages=20_000,
    singles=5_000,
    library_messages=5_000,
    batch=500,
    queues=2_000,
    ready=50_000,
    parked=50_000,
    amqp_messages=8_000,
    amqp_library_messages=1_000,
    connections=200,
)
