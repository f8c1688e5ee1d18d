"""Events as Spark sends them to listeners, and reports."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from uuid import UUID

from pyspark.sql.streaming.listener import QueryIdleEvent, QueryProgressEvent, QueryStartedEvent, QueryTerminatedEvent

from spark_group_source.lag.model import LagReport, PartitionLag, Rates, Sample
from spark_group_source.offsets import TopicPartition

QUERY = "11111111-1111-1111-1111-111111111111"
RUN, OTHER_RUN = UUID(int=1), UUID(int=2)


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


def source(end: object, latest: object = None) -> dict[str, Any]:
    """A source in a progress."""
    offsets = {"startOffset": None, "endOffset": end, "latestOffset": latest}
    rates = {"inputRowsPerSecond": 0.0, "processedRowsPerSecond": 0.0}
    return {"description": "a source", "numInputRows": 1, **offsets, **rates}


def progress(*sources: object, run: UUID = RUN, second: float = 0.0, name: str | None = "q") -> dict[str, Any]:
    """The parsed JSON of a progress, of a batch that began at this second of 1970."""
    return {
        "id": QUERY,
        "runId": str(run),
        "name": name,
        "timestamp": timestamp(second),
        "batchId": 0,
        "batchDuration": 100,
        "stateOperators": [],
        "sources": list(sources),
        "sink": {"description": "noop", "numOutputRows": -1},
    }


def timestamp(second: float) -> str:
    """The text that Spark writes, in milliseconds."""
    return f"1970-01-01T00:{int(second) // 60:02d}:{int(second) % 60:02d}.{round(second % 1 * 1000):03d}Z"


def progressed(progress: Mapping[str, Any]) -> QueryProgressEvent:
    return QueryProgressEvent.fromJson({"progress": dict(progress)})


def batch(end: object, latest: object, second: float = 0.0, run: UUID = RUN, **more: Any) -> QueryProgressEvent:
    return progressed(progress(source(end, latest), run=run, second=second, **more))


def started(run: UUID) -> QueryStartedEvent:
    return QueryStartedEvent.fromJson({"id": QUERY, "runId": str(run), "name": "q", "timestamp": timestamp(0)})


def idle(run: UUID, second: float) -> QueryIdleEvent:
    return QueryIdleEvent(UUID(QUERY), run, timestamp(second))


def terminated(run: UUID) -> QueryTerminatedEvent:
    return QueryTerminatedEvent(UUID(QUERY), run, None, None)


def sample(at: float, position: int, end: int) -> Sample:
    """A sample of partition 0 of topic t."""
    tp = TopicPartition("t", 0)
    return Sample(at, {tp: position}, {tp: end})


def report(*lags: int, query: str = "q", source: int = 0, rates: Rates | None = None) -> LagReport:
    """The report of a query that has read 100 records of each partition."""
    partitions = tuple(PartitionLag(TopicPartition("orders", n), 100, 100 + lag) for n, lag in enumerate(lags))
    return LagReport(query, "run", 5.0, partitions, rates or Rates(), source, "g" if source else None)


def with_ages(report: LagReport, *ages: float | None) -> LagReport:
    """The report with the ages of its partitions."""
    pairs = zip(report.partitions, ages, strict=True)
    return replace(report, partitions=tuple(replace(each, age=age) for each, age in pairs))


class Reports(list[LagReport]):
    """A sink that keeps its reports."""

    def __call__(self, report: LagReport) -> None:
        self.append(report)

    def lags(self) -> list[dict[str, int]]:
        return [{str(each.tp): each.lag for each in report.partitions} for report in self]
