"""Commits of completed work to the group, and what the source does if one fails."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping

from spark_group_source.clock import Deadline
from spark_group_source.error_codes import describe
from spark_group_source.errors import CommitFailed
from spark_group_source.group.commits import COMMIT_TAG, RESET_TAG, commit_metadata
from spark_group_source.group.counters import Counters
from spark_group_source.group.error_actions import ErrorAction, denied, error_action
from spark_group_source.group.events import RequestFailed
from spark_group_source.group.membership import Membership
from spark_group_source.listing import names
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.options.offset_specs import SpecificOffsets
from spark_group_source.options.stream_and_batch import stream_start
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.commits.retry_timer import RetryTimer
from spark_group_source.query.commits.shared_ledger import SharedLedger
from spark_group_source.query.kafka_clients import KafkaClients

log = logging.getLogger(__name__)


CommitRejected = Callable[[Membership, RequestFailed, Deadline], Membership | None]
"""Called if the coordinator rejects a commit because it no longer knows the member, or has it in another epoch. Returns
the membership with which to commit again at once, or ``None``."""

_REJECTED = ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID, ErrorAction.STALE_EPOCH


class Committer:
    """Commits the pending offsets of the ledger, for either thread, one commit at a time.

    ``_one_commit`` is held during a commit: two at once could arrive in the wrong order and move offsets back. It also
    guards the number of failures in a row and the metadata.
    """

    def __init__(
        self,
        options: SourceOptions,
        ledger: SharedLedger,
        counters: Counters,
        retry_timer: RetryTimer,
        metadata_fields: Mapping[str, str],
        commit_rejected: CommitRejected,
    ) -> None:
        """``metadata_fields`` are part of the metadata if ``commitMetadata`` is on."""
        self._commit_rejected = commit_rejected
        self._options = options
        self._ledger = ledger
        self._counters = counters
        self._retry_timer = retry_timer
        self._group_id = options.group_id
        self._one_commit = threading.Lock()
        self._failures_in_a_row = 0
        self._metadata_fields = dict(metadata_fields) if options.commit_metadata else None
        start = stream_start(options)
        self._start = start.digest if isinstance(start, SpecificOffsets) else ""

    def commit(self, me: Membership, clients: KafkaClients, deadline: Deadline | None = None) -> bool:
        """Commits the pending offsets of what ``me`` owns, within ``groupCommit.timeoutMs``; whether no request failed.

        A failure is logged, and the next commit repeats it. The same holds if the other thread's commit is still under
        way at the ``deadline``, and for partitions that the coordinator does not know.

        Raises:
            CommitFailed: it has failed too often in a row, and ``onCommitFailure`` is ``fail``.
            AuthenticationFailed, GroupError: this client may not commit, or the brokers no longer accept it.
        """
        timeout = self._options.commit_timeout
        deadline = deadline.at_most(timeout) if deadline else Deadline.after(timeout)
        if not self._one_commit.acquire(timeout=deadline.remaining()):
            return False
        try:
            return self._commit_pending(me, clients, deadline)
        finally:
            self._one_commit.release()

    def _commit_pending(self, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        resets = self._ledger.unlogged_resets()
        for tag in (RESET_TAG, COMMIT_TAG):
            pending = self._ledger.pending(me)
            offsets = {tp: offset for tp, offset in pending.items() if (tp in resets) == (tag == RESET_TAG)}
            if offsets and not self._send(offsets, self._metadata(me, tag), me, clients, deadline):
                return False
        return True

    def _send(self, pending: Offsets, metadata: str, me: Membership, clients: KafkaClients, deadline: Deadline) -> bool:
        epochs = self._ledger.epochs.of(pending)
        answer = clients.offsets.commit(me, pending, metadata, deadline, epochs)
        self._ledger.confirmed(answer.confirmed)
        if answer.failure is not None:
            if answer.failure.error is not None and denied(answer.failure.error):
                raise answer.failure.error
            now = self._commit_rejected(me, answer.failure, deadline) if answer.failure.action in _REJECTED else None
            if now is not None:
                return self._commit_pending(now, clients, deadline)
            self._commit_failed(pending.keys() - answer.confirmed.keys(), answer.failure.reason)
            return False
        if answer.confirmed:
            self._failures_in_a_row = 0
            self._counters.commits += 1
        to_trim = {
            tp: pending[tp]
            for tp, errno in answer.errors.items()
            if metadata and error_action(errno) is ErrorAction.TRIM_METADATA
        }
        self._partitions_rejected({tp: errno for tp, errno in answer.errors.items() if tp not in to_trim})
        return not to_trim or self._send(to_trim, self._trim(metadata), me, clients, deadline)

    def _partitions_rejected(self, errors: Mapping[TopicPartition, int]) -> None:
        """Logs each partition once, until a commit of it succeeds, because the retries may go on for minutes."""
        if errors:
            self._retry_timer.restart()
        if newly := self._ledger.commits_rejected(errors):
            codes = ", ".join(describe(errno) for errno in sorted({errors[tp] for tp in newly}))
            log.warning("group %s: %s not committed, and will be retried: %s", self._group_id, names(newly), codes)

    def _metadata(self, me: Membership, tag: str) -> str:
        start = {"start": self._start} if self._start else {}
        if self._metadata_fields is None:
            return commit_metadata(start, tag)
        now = {"member": me.member_id, "generation": me.generation, "batches": self._counters.batches}
        return commit_metadata(self._metadata_fields | now | start, tag)

    def _trim(self, metadata: str) -> str:
        if metadata in (COMMIT_TAG, RESET_TAG):
            return ""
        log.warning(
            "group %s: commitMetadata is too long for the brokers; further commits have only the tag", self._group_id
        )
        self._metadata_fields, self._start = None, ""
        return RESET_TAG if metadata.startswith(RESET_TAG) else COMMIT_TAG

    def _commit_failed(self, partitions: Iterable[TopicPartition], why: str) -> None:
        self._counters.failed_commits += 1
        self._retry_timer.restart()
        self._failures_in_a_row += 1
        if self._options.on_commit_failure != "fail" or self._failures_in_a_row <= self._options.commit_retries:
            log.warning("group %s: a commit failed and will be retried: %s", self._group_id, why)
            return
        raise CommitFailed(
            f"The offsets of {names(partitions)} could not be committed to group '{self._group_id}' in"
            f" {self._failures_in_a_row} tries: {why}.",
            "Check the group's coordinator, raise groupCommit.numRetries, or set onCommitFailure to warn.",
        )
