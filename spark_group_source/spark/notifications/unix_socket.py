"""The Unix socket of the user's process: a file that only this user can open. A killed process leaves it behind."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import socket
import tempfile
from collections.abc import Iterable
from pathlib import Path

log = logging.getLogger(__name__)

PREFIX, NAME = "kafka-group-", "notifications"
"""The prefix of the directory's name, and the name of the socket in it."""

PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Directories for the socket if it cannot be created in the directory for temporary files: the path may be too long, as
under YARN and Slurm (a Unix socket's path has at most 107 bytes, 103 on macOS), or the file system may not support
sockets."""

PROBE_TIMEOUT = 1.0
"""Maximum seconds for another process's server to accept a connection."""

CONNECT_TIMEOUT = 2.0
"""Maximum seconds to connect."""


def listen(places: Iterable[str]) -> tuple[socket.socket, Path]:
    """A listening socket, and its path. Creates a directory in the first of these places where a socket is possible.

    Raises:
        OSError: a socket is possible in none of the places. The error has the reason for each place.
    """
    failures = {}
    for place in places:
        try:
            return _listen_in(place)
        except OSError as error:
            failures[place] = error
    raise OSError("; ".join(f"no Unix socket in {place}: {error}" for place, error in failures.items()))


def _listen_in(place: str) -> tuple[socket.socket, Path]:
    for path in Path(place).glob(f"{PREFIX}*/{NAME}"):
        remove_if_dead(path)
    directory = Path(tempfile.mkdtemp(prefix=PREFIX, dir=place))
    path = directory / NAME
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # The socket gets its name after it listens. Before, another process would take it for the socket of a dead
        # server.
        listening.bind(f"{path}.new")
        listening.listen()
        os.rename(f"{path}.new", path)
        listening.setblocking(False)
    except OSError:
        listening.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return listening, path


def keep_directory(directory: Path) -> int:
    """Keeps systemd-tmpfiles from removing an old directory, until the returned descriptor is closed: it skips locked
    directories. It would skip the socket of a live server by itself, but knows it by its first name only.

    Raises:
        OSError: the file system has no locks, or the process has no free descriptor.
    """
    import fcntl  # not on Windows, which has no such sockets either

    descriptor = os.open(directory, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def places() -> Iterable[str]:
    """The places for the socket: the directory for temporary files, then directories with short paths."""
    found = list(PLACES)
    with contextlib.suppress(OSError):  # none of Python's directories for temporary files is writable
        found.insert(0, tempfile.gettempdir())
    if runtime := os.environ.get("XDG_RUNTIME_DIR"):
        found.append(runtime)  # last: some systems remove it when the user logs out
    return dict.fromkeys(found)


def connect(path: str) -> socket.socket:
    """A connection to the server whose socket is at ``path``."""
    connected = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connected.settimeout(CONNECT_TIMEOUT)
        connected.connect(path)
        connected.settimeout(None)
    except OSError:
        connected.close()
        raise
    return connected


def remove_if_dead(path: Path) -> None:
    """Removes the socket at ``path``, and its directory, if its server was killed."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            # Once enough connections wait for a suspended process, its server neither accepts nor rejects further
            # connections.
            probe.settimeout(PROBE_TIMEOUT)
            probe.connect(str(path))
    except ConnectionRefusedError:
        shutil.rmtree(path.parent, ignore_errors=True)
    except OSError as error:
        log.debug("the socket %s is not available: %s", path, error)
