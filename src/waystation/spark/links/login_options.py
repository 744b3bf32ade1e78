"""The options that say where the broker is, who logs in there, and how it is known to be the right one.

Every reader and writer has the same ones. Text in, one checked `Servers` out, and Invalid with one sentence otherwise,
which never repeats a secret. Kafka's names for them are translated before (`kafka_security`). Pure; knows nothing of
pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from waystation.client.links.login import MECHANISMS
from waystation.client.links.servers import PASSWORD_VARIABLE, SCHEMES, TlsTerms
from waystation.errors import Invalid, near_matches
from waystation.spark.links.servers import Address, LoginTerms, Secret, Servers

DEFAULT_PORT = 9092
PASSWORDS = ("password", "passwordFile", "passwordEnv")
TOKENS = ("token", "tokenFile", "tokenEnv")
TLS_OPTIONS = ("tls", "ca", "certificate", "certificateKey")
LOGIN_OPTIONS = ("user", *PASSWORDS, *TOKENS, "mechanism", *TLS_OPTIONS)
IN_PLAIN_TEXT = ("password", "token")
"""Those that are secrets themselves."""
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


def lowered(given: Mapping[str, str]) -> dict[str, str]:
    """Options as the rest of this package looks them up: names in lower case, values without space around them; but a
    secret is what it is."""
    return {name.lower(): value if name.lower() in IN_PLAIN_TEXT else value.strip() for name, value in given.items()}


def read_servers(options: Mapping[str, str]) -> Servers:
    """The options `servers` and LOGIN_OPTIONS, by names in lower case."""
    addresses, encrypted = _addresses(options.get("servers", ""))
    tls = _read_tls(options, encrypted)
    return Servers(addresses, _read_login(options, tls), tls)


def _addresses(text: str) -> tuple[tuple[Address, ...], bool]:
    found = []
    encrypted = set()
    for part in text.split(","):
        scheme, named, rest = part.strip().rpartition("://")
        if "@" in rest or "?" in rest or "@" in scheme:
            # Nothing of it is repeated: Spark shows this option in plans, and errors are shown, too.
            raise Invalid(
                "servers: write addresses alone, host:port; who logs in, and the certificates, are options of their own"
                f" ({', '.join(LOGIN_OPTIONS)}), so that no plan and no log shows a password"
            )
        if named and scheme not in SCHEMES:
            raise Invalid(f"servers: {scheme}:// is not the broker's Kafka port; write for instance {_example(rest)}")
        if not rest.strip():
            continue
        encrypted.add(scheme == "waystations")
        host, colon, port = rest.rpartition(":")
        if not colon:
            host, port = rest, str(DEFAULT_PORT)
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise Invalid(f"servers: {rest!r} is not host:port; write for instance {_example()}")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise Invalid(
            f"the option servers is missing: say where the broker is, for instance .option('servers', '{_example()}')"
        )
    if len(encrypted) > 1:
        raise Invalid("servers: some are waystations:// and some are not; write all of them alike")
    return tuple(found), encrypted == {True}


def _example(place: str = "") -> str:
    return f"{place.partition('/')[0].rpartition(':')[0] or '127.0.0.1'}:{DEFAULT_PORT}"


def _read_tls(options: Mapping[str, str], encrypted: bool) -> TlsTerms | None:
    said = options.get("tls", "").lower()
    if said not in ("", "true", "false"):
        raise Invalid(f"tls: {said[:40]!r} is neither true nor false")
    given = [name for name in ("ca", "certificate", "certificateKey") if options.get(name.lower())]
    if said == "false" and (given or encrypted):
        raise Invalid(
            f"tls: it is false, and {given[0] if given else 'waystations://'} is for TLS; leave one of them out"
        )
    if not (given or encrypted or said == "true"):
        return None
    terms = TlsTerms(options.get("ca", ""), options.get("certificate", ""), options.get("certificatekey", ""))
    if terms.key and not terms.certificate:
        raise Invalid("certificateKey: it is the key of a certificate; give the option certificate, too")
    return terms


def _read_login(options: Mapping[str, str], tls: TlsTerms | None) -> LoginTerms | None:
    user = options.get("user", "")
    mechanism = options.get("mechanism", "").upper()
    if mechanism and mechanism not in MECHANISMS:
        near = near_matches(mechanism, MECHANISMS) or f"; there are {', '.join(MECHANISMS)}"
        raise Invalid(f"mechanism: {mechanism[:40]!r} is not known{near}")
    password, token = _secret(options, PASSWORDS), _secret(options, TOKENS)
    if password is not None and token is not None:
        raise Invalid(f"{password.option} and {token.option} were both given: one of them is the login; leave one out")
    if mechanism == "EXTERNAL":
        if tls is None or not tls.certificate:
            raise Invalid(
                "mechanism: EXTERNAL is a client's certificate; give the options certificate and certificateKey"
            )
        return None
    if token is not None:
        if mechanism not in ("", "OAUTHBEARER"):
            raise Invalid(f"{token.option}: a token is for the mechanism OAUTHBEARER, and {mechanism} was given")
        return LoginTerms(user, token, "OAUTHBEARER")
    if mechanism == "OAUTHBEARER":
        raise Invalid("mechanism: OAUTHBEARER needs a token; give the option tokenFile (or tokenEnv, token)")
    if not user:
        if password is not None or mechanism:
            raise Invalid(f"{password.option if password else 'mechanism'}: say whose it is by the option user")
        return None
    secret = password or Secret("passwordEnv", variable=PASSWORD_VARIABLE)
    return LoginTerms(user, secret, mechanism or MECHANISMS[0])


def _secret(options: Mapping[str, str], names: tuple[str, ...]) -> Secret | None:
    given = [name for name in names if options.get(name.lower())]
    if len(given) > 1:
        raise Invalid(f"{given[0]} and {given[1]} say the same: leave one of them out")
    if not given:
        return None
    value = options[given[0].lower()]
    if given[0].endswith("File"):
        return Secret(given[0], file=value)
    if given[0].endswith("Env"):
        if not _VARIABLE.fullmatch(value):
            raise Invalid(f"{given[0]}: that is no name of a variable; write its name, not its value")
        return Secret(given[0], variable=value)
    return Secret(given[0], text=value)
