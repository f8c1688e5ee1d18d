"""A Kerberos realm for tests, with a KDC on this machine."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
from pathlib import Path

from spark_group_source.testing.ports import HOST, free_ports
from tests.integration.query_process import eventually

REALM = "EXAMPLE.TEST"
PROGRAMS = ("krb5kdc", "kdb5_util", "kadmin.local")
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
"""Debian installs servers in directories that the PATH of a user may not contain."""


def missing() -> str:
    """Returns the programs that this machine lacks for a realm and its clients; empty if none."""
    programs = [each for each in PROGRAMS if shutil.which(each, path=PATH) is None]
    if importlib.util.find_spec("gssapi") is None:
        programs.append("gssapi for Python")
    return ", ".join(programs)


class Realm:
    """A realm with its own database directory, without principals at first. Call :meth:`start` to start its KDC."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._port = free_ports(1)[0]
        self._kdc: subprocess.Popen[bytes] | None = None
        self._write("krb5.conf", libdefaults=self._clients(), realms=_realm(kdc=f"{HOST}:{self._port}"))
        listens = [f"kdc_listen = {HOST}:{self._port}", f"kdc_tcp_listen = {HOST}:{self._port}"]
        kept = _realm(database_name=f"{directory}/principals", key_stash_file=f"{directory}/stash")
        self._write("kdc.conf", kdcdefaults=listens, realms=kept)
        self._run("kdb5_util", "create", "-r", REALM, "-s", "-P", "master")

    @property
    def config(self) -> Path:
        """The ``krb5.conf`` of the realm's clients and servers."""
        return self._directory / "krb5.conf"

    def principal(self, name: str, lifetime: str = "1 day") -> Path:
        """Creates a principal with this ticket lifetime; returns its keytab."""
        keytab = self._directory / f"{name.replace('/', '-')}.keytab"
        self._run("kadmin.local", "addprinc", "-randkey", "-maxlife", lifetime, name)
        self._run("kadmin.local", "ktadd", "-k", str(keytab), name)
        return keytab

    def start(self) -> None:
        """Starts the KDC and waits until it accepts connections."""
        with (self._directory / "kdc.log").open("ab") as log:
            self._kdc = subprocess.Popen(["krb5kdc", "-n"], env=self._environment(), stdout=log, stderr=log)
        eventually(self._answers, what="the KDC")

    def stop(self) -> None:
        """Kills the KDC, even if it is paused."""
        if self._kdc is not None:
            self._kdc.kill()
            self._kdc.wait()

    def pause(self) -> None:
        """Suspends the KDC: it accepts connections, but does not respond."""
        assert self._kdc is not None
        self._kdc.send_signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Continues the KDC."""
        assert self._kdc is not None
        self._kdc.send_signal(signal.SIGCONT)

    def _clients(self) -> list[str]:
        # By TCP and without a name service, because the broker's principal contains its address.
        off = [
            f"{each} = false" for each in ("dns_lookup_kdc", "dns_lookup_realm", "dns_canonicalize_hostname", "rdns")
        ]
        return [f"default_realm = {REALM}", "udp_preference_limit = 1", *off]

    def _write(self, name: str, **sections: list[str]) -> None:
        lines = [line for section, inside in sections.items() for line in (f"[{section}]", *inside)]
        (self._directory / name).write_text("\n".join([*lines, ""]))

    def _environment(self) -> dict[str, str]:
        places = {"KRB5_CONFIG": str(self.config), "KRB5_KDC_PROFILE": f"{self._directory}/kdc.conf"}
        return {**os.environ, **places, "PATH": PATH}

    def _run(self, *command: str) -> None:
        subprocess.run(command, env=self._environment(), check=True, capture_output=True, timeout=90)

    def _answers(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((HOST, self._port)):
            return True
        return False


def _realm(**values: str) -> list[str]:
    return [f"{REALM} = {{", *(f"{name} = {value}" for name, value in values.items()), "}"]
