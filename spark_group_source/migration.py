"""The position of a query with ``format("kafka")``, from its checkpoint.

The first line of the file is a version, the second JSON about the query. Each further line is the end of the batch in
one source: JSON, or ``-`` if the source has not read anything. In version 2 the source's name and a colon precede it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import unquote

from pyspark.errors import AnalysisException

from spark_group_source.errors import CannotMigrate
from spark_group_source.offsets import TopicPartition
from spark_group_source.options.offset_specs import Earliest, as_json
from spark_group_source.text import names, some

if TYPE_CHECKING:
    from collections.abc import Callable

    from pyspark.sql import DataFrame, SparkSession


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
        return {tp.topic for tp in self.offsets}

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


def choose(checkpoint: str, sources: Sequence[LoggedSource], wanted: str | int | None) -> LoggedSource:
    """One of the sources, by its topics, its number or its name; the only one if ``wanted`` is ``None``.

    Topics are those of one source, or some of them; a source with exactly these topics precedes.

    Raises:
        CannotMigrate: there is no such source, or more than one.
    """
    matching = _matching(sources, wanted)
    if len(matching) == 1:
        return matching[0]
    listed = some([str(logged) for logged in sources], "; ")
    if wanted is None:
        happened = f"The query of {checkpoint} has {len(sources)} sources: {listed}."
    elif not matching:
        happened = f"No sources of {checkpoint} are {wanted!r}; the query has {listed}."
    else:
        happened = f"{len(matching)} sources of {checkpoint} are {wanted!r}; the query has {listed}."
    raise CannotMigrate(
        happened,
        "Choose one with source=: its topics as in 'subscribe', or its number if others have the same topics."
        " Each source becomes one load() with its own 'kafka.group.id'.",
    )


def _matching(sources: Sequence[LoggedSource], wanted: str | int | None) -> list[LoggedSource]:
    if wanted is None:
        return list(sources)
    if isinstance(wanted, str):
        of_topics = _with_topics(sources, {topic.strip() for topic in wanted.split(",")})
        if of_topics:
            return of_topics
    return [logged for logged in sources if logged.name == str(wanted)]


def _with_topics(sources: Iterable[LoggedSource], topics: set[str]) -> list[LoggedSource]:
    """The sources of exactly these topics; without one, those that have these among their topics."""
    exactly, among_others = [], []
    for logged in sources:
        if not _is_kafka(logged):
            continue
        if topics == logged.topics:
            exactly.append(logged)
        elif topics < logged.topics:
            among_others.append(logged)
    return exactly if exactly else among_others


def kafka_offsets(checkpoint: str, source: LoggedSource) -> dict[TopicPartition, int]:
    """The next offset of each partition of this source.

    Raises:
        CannotMigrate: it has not read anything, or is not a source of ``format("kafka")``.
    """
    try:
        offsets = source.offsets
    except ValueError:
        raise _other_kind(checkpoint, source) from None
    if not offsets:
        raise CannotMigrate(
            f"Source {source.name} of {checkpoint} has not read anything yet, so it has no position.",
            "Set 'startingOffsets' of the new query to earliest, which skips nothing.",
        )
    return offsets


def _other_kind(checkpoint: str, source: LoggedSource) -> CannotMigrate:
    is_object = source.offset.startswith("{")
    if is_object and {"topics", "version"} <= json.loads(source.offset).keys():
        return CannotMigrate(
            f'The query of {checkpoint} reads with format("kafka-group") already.',
            "Nothing has to be moved: continue with this checkpoint.",
        )
    return CannotMigrate(
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


CONTIGUOUS = 3
"""The last batches that must be in the log without a gap. If Spark writes the log asynchronously it leaves batches out;
before a query may switch that off, Spark asks for two batches that are logged in full."""


def batch_numbers(names: Iterable[str]) -> list[int]:
    """The batches among the names of files, sorted. Spark writes other files beside them: temporary ones, checksums."""
    return sorted([int(name) for name in names if re.fullmatch(r"[0-9]+", name)])


def last_batch(checkpoint: str, logged: Sequence[int], committed: Collection[int]) -> int:
    """The last batch in the log.

    Args:
        logged: the batches in the directory ``offsets``, sorted.
        committed: the batches in the directory ``commits``.

    Raises:
        CannotMigrate: there is no batch, or batches are missing.
    """
    if not logged:
        raise nothing_read(checkpoint)
    last = logged[-1]
    end = max(committed, default=-1)
    if end > last:
        raise CannotMigrate(
            f"{checkpoint} is damaged: its last completed batch is {end}, and the offsets end with batch {last}.",
            "Restore the missing files of the directory offsets.",
        )
    recent = logged[-CONTIGUOUS:]
    has_gap = last - recent[0] != len(recent) - 1
    lacks_the_first = len(logged) == 1 and last > 0
    if has_gap or lacks_the_first:
        raise CannotMigrate(
            f"The log of {checkpoint} has gaps: its last batches are {', '.join(map(str, recent))}. The query writes"
            " it asynchronously (asyncProgressTrackingEnabled), and its sink may have later batches than the log.",
            "Run the old query with asyncProgressTrackingCheckpointIntervalMs=0 until it has completed two more"
            " batches. Then run it without asyncProgressTrackingEnabled and with .trigger(availableNow=True), and try"
            " again.",
        )
    return last


def check_complete(checkpoint: str, last: int, committed: Collection[int]) -> None:
    """Checks that Spark has completed the last batch.

    Raises:
        CannotMigrate: it has not.
    """
    if last not in committed:
        raise CannotMigrate(
            f"Batch {last} of {checkpoint} is not complete: the old query still runs, or it was interrupted. Its sink"
            " may have the records of this batch already.",
            "Stop the old query. Run it once more with its checkpoint and .trigger(availableNow=True), until it ends."
            " Then try again. Do not take an earlier batch: the new query would write this one twice.",
        )


def nothing_read(checkpoint: str) -> CannotMigrate:
    """The error about a checkpoint without a batch."""
    return CannotMigrate(
        f"The query of {checkpoint} has not read anything: it has planned no batch.",
        "There is no position to move. Start the new query with the 'startingOffsets' of the old one.",
    )


class CheckpointFiles:
    """Files below one directory. Nothing is written."""

    def __init__(self, spark: SparkSession, directory: str) -> None:
        self._spark = spark
        self._directory = directory

    def has_directory(self, name: str) -> bool:
        """Whether there is a directory with this name."""
        paths = self._paths(self._path(name))
        if paths is None:
            return False
        return not _has_name(paths, name)

    def has_file(self, name: str) -> bool:
        """Whether there is a file with this name."""
        return _has_name(self._existing(self._path(name)), name)

    def names(self, directory: str) -> list[str] | None:
        """The names of the files right in this directory, without hidden ones; ``None`` if there is no directory."""
        paths = self._paths(self._path(directory))
        if paths is None:
            return None
        return [path.rpartition("/")[2] for path in paths if _directory_of(path) == directory]

    def parents(self, directory: str) -> list[str]:
        """The names of the subdirectories that contain this directory with a file in it."""
        parents = set()
        for path in self._existing(f"{_literal(self._directory)}/*/{directory}"):
            if _directory_of(path) == directory:
                parents.add(path.split("/")[-3])
        return sorted(parents)

    def content(self, name: str) -> bytes:
        """The bytes of a file.

        Raises:
            ValueError: Spark finds it damaged.
        """
        try:
            rows = self._load(self._path(name)).select("content").collect()
        except Exception as error:  # py4j's in a classic session, and another with Connect
            if "FAILED_READ_FILE" not in str(error):
                raise
            raise ValueError("Spark cannot read it (FAILED_READ_FILE), perhaps its checksum is wrong") from error
        return b"".join(bytes(row.content) for row in rows)  # Spark skips an empty file

    def _path(self, name: str) -> str:
        return f"{_literal(self._directory)}/{name}"

    def _existing(self, pattern: str) -> list[str]:
        """As :meth:`_paths`; empty if nothing exists there."""
        paths = self._paths(pattern)
        if paths is None:
            return []
        return paths

    def _paths(self, pattern: str) -> list[str] | None:
        """The paths of the files below; ``None`` if nothing exists there.

        ``inputFiles`` lists them without reading. Rows would lack empty files, and so the newest batch if it is empty.
        The pattern is given twice, because for a single one that matches nothing Spark logs a long stack trace.
        """
        try:
            return [unquote(path) for path in set(self._load(pattern, pattern).inputFiles())]
        except AnalysisException as error:  # from load() in a classic session, from inputFiles() with Connect
            if error.getCondition() == "PATH_NOT_FOUND":
                return None
            raise

    def _load(self, *patterns: str) -> DataFrame:
        # Without recursion, directories named like a=1 would become columns.
        return self._spark.read.format("binaryFile").option("recursiveFileLookup", "true").load(list(patterns))


def _has_name(paths: Iterable[str], name: str) -> bool:
    return any(path.endswith(f"/{name}") for path in paths)


def _directory_of(path: str) -> str:
    """The name of the directory that holds this file."""
    return path.rpartition("/")[0].rpartition("/")[2]


def _literal(path: str) -> str:
    """The path for Spark's reader, which takes these characters as a pattern."""
    return re.sub(r"([\[\]{}*?\\])", r"\\\1", path.rstrip("/"))


Parsed = TypeVar("Parsed")

PARTS = ("offsets", "commits", "sources", "state", "metadata")
SINKS = {"_spark_metadata": "a file sink", "_delta_log": "a Delta table"}
"""Directories by which the output of a query is recognised."""


def starting_offsets(spark: SparkSession, checkpoint: str, source: str | int | None, without_state: bool) -> str:
    """See :func:`spark_group_source.offsets_of_checkpoint`."""
    files = CheckpointFiles(spark, checkpoint)
    # The commits first: Spark logs a batch before it commits it. The log of a running query is not damaged.
    completed = files.names("commits")
    committed: list[int] = []
    if completed is not None:
        committed = batch_numbers(completed)
    names = files.names("offsets")
    if names is None:
        raise _not_a_checkpoint(spark, checkpoint, files)
    last = last_batch(checkpoint, batch_numbers(names), committed)
    sources = _read(checkpoint, files, f"offsets/{last}", parse_log)
    offsets = kafka_offsets(checkpoint, choose(checkpoint, sources, source))
    if not without_state and files.has_directory("state"):
        raise CannotMigrate(
            f"The query of {checkpoint} has state (aggregation, deduplication, a join, or a function with state), and"
            " state cannot be moved. The new query would start with empty state.",
            "Choose in docs/migrating.md, 'Queries with state', where to start. To start behind the last batch all the"
            " same, set without_state=True.",
        )
    check_complete(checkpoint, last, committed)
    _read(checkpoint, files, f"commits/{last}", check_commit)
    return as_json(offsets, Earliest())


def _read(checkpoint: str, files: CheckpointFiles, name: str, parse: Callable[[bytes], Parsed]) -> Parsed:
    try:
        return parse(files.content(name))
    except ValueError as error:
        raise CannotMigrate(
            f"The file {name} of {checkpoint} is damaged: {error}.",
            "Do not take an earlier batch: the sink may have this one. Restore the file, or find the position by the"
            " records in the sink.",
        ) from None


def _not_a_checkpoint(spark: SparkSession, directory: str, files: CheckpointFiles) -> CannotMigrate:
    path = directory.rstrip("/").split("/")
    for levels in (1, 2):
        part = path[-levels:][0]
        above = "/".join(path[:-levels])
        if part in PARTS and CheckpointFiles(spark, above).names("offsets") is not None:
            return CannotMigrate(
                f"{directory} is a part of the checkpoint {above}.", "Give the path of the checkpoint."
            )
    if files.has_file("metadata"):
        return nothing_read(directory)
    hints = [f"It contains the checkpoint {name}." for name in files.parents("offsets")]
    for name, kind in SINKS.items():
        if files.has_directory(name):
            hints.append(f"It is the output of a query: {kind}.")
    return CannotMigrate(
        f"{directory} is not a checkpoint: Spark finds no directory 'offsets' in it. {some(hints, ' ')}".rstrip(),
        "Give the path in the option 'checkpointLocation' of the old query.",
    )
