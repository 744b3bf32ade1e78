"""A Kerberos realm in a folder of its own, by Debian's `krb5-kdc`, on a loopback port; ended by its own process id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

from tests.support.waiting import wait_for

REALM = "WAYSTATION.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local", "kinit")
PATH = os.pathsep.join((os.environ.get("PATH", ""), "/usr/sbin", "/usr/local/sbin"))


def missing() -> str:
    """Why there can be no realm here; empty: there can."""
    programs = [name for name in PROGRAMS if shutil.which(name, path=PATH) is None]
    if programs:
        return f"{', '.join(programs)} not found: apt-get install krb5-kdc krb5-admin-server krb5-user"
    return "" if find_spec("gssapi") else "the package gssapi is not installed: pip install 'waystation[kerberos]'"


class Realm:
    """Principals and their keytabs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        with socket.socket() as one:
            one.bind(("127.0.0.1", 0))
            port = one.getsockname()[1]
        (folder / "krb5.conf").write_text(f"""
[libdefaults]
 default_realm = {REALM}
 dns_lookup_realm = false
 dns_lookup_kdc = false
 dns_canonicalize_hostname = false
 rdns = false
 udp_preference_limit = 1
[realms]
 {REALM} = {{
  kdc = 127.0.0.1:{port}
 }}
 OTHER.TEST = {{
  kdc = 127.0.0.1:{port}
 }}
""")
        (folder / "kdc.conf").write_text(f"""
[kdcdefaults]
 kdc_listen = ""
 kdc_tcp_listen = 127.0.0.1:{port}
[realms]
 {REALM} = {{
  database_name = {folder}/principal
  key_stash_file = {folder}/stash
  acl_file = {folder}/acl
  max_life = 1h
 }}
[logging]
 kdc = FILE:{folder}/kdc.log
""")
        self.environment = {
            **os.environ,
            "PATH": PATH,
            "KRB5_CONFIG": str(folder / "krb5.conf"),
            "KRB5_KDC_PROFILE": str(folder / "kdc.conf"),
            "KRB5RCACHENAME": f"dfl:{folder}/replays",
            "KRB5CCNAME": f"FILE:{folder}/none",
        }
        self._port = port
        self._run("kdb5_util", "create", "-s", "-r", REALM, "-P", "master")

    def _run(self, *command: str) -> None:
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, timeout=120, check=False)
        if done.returncode:
            raise AssertionError(f"{' '.join(command)}: {done.stdout}{done.stderr}")

    def keytab(self, *principals: str) -> Path:
        """With keys of these principals, which are made if they are not there."""
        file = self.folder / f"{'-'.join(principals).replace('/', '_')}.keytab"
        if not file.exists():
            for one in principals:
                self._run("kadmin.local", "-r", REALM, "-q", f"addprinc -randkey {one}")
                self._run("kadmin.local", "-r", REALM, "-q", f"ktadd -k {file} {one}")
        return file

    def client(self, principal: str) -> dict[str, str]:
        """The environment of a process that has a ticket of this principal's."""
        cache = f"FILE:{self.folder}/{principal.replace('/', '_')}.ccache"
        environment = {**self.environment, "KRB5CCNAME": cache}
        command = ["kinit", "-k", "-t", str(self.keytab(principal)), f"{principal}@{REALM}"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
        if done.returncode:
            raise AssertionError(done.stdout + done.stderr)
        return environment

    def speaks(self) -> bool:
        try:
            socket.create_connection(("127.0.0.1", self._port), timeout=1).close()
        except OSError:
            return False
        return True


@contextmanager
def kerberos_realm(folder: Path) -> Iterator[Realm]:
    folder.mkdir(parents=True, exist_ok=True)
    realm = Realm(folder)
    with (folder / "out").open("wb") as out:
        kdc = subprocess.Popen(["krb5kdc", "-n", "-r", REALM], env=realm.environment, stdout=out, stderr=out)
    try:
        wait_for(realm.speaks, "the KDC is there")
        yield realm
    finally:
        kdc.terminate()
        kdc.wait(timeout=20)
