"""A simulated executor: its tasks read record batches while brokers, leaders and the network fail.

A row is one that the log had when the batch was planned, in order and once. One is missing only if Kafka has lost it.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Any

from spark_group_source.errors import DataLoss
from spark_group_source.fetch.reader import TaskReader
from spark_group_source.fetch.task import FetchTask
from spark_group_source.fetch.task_settings import FetchSettings
from spark_group_source.offsets import OffsetRange
from spark_group_source.records.columns import arrow_schema
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.metadata import Broker, Metadata, Topic
from spark_group_source.wire.wire_options import WireOptions
from tests.fake import FakeKafka
from tests.simulation import network, substitution
from tests.simulation.chance import Chance
from tests.simulation.items import encoded, over_bytes
from tests.simulation.network import Broken
from tests.simulation.scheduler import Process, Scheduler, Thread
from tests.unit.records.build import Record, batch

READS = "reads"
TOPIC = "t"
TASKS = 4
HEALED_WITHIN = 60.0
"""Seconds after the last fault within which a task ends."""


class Channel(network.Channel):
    """A connection on which fetches are bytes."""

    def send(self, request: Any, number: int) -> None:
        super().send(over_bytes(request) if request.name == "FetchRequest" else request, number)

    def _answer(self, number: int, response: Any) -> None:
        fetched = getattr(response, "name", "") == "FetchResponse"
        super()._answer(number, encoded(number, response) if fetched else response)


class Reads:
    """One run: a topic that is written, a worker that reads it in some tasks, and events until everything heals."""

    def __init__(self, run: Scheduler, chance: Chance, told: Callable[[str], None]) -> None:
        self.run, self.chance, self.told = run, chance, told
        self.kafka = FakeKafka(brokers=1 + chance.pick("brokers", 1, (0, 2), 0.5))
        self.net = network.Network(run, self.kafka.brokers, told, Channel)  # type: ignore[arg-type]
        network.Connection.network = self.net
        self.fails = chance.pick("failOnDataLoss", True, (False,), 0.5)
        self.heals_at = chance.number("heals at", 8.0, 3.0, 25.0)
        self.content: dict[int, dict[int, bytes]] = defaultdict(dict)
        """By partition, the value at each offset that has a record now."""
        self.lost: set[tuple[int, int]] = set()
        """Offsets that a log has lost since the last plan, also those without a record."""
        self.values = 0

    def conduct(self) -> None:
        """The whole run."""
        self.kafka.create_topic(TOPIC, self.chance.pick("partitions", 2, (1, 3), 0.5))
        self._produce()
        self.net.fault_probability = self.chance.pick("trouble", 0.0, (0.02, 0.1, 0.25), 0.8)
        Thread(target=self._trouble, name="trouble", process=self.run.outside).start()
        address = [("127.0.0.1", broker.port) for broker in self.kafka.brokers.values()]
        wire = WireOptions(tuple(address), "worker", request_timeout=3.0, retry_backoff_max=1.0)
        part = self.chance.pick("bytes of a partition", None, (1, 300, 2000), 0.5)
        settings = FetchSettings(fail_on_data_loss=self.fails, max_partition_fetch_bytes=part, max_wait=0.2)
        schema, worker = arrow_schema(["value", "partition", "offset"]), Process("worker")
        cluster, starts = Cluster(wire), defaultdict[int, int](int)
        for number in range(TASKS):
            ranges = list(self._plan(starts))
            self.lost.clear()
            planned: dict[tuple[int, int], bytes] = {}
            for each in ranges:
                planned |= self._in(each)
            self.told(f"task {number} reads {', '.join(map(str, ranges))}")
            found: list[Any] = []
            leaders = self._leaders() if number % 2 == 0 else None
            task = FetchTask(tuple(ranges), wire, schema, settings, leaders=leaders)
            thread = Thread(target=self._read, args=(task, cluster, found), name="task", process=worker)
            thread.start()
            self._await_end(number, found)
            if not self._check(ranges, planned, found):
                return
            starts |= {each.partition: each.end for each in ranges}
            substitution.sleep(self.chance.number("between tasks", 0.1, 0.0, 5.0, 0.5))
            self._produce()

    def _leaders(self) -> Metadata:
        """What the driver tells a task: the leaders at its plan, which may change before the task fetches."""
        partitions = {number: log.leader for number, log in self.kafka.logs[TOPIC].items()}
        epochs = {number: log.epoch for number, log in self.kafka.logs[TOPIC].items()}
        brokers = {each.node: Broker(each.node, "127.0.0.1", each.port) for each in self.kafka.brokers.values()}
        return Metadata(brokers, {TOPIC: Topic(TOPIC, str(self.kafka.ids[TOPIC]), partitions, epochs=epochs)})

    def _await_end(self, number: int, found: list[Any]) -> None:
        """Waits until the task has ended: after its rows comes its error, or None."""
        limit = max(self.heals_at, self.run.now) + HEALED_WITHIN
        while not found or isinstance(found[-1], dict):
            if self.run.now > limit:
                raise Broken(f"task {number} does not end in {HEALED_WITHIN:.0f} s")
            substitution.sleep(0.1)

    def _read(self, task: FetchTask, cluster: Cluster, found: list[Any]) -> None:
        try:
            for rows in TaskReader(task, cluster).batches():
                found += rows.to_pylist()
            found.append(None)
        except Exception as error:
            cluster.close()
            found.append(error)

    def _check(self, ranges: list[OffsetRange], planned: dict[tuple[int, int], bytes], found: list[Any]) -> bool:
        """Compares the rows with what was planned; whether the query goes on."""
        *rows, failure = found
        read = [(each["partition"], each["offset"]) for each in rows]
        for each in rows:
            at = each["partition"], each["offset"]
            if planned.get(at) != each["value"]:
                raise Broken(f"a row of {at} is {each['value']!r}, and not {planned.get(at)!r}")
        _check_order(read)
        if isinstance(failure, DataLoss) and self.fails and self._has_lost(ranges):
            self.told(f"the query ends: {failure}")
            return False
        if failure is not None:
            raise Broken(f"a task ends with {failure!r}") from failure
        unread = planned.keys() - set(read)
        if not self.fails:
            unread -= self.lost
        if unread:
            raise Broken(f"{sorted(unread)[:5]} are not read")
        return True

    def _has_lost(self, ranges: list[OffsetRange]) -> bool:
        for each in ranges:
            for at in range(each.start, each.end):
                if (each.partition, at) in self.lost:
                    return True
        return False

    def _plan(self, starts: dict[int, int]) -> Iterator[OffsetRange]:
        for number, log in self.kafka.logs[TOPIC].items():
            start = min(max(starts[number], log.start), log.end)
            yield OffsetRange(TOPIC, number, start, log.end, str(self.kafka.ids[TOPIC]), log.epoch)

    def _in(self, read: OffsetRange) -> dict[tuple[int, int], bytes]:
        """The values in a range, by partition and offset."""
        values: dict[tuple[int, int], bytes] = {}
        for at, value in self.content[read.partition].items():
            if read.start <= at < read.end:
                values[read.partition, at] = value
        return values

    # Events

    def _trouble(self) -> None:
        events = (
            self._produce, self._elect, self._unclean, self._retention, self._recreate, self._leaderless,
            self._broker_stops, self._broker_hangs, self._cut, self._stale_metadata,
        )  # fmt: skip
        weights = self.chance.weights(len(events))
        while self.run.now < self.heals_at:
            if happens := self.chance.pick("event", None, events, 0.4, weights):
                happens()
            substitution.sleep(self.chance.number("pause", 0.3, 0.01, 1.0))
        self.told("everything heals")
        self.net.heal()
        for node in self.kafka.brokers:
            self._thaw(node)

    def _seconds(self, kind: str) -> float:
        return self.chance.number(kind, 1.0, 0.1, 8.0)

    def _partition(self) -> int:
        return self.chance.pick("which partition", 0, list(self.kafka.logs[TOPIC])[1:], 0.7)

    def _broker(self) -> Any:
        found = list(self.kafka.brokers.values())
        return self.chance.pick("which broker", found[0], found[1:], 0.7)

    def _produce(self) -> None:
        """Appends record batches, of which some have gaps, as compaction and control batches leave them."""
        for number, log in self.kafka.logs[TOPIC].items():
            for _ in range(self.chance.pick("batches", 2, (0, 1, 5), 0.5)):
                count = self.chance.pick("records", 3, (1, 7), 0.5)
                gap = self.chance.pick("gap", 0, (1, 4), 0.2)
                size = self.chance.pick("size", 10, (200, 1500), 0.3)
                self.values += 1
                values = [b"%d.%d" % (self.values, each) * (size // 4) for each in range(count)]
                self.content[number] |= dict(enumerate(values, log.end))
                raw = batch([Record(value) for value in values], last_delta=count + gap - 1)
                self.kafka.append(TOPIC, number, raw, count + gap)

    def _lose(self, number: int, end: int, keeps: Callable[[int], bool]) -> None:
        """A log that ended there loses what it does not keep."""
        self.lost |= {(number, at) for at in range(end) if not keeps(at)}
        self.content[number] = {at: value for at, value in self.content[number].items() if keeps(at)}

    def _elect(self) -> None:
        number, leader = self._partition(), self._broker().node
        self.told(f"broker {leader} is elected for {number}")
        self.kafka.elect(TOPIC, number, leader=leader)

    def _unclean(self) -> None:
        number, leader = self._partition(), self._broker().node
        log = self.kafka.logs[TOPIC][number]
        end = self.chance.pick("unclean end", log.end, [first for first, _, _ in log.batches], 0.8)
        self.told(f"an unclean election for {number} keeps the records before {end}")
        before = log.end
        self.kafka.elect(TOPIC, number, end, leader)
        self._lose(number, before, lambda at: at < end)

    def _retention(self) -> None:
        number = self._partition()
        log = self.kafka.logs[TOPIC][number]
        start = round(self.chance.number("retention to", log.start, log.start, log.end))
        self.told(f"retention deletes the records of {number} before {start}")
        self.kafka.truncate(TOPIC, number, start)
        self._lose(number, log.end, lambda at: at >= start)

    def _recreate(self) -> None:
        self.told("the topic is deleted and recreated")
        for number, log in self.kafka.logs[TOPIC].items():
            self._lose(number, log.end, lambda at: False)
        count = len(self.kafka.logs[TOPIC])
        self.kafka.delete_topic(TOPIC)
        self.kafka.create_topic(TOPIC, count)
        self._produce()

    def _leaderless(self) -> None:
        number, seconds = self._partition(), self._seconds("leaderless")
        log = self.kafka.logs[TOPIC][number]
        if (leader := log.leader) is not None:
            self.told(f"{number} has no leader for {seconds:.1f} s")
            log.leader = None
            self.run.after(seconds, lambda: log.elect(log.leader or leader, None))

    def _broker_stops(self) -> None:
        broker, seconds = self._broker(), self._seconds("outage")
        self.told(f"broker {broker.node} is down for {seconds:.1f} s")
        broker.stop()
        self.run.after(seconds, broker.start)

    def _broker_hangs(self) -> None:
        broker, seconds = self._broker(), self._seconds("outage")
        self.told(f"broker {broker.node} hangs for {seconds:.1f} s")
        broker.hung_until = self.run.now + seconds

    def _cut(self) -> None:
        broker, seconds = self._broker(), self._seconds("outage")
        link = self.net.links.setdefault(("worker", broker.node), network.Link())
        link.to_broker = link.to_client = self.run.now + seconds
        self.told(f"the worker and broker {broker.node} are cut for {seconds:.1f} s")

    def _stale_metadata(self) -> None:
        node, seconds = self._broker().node, self._seconds("stale")
        if self.kafka.brokers.keys() - self.kafka._frozen.keys() > {node}:  # somebody has told the planned id
            self.told(f"broker {node} learns nothing for {seconds:.1f} s")
            self.kafka.freeze_metadata(node)
            self.run.after(seconds, lambda: self._thaw(node))

    def _thaw(self, node: int) -> None:
        if node in self.kafka._frozen:
            self.kafka.thaw_metadata(node)


def _check_order(read: list[tuple[int, int]]) -> None:
    """Each partition's rows come once, in the order of their offsets."""
    by_partition: dict[int, list[int]] = {}
    for number, at in read:
        by_partition.setdefault(number, []).append(at)
    for number, offsets in by_partition.items():
        if offsets != sorted(set(offsets)):
            raise Broken(f"rows of partition {number} are not in order, or twice: {offsets}")
