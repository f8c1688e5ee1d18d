"""The position of a query with ``format("kafka")``, from checkpoints of real queries (tests/checkpoints)."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from spark_group_source import offsets_of_checkpoint
from spark_group_source.errors import CannotMigrate
from spark_group_source.migration.checkpoint_files import CheckpointFiles

CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
VERSIONS = sorted(each.name for each in CHECKPOINTS.iterdir())
ONE = CHECKPOINTS / "spark-4.3" / "one"
AWKWARD = "a b[1]{x,y}*?%20#=é/.hidden/_checkpoint\\\\d"


@pytest.fixture
def copied(tmp_path: Path) -> Callable[[str], Path]:
    """Copies a recorded checkpoint, by its name below tests/checkpoints; returns the copy."""

    def copy(name: str) -> Path:
        checksums = shutil.ignore_patterns(".*.crc")  # tests change the files
        return Path(shutil.copytree(CHECKPOINTS / name, tmp_path / "orders.checkpoint", ignore=checksums))

    return copy


def snapshot(directory: Path) -> dict[str, tuple[bytes, int]]:
    return {str(each): (each.read_bytes(), each.stat().st_mtime_ns) for each in directory.rglob("*") if each.is_file()}


def offsets(text: str) -> dict[str, object]:
    found: dict[str, object] = json.loads(text)
    assert found.pop("*") == -2
    return found


@pytest.mark.core
@pytest.mark.parametrize("version", VERSIONS)
def test_checkpoints_of_each_version_of_spark_are_read_and_not_changed(spark: SparkSession, version: str) -> None:
    one, several = CHECKPOINTS / version / "one", CHECKPOINTS / version / "several"
    before = snapshot(CHECKPOINTS / version)
    assert offsets(offsets_of_checkpoint(spark, one)) == {"orders": {"0": 9, "1": 1}}
    assert offsets(offsets_of_checkpoint(spark, str(several), source="payments")) == {"payments": {"0": 3}}
    assert offsets(offsets_of_checkpoint(spark, f"file:{several}/", source=2)) == {"orders": {"0": 9, "1": 1}}
    for source, problem in ((None, "4 sources"), ("orders", "2 sources"), (3, "has not read anything yet")):
        with pytest.raises(CannotMigrate, match=problem):
            offsets_of_checkpoint(spark, several, source=source)
    assert snapshot(CHECKPOINTS / version) == before


def test_purged_logs_and_logs_of_version_2_are_read(spark: SparkSession) -> None:
    place = CHECKPOINTS / "spark-4.3"
    assert offsets(offsets_of_checkpoint(spark, place / "purged")) == {"orders": {"0": 5, "1": 5}}
    # Spark has written the second source first.
    assert offsets(offsets_of_checkpoint(spark, place / "logged-v2", source=0)) == {"orders": {"0": 5, "1": 5}}
    assert offsets(offsets_of_checkpoint(spark, place / "logged-v2", source="payments")) == {"payments": {"0": 3}}


def test_the_path_may_have_any_characters(spark: SparkSession, tmp_path: Path) -> None:
    shutil.copytree(ONE, tmp_path / AWKWARD)
    assert offsets(offsets_of_checkpoint(spark, tmp_path / AWKWARD)) == {"orders": {"0": 9, "1": 1}}
    matched = tmp_path / "a"
    shutil.copytree(CHECKPOINTS / "spark-4.3" / "several", matched)
    with pytest.raises(CannotMigrate, match="is not a checkpoint"):
        offsets_of_checkpoint(spark, tmp_path / "[a]")


def test_the_newest_batch_counts_and_files_beside_it_do_not(spark: SparkSession, copied: Callable[[str], Path]) -> None:
    checkpoint = copied("spark-4.3/one")
    for number in range(1, 11):  # 10 is newer than 9
        for log in ("offsets", "commits"):
            text = (checkpoint / log / "0").read_text().replace('"0":9', f'"0":{9 + number}')
            (checkpoint / log / str(number)).write_text(text)
    for name in (".11.5a2b.tmp", "11.tmp", "10.crc", ".10.crc", "_11", "12.compact"):
        (checkpoint / "offsets" / name).write_text("v1\n{}")
    (checkpoint / "offsets" / "x=1").mkdir()
    (checkpoint / "offsets" / "x=1" / "99").write_text("v1")
    assert offsets(offsets_of_checkpoint(spark, checkpoint)) == {"orders": {"0": 19, "1": 1}}


def test_a_batch_that_completes_while_the_checkpoint_is_read_is_not_complete_and_nothing_is_damaged(
    spark: SparkSession, copied: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint = copied("spark-4.3/one")
    list_names = CheckpointFiles.names

    def then_complete_a_batch(files: CheckpointFiles, directory: str) -> list[str] | None:
        names = list_names(files, directory)
        for part in ("offsets", "commits"):
            shutil.copy(checkpoint / part / "0", checkpoint / part / "1")
        return names

    monkeypatch.setattr(CheckpointFiles, "names", then_complete_a_batch)
    with pytest.raises(CannotMigrate, match="Batch 1 of .* is not complete: the old query still runs"):
        offsets_of_checkpoint(spark, checkpoint)


def test_state_is_refused_unless_the_caller_gives_it_up(spark: SparkSession) -> None:
    for version in ("spark-3.5", "spark-4.3"):
        with pytest.raises(CannotMigrate, match=r"has state.*without_state=True"):
            offsets_of_checkpoint(spark, CHECKPOINTS / version / "stateful")
        found = offsets_of_checkpoint(spark, CHECKPOINTS / version / "stateful", without_state=True)
        assert offsets(found) == {"orders": {"0": 9, "1": 1}}


OFFSETS, COMMIT = ONE / "offsets" / "0", ONE / "commits" / "0"
OURS = b'{"group": "g", "topics": {"orders": {"id": "x", "partitions": {"0": [0, 5, 0]}}}, "version": 2}'
DAMAGES: dict[str, tuple[dict[str, Path | bytes | None], str]] = {
    "incomplete": ({"offsets/1": OFFSETS}, r"Batch 1 of .* is not complete.*availableNow=True"),
    "never committed": ({"commits": None}, r"Batch 0 of .* is not complete"),
    "cut off": ({"offsets/1": OFFSETS.read_bytes()[:-5]}, "The file offsets/1 of .* is damaged"),
    "empty": ({"offsets/0": b""}, "The file offsets/0 of .* is damaged: it is empty"),
    "the newest is empty": ({"offsets/1": b""}, "The file offsets/1 of .* is damaged: it is empty"),
    "wrong checksum": (
        {"offsets/.0.crc": ONE / "offsets" / ".0.crc", "offsets/0": b'v1\n{}\n{"orders":{"0":8,"1":1}}'},
        "The file offsets/0 of .* is damaged: Spark cannot read it",
    ),
    "empty commit": ({"commits/0": b""}, "The file commits/0 of .* is damaged"),
    "the newest is lost": ({"commits/1": COMMIT}, "last completed batch is 1, and the offsets end with batch 0"),
    "asynchronous": ({"offsets/4": OFFSETS, "commits/4": COMMIT}, "asyncProgressTrackingEnabled"),
    "planned nothing": ({"offsets/0": None}, "has not read anything"),
    "no offsets": ({"offsets": None}, "has not read anything"),
    "incomplete, of another source": ({"offsets/1": b"v1\n{}\n17"}, r'not format\("kafka"\)'),
    "of this source": (
        {"state": CHECKPOINTS / "spark-4.3" / "stateful" / "state", "offsets/0": b"v1\n{}\n" + OURS},
        r'reads with format\("kafka-group"\) already',
    ),
    "of another source": ({"offsets/0": b'v1\n{}\n{"logOffset":7}'}, r'not format\("kafka"\)'),
}
"""By kind: what files contain, are a copy of, or that they are gone; and what the error says."""


@pytest.mark.parametrize("kind", DAMAGES)
def test_a_checkpoint_that_cannot_be_moved_is_refused_with_the_reason(
    spark: SparkSession, copied: Callable[[str], Path], kind: str
) -> None:
    checkpoint = copied("spark-4.3/one")
    changes, says = DAMAGES[kind]
    for name, change in changes.items():
        path = checkpoint / name
        if isinstance(change, bytes):
            path.write_bytes(change)
        elif change is not None:
            (shutil.copytree if change.is_dir() else shutil.copy)(change, path)
        elif path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
    with pytest.raises(CannotMigrate, match=says) as refused:
        offsets_of_checkpoint(spark, checkpoint)
    assert str(checkpoint) in str(refused.value)


def test_a_directory_that_is_no_checkpoint_is_refused_with_what_it_is(
    spark: SparkSession, copied: Callable[[str], Path], tmp_path: Path
) -> None:
    checkpoint = copied("spark-4.3/one")
    for part in ("offsets", "offsets/0", "commits"):
        with pytest.raises(CannotMigrate, match=r"is a part of the checkpoint .*/orders.checkpoint\."):
            offsets_of_checkpoint(spark, checkpoint / part)
    with pytest.raises(CannotMigrate, match=r"It contains the checkpoint orders.checkpoint\."):
        offsets_of_checkpoint(spark, tmp_path)
    for name, kind in (("_spark_metadata", "a file sink"), ("_delta_log", "a Delta table")):
        (tmp_path / "sink" / name).mkdir(parents=True)
        (tmp_path / "sink" / name / "0").write_text("v1")
        with pytest.raises(CannotMigrate, match=f"is the output of a query: {kind}"):
            offsets_of_checkpoint(spark, tmp_path / "sink")
        shutil.rmtree(tmp_path / "sink")
    with pytest.raises(CannotMigrate, match="finds no directory 'offsets'"):
        offsets_of_checkpoint(spark, tmp_path / "nowhere")
