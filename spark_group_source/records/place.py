"""Where in a log a record batch stands: what every error about its bytes names."""

from __future__ import annotations

from typing import NamedTuple

from spark_group_source.errors import CorruptRecords, UnsupportedRecords
from spark_group_source.offsets import TopicPartition


class Place(NamedTuple):
    """A record batch, by its partition and base offset."""

    tp: TopicPartition
    base_offset: int

    def corrupt(self, what: str) -> CorruptRecords:
        """The error for a batch whose bytes are damaged; ``what`` says in which way."""
        return CorruptRecords(
            f"The record batch of {self.tp} at offset {self.base_offset} is damaged: {what}.",
            "If this repeats, the broker's copy is damaged: compare it with the other replicas'"
            " (kafka-dump-log.sh --deep-iteration), or start behind it.",
        )

    def unsupported(self, what: str, action: str) -> UnsupportedRecords:
        """The error for a batch in a form that is not read here."""
        return UnsupportedRecords(f"The record batch of {self.tp} at offset {self.base_offset} {what}.", action)
