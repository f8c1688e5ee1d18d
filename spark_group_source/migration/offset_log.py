"""Files of the offset log and the commit log in a checkpoint.

The first line of a file is a version, the second JSON about the query. Each further line is the end of the batch in
one source: JSON, or ``-`` if the source has not read anything. In version 2 the source's name and a colon precede it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from spark_group_source.offsets import TopicPartition, topics_of
from spark_group_source.text import names

NOTHING_READ = ("-", "null", "{}")

VERSIONS = ("v1", "v2")


@dataclass(frozen=True, slots=True)
class LoggedSource:
    """One source. ``name`` is its number in the query, from 0, or the name that the query gives it."""

    name: str
    offset: str

    @property
    def offsets(self) -> dict[TopicPartition, int]:
        """The next offset of each partition; empty if the source has not read anything.

        Raises:
            ValueError: a source of another kind wrote it.
        """
        if self.offset in NOTHING_READ:
            return {}
        topics = json.loads(self.offset)
        offsets: dict[TopicPartition, int] = {}
        for topic, partitions in _mapping(topics).items():
            for number, offset in _mapping(partitions).items():
                is_offset = type(offset) is int and offset >= 0  # JSON's true is an instance of int in Python
                if not is_offset or not number.isdecimal():
                    raise ValueError(f"{number} at {offset}")
                offsets[TopicPartition(topic, int(number))] = offset
        return offsets

    @property
    def topics(self) -> set[str]:
        """The topics that the source has read."""
        return topics_of(self.offsets)

    def __str__(self) -> str:
        try:
            topics = self.topics
        except ValueError:
            return f"{self.name}: not Kafka"
        if not topics:
            return f"{self.name}: nothing read"
        return f"{self.name}: {names(topics)}"


def parse_log(content: bytes) -> list[LoggedSource]:
    """The sources in a file of the directory ``offsets``.

    Raises:
        ValueError: the file is empty, cut off, or of an unknown version; the message is the problem.
    """
    if not content.strip():
        raise ValueError("it is empty")
    version, *lines = content.decode().rstrip("\n").split("\n")
    if version not in VERSIONS:
        raise ValueError(f"its first line is {version[:20]!r}, and not one of {', '.join(VERSIONS)}")
    if len(lines) < 2:
        raise ValueError("it ends before the first source")
    if lines[0].strip():
        _mapping(json.loads(lines[0]))
    sources = []
    for at, line in enumerate(lines[1:]):
        if version == "v2":
            sources.append(_named(line))
        else:
            sources.append(LoggedSource(str(at), line))
    for each in sources:
        if not each.offset:
            raise ValueError(f"source {each.name} has no offset")
        if each.offset.startswith("{"):  # other sources may log text that is not JSON
            json.loads(each.offset)
    return sources


def check_commit(content: bytes) -> None:
    """Checks a file of the directory ``commits``.

    Raises:
        ValueError: the file is empty or cut off; the message is the problem.
    """
    version, _, commit = content.decode().partition("\n")
    if not re.fullmatch(r"v\d+", version):
        raise ValueError("it has no version")
    if commit.strip():
        _mapping(json.loads(commit))


def batch_numbers(names: Iterable[str]) -> list[int]:
    """Returns the numbers of the batches among the names of the files in a log directory, sorted.

    Skips the other files that Spark writes to the directory: temporary files and checksums.
    """
    return sorted([int(name) for name in names if re.fullmatch(r"[0-9]+", name)])


def _named(line: str) -> LoggedSource:
    name, colon, offset = line.partition(":")
    if not colon:
        raise ValueError(f"a line has no source: {line[:40]!r}")
    return LoggedSource(name, offset)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{str(value)[:40]!r} is not a JSON object")
    return value
