"""Spark's own Kafka connector for the PySpark that is installed here: its JARs, kept in the cache folder.

They are fetched once, from Maven, as users fetch them: by `spark-submit --packages`, which needs no more than PySpark
and Java. A folder of JARs appears whole or not at all. Where they cannot be had, `Unavailable` says why. For
`benchmarks.spark` and for tests.
"""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers import Unavailable

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13"
TOKENS = "org.apache.spark:spark-token-provider-kafka-0-10_2.13"
IN_PYSPARK = (
    "at.yawk.lz4:*",
    "com.github.luben:*",
    "com.google.code.findbugs:*",
    "org.apache.hadoop:*",
    "org.lz4:*",
    "org.scala-lang.modules:*",
    "org.scala-lang:*",
    "org.slf4j:*",
    "org.xerial.snappy:*",
)
"""What the connector depends on and every PySpark has already: 80 MB that need not be fetched."""

FETCH_LIMIT_S = 300
CONNECT_LIMIT_MS = 3000


@dataclass(frozen=True, slots=True)
class KafkaConnector:
    """The connector's JARs, and the version that it says it is: Spark's, or the nearest one that Maven had."""

    version: str
    jars: tuple[Path, ...]

    @property
    def settings(self) -> dict[str, str]:
        """What a session has to be started with, so that it knows `format("kafka")`."""
        return {"spark.jars": ",".join(str(jar) for jar in self.jars)}


@dataclass(frozen=True, slots=True)
class _Package:
    """What one call of `spark-submit` fetches, without what another one does."""

    name: str
    without: tuple[str, ...] = ()


def kafka_connector(cache: Path) -> KafkaConnector:
    """From `cache`, filled from Maven if it has none for this PySpark. Unavailable, with the reason, if that fails."""
    try:
        import pyspark
    except ImportError:
        raise Unavailable("pyspark is not installed") from None
    folder = cache / f"spark-kafka-for-{pyspark.__version__}"
    if not folder.exists():
        cache.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="spark-kafka-", dir=cache) as making:
            _fetch_first(_choices(pyspark.__version__), Path(making), Path(pyspark.__file__).parent)
            shutil.copytree(Path(making, "jars"), Path(making, "whole"))
            if not folder.exists():
                Path(making, "whole").rename(folder)
    found = next(folder.glob("*spark-sql-kafka-0-10_2.13-*.jar"))
    return KafkaConnector(found.stem.rpartition("2.13-")[2], tuple(sorted(folder.glob("*.jar"))))


def _choices(spark: str) -> Iterator[tuple[_Package, ...]]:
    """The connector of this Spark; and for one so new that a registry has no connector for it, one that works there."""
    yield (_Package(f"{CONNECTOR}:{spark}"),)
    if tuple(int(part) for part in spark.split(".")[:2]) >= (4, 2):
        yield (_Package(f"{CONNECTOR}:4.2.0", (TOKENS,)), _Package(f"{TOKENS}:4.0.0", ("org.apache.kafka:*",)))


def _fetch_first(choices: Iterable[tuple[_Package, ...]], folder: Path, home: Path) -> None:
    """Fills `folder/jars` with the first choice that Maven has all of."""
    for choice in choices:
        if all(_fetch(package, folder, home) for package in choice):
            return
        shutil.rmtree(folder / "jars", ignore_errors=True)
    raise Unavailable("Maven's registry has no spark-sql-kafka-0-10 that fits this PySpark")


def _fetch(package: _Package, folder: Path, home: Path) -> bool:
    """Whether the registry has it; Unavailable if no registry answers."""
    from waystation.spark.java import JavaMissing, use_java

    environment = {**os.environ, "SPARK_HOME": str(home), "PYSPARK_PYTHON": sys.executable}
    environment["SPARK_SUBMIT_OPTS"] = f"-Dsun.net.client.defaultConnectTimeout={CONNECT_LIMIT_MS}"
    try:
        use_java(environment)
    except JavaMissing as problem:
        raise Unavailable(str(problem)) from None
    nothing = folder / "nothing.py"
    nothing.touch()
    without = ",".join((*IN_PYSPARK, *package.without))
    chosen = ["--packages", package.name, "--exclude-packages", without, "--conf", f"spark.jars.ivy={folder}"]
    command = [str(home / "bin" / "spark-submit"), "--master", "local[1]", *chosen, str(nothing)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_LIMIT_S, env=environment, check=False, cwd=folder
        )
    except subprocess.TimeoutExpired:
        raise Unavailable("Maven's registry did not answer in time") from None
    if done.returncode != 0:
        _check_answered(done.stdout + done.stderr)
    return done.returncode == 0


def _check_answered(said: str) -> None:
    """Unavailable unless one of the registries that were asked has answered, if only that it has no such thing."""
    asked = set(re.findall(r"https?://([^/\s]+)/", said))
    silent = set(re.findall(r"Host (\S+) not found", said))
    silent |= set(re.findall(r"Server access error at url https?://([^/\s]+)/", said))
    if not asked:
        why = next((line for line in said.splitlines() if "Exception" in line), said.strip()[-200:])
        raise Unavailable(f"spark-submit failed: {why}")
    if asked <= silent:
        raise Unavailable("Maven's registry was not reached")
