"""How late delayed messages are while the broker is busy with others: one process, our own client.

Messages are parked with times spread over some seconds; meanwhile a second client puts and takes in batches as fast as
it can. What is measured is the wall clock at the receipt minus the time that the message was to be delivered at; below
zero would be early, which is never. Called by `benchmarks.queue_scenarios`, prints `jobs.Latencies` as JSON.
"""

import os
import sys
import threading
import time

import msgspec

import waystation
from benchmarks import jobs
from benchmarks.latency import summary

FIRST_S = 2.0
BATCH = 500


def measure(address: str, count: int, spread_s: float) -> jobs.Latencies:
    over = threading.Event()
    busy = threading.Thread(target=_keep_busy, args=(address, over), daemon=True)
    busy.start()
    with waystation.connect(f"waystation://{address}") as mq:
        queue = mq.queue("delays")
        start = time.time() + FIRST_S
        moments = [start + spread_s * number / count for number in range(count)]
        for moment in moments:
            queue.put_nowait(str(moment), deliver_at=moment)
        mq.flush()
        late_ns: list[int] = []
        with queue.consume(prefetch=1000, manual=True) as subscription:
            while len(late_ns) < count:
                for message in subscription.poll(timeout=30):
                    # The broker counts in milliseconds: it rounds the time that was asked for.
                    late_ns.append(int((time.time() - round(float(message.text()), 3)) * 1e9))
                    message.ack(wait=False)
    over.set()
    busy.join()
    if min(late_ns) < 0:
        raise SystemExit(f"a message was {-min(late_ns) / 1e6:.3f} ms early")
    return summary(late_ns)


def _keep_busy(address: str, over: threading.Event) -> None:
    bodies = [os.urandom(100) for _ in range(BATCH)]
    with waystation.connect(f"waystation://{address}") as mq:
        queue = mq.queue("busy")
        while not over.is_set():
            queue.put_many(bodies)
            queue.ack_many(queue.get_many(BATCH, timeout=10))


def main() -> None:
    address, count, spread_s = sys.argv[1], int(sys.argv[2]), float(sys.argv[3])
    print(msgspec.json.encode(measure(address, count, spread_s)).decode(), flush=True)


if __name__ == "__main__":
    main()
