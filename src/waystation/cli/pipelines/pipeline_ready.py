"""`waystation pipeline ready NAME …`: makes a ready-made pipeline's file and runs it.

What there is, and what each takes, is `waystation.spark.ready.READY`. Spark is imported when a pipeline is run.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from waystation.cli.terminal.arguments import add_server
from waystation.cli.terminal.output import note, print_json
from waystation.cli.terminal.units import duration

if TYPE_CHECKING:
    from waystation.spark.ready.parts import Ready


def configure(parser: argparse.ArgumentParser) -> None:
    """Hangs the ready-made pipelines into the verb `ready`."""
    from waystation.spark.ready import READY

    names = parser.add_subparsers(dest="ready", metavar="NAME", required=True)
    for ready in READY.values():
        one = names.add_parser(ready.name, help=ready.help[0].lower() + ready.help[1:].rstrip("."))
        for argument in ready.arguments:
            shown = f"{argument.help} (default: {argument.default})" if argument.default else argument.help
            one.add_argument(
                f"--{argument.option}",
                dest=argument.name,
                metavar=argument.metavar,
                help=shown.replace("%", "%%"),
                **({"action": "append"} if argument.many else {}),  # type: ignore[arg-type]
            )
        one.add_argument("--name", metavar="NAME", help="what the pipeline is called (default: by what it does)")
        one.add_argument("--folder", type=Path, default=Path(), metavar="FOLDER", help="where to write its file")
        one.add_argument("--show", action="store_true", help="only show the file")
        one.add_argument("--once", action="store_true", help="process what is there now, and end")
        one.add_argument("--master", metavar="URL", help="where Spark runs: local[2], spark://HOST:PORT")
        one.add_argument(
            "--wait", type=duration, default=60.0, metavar="TIME", help="how long to wait for a broker (default: 60s)"
        )
        add_server(one)
        one.set_defaults(run=run, chosen=ready, server=None)


def run(arguments: argparse.Namespace) -> int:
    from waystation.spark.ready import ready_text, write_ready

    ready: Ready = arguments.chosen
    values = {argument.name: getattr(arguments, argument.name) for argument in ready.arguments}
    if arguments.show:
        print(ready_text(ready, values, arguments.name)[1], end="")
        return 0
    from waystation.spark.sessions import check_master, need_pyspark

    if arguments.master is not None:
        check_master(arguments.master)
    file = write_ready(ready, values, arguments.folder, arguments.name, arguments.server)
    need_pyspark()
    note(f"the pipeline is {file}; `waystation pipeline run {file}` runs it again")
    return _run_file(arguments, ready, values, file)


def _run_file(arguments: argparse.Namespace, ready: Ready, values: dict[str, object], file: Path) -> int:
    from waystation.cli.contexts import choose_server
    from waystation.cli.terminal.interrupt import Interrupt
    from waystation.spark.pipelines.file.reading import read_pipeline
    from waystation.spark.pipelines.running import Ears, run_pipeline
    from waystation.spark.ready.topics import ensure_topics

    servers = choose_server(arguments).server
    read = read_pipeline(file, servers=servers, master=arguments.master)
    ensure_topics(servers, ready, values, arguments.wait)
    interrupt = Interrupt()
    ears = Ears(note=note, should_stop=lambda: interrupt.came)
    phase = run_pipeline(read, once=arguments.once, ears=ears, wait_s=arguments.wait)
    note(f"pipeline {read.pipeline.name} has {phase}")
    if arguments.json:
        print_json({"pipeline": read.pipeline.name, "phase": phase, "file": str(file)})
    return 0
