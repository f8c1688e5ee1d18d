"""The location of a record batch in a log, which every error about its bytes names."""

from __future__ import annotations

from typing import NamedTuple

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.offsets import TopicPartition


class BatchLocation(NamedTuple):
    """The partition and base offset of a record batch."""

    tp: TopicPartition
    base_offset: int

    def corrupt(self, damage: str) -> CorruptRecords:
        """The error for a record batch with damaged bytes."""
        return CorruptRecords(
            f"The record batch of {self.tp} at offset {self.base_offset} is damaged: {damage}.",
            "If this repeats, the broker's copy is damaged: compare it with the other replicas"
            " (kafka-dump-log.sh --deep-iteration), or start after this record batch.",
        )

    def unsupported(self, problem: str, action: str) -> UnsupportedRecords:
        """The error for a record batch that this source cannot read."""
        return UnsupportedRecords(f"The record batch of {self.tp} at offset {self.base_offset} {problem}.", action)
