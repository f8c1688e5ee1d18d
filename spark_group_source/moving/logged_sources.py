"""The sources of a query in a file of its offset log. Pure.

The first line of the file is a version, the second JSON about the query. Each further line is the end of the batch in
one source: JSON, or ``-`` if the source has not read anything. In version 2 the source's name and a colon precede it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from spark_group_source.errors import CannotMove
from spark_group_source.listing import names, some
from spark_group_source.offsets import TopicPartition

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
                if not number.isdecimal() or type(offset) is not int or offset < 0:
                    raise ValueError(f"{number} at {offset}")
                offsets[TopicPartition(topic, int(number))] = offset
        return offsets

    @property
    def topics(self) -> set[str]:
        """The topics that the source has read."""
        return {tp.topic for tp in self.offsets}

    def __str__(self) -> str:
        try:
            return f"{self.name}: {names(self.topics) or 'nothing read'}"
        except ValueError:
            return f"{self.name}: not Kafka"


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
    sources = [_named(line) if version == "v2" else LoggedSource(str(at), line) for at, line in enumerate(lines[1:])]
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
    if not version.startswith("v") or not version[1:].isdecimal():
        raise ValueError("it has no version")
    if commit.strip():
        _mapping(json.loads(commit))


def choose(checkpoint: str, sources: Sequence[LoggedSource], wanted: str | int | None) -> LoggedSource:
    """One of the sources, by its topics, its number or its name; the only one if ``wanted`` is ``None``.

    Topics are those of one source, or some of them; a source with exactly these topics precedes.

    Raises:
        CannotMove: there is no such source, or more than one.
    """
    matching = list(sources)
    if isinstance(wanted, int):
        matching = [logged for logged in sources if logged.name == str(wanted)]
    elif wanted is not None:
        topics = {topic.strip() for topic in wanted.split(",")}
        kafka = [logged for logged in sources if _is_kafka(logged)]
        matching = [logged for logged in kafka if topics == logged.topics] or [
            logged for logged in kafka if topics <= logged.topics
        ]
        matching = matching or [logged for logged in sources if logged.name == wanted]
    if len(matching) == 1:
        return matching[0]
    listed = some([str(logged) for logged in sources], "; ")
    if wanted is None:
        happened = f"The query of {checkpoint} has {len(sources)} sources: {listed}."
    else:
        happened = f"{len(matching) or 'No'} sources of {checkpoint} are {wanted!r}; the query has {listed}."
    raise CannotMove(
        happened,
        "Choose one with source=: its topics as in 'subscribe', or its number if others have the same topics."
        " Each source becomes one load() with its own 'kafka.group.id'.",
    )


def kafka_offsets(checkpoint: str, source: LoggedSource) -> dict[TopicPartition, int]:
    """The next offset of each partition of this source.

    Raises:
        CannotMove: it has not read anything, or is not a source of ``format("kafka")``.
    """
    try:
        offsets = source.offsets
    except ValueError:
        raise _other_kind(checkpoint, source) from None
    if not offsets:
        raise CannotMove(
            f"Source {source.name} of {checkpoint} has not read anything yet, so it has no position.",
            "Set 'startingOffsets' of the new query to earliest, which skips nothing.",
        )
    return offsets


def _other_kind(checkpoint: str, source: LoggedSource) -> CannotMove:
    if source.offset.startswith("{") and {"topics", "version"} <= json.loads(source.offset).keys():
        return CannotMove(
            f'The query of {checkpoint} reads with format("kafka-group") already.',
            "Nothing has to be moved: continue with this checkpoint.",
        )
    return CannotMove(
        f'Source {source.name} of {checkpoint} is not format("kafka"). Its offset is {source.offset[:80]}.',
        'Only queries that read with Spark\'s own format("kafka") can be moved.',
    )


def _is_kafka(source: LoggedSource) -> bool:
    try:
        return bool(source.offsets)
    except ValueError:
        return False


def _named(line: str) -> LoggedSource:
    name, colon, offset = line.partition(":")
    if not colon:
        raise ValueError(f"a line has no source: {line[:40]!r}")
    return LoggedSource(name, offset)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise ValueError(f"{str(value)[:40]!r} is not a JSON object")
    return value
