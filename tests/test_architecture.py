"""Rules of ARCHITECTURE.md that a machine can keep: who touches the outside world, cost of an import, what is public.

The direction of imports is checked beside this by import-linter (`make contracts`, contracts in pyproject.toml).
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType

import pytest

import waystation

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "src" / "waystation"

CORE = (
    *("log", "wire", "topics", "queues", "groups", "share", "transactions", "routing", "cluster"),
    *("subscriptions", "vhosts"),
)
"""The packages that see the world only through what is handed to them."""

STORES = ("cluster/etcd/", "cluster/memory_store.py")
"""They are the world: a cluster's store is handed to the rest of the core, as a disk is."""

OUTSIDE = frozenset(
    {
        *("fcntl", "glob", "mmap", "os", "pathlib", "shutil", "sqlite3", "tempfile"),
        *("random", "secrets", "time"),
        *("concurrent", "multiprocessing", "select", "signal", "socket", "subprocess", "threading"),
    }
)
"""Modules that are the outside world. Not importing them is simpler to check than not calling them; no alias helps."""

OUTSIDE_NAMES = {
    "uuid": frozenset({"uuid1", "uuid4", "uuid6", "uuid7", "getnode"}),
    "asyncio": frozenset({"to_thread", "run"}),
    "io": frozenset({"open", "open_code", "FileIO"}),
}
"""Modules that are fine but for these names."""

OUTSIDE_BUILTINS = frozenset({"open", "input", "print", "__import__"})
OUTSIDE_METHODS = frozenset({"run_in_executor", "utcnow", "today"})


def python_files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.py"))


def core_files() -> list[Path]:
    files = (path for name in CORE for path in python_files(PACKAGE / name))
    return [path for path in files if not path.relative_to(PACKAGE).as_posix().startswith(STORES)]


def reaches_outside(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything in `source` that goes around `world/`."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                for name in names:
                    if name.name.split(".")[0] in OUTSIDE:
                        yield node.lineno, f"imports {name.name}"
            case ast.ImportFrom(module=str(module), names=names, level=0):
                if module.split(".")[0] in OUTSIDE:
                    yield node.lineno, f"imports {module}"
                for name in names:
                    if name.name in OUTSIDE_NAMES.get(module, ()):
                        yield node.lineno, f"imports {module}.{name.name}"
            case ast.Attribute(value=ast.Name(id=module), attr=attribute) if attribute in OUTSIDE_NAMES.get(module, ()):
                yield node.lineno, f"uses {module}.{attribute}"
            case ast.Call(func=ast.Name(id=name)) if name in OUTSIDE_BUILTINS:
                yield node.lineno, f"calls {name}()"
            case ast.Call(func=ast.Attribute(attr=name)) if name in OUTSIDE_METHODS:
                yield node.lineno, f"calls .{name}()"
            # datetime.now(), datetime.datetime.now(); a clock of ours calls it now_ms.
            case ast.Attribute(value=ast.Name(id="datetime") | ast.Attribute(attr="datetime"), attr="now"):
                yield node.lineno, "uses datetime.now"


PUBLISHING = {
    "queues": frozenset(
        {"put", "put_durable", "put_each", "put_each_several", "put_same", "put_several", "put_when_room"}
    ),
    "messages": frozenset({"publish", "ensure"}),
    "publishing": frozenset({"append"}),
    "routing": frozenset({"publish", "put"}),
    "transacting": frozenset({"begin"}),
}
"""What publishes, by the part of the broker that does it: for `broker/access` alone."""


def publishes_past_access(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of every call in a protocol that goes around the rules of publishing."""
    tree = ast.parse(source)
    imports = (node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom))
    modules = {name.asname or name.name for node in imports for name in node.names}
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=part)) if part in modules:
                continue  # a module of the protocol that has the same name
            case ast.Attribute(value=ast.Attribute(attr=part) | ast.Name(id=part), attr=verb):
                if verb in PUBLISHING.get(part.lstrip("_"), ()):
                    yield node.lineno, f"{part}.{verb}"
            case ast.ImportFrom(names=names):
                for name in names:
                    if name.name in ("append_batches", "Distributor", "Transacting"):
                        yield node.lineno, f"imports {name.name}"


@pytest.mark.parametrize(
    "source",
    [
        "session.broker.queues.put(queue, messages)",
        "queues.put_durable(queue, messages)",
        "await self._broker.messages.publish(topic, messages)",
        "send = broker.publishing.append",
        "await dispatcher.broker.routing.publish(exchange, key, messages)",
        "tx = await broker.transacting.begin(name)",
        "from waystation.topics.batch_publishing import append_batches",
    ],
)
def test_the_check_of_publishing_sees_a_breach(source: str) -> None:
    assert list(publishes_past_access(source))


def test_protocols_publish_through_access_alone() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for path in python_files(PACKAGE / "protocols")
        for line, what in publishes_past_access(path.read_text())
    ]
    assert found == [], "resource alarms, limits and permissions are asked in broker/access"


def takes_the_log(source: str) -> Iterator[tuple[int, str]]:
    """Line and reason of everything that goes around `Partition` to its log."""
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.ImportFrom(module="waystation.topics.partitions.partition", names=names):
                if any(name.name == "log_of" for name in names):
                    yield node.lineno, "imports log_of"
            case ast.Attribute(value=value, attr="_log") if not (isinstance(value, ast.Name) and value.id == "self"):
                yield node.lineno, f"uses {ast.unparse(node)}"


@pytest.mark.parametrize(
    "source",
    ["from waystation.topics.partitions.partition import Partition, log_of", "partition._log.append(batch, header)"],
)
def test_the_check_of_partitions_sees_a_breach(source: str) -> None:
    assert list(takes_the_log(source))


TEND_LOGS = ("log/", "topics/", "cluster/replication/")
"""Who opens, tends and closes logs, and who copies them from one node to another as they are."""


def test_a_partition_is_the_only_handle_of_its_log() -> None:
    found = [
        f"{path.relative_to(PACKAGE)}:{line}: {what}"
        for path in python_files(PACKAGE)
        if not path.relative_to(PACKAGE).as_posix().startswith(TEND_LOGS)
        for line, what in takes_the_log(path.read_text())
    ]
    assert found == []


@pytest.mark.parametrize(
    "source",
    [
        "import time",
        "import os.path",
        "from time import monotonic as clock",
        "import random as dice",
        "from concurrent.futures import ThreadPoolExecutor",
        "def f():\n    import os",
        "with open('x') as file: pass",
        "import uuid\nuuid.uuid4()",
        "from uuid import UUID, uuid4",
        "from datetime import datetime\ndatetime.now()",
        "import datetime\ndatetime.datetime.now(tz=None)",
        "asyncio.to_thread(work)",
        "loop.run_in_executor(None, work)",
        "from pathlib import Path",
    ],
)
def test_the_check_of_rule_6_sees_a_breach(source: str) -> None:
    assert list(reaches_outside(source))


@pytest.mark.parametrize(
    "source",
    [
        "from uuid import UUID",
        "import uuid\nx: uuid.UUID",
        "self.disk.open('x')",
        "world.clock.monotonic()",
        "asyncio.get_running_loop().call_later(1, work)",
        "asyncio.get_running_loop().time()",
        "from waystation.world import random",
        "from datetime import timedelta",
        "import errno",
    ],
)
def test_the_check_of_rule_6_lets_the_handed_in_world_pass(source: str) -> None:
    assert not list(reaches_outside(source))


def test_the_core_reaches_the_world_only_through_what_it_is_handed() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{line} {reason}"
        for path in core_files()
        for line, reason in reaches_outside(path.read_text())
    ]
    assert not found, "time, randomness, disk and threads come from world/"


def test_every_folder_of_the_package_is_a_package() -> None:
    """import-linter does not see a folder without `__init__.py`, so its contracts would not hold there."""
    folders = {path.parent for path in python_files(PACKAGE)}
    assert not [str(folder.relative_to(ROOT)) for folder in folders if not (folder / "__init__.py").exists()]


def test_folders_are_at_most_three_deep() -> None:
    assert not [str(path) for path in python_files(PACKAGE) if len(path.relative_to(PACKAGE).parts) > 4]


def test_every_module_says_what_it_is() -> None:
    undocumented = [
        str(path.relative_to(ROOT))
        for path in python_files(PACKAGE)
        if path.name != "__init__.py" and ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not undocumented


HEAVY = (
    "aiohttp",
    "confluent_kafka",
    "cramjam",
    "http",
    "httptools",
    "hypothesis",
    "kio",
    "pamqp",
    "pytest",
    "requests",
    "ssl",
    "urllib.request",
    "uvloop",
    "websockets",
)
"""What neither `import waystation` nor `waystation --help` may pay for. kio also imports hypothesis if it can."""


def modules_loaded_by(statement: str) -> set[str]:
    program = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "src")
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


@pytest.mark.parametrize("module", ["waystation", "waystation.cli.main"])
def test_an_import_loads_nothing_heavy(module: str) -> None:
    loaded = modules_loaded_by(f"import {module}")
    assert not {name for name in loaded for heavy in HEAVY if name == heavy or name.startswith(heavy + ".")}


STARTED = """
import asyncio, sys
sys.modules["hypothesis"] = None  # kio imports it where it finds it; users do not have it
before = set(sys.modules)
from waystation.cli.main import build_parser
from waystation.cli.server.serve import make_plan
from waystation.station import Station
words = ["serve", "--data", sys.argv[1], "--kafka", "127.0.0.1:0", "--amqp", "127.0.0.1:0", "--http", "127.0.0.1:0"]
plan = make_plan(build_parser(words).parse_args(words))
async def live():
    station = Station(plan.data, plan.settings, plan.listeners)
    await station.start()
    print(*sorted(set(sys.modules) - before))
    print(*sorted({
        f"{name}.{value.__name__}"
        for name, module in list(sys.modules.items()) if name.startswith("waystation.")
        for value in vars(module).values()
        if isinstance(value, type) and "__dataclass_fields__" in vars(value) and value.__module__ == name
    }))
    await station.stop()
asyncio.run(live())
"""


@pytest.fixture(scope="module")
def started(tmp_path_factory: pytest.TempPathFactory) -> tuple[set[str], set[str]]:
    """The modules that a broker alone, without users, has loaded when it listens, and the dataclasses that are its
    own. Twice on one folder: a first start makes what a second one reads."""
    data = str(tmp_path_factory.mktemp("alone") / "data")
    loaded: set[str] = set()
    dataclasses: set[str] = set()
    for _ in range(2):
        command = [sys.executable, "-c", STARTED, data]
        done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT / "src")
        assert done.returncode == 0, done.stderr
        modules, classes = done.stdout.splitlines()
        loaded |= set(modules.split())
        dataclasses |= set(classes.split())
    return loaded, dataclasses


NOT_AT_START = (
    # Of the standard library, and what each of them brings along.
    *("bz2", "email", "http", "importlib.metadata", "ipaddress", "lzma", "pathlib", "shutil", "urllib", "zipfile"),
    # For clients of one kind, which load it when they come.
    *("cramjam", "httptools", "pamqp", "websockets", "prometheus_client"),
    *(
        "waystation.protocols.amqp.connection",
        "waystation.protocols.http.connection",
        "waystation.protocols.management",
    ),
    # For nodes of a cluster.
    *("waystation.broker.homes", "waystation.cluster.etcd", "waystation.cluster.leadership"),
    *("waystation.cluster.decisions.starting", "waystation.cluster.member", "waystation.cluster.membership"),
    "waystation.cluster.operations",
    *("waystation.cluster.links.peers", "waystation.cluster.replication", "waystation.cluster.store_view"),
    # For users, certificates and tokens.
    *("cryptography", "jwt", "waystation.security.node_links", "waystation.security.tls", "waystation.security.tokens"),
    # For programs beside the broker.
    *("waystation.client.core", "waystation.client.links.link", "waystation.demo", "waystation.embedded"),
    *("waystation.spark", "waystation.observe.otel"),
)
"""What a broker alone, which nobody has connected to, does without: each start would pay for it."""


def test_a_broker_alone_starts_without_what_few_need(started: tuple[set[str], set[str]]) -> None:
    loaded, _ = started
    assert "waystation.broker.broker" in loaded
    assert not {name for name in loaded for rare in NOT_AT_START if name == rare or name.startswith(rare + ".")}


def test_the_brokers_own_data_is_not_compiled_at_each_start(started: tuple[set[str], set[str]]) -> None:
    """A dataclass takes half a millisecond to define, a msgspec.Struct a thirtieth of it. These two need what Struct
    does not have: commands that never load msgspec, a field that is not compared."""
    _, dataclasses = started
    assert dataclasses == {
        "waystation.client.links.address.Address",
        "waystation.routing.exchanges.exchange.ExchangeSettings",
    }


def test_codecs_are_loaded_when_first_needed() -> None:
    """A broker whose producers do not compress never loads cramjam: nothing imports it at the top of a module."""
    eager = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in python_files(PACKAGE)
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.Import | ast.ImportFrom) and "cramjam" in ast.unparse(node)
    ]
    assert not eager


def test_import_waystation_shows_the_public_names_and_no_others() -> None:
    exported = set(waystation.__all__)
    assert len(waystation.__all__) == len(exported), "a name is exported twice"
    assert not [name for name in exported if not hasattr(waystation, name)], "exported and missing"
    shown = {
        name
        for name, value in vars(waystation).items()
        if not name.startswith("_") and not isinstance(value, ModuleType) and name != "annotations"
    }
    assert shown <= exported, "public by accident: give it an underscore or export it"


REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("py" + "pi", "org"),
        ("python" + "hosted", "org"),
        ("registry", "npm" + "js", "org"),
        ("registry", "yarn" + "pkg", "com"),
        ("repo1", "maven", "org"),
        ("repo", "maven", "apache", "org"),
        ("crates", "io"),
        ("static", "crates", "io"),
        ("docker", "io"),
        ("gh" + "cr", "io"),
        ("quay", "io"),
        ("conda", "anaconda", "org"),
        ("proxy", "golang", "org"),
        ("ruby" + "gems", "org"),
    )
)
"""Put together from pieces, so that this file does not name them either."""

NOT_OURS = re.compile(r"^\.|^__pycache__$|\.egg-info$|^build$|^dist$|^data$")
"""Folders that tools make."""


@cache
def repository_files() -> tuple[Path, ...]:
    """Every file that is, or could be, committed."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )
    if listed.returncode == 0 and listed.stdout:
        paths = [ROOT / name for name in listed.stdout.split("\0") if name]
    else:  # a copy of the tree without its history
        paths = [
            path
            for path in ROOT.rglob("*")
            if not any(NOT_OURS.search(part) for part in path.relative_to(ROOT).parts[:-1])
        ]
    return tuple(path for path in paths if path.is_file())


def test_no_file_names_a_package_registry() -> None:
    pattern = re.compile("|".join(re.escape(host) for host in REGISTRY_HOSTS))
    found = [
        f"{path.relative_to(ROOT)}: {match[0]}"
        for path in repository_files()
        if (match := pattern.search(path.read_text(errors="replace")))
    ]
    assert not found, "where packages come from is set where they are installed, not here"


LOCKS = sorted((ROOT / "requirements").glob("*.txt"))


def locked(name: str) -> dict[str, str]:
    text = (ROOT / "requirements" / f"{name}.txt").read_text()
    return dict(re.findall(r"^([a-z0-9-]+)==([^ ;\\]+)", text, re.MULTILINE))


@pytest.mark.parametrize("path", LOCKS, ids=lambda path: path.name)
def test_a_lock_pins_and_hashes_everything_and_names_no_source(path: Path) -> None:
    lines = [line for line in path.read_text().splitlines() if line and not line.lstrip().startswith("#")]
    assert lines
    assert all(re.match(r"[a-z0-9-]+==\S+ .*\\$|    --hash=sha256:[0-9a-f]{64}( \\)?$", line) for line in lines)


def test_locks_agree_with_each_other_and_with_pyproject() -> None:
    runtime, bench, dev = locked("runtime"), locked("bench"), locked("dev")
    assert runtime.items() <= bench.items() <= dev.items()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    for lock, wanted in ((runtime, project["dependencies"]), (bench, extras["bench"]), (dev, extras["dev"])):
        names = {re.split(r"[<>=!~;\[ ]", requirement)[0] for requirement in wanted}
        assert names <= lock.keys(), "pyproject.toml asks for more than is locked: make lock"
