"""A Spark session from a few settings: in this process, on a standalone cluster, or on a Spark Connect server.

The one setting that differs is `master`: `local[2]`, `spark://HOST:PORT` or `sc://HOST:PORT`. What is set by the caller
always wins over what is set here. The session that comes out knows the data source `waystation`. Spark's own log, with
its Java traces, goes to a file where one is named, so that a person sees sentences. Used by pipelines and by anybody.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from waystation.errors import Invalid, Unavailable
from waystation.spark.java import use_java

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

LOCAL = "local[*]"
CONNECT_PORT = 15002
"""Where a Spark Connect server listens, if its address does not say."""
REACH_S = 10.0

DEFAULTS = {
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    # Lets our source read only the partitions, offsets and times that a query asks for.
    "spark.sql.python.filterPushdown.enabled": "true",
    "spark.sql.streaming.stopTimeout": "60000",
}
"""For every session. Times are UTC, as messages have them."""

LOCAL_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
"""For a session in this process: nothing listens where another machine could reach it."""

CHECKPOINT_MANAGER = "spark.sql.streaming.checkpointFileManagerClass"
_MANAGERS = (
    "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager",
    "org.apache.spark.sql.execution.streaming.FileSystemBasedCheckpointFileManager",  # Spark 4.0
)


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What a session is made of. `settings` are Spark's, by their dotted names; `log` is a file to append to."""

    master: str = LOCAL
    name: str = "waystation"
    settings: Mapping[str, str] = field(default_factory=dict)
    log: Path | None = None
    log_level: str = "WARN"


def check_master(master: str) -> None:
    """Invalid unless it is an address that Spark knows."""
    if not (master.startswith(("local", "spark://", "sc://", "yarn", "k8s://"))):
        raise Invalid(
            f"{master!r} is not where Spark can run: write local[*], local[2], spark://HOST:PORT (a standalone cluster)"
            " or sc://HOST:PORT (Spark Connect)"
        )


def is_remote(master: str) -> bool:
    """Whether it is a Spark Connect server: Spark's driver is there, not here."""
    return master.startswith("sc://")


@contextmanager
def session(wanted: SessionSettings | None = None) -> Iterator[SparkSession]:
    """A session for a while. What was started for it is stopped at the end; Spark that ran here before goes on."""
    ran_before = _is_running()
    spark = open_session(wanted)
    try:
        yield spark
    finally:
        if not ran_before:
            spark.stop()


def _is_running() -> bool:
    need_pyspark()
    from pyspark.core.context import SparkContext

    return SparkContext._active_spark_context is not None


def open_session(wanted: SessionSettings | None = None) -> SparkSession:
    """A session; the caller stops it. Unavailable, with what to install, where PySpark or Java is missing.

    Where Spark runs in this process already, it is a new session of that one, with the settings that it may have.
    """
    wanted = wanted or SessionSettings()
    check_master(wanted.master)
    need_pyspark()
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", os.environ["PYSPARK_PYTHON"])
    spark = _remote(wanted) if is_remote(wanted.master) else _classic(wanted)
    register_source(spark)
    activate(spark)
    return spark


def activate(spark: SparkSession) -> None:
    """Makes it the session of this thread.

    Spark looks a Python data source up in the session of the thread that starts a write, not in that of the frame; in
    any other thread than the one that made the session it finds none.
    """
    java: Any = getattr(spark, "_jsparkSession", None)
    if java is not None:  # over Connect there are no threads of a JVM here
        jvm: Any = spark._jvm
        jvm.SparkSession.setActiveSession(java)


def need_pyspark() -> None:
    """Unavailable, with what to do, where the extra `spark` is not installed."""
    try:
        import pyarrow  # noqa: F401
        import pyspark  # noqa: F401
    except ImportError as error:
        raise Unavailable(
            f"pipelines run on Spark, and {error.name or 'pyspark'} is not installed here;"
            " `pip install 'waystation[spark]'`"
        ) from None


def register_source(spark: SparkSession) -> None:
    """Makes `format("waystation")` known to a session."""
    from waystation.spark import register

    register(spark, report=False)  # a pipeline reports itself


def session_settings(wanted: SessionSettings) -> dict[str, str]:
    """The settings that a session is started with."""
    local = LOCAL_DEFAULTS if wanted.master.startswith("local") else {"spark.ui.showConsoleProgress": "false"}
    chosen = {**DEFAULTS, **local}
    if wanted.master.startswith("local"):
        # 200, Spark's own default, is for clusters: most of a small micro-batch would be empty tasks.
        chosen["spark.sql.shuffle.partitions"] = str(_cores(wanted.master))
    return {**chosen, **wanted.settings}


def _cores(master: str) -> int:
    inside = master.removeprefix("local").strip("[]").partition(",")[0]
    if inside.isdecimal():
        return max(1, int(inside))
    return (os.cpu_count() or 1) if inside == "*" else 1


def _classic(wanted: SessionSettings) -> SparkSession:
    from pyspark.conf import SparkConf
    from pyspark.core.context import SparkContext
    from pyspark.sql import SparkSession

    settings = session_settings(wanted)
    if SparkContext._active_spark_context is None:
        if wanted.master.startswith("spark://") and not _reach(wanted.master):
            raise Unavailable(_no_cluster(wanted))
        use_java()
        conf = SparkConf(loadDefaults=False).setMaster(wanted.master).setAppName(wanted.name)
        conf.setAll(list(settings.items()))
        with _own_interrupt():
            _start(conf, wanted)
        spark = SparkSession.builder.getOrCreate()
    else:
        spark = SparkSession.builder.getOrCreate().newSession()
        for name, value in settings.items():
            if spark.conf.isModifiable(name):
                spark.conf.set(name, value)
    if wanted.master.startswith("local") and CHECKPOINT_MANAGER not in wanted.settings:
        _checkpoint_quickly(spark)
    return spark


def _checkpoint_quickly(spark: SparkSession) -> None:
    """Spark's own choice for checkpoints starts processes (`readlink`, `chmod`) for each file that a micro-batch writes
    to a local disk, a third of the time of a small one. The other one that it has starts a quarter of them."""
    jvm: Any = spark._jvm
    loader = jvm.java.lang.Thread.currentThread().getContextClassLoader()
    for name in _MANAGERS:
        if loader.getResource(f"{name.replace('.', '/')}.class") is not None:
            spark.conf.set(CHECKPOINT_MANAGER, name)
            return


@contextmanager
def _own_interrupt() -> Iterator[None]:
    """Puts back what Ctrl-C does here: PySpark takes it for itself."""
    import signal
    import threading

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGINT)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


def _start(conf: object, wanted: SessionSettings) -> None:
    """The JVM and the context in it. Its standard error is the log: what a person should read comes from us."""
    from pyspark.core.context import SparkContext
    from pyspark.errors import PySparkException
    from pyspark.java_gateway import launch_gateway

    try:
        if wanted.log is None or SparkContext._gateway is not None:
            context = SparkContext(conf=conf)  # type: ignore[arg-type]
        else:
            _hush()
            wanted.log.parent.mkdir(parents=True, exist_ok=True)
            with wanted.log.open("ab") as log:
                gateway = launch_gateway(conf, {"stderr": log})  # type: ignore[no-untyped-call]
            context = SparkContext(conf=conf, gateway=gateway)  # type: ignore[arg-type]
    except (PySparkException, RuntimeError, OSError) as error:
        raise Unavailable(_why_not(error, wanted)) from error
    except Exception as error:
        if type(error).__module__.startswith("py4j"):
            raise Unavailable(_why_not(error, wanted)) from error
        raise
    context.setLogLevel(wanted.log_level)


def _hush() -> None:
    """PySpark writes every mistake in a query to standard error a second time, as a page of JSON."""
    import logging

    logging.getLogger("SQLQueryContextLogger").setLevel(logging.CRITICAL + 1)
    logging.getLogger("DataFrameQueryContextLogger").setLevel(logging.CRITICAL + 1)


def _why_not(error: Exception, wanted: SessionSettings) -> str:
    if wanted.master.startswith("spark://"):
        return _no_cluster(wanted)
    return f"Spark did not start ({str(error).strip().splitlines()[0]}){_where_logged(wanted)}"


def _no_cluster(wanted: SessionSettings) -> str:
    return (
        f"Spark did not start on the cluster {wanted.master}: see that its master is running there and can be reached,"
        f" or use --master local[*]{_where_logged(wanted)}"
    )


def _where_logged(wanted: SessionSettings) -> str:
    return f"; its log is {wanted.log}" if wanted.log is not None else ""


def _remote(wanted: SessionSettings) -> SparkSession:
    from pyspark.sql import SparkSession

    try:
        import grpc
    except ImportError:
        raise Unavailable(
            f"{wanted.master} is a Spark Connect server, which needs more packages:"
            " `pip install 'waystation[spark-connect]'`"
        ) from None
    if not _reach(wanted.master):
        raise Unavailable(_no_server(wanted.master))
    # A server's static settings are its own: only what a session may choose is sent.
    settings = {**DEFAULTS, **wanted.settings}
    builder = SparkSession.builder.remote(wanted.master).appName(wanted.name)
    try:
        spark = builder.getOrCreate()
        for name, value in settings.items():
            if name in wanted.settings or spark.conf.isModifiable(name):
                spark.conf.set(name, value)
        return spark
    except grpc.RpcError as error:
        raise Unavailable(_no_server(wanted.master)) from error


def _reach(master: str) -> bool:
    """Whether anybody listens there. PySpark itself would try for a minute (a cluster) or ten (Connect), silently."""
    for place in master.partition("://")[2].split(","):
        try:
            found = urlsplit(f"//{place}")
            with socket.create_connection((found.hostname or "", found.port or CONNECT_PORT), timeout=REACH_S):
                return True
        except (OSError, ValueError):
            continue
    return False


def _no_server(master: str) -> str:
    return (
        f"no Spark Connect server answers at {master}; start one with `start-connect-server.sh`, or use --master"
        " local[*]"
    )
