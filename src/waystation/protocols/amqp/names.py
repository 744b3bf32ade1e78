"""Names of a virtual host's things, as the client says them and as the broker knows them.

A virtual host is a namespace. The things of `/` have their plain names, which are those that every other door sees; a
queue or exchange `jobs` of the virtual host `shop` is `shop/jobs` to the broker, and a topic is `shop.jobs`, since a
topic's name has no slash. Pure.
"""

from __future__ import annotations

DEFAULT = "/"


class Names:
    """One virtual host's."""

    __slots__ = ("prefix", "topic_prefix", "vhost")

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.prefix = "" if vhost == DEFAULT else f"{vhost}/"
        self.topic_prefix = "" if vhost == DEFAULT else f"{vhost.removeprefix(DEFAULT)}."

    def full(self, name: str) -> str:
        """Of a queue or exchange. The default exchange is the door's own affair: it has no name."""
        return self.prefix + name

    def topic(self, name: str) -> str:
        return self.topic_prefix + name

    def local(self, full: str) -> str:
        """What the client calls a queue or exchange that the broker knows by its full name."""
        return full.removeprefix(self.prefix)

    def local_topic(self, full: str) -> str:
        return full.removeprefix(self.topic_prefix)
