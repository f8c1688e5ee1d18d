"""Waits with a deadline, for sockets and for functions without a timeout. Another thread can end a wait."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from spark_group_source.clock import Deadline


class Interrupted(BaseException):
    """:meth:`WakeupPipe.set` ended the wait. Not an ``Exception``, so that no error handling swallows it."""


class WakeupPipe:
    """Becomes readable when :meth:`set` is called, and stays readable."""

    def __init__(self) -> None:
        self._read_end, self._write_end = socket.socketpair()
        self._write_end.setblocking(False)

    def fileno(self) -> int:
        """Returns the descriptor that a selector waits on."""
        return self._read_end.fileno()

    def set(self) -> None:
        """Ends the wait, now or when it begins. May be repeated. Caller: any thread."""
        # After thousands of calls the pipe is full, and so already readable.
        with contextlib.suppress(BlockingIOError):
            self._write_end.send(b"\0")

    def close(self) -> None:
        """Frees the sockets. Call this only when no thread is waiting."""
        self._read_end.close()
        self._write_end.close()


Result = TypeVar("Result")

MAX_POLL_MS = 10**9
"""Maximum milliseconds of one wait (eleven days): the system counts milliseconds in 31 bits."""

JOIN_INTERVAL = 0.05
"""How many seconds pass between two checks for a wakeup while this thread waits for another thread."""


def poll_readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Waits at most ``seconds`` and returns the descriptors that have bytes to read or have ended.

    Uses ``poll``, because a process with many open files has descriptors from 1024 on, which ``select`` rejects.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, select.POLLIN)
    # Rounded up: a wait of less than a millisecond must not become a busy loop.
    return {descriptor for descriptor, _ in poll.poll(_milliseconds(seconds))}


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(max(seconds, 0.0) * 1000), MAX_POLL_MS)


def wait_ready(descriptor: int, deadline: Deadline, events: int = select.POLLIN) -> bool:
    """Waits until a descriptor has bytes to read or has ended; returns False at the deadline.

    Args:
        events: ``POLLOUT`` to wait until bytes can be written.

    Raises:
        Interrupted: the deadline's wakeup was set first.
    """
    return bool(wait_any([descriptor], deadline, events))


def wait_any(descriptors: Iterable[int], deadline: Deadline, events: int = select.POLLIN) -> set[int]:
    """As :func:`wait_ready`, until at least one of several descriptors is ready; returns the ready descriptors, none at
    the deadline.

    Raises:
        Interrupted: the deadline's wakeup was set first.
    """
    poll = select.poll()
    for descriptor in descriptors:
        poll.register(descriptor, events)
    if deadline.wakeup is not None:
        poll.register(deadline.wakeup.fileno(), select.POLLIN)
    ready = {each for each, _ in poll.poll(_milliseconds(deadline.remaining()))}
    if deadline.wakeup is not None and deadline.wakeup.fileno() in ready:
        raise Interrupted
    return ready


def sleep(seconds: float, deadline: Deadline) -> None:
    """Sleeps for some seconds, but not beyond the deadline.

    Raises:
        Interrupted: the deadline's wakeup was set.
    """
    seconds = min(seconds, deadline.remaining())
    if deadline.wakeup is None:
        time.sleep(seconds)
    elif poll_readable([deadline.wakeup.fileno()], seconds):
        raise Interrupted


class _CallThread(threading.Thread):
    """Calls a function in a thread of its own and keeps the result or the exception."""

    def __init__(self, function: Callable[[], Any]) -> None:
        super().__init__(name="call-with-timeout", daemon=True)
        self._function = function
        self.results: list[Any] = []
        self.errors: list[BaseException] = []

    def run(self) -> None:
        try:
            self.results.append(self._function())
        except BaseException as error:  # of any kind, for the caller: a user's function may call sys.exit()
            self.errors.append(error)


_timed_out: dict[tuple[int, str], _CallThread] = {}
"""Calls that had not returned by their deadline, by the id of the calling thread and their name."""


def call_with_timeout(function: Callable[[], Result], deadline: Deadline, name: str) -> Result:
    """Calls ``function`` in a thread of its own, abandons the thread at the deadline, and returns the result.

    If each retry of a call that hangs started a thread, threads would pile up. So the next call with the same ``name``
    waits for the abandoned thread and returns its result. The name must identify the function and its argument. Two
    calling threads never share a result, because the result may have state.

    Raises:
        TimeoutError: the function has not returned by the deadline.
        Interrupted: the deadline's wakeup was set first.
    """
    key = threading.get_ident(), name
    thread = _timed_out.get(key)
    if thread is None or not thread.is_alive():
        thread = _CallThread(function)
        thread.start()
    try:
        _join(thread, deadline)
    except Interrupted:
        _timed_out[key] = thread
        raise
    if not thread.results and not thread.errors:
        _timed_out[key] = thread
        raise TimeoutError
    _timed_out.pop(key, None)  # so that the result is not kept
    if thread.errors:
        raise thread.errors[0]
    return cast(Result, thread.results[0])


def _join(thread: threading.Thread, deadline: Deadline) -> None:
    if deadline.wakeup is None:
        thread.join(deadline.remaining())
        return
    while thread.is_alive() and not deadline.expired():
        thread.join(min(JOIN_INTERVAL, deadline.remaining()))
        sleep(0.0, deadline)
