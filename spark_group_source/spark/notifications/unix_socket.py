"""The Unix socket of the user's process: a file for this user alone, which a killed process leaves behind."""

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
"""Names of the directory and of the socket in it."""

PLACES = ("/tmp", "/var/tmp", "/dev/shm")
"""Directories for the socket if the one for temporary files takes none: its path is too long, as those of YARN's and
Slurm's are (a Unix socket's path has at most 107 bytes, 103 on macOS), or its file system has no sockets."""

PROBE_TIMEOUT = 1.0
"""Maximum seconds for another process's server to accept a connection."""

CONNECT_TIMEOUT = 2.0
"""Maximum seconds to connect."""


def listen(places: Iterable[str]) -> tuple[socket.socket, Path]:
    """A listening socket in a new directory of the first of these places that takes one, and its path.

    Raises:
        OSError: none does; it says why, for each of them.
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
        # It gets its name when it listens: before that, another process would take it for a dead server's.
        listening.bind(f"{path}.new")
        listening.listen()
        os.rename(f"{path}.new", path)
        listening.setblocking(False)
    except OSError:
        listening.close()
        shutil.rmtree(directory, ignore_errors=True)
        raise
    return listening, path


def places() -> Iterable[str]:
    """Where the socket may lie: the directory for temporary files, or else one with a short path."""
    found = list(PLACES)
    with contextlib.suppress(OSError):  # no file can be written in any of Python's directories for temporary files
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
            # Once enough connections wait for a suspended process, its server neither accepts nor rejects others.
            probe.settimeout(PROBE_TIMEOUT)
            probe.connect(str(path))
    except ConnectionRefusedError:
        shutil.rmtree(path.parent, ignore_errors=True)
    except OSError as error:
        log.debug("the socket %s is not available: %s", path, error)
