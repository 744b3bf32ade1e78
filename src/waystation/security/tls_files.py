"""Which certificates a listener has: those that the settings name for all, or its own. Names of files alone: `tls.py`
reads them. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from waystation.errors import InvalidSetting

if TYPE_CHECKING:
    from waystation.config import BrokerSettings

ClientCertificates = Literal["off", "optional", "required"]


class TlsFiles(msgspec.Struct, frozen=True):
    """Where the certificates are, and what is asked of clients."""

    certificate: str
    key: str = ""  # empty: in the file of the certificate
    client_ca: str = ""
    client_certificates: ClientCertificates = "off"

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for path in (self.certificate, self.key, self.client_ca) if path)


class OwnFiles(msgspec.Struct, frozen=True):
    """What a listener says itself; empty: as the settings say. A certificate has its own key, or has it in its file."""

    certificate: str = ""
    key: str = ""
    client_ca: str = ""
    client_certificates: ClientCertificates | Literal[""] = ""

    @property
    def some(self) -> bool:
        return self != NO_OWN


NO_OWN = OwnFiles()


def files_of(settings: BrokerSettings, own: OwnFiles = NO_OWN) -> TlsFiles | None:
    """What a listener has; None: there is no certificate. InvalidSetting says what is missing."""
    certificate, key = settings.text("tls.certificate"), settings.text("tls.key")
    client_ca = settings.text("tls.client-ca")
    if not certificate:
        for name in ("tls.key", "tls.client-ca"):
            if settings.text(name):
                raise InvalidSetting(f"{name} is set, but tls.certificate is not: set both, or none")
    if own.certificate:
        certificate, key = own.certificate, own.key
    if not certificate:
        if own.some:
            raise InvalidSetting(
                "client certificates need a certificate of the listener: name it, or set tls.certificate"
            )
        return None
    mode = own.client_certificates or settings.text("tls.client-certificates")
    if mode == "off" and own.client_ca and not own.client_certificates:
        mode = "auto"  # nobody names an authority whose certificates are not to be asked for
    client_ca = own.client_ca or client_ca
    if mode == "auto":
        mode = "optional" if client_ca else "off"
    if mode != "off" and not client_ca:
        said = "" if own.client_certificates else "tls."
        raise InvalidSetting(f"{said}client-certificates={mode}: set {said}client-ca to the authority that signs them")
    wanted: ClientCertificates = "required" if mode == "required" else "optional" if mode == "optional" else "off"
    return TlsFiles(certificate, key, client_ca, wanted)
