"""The queries of one Spark application that have started: which queries share a group, and which query must end,
because it would lose records.

Spark notifies listeners of a query's start before it creates the query's sources. This process can therefore answer
when the first reader of a query asks whether the query may begin (:meth:`StartedQueries.rejection`), before the reader
joins the group.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

from pyspark import __version__ as pyspark_version

from spark_group_source.options.offset_specs import Latest
from spark_group_source.options.source_options import SourceOptions, batch_end
from spark_group_source.spark.notifications.messages import Rejection, source_key
from spark_group_source.spark.start_checks.file_sink import skips_batches
from spark_group_source.spark.start_checks.logical_plan import StreamSource, batch_sources, stream_sources
from spark_group_source.spark.start_checks.shared_sources import shares_with_any, sharing
from spark_group_source.spark.start_checks.unions import reads_each_record_once
from spark_group_source.text import some

log = logging.getLogger(__name__)

PLANS_EACH_ACTION = pyspark_version.startswith("4.0.")
"""PySpark 4.0 looks up the end of a batch DataFrame for each action on it, later releases once."""


@dataclass
class StartedQuery:
    """A running query with sources of this package."""

    name: str
    """The query's name, or its id if it has no name."""
    query_id: str
    run: str
    """The id of this run."""
    sources: list[SourceOptions]
    rejection: Rejection | None = None
    readers: Counter[str] = field(default_factory=Counter)
    """How many of the query's readers have not asked yet, by the key of their source."""


class StartedQueries:
    """The running queries that have started in this application. Any thread may call it.

    Args:
        running: returns the ids of the runs that Spark has not ended.
        jvm: py4j's view of the JVM.
    """

    def __init__(self, running: Callable[[], set[str]], jvm: Any) -> None:
        self._running = running
        self._jvm = jvm
        self._lock = threading.Lock()
        self._queries: list[StartedQuery] = []

    def started(self, query: Any) -> None:
        """Checks a query that starts, and warns of records that it may miss. ``query`` is Spark's object in the JVM."""
        plan = query.streamingQuery().analyzedPlan()
        sources = stream_sources(plan)
        if not sources:
            return
        options = [source.options for source in sources]
        query_id = query.id().toString()
        name = query.name()
        if not name:
            name = query_id
        new = StartedQuery(name, query_id, query.runId().toString(), options)
        new.readers = Counter(map(source_key, options))
        new.rejection = rejection(plan, sources, name) or skips_batches(query, self._jvm, name)
        with self._lock:
            self._forget_ended_queries()
            running = [each for each in self._queries if each.rejection is None]
            self._queries.append(new)
        if new.rejection is None:
            warn_of_sharing_queries(new, running)
        warn_of_batch_sources(new.name, batch_sources(plan))

    def rejection(self, key: str) -> Rejection | None:
        """Why the query of a reader must end, or ``None``. Each reader asks once, before it does anything else.

        If two queries wait for readers with equal options, the asking reader may belong to either. Then neither is
        rejected, and a warning names the query that should have been rejected: see :meth:`has_progress`.
        """
        with self._lock:
            self._forget_ended_queries()
            waiting = [each for each in self._queries if each.readers[key] > 0]
            if not waiting:
                return None
            wrong = [each for each in waiting if each.rejection is not None]
            if not wrong:
                waiting[0].readers[key] -= 1
                return None
            wrong[0].readers[key] -= 1
            may_be_another_query = wrong != waiting
            if may_be_another_query:
                return None
            return wrong[0].rejection

    def has_progress(self, run: str) -> None:
        """Warns if a query that should have been rejected has progress, because its readers did not or could not ask.
        ``run`` is the id of its run."""
        rejections = []
        with self._lock:
            others = []
            for each in self._queries:
                if each.run == run and each.rejection is not None:
                    rejections.append(each.rejection)
                else:
                    others.append(each)
            self._queries = others
        for rejection in rejections:
            log.warning("%s %s", rejection.happened, rejection.action)

    def _forget_ended_queries(self) -> None:
        running = self._running()
        self._queries = [each for each in self._queries if each.run in running]


def rejection(plan: Any, sources: Iterable[StreamSource], name: str) -> Rejection | None:
    """Why a query with this plan would miss records, or ``None``."""
    for shared in sharing(sources):
        if not reads_each_record_once(plan, shared):
            group = shared[0].options.group
            return Rejection(
                f"{len(shared)} sources of the query {name} share the group {group.group_id}: each would read only some"
                f" of the partitions of {group.subscription}, and rows would be missing.",
                "Give each source its own group: call load() once for each, with different values of kafka.group.id,"
                " also to join a stream with itself. Or read the topics only once, with one load().",
            )
    return None


def warn_of_sharing_queries(new: StartedQuery, running: Iterable[StartedQuery]) -> None:
    """Warns if a query shares partitions with others of this application, which may be what the user wants."""
    warned: set[str] = set()
    for options in new.sources:
        group = options.group
        others = [each for each in running if shares_with_any(options, each.sources)]
        if not others or group.group_id in warned:
            continue
        warned.add(group.group_id)
        log.warning(
            "group %s: the query %s shares the partitions of %s with other queries of this application (%s), so each"
            " query reads only some of the records. If a cell or line was run again, stop the query that its last run"
            " started: %s. If each query is to read all records, give each query its own load() with its own"
            " kafka.group.id.",
            group.group_id,
            new.name,
            group.subscription,
            some([each.name for each in others]),
            some([f"spark.streams.get('{each.query_id}').stop()" for each in others], "; "),
        )


def warn_of_batch_sources(name: str, sources: Iterable[SourceOptions]) -> None:
    """Warns if a streaming query reads a batch DataFrame whose end is the end of the log."""
    if PLANS_EACH_ACTION:
        return
    for options in sources:
        if isinstance(batch_end(options), Latest):
            log.warning(
                "the query %s reads %s with spark.read: Spark looks up the end of such a DataFrame once, at its first"
                " use, and no batch of the query sees later records. To see later records, call load() in foreachBatch,"
                " or read the topic as a stream with a kafka.group.id of its own.",
                name,
                options.group.subscription,
            )
