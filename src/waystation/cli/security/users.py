"""`waystation users`: who may log in: add, list, remove, passwd.

With `--data` it works on the folder of a broker that does not run; otherwise it asks a running one. A password is
turned into verifiers here: it does not travel, and it is stored nowhere.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.native import all_of, open_client
from waystation.cli.terminal.output import note, print_json, print_table
from waystation.errors import AlreadyExists, Invalid, NotFound

if TYPE_CHECKING:
    from waystation.catalog import Catalog

CLOSED = "it is the first user: from now on every client has to log in"
OPENED = "it was the last user: clients need not log in any more, unless auth.required is true"


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation users add admin --superuser",
        "waystation users add worker --password-stdin < password.txt",
        "waystation users add admin --superuser --data ./waystation-data    # the broker does not run",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = verbs.add_parser("add", help="add a user; from the first one on, every client has to log in")
    add.add_argument("name")
    add.add_argument("--superuser", action="store_true", help="a superuser: may do everything, without rules")
    add.add_argument(
        "--namespace",
        metavar="NAME",
        default="/",
        help="the home namespace of its clients (default: /)",
    )
    listing = verbs.add_parser("list", help="show all users")
    remove = verbs.add_parser("remove", help="remove a user; its connections are closed")
    remove.add_argument("name")
    passwd = verbs.add_parser("passwd", help="change a user's password")
    passwd.add_argument("name")
    for verb in (add, passwd):
        verb.add_argument("--password", type=_no_password, help=argparse.SUPPRESS)
        verb.add_argument(
            "--password-stdin", action="store_true", help="the password is the first line of standard input"
        )
    for verb, run in ((add, _add), (listing, _list), (remove, _remove), (passwd, _passwd)):
        verb.add_argument("--data", metavar="DIR", help="the data folder of a broker that does not run")
        add_server(verb)
        verb.set_defaults(run=run)


def _add(arguments: argparse.Namespace) -> int:
    name = arguments.name
    verifiers = _new_verifiers(arguments)
    if arguments.data is None:
        with open_client(arguments) as mq:
            given = {"verifiers": list(verifiers), "superuser": arguments.superuser, "namespace": arguments.namespace}
            made = mq.act("add-user", user=name, **given) or {}
        closed = bool(made.get("closed"))
    else:
        from time import time

        from waystation.security.users import User, edit_offline, stored_users

        with offline_catalog(arguments.data) as (catalog, token):
            there = stored_users(catalog)
            if name in there:
                raise AlreadyExists(f"user {name!r} exists already; `waystation users passwd` changes the password")
            user = User(verifiers, arguments.superuser, namespace=arguments.namespace, created_ms=int(time() * 1000))
            edit_offline(catalog, name, user, token)
        closed = not there
    if arguments.json:
        print_json({"user": name, "closed": closed})
    else:
        print(f"added user {name}")
        if closed:
            note(CLOSED)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    found = _listed(arguments)
    if arguments.json:
        print_json(found)
    elif found:
        columns = ("user", "superuser", "mechanisms", "groups", "namespace")
        rows = [
            (
                one["user"],
                "yes" if one["superuser"] else "",
                ", ".join(one["mechanisms"]),
                ", ".join(one["groups"]),
                one["namespace"],
            )
            for one in found
        ]
        print_table(columns, rows)
    else:
        print("no users: clients need not log in; `waystation users add NAME` adds one")
    return 0


def _listed(arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.data is None:
        with open_client(arguments) as mq:
            return all_of(mq, "users")
    from waystation.security.users import stored_users

    with offline_catalog(arguments.data) as (catalog, _):
        return [
            {
                "user": name,
                "superuser": user.superuser,
                "mechanisms": [verifier.partition("$")[0] for verifier in user.verifiers],
                "tags": list(user.tags),
                "groups": list(user.groups),
                "namespace": user.namespace,
                "created_ms": user.created_ms,
            }
            for name, user in stored_users(catalog).items()
        ]


def _remove(arguments: argparse.Namespace) -> int:
    name = arguments.name
    if arguments.data is None:
        with open_client(arguments) as mq:
            opened = bool((mq.act("remove-user", user=name) or {}).get("opened"))
    else:
        from waystation.security import api_keys, delegation_tokens
        from waystation.security.users import edit_offline, stored_users

        with offline_catalog(arguments.data) as (catalog, token):
            _known(stored_users(catalog), name)
            along = [*api_keys.stored_rows(catalog, name), *delegation_tokens.stored_rows(catalog, name)]
            edit_offline(catalog, name, None, token, along=along)
            opened = not stored_users(catalog)
    if arguments.json:
        print_json({"user": name, "opened": opened})
    else:
        print(f"removed user {name}")
        if opened:
            note(OPENED)
    return 0


def _passwd(arguments: argparse.Namespace) -> int:
    name = arguments.name
    verifiers = _new_verifiers(arguments)
    if arguments.data is None:
        with open_client(arguments) as mq:
            mq.act("set-password", user=name, verifiers=list(verifiers))
    else:
        import msgspec

        from waystation.security.users import edit_offline, stored_users

        with offline_catalog(arguments.data) as (catalog, token):
            user = _known(stored_users(catalog), name)
            edit_offline(catalog, name, msgspec.structs.replace(user, verifiers=verifiers), token)
    if arguments.json:
        print_json({"user": name})
    else:
        print(f"changed the password of user {name}")
    return 0


def _known(users: dict[str, Any], name: str) -> Any:
    if name not in users:
        raise NotFound(f"there is no user {name!r}; `waystation users list` shows who there is")
    return users[name]


def _new_verifiers(arguments: argparse.Namespace) -> tuple[str, ...]:
    import secrets

    from waystation.security.credentials import verifiers_of

    return verifiers_of(_new_password(arguments), secrets.token_bytes)


def _no_password(text: str) -> str:
    """Told apart from an abbreviation of --password-stdin, which takes no value."""
    raise argparse.ArgumentTypeError(
        "everybody on this machine can see the options of a command; leave it out to be asked for the password, or pass"
        " it with --password-stdin"
    )


def _new_password(arguments: argparse.Namespace) -> str:
    if arguments.password_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise Invalid("there is no terminal to ask for the password at: pass it with --password-stdin")
    from getpass import getpass

    password = getpass(f"password of {arguments.name}: ")
    if getpass("once more: ") != password:
        raise Invalid("the two passwords differ; nothing was changed")
    return password


@contextmanager
def offline_catalog(data: str) -> Iterator[tuple[Catalog, Any]]:
    """The catalog of a folder that no broker uses, and what gives random bytes."""
    from waystation.broker.open import opened_folder
    from waystation.catalog.sqlite import SqliteCatalog
    from waystation.world import real_world

    world = real_world()
    with opened_folder(world, data) as (world, root):
        catalog = SqliteCatalog(root, world.random, world.keys)
        try:
            yield catalog, world.random.token
        finally:
            catalog.close()
