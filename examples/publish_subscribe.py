"""Publish-subscribe by topic pattern: a live subscriber hears what is published now, a group keeps its position."""

import sys
from itertools import islice

import waystation as ws

URL = "waystation://127.0.0.1:9092"
REPORTS = {"weather.oslo.storm": "stay inside", "weather.oslo.sun": "go out", "weather.rome.storm": "close the windows"}


def main(url: str) -> None:
    with (
        ws.connect(url) as mq,
        mq.subscribe("weather.*.storm") as alerts,  # `*` is one word; no group: live, from now on
        mq.subscribe("weather.#", group="archive", start="earliest") as archive,  # `#` is any number of words
    ):
        for topic, text in REPORTS.items():
            mq.publish(topic, text)  # a topic that does not exist yet is created, and both subscriptions see it

        for message in islice(alerts, 2):
            print(f"alert: {message.topic}: {message.text()}")
        for message in islice(archive, 3):  # acknowledged when the next one is asked for
            print(f"archived: {message.topic}: {message.text()}")


if __name__ == "__main__":
    main(*sys.argv[1:] or [URL])
