"""Where a cluster's store is: `etcd://user:secret@h1:2379,h2:2379/prefix?ca=…&cert=…&key=…`, as users write it.

Pure. It is taken apart here, since the standard library's parser knows one host and, depending on its version, refuses
an IPv6 address among several. An address is complete when it is parsed, but for the password that stands in a file,
which whoever opens the store reads. What is shown of it, in logs and errors, has no password.
"""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote

import msgspec

from waystation.cluster.decisions.state import Address
from waystation.errors import Invalid, nearest_field

SCHEME = "etcd"
DEFAULT_PORT = 2379
DEFAULT_PREFIX = "waystation"
DEFAULT_TIMEOUT_S = 2.0
"""For one answer. Shorter than a node's lease, so that a member of etcd that hangs does not cost the lease."""

_OPTIONS = ("ca", "cert", "key", "password-file", "timeout", "tls")


class EtcdAddress(msgspec.Struct, frozen=True):
    endpoints: tuple[Address, ...]
    prefix: str = DEFAULT_PREFIX  # of all keys, without a slash at its end
    user: str = ""
    password: str = ""
    password_file: str = ""
    tls: bool = False
    ca: str = ""  # empty, with tls: what the system trusts
    cert: str = ""
    key: str = ""
    timeout_s: float = DEFAULT_TIMEOUT_S

    def __str__(self) -> str:
        return f"{SCHEME}://{','.join(shown(endpoint) for endpoint in self.endpoints)}/{self.prefix}"

    def __repr__(self) -> str:
        return f"<{self}>"


def shown(endpoint: Address) -> str:
    host = f"[{endpoint.host}]" if ":" in endpoint.host else endpoint.host
    return f"{host}:{endpoint.port}"


def parse(text: str) -> EtcdAddress:
    """Raises Invalid, without the password in its text."""
    scheme, _, rest = text.partition("://")
    if scheme != SCHEME or not rest:
        raise Invalid("a cluster's address begins with etcd://, as in etcd://127.0.0.1:2379/prod")
    if "#" in rest:
        raise Invalid("a cluster's address has no part after '#'; write %23 for the character itself")
    place, _, query = rest.partition("?")
    authority, _, path = place.partition("/")
    login, _, hosts = authority.rpartition("@")
    user, _, password = login.partition(":")
    options = _options(query)
    if bool(options.get("cert")) != bool(options.get("key")):
        raise Invalid("a cluster's address has cert and key together, or neither")
    if password and options.get("password-file"):
        raise Invalid("a cluster's address has a password or a password-file, not both")
    prefix = unquote(path).strip("/")
    return EtcdAddress(
        endpoints=tuple(_endpoint(host) for host in hosts.split(",")),
        prefix=prefix or DEFAULT_PREFIX,
        user=unquote(user),
        password=unquote(password),
        password_file=options.get("password-file", ""),
        tls=_on(options.get("tls", "off")) or bool(options.get("ca") or options.get("cert")),
        ca=options.get("ca", ""),
        cert=options.get("cert", ""),
        key=options.get("key", ""),
        timeout_s=_seconds(options["timeout"]) if "timeout" in options else DEFAULT_TIMEOUT_S,
    )


def _options(query: str) -> dict[str, str]:
    options = dict(parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            known = ", ".join(_OPTIONS)
            raise Invalid(f"a cluster's address has no {name!r}; it may have {known}{nearest_field(name, _OPTIONS)}")
    return options


def _endpoint(text: str) -> Address:
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        host, port = text, str(DEFAULT_PORT)
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    if not host or "[" in host or "]" in host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise Invalid(f"{text!r} in a cluster's address is not HOST:PORT; etcd listens on port 2379 as a rule")
    return Address(host, int(port))


def _on(text: str) -> bool:
    if text not in ("on", "off"):
        raise Invalid(f"tls={text} in a cluster's address: it is on or off")
    return text == "on"


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds <= 60:
        raise Invalid(f"timeout={text} in a cluster's address: it is in seconds, more than 0 and at most 60")
    return seconds
