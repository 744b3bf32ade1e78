"""`waystation demo`: a broker and a small shop that uses all of it (`waystation.demo`)."""

from __future__ import annotations

import argparse


def configure(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--once", action="store_true", help="do a fixed amount of everything, check it, and end")
    parser.add_argument(
        "--data", metavar="DIR", help="keep the data there (default: a folder that is deleted with the demo)"
    )
    parser.add_argument("--free-ports", action="store_true", help="use free ports instead of the default ones")
    parser.add_argument("--no-browser", action="store_true", help="do not open the dashboard")
    parser.add_argument("--no-spark", action="store_true", help="without the pipeline, even if Spark is installed")
    parser.add_argument("--json", action="store_true", help="with --once: print what was done as JSON, for programs")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from waystation.demo.tour import run

    return run(arguments)
