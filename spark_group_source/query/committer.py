"""Commits completed offsets to the group, and handles failed commits."""

from __future__ import annotations

import logging
import threading
from collections.abc import Collection, Mapping

from spark_group_source.clock import Deadline
from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, describe_error_code
from spark_group_source.group.clients import KafkaClients
from spark_group_source.group.commits import CommittedOffset
from spark_group_source.group.error_actions import ErrorAction, error_action, is_denial
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.membership import Membership, RequestFailed
from spark_group_source.offsets import Partitions, TopicPartition, topics_of
from spark_group_source.options.source_options import SourceOptions
from spark_group_source.query.commit_failures import CommitFailures
from spark_group_source.query.commit_metadata import CommitMetadata
from spark_group_source.query.offset_tracker import OffsetTracker
from spark_group_source.query.owned_partition import Owned
from spark_group_source.query.permissions import TopicPermissions
from spark_group_source.query.retry_timer import RetryTimer
from spark_group_source.text import names

log = logging.getLogger(__name__)

_REJECTED = ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID, ErrorAction.STALE_EPOCH
_REBALANCES = (*_REJECTED, ErrorAction.REJOIN)
"""The actions that follow from the error of a commit while the group moves to another generation. A retry does not help
until the rebalance has ended."""


class Committer:
    """Commits the pending offsets of the tracker, for any thread, one commit at a time.

    ``_one_commit`` is held during a commit: two at once could arrive in the wrong order and move offsets back. It also
    guards ``_failures`` and ``_metadata``. The member is notified of each commit, because a revocation may wait for it,
    and judges each commit that the coordinator rejects. Only the query reads ``_thread``, which runs the commit that
    the query has begun, and ``_error``, the error of that commit, after the thread has ended.
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
        self._tracker = tracker
        self._member = member
        self._counters = member.counters
        self._retry_timer = retry_timer
        self._permissions = permissions
        self._group_id = options.group.group_id
        self._coordinator = options.group.coordinator
        self._timeout = options.commit_timeout
        self._metadata = CommitMetadata(options, member.counters, metadata_fields)
        self._failures = CommitFailures(options, retry_timer.clock)
        self._one_commit = threading.Lock()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    @property
    def last_failure(self) -> str:
        """Why the latest commit failed, for the log. Empty once a commit has succeeded."""
        return self._failures.last

    def commit(self, me: Membership, clients: KafkaClients, deadline: Deadline | None = None) -> bool:
        """Commits the pending offsets of the partitions that ``me`` owns, within ``offsetCommit.timeoutMs``. Returns
        False on failure.

        A failure is logged, and the next commit includes the offsets again. It is also a failure if the ``deadline``
        has passed, if another thread's commit takes half of the time until then, or if the coordinator does not know a
        partition.

        Raises:
            CommitFailed: it has failed too often in a row, and ``onCommitFailure`` is ``fail``.
            AuthenticationFailed, GroupError: this client may not commit, or the brokers no longer accept it.
        """
        if not self._tracker.pending(me):
            self._member.commits_changed()  # a revocation may wait for offsets that are no longer pending
            return True
        deadline = self._within_timeout(deadline)
        # The other half is for the response; without any time, the commit would count as failed.
        if deadline.expired() or not self._one_commit.acquire(timeout=deadline.remaining() / 2):
            return False
        try:
            return self._commit_pending(me, clients, deadline)
        finally:
            self._one_commit.release()
            self._member.commits_changed()

    def _within_timeout(self, deadline: Deadline | None) -> Deadline:
        """The deadline of a commit that begins now."""
        if deadline is None:
            return Deadline.after(self._timeout)
        return deadline.at_most(self._timeout)

    def begin(self, me: Membership, clients: KafkaClients) -> None:
        """As :meth:`commit`, but on a separate thread, which alone uses ``clients``, so that Spark continues meanwhile.
        First waits for the previous commit, as :meth:`wait` does. Caller: the query's thread."""
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
        """Waits for a commit on the other thread, and returns whether it ended in time. Caller: the query's thread."""
        if self._thread is not None:
            self._thread.join(within)
        return self._thread is None or not self._thread.is_alive()

    def wait(self) -> None:
        """Waits until the commit on the other thread has ended, and raises its error. Caller: the query's thread."""
        self.ended(within=None)
        self.raise_error()

    def raise_error(self) -> None:
        """Raises the error of the commit on the other thread, if that has ended with one. Caller: the query's
        thread."""
        if self._error is not None:
            raise self._error

    def _commit_pending(self, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        sent = self._tracker.pending(me)
        if not sent:
            return True
        return self._send(sent, me, clients, deadline)

    def _send(self, sent: Owned, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        """Sends these commits. Sends a commit again, with less metadata, if brokers reject the size of its metadata."""
        offsets = self._to_commit(sent, me)
        ids = {tp: owned.topic_id for tp, owned in sent.items()}
        answer = clients.offsets.commit(me, offsets, deadline, ids)
        self._tracker.confirmed({tp: offsets[tp].offset for tp in answer.confirmed}, sent)
        self._tracker.expect_late_commits(answer.unanswered)
        if answer.failure is not None:
            return self._retry_as_present_member(sent.keys() - answer.confirmed, answer.failure, me, clients, deadline)
        if answer.confirmed:
            self._record_success(answer.confirmed)
        to_trim, rejected = _by_size(answer.errors, offsets)
        self._partitions_rejected(rejected, sent)
        if not to_trim:
            return True
        size = self._metadata.size
        log.warning("group %s: %s for the brokers. Commits carry less metadata now.", self._group_id, size.value)
        self._metadata.size = size.smaller
        return self._send({tp: sent[tp] for tp in to_trim}, me, clients, deadline)

    def _to_commit(self, sent: Owned, me: Membership) -> dict[TopicPartition, CommittedOffset]:
        fields = self._metadata.common_fields(me)
        offsets = {}
        for tp, owned in sent.items():
            # The completed offset is read first, because OffsetTracker.completed sets the checkpoint before it.
            completed = owned.completed
            offsets[tp] = CommittedOffset(completed, self._metadata.text(owned, fields), owned.epoch)
        return offsets

    def _retry_as_present_member(
        self,
        unconfirmed: Collection[TopicPartition],
        failure: RequestFailed,
        me: Membership,
        clients: KafkaClients,
        deadline: Deadline,
    ) -> bool:
        """Handles a commit that failed as a whole. Commits again at once if only the epoch of ``me`` was outdated."""
        if failure.error is not None and is_denial(failure.error):
            self._failures.last = failure.reason
            raise failure.error
        if failure.action in _REJECTED:
            now = self._member.commit_rejected(me, failure, deadline)
            if now is not None:
                return self._commit_pending(now, clients, deadline)
        self._failures.last = failure.reason
        self._counters.failed_commits += 1
        self._retry_timer.restart()
        if me.member_id and failure.action in _REBALANCES:
            self._failures.rejected_in_rebalance(failure.reason)
        else:
            self._failures.failed(unconfirmed, failure.reason)
        return False

    def _record_success(self, confirmed: Partitions) -> None:
        self._coordinator.permission.record_granted()
        self._permissions.record_granted(tp.topic for tp in confirmed)
        self._counters.commits += 1
        self._failures.succeeded()

    def _partitions_rejected(self, errors: Mapping[TopicPartition, int], sent: Owned) -> None:
        """Logs each partition once, until a commit of it succeeds, because the retries may continue for minutes.

        Raises:
            TopicError: a permission is missing, and a retry is useless.
        """
        if errors:
            self._retry_timer.restart()
        newly = self._tracker.commits_rejected({tp: sent[tp] for tp in errors})
        unauthorized = {tp for tp, error_code in errors.items() if error_code == TOPIC_AUTHORIZATION_FAILED}
        self._permissions.record_denied(topics_of(unauthorized))
        to_log = newly - unauthorized
        if not to_log:
            return
        error_codes = sorted({errors[tp] for tp in to_log})
        codes = ", ".join(describe_error_code(error_code) for error_code in error_codes)
        self._failures.last = codes
        log.warning(
            "group %s: the commit of %s was rejected, and will be retried: %s", self._group_id, names(to_log), codes
        )


def _by_size(
    errors: Mapping[TopicPartition, int], offsets: Mapping[TopicPartition, CommittedOffset]
) -> tuple[set[TopicPartition], dict[TopicPartition, int]]:
    """The commits that were rejected for the size of their metadata, and the errors of the others."""
    to_trim = set()
    others = {}
    for tp, error_code in errors.items():
        if _too_long(error_code) and offsets[tp].metadata:
            to_trim.add(tp)
        else:
            others[tp] = error_code
    return to_trim, others


def _too_long(error_code: int) -> bool:
    """Whether the brokers reject the size of a commit's metadata."""
    return error_action(error_code) is ErrorAction.TRIM_METADATA
