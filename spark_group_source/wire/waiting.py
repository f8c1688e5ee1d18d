"""Waits that end in time: for sockets, and for calls that know no deadline."""

from __future__ import annotations

import math
import select
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, TypeVar, cast

from spark_group_source.clock import Deadline
from spark_group_source.wire.wakeup import Interrupted

Result = TypeVar("Result")

LONGEST_MS = 10**9
"""Milliseconds of one wait at most, eleven days: the system counts them in 31 bits."""

SLICE = 0.05
"""Seconds after which a wait for another thread looks whether it was interrupted."""


def poll_readable(descriptors: Iterable[int], seconds: float) -> set[int]:
    """Those descriptors that have bytes to read or have ended, after waiting at most ``seconds`` for the first one.

    It is ``poll``, because ``select`` refuses descriptors from 1024 on, which a process with many files open has.
    """
    poll = select.poll()
    for each in descriptors:
        poll.register(each, select.POLLIN)
    # Rounded up: a wait of less than a millisecond must not become a loop that waits for nothing.
    return {each for each, _ in poll.poll(_milliseconds(seconds))}


def _milliseconds(seconds: float) -> int:
    return min(math.ceil(max(seconds, 0.0) * 1000), LONGEST_MS)


def wait_ready(descriptor: int, deadline: Deadline, events: int = select.POLLIN) -> bool:
    """Waits until a descriptor has bytes to read or has ended; whether that came before the deadline.

    Args:
        events: ``POLLOUT`` to wait until bytes can be written.

    Raises:
        Interrupted: the deadline's wakeup was set first.
    """
    poll = select.poll()
    poll.register(descriptor, events)
    if deadline.wakeup is not None:
        poll.register(deadline.wakeup.fileno(), select.POLLIN)
    found = {each for each, _ in poll.poll(_milliseconds(deadline.remaining()))}
    if deadline.wakeup is not None and deadline.wakeup.fileno() in found:
        raise Interrupted
    return descriptor in found


def sleep(seconds: float, deadline: Deadline) -> None:
    """Does nothing for some seconds, but no longer than until the deadline.

    Raises:
        Interrupted: the deadline's wakeup was set.
    """
    seconds = min(seconds, deadline.remaining())
    if deadline.wakeup is None:
        time.sleep(seconds)
    elif poll_readable([deadline.wakeup.fileno()], seconds):
        raise Interrupted


class _Call(threading.Thread):
    """A call in a thread of its own, and what came of it."""

    def __init__(self, call: Callable[[], Any]) -> None:
        super().__init__(name="bounded", daemon=True)
        self._call = call
        self.returned: list[Any] = []
        self.raised: list[BaseException] = []

    def run(self) -> None:
        try:
            self.returned.append(self._call())
        except BaseException as error:  # the caller's, whatever it is; a user's function may call sys.exit()
            self.raised.append(error)


_left_behind: dict[tuple[int, str], _Call] = {}
"""Calls that had not returned by their deadline, by the thread that made them and their name."""


def call_with_timeout(call: Callable[[], Result], deadline: Deadline, name: str) -> Result:
    """What ``call`` returns or raises. It runs in a thread of its own, which is left behind at the deadline.

    A call that hangs would leave one more thread behind with each try. So the next call of the same ``name`` waits for
    the thread that was left behind, and returns its answer. The name says what is called, and for whom. Threads never
    share an answer, because it may have a state.

    Raises:
        TimeoutError: it has not returned by then.
        Interrupted: the deadline's wakeup was set first.
    """
    key = threading.get_ident(), name
    running = _left_behind.get(key)
    if running is None or not running.is_alive():
        running = _Call(call)
        running.start()
    try:
        _join(running, deadline)
    except Interrupted:
        _left_behind[key] = running
        raise
    if not running.returned and not running.raised:
        _left_behind[key] = running
        raise TimeoutError
    _left_behind.pop(key, None)  # what it returned is not kept
    if running.raised:
        raise running.raised[0]
    return cast(Result, running.returned[0])


def _join(running: threading.Thread, deadline: Deadline) -> None:
    if deadline.wakeup is None:
        running.join(deadline.remaining())
        return
    while running.is_alive() and not deadline.expired():
        running.join(min(SLICE, deadline.remaining()))
        sleep(0.0, deadline)
