"""Writes the golden files anew: bytes that real producers made, and what Java's own consumer reads of them.

    pip install confluent-kafka
    python tests/unit/records/golden/capture.py

Each ``<folder>/<name>.log`` is a log segment of Kafka 4.1.1, which is what a Fetch response carries, and
``<folder>/expected.json`` holds the records that Java's consumer gives for every one of the folder, and the aborted
transactions of the segment's index. Java's records come from ``Golden.java``; those of kafka-python and librdkafka from
here. Producer ids and the like make every capture another.
"""

from __future__ import annotations

import json
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

from confluent_kafka import Producer  # type: ignore[import-not-found, unused-ignore]

from spark_group_source.clock import Deadline
from spark_group_source.testing import EmbeddedKafka
from spark_group_source.testing.java import java

HERE = Path(__file__).parent
CODECS = ["none", "gzip", "snappy", "lz4", "zstd"]
FIRST = 1_700_000_000_000
ABORTED = struct.Struct(">hqqqq")

Record = tuple[bytes | None, bytes | None, list[tuple[str, bytes | None]], int]


def records() -> list[Record]:
    """What kafka-python and librdkafka write."""
    found: list[Record] = [
        (b"key", b"value", [], FIRST),
        (None, b"no key", [], FIRST + 1),
        (b"", b"", [], FIRST + 2),
        (b"tombstone", None, [], FIRST + 3),
        (b"h", b"headers", [("one", b"1"), ("one", b"again"), ("", b"")], FIRST + 100_000),
    ]
    found += [(b"k%d" % i, b"v" * i, [], FIRST + i) for i in range(70)]
    return [*found, (b"large", b"0123456789" * 900, [], FIRST)]


class Capture:
    def __init__(self, kafka: EmbeddedKafka) -> None:
        self._kafka = kafka
        self._expected: dict[str, dict[str, Any]] = {}

    def golden(self, *arguments: str) -> str:
        command = [java(), "-cp", f"{self._kafka.libs}/*", str(HERE / "Golden.java"), arguments[0]]
        command += [self._kafka.bootstrap_servers, *arguments[1:]]
        return subprocess.run(command, check=True, capture_output=True).stdout.decode()

    def keep(self, name: str, isolations: tuple[str, ...] = ("read_uncommitted",)) -> None:
        """Copies the segments of topic ``name`` and what is to be read of them."""
        (folder,) = self._kafka.directory.rglob(f"{name}-0")
        end = self._kafka.end_offsets(name)[0]
        rows = {each: self.golden("consume", name, str(end), each).splitlines() for each in isolations}
        segments = sorted(folder.glob("*.log"))
        target, stem = name.split(".")
        (HERE / target).mkdir(exist_ok=True)
        (HERE / target / f"{stem}.log").write_bytes(b"".join(each.read_bytes() for each in segments))
        indexes = b"".join(each.read_bytes() for each in sorted(folder.glob("*.txnindex")))
        aborted = [[producer, first] for _, producer, first, _, _ in ABORTED.iter_unpack(indexes)]
        expected: dict[str, Any] = {"end": end, "aborted": aborted}
        expected |= {key: [json.loads(line) for line in lines] for key, lines in rows.items()}
        if self._expected.setdefault(target, expected) != expected:
            raise ValueError(f"{name} gives other records than the first of {target}")
        (HERE / target / "expected.json").write_text(json.dumps(expected, indent=None, separators=(",", ":")) + "\n")

    def kafka_python(self, topic: str, codec: str) -> None:
        with self._kafka.producer(compression_type=None if codec == "none" else codec, linger_ms=200) as producer:
            for key, value, headers, timestamp in records():
                producer.send(topic, key=key, value=value, headers=headers, timestamp_ms=timestamp)
            producer.flush()

    def librdkafka(self, topic: str, codec: str) -> None:
        servers = self._kafka.bootstrap_servers
        producer = Producer({"bootstrap.servers": servers, "compression.type": codec, "linger.ms": 200})
        for key, value, headers, timestamp in [*records(), (None, None, [("null", None)], FIRST)]:
            options: dict[str, Any] = {"headers": headers, "timestamp": timestamp}
            producer.produce(topic, value, key, **options)
        producer.flush()


def await_compaction(folder: Path) -> None:
    """Until the cleaner has not written for a while."""
    deadline = Deadline.after(60)
    before: list[tuple[str, int]] = []
    same = 0
    while same < 8:
        now = [(each.name, each.stat().st_size) for each in sorted(folder.glob("*.log"))]
        same = same + 1 if now == before and len(now) < 4 else 0
        before = now
        if deadline.expired():
            raise TimeoutError(f"not compacted: {now}")
        time.sleep(0.5)


def main() -> None:
    # The records' timestamps are old, and retention goes by them.
    with EmbeddedKafka(config={"log.retention.ms": "-1"}) as kafka:
        capture = Capture(kafka)
        for codec in CODECS:
            capture.golden("plain", kafka.create_topic(f"java.{codec}"), codec)
            capture.keep(f"java.{codec}")
            capture.kafka_python(kafka.create_topic(f"kafka-python.{codec}"), codec)
            capture.keep(f"kafka-python.{codec}")
            capture.librdkafka(kafka.create_topic(f"librdkafka.{codec}"), codec)
            capture.keep(f"librdkafka.{codec}")
        appended = kafka.create_topic("log-append-time.java", config={"message.timestamp.type": "LogAppendTime"})
        capture.golden("plain", appended, "lz4")
        capture.keep(appended)
        transactional = kafka.create_topic("transactions.java")
        capture.golden("transactions", transactional)
        capture.keep(transactional, ("read_uncommitted", "read_committed"))
        config = {"cleanup.policy": "compact", "segment.ms": "100", "min.cleanable.dirty.ratio": "0.01"}
        compacted = kafka.create_topic("compacted.java", config=config)
        for _ in range(2):  # a segment ends with a record that is segment.ms younger than its first
            capture.golden("compacted", compacted)
        await_compaction(next(kafka.directory.rglob(f"{compacted}-0")))
        capture.keep(compacted)


if __name__ == "__main__":
    main()
