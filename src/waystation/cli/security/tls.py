"""`waystation tls create`: an authority and certificates signed by it, for trying out TLS and for tests.

They are made by the `openssl` program, which is there on nearly every system: the broker itself needs nothing but
Python's own `ssl` (docs/decisions/020-tls-and-logins.md). Nothing that is there already is replaced.
"""

from __future__ import annotations

import argparse
import os
import re
from ipaddress import ip_address
from pathlib import Path

from waystation.cli.terminal.arguments import examples, positive
from waystation.cli.terminal.output import print_json
from waystation.errors import AlreadyExists, Invalid, Unavailable

DAYS = 365
KEY = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_NAME = re.compile(r"[A-Za-z0-9*_]([A-Za-z0-9*_.-]{0,251}[A-Za-z0-9])?")
_USER = re.compile(r"[A-Za-z0-9_.@ -]{1,64}")


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation tls create --out certificates --for broker.example.com --for 192.0.2.7",
        "waystation tls create --out certificates --client alice    # a client certificate by the same authority",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    create = verbs.add_parser("create", help="create ca.crt, ca.key, server.crt and server.key")
    create.add_argument("--out", metavar="DIR", default=".", help="where to write them (default: here)")
    create.add_argument(
        "--for",
        dest="names",
        metavar="NAME|IP",
        action="append",
        default=[],
        help="a name or an address by which clients reach the broker; may be repeated (default: localhost, 127.0.0.1)",
    )
    create.add_argument(
        "--client",
        dest="clients",
        metavar="NAME",
        action="append",
        default=[],
        help="also a client certificate for this user, NAME.crt and NAME.key; may be repeated",
    )
    create.add_argument("--days", type=positive, default=DAYS, help=f"how long they are valid (default: {DAYS})")
    create.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    create.set_defaults(run=_create)


def _create(arguments: argparse.Namespace) -> int:
    folder = Path(arguments.out)
    names = arguments.names or ([] if arguments.clients else ["localhost", "127.0.0.1"])
    alternatives = [_alternative(name) for name in names]
    for client in arguments.clients:
        if not _USER.fullmatch(client) or client in ("ca", "server"):
            raise Invalid(f"--client {client!r}: use a-z, A-Z, 0-9, dots, dashes, @ and spaces; not ca or server")
    wanted = [*(["server"] if names else []), *arguments.clients]
    taken = [file for name in wanted for end in ("crt", "key") if (file := folder / f"{name}.{end}").exists()]
    if taken:
        raise AlreadyExists(f"{taken[0]} is there already and stays as it is: delete it, or choose another --out")
    folder.mkdir(parents=True, exist_ok=True)
    made = _authority(folder, arguments.days)
    if names:
        usage = f"extendedKeyUsage=serverAuth,clientAuth\nsubjectAltName={','.join(alternatives)}"
        made += _certificate(folder, "server", str(names[0]), usage, arguments.days)
    for client in arguments.clients:
        made += _certificate(folder, client, client, "extendedKeyUsage=clientAuth", arguments.days)
    if arguments.json:
        print_json({"files": [str(file) for file in made]})
    else:
        for file in made:
            print(file)
    return 0


def _alternative(name: str) -> str:
    try:
        return f"IP:{ip_address(name)}"
    except ValueError:
        pass
    if not _NAME.fullmatch(name):
        raise Invalid(f"--for {name!r}: expected a host name or an IP address")
    return f"DNS:{name}"


def _authority(folder: Path, days: int) -> list[Path]:
    """The one that is there already, or a new one."""
    certificate, key = folder / "ca.crt", folder / "ca.key"
    if certificate.exists() and key.exists():
        return []
    if certificate.exists() or key.exists():
        raise AlreadyExists(f"{folder} has only one of ca.crt and ca.key: choose another --out, or delete it")
    extensions = ("-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign,cRLSign")
    _run("req", "-x509", *KEY, "-days", str(days), "-subj", "/CN=Waystation CA", *extensions,
         "-keyout", str(key), "-out", str(certificate))  # fmt: skip
    certificate.chmod(0o644)
    return [certificate, key]


def _certificate(folder: Path, name: str, subject: str, usage: str, days: int) -> list[Path]:
    import tempfile

    certificate, key = folder / f"{name}.crt", folder / f"{name}.key"
    with tempfile.TemporaryDirectory() as place:
        request, extensions = Path(place, "request"), Path(place, "extensions")
        extensions.write_text(
            f"basicConstraints=critical,CA:FALSE\nkeyUsage=critical,digitalSignature\n{usage}\n"
            "subjectKeyIdentifier=hash\nauthorityKeyIdentifier=keyid\n"
        )
        _run("req", "-new", *KEY, "-subj", f"/CN={subject[:64]}", "-keyout", str(key), "-out", str(request))
        _run("x509", "-req", "-in", str(request), "-CA", str(folder / "ca.crt"), "-CAkey", str(folder / "ca.key"),
             "-set_serial", f"0x{os.urandom(16).hex()}", "-days", str(days), "-extfile", str(extensions),
             "-out", str(certificate))  # fmt: skip
    certificate.chmod(0o644)
    return [certificate, key]


def _run(*arguments: str) -> None:
    import subprocess

    before = os.umask(0o077)  # nobody else may read a key, from its first byte on
    try:
        done = subprocess.run(["openssl", *arguments], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise Unavailable(
            "the program openssl is not installed: install it (`apt install openssl`), or get certificates elsewhere"
        ) from None
    finally:
        os.umask(before)
    if done.returncode:
        raise Invalid(f"openssl {arguments[0]}: {done.stderr.strip().splitlines()[-1:] or 'failed'}")
