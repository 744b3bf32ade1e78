"""Which broker to connect to, and as whom: `waystations://USER:PASSWORD@HOST:PORT?ca=ca.crt`, taken apart.

`waystations://` is TLS. A user without a password has the one of $WAYSTATION_PASSWORD. Behind a question mark:

| name | what |
| --- | --- |
| `ca` | a file of certificates that the broker's has to be signed by (default: those of the system) |
| `certificate`, `key` | the client's own, where the broker asks for one |
| `mechanism` | SCRAM-SHA-256 (default), SCRAM-SHA-512, PLAIN (API keys), OAUTHBEARER (password: a token), EXTERNAL |

Errors and `shown` never have a password in them. Opens no socket; anyone may call it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl, unquote

from waystation.client.links.address import Address, parse_address
from waystation.client.links.login import MECHANISMS, Credentials
from waystation.errors import Invalid

if TYPE_CHECKING:
    import ssl

DEFAULT_PORT = 9092
SERVER_VARIABLE = "WAYSTATION_SERVER"
PASSWORD_VARIABLE = "WAYSTATION_PASSWORD"
DEFAULT_SERVER = "localhost:9092"

SCHEMES = ("waystation", "waystations", "kafka", "tcp")
_OTHER_SCHEMES = {"http": "HTTP", "https": "HTTP", "amqp": "AMQP", "amqps": "AMQP"}
KEY_BEGIN = "wsk_"
"""A password that begins so is an API key."""
_TERMS = ("ca", "certificate", "key", "mechanism")


@dataclass(frozen=True, slots=True)
class TlsTerms:
    """How a client speaks TLS: by whom the broker's certificate has to be signed, and its own certificate."""

    ca: str = ""
    certificate: str = ""
    key: str = ""

    def context(self) -> ssl.SSLContext:
        """Invalid names the file that cannot be used."""
        import ssl

        try:
            context = ssl.create_default_context(cafile=self.ca or None)
        except (OSError, ssl.SSLError) as error:
            raise Invalid(f"ca: {self.ca} cannot be used: {error}") from None
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        if self.certificate:
            try:
                context.load_cert_chain(self.certificate, self.key or None, password=lambda: "")
            except (OSError, ssl.SSLError) as error:
                raise Invalid(f"certificate: {self.certificate} cannot be used: {error}") from None
        return context


@dataclass(frozen=True, slots=True)
class Server:
    """One address of a broker."""

    address: Address
    tls: TlsTerms | None = None
    credentials: Credentials | None = None

    def __str__(self) -> str:
        return str(self.address)


def parse_servers(url: str | Sequence[str] | None, environment: Mapping[str, str] = os.environ) -> list[Server]:
    """Addresses of a broker: `waystation://HOST:PORT`, where the scheme and the port may be left out; several of them
    in a list, or separated by commas. None: where the environment says."""
    if url is None or url == "":
        url = environment.get(SERVER_VARIABLE) or DEFAULT_SERVER
    texts = [url] if isinstance(url, str) else url
    if not isinstance(texts, Iterable) or not all(isinstance(text, str) for text in texts):
        raise Invalid(f"url: {type(url).__name__} is neither an address, like 127.0.0.1:9092, nor a list of them")
    found = dict.fromkeys(_parse(one, environment) for text in texts for one in text.split(","))
    if not found:
        raise Invalid("an address is missing: the list of addresses is empty")
    return list(found)


def parse_urls(url: str | Sequence[str] | None) -> list[Address]:
    """The addresses alone."""
    return [server.address for server in parse_servers(url)]


def at_address(url: str, address: str) -> str:
    """The first of these addresses with another host and port: the same login, the same TLS."""
    scheme, found, rest = url.split(",")[0].strip().rpartition("://")
    signed, at, place = rest.rpartition("@")
    _, question, query = place.partition("?")
    return f"{scheme}{found}{signed}{at}{address}{question}{query}"


def shown(url: str) -> str:
    """An address as it may be shown: without its password."""
    return ",".join(_shown(one) for one in url.split(","))


def _shown(url: str) -> str:
    scheme, found, rest = url.rpartition("://")
    user, signed, host = rest.rpartition("@")
    return f"{scheme}{found}{user.partition(':')[0]}{signed}{host}"


def _parse(url: str, environment: Mapping[str, str]) -> Server:
    text = url.strip()
    scheme, found, rest = text.partition("://")
    rest = rest if found else text
    signed, at, place = rest.rpartition("@")
    place, _, query = place.partition("?")
    place = place.removesuffix("/")
    if found and scheme in _OTHER_SCHEMES:
        host = place.partition("/")[0]
        raise Invalid(elsewhere(f"{scheme}://{host}", _OTHER_SCHEMES[scheme], host))
    if (found and scheme not in SCHEMES) or "/" in place or "://" in place:
        raise Invalid(f"{_shown(url)!r} is not an address of a broker: write waystation://HOST:PORT")
    terms = _terms(query)
    encrypted = scheme == "waystations" and bool(found)
    if not encrypted and terms.keys() - {"mechanism"}:
        raise Invalid(f"{sorted(terms.keys() - {'mechanism'})[0]}: it is for TLS; write waystations://{place}")
    address = parse_address(place, default_port=DEFAULT_PORT)
    tls = TlsTerms(*(terms.get(name, "") for name in ("ca", "certificate", "key"))) if encrypted else None
    return Server(address, tls, _credentials(signed if at else "", terms.get("mechanism"), environment))


def _terms(query: str) -> dict[str, str]:
    terms = dict(parse_qsl(query, keep_blank_values=True))
    for name in terms:
        if name not in _TERMS:
            raise Invalid(f"{name[:40]!r} means nothing in an address; there are {', '.join(_TERMS)}")
    return terms


def _credentials(signed: str, mechanism: str | None, environment: Mapping[str, str]) -> Credentials | None:
    if mechanism is not None and mechanism.upper() not in MECHANISMS:
        raise Invalid(f"mechanism: {mechanism[:40]!r} is not known; there are {', '.join(MECHANISMS)}")
    if not signed:
        return Credentials("", "", "EXTERNAL") if mechanism and mechanism.upper() == "EXTERNAL" else None
    user, colon, password = signed.partition(":")
    if not colon:
        password = environment.get(PASSWORD_VARIABLE, "")
        if not password and mechanism != "EXTERNAL":
            raise Invalid(
                f"the password of {unquote(user)!r} is missing: write USER:PASSWORD@HOST, or set ${PASSWORD_VARIABLE}"
            )
    else:
        password = unquote(password)
    # The broker has a key's hash alone: SCRAM needs more.
    usual = "PLAIN" if password.startswith(KEY_BEGIN) else MECHANISMS[0]
    return Credentials(unquote(user), password, (mechanism or usual).upper())


def elsewhere(address: str, protocol: str, host: str) -> str:
    """What to write instead of the address of another listener of a broker."""
    try:
        kafka = str(Address(parse_address(host, default_port=DEFAULT_PORT).host, DEFAULT_PORT))
    except Invalid:
        kafka = f"HOST:{DEFAULT_PORT}"
    said = f"{address} speaks {protocol}, not the native protocol"
    return f"{said}: connect to the broker's Kafka listener, which is {kafka} unless the broker was told otherwise"
