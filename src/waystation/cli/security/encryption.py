"""`waystation encryption`: the keys of an encrypted data folder.

They work on the folder itself, on the machine where it is. Only `apply` needs the broker to be stopped. Where a master
key comes from is said as in the setting `encryption.key`; without `--key` the variable of that setting is taken.
"""

from __future__ import annotations

import argparse
from time import gmtime, strftime
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import examples
from waystation.cli.terminal.output import note, print_json, print_table
from waystation.errors import Invalid

if TYPE_CHECKING:
    from waystation.encryption.key_file import KeyFile

SOURCE = "file:PATH | env:NAME | command:…"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation encryption key > master.key",
        "waystation serve --data ./waystation-data --set encryption.key=file:master.key",
        "waystation encryption rotate --data ./waystation-data --key file:master.key --new-key file:next.key",
        "waystation encryption retire --data ./waystation-data --key file:next.key",
        "waystation encryption apply --data ./waystation-data --key file:master.key    # the broker does not run",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    verbs.add_parser("key", help="print a new master key").set_defaults(run=_key)
    status = verbs.add_parser("status", help="show which keys a data folder has, and what they are used for")
    status.add_argument("--scan", action="store_true", help="read the whole folder, and count what is encrypted")
    status.set_defaults(run=_status)
    rotate = verbs.add_parser("rotate", help="use a new key for what is written from now on; the broker may run")
    rotate.add_argument("--new-key", metavar="SOURCE", help=f"another master key that opens the folder: {SOURCE}")
    rotate.set_defaults(run=_rotate)
    retire = verbs.add_parser("retire", help="let only the newest master key open the folder; the broker may run")
    retire.set_defaults(run=_retire)
    apply = verbs.add_parser("apply", help="encrypt what is in the folder already; the broker must not run")
    apply.add_argument(
        "--everything",
        action="store_true",
        help="rewrite what earlier keys have encrypted, too, and delete those keys",
    )
    apply.set_defaults(run=_apply)
    for verb in (status, rotate, retire, apply):
        verb.add_argument("--data", metavar="DIR", required=True, help="the data folder of a broker")
        verb.add_argument("--json", action="store_true", help="print JSON lines, for programs")
    for verb in (rotate, retire, apply):
        verb.add_argument("--key", metavar="SOURCE", help=f"the master key: {SOURCE}")


def _key(arguments: argparse.Namespace) -> int:
    import secrets

    from waystation.encryption.master_key import KEY_BYTES, new_text

    print(new_text(secrets.token_bytes(KEY_BYTES)))
    return 0


def _source(arguments: argparse.Namespace) -> str:
    from waystation.broker.encrypted_folder import source_from_environment
    from waystation.config import variable_of
    from waystation.encryption.master_key import SETTING

    source = arguments.key or source_from_environment().get(SETTING, "")
    if not source:
        raise Invalid(f"which master key? Pass --key {SOURCE}, or set {variable_of(SETTING)}")
    return str(source)


def _status(arguments: argparse.Namespace) -> int:
    from waystation.broker.encrypting import status

    found = status(arguments.data, scan=arguments.scan)
    used = None if found.usage is None else found.usage.encrypted
    plain = None if found.usage is None else found.usage.plain
    if arguments.json:
        keys = [] if found.keys is None else [_as_json(found.keys, key.number, used) for key in found.keys.keys]
        masters = [] if found.keys is None else list(found.keys.masters)
        print_json(
            {
                "encrypted": found.keys is not None,
                "master_keys": masters,
                "keys": keys,
                "plain_bytes": plain,
                "damaged": found.usage is not None and found.usage.damaged,
                "files_for_manual_recovery": found.kept,
            }
        )
        return 0
    if found.keys is None:
        print("not encrypted")
    else:
        print(f"master keys that open it, the newest last: {', '.join(found.keys.masters)}")
        print_table(
            ("folder key", "created", "used for", "bytes"),
            [
                (
                    f"{key.number:08x}",
                    strftime("%Y-%m-%d %H:%M:%S", gmtime(key.created_ms / 1000)),
                    "writing" if key.number == found.keys.active else "reading",
                    None if used is None else used.get(key.number, 0),
                )
                for key in found.keys.keys
            ],
        )
    if plain:
        print(f"{plain} bytes of messages are not encrypted; `waystation encryption apply` encrypts them")
    if found.usage is not None and found.usage.damaged:
        note("a log is corrupt: how what is behind that is encrypted is not known; see `waystation log skip-corrupt`")
    _tell_kept(found.kept)
    return 0


def _as_json(content: KeyFile, number: int, used: dict[int, int] | None) -> dict[str, object]:
    key = next(key for key in content.keys if key.number == number)
    return {
        "key": f"{number:08x}",
        "created_ms": key.created_ms,
        "active": number == content.active,
        "bytes": None if used is None else used.get(number, 0),
    }


def _rotate(arguments: argparse.Namespace) -> int:
    from waystation.broker.encrypting import rotate

    changed = rotate(arguments.data, _source(arguments), arguments.new_key)
    _tell_keys(arguments, changed)
    if not arguments.json and len(changed.masters) > 1:
        note(f"give the broker the new master key ({changed.masters[-1]}), then `waystation encryption retire`")
    return 0


def _retire(arguments: argparse.Namespace) -> int:
    from waystation.broker.encrypting import retire

    _tell_keys(arguments, retire(arguments.data, _source(arguments)))
    return 0


def _tell_keys(arguments: argparse.Namespace, content: KeyFile) -> None:
    if arguments.json:
        print_json({"active": f"{content.active:08x}", "master_keys": list(content.masters)})
    else:
        print(f"folder key {content.active:08x} is used for what is written from now on, by a running broker too")
        print(f"master keys that open the folder, the newest last: {', '.join(content.masters)}")


def _apply(arguments: argparse.Namespace) -> int:
    from waystation.broker.encrypting import apply

    done = apply(arguments.data, _source(arguments), everything=arguments.everything)
    if arguments.json:
        print_json(
            {
                "rewritten_bytes": done.rewritten_bytes,
                "logs": done.logs,
                "damaged": done.damaged,
                "files_for_manual_recovery": done.kept,
                "dropped_keys": done.dropped_keys,
            }
        )
    else:
        print(f"rewrote {done.rewritten_bytes} bytes of {done.logs} logs")
        for text in done.damaged:
            note(f"not encrypted: {text}; see `waystation log skip-corrupt`")
        _tell_kept(done.kept)
        if arguments.everything and done.kept:
            note("earlier folder keys stay in the file of keys, since these files may need them; then apply again")
    return 1 if done.damaged else 0


def _tell_kept(kept: list[str]) -> None:
    for path in kept:
        note(f"{path} is kept for manual recovery, and may not be encrypted; delete it if you do not need it")
