"""Mistakes in the product that break a sentence of the contract: they judge whether the simulation finds any.

``A1`` to ``A15`` take the decisive part of a mend out again, of holes that readers of the code found. The others are
mistakes that a maintainer could make. A query with a mutant works as long as nothing goes wrong.

Two show only with parts of Spark: ``A11`` where reports of completed batches come over a bounded socket, ``A12`` in
the order of calls of PySpark 4.1 with the wrapper of AvailableNow.

A mistake is a change of the syntax tree, wherever in the package the code stands and however it is formatted. When a
rename or a rewrite takes that code away, ``tests/unit/test_mutants.py`` names the mistake; name the new code here.
"""

from __future__ import annotations

import ast
import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Scope = ast.ClassDef | ast.FunctionDef
NEGATED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Eq: ast.NotEq,
    ast.Is: ast.IsNot,
    ast.In: ast.NotIn,
    ast.Lt: ast.GtE,
    ast.Gt: ast.LtE,
}
NEGATED |= {negated: operator for operator, negated in NEGATED.items()}


@dataclass(frozen=True)
class Edit:
    """Replaces an expression or a statement of the product by another one.

    In ``old``, ``_1``, ``_2`` and so on stand for any expression, and ``...`` as the last argument of a call for all
    that follow; ``new`` repeats them. A comparison is also found with the opposite operator, and then replaced by the
    opposite of ``new``.

    Attributes:
        old: the code to replace.
        new: an expression in the place of an expression, or else statements in the place of a statement.
        inside: the class or function to change, as the end of its qualified name: each place there is replaced. Without
            it, the code stands in the package once.
    """

    old: str
    new: str
    inside: str = ""


@dataclass(frozen=True)
class Mutant:
    """One mistake in the product.

    Attributes:
        name: its name on the command line.
        sentence: the sentence of the contract that it breaks.
        breaks: what goes wrong, and in which situation.
        edits: the changes that make it.
    """

    name: str
    sentence: int
    breaks: str
    edits: tuple[Edit, ...]


def apply(mutant: Mutant, package: Path) -> None:
    """Rewrites the files of a copy of the package. Raises as :func:`mutated`."""
    for file, text in mutated(mutant, package).items():
        file.write_text(text, encoding="utf-8")


def mutated(mutant: Mutant, package: Path) -> dict[Path, str]:
    """Returns the new texts of the files of a package that a mistake changes.

    Raises:
        ValueError: the code that an edit replaces does not stand there, or not only once.
    """
    texts = {file: file.read_text(encoding="utf-8") for file in package.rglob("*.py")}
    changed: dict[Path, str] = {}
    for edit in mutant.edits:
        count = 0
        for file, text in texts.items():
            replacement = Replacement(edit)
            if not replacement.may_be_in(text):
                continue
            tree = replacement.visit(ast.parse(text))
            if replacement.count > 0:
                count += replacement.count
                texts[file] = changed[file] = ast.unparse(ast.fix_missing_locations(tree))
        if count == 0 or (count > 1 and not edit.inside):
            where = edit.inside or "the package"
            raise ValueError(f"{mutant.name}: stands {count} times in {where}: {edit.old}")
    return changed


class Replacement(ast.NodeTransformer):
    """Replaces what an edit replaces in one file. ``count`` is in how many places."""

    def __init__(self, edit: Edit) -> None:
        self.count = 0
        self._inside = "."
        if edit.inside:
            self._inside = f".{edit.inside}."
        self._scope: list[str] = []
        self._words = {word for word in re.findall(r"[A-Za-z]\w*", edit.old) if word not in ("True", "False", "None")}
        old, new = ast.parse(edit.old).body, ast.parse(edit.new).body
        assert len(old) == 1, edit.old
        self._old: ast.AST = old[0]
        self._new: list[Any] = list(new)
        if isinstance(old[0], ast.Expr) and isinstance(new[0], ast.Expr) and len(new) == 1:
            self._old, self._new = old[0].value, [new[0].value]
        self._opposite = opposite(self._old)

    def may_be_in(self, text: str) -> bool:
        """Whether a text has all the words of the code: most files need not be parsed."""
        return all(word in text for word in self._words)

    def visit(self, node: ast.AST) -> Any:
        if isinstance(node, Scope):
            self._scope.append(node.name)
        node = self.generic_visit(node)
        if isinstance(node, Scope):
            self._scope.pop()
        if self._inside not in f".{'.'.join(self._scope)}.":
            return node
        found: dict[str, Any] = {}
        if matches(self._old, node, found):
            return self._filled(found)
        if self._opposite is not None and matches(self._opposite, node, found):
            return ast.UnaryOp(ast.Not(), self._filled(found))
        return node

    def _filled(self, found: dict[str, Any]) -> Any:
        self.count += 1
        filled = [Filling(found).visit(copy.deepcopy(each)) for each in self._new]
        return filled[0] if len(filled) == 1 else filled


class Filling(ast.NodeTransformer):
    """Puts what was found into the place of what stands for it."""

    def __init__(self, found: dict[str, Any]) -> None:
        self._found = found

    def visit_Name(self, node: ast.Name) -> Any:
        return self._found.get(node.id, node)

    def visit_Call(self, node: ast.Call) -> Any:
        self.generic_visit(node)
        if node.args and is_rest(node.args[-1]):
            arguments, keywords = self._found["..."]
            node.args, node.keywords = [*node.args[:-1], *arguments], [*node.keywords, *keywords]
        return node


def matches(pattern: Any, node: Any, found: dict[str, Any]) -> bool:
    """Whether a part of a syntax tree is as the pattern says; puts what stands for anything into ``found``."""
    if isinstance(pattern, ast.Name) and re.fullmatch(r"_\d+", pattern.id):
        found[pattern.id] = node
        return isinstance(node, ast.expr)
    if type(pattern) is not type(node):
        return False
    if isinstance(pattern, ast.Call) and pattern.args and is_rest(pattern.args[-1]):
        first = len(pattern.args) - 1
        found["..."] = node.args[first:], node.keywords
        return match_all([pattern.func, *pattern.args[:first]], [node.func, *node.args[:first]], found)
    if isinstance(pattern, list):
        return match_all(pattern, node, found)
    if isinstance(pattern, ast.AST):
        return match_all(parts(pattern), parts(node), found)
    return bool(pattern == node)


def parts(node: ast.AST) -> list[Any]:
    """The parts of a node of a syntax tree."""
    return [getattr(node, name) for name in node._fields]


def match_all(patterns: list[Any], nodes: list[Any], found: dict[str, Any]) -> bool:
    """Whether so many parts are each as their patterns say."""
    if len(patterns) != len(nodes):
        return False
    return all(matches(*each, found) for each in zip(patterns, nodes, strict=True))


def is_rest(node: ast.expr) -> bool:
    """Whether an argument stands for all that follow."""
    return isinstance(node, ast.Constant) and node.value is ...


def opposite(pattern: ast.AST) -> ast.Compare | None:
    """The comparison with the opposite operator; ``None`` for what is no simple comparison."""
    if not isinstance(pattern, ast.Compare) or len(pattern.ops) > 1:
        return None
    negated = NEGATED[type(pattern.ops[0])]
    return ast.Compare(pattern.left, [negated()], pattern.comparators)


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "A1",
        6,
        "a commit below the logged end counts as late, whatever its lineage: the second query skips a rewind",
        (Edit("(committed.lineage, committed.offset)", "(logged.lineage, committed.offset)", inside="resume_at"),),
    ),
    Mutant(
        "A2",
        3,
        "the member's thread retries no commit while a revocation is pending, which waits for it in vain",
        (Edit("_1 not in IN_GROUP", "_1 is not Phase.STABLE", inside="Member._maintenance_due"),),
    ),
    Mutant(
        "A2b",
        2,
        "the member's thread retries no failed commit: a long batch or a rare trigger leaves it to Spark's next call",
        (Edit("self._needs_maintenance(_1)", "self._unresolved(_1)", inside="maintenance_due"),),
    ),
    Mutant(
        "A3",
        2,
        "a commit without an answer is forgotten: it arrives after later ones, and moves the group back for good",
        (Edit("replace(_1, unanswered=sent)", "_1"),),
    ),
    Mutant(
        "A4",
        10,
        "a run fails beside a member that is in a batch longer than a session and a rebalance",
        (Edit("self._other_owners(...)", "[]", inside="AvailableNowTarget"),),
    ),
    Mutant(
        "A4b",
        10,
        "a run counts its own batch, longer than a session and a rebalance, as time without progress",
        (Edit("MAX_LOOK", "math.inf", inside="AvailableNowTarget"),),
    ),
    Mutant(
        "A5",
        6,
        "a recreated topic whose leader does not answer yet is planned with the end and epoch of the former one",
        (
            Edit("self.known = _1", "pass", inside="EndOffsets.forget"),
            Edit("self.epochs = _1", "pass", inside="EndOffsets.forget"),
        ),
    ),
    Mutant(
        "A6",
        5,
        "a partition without a commit that is assigned again in mid-batch is not committed before the batch ends",
        (
            Edit(
                "owned.committed = _1",
                "owned.committed = _1; owned.committed = owned.completed"
                " if owned.committed is None and self._read_in_flight(tp) else owned.committed",
                inside="OffsetTracker._start",
            ),
        ),
    ),
    Mutant(
        "A6b",
        5,
        "a partition whose first commit failed is handed over without a commit, and starts at latest",
        (
            Edit(
                "self.rejections < MAX_REJECTIONS",
                "self.rejections < MAX_REJECTIONS and self.committed is not None",
                inside="OwnedPartition.delays_revocation",
            ),
        ),
    ),
    Mutant(
        "A7",
        4,
        "commits name topics without their ids: the end of a deleted topic is committed to its successor",
        (Edit("_1.commit(me, offsets, deadline, ids)", "_1.commit(me, offsets, deadline)", inside="Committer"),),
    ),
    Mutant(
        "A8",
        8,
        "a static KIP-848 member whose join got no answer is rejected until its own session ends",
        (Edit("error_code == UNRELEASED_INSTANCE_ID", "False", inside="_has_former_epoch"),),
    ),
    Mutant(
        "A9",
        1,
        "the replay of batch 0 fails if an empty subscribed topic is gone",
        (Edit("self._error = error", "raise error", inside="GroupStreamReader.initialOffset"),),
    ),
    Mutant(
        "A10",
        10,
        "the target of a run lacks partitions that the one broker asked does not know yet",
        (Edit("EveryBroker(self._cluster)", "self._cluster", inside="AvailableNowTarget"),),
    ),
    Mutant(
        "A10b",
        7,
        "a restart takes a topic as deleted that one broker has not heard of for three seconds",
        (Edit("unknown_to_all(...) == unknown", "unknown", inside="TopicValidator"),),
    ),
    Mutant(
        "A11",
        2,
        "a completion of another query waits for a busy reader, which is cut off from all reports for good",
        (
            Edit("if self._position.digest != reported: return", "pass", inside="GroupStreamReader"),
            Edit("self._lock.acquire(blocking=False)", "self._lock.acquire()", inside="GroupStreamReader"),
            Edit("self._closed.wait(self._backoff.next())", "True", inside="NotificationClient"),
        ),
    ),
    Mutant(
        "A12",
        10,
        "a run on PySpark 4.1 with Spark's wrapper commits what nobody has read",
        (Edit("self._application.wraps_available_now", "False", inside="GroupStreamReader"),),
    ),
    Mutant(
        "A13",
        6,
        "each client keeps its own coordinator: a new owner starts at the offsets of a former one",
        (
            Edit("self._broker_id != self._current.id", "False"),
            Edit("self._client.connect_to_known(_1)", "self._client.connect(_1)", inside="GroupOffsets"),
            Edit("self._settings.consumer_protocol", "False", inside="_fetch_request"),
        ),
    ),
    Mutant(
        "A14",
        7,
        "a member ends with its query when a broker without its protocol or assignor answers, or the group is full",
        (Edit("MAY_HEAL = _1", "MAY_HEAL = {23, 26}"),),
    ),
    Mutant(
        "A15",
        3,
        "the planned batch of one source blocks hand-overs while another source of the query waits for its run's end",
        (Edit("self._clock() >= wait_until", "False"),),
    ),
    Mutant(
        "M01",
        1,
        "a batch that Spark asks for again is planned once more, behind the one that it has not run",
        (Edit("start == self._planned_start", "start is self._planned_start"),),
    ),
    Mutant(
        "M02",
        1,
        "the last range of a partition that moved to another member is part of every later batch",
        (Edit("OffsetRange(*tp, end, end, _1, _2, _3)", "OffsetRange(*tp, logged.start, end, _1, _2, _3)"),),
    ),
    Mutant(
        "M03",
        1,
        "while a new leader does not answer, its log is read at the second try without the check for lost records",
        (Edit("changed.keys() - _1", "changed.keys() - _1 - self.unconfirmed", inside="diverged"),),
    ),
    Mutant(
        "M04",
        2,
        "the retry of a failed commit during the next batch commits the end of that batch",
        (Edit("completed = owned.completed", "completed = owned.position", inside="Committer"),),
    ),
    Mutant(
        "M05",
        2,
        "Spark's commit of an earlier batch, after the next one was planned, completes that one",
        (Edit("end != self._in_flight", "False", inside="OffsetTracker.completed"),),
    ),
    Mutant(
        "M06",
        2,
        "a report of the last batch that comes while the next one is being planned completes that one",
        (Edit("self._in_flight() and self._position.digest == reported", "self._in_flight()"),),
    ),
    Mutant(
        "M07",
        2,
        "the last commits of a query that ends do not repair what a late one has moved back",
        (Edit("self.verify(...)", "True", inside="_commit_and_verify"),),
    ),
    Mutant(
        "M08",
        2,
        "a query that ends leaves before its last commits, which are lost if they failed before",
        (
            Edit(
                "uncommitted = self._commit_before_leaving(...)",
                "self._member.close(); uncommitted = self._commit_before_leaving(...)",
            ),
        ),
    ),
    Mutant(
        "M09",
        3,
        "a revocation waits for the batch and not for its commit, which is rejected after the next join",
        (Edit("self._reading | self._uncommitted()", "self._reading"),),
    ),
    Mutant(
        "M10",
        3,
        "each heartbeat of a KIP-848 member puts off the end of its revocation, until the coordinator removes it",
        (Edit("min(revoke_by, _1)", "max(revoke_by, _1)"),),
    ),
    Mutant(
        "M11",
        3,
        "a classic member counts its session from the answer of a heartbeat, and reads on after its end",
        (
            Edit(
                "HeartbeatSucceeded(_1, session_ends)",
                "HeartbeatSucceeded(_1, self.clock() + self.settings.session_timeout)",
            ),
        ),
    ),
    Mutant(
        "M12",
        3,
        "a batch whose lookups outlast the session reads partitions that others own by now",
        (Edit("self._apply(Tick())", "pass", inside="Member.plan"),),
    ),
    Mutant(
        "M15",
        3,
        "the late rejection of a commit of an earlier generation loses the partitions of the present one",
        (Edit("self._is(me)", "True", inside="Member._has_lost_generation"),),
    ),
    Mutant(
        "M17",
        4,
        "a partition that was lost and came back during planning is read from its former position",
        (Edit("readable[tp] == me.owned.get(tp)", "True", inside="Member.plan"),),
    ),
    Mutant(
        "M19",
        4,
        "the commits of both threads overtake each other: the lock is free before the request is sent",
        (
            Edit("self._one_commit.acquire(timeout=_1)", "True", inside="Committer.commit"),
            Edit("self._one_commit.release()", "pass", inside="Committer.commit"),
        ),
    ),
    Mutant(
        "M20",
        4,
        "the answer to a commit counts for a partition that was lost and started again elsewhere before it came",
        (Edit("owned is sent[tp]", "True", inside="OffsetTracker.confirmed"),),
    ),
    Mutant(
        "M21",
        4,
        "a start that was looked up before its partition was lost and came back is recorded",
        (Edit("self._owned.get(tp) is owned", "self._owned.get(tp) is not None", inside="OffsetTracker._unchanged"),),
    ),
    Mutant(
        "M22",
        5,
        "a partition that starts at offset 0 is not committed before it has records",
        (Edit("self.committed", "(self.committed or 0)", inside="OwnedPartition.pending"),),
    ),
    Mutant(
        "M23",
        5,
        "a partition whose start could not be looked up is handed over at once, and starts at a later latest",
        (Edit("self.lookups < MAX_LOOKUPS", "False"),),
    ),
    Mutant(
        "M24",
        6,
        "a rewind that repeats exactly the last batch has its offset, and Spark never runs it",
        (Edit("planned == start", "False", inside="BatchPlanner"),),
    ),
    Mutant(
        "M25",
        6,
        "a decision counts as older than one before it, on a host whose clock is behind",
        (Edit("self._latest + 1", "0", inside="Lineages.begin"),),
    ),
    Mutant(
        "M26",
        6,
        "a rewind into a batch that was replayed long ago is ignored",
        (Edit("self._replayed.pop(tp, None)", "pass", inside="StartOffsetResolver"),),
    ),
    Mutant(
        "M27",
        6,
        "a rewind that another owner has followed since the replay is ignored if it lies in the replayed batch",
        (Edit("committed.lineage <= replayed.lineage", "True"),),
    ),
    Mutant(
        "M28",
        6,
        "a rewind is ignored above the offset at which the query gave the partition up, however long ago",
        (Edit("self._given_up.pop(tp, None)", "pass", inside="OffsetHistory.started"),),
    ),
    Mutant(
        "M29",
        6,
        "a partition that is created while the query runs starts at latest, and its first records are skipped",
        (Edit("pinned.offsets.keys()", "pinned.offsets.keys() | partitions", inside="StartingOffsets.find"),),
    ),
    Mutant(
        "M31",
        6,
        "a start at latest is looked up again if its partition is lost before the commit",
        (Edit("self._history.pinned = self._history.pinned.pin(_1)", "pass"),),
    ),
    Mutant(
        "M32",
        6,
        "the new position in a truncated log is not committed before the query has passed its former one",
        (Edit("moved.committed = None", "pass"),),
    ),
    Mutant(
        "M34",
        6,
        "a rewind loses its lineage for later owners if the brokers allow no metadata for it",
        (Edit('return ""', "return tag", inside="_tag_alone"),),
    ),
    Mutant(
        "M35",
        7,
        "onCommitFailure=fail counts failures of the whole run, and not those in a row",
        (Edit("self._in_a_row = 0", "pass", inside="CommitFailures.succeeded"),),
    ),
    Mutant(
        "M36",
        7,
        "a query with assign commits to its dead coordinator for ever",
        (Edit("self.rediscover()", "pass", inside="CoordinatorClient._failed"),),
    ),
    Mutant(
        "M37",
        7,
        "a start under the former id of a topic, from a lagging broker, is never looked up again",
        (Edit("self._tracker.drop_other_topics(topic_ids)", "set[str]()"),),
    ),
    Mutant(
        "M38",
        7,
        "after a hand-over, a clean election counts as data loss: the position has the epoch of an older one",
        (Edit("logged.end == start.offset", "True", inside="_epoch_at"),),
    ),
    Mutant(
        "M39",
        7,
        "a topic counts as deleted although a broker that may know it has not answered",
        (Edit("log.info(...)", "continue", inside="unknown_to_all"),),
    ),
    Mutant(
        "M40",
        7,
        "metadata that was asked for afresh does not replace what is kept: elections and recreations are missed",
        (Edit("{**self._topics, **found.topics}", "{**found.topics, **self._topics}"),),
    ),
    Mutant(
        "M42",
        8,
        "a member whose leave is lost on a dead connection stays until its session ends",
        (Edit("deadline.at_most(LEAVE_ATTEMPT_TIMEOUT)", "deadline"),),
    ),
    Mutant(
        "M43",
        8,
        "a KIP-848 query that ends before its join is answered leaves a ghost member",
        (
            Edit("self._joined = True", "pass", inside="ConsumerProtocol"),
            Edit(
                "self.client.confirm_generation()",
                "self.client.confirm_generation(); self._joined = True",
                inside="ConsumerProtocol",
            ),
        ),
    ),
    Mutant(
        "M45",
        9,
        "what a static classic member was revoking when it died has no owner after its return",
        (Edit("self._returned is not False", "False", inside="ClassicProtocol._sync"),),
    ),
    Mutant(
        "M46",
        9,
        "a KIP-848 member never reports a revocation that ended while a heartbeat was pending",
        (Edit("event.sent", "membership.report", inside="_answered"),),
    ),
    Mutant(
        "M47",
        9,
        "a KIP-848 member whose heartbeat got no answer does not ask for its assignment again",
        (Edit("replace(membership, answered=None)", "membership"), Edit("replace(me, answered=None)", "me")),
    ),
    Mutant(
        "M48",
        10,
        "a run with resetOffsetsOnStart ends before it has moved all partitions: their old commits are at the target",
        (
            Edit(
                "not target.extended and self._is_reached(target)",
                "target.is_reached()",
                inside="BatchPlanner._plan_to_target",
            ),
        ),
    ),
    Mutant(
        "M49",
        10,
        "the target lies behind an open transaction, for which a run with read_committed waits",
        (Edit("self._read_committed", "False", inside="AvailableNowTarget._list_offsets"),),
    ),
    Mutant(
        "M50",
        10,
        "a run ends without a partition that has neither a leader nor a commit",
        (
            Edit(
                "self._is_left(tp, progress.get(tp, 0), ...)",
                "self._is_left(tp, progress.get(tp, end), ...)",
                inside="AvailableNowTarget",
            ),
        ),
    ),
    Mutant(
        "M52",
        10,
        "a run never ends after an election has truncated a log before the target",
        (Edit("target.lower(truncated)", "pass"),),
    ),
    Mutant(
        "M53",
        10,
        "a partition with a small part of the backlog is never read while others grow, or all if there are many",
        (Edit("max(1, _1)", "_1", inside="admit"),),
    ),
    Mutant(
        "M54",
        6,
        "a move that was looked up long ago counts as later than one that another owner has found since",
        (Edit("began_at", "time.time()", inside="StartOffsetResolver.resolve"),),
    ),
    Mutant(
        "M55",
        10,
        "a run waits for a topic of another member that is recreated with fewer records than the target",
        (
            Edit(
                "self._truncation.ends_before(self._epochs.confirmed(target.unreached))",
                "self._data_loss._in_same_topics(self._truncation.ends_before(target.unreached))",
            ),
        ),
    ),
    Mutant(
        "M56",
        2,
        "a query that stops tries its last commit once: a coordinator that moves, or loads the group, is its end",
        (
            Edit(
                "self._commit_and_verify(_1, _2, _3)",
                "self._commit_and_verify(_1, _2, _3) or True",
                inside="_try_last_commit",
            ),
        ),
    ),
    Mutant(
        "M57",
        6,
        "one broker that lags tells a new query what exists: all else starts at earliest later, or counts as lost",
        (
            Edit("self.confirmed = _1", "self.confirmed = True", inside="EveryBroker.metadata"),
            Edit("replace(first, topics=_1)", "first", inside="EveryBroker"),
        ),
    ),
    Mutant(
        "M58",
        6,
        "latest of a partition without a leader at the start is that of its return, and skips what came between",
        (Edit("at.since", "False", inside="StartingOffsets.find"),),
    ),
    Mutant(
        "M59",
        10,
        "a run waits for ever beside a client that commits the offset after its last record, before a marker",
        (Edit("self._tails.is_empty(...)", "False", inside="AvailableNowTarget"),),
    ),
    Mutant(
        "M60",
        2,
        "nobody checks which cluster answers at a broker's address: commits and lookups reach another one",
        (Edit("self.check_cluster(...)", "pass"), Edit("self._connections.check_cluster(...)", "pass")),
    ),
    Mutant(
        "M61",
        10,
        "a run ends by the group's commits, and the query has yet to move its partitions back",
        (Edit("ahead[tp] = UNDECIDED", "pass"),),
    ),
    Mutant(
        "M62",
        10,
        "a run ends before the first assignment of a query that moves back what it is assigned first",
        (Edit("self._tracker.was_assigned", "True", inside="_awaits_first_assignment"),),
    ),
    Mutant(
        "M63",
        4,
        "a static member keeps, and commits, what the group has assigned to others while it missed a generation",
        (Edit("_has_missed_generation(...)", "False"),),
    ),
    Mutant(
        "M64",
        7,
        "an answer that lacks a topic, or has an error for it, confirms which partitions the topic has",
        (Edit("_says_what_exists(...)", "True"),),
    ),
    Mutant(
        "M65",
        6,
        "the end of a topic that is recreated during the first lookup of its end is planned in its successor",
        (Edit("self.forget(former)", "pass", inside="EndOffsets._forget_former_topics"),),
    ),
)
