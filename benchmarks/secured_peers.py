"""Our broker with what security can be turned on: TLS, logins and rules, encryption at rest.

Each is `Waystation` with a few more arguments, on a folder that was prepared by our own command line as an operator
does it, and with an address that tells clients how to log in. Called by `benchmarks.cli`.
"""

from dataclasses import dataclass
from pathlib import Path

from benchmarks.addresses import Address
from benchmarks.peers import Running, Waystation, make_certificates

USER, PASSWORD = "bench", "bench-password"
RESOURCES = ("topic", "queue", "group")


@dataclass
class SecuredWaystation(Waystation):
    """`login`: by SCRAM, as a user who is no superuser: what it may do is asked of rules."""

    tls: bool = False
    login: bool = False
    encrypted: bool = False

    def prepare(self, folder: Path) -> None:
        super().prepare(folder)
        if self.tls:
            make_certificates(folder)
        if self.login:
            data = ["--data", str(folder / "data")]
            self._waystation("users", "add", USER, "--password-stdin", *data, stdin=f"{PASSWORD}\n")
            everything = [part for resource in RESOURCES for part in (f"--{resource}", "*")]
            self._waystation("acls", "add", "--user", USER, "--allow", "all", *everything, *data)
        if self.encrypted:
            (folder / "master.key").write_text(self._waystation("encryption", "key"))

    def options(self, folder: Path) -> list[str]:
        named = {"tls.certificate": folder / "server.crt", "tls.key": folder / "server.key"} if self.tls else {}
        settings = [f"{name}={file}" for name, file in named.items()]
        if self.login:
            settings.append("auth.required=true")
        if self.encrypted:
            settings.append(f"encryption.key=file:{folder / 'master.key'}")
        return [part for setting in settings for part in ("--set", setting)]

    def spawn(self, folder: Path, port: int) -> Running:
        running = super().spawn(folder, port)
        login = (USER, PASSWORD) if self.login else ("", "")
        running.bootstrap = str(Address("127.0.0.1", port, *login, str(folder / "ca.crt") if self.tls else ""))
        return running
