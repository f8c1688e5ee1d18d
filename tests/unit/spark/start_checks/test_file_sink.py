"""File sinks whose directory has batches that the checkpoint lacks, without Spark.

``tests/integration/test_traps.py`` has real queries.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from spark_group_source.spark.start_checks.file_sink import skips_batches

SINK = "FileSink[s3a://lake/orders [new]]"


def query(sink: str = SINK, planned: int | None = None) -> Any:
    latest = SimpleNamespace(isEmpty=lambda: planned is None, get=lambda: planned)
    state = SimpleNamespace(newHadoopConf=lambda: "settings")
    session = SimpleNamespace(sessionState=lambda: state)
    execution = SimpleNamespace(
        sink=lambda: SimpleNamespace(toString=lambda: sink),
        offsetLog=lambda: SimpleNamespace(getLatestBatchId=lambda: latest),
        sparkSession=lambda: session,
    )
    return SimpleNamespace(streamingQuery=lambda: execution)


def jvm(*names: str, exists: bool = True) -> Any:
    """A JVM whose file system has these files in the log of the sink's directory."""

    def path(directory: str, child: str) -> Any:
        assert (directory, child) == ("s3a://lake/orders [new]", "_spark_metadata")
        statuses = [SimpleNamespace(getPath=lambda name=name: SimpleNamespace(getName=lambda: name)) for name in names]
        files = SimpleNamespace(exists=lambda path: exists, listStatus=lambda path: statuses)
        return SimpleNamespace(getFileSystem=lambda settings: files if settings == "settings" else None)

    fs = SimpleNamespace(Path=path)
    return SimpleNamespace(org=SimpleNamespace(apache=SimpleNamespace(hadoop=SimpleNamespace(fs=fs))))


@pytest.mark.parametrize(
    ("names", "last"),
    [(["0"], 0), (["8", "9.compact", "10", "7"], 10), (["9.compact"], 9), (["2", ".11.crc", ".12.tmp", "12.tmp"], 2)],
)
def test_a_new_checkpoint_with_a_directory_that_has_batches_is_rejected(names: list[str], last: int) -> None:
    rejection = skips_batches(query(), jvm(*names), "orders")
    assert rejection is not None
    begins = "The checkpoint of the query orders is new, but its output directory s3a://lake/orders [new] has batches"
    assert rejection.happened.startswith(f"{begins} up to number {last}.")


def test_a_restored_checkpoint_whose_next_batches_the_directory_has_is_rejected() -> None:
    rejection = skips_batches(query(planned=4), jvm("3", "4", "5"), "orders")
    assert rejection is not None
    assert "ends with batch 4, but its output directory" in rejection.happened
    assert "up to number 5. Spark's file sink would drop" in rejection.happened


@pytest.mark.parametrize(
    ("started", "seen"),
    [
        (query(planned=5), jvm("3", "4")),
        (query(planned=5), jvm("5")),
        (query("org.apache.spark.sql.execution.streaming.ConsoleTable$"), jvm("0")),
        (query(), jvm()),
        (query(), jvm("0", exists=False)),
    ],
    ids=["a restart", "a batch that was written and not completed", "no file sink", "an empty log", "a new directory"],
)
def test_other_queries_may_run(started: Any, seen: Any) -> None:
    assert skips_batches(started, seen, "orders") is None


def test_a_query_that_cannot_be_checked_may_run() -> None:
    assert skips_batches(SimpleNamespace(), jvm("0"), "orders") is None
    assert skips_batches(query(), SimpleNamespace(), "orders") is None
