"""TLS of the listeners: certificates from files, loaded at the start and again when they change.

Invariants: TLS 1.2 or newer; a certificate that has expired, or a key that does not fit, is refused at the start, with
the file named; at a reload the one that is in use stays, and the log says so. A connection keeps the certificate that
it began with.

`TlsOfListener` is what a listener is handed (`world/listener.py`, `Encryption`); which files are whose is in
`tls_files.py`. `load`, `changed` and `reload` read files: away from the loop, or before it runs.
"""

from __future__ import annotations

import base64
import os
import re
import ssl
from datetime import UTC, datetime

from waystation.errors import Invalid
from waystation.observe.events import event_logger
from waystation.security.tls_files import TlsFiles

logger = event_logger("waystation.tls")

CIPHERS = "ECDHE+AESGCM:ECDHE+CHACHA20"
"""Of TLS 1.2: with forward secrecy, and no CBC. What is usual depends on who has built Python: Debian's has all that
OpenSSL still knows. Those of TLS 1.3 are all of this kind."""
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----(.+?)-----END CERTIFICATE-----", re.DOTALL)


class Tls:
    """One for all listeners that have these files."""

    def __init__(self, files: TlsFiles) -> None:
        self.files = files
        self._seen = _signature(files.paths)
        self._context = load(files)

    def context(self) -> ssl.SSLContext:
        return self._context

    def changed(self) -> bool:
        """Whether the files are others than those that were loaded, or tried, last."""
        return _signature(self.files.paths) != self._seen

    def reload(self) -> bool:
        """Loads the files again; False: they cannot be used, and what was loaded before stays in use."""
        self._seen = _signature(self.files.paths)
        try:
            self._context = load(self.files)
        except Invalid as error:
            logger.error("tls.not_reloaded", "the certificates in use stay: {error}", error=error)
            return False
        logger.info("tls.reloaded", "certificates are loaded again from {file}", file=self.files.certificate)
        return True


class TlsOfListener:
    """The certificates of a listener, and whether it is also spoken to without TLS (`plain`)."""

    def __init__(self, tls: Tls, *, plain: bool) -> None:
        self._tls = tls
        self.plain = plain

    def context(self) -> ssl.SSLContext:
        return self._tls.context()


def load(files: TlsFiles) -> ssl.SSLContext:
    """A context for new connections, or Invalid that names the file: also where one is removed while it is read."""
    contents = {path: _read(path) for path in files.paths}
    _check_validity(files.certificate, contents[files.certificate])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.set_ciphers(CIPHERS)
    context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
    try:
        # Without a password OpenSSL would ask for one at the terminal.
        context.load_cert_chain(files.certificate, files.key or None, password=lambda: "")
    except (OSError, ValueError) as error:  # ssl.SSLError is an OSError
        both = f"the key {files.key} and the certificate {files.certificate} do not belong together, or one of them"
        raise Invalid(f"{both if files.key else files.certificate} cannot be read: {_why(error)}") from None
    if files.client_ca:
        try:
            context.load_verify_locations(cafile=files.client_ca)
        except OSError as error:
            raise Invalid(f"{files.client_ca} is no file of certificates: {_why(error)}") from None
    modes = {"off": ssl.CERT_NONE, "optional": ssl.CERT_OPTIONAL, "required": ssl.CERT_REQUIRED}
    context.verify_mode = modes[files.client_certificates]
    return context


def _why(error: Exception) -> str:
    reason = getattr(error, "reason", None) or getattr(error, "strerror", None)
    return str(reason or error).replace("_", " ").lower()


def _read(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError as error:
        raise Invalid(f"cannot read {path}: {error.strerror}") from None


def _signature(paths: tuple[str, ...]) -> tuple[object, ...]:
    """Changes when one of the files does."""
    found: list[object] = []
    for path in paths:
        try:
            seen = os.stat(path)
        except OSError:
            found.append(None)
        else:
            found.append((seen.st_mtime_ns, seen.st_size, seen.st_ino))
    return tuple(found)


def _check_validity(path: str, content: bytes) -> None:
    found = _PEM.search(content)
    if found is None:
        raise Invalid(f"{path} has no certificate in it: it has to be a PEM file")
    try:
        ends = valid_until(base64.b64decode(found[1]))
    except (ValueError, IndexError):
        raise Invalid(f"{path}: the certificate cannot be read") from None
    if ends < datetime.now(UTC):
        raise Invalid(f"{path}: the certificate has expired, on {ends:%Y-%m-%d %H:%M} UTC; renew it")


def valid_until(der: bytes) -> datetime:
    """When a certificate expires. ValueError or IndexError if it is none.

    Certificate → TBSCertificate → [0] version, serial number, algorithm, issuer, validity → the second of its times.
    """
    at = _content(der, _content(der, 0)[0])[0]
    if der[at] == 0xA0:
        at = _content(der, at)[1]
    for _ in range(3):
        at = _content(der, at)[1]
    first = _content(der, at)[0]
    second = _content(der, first)[1]
    start, end = _content(der, second)
    text = der[start:end].decode("ascii")
    # UTCTime has a year of two digits, which is one between 1950 and 2049.
    if der[second] != 0x18:
        text = ("19" if text[:2] >= "50" else "20") + text
    return datetime.strptime(text, "%Y%m%d%H%M%SZ").replace(tzinfo=UTC)


def _content(der: bytes, at: int) -> tuple[int, int]:
    """Where the value begins and ends that is encoded at this place."""
    size = der[at + 1]
    if size < 0x80:
        return at + 2, at + 2 + size
    begins = at + 2 + (size & 0x7F)
    return begins, begins + int.from_bytes(der[at + 2 : begins], "big")
