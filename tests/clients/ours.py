"""A query as a member of a consumer group, without Spark: Spark's calls in its order. SIGTERM makes it leave the group.

The same lines and arguments as in ``go/line/line.go``, and ``checkpoint``, a directory.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from pathlib import Path

from tests.clients.python import line
from tests.integration.micro_batches import MicroBatches, Place

BATCH_S = 0.1
"""How long a batch takes: a kill meets one that is neither completed nor committed."""


class Member(MicroBatches):
    """One query."""

    def __init__(self, work: Path) -> None:
        super().__init__(work)
        self._ends = False

    def keep(self, batch: int, places: list[Place]) -> None:
        # Until the first batch, SIGTERM ends the process as Spark's does. From now on the running batch ends first.
        signal.signal(signal.SIGTERM, lambda *_: self._end())
        for place in places:
            line.read(*place)
        super().keep(batch, places)
        time.sleep(BATCH_S)

    def run(self) -> None:
        try:
            super().run()
        except SystemExit:
            self._reader.stop()

    def must_stop(self) -> bool:
        return self._ends

    def _end(self) -> None:
        self._ends = True


def options(settings: dict[str, str]) -> dict[str, str]:
    """The source's options that the arguments describe."""
    chosen = {
        "kafka.bootstrap.servers": settings["servers"],
        "kafka.group.id": settings["group"],
        "kafka.client.id": settings["client"],
        "kafka.metadata.max.age.ms": "1000",
        "startingOffsets": "earliest",
    }
    if settings.get("pattern"):
        chosen["subscribePattern"] = settings["pattern"]
    else:
        chosen["subscribe"] = settings["topics"]
    if settings.get("instance"):
        chosen["kafka.group.instance.id"] = settings["instance"]
    assignor = settings.get("assignor")
    if settings.get("protocol") == "consumer":
        chosen["kafka.group.protocol"] = "consumer"
        if assignor:
            chosen["kafka.group.remote.assignor"] = assignor
        return chosen
    chosen["kafka.session.timeout.ms"] = settings["session"]
    chosen["kafka.heartbeat.interval.ms"] = "200"
    if assignor:
        chosen["kafka.partition.assignment.strategy"] = assignor
    return chosen


def main(settings: dict[str, str]) -> None:
    """Runs until SIGTERM. Errors of the query end this process."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    work = Path(settings["checkpoint"])
    work.mkdir(parents=True, exist_ok=True)
    written = {"options": options(settings), "checkpoint": str(work), "pause": []}
    (work / "settings.json").write_text(json.dumps(written))
    Member(work).run()


if __name__ == "__main__":
    main(line.SETTINGS)
    sys.exit(0)
