"""A model of Spark: a query's checkpoint, and the calls of the micro-batch engine on the source's reader."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, ClassVar

from spark_group_source.errors import DataLoss, GroupSourceError, OptionError
from spark_group_source.offsets import BatchOffset, OffsetRange, TopicPartition
from spark_group_source.options.parsing import parse_options
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.spark.application import Application
from spark_group_source.spark.notifications.client import ServerAddress
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader
from spark_group_source.spark.tasks import TaskPartition
from tests.simulation.aims import COMPLETES, HAS_PLANNED, PLANS, READS, REPORTS, STARTS, STOPS
from tests.simulation.network import Connection
from tests.simulation.scheduler import Event, Process, Scheduler, Thread
from tests.simulation.truth import Truth

Offset = dict[str, Any]
SCHEMA = source_schema(False)


@dataclass
class Checkpoint:
    """The two logs of a checkpoint, as JSON text. They survive the death of the query."""

    offsets: list[str] = field(default_factory=list)
    completed: int = 0

    def end(self, batch: int) -> Offset | None:
        return json.loads(self.offsets[batch]) if batch >= 0 else None

    @property
    def names_cluster(self) -> bool:
        """Whether Spark shows a query its cluster's id first: of an unfinished first batch it asks for the start."""
        return self.completed > 0 or len(self.offsets) > 1

    @property
    def last(self) -> Offset:
        """The end of the last batch."""
        last: Offset = json.loads(self.offsets[-1])
        return last


@cache
def parsed(options: tuple[tuple[str, str], ...]) -> SourceOptions:
    """The parsed options. Each run of a query parses the same text.

    The brokers would tell a member of the consumer protocol its session timeout: "session" stands for that.
    """
    given = dict(options)
    session = given.pop("session", None)
    found = parse_options(given)
    return found if session is None else replace(found, group=replace(found.group, session_timeout=float(session)))


TAKEN_WITHIN = 0.1
"""Seconds within which a reader takes a report of another query, or gets none from then on. A socket holds hundreds,
and here are few."""


class Notifications:
    """In the place of ``NotificationClient``: the reports of completed batches that a query gets."""

    def __init__(self, path: str, listener: Any, application: str) -> None:
        self.completed = listener.completed
        self.reported: list[tuple[bytes, bool]] = []
        self._news = Event()
        self._idle = Event()
        self._idle.set()
        self._closed = self._cut_off = False
        self._busy_since = math.inf
        self._life = Life.of_process[path]
        self._life.notifications = self
        Thread(target=self._deliver, name="completed-batches").start()

    def rejection(self, key: str) -> None:
        """Every query of the simulation has one source."""

    def report(self, digest: bytes, *, of_another: bool) -> None:
        process, now = self._life.process, self._life.query.run.now
        stood_still = max(process.paused_until, process.held_until) > now - TAKEN_WITHIN
        self._cut_off |= now - self._busy_since > TAKEN_WITHIN and not stood_still
        if self._cut_off:
            return
        self.reported.append((digest, of_another))
        self._idle.clear()
        self._news.set()

    def _deliver(self) -> None:
        while not self._closed:
            self._news.wait()
            self._news.clear()
            while self.reported and not self._closed:
                digest, of_another = self.reported.pop(0)
                self._busy_since = self._life.query.run.now if of_another else math.inf
                self.completed(digest)
                self._busy_since = math.inf
            self._idle.set()

    def drain(self) -> None:
        self._idle.wait(2.0)

    def close(self) -> None:
        self._closed = True
        self._news.set()


class Query:
    """One streaming query over all its runs. ``life`` is the run that is alive."""

    def __init__(
        self, run: Scheduler, truth: Truth, name: str, options: dict[str, str], *, reports: bool, spark_4_1: bool
    ) -> None:
        self.run = run
        self.truth = truth
        self.name = name
        self.options = options
        self.reports = reports
        self.spark_4_1 = spark_4_1
        settings = parsed(tuple(options.items())).group
        self.revocation_timeout, self.rebalance_timeout = settings.revocation_timeout, settings.rebalance_timeout
        self.trigger = self.slowest_trigger = 1.0
        self.skew = 0.0
        self.killed_at = self.plan_began = self.began = -1e9
        self.max_batch_seconds = 0.5
        self.alone = self.shares_session = False
        self.is_other_client = False
        """Whether its member stands for a client of another kind: see ``Scenario``."""
        self.wraps = False
        """Whether Spark 4.1 wraps the source for AvailableNow. Its operator changes that when the source refuses it."""
        self.checkpoint = Checkpoint()
        self.life: Life | None = None
        self.lives = 0
        self.planning = False
        """Whether it may have a batch that has not begun."""
        self.pinned = False
        """Whether the checkpoint's first run knows what the latest offsets are."""

    @property
    def alive(self) -> bool:
        return self.life is not None

    def start(self, *, available_now: bool = False) -> Life:
        """Starts the query with its checkpoint."""
        assert self.life is None
        self.lives += 1
        self.began = self.run.now
        if self.alone:  # an owner that has seen all lineages exceeds them, whatever its clock
            self.skew = self.run.chance.number(f"clock of {self.name} behind", self.skew, 0.0, 30.0, 0.3)
        self.planning = False
        self.life = Life(self, available_now)
        return self.life

    @property
    def client(self) -> str:
        """Part of its member's client id. A static member keeps that of its first run."""
        return f"-{self.name}." if "kafka.group.instance.id" in self.options else f"-{self.name}.{self.lives}-"

    @property
    def process(self) -> Process:
        """The process of its present run."""
        assert self.life is not None
        return self.life.process

    @property
    def fails_on_data_loss(self) -> bool:
        return self.options.get("failOnDataLoss") != "false"

    @property
    def logged(self) -> BatchOffset:
        """What its checkpoint has logged last."""
        if not self.checkpoint.offsets:
            return BatchOffset()
        return offset_of(self.checkpoint.offsets[-1])

    @property
    def topics(self) -> set[str]:
        """The topics that it reads."""
        if "assign" in self.options:
            return set(json.loads(self.options["assign"]))
        if "subscribePattern" in self.options:
            return set(self.options["subscribePattern"].split("|"))
        return set(self.options["subscribe"].split(","))

    def subscribes(self, topic: str, partition: int) -> bool:
        """Whether it wants to read a partition."""
        if "assign" in self.options:
            return partition in json.loads(self.options["assign"]).get(topic, ())
        return topic in self.topics

    def borders(self, topic: str, topic_id: str, partition: int) -> list[tuple[int, int]]:
        """Where the ranges of a partition begin and end that the last batches have logged."""
        logged = [offset_of(text).ranges.get(TopicPartition(topic, partition)) for text in self.checkpoint.offsets[-3:]]
        return [(each.start, each.end) for each in logged if each is not None and each.topic_id == topic_id]

    def lose_checkpoint(self) -> None:
        self.checkpoint, self.pinned = Checkpoint(), False
        self.truth.told(f"{self.name} loses its checkpoint")

    def crash(self) -> None:
        """Kills the query's process: its threads vanish, its sockets close."""
        life, self.life = self.life, None
        assert life is not None
        self.run.kill(life.process)
        self.killed_at = self.run.now
        for broker in Connection.network.brokers.values():
            for channel in [each for each in broker.channels if each.process is life.process]:
                channel.close()
        self.truth.died(self, killed=True)


class Life:
    """One run of a query in a process of its own."""

    of_process: ClassVar[dict[str, Life]] = {}

    def __init__(self, query: Query, available_now: bool) -> None:
        self.query = query
        self.available_now = available_now
        self.process = Process(f"{query.name}.{query.lives}")
        self.process.skew = query.skew
        self.notifications: Notifications | None = None
        self.reader: Any = None
        self.stopping = Event()
        self.ended = Event()
        self.replaying = False
        self.ends_at = math.inf
        self.ready = False
        """Whether it has its starting offsets: then it joins."""
        self.of_process[self.process.name] = self
        if query.checkpoint.names_cluster:
            Connection.network.know_cluster.add(self.process.name)
        query.truth.started(query, self.process.name, available_now=available_now)
        self.thread = Thread(target=self._run, name=self.process.name, process=self.process)
        self.thread.start()

    def stop(self) -> None:
        """Asks the query to stop, also in a call; ``ended`` is set when it has."""
        self.stopping.set()
        if self.ends_at > self.query.run.now and self.query.run.chance.flag(f"{self.query.name} is interrupted", 0.5):
            self.query.run.interrupt(self.thread)

    def _run(self) -> None:
        query = self.query
        ended = False
        try:
            query.run.passing(STARTS)
            self.reader = GroupStreamReader(
                parsed(tuple(query.options.items())),
                SCHEMA,
                Application("sim", self.process.name, wraps_available_now=query.wraps),
                ServerAddress(self.process.name if query.reports else ""),
            )
            self._batches()
            ended = not self.stopping.is_set()
        except OptionError:
            assert query.wraps
            query.wraps = False
        except GroupSourceError as error:
            query.truth.failed(query, error)
        except SystemExit:
            pass
        self.thread.interrupted = False  # Spark's further signals are ignored
        self.ends_at = query.run.now
        query.run.passing(STOPS)
        began = query.run.now
        if self.reader is not None:
            self._call("stop", self.reader.stop)
            query.truth.left(query, began)
        if ended:
            query.truth.run_ended(query)
        query.truth.died(query, killed=False)
        query.life = None
        self.process.ended = True
        self.ended.set()

    def _call(self, name: str, function: Any, *args: Any) -> Any:
        began = self.query.run.now
        result = function(*args)
        self.query.truth.contract.check_call(self.query, name, self.query.run.now - began)
        return result

    def _batches(self) -> None:
        """Plans and runs batches until the query stops, or its AvailableNow run has reached its target."""
        query, checkpoint = self.query, self.query.checkpoint
        self._begin()
        while not self.stopping.is_set():
            last = len(checkpoint.offsets) - 1
            start = checkpoint.end(last) or self._initial()
            text = self._plan(start)
            if last >= 0 and text == checkpoint.offsets[last]:
                query.planning = False
                if self.available_now:
                    return
                self.stopping.wait(query.trigger)
                continue
            query.truth.contract.check_json(query, text)
            checkpoint.offsets.append(text)
            if last >= 0:
                self._call("commit", self.reader.commit, start)
            self._run_batch(last + 1, replayed=False)
            self.stopping.wait(0.0 if self.available_now else query.trigger)

    def _begin(self) -> None:
        """Prepares the reader, and replays a batch that was logged and not completed."""
        query, checkpoint = self.query, self.query.checkpoint
        if query.wraps:  # as if a batch had been read between the two
            self._latest({})
            self._latest({})
        if self.available_now:
            self.reader.prepareForTriggerAvailableNow()
        if len(checkpoint.offsets) > checkpoint.completed:
            self.replaying = True
            self._run_batch(len(checkpoint.offsets) - 1, replayed=True)
            self.replaying = False
        elif query.spark_4_1 and checkpoint.offsets:  # this tells the reader where the checkpoint stands
            self.reader.partitions(checkpoint.last, checkpoint.last)

    def _plan(self, start: Offset) -> str:
        """The offset of the next batch, as it is logged."""
        query = self.query
        self.ready = True
        query.run.passing(PLANS)
        query.truth.told_of_completion(query)
        query.plan_began, query.planning = query.run.now, True
        end = self._latest(start)
        if not query.spark_4_1 and query.run.chance.flag(f"{query.name} asks again", 0.02):
            end = self._latest(start)
        query.run.passing(HAS_PLANNED)
        return json.dumps(end)

    def _latest(self, start: Offset) -> Any:
        if self.query.spark_4_1:
            return self._call("latestOffset", self.reader.latestOffset)
        return self._call("latestOffset", self.reader.latestOffset, start, self.reader.getDefaultReadLimit())

    def _initial(self) -> Offset:
        initial: Offset = json.loads(json.dumps(self._call("initialOffset", self.reader.initialOffset)))
        self.query.truth.pinned(self.query)
        return initial

    def _run_batch(self, batch: int, *, replayed: bool) -> None:
        query, checkpoint = self.query, self.query.checkpoint
        start, end = checkpoint.end(batch - 1) or self._initial(), checkpoint.end(batch)
        assert end is not None
        tasks = self._call("partitions", self.reader.partitions, start, end)
        ranges: list[OffsetRange] = []
        for task in tasks:
            assert isinstance(task, TaskPartition)
            ranges += task.task.ranges
        query.truth.planned(query, batch, checkpoint.offsets[batch], ranges, replayed=replayed)
        query.planning = False
        if ranges:
            query.run.passing(READS)
            seconds = query.run.chance.number(f"batch of {query.name}", 0.1, 0.1, query.max_batch_seconds, 0.5)
            if self.stopping.wait(seconds):
                return  # Spark interrupts the batch
            if query.fails_on_data_loss and not all(map(query.truth.positions.can_read, ranges)):
                raise DataLoss("The simulated task found that records are lost.", "")
        query.run.passing(COMPLETES)
        checkpoint.completed = batch + 1
        query.truth.completed(query, batch)
        self._report(end)

    def _report(self, end: Offset) -> None:
        """Spark tells the listeners that the batch is completed: soon, late, twice or never."""
        from spark_group_source.spark.notifications.messages import digest

        query = self.query
        query.run.passing(REPORTS)
        if self.notifications is None or query.run.chance.flag(f"report of {query.name} is lost", 0.1):
            return
        late = query.run.chance.number(f"report of {query.name}", 0.01, 0.01, 3.0, 0.2)
        name = digest(end)
        batch, text = query.truth.batches[query.name], query.checkpoint.offsets[-1]
        query.run.after(late, lambda: query.truth.told_of_completion(query, batch))
        for _ in range(query.run.chance.pick(f"reports of {query.name}", 1, (2,), 0.05)):
            query.run.after(late, lambda: self._reported(name, text))

    def _reported(self, name: bytes, text: str) -> None:
        """A report comes to each query of the Spark session. One that reads the same takes it for its own."""
        for life in self.of_process.values() if self.query.shares_session else (self,):
            if life.notifications is not None and (life is self or life.query.life is life):
                life.notifications.report(name, of_another=life is not self)
                if life is not self and life.query.checkpoint.offsets[-1:] == [text]:
                    life.query.truth.batches[life.query.name].lose(life.query.run.now)


def offset_of(text: str) -> BatchOffset:
    """The offset that a checkpoint has logged."""
    return BatchOffset.from_json(json.loads(text))
