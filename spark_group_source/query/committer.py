"""Commits of completed work to the group, and what the source does if one fails."""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Collection, Iterable, Mapping
from enum import Enum
from typing import Any

from spark_group_source.clock import WARN_EVERY, Deadline, LogEvery
from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, CommitFailed, describe_error_code
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import COMMIT_TAG, RESET_TAG, CommittedOffset, commit_metadata
from spark_group_source.group.error_actions import ErrorAction, denied, error_action
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import NO_LINEAGE, Partitions, TopicPartition
from spark_group_source.options.offset_specs import SpecificOffsets
from spark_group_source.options.source_options import SourceOptions, stream_start
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned, OwnedPartition
from spark_group_source.query.permissions import TopicPermissions
from spark_group_source.query.retry_timer import RetryTimer
from spark_group_source.text import names

log = logging.getLogger(__name__)

_REJECTED = ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID, ErrorAction.STALE_EPOCH
_REBALANCES = (*_REJECTED, ErrorAction.REJOIN)
"""A commit gets these while the group moves to another generation: its rebalance decides, and no retry can."""

_NUMBERS = re.compile(r"[0-9.]+")
"""What differs between two texts about the same failure: how long something took."""


class MetadataSize(Enum):
    """How much metadata the commits of a query have, for brokers that reject the size before. The value is what the log
    says if they reject this one too."""

    ALL = "commitMetadata, or the checkpoint's id, is too long"
    LINEAGE = "the metadata is too long"
    TAG = "even the tag is too long"
    NOTHING = "no metadata is too long"

    @property
    def smaller(self) -> MetadataSize:
        """The next size to try."""
        sizes = list(MetadataSize)
        return sizes[sizes.index(self) + 1]


class Committer:
    """Commits the pending offsets of the tracker, for any thread, one commit at a time.

    ``_one_commit`` is held during a commit: two at once could arrive in the wrong order and move offsets back. It also
    guards the number of failures in a row and the size of the metadata. The member hears of each commit, because
    a revocation may wait for it, and judges one that the coordinator rejects. The query alone reads ``_thread``, which
    runs the commit that it has begun, and ``_error``, why that one failed, after the thread has ended.
    ``last_failure`` is why the last commit failed that did, for the log.
    """

    def __init__(
        self,
        options: SourceOptions,
        tracker: OffsetTracker,
        member: Member | ManualAssignment,
        retry_timer: RetryTimer,
        permissions: TopicPermissions,
        metadata_fields: Mapping[str, str],
    ) -> None:
        """``metadata_fields`` are part of the metadata if ``commitMetadata`` is on."""
        self._options = options
        self._tracker = tracker
        self._member = member
        self._counters = member.counters
        self._retry_timer = retry_timer
        self._permissions = permissions
        self._count_timer = RetryTimer(options.commit_retry_interval, retry_timer.clock)
        self._group_id = options.group.group_id
        self._one_commit = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._failures_in_a_row = 0
        self.last_failure = ""
        self._failures_logged: dict[str, LogEvery] = {}
        self._rejected_since: float | None = None
        self._rejected_at = 0.0
        self._warnings = LogEvery(WARN_EVERY, retry_timer.clock)
        self._metadata_size = MetadataSize.ALL
        self._metadata_fields = metadata_fields
        start = stream_start(options)
        self._start = {"start": start.digest} if isinstance(start, SpecificOffsets) else {}

    def commit(self, me: Membership, clients: KafkaClients, deadline: Deadline | None = None) -> bool:
        """Commits the pending offsets of what ``me`` owns, within ``offsetCommit.timeoutMs``. Returns False on failure.

        A failure is logged, and the next commit repeats it. The same holds if the other thread's commit takes half of
        the time until the ``deadline``, or that has passed, and for partitions that the coordinator does not know.

        Raises:
            CommitFailed: it has failed too often in a row, and ``onCommitFailure`` is ``fail``.
            AuthenticationFailed, GroupError: this client may not commit, or the brokers no longer accept it.
        """
        if not self._tracker.pending(me):
            self._member.commits_changed()  # a revocation may wait for what is no longer pending
            return True
        timeout = self._options.commit_timeout
        deadline = deadline.at_most(timeout) if deadline else Deadline.after(timeout)
        # The other half is for the response; without any time, the commit would count as failed.
        if deadline.expired() or not self._one_commit.acquire(timeout=deadline.remaining() / 2):
            return False
        try:
            return self._commit_pending(me, clients, deadline)
        finally:
            self._one_commit.release()
            self._member.commits_changed()

    def begin(self, me: Membership, clients: KafkaClients) -> None:
        """As :meth:`commit`, but on a thread of its own, which alone uses ``clients``: Spark continues meanwhile. First
        waits for the commit before, as :meth:`wait` does. Caller: the query."""
        self.wait()
        thread = threading.Thread(target=self._run, args=(me, clients), name="commit", daemon=True)
        try:
            thread.start()
            self._thread = thread
        except RuntimeError:  # the limit of threads is reached
            self._run(me, clients)

    def _run(self, me: Membership, clients: KafkaClients) -> None:
        try:
            self.commit(me, clients)
        except Exception as error:  # of any kind: otherwise only this thread would end
            self._error = error

    def ended(self, within: float | None = 0.0) -> bool:
        """Whether a commit that was begun ends within so many seconds. Caller: the query."""
        if self._thread is not None:
            self._thread.join(within)
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until a commit that was begun has ended, and raises its error. Caller: the query."""
        self.ended(within=None)
        if self._error is not None:
            raise self._error

    def _commit_pending(self, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        sent = self._tracker.pending(me)
        return not sent or self._send(sent, me, clients, deadline)

    def _send(self, sent: Owned, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        fields = self._fields(me)
        offsets = {
            tp: CommittedOffset(owned.completed, self._metadata(owned, fields), owned.epoch)
            for tp, owned in sent.items()
        }
        ids = {tp: owned.topic_id for tp, owned in sent.items()}
        answer = clients.offsets.commit(me, offsets, deadline, ids)
        self._tracker.confirmed({tp: offsets[tp].offset for tp in answer.confirmed}, sent)
        self._tracker.expect_late_commits(answer.unanswered)
        if answer.failure is not None:
            return self._retry_as_present_member(sent.keys() - answer.confirmed, answer.failure, me, clients, deadline)
        if answer.confirmed:
            self._record_success(answer.confirmed)
        to_trim = {tp for tp, error_code in answer.errors.items() if _too_long(error_code) and offsets[tp].metadata}
        rejected = {tp: error_code for tp, error_code in answer.errors.items() if tp not in to_trim}
        self._partitions_rejected(rejected, sent)
        if not to_trim:
            return True
        size = self._metadata_size
        log.warning("group %s: %s for the brokers; commits have less now", self._group_id, size.value)
        self._metadata_size = size.smaller
        return self._send({tp: sent[tp] for tp in to_trim}, me, clients, deadline)

    def _retry_as_present_member(
        self,
        unconfirmed: Collection[TopicPartition],
        failure: RequestFailed,
        me: Membership,
        clients: KafkaClients,
        deadline: Deadline,
    ) -> bool:
        """The commit failed as a whole: commits again at once if only the epoch of ``me`` was out of date."""
        if failure.error is not None and denied(failure.error):
            self.last_failure = failure.reason
            raise failure.error
        rejected = failure.action in _REJECTED
        now = self._member.commit_rejected(me, failure, deadline) if rejected else None
        if now is not None:
            return self._commit_pending(now, clients, deadline)
        self.last_failure = failure.reason
        self._counters.failed_commits += 1
        self._retry_timer.restart()
        if me.member_id and failure.action in _REBALANCES:
            self._note_rebalance(failure.reason)
        else:
            self._commit_failed(unconfirmed, failure.reason)
        return False

    def _record_success(self, confirmed: Partitions) -> None:
        self._options.group.coordinator.permission.granted()
        self._permissions.record_granted(tp.topic for tp in confirmed)
        self._failures_in_a_row = 0
        self._counters.commits += 1
        self.last_failure = ""
        self._failures_logged.clear()
        self._rejected_since = None

    def _partitions_rejected(self, errors: Mapping[TopicPartition, int], sent: Owned) -> None:
        """Logs each partition once, until a commit of it succeeds, because the retries may continue for minutes.

        Raises:
            TopicError: a permission is missing, and a retry is no use.
        """
        if errors:
            self._retry_timer.restart()
        newly = self._tracker.commits_rejected({tp: sent[tp] for tp in errors})
        denied = {tp for tp, error_code in errors.items() if error_code == TOPIC_AUTHORIZATION_FAILED}
        self._permissions.record_denied({tp.topic for tp in denied})
        if newly := newly - denied:
            codes = ", ".join(describe_error_code(error_code) for error_code in sorted({errors[tp] for tp in newly}))
            self.last_failure = codes
            log.warning("group %s: %s not committed, and will be retried: %s", self._group_id, names(newly), codes)

    def _fields(self, me: Membership) -> dict[str, Any]:
        """The fields of the metadata that all partitions have."""
        if not self._options.commit_metadata:
            return self._start
        now = {"member": me.member_id, "generation": me.generation, "batches": self._counters.batches}
        return {**self._metadata_fields, **now, **self._start}

    def _metadata(self, owned: OwnedPartition, fields: Mapping[str, Any]) -> str:
        tag = RESET_TAG if owned.reset else COMMIT_TAG
        lineage = {} if owned.lineage == NO_LINEAGE else {"lineage": owned.lineage}
        checkpoint = {"checkpoint": owned.checkpoint} if owned.checkpoint else {}
        # A tag without its lineage would stand for the first one: without both, the next owner begins a new lineage.
        short = "" if lineage else tag
        match self._metadata_size:
            case MetadataSize.ALL:
                return commit_metadata({**lineage, **checkpoint, **fields}, tag)
            case MetadataSize.LINEAGE:
                return commit_metadata(lineage, tag)
            case MetadataSize.TAG:
                return short
            case MetadataSize.NOTHING:
                return ""

    def _note_rebalance(self, why: str) -> None:
        """The group has moved on to another generation, which is routine: the next try has it. Warns if that lasts for
        longer than a session, after which the member should have another generation or none."""
        now, before = self._retry_timer.clock(), self._rejected_at
        self._rejected_at = now
        session, retry = self._options.group.session_timeout, self._options.commit_retry_interval
        # With nothing to commit for a while, for example without partitions, this is another rebalance.
        if self._rejected_since is None or now - before > session + retry:
            self._rejected_since = now
            log.info("group %s: a commit was rejected during a rebalance, and will be retried: %s", self._group_id, why)
            return
        seconds = now - self._rejected_since
        if seconds > session and self._warnings.try_acquire():
            log.warning("group %s: all commits of the last %.0f s were rejected: %s", self._group_id, seconds, why)

    def _commit_failed(self, partitions: Iterable[TopicPartition], why: str) -> None:
        # Starts, batches and retries may all try at once, while a broker throttles this client.
        if self._count_timer.try_acquire():
            self._failures_in_a_row += 1
        if self._options.on_commit_failure != "fail" or self._failures_in_a_row <= self._options.commit_retries:
            # Reasons may take turns while a coordinator moves, and most say how long something took.
            reason = _NUMBERS.sub("", why)
            every_minute = self._failures_logged.setdefault(reason, LogEvery(WARN_EVERY, self._retry_timer.clock))
            if every_minute.try_acquire():
                log.warning("group %s: a commit failed and will be retried: %s", self._group_id, why)
            return
        raise CommitFailed(
            f"The offsets of {names(partitions)} could not be committed to group '{self._group_id}' in"
            f" {self._failures_in_a_row} tries: {why}.",
            "Check the group's coordinator, raise offsetCommit.numRetries, or set onCommitFailure to warn.",
        )


def _too_long(error_code: int) -> bool:
    """Whether the brokers reject the size of a commit's metadata."""
    return error_action(error_code) is ErrorAction.TRIM_METADATA
