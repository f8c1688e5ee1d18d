"""Runs one query without Spark, so that it starts in a second: calls the source's reader like Spark's engine.

The argument is a directory with ``settings.json``. The checkpoint has two logs, like Spark's: a batch is in ``offsets``
before it is read and in ``commits`` when it is completed. The order of the calls is that of Spark 4.3. Each attempt at
a batch is written to ``rows/BATCH-ATTEMPT.json`` before the batch may end.

The file ``events`` lists the events. At each event in ``pause`` of the settings, the process waits for a file of that
name, or for its death. A file ``stop`` ends the query in order when it is idle, ``stop between batches`` at once.
"""

from __future__ import annotations

import importlib.util
import json
import logging
import sys
import time
from pathlib import Path
from typing import Any

from spark_group_source.options.parsing import parse_options
from spark_group_source.spark.application import Application
from spark_group_source.spark.schema import source_schema
from spark_group_source.spark.stream import GroupStreamReader

POLL_S = 0.02
ADMISSION = importlib.util.find_spec("pyspark.sql.streaming.datasource") is not None
"""Whether Spark passes the start and a limit to ``latestOffset()``: PySpark 4.2 or later."""

Offset = dict[str, Any]
Place = tuple[str, int, int]
"""Topic, partition and offset of a record."""


class Log:
    """A log of a checkpoint: a file for each batch, written atomically."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        directory.mkdir(parents=True, exist_ok=True)

    def latest(self) -> int:
        """Returns the last batch, or -1."""
        return max((int(each.name) for each in self._directory.glob("[0-9]*") if not each.suffix), default=-1)

    def add(self, batch: int, offset: Offset) -> None:
        write(self._directory / str(batch), offset)

    def get(self, batch: int) -> Offset:
        found: Offset = json.loads((self._directory / str(batch)).read_text())
        return found


def write(path: Path, content: object) -> None:
    """Writes the file atomically."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(content))
    partial.rename(path)


class MicroBatches:
    """One run of a query."""

    def __init__(self, work: Path) -> None:
        self._work = work
        settings = json.loads((work / "settings.json").read_text())
        checkpoint = Path(settings["checkpoint"])
        self._pause = set(settings["pause"])
        self._offsets, self._commits = Log(checkpoint / "offsets"), Log(checkpoint / "commits")
        self._rows = checkpoint / "rows"
        self._rows.mkdir(exist_ok=True)
        self._reader = GroupStreamReader(parse_options(settings["options"]), source_schema(False), Application())

    def record(self, event: str) -> None:
        """Records an event, and waits if the settings say so."""
        with (self._work / "events").open("a") as events:
            events.write(event + "\n")
        while event in self._pause and not (self._work / event).exists():
            time.sleep(POLL_S)

    def run(self) -> None:
        """Replays the last batch if it was not completed, then runs one after the other."""
        batch = self._offsets.latest()
        if batch > self._commits.latest():
            self._run(batch)
        while not self.must_stop():
            if batch == self._advance(batch) and (self._work / "stop").exists():
                break
            batch = self._offsets.latest()
        if batch >= 0:
            self._reader.commit(self._offsets.get(batch))
        self._reader.stop()

    def must_stop(self) -> bool:
        """Whether the run is to end after its running batch."""
        return (self._work / "stop between batches").exists()

    def keep(self, batch: int, places: list[Place]) -> None:
        """Writes the rows of one attempt at a batch."""
        attempt = len(list(self._rows.glob(f"{batch}-*.json")))
        write(self._rows / f"{batch}-{attempt}.json", [(partition, offset) for _, partition, offset in places])

    def _advance(self, batch: int) -> int:
        """Runs the next batch, if any; returns the last completed batch."""
        start = self._offsets.get(batch) if batch >= 0 else self._initial()
        known = (start, self._reader.getDefaultReadLimit()) if ADMISSION else ()
        end = self._reader.latestOffset(*known)
        if batch >= 0 and json.dumps(end) == json.dumps(start):
            time.sleep(POLL_S)
            return batch
        self.record(f"planned {batch + 1}")
        self._offsets.add(batch + 1, end)
        if batch >= 0:
            self._reader.commit(start)
        self._run(batch + 1)
        return batch + 1

    def _run(self, batch: int) -> None:
        start = self._offsets.get(batch - 1) if batch else self._initial()
        found: list[Place] = []
        for task in self._reader.partitions(start, self._offsets.get(batch)):
            for rows in self._reader.read(task):
                places = rows.select(["topic", "partition", "offset"]).to_pydict()
                found += zip(places["topic"], places["partition"], places["offset"], strict=True)
        self.keep(batch, found)
        self.record(f"read {batch}")
        self._commits.add(batch, {})
        self.record(f"completed {batch}")

    def _initial(self) -> Offset:
        found: Offset = json.loads(json.dumps(self._reader.initialOffset()))
        return found


def main(place: str) -> None:
    """Runs until the file ``stop`` exists. Errors of the query end this process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    MicroBatches(Path(place)).run()


if __name__ == "__main__":
    main(sys.argv[1])
