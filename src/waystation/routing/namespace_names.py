"""Names of what is in a namespace.

The things of the namespace `/` have plain names. A queue or exchange `jobs` of the namespace `shop` is `shop/jobs` to
the broker and to every protocol that knows no namespaces; a topic is `shop.jobs`, since a topic's name has no slash. A
namespace may begin with a slash (`/shop`), and has no other: so a full name leads to one namespace at most. Pure.
"""

from __future__ import annotations

from waystation.errors import Invalid

DEFAULT = "/"
MAX_NAME_BYTES = 127
"""Half of what a queue's name may have, so that the queue has the other half."""

_RESERVED = ("__", "amq.")


def check_namespace_name(name: str) -> None:
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        size = 0
    if not 0 < size <= MAX_NAME_BYTES or not name.isprintable():
        raise Invalid(f"namespace: a name has 1 to {MAX_NAME_BYTES} printable bytes, not {name[:60]!r}")
    if name != DEFAULT and (name == "//" or "/" in name[1:]):
        raise Invalid(f"namespace: a name has no slash but at its beginning, not {name[:60]!r}")
    if name.startswith(_RESERVED):
        raise Invalid(f"namespace: names that begin with {' or '.join(_RESERVED)} are the broker's own; not {name!r}")


def prefix_of(namespace: str) -> str:
    """Of its queues and exchanges."""
    return "" if namespace == DEFAULT else f"{namespace}/"


def topic_prefix_of(namespace: str) -> str:
    """Of its topics."""
    return "" if namespace == DEFAULT else f"{namespace.removeprefix('/')}."


def split_full_name(full: str) -> tuple[str, str]:
    """(namespace, name in it) of a queue or exchange, if there is such a namespace."""
    at = full.find("/", 1)
    return (DEFAULT, full) if at < 0 else (full[:at], full[at + 1 :])


def local_name(full: str) -> str:
    return split_full_name(full)[1]


def topic_of_full_name(full: str) -> str:
    """The topic that a queue's full name would be."""
    namespace, name = split_full_name(full)
    return topic_prefix_of(namespace) + name


class NamespaceNames:
    """One namespace's names, as those inside of it say them and as the broker knows them. AMQP: a virtual host's."""

    __slots__ = ("prefix", "topic_prefix", "vhost")

    def __init__(self, vhost: str) -> None:
        self.vhost = vhost
        self.prefix = prefix_of(vhost)
        self.topic_prefix = topic_prefix_of(vhost)

    def full(self, name: str) -> str:
        """Of a queue or exchange. The default exchange is the protocol's own affair: it has no name."""
        return self.prefix + name

    def topic(self, name: str) -> str:
        return self.topic_prefix + name

    def local(self, full: str) -> str:
        """What those inside call a queue or exchange that the broker knows by its full name."""
        return full.removeprefix(self.prefix)

    def local_topic(self, full: str) -> str:
        return full.removeprefix(self.topic_prefix)
