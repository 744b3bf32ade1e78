"""Where our broker spends its time under load of topics, of queues or by AMQP: cProfile by function, perf by symbol.

The figures of a profiled broker are worthless, so none are printed. cProfile sees the event loop's thread only; perf
sees all threads and the kernel, but shows the interpreter instead of Python functions. Called by `benchmarks.cli`.
"""

import io
import pstats
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Literal

from benchmarks import amqp_scenarios, figures, jobs
from benchmarks.amqp_peers import WaystationAmqp
from benchmarks.peers import Running, Unavailable, Waystation, start
from benchmarks.plan import Plan
from benchmarks.queue_scenarios import IN_FLIGHT, declare
from benchmarks.scenarios import create_topic

LINES = 40


def profile(tool: Literal["cprofile", "perf"], plan: Plan, work: Path, part: figures.Part) -> str:
    """The report of one produce and one consume of 100 B messages by the part's protocol, as many as the plan says."""
    output = work / "profile"
    written = output if tool == "cprofile" else None
    peer = WaystationAmqp(profile=written) if part == figures.AMQP else Waystation(profile=written)
    knock = jobs.Knock(peer.wire, "first") if part == figures.AMQP else jobs.Probe("first")
    load = {figures.AMQP: _amqp_load, figures.QUEUES: _queue_load}.get(part, _topic_load)
    broker, _, _ = start(peer, work, knock)
    try:
        if tool == "perf":
            with _Perf(broker.pid, output):
                load(peer, broker, plan)
        else:
            load(peer, broker, plan)
        broker.stop()
    finally:
        broker.kill()
    return _perf_report(output) if tool == "perf" else _cprofile_report(output)


def _topic_load(peer: Waystation, broker: Running, plan: Plan) -> None:
    create_topic(peer, broker, "profile", 1)
    jobs.run(jobs.Produce(broker.bootstrap, "profile", plan.messages, 100), jobs.Transfer)
    jobs.run(jobs.Consume(broker.bootstrap, "profile", plan.messages), jobs.Transfer)


def _queue_load(peer: Waystation, broker: Running, plan: Plan) -> None:
    declare(peer, broker, "profile")
    order = (peer.wire, broker.bootstrap, "profile", plan.queue_messages, 100, plan.batch, IN_FLIGHT["batched"])
    jobs.run(jobs.Put(*order), jobs.Transfer)
    jobs.run(jobs.Take(*order), jobs.Transfer)


def _amqp_load(peer: Waystation, broker: Running, plan: Plan) -> None:
    amqp_scenarios.declare(peer, broker, "profile")
    jobs.run(amqp_scenarios.publish(peer, broker, "profile", plan.amqp_messages, 100), jobs.Transfer)
    jobs.run(amqp_scenarios.consume(peer, broker, "profile", plan.amqp_messages, 100, 1), jobs.Transfer)


def _cprofile_report(output: Path) -> str:
    text = io.StringIO()
    pstats.Stats(str(output), stream=text).sort_stats("tottime").print_stats(LINES)
    return text.getvalue()


class _Perf:
    """perf, attached while the block runs."""

    def __init__(self, pid: int, output: Path) -> None:
        perf = shutil.which("perf")
        if perf is None:
            raise Unavailable("no `perf` on this machine")
        self._command = [perf, "record", "-q", "-o", str(output), "-p", str(pid)]

    def __enter__(self) -> None:
        self._process = subprocess.Popen(self._command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def __exit__(self, *_: object) -> None:
        self._process.send_signal(signal.SIGINT)  # perf writes its file when it is interrupted
        self._process.wait(60)


def _perf_report(output: Path) -> str:
    command = ["perf", "report", "--stdio", "-i", str(output), "--sort", "dso,symbol"]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    return "\n".join([line for line in lines if line and not line.startswith("#")][:LINES])
