"""`host:port` as people write it, taken apart and put together again. Anyone may call this; it opens no socket."""

from __future__ import annotations

from dataclasses import dataclass

from waystation.errors import Invalid

THIS_MACHINE = "127.0.0.1"
LOOPBACK = frozenset({"localhost", "::1"})


@dataclass(frozen=True, slots=True)
class Address:
    """Where a broker listens or a client connects. An IPv6 host is kept without its brackets."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach it. A name other than localhost may point anywhere: it counts as not."""
        return self.host in LOOPBACK or (self.host.startswith("127.") and self.host.replace(".", "").isdigit())


def parse_address(text: str, *, default_port: int) -> Address:
    """Reads `host`, `host:port`, `port`, `:port` and `[ipv6]:port`; raises Invalid that says what would do. Without a
    host it is this machine's loopback: no host's name is a number."""
    host, port = _split(text.strip())
    if not port:
        return Address(host, default_port)
    if not port.isdecimal() or int(port) > 65535:
        raise Invalid(f"{text!r} is not an address: write HOST:PORT with a port from 0 to 65535, like 127.0.0.1:9092")
    return Address(host, int(port))


def _split(text: str) -> tuple[str, str]:
    if text.startswith("["):
        host, closed, rest = text[1:].partition("]")
        if not closed or not host or (rest and not rest.startswith(":")):
            raise Invalid(f"{text!r} is not an address: write [IPV6]:PORT, like [::1]:9092")
        return host, rest[1:]
    if "://" in text:
        scheme, _, rest = text.partition("://")
        raise Invalid(f"{text!r} is not an address: leave out {scheme}:// and write {rest.partition('/')[0]}")
    if "," in text:
        raise Invalid(f"{text!r} is not an address: name one, like {text.partition(',')[0].strip()}")
    if text.isdecimal():
        return THIS_MACHINE, text
    if text.count(":") > 1:
        raise Invalid(f"{text!r} is not an address: put an IPv6 host in brackets, like [::1]:9092")
    host, _, port = text.partition(":")
    if not host and not port:
        raise Invalid("an address is missing: write HOST:PORT, like 127.0.0.1:9092")
    return host or THIS_MACHINE, port
