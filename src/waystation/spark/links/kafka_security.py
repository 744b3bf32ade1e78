"""How a Kafka client is told to log in and to speak TLS (`kafka.security.*`, `kafka.sasl.*`, `kafka.ssl.*`), as ours.

Names of Kafka's Java client and of librdkafka. What says the same is translated, what only tunes a login has no effect,
and everything else is refused by its name, with what to write instead: a job must not run with less security than it
asks for. No error repeats a secret. Pure; for `kafka_options`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

from waystation.client.links.login import MECHANISMS
from waystation.errors import Invalid

PREFIXES = ("kafka.security.", "kafka.sasl.", "kafka.ssl.")

PROTOCOL = "kafka.security.protocol"
JAAS = "kafka.sasl.jaas.config"
PROTOCOLS = ("PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL")

_SAME = {
    "kafka.sasl.mechanism": "mechanism",
    "kafka.sasl.mechanisms": "mechanism",
    "kafka.sasl.username": "user",
    "kafka.sasl.password": "password",
    "kafka.ssl.ca.location": "ca",
    "kafka.ssl.truststore.location": "ca",
    "kafka.ssl.certificate.location": "certificate",
    "kafka.ssl.keystore.location": "certificate",
    "kafka.ssl.key.location": "certificateKey",
}
_STORES = {
    "kafka.ssl.truststore.location": "kafka.ssl.truststore.type",
    "kafka.ssl.keystore.location": "kafka.ssl.keystore.type",
}
_JAVA_STORE = re.compile(r"\.(jks|p12|pfx|pkcs12|bks|keystore|truststore)$", re.IGNORECASE)
TOKEN_URL = "kafka.sasl.oauthbearer.token.endpoint.url"
_TUNING = re.compile(
    r"kafka\.sasl\.login\.(refresh|connect|read|retry)\..*|kafka\.sasl\.oauthbearer\.(clock\.skew|header).*"
    r"|kafka\.ssl\.(truststore|keystore)\.type|kafka\.security\.providers"
)
_INSTEAD = {
    "kafka.ssl.truststore.password": "a PEM file of certificates has no password; leave it out",
    "kafka.ssl.keystore.password": "a PEM file has no password of a store; leave it out",
    "kafka.ssl.key.password": "the key has to be without a password: `openssl pkey -in key.pem -out plain.pem` writes"
    " it so; then protect the file (chmod 600)",
    "kafka.ssl.truststore.certificates": "write the certificates to a file, and name it by the option ca",
    "kafka.ssl.keystore.certificate.chain": "write it to a file, and name it by the option certificate",
    "kafka.ssl.keystore.key": "write it to a file, and name it by the option certificateKey",
    "kafka.ssl.key.pem": "write it to a file, and name it by the option certificateKey",
    "kafka.ssl.certificate.pem": "write it to a file, and name it by the option certificate",
    "kafka.ssl.ca.pem": "write it to a file, and name it by the option ca",
    "kafka.sasl.login.callback.handler.class": "Java classes cannot be called; give the token as the option tokenFile,"
    " and let what renews it write that file",
    "kafka.sasl.client.callback.handler.class": "Java classes cannot be called; give user and passwordFile",
}
_MODULE = re.compile(r"\s*([\w.$]+)\s+(required|requisite|sufficient|optional)\b(.*);\s*", re.DOTALL)
_TERM = re.compile(r"""\s*(\w+)\s*=\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)'|([^\s"';=]+))""")
_MODULES = {
    "PlainLoginModule": ("PLAIN",),
    "ScramLoginModule": ("SCRAM-SHA-256", "SCRAM-SHA-512"),
    "OAuthBearerLoginModule": ("OAUTHBEARER",),
}


def is_security(name: str) -> bool:
    return name.lower().startswith(PREFIXES)


def login_in_our_words(given: Mapping[str, str]) -> dict[str, str]:
    """Our options for those of `given` that are about security; raises Invalid."""
    theirs = {name.lower(): value for name, value in given.items() if is_security(name)}
    if not theirs:
        return {}
    protocol = theirs.pop(PROTOCOL, "PLAINTEXT").strip().upper()
    if protocol not in PROTOCOLS:
        raise Invalid(f"{PROTOCOL}: {protocol[:40]!r} is none of {', '.join(PROTOCOLS)}")
    for name, value in theirs.items():
        _check_known(name, value.strip())
    _check_used(theirs, protocol)
    found: dict[str, str] = {"tls": "true"} if protocol.endswith("SSL") else {}
    for name, value in theirs.items():
        ours = _SAME.get(name)
        if ours is not None and name in _STORES:
            _check_pem(name, value.strip(), theirs.get(_STORES[name], ""))
        if ours is not None:
            if ours in found:
                raise Invalid(f"{name} and another option say what {ours} is: leave one of them out")
            found[ours] = value if ours == "password" else value.strip()
    if protocol.startswith("SASL"):
        _take_login(found, theirs)
    return found


def _check_known(name: str, value: str) -> None:
    if name in _SAME or name in (JAAS, TOKEN_URL) or _TUNING.fullmatch(name):
        return
    if name == "kafka.ssl.endpoint.identification.algorithm":
        if value.lower() != "https":
            raise Invalid(f"{name}: the broker's name is always compared with its certificate; leave the option out")
        return
    if name in ("kafka.ssl.protocol", "kafka.ssl.enabled.protocols"):
        if not {one.strip() for one in value.split(",")} & {"TLS", "TLSv1.2", "TLSv1.3"}:
            raise Invalid(f"{name}: TLS 1.2 and 1.3 are spoken; leave the option out")
        return
    if name.startswith("kafka.sasl.kerberos."):
        raise Invalid(f"{name}: Kerberos (GSSAPI) is not offered to Spark; use SCRAM: user and passwordFile")
    instead = _INSTEAD.get(name, "this cannot be chosen here; leave it out, or use format('kafka')")
    raise Invalid(f"{name}: {instead}")


def _check_used(theirs: Mapping[str, str], protocol: str) -> None:
    """What the protocol would leave unused was meant otherwise."""
    for name in theirs:
        if name.startswith("kafka.sasl.") and not protocol.startswith("SASL"):
            raise Invalid(
                f"{name} has no effect with {PROTOCOL}={protocol}, which does not log in; set it to SASL_SSL (or"
                " SASL_PLAINTEXT), or leave the option out"
            )
        if name.startswith("kafka.ssl.") and not protocol.endswith("SSL"):
            raise Invalid(
                f"{name} has no effect with {PROTOCOL}={protocol}, which is not encrypted; set it to"
                f" {'SASL_SSL' if protocol.startswith('SASL') else 'SSL'}, or leave the option out"
            )


def _check_pem(name: str, place: str, kind: str) -> None:
    if kind.strip().upper() not in ("", "PEM") or (not kind.strip() and _JAVA_STORE.search(place)):
        what = "certificates" if "truststore" in name else "the certificate and its key"
        raise Invalid(
            f"{name}: Python reads PEM, and no Java key store. Write {what} to a PEM file (`keytool -exportcert -rfc`,"
            " or `openssl pkcs12 -nodes`), and name that, by this option with the type PEM or by"
            f" {'ca' if 'truststore' in name else 'certificate and certificateKey'}"
        )


def _take_login(found: dict[str, str], theirs: Mapping[str, str]) -> None:
    mechanism = found.get("mechanism", "").upper()
    if mechanism not in MECHANISMS or mechanism == "EXTERNAL":
        said = f"{mechanism[:40]} is not offered to Spark" if mechanism else "Kafka's default, GSSAPI, is not offered"
        raise Invalid(f"kafka.sasl.mechanism: {said}; give SCRAM-SHA-512, SCRAM-SHA-256, PLAIN or OAUTHBEARER")
    terms = _read_jaas(theirs[JAAS], mechanism) if JAAS in theirs else {}
    if mechanism == "OAUTHBEARER":
        _take_token(found, theirs, terms)
        return
    for theirs_name, ours in (("username", "user"), ("password", "password")):
        if terms.get(theirs_name):
            if ours in found:
                raise Invalid(f"{JAAS} and kafka.sasl.{theirs_name} say the same: leave one of them out")
            found[ours] = terms.pop(theirs_name)
    _refuse_rest(terms)
    # Without a user and a password here, our own options may have them: user and passwordFile.


def _take_token(found: dict[str, str], theirs: Mapping[str, str], terms: dict[str, str]) -> None:
    """Kafka reads a token from a file where its endpoint is one. Fetching one from a provider is left to others."""
    place = urlsplit(theirs.get(TOKEN_URL, "").strip())
    if place.scheme == "file":
        found["tokenFile"] = unquote(place.path)
    elif place.scheme:
        raise Invalid(
            f"{TOKEN_URL}: tokens are not fetched from a provider; let what fetches them write a file, and name that by"
            " the option tokenFile (or by file:///PATH here)"
        )
    _refuse_rest(terms)


def _refuse_rest(terms: Mapping[str, str]) -> None:
    for name in terms:
        if name.startswith("unsecured") or name in ("clientId", "clientSecret", "scope"):
            raise Invalid(f"{JAAS}: {name} would make or fetch a token; give one by the option tokenFile")
        raise Invalid(f"{JAAS}: {name[:40]!r} has no effect here; leave it out")


def _read_jaas(text: str, mechanism: str) -> dict[str, str]:
    wanted = (
        f'{JAAS}: write CLASS required username="…" password="…"; with the semicolon, as Kafka wants it, or give the'
        " options user and passwordFile instead"
    )
    found = _MODULE.fullmatch(text)
    if found is None:
        raise Invalid(wanted)
    module = found[1].rpartition(".")[2]
    if mechanism not in _MODULES.get(module, ()):
        right = next((name for name, fits in _MODULES.items() if mechanism in fits), "another")
        raise Invalid(f"{JAAS}: {module[:40]} is not for kafka.sasl.mechanism={mechanism}, which needs {right}")
    terms: dict[str, str] = {}
    at = 0
    rest = found[3].rstrip()
    while at < len(rest):
        term = _TERM.match(rest, at)
        if term is None:
            raise Invalid(wanted)
        quoted = next(part for part in term.groups()[1:] if part is not None)
        terms[term[1]] = re.sub(r"\\(.)", r"\1", quoted) if term[4] is None else quoted
        at = term.end()
    return terms
