"""`python -m tests.soak_real`: the long run by itself. Exit code 0: every promise held and nothing grew."""

from __future__ import annotations

import argparse
import json
import signal
import sys
import tempfile
from pathlib import Path

from tests.soak_real.run import Options, Soak


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.soak_real", description=__doc__)
    parser.add_argument("--minutes", type=float, default=60.0, help="of load; draining and the audit come after (60)")
    parser.add_argument("--kill-every", type=float, default=60.0, help="seconds, roughly; 0: never (60)")
    parser.add_argument("--rate", type=float, default=1.0, help="1 is about 450 messages a second (1)")
    parser.add_argument("--seed", type=int, default=0, help="of the moments of the kills (0)")
    parser.add_argument("--report", type=Path, help="gets the summary: FILE as text, FILE.json for programs")
    parser.add_argument("--folder", type=Path, help="for the data and the log of the broker (a temporary one)")
    parser.add_argument("--trace", type=int, default=0, help="run the broker under tracemalloc with so many frames")
    parser.add_argument("--inside", action="store_true", help="count the broker's objects every minute")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no broker is left behind
    with tempfile.TemporaryDirectory(prefix="soak-real-") as temporary:
        options = Options(
            folder=arguments.folder or Path(temporary),
            minutes=arguments.minutes,
            kill_every_s=arguments.kill_every,
            rate=arguments.rate,
            seed=arguments.seed,
        )
        inside = arguments.inside or arguments.trace > 0
        if arguments.trace:
            options.python = ["-X", f"soak_trace={arguments.trace}"]
        if inside:
            options.window_suffix, options.sample_every_s = "deep", 60.0
        soak = Soak(options)
        report = soak.run()
        text = report.as_text()
        print(text)
        if not report.good:
            print(f"\nthe broker's last words:\n{soak.server.tail(60)}")
        if arguments.report is not None:
            arguments.report.write_text(text + "\n")
            views = {"views": soak.sampler.views} if inside else {}
            arguments.report.with_name(arguments.report.name + ".json").write_text(
                json.dumps({**report.as_json(), **views}, indent=1)
            )
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
