"""`waystation pipeline`: run, check, test, list, status, stop, reset, delete, graph.

Spark is imported by `run`, `check` and `test` alone; the others read the file, or ask the broker.
"""

from __future__ import annotations

import argparse
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.pipelines.pipeline_ready import configure as configure_ready
from waystation.cli.pipelines.pipeline_test import configure as configure_test
from waystation.cli.terminal.arguments import add_server, examples
from waystation.cli.terminal.output import confirmed, note, print_json, print_table, spell_count
from waystation.cli.terminal.units import duration
from waystation.errors import Conflict, NotFound, RequestTimeout, Unavailable, WaystationError

if TYPE_CHECKING:
    from waystation.observe.pipeline_state import PipelineState
    from waystation.spark.links.servers import Servers
    from waystation.spark.pipelines.file.reading import PipelineFile

STOP_S = 60.0
LOOK_S = 0.2


def configure(parser: argparse.ArgumentParser) -> None:
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.epilog = examples(
        "waystation pipeline check orders.toml",
        "waystation pipeline run orders.toml --master local[2]",
        "waystation pipeline status orders",
    )
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True)
    run = verbs.add_parser("run", help="run a pipeline until it is done or stopped")
    run.add_argument("file", type=Path, metavar="FILE")
    run.add_argument("--once", action="store_true", help="process what is there now, and end")
    run.add_argument("--master", metavar="URL", help="where Spark runs: local[2], spark://HOST:PORT, sc://HOST:PORT")
    run.add_argument(
        "--wait",
        type=duration,
        default=60.0,
        metavar="TIME",
        help="how long to wait for a broker that does not answer (default: 60s)",
    )
    check = verbs.add_parser("check", help="find mistakes without running: keys, columns, SQL, topics")
    check.add_argument("file", type=Path, nargs="+", metavar="FILE")
    check.add_argument("--no-spark", action="store_true", help="only what can be found without starting Spark")
    configure_test(verbs.add_parser("test", help="run a pipeline's unit tests: rows in, rows expected; no broker"))
    listing = verbs.add_parser("list", help="show the pipelines that run or ran on this broker")
    status = verbs.add_parser("status", help="show how pipelines are doing")
    status.add_argument("name", nargs="*", metavar="NAME|FILE", help="default: all that run")
    status.add_argument("--follow", action="store_true", help="show it again every second, until Ctrl-C")
    stop = verbs.add_parser("stop", help="stop a pipeline that runs, here or elsewhere")
    stop.add_argument("name", metavar="NAME|FILE")
    stop.add_argument(
        "--timeout",
        type=duration,
        default=STOP_S,
        metavar="TIME",
        help="how long to wait until it has stopped (default: 60s)",
    )
    start = verbs.add_parser("start", help="have the broker run one of its own pipelines (serve --pipelines)")
    start.add_argument("name", metavar="NAME")
    reset = verbs.add_parser("reset", help="delete a pipeline's checkpoint: it starts from the beginning")
    reset.add_argument("file", type=Path, metavar="FILE")
    reset.add_argument("--yes", action="store_true", help="do not ask")
    delete = verbs.add_parser("delete", help="remove stopped pipelines from the list; checkpoints stay")
    delete.add_argument("name", nargs="+", metavar="NAME")
    delete.add_argument("--yes", action="store_true", help="do not ask")
    graph = verbs.add_parser("graph", help="print a pipeline as a graph")
    graph.add_argument("file", type=Path, metavar="FILE")
    graph.add_argument("--format", choices=("text", "dot"), default="text", help="dot is for Graphviz (default: text)")
    made = ((run, _run), (check, _check), (listing, _list), (status, _status), (stop, _stop), (reset, _reset))
    for verb, work in (*made, (delete, _delete), (start, _start), (graph, _graph)):
        add_server(verb)
        # Whether it was given matters: it wins over what a file says, the default does not.
        verb.set_defaults(run=work, server=None)
    configure_ready(verbs.add_parser("ready", help="run a ready-made one: archive, replay, traffic, …"))


def _server(arguments: argparse.Namespace) -> str:
    from waystation.cli.contexts import choose_server

    return choose_server(arguments).server


def _broker(arguments: argparse.Namespace) -> str | Servers:
    """The broker that a command asks: that of a file which it was given, with the login in it, else `_server`."""
    found: Servers | None = getattr(arguments, "of_file", None)
    return _server(arguments) if found is None else found


def _said_server(arguments: argparse.Namespace) -> str | None:
    """The broker that the command line names, which wins over what a file says; else the file wins over `_server`."""
    return _server(arguments) if arguments.server is not None or arguments.context is not None else None


def _read(arguments: argparse.Namespace, file: Path) -> PipelineFile:
    from waystation.spark.pipelines.file.reading import read_pipeline

    return read_pipeline(
        file,
        servers=_said_server(arguments),
        otherwise=_server(arguments),
        master=getattr(arguments, "master", None),
    )


# -- run and check -----------------------------------------------------------------------------------------------------


def _run(arguments: argparse.Namespace) -> int:
    from waystation.cli.terminal.interrupt import Interrupt
    from waystation.spark.sessions import check_master, need_pyspark

    if arguments.master is not None:
        check_master(arguments.master)
    read = _read(arguments, arguments.file)
    need_pyspark()
    from waystation.spark.pipelines.running import Ears, run_pipeline

    interrupt = Interrupt()
    ears = Ears(note=note, should_stop=lambda: interrupt.came)
    phase = run_pipeline(read, once=arguments.once, ears=ears, wait_s=arguments.wait)
    note(f"pipeline {read.pipeline.name} has {phase}")
    if arguments.json:
        print_json({"pipeline": read.pipeline.name, "phase": phase})
    return 0


def _check(arguments: argparse.Namespace) -> int:
    from waystation.spark.pipelines.file.problems import FileProblem, PipelineInvalid
    from waystation.spark.pipelines.file.reading import read_with_problems

    said, otherwise = _said_server(arguments), _server(arguments)
    found: list[tuple[Path, FileProblem]] = []
    for file in arguments.file:
        try:
            if arguments.no_spark:
                problems = read_with_problems(file, servers=said, otherwise=otherwise).problems
            else:
                from waystation.spark.pipelines.checking import check_pipeline

                problems = check_pipeline(file, servers=said, otherwise=otherwise)
        except PipelineInvalid as error:
            problems = error.problems
        found += [(file, problem) for problem in sorted(set(problems))]
    if arguments.json:
        print_json([{"file": str(file), "line": p.line, "text": p.text} for file, p in found])
    else:
        for file, problem in found:
            print(problem.spelled(file))
        if not found:
            print(f"{spell_count(len(arguments.file), 'pipeline')} checked, nothing to complain about")
    return 1 if found else 0


# -- list and status ---------------------------------------------------------------------------------------------------


def _list(arguments: argparse.Namespace) -> int:
    from waystation.cli.pipelines.pipeline_view import as_json, kind_of, spell_age, spell_rate
    from waystation.spark.pipelines.status.registry import connect_any, known_pipelines

    with connect_any(_broker(arguments)) as mq:
        known = list(known_pipelines(mq).values())
    if arguments.json:
        print_json([as_json(state) for state in known])
    elif known:
        rows = [
            (s.pipeline, kind_of(s), s.seen(), s.rows, spell_rate(s.rows_per_s), s.lag, s.host, spell_age(s))
            for s in known
        ]
        print_table(("pipeline", "kind", "state", "rows", "rows/s", "lag", "host", "last word"), rows)
    else:
        print("no pipelines have run on this broker")
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from waystation.cli.pipelines.pipeline_view import as_json, show
    from waystation.observe.pipeline_state import ENDED
    from waystation.spark.pipelines.status.registry import connect_any, find_pipeline, known_pipelines

    names = [_name_of(arguments, text) for text in arguments.name]
    while True:
        with connect_any(_broker(arguments)) as mq:
            if names:
                states = [find_pipeline(mq, name) for name in names]
            else:
                states = [s for s in known_pipelines(mq).values() if s.phase not in ENDED]
        if arguments.json:
            print_json([as_json(state) for state in states])
        else:
            print("\n\n".join(show(state) for state in states) or "no pipeline is running")
        if not arguments.follow or (states and all(state.phase in ENDED for state in states)):
            return 0
        time.sleep(1)
        if not arguments.json:
            print()


def _name_of(arguments: argparse.Namespace, text: str) -> str:
    """The name of a pipeline, which may be given by its file."""
    file = Path(text)
    if file.suffix != ".toml" and not file.is_file():
        return text
    read = _read(arguments, file)
    arguments.of_file = read.pipeline.servers
    return read.pipeline.name


# -- stop and reset ----------------------------------------------------------------------------------------------------


def _stop(arguments: argparse.Namespace) -> int:
    from waystation.observe.pipeline_state import alive
    from waystation.spark.pipelines.status.folder import CheckpointFolder

    file = Path(arguments.name)
    if file.suffix == ".toml" or file.is_file():
        # The folder's lock knows better than the broker, which may be away.
        folder = CheckpointFolder(_read(arguments, file).pipeline)
        pid = folder.running_pid() if folder.local else None
        if pid:
            os.kill(pid, signal.SIGTERM)
            _await_end(arguments, lambda: folder.running_pid() is None)
            return _stopped(arguments, _read(arguments, file).pipeline.name)
    name = _name_of(arguments, arguments.name)
    state = _running(arguments, name)
    if state is None:
        note(f"pipeline {name} is not running")
        return 1
    if state.here() and alive(state.pid) and not state.by_hand:  # that process is somebody's program
        os.kill(state.pid, signal.SIGTERM)
    else:
        _ask(arguments, state)
    _await_end(arguments, lambda: _running(arguments, name) is None)
    return _stopped(arguments, name)


def _running(arguments: argparse.Namespace, name: str) -> PipelineState | None:
    from waystation.observe.pipeline_state import ENDED
    from waystation.spark.pipelines.status.registry import connect_any, find_pipeline

    with connect_any(_broker(arguments)) as mq:
        state = find_pipeline(mq, name)
    return None if state.seen() in (*ENDED, "died") else state


def _ask(arguments: argparse.Namespace, state: PipelineState) -> None:
    from waystation.spark.pipelines.status.registry import ask_to_stop, connect_any

    with connect_any(_broker(arguments)) as mq:
        ask_to_stop(mq, state)


def _await_end(arguments: argparse.Namespace, ended: object) -> None:
    deadline = time.monotonic() + arguments.timeout
    while not ended():  # type: ignore[operator]
        if time.monotonic() >= deadline:
            raise RequestTimeout(
                f"pipeline {arguments.name!r} was asked to stop and has not within {arguments.timeout:g} s; look at its"
                " log, or wait longer with --timeout"
            )
        time.sleep(LOOK_S)


def _stopped(arguments: argparse.Namespace, name: str) -> int:
    if arguments.json:
        print_json({"pipeline": name, "phase": "stopped"})
    else:
        print(f"stopped pipeline {name}")
    return 0


def _start(arguments: argparse.Namespace) -> int:
    import waystation

    with waystation.connect(_server(arguments), name="waystation-cli") as mq:
        mq.act("start-pipeline", pipeline=arguments.name)
    if arguments.json:
        print_json({"pipeline": arguments.name, "phase": "starting"})
    else:
        print(f"started pipeline {arguments.name}; `waystation pipeline status {arguments.name}` shows how it does")
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    from waystation.spark.pipelines.status.folder import CheckpointFolder

    pipeline = _read(arguments, arguments.file).pipeline
    folder = CheckpointFolder(pipeline)
    if not folder.local:
        raise Unavailable(
            f"the checkpoint {folder} is not on this machine; delete it there to start from the beginning"
        )
    folder.check_owner()
    if not folder.remembers():
        raise NotFound(
            f"pipeline {pipeline.name!r} has no checkpoint in {folder}: it starts from the beginning as it is"
        )
    question = f"delete the checkpoint of pipeline {pipeline.name}, so that it processes everything again?"
    if not confirmed(question, yes=arguments.yes):
        return 1
    with folder:
        folder.reset()
    _forget(pipeline.servers, pipeline.name)
    if arguments.json:
        print_json({"pipeline": pipeline.name})
    else:
        print(f"reset pipeline {pipeline.name}; what it wrote before is still where it wrote it")
    return 0


def _delete(arguments: argparse.Namespace) -> int:
    from waystation.observe.pipeline_state import ENDED
    from waystation.spark.pipelines.status.registry import connect_any, find_pipeline, forget

    with connect_any(_broker(arguments)) as mq:
        for name in arguments.name:  # a misspelt name is found before anything is deleted
            state = find_pipeline(mq, name).seen()
            if state not in (*ENDED, "died", "lost"):
                raise Conflict(f"pipeline {name!r} is {state}; `waystation pipeline stop {name}` stops it")
        if not confirmed(f"delete {', '.join(arguments.name)} from the list of pipelines?", yes=arguments.yes):
            return 1
        for name in arguments.name:
            forget(mq, name)
            if not arguments.json:
                print(f"deleted pipeline {name} from the list; its checkpoint and what it wrote are still there")
    if arguments.json:
        print_json({"pipeline": name} for name in arguments.name)
    return 0


def _forget(servers: Servers, name: str) -> None:
    from waystation.spark.pipelines.status.registry import connect_any, forget

    try:
        with connect_any(servers) as mq:
            forget(mq, name)
    except WaystationError:
        pass  # the list is a courtesy; the checkpoint is what counts


# -- graph -------------------------------------------------------------------------------------------------------------


def _graph(arguments: argparse.Namespace) -> int:
    from waystation.spark.pipelines.graph import as_dot, as_text, edges

    pipeline = _read(arguments, arguments.file).pipeline
    if arguments.json:
        print_json([{"from": edge.start, "to": edge.end} for edge in edges(pipeline)])
    else:
        print(as_dot(pipeline) if arguments.format == "dot" else as_text(pipeline))
    return 0
