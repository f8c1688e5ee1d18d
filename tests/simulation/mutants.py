"""Mistakes in the product, each of which breaks a sentence of the contract: they judge whether the simulation finds any.

``A1`` to ``A15`` take the decisive part of a mend out again, of holes that readers of the code found. The others are
mistakes that a maintainer could make. A query with a mutant works as long as nothing goes wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Mutant:
    """One mistake in the product: text replaced in one or more of its files."""

    name: str
    sentence: int  # of the contract, which it breaks
    breaks: str  # what goes wrong, in which situation
    edits: tuple[tuple[str, str, str], ...]  # file below spark_group_source, old text (occurs exactly once), new text


def apply(mutant: Mutant, package: Path) -> None:
    """Rewrites the files of a copy of the package.

    Raises:
        ValueError: an old text does not occur exactly once.
    """
    for name, old, new in mutant.edits:
        file = package / name
        text = file.read_text(encoding="utf-8")
        if text.count(old) != 1:
            raise ValueError(f"{mutant.name}: {text.count(old)} times in {name}: {old!r}")
        file.write_text(text.replace(old, new), encoding="utf-8")


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "A1",
        6,
        "a commit below the logged end counts as late, whatever its lineage: the second query skips a rewind",
        (
            (
                "query/offset_tracker.py",
                "(lineage, committed.offset) < (logged.lineage, logged.end)",
                "committed.offset < logged.end",
            ),
        ),
    ),
    Mutant(
        "A2",
        3,
        "the member's thread retries no failed commit of a completed batch: a revocation waits for it in vain",
        (("query/ownership.py", "due_at if self._to_retry(me)", "due_at if self._unresolved(me)"),),
    ),
    Mutant(
        "A3",
        2,
        "a commit without an answer is forgotten: it arrives after later ones, and moves the group back for good",
        (
            (
                "group/coordinator.py",
                "return replace(self._failed(error), unanswered=sent)",
                "return self._failed(error)",
            ),
        ),
    ),
    Mutant(
        "A4",
        10,
        "a run fails beside a member that is in a batch longer than a session and a rebalance",
        (
            ("query/available_now.py", "if self._other_owners() != []:", "if False:"),
            ("query/available_now.py", "            if owners:\n                self._without_owner = 0.0\n", ""),
        ),
    ),
    Mutant(
        "A4b",
        10,
        "a run counts its own batch, longer than a session and a rebalance, as time without progress",
        (
            (
                "query/available_now.py",
                "min(self._looked_at - looked_before, MAX_LOOK)",
                "self._looked_at - looked_before",
            ),
        ),
    ),
    Mutant(
        "A5",
        6,
        "a recreated topic whose leader does not answer yet is planned with the end and epoch of the former one",
        (
            (
                "query/end_offsets.py",
                "self.known = {tp: end for tp, end in self.known.items() if tp.topic not",
                "_ = {tp for tp in self.known if tp.topic not",
            ),
            (
                "query/end_offsets.py",
                "self.epochs = {tp: epoch for tp, epoch in self.epochs.items() if tp.topic not",
                "_ = {tp for tp in self.epochs if tp.topic not",
            ),
        ),
    ),
    Mutant(
        "A6",
        5,
        "a partition without a commit that is assigned again in mid-batch is not committed before the batch ends",
        (
            (
                "query/offset_tracker.py",
                "if committed is not None and same_lineage else None",
                "if committed is not None and same_lineage else partition.completed if tp in self.in_flight else None",
            ),
        ),
    ),
    Mutant(
        "A6b",
        5,
        "a partition whose first commit failed is handed over without a commit, and starts at latest",
        (
            (
                "query/offset_tracker.py",
                "if partition.rejections < MAX_REJECTIONS}",
                "if partition.rejections < MAX_REJECTIONS and partition.committed is not None}",
            ),
        ),
    ),
    Mutant(
        "A7",
        4,
        "commits name topics without their ids: the end of a deleted topic is committed to its successor",
        (("query/committer.py", "commit(me, offsets, deadline, ids)", "commit(me, offsets, deadline)"),),
    ),
    Mutant(
        "A8",
        8,
        "a static KIP-848 member whose join got no answer is rejected until its own session ends",
        (("group/consumer.py", " or error_code == UNRELEASED_INSTANCE_ID):", "):"),),
    ),
    Mutant(
        "A9",
        1,
        "the replay of batch 0 fails if an empty subscribed topic is gone",
        (("spark/stream.py", "                self._unpinned = error", "                raise"),),
    ),
    Mutant(
        "A10",
        10,
        "the target of a run lacks partitions that the one broker asked does not know yet",
        (("query/available_now.py", "EveryBroker(self._cluster)", "self._cluster"),),
    ),
    Mutant(
        "A10b",
        7,
        "a restart takes a topic as deleted that one broker has not heard of for three seconds",
        (
            (
                "query/topics.py",
                "                topics = self._subscription.find(EveryBroker(self._cluster), deadline)\n",
                "",
            ),
            (
                "query/topics.py",
                "(deadline.expired() or unknown_to_all(self._cluster, unknown, deadline) == unknown)",
                "unknown",
            ),
        ),
    ),
    # A11 shows only where the reports come over a bounded socket: a busy reader holds its lock, and is dropped.
    Mutant(
        "A11",
        2,
        "a completion of another query waits for a busy reader, which is cut off from all reports for good",
        (
            (
                "spark/stream.py",
                "self._position.digest != reported or not self._lock.acquire(blocking=False)",
                "not self._lock.acquire()",
            ),
            ("spark/notification_client.py", "if self._closed.wait(self._backoff.next()):", "if True:"),
        ),
    ),
    # A12 shows only in the order of calls of PySpark 4.1 with the wrapper of AvailableNow. The rest of it is documented.
    Mutant(
        "A12",
        10,
        "a run on PySpark 4.1 with Spark's wrapper commits what nobody has read",
        (("spark/stream.py", "self._application.wraps_available_now and ReadLimit is None", "False"),),
    ),
    Mutant(
        "A13",
        6,
        "each client keeps its own coordinator: a new owner starts at the offsets of a former one",
        (
            (
                "group/coordinator.py",
                "self._broker_id is None or self._broker_id != self._current.id",
                "self._broker_id is None",
            ),
            ("group/offsets.py", "self._client.connect_to_known(deadline)", "self._client.connect(deadline)"),
            (
                "group/offsets.py",
                "as_member = self._settings.consumer_protocol and me is not None",
                "as_member = False and me is not None",
            ),
        ),
    ),
    Mutant(
        "A14",
        7,
        "a member ends with its query when a broker without its protocol or assignor answers, or the group is full",
        (("group/membership.py", "MAY_HEAL = {23, 26, 35, 81, 112}", "MAY_HEAL = {23, 26}"),),
    ),
    Mutant(
        "A15",
        3,
        "the planned batch of one source blocks hand-overs while another source of the query waits for its run's end",
        (
            (
                "query/planner.py",
                "            if self._clock() >= wait_until:\n                return self._plan(start, limits, me, must_log=True)\n",
                "",
            ),
        ),
    ),
)
