"""Runs a test of pytest in virtual time: with its fixtures, on simulated threads and connections."""

from __future__ import annotations

import contextlib
import os
from typing import Any

import pytest
from _pytest.runner import runtestprotocol

from tests.fake.faults import Fault, respond
from tests.fake.server import REQUESTS
from tests.simulation import network, substitution
from tests.simulation.chance import Chance
from tests.simulation.scheduler import Scheduler, Thread

LONGEST_S = 300.0
"""Virtual seconds after which a test waits for what never comes."""

SWITCH_PROBABILITY = 0.05
SIM_SEEDS = "SIM_SEEDS"
"""The environment variable with the seeds of each test, a number of them or the first and the last: 3, or 17-17.

With seed 0, the default, all threads take turns and all messages are equally fast. Each other seed chooses by chance.
"""


def seeds() -> range:
    first, _, last = os.environ.get(SIM_SEEDS, "1").rpartition("-")
    return range(int(first), int(last) + 1) if first else range(int(last))


def run_item(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    """Runs an item with each seed, and reports each run."""
    for seed in seeds():
        item.ihook.pytest_runtest_logstart(nodeid=item.nodeid, location=item.location)
        chance = Chance(seed, kept=None if seed else {})
        substitution.generator.seed(seed)
        with substitution.substituted("tests.conftest", "tests.contract."):
            run = ItemRun(chance, SWITCH_PROBABILITY)
            network.Connection.network = network.Network(run, {}, lambda _: None, FaultyChannel)
            run.run(lambda seed=seed: _protocol(item, nextitem, seed))  # type: ignore[misc]
        item.ihook.pytest_runtest_logfinish(nodeid=item.nodeid, location=item.location)


def _protocol(item: pytest.Item, nextitem: pytest.Item | None, seed: int) -> None:
    item.add_report_section("call", "seed", f"{SIM_SEEDS}={seed}-{seed} repeats this run.")
    try:
        runtestprotocol(item, nextitem=nextitem)
    except BaseException:  # the user interrupts pytest: what the fixtures hold must not outlive the run
        with contextlib.suppress(Exception):
            item.ihook.pytest_runtest_teardown(item=item, nextitem=nextitem)
        raise


class ItemRun(Scheduler):
    """The run of one item. What else would end the run is raised where the test waits, and so its fixtures end."""

    def __init__(self, chance: Chance, switch_probability: float) -> None:
        super().__init__(chance, switch_probability)
        self._raised: BaseException | None = None
        self.at(
            LONGEST_S, lambda: self.fail(AssertionError(f"a deadlock, or a wait of {LONGEST_S:.0f} virtual seconds"))
        )

    def fail(self, failure: BaseException) -> None:
        test = self._threads[0]
        if self.current is test or not test.alive:
            super().fail(failure)
            return
        self._raised = self._raised or failure
        self.steps = 0
        if test.parked:
            self.wake(test)

    def _switch(self, me: Thread) -> None:
        super()._switch(me)
        if me is self._threads[0] and self._raised is not None:
            raised, self._raised = self._raised, None
            raise raised

    def _await_end(self) -> None:
        try:
            super()._await_end()
        except KeyboardInterrupt as interrupt:
            self._raised = interrupt  # not woken: this is no simulated thread
            super()._await_end()


class FaultyChannel(network.Channel):
    """A connection with bytes, and with the faults of :mod:`tests.fake.faults`, as those on the fake's sockets are."""

    _muted_until = 0.0

    def send(self, request: Any, number: int) -> None:
        super().send(over_bytes(request), number)

    def _answer(self, number: int, response: Any) -> None:
        if not isinstance(response, bytes):
            response = encoded(number, response)
        super()._answer(number, response)

    def _arrive(self, api: str, request: Any, number: int, fault: str) -> None:
        run, broker = self.network.run, self.broker
        if self._muted_until > run.now:
            broker.sent_while_muted += 1
            run.at(self._muted_until, lambda: self._arrive(api, request, number, fault))
        elif broker.up and not broker.hung:
            injected: Fault | None = broker.faults.take(api, broker.node, request)
            if injected is None:
                super()._arrive(api, request, number, fault)
            else:
                Thread(target=self._respond, args=(api, request, number, injected), process=self.network.server).start()

    def _respond(self, api: str, request: Any, number: int, fault: Fault) -> None:
        run = self.network.run
        if fault.drop == "before":
            self.cut()
            return
        response = respond(self.broker.handle, api, request, fault)
        if response is None:
            return
        if fault.drop == "after":
            self.cut()
            return
        self._muted_until = run.now + fault.throttle
        assert (fault.raw, fault.dribble) == (None, None), "only on sockets: mark the test real_time"
        if fault.truncate is not None:
            response = encoded(number, response)[: fault.truncate]
        if not fault.silent:
            run.after(network.LATENCY, lambda: self._answer(number, response))
        if fault.drop == "answered":
            run.after(network.LATENCY, self.cut)


def over_bytes(request: Any) -> Any:
    """The request as it arrives over a real connection."""
    frame = bytes(request.encode(framed=False, header=True))
    return REQUESTS[request.API_KEY].decode(frame, version=request.version, header=True)


def encoded(number: int, response: Any) -> bytes:
    response.with_header(correlation_id=number)
    return bytes(response.encode(header=True))
