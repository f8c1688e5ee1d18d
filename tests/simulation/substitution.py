"""Puts the simulated threads, time, chance and connections into the modules under test."""

from __future__ import annotations

import importlib
import random
import sys
import threading
import time
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from types import SimpleNamespace
from typing import Any

from kafka.protocol.data_container import DataContainer

from spark_group_source import clock
from tests.simulation import network, scheduler

START_OF_TIME = 1_790_000_000.0
"""The wall clock at the begin of a run, in seconds since 1970."""

MAX_LOOKS = 100_000
"""How often the clock is read in a moment. More often is a loop that never waits."""

MODULES = (
    "spark_group_source.spark.stream",
    "spark_group_source.query.driver",
    "spark_group_source.group.classic.protocol",
    "spark_group_source.group.consumer.protocol",
    "spark_group_source.group.manual_assignment",
    "spark_group_source.fetch.reader",
    "spark_group_source.query.size_samples",
    "spark_group_source.fetch.visible",
    "tests.fake",
    "tests.simulation.spark",
)
"""These and what they import of the two packages are under test."""

UNDER_TEST = ("spark_group_source.", "tests.fake")

generator = clock.RANDOM
"""The chance of the product, seeded for each run: backoffs, ids, and which broker is asked first."""


def now(clock: object = None) -> float:
    """Virtual seconds, of whichever clock; real ones for a thread that an earlier test has left behind."""
    run = scheduler.active
    if run is None:
        return time.monotonic()
    run.looks += 1
    assert run.looks < MAX_LOOKS, "the clock is read in a loop without a wait"
    return run.now


def wall_clock() -> float:
    """Seconds since 1970, as the host of the running process has them."""
    run = scheduler.scheduler()
    return START_OF_TIME + run.now - run.process.skew


def sleep(seconds: float) -> None:
    run = scheduler.scheduler()
    run.block(run.now + max(seconds, 0.0))


def poll_readable(descriptors: Iterable[Any], seconds: float) -> set[Any]:
    run, waited = scheduler.scheduler(), list(descriptors)
    until = run.now + seconds
    while not (ready := {each for each in waited if each.is_set()}) and run.now < until:
        for each in waited:
            each.waiting(run.me())
        run.block(until)
    return ready


TIME = SimpleNamespace(
    monotonic=now,
    sleep=sleep,
    time=wall_clock,
    clock_gettime=now,
    perf_counter=now,
    time_ns=lambda: int(wall_clock() * 1e9),
)
THREADING = SimpleNamespace(
    Thread=scheduler.Thread,
    Lock=scheduler.Lock,
    RLock=scheduler.RLock,
    Condition=scheduler.Condition,
    Event=scheduler.Event,
    Semaphore=scheduler.Semaphore,
    current_thread=lambda: scheduler.scheduler().current,
    main_thread=lambda: None,
    get_ident=lambda: getattr(scheduler.scheduler().current, "ident", 0),
)
UUID = SimpleNamespace(UUID=uuid.UUID, uuid4=lambda: uuid.UUID(int=generator.getrandbits(128)))
MODULES_BY_NAME = {
    "time": (time, TIME),
    "threading": (threading, THREADING),
    "random": (random, generator),
    "uuid": (uuid, UUID),
}


construct = DataContainer.__init__


@cache
def untagged(kind: Any) -> frozenset[str]:
    """The names of the fields of a kind of messages that no tags name."""
    return frozenset(field.name for field in kind._struct._fields if field.tag is None)


def set_fields(message: Any, *args: Any, version: int | None = None, **fields: Any) -> None:
    """In the place of the constructor of kafka-python's messages. That sets each other field to its default, which the
    field has anyway."""
    if args or not fields.keys() <= untagged(message.__class__):
        construct(message, *args, version=version, **fields)
        return
    message._version, message.tags, message.unknown_tags = version, None, None
    for name, value in fields.items():
        setattr(message, name, value)


class ReadAllAvailable:
    """Spark's limit of a batch: none. PySpark 4.1 has no such classes, and the model of 4.2 runs there too."""


@dataclass(frozen=True)
class ReadMaxRows:
    """Spark's limit of a batch in rows."""

    max_rows: int


@contextmanager
def substituted(*tests: str) -> Iterator[None]:
    """Substitutes for as long as the context lasts, and all but chance in the modules whose names begin with these."""
    for name in MODULES:
        importlib.import_module(name)
    replaced: list[tuple[Any, str, Any]] = []
    for module, name, value in [*primitives(tests), *parts(tests)]:
        replaced.append((module, name, getattr(module, name)))
        setattr(module, name, value)
    sys.modules["spark_group_source.wire.reachability"].SERVERS.clear()
    loaded = set(sys.modules)
    try:
        yield
    finally:
        for module, name, value in reversed(replaced):
            setattr(module, name, value)
    late = sorted(name for name in set(sys.modules) - loaded if name.startswith(UNDER_TEST))
    assert not late, f"imported during the run, and so it keeps what is simulated: name it in MODULES: {late}"


def primitives(tests: tuple[str, ...]) -> Iterator[tuple[Any, str, Any]]:
    """What each module under test gets for threads, time, chance and connections: the module, a name and its value."""
    connection = sys.modules["spark_group_source.wire.connection"].Connection
    for name, module in sorted(sys.modules.items()):
        if not name.startswith((*UNDER_TEST, *tests)) or name.startswith("spark_group_source.testing"):
            continue
        for primitive, (real, simulated) in MODULES_BY_NAME.items():
            keeps_chance = primitive == "random" and name.startswith(tests)
            if getattr(module, primitive, None) is real and not keeps_chance:
                yield module, primitive, simulated
        if getattr(module, "Connection", None) is connection:
            yield module, "Connection", network.Connection


def parts(tests: tuple[str, ...]) -> Iterator[tuple[Any, str, Any]]:
    """What certain modules get instead of a part of theirs that does not work in a simulation."""
    modules = sys.modules
    yield modules["spark_group_source.group.member"], "WakeupPipe", scheduler.Wakeup
    for name in ("wire.waiting", "fetch.fetches"):
        yield modules[f"spark_group_source.{name}"], "poll_readable", poll_readable
    yield modules["tests.fake.kafka"], "FakeBroker", network.Broker
    stream = modules["spark_group_source.spark.stream"]
    yield stream, "NotificationClient", modules["tests.simulation.spark"].Notifications
    yield stream, "ReadLimit", None
    yield stream, "ReadAllAvailable", ReadAllAvailable
    yield stream, "ReadMaxRows", ReadMaxRows
    yield DataContainer, "__init__", set_fields
    for name in ("log_to_stderr", "leave_when_told", "ignore_further_signals"):
        yield stream, name, lambda *_: None
    if not tests:  # simulated logs have no bytes
        visible = modules["spark_group_source.fetch.visible"]
        yield visible, "with_records", lambda ranges, *_, **__: network.Connection.network.with_records(ranges)
