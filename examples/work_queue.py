"""A work queue: a failed job is retried with exponential backoff, and after three deliveries it is dead-lettered.

Start it in two terminals, and the two share the work.
"""

import sys

import waystation as ws

URL = "waystation://127.0.0.1:9092"


def resize(file: str) -> None:
    """Stands for your own work: it raises where it cannot do it."""
    if not file.endswith(".png"):
        raise ValueError(f"{file} is no picture")
    print(f"resized {file}")


def main(url: str) -> None:
    with ws.connect(url) as mq:
        dead = mq.queue("thumbnails.dead")
        jobs = mq.queue(
            "thumbnails",
            max_deliveries=3,
            retry=ws.Retry(base=0.1, factor=2, max=60, jitter=0.2),  # waits 0.1 s, then 0.2 s
            dead_letter="thumbnails.dead",
            hold=30,  # visibility timeout, in seconds; message.touch() extends it
        )
        jobs.put_many([{"file": "a.png"}, {"file": "b.png"}, {"file": "notes.txt"}])  # returns when they are on disk

        @mq.on(queue=jobs, concurrency=2, prefetch=1)  # two threads, one message in flight on each
        def work(message: ws.Message) -> None:
            print(f"delivery {message.deliveries} of {message.json()['file']}")
            resize(message.json()["file"])  # acknowledged when this returns, rejected when it raises

        with dead.get(timeout=30) as letter:  # acknowledged at the end: look, then delete
            failure = letter.deaths[0]
            print(f"dead: {letter.json()['file']} ({failure['reason']}): {failure['error']}")
        # When the cause is fixed, dead.redrive() sends dead letters back. A worker of your own waits in mq.run() here.


if __name__ == "__main__":
    main(*sys.argv[1:] or [URL])
