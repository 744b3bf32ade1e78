"""Certificates, and a config file with [tls] and [auth], as the documentation has them."""

from __future__ import annotations

import ssl
from pathlib import Path

from tests.security.users_kit import waystation


def make_certificates(folder: Path, *clients: str) -> Path:
    """ca.crt, server.crt, server.key, and a certificate for each client."""
    more = [part for client in clients for part in ("--client", client)]
    waystation("tls", "create", "--out", str(folder), "--for", "localhost", "--for", "127.0.0.1", *more)
    return folder


def write_config(folder: Path, text: str) -> list[str]:
    """Arguments of `serve` that name the file."""
    file = folder / "waystation.toml"
    file.write_text(text)
    return ["--config", str(file)]


def client_context(folder: Path, client: str | None = None) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=str(folder / "ca.crt"))
    if client is not None:
        context.load_cert_chain(folder / f"{client}.crt", folder / f"{client}.key")
    return context
