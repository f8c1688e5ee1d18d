"""The topics that test_same_rows reads: every kind of record, by every producer, with every codec."""

from __future__ import annotations

import itertools

from spark_group_source.testing.kafka import EmbeddedKafka
from tests.integration.writers import PRODUCERS, Open, Record

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ISOLATIONS = ("read_committed", "read_uncommitted")
ANY_TIME = {"retention.ms": "-1", "message.timestamp.after.max.ms": str(2**63 - 1)}

PLAIN = [
    Record(b"key", b"value"),
    Record(None, b"no key"),
    Record(b"", b""),
    *[Record(b"k%d" % number, b"v" * number, timestamp=1_700_000_000_000 + number) for number in range(70)],
    Record(b"large", b"0123456789" * 9000),
]
HEADERS = [
    Record(b"twice", b"v", (("twice", b"a"), ("twice", b"b"), ("twice", None))),
    Record(b"empty", b"v", (("", b""), ("null", None))),
    Record(None, b"bytes", (("\N{LATIN SMALL LETTER U WITH DIAERESIS}mlaut", bytes(range(256))),)),
    Record(b"none", b"v"),
    Record(b"many", b"v", tuple((f"h{number}", b"%d" % number) for number in range(40))),
]
TOMBSTONES = [
    Record(b"gone", b"first"),
    Record(b"gone", None),
    Record(b"", None),
    Record(b"headers", None, (("why", b"deleted"),)),
]
KINDS = {"plain": PLAIN, "headers": HEADERS, "tombstones": TOMBSTONES}
"""The first records, in this order. Later records are transactional."""
LAST = Record(None, b"behind the open transaction")

Expected = dict[tuple[str, int], list[Record]]
"""Records by topic and partition, in the order of their offsets."""


class Topics:
    """Topics of one prefix, and their ``expected`` records by isolation level."""

    def __init__(self, kafka: EmbeddedKafka, opened: Open, prefix: str) -> None:
        self._kafka, self._opened = kafka, opened
        self.prefix = prefix
        self.expected: dict[str, Expected] = {each: {} for each in ISOLATIONS}

    def name(self, codec: str) -> str:
        return f"{self.prefix}-{codec}"

    def write(self, codec: str) -> None:
        """Creates a topic with a partition for each producer. Their last transactions stay open."""
        topic = self._kafka.create_topic(self.name(codec), len(PRODUCERS), ANY_TIME)
        for partition, producer in enumerate(PRODUCERS):
            writer = self._opened(producer, codec, None)
            outside = [_known_to(producer, each) for kind in KINDS.values() for each in kind]
            for each in outside:
                writer.send(topic, partition, each)
            writer.flush()
            every = self._write_transactions(producer, codec, topic, partition)
            writer.send(topic, partition, LAST)
            writer.flush()
            committed = [each for each in every if each.value == b"commit" * 20]
            self._expect((topic, partition), outside + committed, [*outside, *every, LAST])

    def _write_transactions(self, producer: str, codec: str, topic: str, partition: int) -> list[Record]:
        writer = self._opened(producer, codec, f"{producer}-of-{topic}")
        every: list[Record] = []
        for number, end in enumerate(("commit", "abort", "abort", "commit", "leave open")):
            records = [_known_to(producer, Record(b"%d" % number, end.encode() * 20, (("h", None),)))] * 3
            writer.begin()
            for each in records:
                writer.send(topic, partition, each)
            writer.flush()  # an abort drops unsent records
            if end == "commit":
                writer.commit()
            elif end == "abort":
                writer.abort()
            every += records
        return every

    def write_timestamps(self, kind: str) -> None:
        """Creates a topic of null, empty and plain keys and values, with the lowest and highest timestamps."""
        config = ANY_TIME | {"message.timestamp.type": kind}
        topic = self._kafka.create_topic(f"{self.prefix}-{kind}", config=config)
        writer = self._opened("kafka-python", "none", None)
        texts: list[bytes | None] = [None, b"", b"plain", bytes(range(256)), b"x" * 9000]
        pairs = [(key, value) for key in texts for value in texts if (key, value) != (None, None)]
        times = (0, 1_700_000_000_123, 253_402_300_799_999)
        written = [Record(key, value, timestamp=timestamp) for timestamp in times for key, value in pairs]
        for each in written:
            writer.send(topic, 0, each)
        writer.flush()
        if kind == "LogAppendTime":
            written = [each._replace(timestamp=None) for each in written]
        self._expect((topic, 0), written, written)

    def _expect(self, place: tuple[str, int], committed: list[Record], every: list[Record]) -> None:
        self.expected["read_committed"][place] = committed
        self.expected["read_uncommitted"][place] = every


def by_kind(records: list[Record]) -> dict[str, list[Record]]:
    """What was read of a partition, cut as it was written."""
    rest = iter(records)
    found = {name: list(itertools.islice(rest, len(kind))) for name, kind in KINDS.items()}
    return found | {"transactional": list(rest)}


def _known_to(producer: str, record: Record) -> Record:
    """kafka-python knows no header without a value."""
    if producer != "kafka-python":
        return record
    return record._replace(headers=tuple((key, value) for key, value in record.headers if value is not None))
