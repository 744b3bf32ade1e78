"""A network of this machine's own, whose links can be cut: a namespace for each host, and a router between them.

What is lost is lost in the router, as in a switch: nobody is told, connections stay open and silent. Each direction is
cut by itself. The test's own process is on the network with two addresses, so that the clients in it and a server of it
(etcd) can be cut off one without the other. Needs root and network namespaces; `why_not()` says what is missing.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from types import TracebackType

CLIENTS, SERVER = "clients", "server"
"""The test's own process: its two addresses."""

_TRIES = 20


def why_not() -> str | None:
    """Why there can be no such network here; None if there can."""
    if os.geteuid() != 0:
        return "network namespaces need root"
    if shutil.which("ip") is None:
        return "there is no ip (Debian: iproute2)"
    try:
        with Network(["probe"]) as network:
            network.cut("probe", CLIENTS)
    except (OSError, subprocess.CalledProcessError) as error:
        return f"network namespaces are not allowed here: {getattr(error, 'stderr', None) or error}"
    return None


class Network:
    """While it is entered. A host is named by the test; `command` runs a program on it."""

    def __init__(self, hosts: Sequence[str]) -> None:
        self._hosts = list(hosts)
        self._name = ""
        self._net = ""
        self._made: list[str] = []
        self._lost: set[tuple[str, str]] = set()

    def __enter__(self) -> Network:
        for attempt in range(_TRIES):
            number = (os.getpid() + attempt) % 250 + 1
            self._name, self._net = f"ws{number}", f"10.213.{number}"
            try:
                self._namespace(self._router)
            except subprocess.CalledProcessError:  # somebody else has this number
                continue
            try:
                self._lay()
            except BaseException:
                self.close()
                raise
            return self
        raise OSError(f"no free network: {_TRIES} are taken")

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """What was made is removed, and nothing else; processes that are still there lose their network."""
        with suppress(subprocess.CalledProcessError):  # a namespace's links are removed some time after it
            _ip("link", "delete", self._near)
        for name in self._made:
            with suppress(subprocess.CalledProcessError):
                _ip("netns", "delete", name)
        self._made.clear()

    # -- hosts ------------------------------------------------------------------------------------------------------

    def address(self, host: str) -> str:
        if host in (CLIENTS, SERVER):
            return f"{self._net}.{2 if host == CLIENTS else 3}"
        return f"{self._net}.{8 * (self._hosts.index(host) + 1) + 2}"

    def command(self, host: str) -> list[str]:
        """Goes before a command that shall run on the host; its process is the command's own."""
        return ["ip", "netns", "exec", f"{self._name}-{host}"]

    # -- links ------------------------------------------------------------------------------------------------------

    def cut(self, source: str, target: str) -> None:
        """What one sends to the other is lost, and only that."""
        if (source, target) not in self._lost:
            _ip("-n", self._router, "rule", "add", *self._between(source, target))
            self._lost.add((source, target))

    def cut_both(self, one: str, other: str) -> None:
        self.cut(one, other)
        self.cut(other, one)

    def heal(self) -> None:
        for source, target in self._lost:
            _ip("-n", self._router, "rule", "delete", *self._between(source, target))
        self._lost.clear()

    def _between(self, source: str, target: str) -> list[str]:
        return ["from", self.address(source), "to", self.address(target), "blackhole"]

    # -- how it is laid ---------------------------------------------------------------------------------------------

    @property
    def _router(self) -> str:
        return f"{self._name}-router"

    @property
    def _near(self) -> str:
        return f"{self._name}-test"

    def _namespace(self, name: str) -> None:
        _ip("netns", "add", name)
        self._made.append(name)

    def _lay(self) -> None:
        _run("ip", "netns", "exec", self._router, "sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
        near = self._near
        _ip("link", "add", near, "type", "veth", "peer", "name", "test", "netns", self._router)
        for address in (self.address(CLIENTS), self.address(SERVER)):
            _ip("address", "add", f"{address}/29", "dev", near)
        _ip("link", "set", near, "up")
        self._give_address("test", f"{self._net}.1")
        _ip("route", "add", f"{self._net}.0/24", "via", f"{self._net}.1", "src", self.address(CLIENTS))
        for host in self._hosts:
            place = f"{self._name}-{host}"
            self._namespace(place)
            _ip(
                "link",
                "add",
                f"to-{host}",
                "netns",
                self._router,
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                place,
            )
            gate = f"{self._net}.{8 * (self._hosts.index(host) + 1) + 1}"
            self._give_address(f"to-{host}", gate)
            _ip("-n", place, "address", "add", f"{self.address(host)}/29", "dev", "eth0")
            for link in ("eth0", "lo"):
                _ip("-n", place, "link", "set", link, "up")
            _ip("-n", place, "route", "add", "default", "via", gate)

    def _give_address(self, link: str, address: str) -> None:
        _ip("-n", self._router, "address", "add", f"{address}/29", "dev", link)
        _ip("-n", self._router, "link", "set", link, "up")


def _ip(*words: str) -> None:
    _run("ip", *words)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=60)
