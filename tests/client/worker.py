"""A consumer in a process of its own, to be killed while it holds messages: URL, queue, file to write, how to work."""

from __future__ import annotations

import os
import sys

import waystation


def main() -> None:
    url, name, path, how = sys.argv[1:]
    with waystation.connect(url) as mq, open(path, "a", buffering=1) as out:
        out.write("ready\n")
        for message in mq.queue(name).consume(prefetch=20):
            out.write(f"{message.text()} {message.deliveries}\n")
            if how == "hold":
                sys.stdin.read()  # until it is killed
                os._exit(1)


if __name__ == "__main__":
    main()
