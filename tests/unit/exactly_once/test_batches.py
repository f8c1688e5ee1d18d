"""The ranges of a batch come from the offset log, and a checkpoint without them is an error that says why."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from pyspark.errors import AnalysisException

from spark_group_source.errors import CheckpointError
from spark_group_source.exactly_once import OffsetRange, batch_ranges, foreach_batch
from spark_group_source.migration.checkpoint_files import CheckpointFiles
from spark_group_source.offsets import BatchOffset

SPARK: Any = None
READS = [OffsetRange("t", 1, 5, 9, "id", lineage=3), OffsetRange("t", 0, 2, 4, "id")]


def logged(*reads: OffsetRange) -> str:
    return json.dumps(BatchOffset.from_ranges(reads, "group").as_json())


class NotFound(AnalysisException):
    """Spark's error for a path that does not exist."""

    def getCondition(self) -> str:  # noqa: N802 -- Spark's name
        return "PATH_NOT_FOUND"


@pytest.fixture
def log(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Sets the lines of the file of each batch, or the error of reading it."""

    def put(*lines: str, error: Exception | None = None) -> None:
        def content(_: CheckpointFiles, name: str) -> bytes:
            assert name == "offsets/7"
            if error is not None:
                raise error
            return "\n".join(["v1", "{}", *lines]).encode()

        monkeypatch.setattr(CheckpointFiles, "content", content)

    return put


def test_ranges_are_sorted_and_have_topic_id_and_lineage(log: Callable[..., None]) -> None:
    log(logged(*READS))
    assert batch_ranges(SPARK, "/c", 7) == sorted(READS)


def test_a_source_that_has_read_nothing_has_no_ranges(log: Callable[..., None]) -> None:
    log("-", logged(*READS))
    assert batch_ranges(SPARK, "/c", 7) == sorted(READS)


def test_two_sources_that_read_one_partition_are_an_error(log: Callable[..., None]) -> None:
    log(logged(*READS), logged(READS[0]))
    with pytest.raises(CheckpointError, match="2 sources of the query read t-1"):
        batch_ranges(SPARK, "/c", 7)


def test_a_batch_of_another_query_is_an_error_with_the_path(log: Callable[..., None]) -> None:
    log(error=NotFound("no such path"))
    with pytest.raises(CheckpointError, match="no file /c/offsets/7.*checkpointLocation of the query"):
        batch_ranges(SPARK, "/c", 7)


@pytest.mark.parametrize("line", ["", '{"group": "g", "top'])
def test_a_damaged_file_is_an_error_with_the_path(log: Callable[..., None], line: str) -> None:
    log(line)
    with pytest.raises(CheckpointError, match="batch 7 cannot be read from /c/offsets/7"):
        batch_ranges(SPARK, "/c", 7)


@pytest.mark.parametrize(
    ("line", "message"), [('{"t":{"0":5}}', r'written by format\("kafka"\)'), ("5", "5, offsets of another source")]
)
def test_offsets_of_another_source_are_an_error(log: Callable[..., None], line: str, message: str) -> None:
    log(line)
    with pytest.raises(CheckpointError, match=message):
        batch_ranges(SPARK, "/c", 7)


class Stream:
    """A stream's writer: it keeps what is set."""

    def __init__(self) -> None:
        self.options: dict[str, str] = {}

    def option(self, name: str, value: str) -> Stream:
        self.options[name] = value
        return self

    def foreachBatch(self, write: Callable[[Any, int], None]) -> Stream:  # noqa: N802 -- Spark's name
        self.write = write
        return self


def test_a_stream_gets_the_checkpoint_from_which_its_ranges_are_read(log: Callable[..., None]) -> None:
    class Batch:
        sparkSession = SPARK  # noqa: N815 -- Spark's name

    log(logged(*READS))
    stream = Stream()
    seen: list[Any] = []
    writer: Any = stream
    foreach_batch(writer, "/c", lambda batch, reads: seen.append((batch, reads)))
    batch = Batch()
    stream.write(batch, 7)
    assert stream.options == {"checkpointLocation": "/c"}
    assert seen == [(batch, sorted(READS))]
