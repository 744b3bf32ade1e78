"""`waystation keys`: API keys: add, list, remove.

With `--data` it works on the folder of a broker that does not run; otherwise it asks a running one. A key is shown
when it is added, and never again: the broker has its hash alone.
"""

from __future__ import annotations

import argparse
from datetime import UTC, datetime
from typing import Any

from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import all_of, open_client
from waystation.cli.terminal.output import note, print_json, print_table
from waystation.cli.terminal.units import duration
from waystation.errors import Full, NotFound
from waystation.security.api_keys import DEFAULT_LIFE_MS, MOST_OF_ONE, ROLES

ONCE = "keep it: it is not shown again"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation keys add worker --expires 30d --note 'nightly export'",
        "waystation keys add admin --role read-only",
        "waystation keys remove wsk_0123456789",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = verbs.add_parser("add", help="create a key by which a program logs in as this user, and print it")
    add.add_argument("user")
    add.add_argument(
        "--role",
        choices=ROLES,
        default="full",
        help="read-only: describe everything and read topics, change nothing (default: full)",
    )
    add.add_argument("--expires", metavar="TIME", type=duration, default=DEFAULT_LIFE_MS / 1000, help="default: 90d")
    add.add_argument("--note", default="", help="what it is for")
    listing = verbs.add_parser("list", help="show all keys, without their secrets")
    remove = verbs.add_parser("remove", help="revoke a key; connections that logged in by it are closed")
    remove.add_argument("key", help="its beginning, as the list shows it: wsk_0123456789")
    for verb, run in ((add, _add), (listing, _list), (remove, _remove)):
        verb.add_argument("--data", metavar="DIR", help="the data folder of a broker that does not run")
        add_server(verb)
        verb.set_defaults(run=run)


def _add(arguments: argparse.Namespace) -> int:
    user, role, life_ms = arguments.user, arguments.role, int(arguments.expires * 1000)
    if arguments.data is None:
        with open_client(arguments) as mq:
            made = mq.act("add-key", user=user, role=role, expires_in_ms=life_ms, note=arguments.note) or {}
    else:
        made = _add_offline(arguments.data, user, role, life_ms, arguments.note)
    if arguments.json:
        print_json(made)
    else:
        print(made["secret"])
        note(f"a key of user {user}, valid until {_when(made['expires_ms'])}; {ONCE}")
    return 0


def _add_offline(data: str, user: str, role: str, life_ms: int, text: str) -> dict[str, Any]:
    from time import time

    from waystation.cli.security.users import offline_catalog
    from waystation.security.api_keys import edit_offline, make_key, stored_keys
    from waystation.security.users import stored_users

    with offline_catalog(data) as (catalog, token):
        if user not in stored_users(catalog):
            raise NotFound(f"there is no user {user!r}; `waystation users list` shows who there is")
        if len(stored_keys(catalog, user)) >= MOST_OF_ONE:
            raise Full(f"user {user!r} has {MOST_OF_ONE} keys, which is the most: remove one first")
        made = make_key(user, role, life_ms, text, now_ms=int(time() * 1000), token=token)
        edit_offline(catalog, made.id, made.key)
    return _shown(made.id, made.key) | {"secret": made.text}


def _list(arguments: argparse.Namespace) -> int:
    found = _listed(arguments)
    if arguments.json:
        print_json(found)
    elif found:
        rows = [
            (
                one["key"],
                one["user"],
                one["role"],
                f"{_when(one['expires_ms'])}{' (expired)' if one['expired'] else ''}",
                one["note"],
            )
            for one in found
        ]
        print_table(("key", "user", "role", "expires", "note"), rows)
    else:
        print("no keys; `waystation keys add USER` adds one")
    return 0


def _listed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.data is None:
        with open_client(arguments) as mq:
            return all_of(mq, "keys")
    from waystation.cli.security.users import offline_catalog
    from waystation.security.api_keys import stored_keys

    with offline_catalog(arguments.data) as (catalog, _):
        return [_shown(key_id, key) for key_id, key in stored_keys(catalog).items()]


def _remove(arguments: argparse.Namespace) -> int:
    from waystation.security.api_keys import id_in, shown

    key_id = id_in(arguments.key)
    if arguments.data is None:
        with open_client(arguments) as mq:
            mq.act("remove-key", key=shown(key_id))
    else:
        from waystation.cli.security.users import offline_catalog
        from waystation.security.api_keys import edit_offline, stored_keys

        with offline_catalog(arguments.data) as (catalog, _):
            if key_id not in stored_keys(catalog):
                raise NotFound(f"there is no key {shown(key_id)}; `waystation keys list` shows which there are")
            edit_offline(catalog, key_id, None)
    if arguments.json:
        print_json({"key": shown(key_id)})
    else:
        print(f"removed key {shown(key_id)}")
    return 0


def _shown(key_id: str, key: Any) -> dict[str, Any]:
    from time import time

    from waystation.security.api_keys import shown

    return {
        "key": shown(key_id),
        "user": key.owner,
        "role": key.role,
        "note": key.note,
        "created_ms": key.created_ms,
        "expires_ms": key.expires_ms,
        "expired": key.expires_ms <= time() * 1000,
    }


def _when(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
