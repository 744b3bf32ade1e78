"""The master key: 32 bytes from a file, a variable of the environment, or the output of a command.

A source is written as `file:PATH`, `env:NAME` or `command:…`. The key is 64 hexadecimal digits or base64 of 32 bytes; a
file may also have the 32 bytes themselves. The command is run by the shell, so that any key management service fits.
Nothing here puts a key, or a part of one, into an error. Blocks: a command may take seconds.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import os

import msgspec

from waystation.errors import InvalidSetting

SETTING = "encryption.key"
KEY_BYTES = 32
COMMAND_TIMEOUT_S = 30
LARGEST_FILE = 4096
HOW = "use file:PATH, env:NAME or command:…; `waystation encryption key` makes a new key"


class MasterKey(msgspec.Struct, frozen=True):
    secret: bytes

    def __repr__(self) -> str:
        return f"MasterKey({self.id})"

    @property
    def id(self) -> str:
        """Names the key without telling anything of it."""
        return hmac.digest(self.secret, b"waystation: id of a master key", hashlib.sha256)[:8].hex()


def new_text(token: bytes) -> str:
    """A key as a file or a variable has it."""
    return base64.b64encode(token).decode()


def read_master_key(source: str) -> MasterKey:
    """InvalidSetting says what is wrong with the source, or with what it gave."""
    kind, _, rest = source.partition(":")
    if kind == "file" and rest:
        return _parse(_from_file(rest), f"the file {rest}", raw=True)
    if kind == "env" and rest:
        value = os.environ.get(rest)
        if value is None:
            raise InvalidSetting(f"{SETTING}: the variable {rest} is not set; nothing was touched")
        return _parse(value.encode(errors="surrogateescape"), f"the variable {rest}")
    if kind == "command" and rest:
        return _parse(_from_command(rest), "the command")
    raise InvalidSetting(f"{SETTING}: {source.partition(':')[0][:20]!r} is no source of a key; {HOW}")


def _from_file(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read(LARGEST_FILE)
    except OSError as error:
        raise InvalidSetting(
            f"{SETTING}: the key file {path} cannot be read: {error.strerror}; nothing was touched"
        ) from None


def _from_command(command: str) -> bytes:
    import subprocess  # only where a command is used

    try:
        done = subprocess.run(
            ["/bin/sh", "-c", command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=COMMAND_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise InvalidSetting(
            f"{SETTING}: the command gave no key within {COMMAND_TIMEOUT_S} s; nothing was touched"
        ) from None
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise InvalidSetting(
            f"{SETTING}: the command failed with status {done.returncode}{': ' + said[-1][:200] if said else ''};"
            " nothing was touched"
        )
    return done.stdout[:LARGEST_FILE]


def _parse(content: bytes, where: str, *, raw: bool = False) -> MasterKey:
    """`raw`: it may be the bytes themselves. Text of that length is a password, or half of a key, and is none."""
    if raw and len(content) == KEY_BYTES and not (content.isascii() and content.decode().strip().isprintable()):
        return MasterKey(content)
    text = content.strip()
    for decode in (binascii.unhexlify, lambda each: base64.b64decode(each, validate=True)):
        try:
            secret = decode(text)
        except ValueError:
            continue
        if len(secret) == KEY_BYTES:
            return MasterKey(secret)
    raise InvalidSetting(
        f"{SETTING}: {where} has no key: 64 hexadecimal digits, or base64 of {KEY_BYTES} bytes, are expected;"
        " nothing was touched"
    )
