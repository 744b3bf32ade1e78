"""Where clients find a broker and how they log in there, as one line that fits wherever an address does.

`HOST:PORT` is a broker without TLS that asks nobody; any other is `broker://USER:PASSWORD@HOST:PORT?ca=FILE`, of which
the login or the authority may be left out. So a job needs no other field for it. Pure. Called by whoever connects: the
Kafka clients and the load generator.
"""

from typing import NamedTuple
from urllib.parse import parse_qs, quote, unquote, urlsplit

SCHEME = "broker://"
MECHANISM = "SCRAM-SHA-256"


class Address(NamedTuple):
    host: str
    port: int
    user: str = ""
    """Empty: nobody asks."""
    password: str = ""
    ca: str = ""
    """The certificate of the authority that has signed the broker's; empty: no TLS."""

    def __str__(self) -> str:
        where = f"{self.host}:{self.port}"
        if not (self.user or self.ca):
            return where
        login = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}@" if self.user else ""
        return f"{SCHEME}{login}{where}" + (f"?ca={quote(self.ca)}" if self.ca else "")


def parse_address(text: str) -> Address:
    if not text.startswith(SCHEME):
        host, _, port = text.rpartition(":")
        return Address(host, int(port))
    parts = urlsplit(text)
    if parts.hostname is None or parts.port is None:
        raise ValueError(f"{text} has no host or no port")
    ca = parse_qs(parts.query).get("ca", [""])[0]
    return Address(parts.hostname, parts.port, unquote(parts.username or ""), unquote(parts.password or ""), ca)


def kafka_settings(text: str) -> dict[str, str | int | float | bool]:
    """What a Kafka client of librdkafka needs to connect there."""
    where = parse_address(text)
    found: dict[str, str | int | float | bool] = {"bootstrap.servers": f"{where.host}:{where.port}"}
    if where.user or where.ca:
        found["security.protocol"] = ("SASL_" if where.user else "") + ("SSL" if where.ca else "PLAINTEXT")
    if where.ca:
        found["ssl.ca.location"] = where.ca
    if where.user:
        found |= {"sasl.mechanism": MECHANISM, "sasl.username": where.user, "sasl.password": where.password}
    return found
