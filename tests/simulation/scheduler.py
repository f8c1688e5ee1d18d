"""Simulated threads and time: one thread runs at a time, and time passes only while all wait.

The classes with the names of ``threading`` and ``time`` take their places in the modules under test
(:mod:`tests.simulation.substitution`). Each is for the run that is :data:`active`. A thread gives up its turn where it
waits, and by chance where it takes a lock or wakes another one.
"""

from __future__ import annotations

import _thread
import heapq
import sys
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.simulation.chance import Chance

MAX_STEPS = 200_000
"""Turns and timers of one run: more of them are a loop that never waits."""


class Unwound(BaseException):
    """The run is over, or the process was killed: the thread ends, whatever it was doing."""


class Process:
    """One operating system process: its threads end with it."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.dead = False
        self.ended = False
        """Whether it ended by itself, or was killed."""
        self.paused_until = 0.0
        self.held_until = self.plan_held_until = 0.0
        """Until when one of its threads did not go on: anywhere, and between a plan's last check and its batch."""
        self.skew = 0.0
        """Seconds by which its host's clock is behind."""
        self.threads: list[Thread] = []


class Scheduler:
    """The threads and timers of one run. ``now`` is in virtual seconds."""

    def __init__(self, chance: Chance, switch_probability: float) -> None:
        self.chance = chance
        self.now = 0.0
        self.over = False
        self.failure: BaseException | None = None
        self.current: Thread | None = None
        self.steps = 0
        self.looks = 0
        self.settled_at = 0.0
        self.outside = Process("outside")
        self.places: dict[str, Callable[[], str]] = {}
        """What happens where the name of a place is passed: a function that takes a lock, and others."""
        self._switch_probability = switch_probability
        self._ready: list[Thread] = []
        self._timers: list[tuple[float, int, Callable[[], object]]] = []
        self._timer_count = 0
        self._threads: list[Thread] = []
        self._ended = _thread.allocate_lock()

    def run(self, conductor: Callable[[], None]) -> None:
        """Runs until ``conductor`` has returned or something has failed; raises that failure."""
        global active  # noqa: PLW0603 (the classes of threading have no argument for it)
        active = self
        self._ended.acquire()
        try:
            Thread(target=self._conduct, args=(conductor,), name="conductor", process=self.outside).start()
            self._hand_to(self._next(None))
            self._await_end()
            self._unwind()
        finally:
            active = None
        if self.failure is not None:
            raise self.failure

    def _await_end(self) -> None:
        self._ended.acquire()

    def _conduct(self, conductor: Callable[[], None]) -> None:
        conductor()
        self.over = True

    def fail(self, failure: BaseException) -> None:
        """Ends the run with this failure."""
        self.failure = self.failure or failure
        self.over = True

    def deadline(self, timeout: float | None) -> float | None:
        """When a wait of so many seconds ends; ``None``: never."""
        return None if timeout is None else self.now + timeout

    def at(self, when: float, callback: Callable[[], object], *, awaited: bool = True) -> None:
        """Calls ``callback`` at a time; it must not wait. The run is not settled before all that is ``awaited``."""
        if awaited:
            self.settled_at = max(self.settled_at, when)
        self._timer_count += 1
        heapq.heappush(self._timers, (when, self._timer_count, callback))

    def after(self, seconds: float, callback: Callable[[], object], *, awaited: bool = True) -> None:
        """Calls ``callback`` after so many seconds."""
        self.at(self.now + seconds, callback, awaited=awaited)

    def passing(self, place: str) -> str:
        """The running thread passes a place, where something may happen first: returns the fault of a request."""
        return self.places[place]() if place in self.places else ""

    def interrupt(self, thread: Thread) -> None:
        """Raises :class:`SystemExit` in a thread where it waits now or next, as a signal does."""
        thread.interrupted = True
        self.wake(thread)

    @property
    def process(self) -> Process:
        """The process of the running thread."""
        return self.outside if self.current is None else self.current.process

    def kill(self, process: Process) -> None:
        """Ends a process: its threads never run again."""
        process.dead = process.ended = True
        self._ready = [each for each in self._ready if each.process is not process]

    def begin(self, thread: Thread) -> None:
        """A new thread may run."""
        self._threads.append(thread)
        self._ready.append(thread)

    def me(self) -> Thread:
        """The running thread, which may wait. Raises :class:`Unwound` when the run is over."""
        if self.over or (self.current is not None and self.current.process.dead):
            raise Unwound
        assert self.current is not None, "a timer must not wait"
        return self.current

    def block(self, until: float | None = None) -> bool:
        """Parks the running thread until :meth:`wake` or a time; returns whether it was woken."""
        me = self.me()
        me.waits += 1
        if until is not None:
            turn = me.waits
            self.at(until, lambda: self._resume(me, turn, False), awaited=False)
        me.parked = True
        self._switch(me)
        return me.woken

    def wake(self, thread: Thread) -> None:
        """Lets a parked thread go on."""
        self._resume(thread, thread.waits, True)

    def _resume(self, thread: Thread, turn: int, woken: bool) -> None:
        if not thread.parked or thread.waits != turn or thread.process.dead:
            return
        if thread.process.paused_until > self.now:
            self.at(thread.process.paused_until, lambda: self._resume(thread, turn, woken))
            return
        thread.parked, thread.woken = False, woken
        self._ready.append(thread)

    def point(self) -> None:
        """Another thread may run first."""
        me = self.current
        if me is None:
            return
        if self.over or me.process.dead:
            raise Unwound
        if self._ready and self.chance.flag("turn", self._switch_probability):
            me.waits += 1
            self._ready.append(me)
            self._switch(me)

    def _switch(self, me: Thread) -> None:
        following = self._next(me)
        if following is not me:
            self._hand_to(following)
            me.baton.acquire()
        if self.over or me.process.dead:
            raise Unwound
        if me.interrupted:
            me.interrupted = False
            raise SystemExit

    def _hand_to(self, following: Thread | None) -> None:
        if following is None:
            self._ended.release()
        else:
            following.baton.release()

    def _next(self, me: Thread | None) -> Thread | None:
        """Chooses who runs: by chance among the ready ones, or else the first whose time comes."""
        self.current = None
        while not self.over:
            self.steps += 1
            if self.steps > MAX_STEPS:
                self.fail(AssertionError(f"more than {MAX_STEPS} steps: somebody loops without waiting"))
            elif self._ready:
                chosen = self._choose(me)
                if chosen.process.paused_until <= self.now:
                    self.current = chosen
                    return chosen
                chosen.parked, chosen.waits = True, chosen.waits + 1
                self._resume(chosen, chosen.waits, chosen.woken)
            elif not self._timers:
                self.fail(AssertionError("a deadlock: every thread waits, and for no time"))
            else:
                self._pass_time()
        return None

    def _choose(self, me: Thread | None) -> Thread:
        """Takes one of the ready threads: the first that is another one, or by chance."""
        others = [each for each in range(1, len(self._ready)) if self._ready[each] is not me]
        if not others:
            return self._ready.pop(0)
        first = 0
        if self._ready[0] is me:
            first = 1
        return self._ready.pop(self.chance.pick("next", first, others, 0.5))

    def _pass_time(self) -> None:
        """Calls what is next in time."""
        when, _, callback = heapq.heappop(self._timers)
        self.now, self.looks = max(self.now, when), 0
        try:
            callback()
        except Exception as failure:
            self.fail(failure)

    def exit(self, thread: Thread) -> None:
        """A thread has ended."""
        thread.alive = False
        if self.over:
            thread.done.release()
            if self.current is thread:
                self.current = None
                self._ended.release()
            return
        for each in thread.joining:
            self.wake(each)
        thread.done.release()
        self._hand_to(self._next(None))

    def _unwind(self) -> None:
        self.over = True
        for thread in self._threads:
            if thread.alive:
                self.current = None
                thread.baton.release()
                thread.done.acquire()


active: Scheduler | None = None
"""The run that the simulated classes belong to."""


def scheduler() -> Scheduler:
    """Returns the run that takes place."""
    assert active is not None, "no simulated run takes place"
    return active


class Thread:
    """In the place of ``threading.Thread``. It belongs to the process of the thread that creates it."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., Any] | None = None,
        name: str = "",
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
        process: Process | None = None,
    ) -> None:
        self.name = name
        self.daemon = daemon
        self.process = process or scheduler().process
        self.ident = 0
        self.parked = False
        self.woken = False
        self.interrupted = False
        self.waits = 0
        self.alive = False
        self.joining: list[Thread] = []
        self.baton = _thread.allocate_lock()
        self.done = _thread.allocate_lock()
        self._target, self._args, self._kwargs = target, args, kwargs or {}

    def start(self) -> None:
        self.alive = True
        self.baton.acquire()
        self.done.acquire()
        run = scheduler()
        self.ident = len(run._threads) + 1
        self.process.threads.append(self)
        run.begin(self)
        _thread.start_new_thread(self._bootstrap, (run,))

    def run(self) -> None:
        if self._target is not None:
            self._target(*self._args, **self._kwargs)

    def _bootstrap(self, run: Scheduler) -> None:
        self.baton.acquire()
        try:
            if not run.over:
                self.run()
        except Unwound:
            pass
        except SystemExit as failure:
            run.fail(AssertionError(f"{self.name}: a signal ended the thread, not its process: {failure!r}"))
        except BaseException as failure:
            run.fail(failure)
        run.exit(self)

    def is_alive(self) -> bool:
        return self.alive

    def join(self, timeout: float | None = None) -> None:
        run = scheduler()
        until = run.deadline(timeout)
        while self.alive and (until is None or run.now < until):
            self.joining.append(run.me())
            run.block(until)


class Lock:
    """In the place of ``threading.Lock``."""

    def __init__(self) -> None:
        self._owner: Thread | bool | None = None
        self._waiting: deque[Thread] = deque()
        self._depth = 0
        """How often its owner has it: only a reentrant lock counts."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        run = active
        assert run is not None
        if run.over:
            raise Unwound
        run.passing(sys._getframe(1).f_code.co_name)
        if run._ready:
            run.point()
        if self._owner is not None and not self._wait(run, blocking, timeout):
            return False
        self._owner = run.current or True
        return True

    __enter__ = acquire

    def _wait(self, run: Scheduler, blocking: bool, timeout: float) -> bool:
        if not blocking or timeout == 0:
            return False
        me = run.me()
        until = run.deadline(None if timeout < 0 else timeout)
        while self._owner is not None:
            self._waiting.append(me)
            try:
                if run.block(until):
                    continue
            except SystemExit:
                if me not in self._waiting and self._waiting:
                    run.wake(self._waiting.popleft())  # in the place of this thread
                raise
            finally:
                if me in self._waiting:
                    self._waiting.remove(me)
            return False
        return True

    def release(self, *_: object) -> None:
        run = active
        assert run is not None
        self._owner = None
        if self._waiting:
            run.wake(self._waiting.popleft())
        if run._ready and not run.over:
            run.point()

    __exit__ = release

    def locked(self) -> bool:
        return self._owner is not None


class RLock(Lock):
    """In the place of ``threading.RLock``."""

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        scheduler().passing(sys._getframe(1).f_code.co_name)
        if self._owner is not None and self._owner is (scheduler().current or True):
            self._depth += 1
            return True
        if Lock.acquire(self, blocking, timeout):
            self._depth = 1
            return True
        return False

    def release(self, *_: object) -> None:
        self._depth -= 1
        if self._depth == 0:
            Lock.release(self)

    __enter__ = acquire
    __exit__ = release


class Condition:
    """In the place of ``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or RLock()
        self._waiting: list[Thread] = []

    def __enter__(self) -> bool:
        scheduler().passing(sys._getframe(1).f_code.co_name)
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        run = scheduler()
        me = run.me()
        until = run.deadline(timeout)
        self._waiting.append(me)
        # Nobody runs between the release and the wait.
        self._lock._owner = None
        depth = self._lock._depth
        if self._lock._waiting:
            run.wake(self._lock._waiting.popleft())
        try:
            return run.block(until)
        finally:
            if me in self._waiting:
                self._waiting.remove(me)
            self._lock.acquire()
            self._lock._depth = depth

    def wait_for(self, predicate: Callable[[], Any], timeout: float | None = None) -> Any:
        run = scheduler()
        until = run.deadline(timeout)
        while not (result := predicate()) and (until is None or run.now < until):
            self.wait(None if until is None else until - run.now)
        return result

    def notify(self, n: int = 1) -> None:
        woken, self._waiting = self._waiting[:n], self._waiting[n:]
        for each in woken:
            scheduler().wake(each)

    def notify_all(self) -> None:
        self.notify(len(self._waiting))


class Event:
    """In the place of ``threading.Event``."""

    def __init__(self) -> None:
        self._set = False
        self._waiting: list[Thread] = []

    def is_set(self) -> bool:
        return self._set

    def set(self) -> None:
        self._set = True
        woken, self._waiting = self._waiting, []
        for each in woken:
            scheduler().wake(each)

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        run = scheduler()
        until = run.deadline(timeout)
        while not self._set and (until is None or run.now < until):
            self._waiting.append(run.me())
            run.block(until)
        return self._set


class Semaphore:
    """In the place of ``threading.Semaphore``."""

    def __init__(self, value: int = 1) -> None:
        self._value = value
        self._released = Condition()

    def acquire(self, blocking: bool = True, timeout: float | None = None) -> bool:
        with self._released:
            if not self._released.wait_for(lambda: self._value, timeout if blocking else 0.0):
                return False
            self._value -= 1
        return True

    def release(self, n: int = 1) -> None:
        with self._released:
            self._value += n
            self._released.notify(n)


class Wakeup(Event):
    """In the place of ``WakeupPipe``."""

    def fileno(self) -> Any:
        return self

    def waiting(self, thread: Thread) -> None:
        """:meth:`set` wakes this thread, which waits for something else too."""
        self._waiting.append(thread)

    def close(self) -> None:
        pass
