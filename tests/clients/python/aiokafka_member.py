"""A member of a consumer group with aiokafka. SIGTERM makes it leave the group."""

from __future__ import annotations

import asyncio
import logging
import signal

import line
from aiokafka import AIOKafkaConsumer, ConsumerRebalanceListener, TopicPartition
from aiokafka.coordinator.assignors.range import RangePartitionAssignor
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor
from aiokafka.errors import KafkaError

ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
}

log = logging.getLogger("member")


class Member(ConsumerRebalanceListener):
    """One consumer."""

    def __init__(self) -> None:
        chosen = {}
        if line.items("assignor"):
            chosen["partition_assignment_strategy"] = [ASSIGNORS[each] for each in line.items("assignor")]
        if line.SETTINGS.get("instance"):
            chosen["group_instance_id"] = line.SETTINGS["instance"]
        self._consumer = AIOKafkaConsumer(
            bootstrap_servers=line.items("servers"),
            group_id=line.SETTINGS["group"],
            client_id=line.SETTINGS["client"],
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            session_timeout_ms=int(line.SETTINGS["session"]),
            heartbeat_interval_ms=200,
            metadata_max_age_ms=1000,
            **chosen,
        )
        self._read: dict[TopicPartition, int] = {}
        self._ends = asyncio.Event()

    async def on_partitions_revoked(self, revoked: list[TopicPartition]) -> None:
        await self._commit()
        self._read.clear()

    async def on_partitions_assigned(self, assigned: list[TopicPartition]) -> None:
        line.assigned(assigned)

    async def run(self) -> None:
        """Until SIGTERM."""
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, self._ends.set)
        await self._consumer.start()
        if line.SETTINGS.get("pattern"):
            self._consumer.subscribe(pattern=f"^{line.SETTINGS['pattern']}$", listener=self)
        else:
            self._consumer.subscribe(line.items("topics"), listener=self)
        while not self._ends.is_set():
            for tp, records in (await self._consumer.getmany(timeout_ms=100)).items():
                for record in records:
                    line.read(*tp, record.offset)
                self._read[tp] = records[-1].offset + 1
            await self._commit()
        await self._commit()
        await self._consumer.stop()

    async def _commit(self) -> None:
        offsets, self._read = self._read, {}
        if not offsets:
            return
        try:
            await self._consumer.commit(offsets)
        except KafkaError as error:
            log.info("commit: %r", error)
            self._read = offsets | self._read
            return
        for tp, offset in offsets.items():
            line.committed(*tp, offset)


async def main() -> None:
    """Its consumer needs the running loop."""
    await Member().run()


logging.basicConfig(format="%(levelname)s %(name)s %(message)s")
asyncio.run(main())
