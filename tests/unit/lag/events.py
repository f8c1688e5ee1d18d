"""Events as Spark sends them to listeners."""

from __future__ import annotations

import uuid
from collections import defaultdict
from collections.abc import Mapping
from typing import Any

from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from spark_group_source.lag.model import LagReport

QUERY = "11111111-1111-1111-1111-111111111111"


def offset(**partitions: tuple[int, int]) -> dict[str, Any]:
    """A batch's offset: ``t_0=(2, 5)`` is the range [2, 5) of partition 0 of topic t."""
    topics: dict[str, Any] = {}
    for name, (start, end) in partitions.items():
        topic, number = name.rsplit("_", 1)
        topics.setdefault(topic, {"id": f"id-of-{topic}", "partitions": {}})["partitions"][number] = [start, end, 7]
    return {"group": "g", "topics": topics, "version": 2}


def ends(**partitions: int) -> dict[str, Any]:
    """The end offsets, as the progress shows them."""
    numbers = defaultdict[str, dict[str, int]](dict)
    for name, end in partitions.items():
        topic, number = name.rsplit("_", 1)
        numbers[topic][number] = end
    return numbers


def source(end: object, latest: object = None, start: object = None) -> dict[str, Any]:
    """A source in a progress."""
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    return {"description": "a source", "numInputRows": 1, **offsets}


def progress(
    *sources: Mapping[str, Any], run: uuid.UUID, second: float = 0.0, name: str | None = "q", query: str = QUERY
) -> dict[str, Any]:
    """The parsed JSON of a progress, of a batch that began at this second of 1970."""
    return {
        "id": query,
        "runId": str(run),
        "name": name,
        "timestamp": timestamp(second),
        "batchId": 0,
        "batchDuration": 100,
        "stateOperators": [],
        "sources": [{"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0, **each} for each in sources],
        "sink": {"description": "noop", "numOutputRows": -1},
    }


def timestamp(second: float) -> str:
    """The text that Spark writes, in milliseconds."""
    return f"1970-01-01T00:{int(second) // 60:02d}:{int(second) % 60:02d}.{round(second % 1 * 1000):03d}Z"


def progressed(progress: Mapping[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent.fromJson({"progress": dict(progress)})


def started(run: uuid.UUID, name: str | None = "q") -> QueryStartedEvent:
    return QueryStartedEvent.fromJson({"id": QUERY, "runId": str(run), "name": name, "timestamp": timestamp(0)})


def idle(run: uuid.UUID, second: float) -> QueryIdleEvent:
    return QueryIdleEvent(uuid.UUID(QUERY), run, timestamp(second))


def terminated(run: uuid.UUID, error: str | None = None) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(uuid.UUID(QUERY), run, error, None)


RUN = uuid.UUID(int=1)


class Reports(list[LagReport]):
    """A sink that keeps its reports."""

    def __call__(self, report: LagReport) -> None:
        self.append(report)

    def lags(self) -> list[dict[str, int]]:
        return [{str(each.tp): each.lag for each in report.partitions} for report in self]


def batch(end: object, latest: object, second: float = 0.0, run: uuid.UUID = RUN, **more: Any) -> Any:
    return progressed(progress(source(end, latest), run=run, second=second, **more))
