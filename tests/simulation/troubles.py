"""What disturbs a run, and when. A rule is judged only where nothing has disturbed it for :data:`BOUND`.

There are three degrees: all is *calm* without troubles, however single messages suffer; it is *orderly* if no thread
stood still either; and *commits arrive* if it is orderly, and no commit suffered.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from itertools import pairwise

from tests.simulation.aims import REQUESTS
from tests.simulation.scheduler import Process, Scheduler

BOUND = 30.0
"""The seconds of every judgement: so long after a trouble nothing is judged that it may have caused, and nothing that
must end lasts longer without one."""

WINDOW = 15.0
"""Seconds in which one fault is no trouble, since the request is sent again, and two are: the retry may suffer, too."""


class Troubles:
    """The faults and troubles of one run.

    Attributes:
        last: when the last trouble ended; later than now while one lasts.
        held_until: when the last thread that stood still went on.
    """

    def __init__(self, run: Scheduler, told: Callable[[str], None]) -> None:
        self.run = run
        self.told = told
        self.last = self.held_until = -BOUND
        self._faults: list[tuple[float, str]] = []

    def fault(self, what: str) -> None:
        """One message suffers."""
        if self.recent_faults or "JoinGroup" in what:  # the group may go on without the member
            self.disturb()
        self._faults.append((self.run.now, what))
        self.told(what)

    def arrives_late(self, what: str) -> None:
        """A request arrives that its sender has given up. A commit may move the group back: that is repaired."""
        self.told(what)
        if "OffsetCommit" in what:
            self._faults.append((self.run.now, f"before, {what}"))  # no other message of its sender suffers
        else:
            self.disturb()

    def outage(self, seconds: float, what: str) -> None:
        """Something does not work for some seconds."""
        self.disturb(seconds)
        self.told(what)

    def disturb(self, seconds: float = 0.0) -> None:
        """A trouble lasts for so many seconds from now on."""
        self.last = max(self.last, self.run.now + seconds)

    def one_fault(self, seconds: float, what: str) -> None:
        """Something answers with errors for some seconds, in good order: that counts as one fault."""
        self._faults.append((self.run.now + seconds, what))
        self.told(what)

    def hesitates(self, process: Process, place: str, seconds: float) -> None:
        """A thread does not go on for some seconds: up to one second no promise suffers."""
        process.held_until = self.held_until = self.run.now + seconds
        if place not in REQUESTS:
            process.plan_held_until = max(process.plan_held_until, process.held_until)

    @property
    def recent_faults(self) -> bool:
        """Whether a message suffered in :data:`WINDOW`."""
        return any(self.run.now - at <= WINDOW for at, _ in self._faults[-1:])

    def suffered(self, since: float, *, api: str = "") -> bool:
        """Whether a message suffered since then, or one of this request."""
        return any(when >= since and api in what for when, what in self._faults)

    def suffered_other(self, since: float, apis: Set[str]) -> bool:
        """Whether a message suffered since then that is none of these requests."""
        return any(when >= since and not any(api in what for api in apis) for when, what in self._faults)

    def suffered_in_a_row(self, sender: str, api: str, since: float) -> bool:
        """Whether two such messages suffered in :data:`WINDOW`, since then."""
        times = [when for when, what in self._faults if what.startswith(sender) and api in what and when >= since]
        return any(later - earlier <= WINDOW for earlier, later in pairwise(times))

    def orderly(self, when: float) -> bool:
        """Whether all is calm, and no thread stood still either since :data:`BOUND` before then."""
        return self.calm and self.held_until <= when - BOUND

    @property
    def commits_arrive(self) -> bool:
        """Whether all is orderly, and no commit suffered for :data:`BOUND`."""
        return self.orderly(self.run.now) and not self.suffered(self.run.now - BOUND, api="OffsetCommit")

    @property
    def calm(self) -> bool:
        """Whether nothing but single faults has happened for :data:`BOUND`."""
        return self.calm_since(self.run.now)

    def calm_since(self, when: float) -> bool:
        """Whether nothing but single faults has happened since :data:`BOUND` before then."""
        return self.last + BOUND <= when
