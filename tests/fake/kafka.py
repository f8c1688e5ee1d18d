"""The fake cluster, as tests start, fill and break it."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterable

from kafka.record.default_records import DefaultRecordBatchBuilder

from tests.fake.consumer_group import UNKNOWN_GROUP
from tests.fake.faults import Fault, Faults
from tests.fake.group import CLASSIC, Partition
from tests.fake.handlers import RequestHandlers, View
from tests.fake.log import FakeLog
from tests.fake.releases import Offered
from tests.fake.server import FakeBroker

NON_EMPTY_GROUP, GROUP_SUBSCRIBED = 68, 86


class FakeKafka(RequestHandlers):
    """A cluster of fake brokers, numbered from 1. ``requests`` and ``commits`` hold all that came, in order.

    ``group_version`` is the feature that switches the group protocol of KIP-848 on: 1 as in Kafka 4, or 0.
    ``offered`` are the versions of an older or another broker; see :meth:`offer`.
    ``heartbeat_interval`` is what members with that protocol are told, and ``session_timeout`` is theirs, in seconds.
    """

    def __init__(
        self,
        brokers: int = 1,
        max_metadata: int = 4096,
        group_version: int = 1,
        heartbeat_interval: float = 0.05,
        session_timeout: float = 45.0,
        offered: Offered | None = None,
    ) -> None:
        super().__init__(max_metadata, group_version, heartbeat_interval, session_timeout)
        self._faults = Faults()
        self.brokers = {node: FakeBroker(node, self._handler(node), self._faults) for node in range(1, brokers + 1)}
        self.offered = {} if offered is None else dict.fromkeys(self.brokers, offered)

    def __enter__(self) -> FakeKafka:
        for broker in self.brokers.values():
            broker.start()
        return self

    def __exit__(self, *_: object) -> None:
        with self._changed:
            for group in self._groups.values():
                group.classic.closed = True
            self._changed.notify_all()
        for broker in self.brokers.values():
            broker.stop()
        for broker in self.brokers.values():
            broker.join()

    @property
    def bootstrap_servers(self) -> str:
        """All brokers, in the form of ``kafka.bootstrap.servers``."""
        return ",".join(f"127.0.0.1:{broker.port}" for broker in self.brokers.values())

    def next(self, api: str, fault: Fault, times: int = 1) -> None:
        """Applies ``fault`` to the next ``times`` requests of ``api``, for example ``Heartbeat``."""
        self._faults.add(api, fault, times)

    def clear_faults(self) -> None:
        self._faults.clear()

    def offer(self, node: int, offered: Offered) -> None:
        """Restarts a broker with another release, which offers these versions."""
        self.brokers[node].stop()
        self.offered[node] = offered
        self.brokers[node].start()

    def create_topic(self, name: str, partitions: int = 1) -> str:
        """Creates a topic, or adds partitions; the brokers lead them in turn."""
        with self._changed:
            self.ids.setdefault(name, uuid.uuid4())
            logs = self.logs.setdefault(name, {})
            for number in range(len(logs), partitions):
                logs[number] = FakeLog(sorted(self.brokers)[number % len(self.brokers)])
        return name

    def delete_topic(self, name: str) -> None:
        """Deletes a topic and, once the coordinator learns it, its committed offsets. A recreated topic has another
        id."""
        with self._changed:
            del self.logs[name], self.ids[name]
            if self.coordinator in self._frozen:
                self._deleted_late.add(name)
            else:
                self._delete_offsets_of(name)

    def produce(self, topic: str, rows: Iterable[str], partition: int = 0, timestamp: int = 1_700_000_000_000) -> None:
        """Appends a batch of records, all with the same ``timestamp`` in milliseconds."""
        builder = DefaultRecordBatchBuilder(2, 0, False, -1, -1, 0, 2**30)
        values = [row.encode() for row in rows]
        for number, value in enumerate(values):
            builder.append(number, timestamp, None, value, [])
        self.append(topic, partition, bytes(builder.build()), len(values))

    def append(self, topic: str, partition: int, batch: bytes, offsets: int) -> None:
        """Appends a batch that covers so many offsets. Sets its base offset, which no checksum covers."""
        with self._changed:
            self.logs[topic][partition].append(batch, offsets)
            self._changed.notify_all()

    def begin(self, topic: str, partition: int) -> None:
        """Begins a transaction: readers of committed records do not get beyond this until it ends."""
        with self._changed:
            log = self.logs[topic][partition]
            log.stable = log.end if log.stable is None else log.stable

    def truncate(self, topic: str, partition: int, start: int) -> None:
        with self._changed:
            self.logs[topic][partition].truncate(start)

    def elect(self, topic: str, partition: int = 0, end: int | None = None, leader: int | None = None) -> None:
        """Elects a leader, by default the same broker. An unclean election keeps only the records before ``end``."""
        with self._changed:
            self.logs[topic][partition].elect(leader, end)
            self._changed.notify_all()

    def freeze_metadata(self, node: int) -> None:
        """From now on, this broker learns nothing of the cluster's topics, leaders and coordinator."""
        with self._changed:
            self._frozen[node] = self._view(node)

    def thaw_metadata(self, node: int) -> None:
        """The broker learns all that it missed. As coordinator it then deletes the offsets in deleted topics."""
        with self._changed:
            missed = self._frozen.pop(node)
            if node == self.coordinator:
                self._delete_offsets_in_former(missed, self._view(node))

    def _delete_offsets_in_former(self, missed: View, now: View) -> None:
        known = missed.topics.items()
        former = {name for name, of in known if name not in now.topics or now.topics[name][0] != of[0]}
        for name in former | self._deleted_late:
            self._delete_offsets_of(name)
        self._deleted_late.clear()

    def _delete_offsets_of(self, name: str) -> None:
        for group in self._groups.values():
            for tp in [tp for tp in group.offsets if tp[0] == name]:
                del group.offsets[tp], group.epochs[tp]

    def move_coordinator(self, node: int | None, loading: float = 0.0) -> None:
        """Makes this broker the coordinator, or none. It first reads the groups, for so many seconds.

        It deletes offsets in topics that were deleted while the former one lagged; a real coordinator keeps these.
        """
        with self._changed:
            now = time.monotonic()
            if missed := self._frozen.get(self.coordinator):
                self._delete_offsets_in_former(missed, self._view(node or 0))
            for group in self._groups.values():
                group.advance(now)
                group.reload(now + loading)
            self.coordinator, self._loading_until = node or 0, now + loading

    def request_count(self, api: str) -> int:
        return sum(name == api for name, _, _ in self.requests)

    def commit(self, group: str, offsets: dict[Partition, int], metadata: str = "", epoch: int = -1) -> None:
        """Sets committed offsets, like an operator."""
        with self._changed:
            found = self.group(group)
            found.kind = found.kind or CLASSIC
            found.offsets |= {tp: (offset, metadata) for tp, offset in offsets.items()}
            found.epochs |= dict.fromkeys(offsets, epoch)

    def expire(self, group: str, member_id: str) -> None:
        with self._changed:
            self._current(group).expire(member_id, time.monotonic())

    def delete_group(self, group: str) -> int:
        """Deletes a group without members; returns the error code, or 0."""
        with self._changed:
            found = self._current(group)
            if found.kind and not found.empty:
                return NON_EMPTY_GROUP
            del self._groups[group]
            return 0 if found.kind else UNKNOWN_GROUP
