"""A master key comes from a file, a variable or a command; an error names the source, and never the key."""

from __future__ import annotations

import base64
import os
from pathlib import Path

import pytest

from waystation.encryption import master_key
from waystation.encryption.master_key import MasterKey, new_text, read_master_key
from waystation.errors import InvalidSetting

SECRET = os.urandom(32)


@pytest.mark.parametrize(
    "content",
    [SECRET, SECRET.hex().encode(), SECRET.hex().upper().encode() + b"\n", base64.b64encode(SECRET) + b"\n"],
    ids=["bytes", "digits", "upper case", "base64"],
)
def test_a_file_has_the_bytes_or_hexadecimal_digits_or_base64(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "key"
    file.write_bytes(content)
    assert read_master_key(f"file:{file}") == MasterKey(SECRET)


def test_a_variable_and_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER", new_text(SECRET))
    assert read_master_key("env:MASTER").secret == SECRET
    (tmp_path / "key").write_text(SECRET.hex())
    assert read_master_key(f"command:cat {tmp_path}/key | tr a-f A-F").secret == SECRET


def test_an_id_names_a_key_and_tells_nothing_of_it() -> None:
    key = MasterKey(SECRET)
    assert key.id == MasterKey(SECRET).id != MasterKey(os.urandom(32)).id
    assert key.id not in SECRET.hex()
    assert SECRET.hex() not in repr(key)
    assert repr(SECRET) not in repr(key)


def test_what_is_wrong_with_a_source_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MASTER", raising=False)
    short = new_text(os.urandom(31))
    (tmp_path / "short").write_text(short)
    (tmp_path / "password").write_text("p" * 32)
    monkeypatch.setenv("PASSWORD", os.urandom(16).hex())
    for source, text in (
        (f"file:{tmp_path}/none", f"{tmp_path}/none cannot be read: No such file"),
        (f"file:{tmp_path}", "cannot be read"),
        (f"file:{tmp_path}/short", f"{tmp_path}/short has no key"),
        (f"file:{tmp_path}/password", f"{tmp_path}/password has no key"),
        (f"command:printf %s {'p' * 32}", "the command has no key"),
        ("env:PASSWORD", "PASSWORD has no key"),
        ("env:MASTER", "MASTER is not set"),
        ("command:echo no key for you >&2; exit 3", "status 3: no key for you"),
        ("command:echo hello", "the command has no key"),
        ("file:", "is no source"),
        (SECRET.hex(), "is no source"),
    ):
        with pytest.raises(InvalidSetting, match=r"encryption\.key") as refused:
            read_master_key(source)
        assert text in str(refused.value)
        assert short not in str(refused.value)
        assert SECRET.hex() not in str(refused.value)


def test_a_command_that_does_not_end_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(master_key, "COMMAND_TIMEOUT_S", 0.1)
    with pytest.raises(InvalidSetting, match="within"):
        read_master_key("command:exec sleep 60")
