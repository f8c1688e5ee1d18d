"""Mistakes in the product that break a sentence of the contract: they judge whether the simulation finds any.

``A1`` to ``A15`` take the decisive part of a mend out again, of holes that readers of the code found. The others are
mistakes that a maintainer could make. A query with a mutant works as long as nothing goes wrong.

Two show only with parts of Spark: ``A11`` where reports of completed batches come over a bounded socket, ``A12`` in
the order of calls of PySpark 4.1 with the wrapper of AvailableNow.
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
        (("query/starts/rules.py", "(lineage, committed", "(logged.lineage, committed"),),
    ),
    Mutant(
        "A2",
        3,
        "the member's thread retries no commit while a revocation is pending, which waits for it in vain",
        (("group/protocol.py", " in (Phase.STABLE, Phase.REVOKING) else", " is Phase.STABLE else"),),
    ),
    Mutant(
        "A2b",
        2,
        "the member's thread retries no failed commit: a long batch or a rare trigger leaves it to Spark's next call",
        (("query/ownership.py", "due_at if self._to_retry(me)", "due_at if self._unresolved(me)"),),
    ),
    Mutant(
        "A3",
        2,
        "a commit without an answer is forgotten: it arrives after later ones, and moves the group back for good",
        (("group/coordinator.py", "replace(self._failed(error), unanswered=sent", "self._failed(error"),),
    ),
    Mutant(
        "A4",
        10,
        "a run fails beside a member that is in a batch longer than a session and a rebalance",
        (
            (
                "query/available_now.py",
                "self._owners = self._other_owners() if self._unreached else []",
                "self._owners = []",
            ),
        ),
    ),
    Mutant(
        "A4b",
        10,
        "a run counts its own batch, longer than a session and a rebalance, as time without progress",
        (("query/available_now.py", ", MAX_LOOK)", ", math.inf)"),),
    ),
    Mutant(
        "A5",
        6,
        "a recreated topic whose leader does not answer yet is planned with the end and epoch of the former one",
        (
            ("query/end_offsets.py", "self.known.items() if tp.topic not in topics", "self.known.items()"),
            ("query/end_offsets.py", "self.epochs.items() if tp.topic not in topics", "self.epochs.items()"),
        ),
    ),
    Mutant(
        "A6",
        5,
        "a partition without a commit that is assigned again in mid-batch is not committed before the batch ends",
        (
            (
                "query/offset_tracker.py",
                "        if committed is not None and not outdated_tag and",
                "        owned.committed = owned.completed if self._read_in_flight(tp) else None\n"
                "        if committed is not None and not outdated_tag and",
            ),
        ),
    ),
    Mutant(
        "A6b",
        5,
        "a partition whose first commit failed is handed over without a commit, and starts at latest",
        (("query/offset_tracker.py", " < MAX_REJECTIONS)", " < MAX_REJECTIONS and owned.committed is not None)"),),
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
        (("group/consumer/protocol.py", " or error_code == UNRELEASED_INSTANCE_ID):", "):"),),
    ),
    Mutant(
        "A9",
        1,
        "the replay of batch 0 fails if an empty subscribed topic is gone",
        (("spark/stream.py", "                self._error = error", "                raise"),),
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
                "unknown_to_all(self._cluster, unknown, deadline.at_most(WARN_AFTER)) == unknown",
                "unknown",
            ),
        ),
    ),
    Mutant(
        "A11",
        2,
        "a completion of another query waits for a busy reader, which is cut off from all reports for good",
        (
            (
                "spark/stream.py",
                "if self._position.digest != reported:\n            return\n        self._reported = reported\n"
                "        if not self._lock.acquire(blocking=False",
                "if not self._lock.acquire(",
            ),
            ("spark/notifications/client.py", "if self._closed.wait(self._backoff.next()):", "if True:"),
        ),
    ),
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
            ("group/coordinator.py", " or self._broker_id != self._current.id", ""),
            ("group/commits.py", "self._client.connect_to_known(deadline)", "self._client.connect(deadline)"),
            ("group/commits.py", " self._settings.consumer_protocol and", " False and"),
        ),
    ),
    Mutant(
        "A14",
        7,
        "a member ends with its query when a broker without its protocol or assignor answers, or the group is full",
        (("group/error_actions.py", "MAY_HEAL = {23, 26, 35, 81, 112}", "MAY_HEAL = {23, 26}"),),
    ),
    Mutant(
        "A15",
        3,
        "the planned batch of one source blocks hand-overs while another source of the query waits for its run's end",
        (("query/planner.py", "if self._clock() >= wait_until:", "if False:"),),
    ),
    Mutant(
        "M01",
        1,
        "a batch that Spark asks for again is planned once more, behind the one that it has not run",
        (("query/planner.py", "if start == self._planned_start else", "if start is self._planned_start else"),),
    ),
    Mutant(
        "M02",
        1,
        "the last range of a partition that moved to another member is part of every later batch",
        (("query/planner.py", "replace(read, start=read.end)", "read"),),
    ),
    Mutant(
        "M03",
        1,
        "while a new leader does not answer, its log is read at the second try without the check for lost records",
        (("query/data_loss.py", "(changed.keys", "(to_check.keys"),),
    ),
    Mutant(
        "M04",
        2,
        "the retry of a failed commit during the next batch commits the end of that batch",
        (("query/committer.py", "CommittedOffset(owned.completed,", "CommittedOffset(owned.position,"),),
    ),
    Mutant(
        "M05",
        2,
        "Spark's commit of an earlier batch, after the next one was planned, completes that one",
        (("query/offset_tracker.py", "_in_flight is None or end != self._in_flight:", "_in_flight is None:"),),
    ),
    Mutant(
        "M06",
        2,
        "a report of the last batch that comes while the next one is being planned completes that one",
        (("spark/stream.py", " and self._position.digest == reported", ""),),
    ),
    Mutant(
        "M07",
        2,
        "the last commits of a query that ends do not repair what a late one has moved back",
        (("query/ownership.py", "verified = self.verify(me, clients, deadline)", "verified = True"),),
    ),
    Mutant(
        "M08",
        2,
        "a query that ends leaves before its last commits, which are lost if they failed before",
        (
            (
                "query/driver.py",
                "left = self._commit_before_leaving(",
                "self._member.close()\n            left = self._commit_before_leaving(",
            ),
        ),
    ),
    Mutant(
        "M09",
        3,
        "a revocation waits for the batch and not for its commit, which is rejected after the next join",
        (("query/offset_tracker.py", "return self._reading | self._uncommitted()", "return self._reading"),),
    ),
    Mutant(
        "M10",
        3,
        "each heartbeat of a KIP-848 member puts off the end of its revocation, until the coordinator removes it",
        (("group/membership.py", " min(revoke_by", " max(revoke_by"),),
    ),
    Mutant(
        "M11",
        3,
        "a classic member counts its session from the answer of a heartbeat, and reads on after its end",
        (("group/classic/protocol.py", " session_ends)", " self.clock() + self.settings.session_timeout)"),),
    ),
    Mutant(
        "M12",
        3,
        "a batch whose lookups outlast the session reads partitions that others own by now",
        (("group/member.py", "self._apply(Tick())\n            readable", "readable"),),
    ),
    Mutant(
        "M14",
        3,
        "a revocation that waits for the lookup of a start does not hear of it if there is nothing to commit",
        (("query/committer.py", "self._member.commits_changed()  # a", "pass  # a"),),
    ),
    Mutant(
        "M15",
        3,
        "the late rejection of a commit of an earlier generation loses the partitions of the present one",
        (("group/member.py", "RESET_MEMBER_ID) and self._is(me) and", "RESET_MEMBER_ID) and"),),
    ),
    Mutant(
        "M16",
        3,
        "a KIP-848 member owns a recreated topic before the batch that reads the former one has ended",
        (("group/consumer/states.py", " and topic_ids.get(names[topic_id], topic_id) == topic_id", ""),),
    ),
    Mutant(
        "M17",
        4,
        "a partition that was lost and came back during planning is read from its former position",
        (("group/member.py", "if tp in readable and readable[tp] == me.owned.get(tp))", "if tp in readable)"),),
    ),
    Mutant(
        "M18",
        4,
        "a commit with a stale epoch is sent again with the new one for partitions that were lost meanwhile",
        (("query/committer.py", "_commit_pending(now", "_send(sent, now"),),
    ),
    Mutant(
        "M19",
        4,
        "the commits of both threads overtake each other: the lock is free before the request is sent",
        (
            ("query/committer.py", "False\n        try:", "False\n        self._one_commit.release()\n        try:"),
            ("query/committer.py", "_one_commit.release()\n            self.", ""),
        ),
    ),
    Mutant(
        "M20",
        4,
        "the answer to a commit counts for a partition that was lost and started again elsewhere before it came",
        (("query/offset_tracker.py", " and owned is sent[tp]", ""),),
    ),
    Mutant(
        "M21",
        4,
        "a start that was looked up before its partition was lost and came back is recorded",
        (("query/offset_tracker.py", "is owned}  # 6: no", "is not None}  # 6: no"),),
    ),
    Mutant(
        "M22",
        5,
        "a partition that starts at offset 0 is not committed before it has records",
        (
            (
                "query/owned_partition.py",
                "committed is None or self.completed > self.committed",
                "completed > (self.committed or 0)",
            ),
        ),
    ),
    Mutant(
        "M23",
        5,
        "a partition whose start could not be looked up is handed over at once, and starts at a later latest",
        (("query/offset_tracker.py", " or (not owned.start and owned.lookups < MAX_LOOKUPS)", ""),),
    ),
    Mutant(
        "M24",
        6,
        "a rewind that repeats exactly the last batch has its offset, and Spark never runs it",
        (("query/planner.py", "if planned == start:", "if False:"),),
    ),
    Mutant(
        "M25",
        6,
        "a decision counts as older than one before it, on a host whose clock is behind",
        (("query/offset_tracker.py", "1000), self._lineage + 1)", "1000), 0)"),),
    ),
    Mutant(
        "M26",
        6,
        "a rewind into a batch that was replayed long ago is ignored",
        (("query/starts/resolver.py", "self._replayed.pop(tp, None)", "pass"),),
    ),
    Mutant(
        "M27",
        6,
        "a rewind that another owner has followed since the replay is ignored if it lies in the replayed batch",
        (("query/starts/rules.py", "                and committed.lineage <= replayed.lineage\n", ""),),
    ),
    Mutant(
        "M28",
        6,
        "a rewind is ignored above the offset at which the query gave the partition up, however long ago",
        (("query/offset_tracker.py", "        self._given_up.pop(tp, None)\n", ""),),
    ),
    Mutant(
        "M29",
        6,
        "a partition that is created while the query runs starts at latest, and its first records are skipped",
        (("query/starts/resolver.py", "pinned.offsets.keys(", "(pinned.offsets.keys() | partitions"),),
    ),
    Mutant(
        "M30",
        6,
        "resetOffsetsOnStart applies again to a partition that comes back before a batch was logged",
        (("query/offset_tracker.py", "resets=self._pinned.resets - offsets.keys()", "resets=self._pinned.resets"),),
    ),
    Mutant(
        "M31",
        6,
        "a start at latest is looked up again if its partition is lost before the commit",
        (("query/offset_tracker.py", "self._pinned = self._pinned.pin(", "self._pinned.pin("),),
    ),
    Mutant(
        "M32",
        6,
        "the new position in a truncated log is not committed before the query has passed its former one",
        (("query/offset_tracker.py", "replace(moved, committed=None, ", "replace(moved, "),),
    ),
    Mutant(
        "M33",
        6,
        "a batch that is planned while a lookup finds a recreated topic has its former id",
        (
            (
                "query/planner.py",
                "owned = self._tracker.positions(me)",
                "recreated = self._tracker.take_recreated()\n        owned = self._tracker.positions(me)",
            ),
            ("query/planner.py", "invalidate_topics(self._tracker.take_recreated())", "invalidate_topics(recreated)"),
        ),
    ),
    Mutant(
        "M34",
        6,
        "a rewind loses its lineage for later owners if the brokers allow no metadata for it",
        (("query/committer.py", 'short = "" if lineage else tag', "short = tag"),),
    ),
    Mutant(
        "M35",
        7,
        "onCommitFailure=fail counts failures of the whole run, and not those in a row",
        (("query/committer.py", "_failures_in_a_row = 0\n        self._counters", "_counters"),),
    ),
    Mutant(
        "M36",
        7,
        "a query with assign commits to its dead coordinator for ever",
        (
            (
                "group/coordinator.py",
                "        self.rediscover()\n        return RequestFailed(ErrorAction.REDISCOVER, str",
                "        return RequestFailed(ErrorAction.REDISCOVER, str",
            ),
        ),
    ),
    Mutant(
        "M37",
        7,
        "a start under the former id of a topic, from a lagging broker, is never looked up again",
        (("query/planner.py", "self._tracker.drop_other_topics(topic_ids)", "set[str]()"),),
    ),
    Mutant(
        "M38",
        7,
        "after a hand-over, a clean election counts as data loss: the position has the epoch of an older one",
        (("query/offset_tracker.py", " and logged.end == start.offset", ""),),
    ),
    Mutant(
        "M39",
        7,
        "a topic counts as deleted although a broker that may know it has not answered",
        (("wire/stale_metadata.py", "return set()", "continue"),),
    ),
    Mutant(
        "M40",
        7,
        "metadata that was asked for afresh does not replace what is kept: elections and recreations are missed",
        (("wire/cluster.py", "{**self._topics, **found.topics}", "{**found.topics, **self._topics}"),),
    ),
    Mutant(
        "M41",
        7,
        "the join of a new member is not given up when its coordinator moves: it waits for the rebalance timeout",
        (("group/classic/protocol.py", "self._find_coordinator()", "None"),),
    ),
    Mutant(
        "M42",
        8,
        "a member whose leave is lost on a dead connection stays until its session ends",
        (("group/protocol.py", "send(deadline.at_most(LEAVE_ATTEMPT_TIMEOUT))", "send(deadline)"),),
    ),
    Mutant(
        "M43",
        8,
        "a KIP-848 query that ends before its join is answered leaves a ghost member",
        (
            ("group/consumer/protocol.py", "        self._joined = True\n", ""),
            (
                "group/consumer/protocol.py",
                "confirm_generation()\n",
                "confirm_generation()\n        self._joined = True\n",
            ),
        ),
    ),
    Mutant(
        "M44",
        9,
        "one broker that does not know a partition leaves it without an owner, while the others do not answer",
        (
            (
                "group/topic_view.py",
                "is_confirmed(len(responses), max(self._brokers, len(self._cluster.broker_ids())))",
                "len(responses) > 0",
            ),
        ),
    ),
    Mutant(
        "M45",
        9,
        "what a static classic member was revoking when it died has no owner after its return",
        (("group/classic/protocol.py", "if self._returned is not False:", "if False:"),),
    ),
    Mutant(
        "M46",
        9,
        "a KIP-848 member never reports a revocation that ended while a heartbeat was pending",
        (("group/consumer/states.py", "answered=event.sent if", "answered=membership.report if"),),
    ),
    Mutant(
        "M47",
        9,
        "a KIP-848 member whose heartbeat got no answer does not ask for its assignment again",
        (
            ("group/consumer/states.py", "replace(membership, answered=None)", "membership"),
            ("group/consumer/protocol.py", "replace(me, answered=None) if sent_at < self._late_until else me", "me"),
        ),
    ),
    Mutant(
        "M48",
        10,
        "a run with resetOffsetsOnStart ends before it has moved all partitions: their old commits are at the target",
        (("query/planner.py", "not target.extended and self._is_reached(target)", "target.is_reached()"),),
    ),
    Mutant(
        "M49",
        10,
        "the target lies behind an open transaction, for which a run with read_committed waits",
        (("query/available_now.py", "specs, read_committed=self._read_committed,", "specs, read_committed=False,"),),
    ),
    Mutant(
        "M50",
        10,
        "a run ends without a partition that has neither a leader nor a commit",
        (("query/available_now.py", "_is_left(tp, progress.get(tp, 0))", "_is_left(tp, progress.get(tp, end))"),),
    ),
    Mutant(
        "M51",
        10,
        "a run waits for a partition of another consumer without a commit, whose records retention has deleted",
        (("query/available_now.py", "in committed.items()} | earliest", "in committed.items()}"),),
    ),
    Mutant(
        "M52",
        10,
        "a run never ends after an election has truncated a log before the target",
        (("query/planner.py", "            target.lower(truncated)\n", ""),),
    ),
    Mutant(
        "M53",
        10,
        "a partition with a small part of the backlog is never read while others grow, or all if there are many",
        (("query/limits.py", "max(1, max_offsets * each // total)", "max_offsets * each // total"),),
    ),
    Mutant(
        "M54",
        6,
        "a move that was looked up long ago counts as later than one that another owner has found since",
        (("query/starts/resolver.py", "commits, ids, began_at)", "commits, ids, time.time())"),),
    ),
    Mutant(
        "M55",
        10,
        "a run waits for a topic of another member that is recreated with fewer records than the target",
        (
            (
                "query/planner.py",
                "self.end_offsets.truncated_before(self._epochs.confirmed(target.unreached))",
                "self._data_loss._in_same_topics(self.end_offsets.truncated_before(target.unreached))",
            ),
        ),
    ),
    Mutant(
        "M56",
        2,
        "a query that stops tries its last commit once: a coordinator that moves, or loads the group, is its end",
        (
            (
                "query/ownership.py",
                "return self._commit_again(me, clients, deadline.at_most(deadline.remaining() / 2))",
                "return self._commit_again(me, clients, deadline.at_most(deadline.remaining() / 2)) or True",
            ),
        ),
    ),
    Mutant(
        "M57",
        6,
        "one broker that lags tells a new query what exists: all else starts at earliest later, or counts as lost",
        (
            (
                "wire/stale_metadata.py",
                "self.confirmed = is_confirmed(len(others), len(brokers))",
                "self.confirmed = True",
            ),
            ("wire/stale_metadata.py", "return replace(first, topics=merge([first.topics, *others]))", "return first"),
        ),
    ),
    Mutant(
        "M58",
        6,
        "latest of a partition without a leader at the start is that of its return, and skips what came between",
        (("query/starts/resolver.py", "if tp in existed and at.since}", "if tp in existed and False}"),),
    ),
    Mutant(
        "M59",
        10,
        "a run waits for ever beside a client that commits the offset after its last record, before a marker",
        (("query/available_now.py", " and not self._tails.is_empty(tp, progress, end)", ""),),
    ),
    Mutant(
        "M60",
        2,
        "nobody checks which cluster answers at a broker's address: commits and lookups reach another one",
        (
            ("wire/connections.py", "            self._check_cluster(opened, limit)\n", ""),
            ("wire/cluster.py", "self.identity.check(response.cluster_id, str(connection))", "pass"),
        ),
    ),
    Mutant(
        "M61",
        10,
        "a run ends by the group's commits, and the query has yet to move its partitions back",
        (("query/offset_tracker.py", "return pending | dict.fromkeys(undecided, UNDECIDED)", "return pending"),),
    ),
    Mutant(
        "M62",
        10,
        "a run ends before the first assignment of a query that moves back what it is assigned first",
        (("query/planner.py", "if self._tracker.was_assigned or not self._start_may_move_back():", "if True:"),),
    ),
)
