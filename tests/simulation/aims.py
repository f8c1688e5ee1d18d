"""Places of the product's progress at which something happens, instead of at a time.

Random events rarely meet. A strike is one fault where it may matter: at a request, a call of Spark, or a function that
takes a lock. There the request suffers, an event happens, or the thread is held while all others go on.
"""

from __future__ import annotations

import inspect

from spark_group_source.group.member import Member
from spark_group_source.query.committer import Committer
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.retry_timer import RetryTimer
from spark_group_source.spark.stream import GroupStreamReader
from tests.simulation.network import ERRORS, HANDLED, LATE_ARRIVES

LOCKS = {"_lock", "_changed", "_one_commit"}

FUNCTIONS = tuple(
    sorted(
        name
        for each in (OffsetTracker, Member, Committer, RetryTimer, GroupStreamReader)
        for name, function in inspect.getmembers(each, callable)
        if LOCKS & set(getattr(getattr(inspect.unwrap(function), "__code__", None), "co_names", ()))
        and name != "__init__"
    )
)
"""Functions that take a lock: what other threads do just before is another order of critical sections."""

PLANS, HAS_PLANNED, READS, COMPLETES, REPORTS = "plans", "has planned", "reads", "completes", "is to report"
STARTS, STOPS = "starts", "stops"
CALLS = (
    *(STARTS, PLANS, HAS_PLANNED, READS, COMPLETES, REPORTS, STOPS, LATE_ARRIVES),
    *(api + HANDLED for api in ("OffsetCommit", "JoinGroup", "SyncGroup", "OffsetFetch")),
)

TOPICS, RUNS, MOVES, COMMITS, LOGS, COORDINATORS = "topics", "runs", "moves", "commits", "logs", "coordinators"
ROLLING = "rolling restarts"
_TO_LEADERS = "ListOffsets", "OffsetForLeaderEpoch", "Metadata"
_TO_GROUP = "JoinGroup", "SyncGroup", "Heartbeat", "ConsumerGroupHeartbeat", "OffsetFetch", "LeaveGroup"
THEMES: dict[str, tuple[str, ...]] = {
    TOPICS: ("OffsetCommit", *_TO_LEADERS, "OffsetFetch"),
    RUNS: ("OffsetCommit", "OffsetFetch", *_TO_LEADERS),
    MOVES: ("OffsetCommit", "ListOffsets", *_TO_GROUP),
    COMMITS: ("OffsetCommit", *_TO_GROUP),
    LOGS: (*_TO_LEADERS, "OffsetCommit"),
    COORDINATORS: ("FindCoordinator", "OffsetCommit", *_TO_GROUP),
    "": (*ERRORS, "LeaveGroup"),
    ROLLING: ("FindCoordinator", "OffsetCommit", *_TO_GROUP),
}
"""What a run is about, with the requests that may suffer: what belongs together happens together, and nothing else."""

DRAWN = (*(TOPICS, RUNS, MOVES, COMMITS, LOGS, COORDINATORS, ""), *(COMMITS, COMMITS, RUNS, ROLLING))
"""The themes, some more often than others. Kept decisions name them by their place: append others at the end."""

HOLDS = (0.2, 1.0, 3.0, 8.0, 20.0)

APART = 18.0
"""Seconds between two strikes: each is the only one that a promise must bear."""

REQUESTS = frozenset(THEMES[""])
