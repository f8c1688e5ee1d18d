"""A backup of a checkpoint with state, restored under real Spark."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from pyspark import __version__ as pyspark_version
from pyspark.errors import StreamingQueryException

from spark_group_source.testing import EmbeddedKafka
from tests.integration.conftest import Stream

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


@pytest.mark.skipif(pyspark_version.startswith(("4.0.", "4.1.")), reason="it does not say where a checkpoint stands")
def test_state_is_complete_again_after_a_restored_checkpoint_if_what_it_lacks_is_repeated(
    kafka: EmbeddedKafka,
    kafka_topic: Callable[..., str],
    kafka_checkpoint: str,
    stream: Stream,
    run_available_now: Callable[..., DataFrame],
) -> None:
    topic, checkpoint = kafka_topic(), Path(kafka_checkpoint)
    backup = checkpoint.with_name("backup")

    def counted(choice: str) -> int:
        counts = stream(topic, restoredCheckpoint=choice).groupBy("key").count()
        (row,) = run_available_now(counts, checkpoint=kafka_checkpoint, output_mode="complete").collect()
        return int(row["count"])

    kafka.produce(topic, [("a", "1"), ("a", "2")])
    assert counted("fail") == 2
    shutil.copytree(checkpoint, backup)
    kafka.produce(topic, [("a", "3"), ("a", "4")])
    assert counted("fail") == 4, "a checkpoint that is kept is never older"
    shutil.rmtree(checkpoint)
    shutil.copytree(backup, checkpoint)
    with pytest.raises(StreamingQueryException, match=rf"lacks the batches that read {topic}-0 \[2, 4\)"):
        counted("fail")
    kafka.produce(topic, [("a", "5")])
    assert counted("repeat") == 5, "with skip it would be 3"
