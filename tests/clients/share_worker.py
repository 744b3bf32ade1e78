"""A share consumer in a process of its own, to be killed: `python -m tests.clients.share_worker BOOTSTRAP GROUP TOPIC`.

It takes what it is given and settles nothing, telling each value on a line of its own, until somebody kills it.
"""

from __future__ import annotations

import sys

from tests.clients.share_kit import poll, share_consumer


def main() -> None:
    bootstrap, group, topic = sys.argv[1:]
    client = share_consumer(bootstrap, group, [topic])
    while True:
        got = poll(client, 1.0)
        for message in got:
            print((message.value() or b"").decode(), flush=True)
        if got:
            break
    sys.stdin.readline()  # holds them


if __name__ == "__main__":
    main()
