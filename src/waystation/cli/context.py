"""`waystation context`: names for brokers; add, use, show, list, remove."""

from __future__ import annotations

import argparse

from waystation.cli.contexts import NAME, Context, choose_server, load, path, save
from waystation.cli.terminal.arguments import examples
from waystation.cli.terminal.output import print_json, print_table
from waystation.errors import AlreadyExists, Invalid


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation context add prod --server broker.example:9092",
        "waystation context use prod",
        "waystation topics list --context staging",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    add = verbs.add_parser("add", help="add a context: a name for a broker")
    add.add_argument("name")
    add.add_argument("--server", metavar="HOST:PORT", required=True, help="the broker's Kafka listener")
    add.add_argument("--replace", action="store_true", help="replace a context of this name")
    use = verbs.add_parser("use", help="make a context the current one")
    use.add_argument("name")
    listing = verbs.add_parser("list", help="show all contexts")
    remove = verbs.add_parser("remove", help="remove a context; the broker is not affected")
    remove.add_argument("name")
    show = verbs.add_parser("show", help="show a context, or which broker commands connect to now, and why")
    show.add_argument("name", nargs="?")
    for verb, run in ((add, _add), (use, _use), (listing, _list), (remove, _remove), (show, _show)):
        verb.add_argument("--json", action="store_true", help="print JSON lines, for programs")
        verb.set_defaults(run=run)


def _add(arguments: argparse.Namespace) -> int:
    from waystation.client.links.servers import parse_servers, shown

    name = arguments.name
    if not NAME.fullmatch(name):
        raise Invalid(f"{name[:80]!r} cannot be a context's name: use a-z, A-Z, 0-9, dots, dashes; at most 64")
    found = parse_servers(arguments.server)
    plain = all(one.tls is None and one.credentials is None for one in found)
    server = ",".join(map(str, found)) if plain else arguments.server.strip()
    known = load()
    if name in known.contexts and not arguments.replace:
        raise AlreadyExists(
            f"context {name!r} exists already ({shown(known.contexts[name].server)}); --replace changes it"
        )
    known.contexts[name] = Context(server)
    save(known)
    hint = "" if known.current == name else f"; `waystation context use {name}` makes it current"
    return _done(arguments, name, server, f"context {name} is {shown(server)}{hint}")


def _use(arguments: argparse.Namespace) -> int:
    from waystation.client.links.servers import shown

    known = load()
    server = known.find(arguments.name).server
    known.current = arguments.name
    save(known)
    told = f"commands talk to {shown(server)} now (context {arguments.name})"
    return _done(arguments, arguments.name, server, told)


def _remove(arguments: argparse.Namespace) -> int:
    known = load()
    server = known.find(arguments.name).server
    del known.contexts[arguments.name]
    if known.current == arguments.name:
        known.current = None
    save(known)
    return _done(arguments, arguments.name, server, f"removed context {arguments.name}")


def _done(arguments: argparse.Namespace, name: str, server: str, sentence: str) -> int:
    if arguments.json:
        from waystation.client.links.servers import shown

        print_json({"context": name, "server": shown(server)})
    else:
        print(sentence)
    return 0


def _list(arguments: argparse.Namespace) -> int:
    known = load()
    from waystation.client.links.servers import shown

    rows = [(name, shown(one.server), name == known.current) for name, one in sorted(known.contexts.items())]
    if arguments.json:
        print_json([{"context": name, "server": server, "current": current} for name, server, current in rows])
    elif rows:
        print_table(("context", "server", "current"), [(name, to, "yes" if now else "") for name, to, now in rows])
    else:
        print("no contexts yet; create one with `waystation context add NAME --server HOST:PORT`")
    return 0


def _show(arguments: argparse.Namespace) -> int:
    if arguments.name is not None:
        server = load().find(arguments.name).server
        from waystation.client.links.servers import shown

        return _done(arguments, arguments.name, server, shown(server))
    chosen = choose_server(argparse.Namespace())
    if arguments.json:
        from waystation.client.links.servers import shown

        server = shown(chosen.server)
        print_json({"server": server, "source": chosen.source, "context": chosen.context, "file": str(path())})
    else:
        print(chosen)
    return 0
