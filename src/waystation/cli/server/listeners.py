"""Listeners as people write them: in the config file, in a variable, on the command line.

Each protocol has one address that is an option of its own (`kafka = "127.0.0.1:9092"`, `--kafka`). Further listeners
have names. All are written alike, so that everything can be said in each place:

    0.0.0.0:9092?advertised=broker.example.com:9092         # of an option: the protocol is known
    kafka://0.0.0.0:9093?tls=on&mechanisms=SCRAM-SHA-512    # of a name

A table `[listeners.NAME]` of the file is such a text with a line for each part. What is wrong is an Invalid that says
what would do; it does not name the listener. Nothing here reads a file or the environment; anyone in `cli` may call it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Literal

from waystation.cli.terminal.arguments import KAFKA_PORT
from waystation.client.links.address import Address, parse_address
from waystation.errors import Invalid, nearest_field
from waystation.routing.namespace_names import DEFAULT, check_namespace_name
from waystation.security.entrance import ListenerTerms
from waystation.security.mapping_rules import parse_rules
from waystation.security.tls_files import ClientCertificates, OwnFiles
from waystation.station import AMQP_PORT, AMQPS_PORT, HTTP_PORT, ListenerPlan

OFF = "off"
STANDARD_LISTENERS = {"kafka": KAFKA_PORT, "amqp": AMQP_PORT, "amqps": AMQPS_PORT, "http": HTTP_PORT}
"""The listeners that are options of their own, and the port of each where an address has none."""
PROTOCOLS = ("kafka", "amqp", "http")
MECHANISMS: Mapping[str, Sequence[str]] = {
    "kafka": ("SCRAM-SHA-512", "SCRAM-SHA-256", "PLAIN", "OAUTHBEARER", "GSSAPI", "EXTERNAL"),
    "amqp": ("PLAIN", "AMQPLAIN", "EXTERNAL"),
    "http": (),
}
"""That can be named for a listener. The native protocol is spoken where Kafka's is."""
FILES = ("certificate", "key", "client-ca")
MAPPING_RULES = "mapping-rules"
PARTS = (
    "advertised", "tls", *FILES, "client-certificates", MAPPING_RULES, "auth-required", "mechanisms", "namespace",
)  # fmt: skip
"""What can stand behind an address."""
KEYS = ("protocol", "address", *PARTS)
"""Of a table in the config file."""
NAME = re.compile(r"[A-Za-z][A-Za-z0-9_-]{0,39}")
EVERYWHERE = ("0.0.0.0", "::")
"""Hosts that mean every interface."""
_TLS = ("on", "off", "both")
_CLIENT_CERTIFICATES: Mapping[str, ClientCertificates | Literal[""]] = {
    "": "",
    "off": "off",
    "optional": "optional",
    "required": "required",
}
_NO_MORE = Address("", 0)


def check_name(name: str) -> None:
    if not NAME.fullmatch(name):
        raise Invalid(
            f"listener {name[:60]!r}: a name begins with a-z or A-Z and has at most 40 of those, digits, - and _"
        )


def parse_listener(name: str, text: str) -> ListenerPlan | None:
    """None: it is off."""
    if text == OFF:
        return None
    where, _, query = text.partition("?")
    protocol = "amqp" if name == "amqps" else name
    if "://" in where and (name not in STANDARD_LISTENERS or where.startswith(f"{protocol}://")):
        protocol, _, where = where.partition("://")
    elif name not in STANDARD_LISTENERS:
        raise Invalid(f"{text!r}: say what it speaks, like kafka://{where or '127.0.0.1:9093'}")
    if protocol not in PROTOCOLS:
        hint = nearest_field(protocol, PROTOCOLS) or f"; there are {', '.join(PROTOCOLS)}"
        raise Invalid(f"there is no protocol {protocol[:40]!r}{hint}")
    address = parse_address(where, default_port=STANDARD_LISTENERS[name if name in STANDARD_LISTENERS else protocol])
    said = _parts(query)
    tls = _tls(name, said)
    own = _own_files(tls, said)
    required = _auth_required(protocol, said)
    advertised = _advertised(said)
    mechanisms, namespace = _mechanisms(protocol, said), _namespace(protocol, said)
    rules = _mapping_rules(tls, said)
    terms = ListenerTerms(name, advertised.host, advertised.port, required, mechanisms, namespace, rules)
    return ListenerPlan(protocol, address, tls, terms, own)


def of_table(name: str, table: Mapping[str, object]) -> str:
    """The text that says what a table of the config file does."""
    for key in table:
        if key not in KEYS:
            raise Invalid(f"there is no {key!r}; a listener has {', '.join(KEYS)}{nearest_field(key, KEYS)}")
    address = table.get("address")
    if not isinstance(address, str) or not address:
        raise Invalid('address is missing: say where it listens, like address = "0.0.0.0:9093"')
    if "?" in address or "://" in address:
        raise Invalid(f'address = "{address}": it is HOST:PORT; what else there is to say has keys of its own')
    protocol = table.get("protocol", "amqp" if name == "amqps" else name if name in STANDARD_LISTENERS else None)
    if not isinstance(protocol, str):
        raise Invalid(f"protocol is missing: it is one of {', '.join(PROTOCOLS)}")
    said = {key: _text(key, table[key]) for key in PARTS if key in table}
    if not said:
        return f"{protocol}://{address}"
    return f"{protocol}://{address}?{_query(said)}"


def beside(text: str, folder: str) -> str:
    """The same listener, with the files that it names looked for in a folder."""
    where, _, query = text.partition("?")
    said = _parts(query)
    found = {key: os.path.join(folder, path) if key in FILES and path else path for key, path in said.items()}
    return text if found == said else f"{where}?{_query(found)}"


def _query(said: Mapping[str, str]) -> str:
    from urllib.parse import urlencode

    return urlencode(said, safe=":,[]/")


def check_apart(plans: Sequence[ListenerPlan]) -> None:
    """Raises Invalid if two of them would listen at the same port."""
    for one, other in combinations(plans, 2):
        if one.address.port == other.address.port != 0 and _overlap(one.address.host, other.address.host):
            raise Invalid(
                f"listeners {one.terms.name!r} and {other.terms.name!r} would both listen at port {one.address.port}:"
                " give one of them another"
            )


def check_reachable(plans: Sequence[ListenerPlan]) -> None:
    """Raises Invalid for a listener of a node in a cluster whose address, which other nodes tell clients, is none that
    anybody could connect to."""
    for plan in plans:
        if not plan.terms.advertised_host and plan.address.host in EVERYWHERE:
            raise Invalid(
                f"listener {plan.terms.name!r} listens at {plan.address}, which is no address to connect to: say"
                f" which one other nodes and clients use, with advertised, like {plan.address}?advertised=10.0.0.1"
            )


def check_mechanisms(plan: ListenerPlan, enabled: Sequence[str]) -> None:
    """`enabled`: `sasl.enabled.mechanisms`."""
    for one in plan.terms.mechanisms:
        usual = "PLAIN" if one == "AMQPLAIN" else one
        if usual not in enabled and one != "EXTERNAL":
            raise Invalid(
                f"mechanisms: {one} is not enabled on this broker: sasl.enabled.mechanisms has {', '.join(enabled)}"
            )


def _overlap(one: str, other: str) -> bool:
    """Whether sockets of these hosts cannot have the same port. IPv4 and IPv6 are apart."""
    return one == other or ((":" in one) == (":" in other) and (one in EVERYWHERE or other in EVERYWHERE))


def _parts(query: str) -> dict[str, str]:
    found: dict[str, str] = {}
    if not query:
        return found
    from urllib.parse import parse_qsl  # few need it, and it takes milliseconds to load

    for key, value in parse_qsl(query, keep_blank_values=True):
        if key not in PARTS:
            raise Invalid(f"there is no {key!r}; a listener has {', '.join(PARTS)}{nearest_field(key, PARTS)}")
        if key in found:
            raise Invalid(f"{key} is there twice: leave one out")
        found[key] = value
    return found


def _text(key: str, value: object) -> str:
    if key == "auth-required":
        if not isinstance(value, bool):
            raise Invalid("auth-required has to be true or false, without quotes")
        return "true" if value else "false"
    if key == "mechanisms" and isinstance(value, list) and all(isinstance(one, str) for one in value):
        return ",".join(value)
    if not isinstance(value, str):
        raise Invalid(f"{key} has to be a text in quotes{', or a list of them' if key == 'mechanisms' else ''}")
    return value


def _tls(name: str, said: Mapping[str, str]) -> str:
    tls = said.get("tls", "on" if name == "amqps" else "")
    if name == "amqps" and tls != "on":
        raise Invalid("tls: amqps is AMQP over TLS alone; use amqp for anything else")
    if "tls" in said and tls not in _TLS:
        raise Invalid(f"tls={tls[:40]}: expected on, off or both")
    return tls


def _own_files(tls: str, said: Mapping[str, str]) -> OwnFiles:
    own = {key: said[key] for key in (*FILES, "client-certificates") if key in said}
    for key, value in own.items():
        if not value:
            raise Invalid(f"{key} is empty: name one, or leave it out")
        if tls == "off":
            raise Invalid(f"{key}: this listener speaks no TLS, since tls=off; leave one of the two out")
    if "key" in own and "certificate" not in own:
        raise Invalid("key: name the certificate that it belongs to, too")
    mode = own.get("client-certificates", "")
    if mode not in _CLIENT_CERTIFICATES:
        raise Invalid(f"client-certificates={mode[:40]}: expected off, optional or required")
    certificate, key, client_ca = (own.get(name, "") for name in FILES)
    return OwnFiles(certificate, key, client_ca, _CLIENT_CERTIFICATES[mode])


def _mapping_rules(tls: str, said: Mapping[str, str]) -> str:
    rules = said.get(MAPPING_RULES, "")
    if MAPPING_RULES in said:
        if tls == "off":
            raise Invalid(f"{MAPPING_RULES}: this listener speaks no TLS, since tls=off; leave one of the two out")
        if not rules.strip():
            raise Invalid(f"{MAPPING_RULES} is empty: name some, or leave it out")
        parse_rules(rules, MAPPING_RULES)
    return rules


def _auth_required(protocol: str, said: Mapping[str, str]) -> bool | None:
    text = said.get("auth-required")
    if text is None:
        return None
    if text not in ("true", "false"):
        raise Invalid(f"auth-required={text[:40]}: expected true or false")
    if protocol == "amqp" and text == "false":
        raise Invalid("auth-required: an AMQP client always logs in; add a user for those who need not be known")
    return text == "true"


def _mechanisms(protocol: str, said: Mapping[str, str]) -> tuple[str, ...]:
    if "mechanisms" not in said:
        return ()
    known = MECHANISMS[protocol]
    if not known:
        raise Invalid("mechanisms: HTTP has none; its clients log in with a password, a token or a certificate")
    found = tuple(part.strip() for part in said["mechanisms"].split(",") if part.strip())
    for one in found:
        if one not in known:
            hint = nearest_field(one, known) or f"; there are {', '.join(known)}"
            raise Invalid(f"mechanisms: there is no {one[:40]!r} here{hint}")
    if not found:
        raise Invalid("mechanisms is empty: name some, or leave it out; auth-required=false asks nobody to log in")
    return found


def _namespace(protocol: str, said: Mapping[str, str]) -> str:
    name = said.get("namespace", "")
    if "namespace" not in said or name == DEFAULT:
        return ""
    if protocol == "amqp":
        raise Invalid("namespace: an AMQP client names its virtual host itself; permissions say which it may open")
    check_namespace_name(name)
    return name


def _advertised(said: Mapping[str, str]) -> Address:
    """Port 0: the one that it listens on."""
    if "advertised" not in said:
        return _NO_MORE
    address = parse_address(said["advertised"], default_port=0)
    if address.host in EVERYWHERE:
        raise Invalid(f"advertised={address.host}: clients cannot connect to that; name a host that they can reach")
    return address
