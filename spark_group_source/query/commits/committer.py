"""Commits of completed work to the group, and what follows where one fails."""

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
from spark_group_source.group.state import Membership
from spark_group_source.listing import names
from spark_group_source.offsets import Offsets, TopicPartition
from spark_group_source.options.table import SourceOptions
from spark_group_source.query.commits.retry import Retry
from spark_group_source.query.commits.shared_ledger import SharedLedger
from spark_group_source.query.kafka_clients import KafkaClients

log = logging.getLogger(__name__)


class Committer:
    """Commits what the ledger has, for whichever thread asks, one commit at a time.

    ``_one_commit`` is held while a commit is under way: two at once could arrive in the wrong order and move offsets
    back. It guards how many have failed in a row, and what their metadata tell.
    """

    def __init__(
        self,
        options: SourceOptions,
        ledger: SharedLedger,
        counters: Counters,
        retry: Retry,
        facts: Mapping[str, str],
        no_member: Callable[[Membership, RequestFailed], None],
    ) -> None:
        """``facts`` stand in the metadata of commits where ``commitMetadata`` is on.

        ``no_member`` is called where the coordinator refuses a commit because it does not know the member any more.
        """
        self._no_member = no_member
        self._options = options
        self._ledger = ledger
        self._counters = counters
        self._retry = retry
        self._group_id = options.group_id
        self._one_commit = threading.Lock()
        self._failed_in_a_row = 0
        self._facts = dict(facts) if options.commit_metadata else None

    def commit(self, me: Membership, access: KafkaClients, deadline: Deadline | None = None) -> bool:
        """Commits what is completed of what ``me`` owns, within ``groupCommit.timeoutMs``; whether nothing is left.

        A failure is logged, and what failed is part of the next commit; so is what was not sent before ``deadline``,
        because the other thread's commit was still under way.

        Raises:
            CommitFailed: it has failed too often in a row, and ``onCommitFailure`` is ``fail``.
            AuthenticationFailed, GroupError: this client may not commit, or is not let in any more.
        """
        most = self._options.commit_timeout
        deadline = deadline.at_most(most) if deadline else Deadline.after(most)
        if not self._one_commit.acquire(timeout=deadline.remaining()):
            return False
        try:
            pending = self._ledger.pending(me)
            starting = self._ledger.unlogged()
            parts = (
                ({tp: at for tp, at in pending.items() if tp in starting}, RESET_TAG),
                ({tp: at for tp, at in pending.items() if tp not in starting}, COMMIT_TAG),
            )
            sent = (self._send(part, self._metadata(me, tag), me, access, deadline) for part, tag in parts if part)
            return all(sent)
        finally:
            self._one_commit.release()

    def _send(self, pending: Offsets, metadata: str, me: Membership, access: KafkaClients, deadline: Deadline) -> bool:
        epochs = self._ledger.epochs.of(pending)
        answer = access.offsets.commit(me, pending, metadata, deadline, epochs)
        self._ledger.confirmed(answer.confirmed)
        if answer.failure is not None:
            if answer.failure.error is not None and denied(answer.failure.error):
                raise answer.failure.error
            if answer.failure.action in (ErrorAction.RESET_GENERATION, ErrorAction.RESET_MEMBER_ID):
                self._no_member(me, answer.failure)
            self._failed(pending.keys() - answer.confirmed.keys(), answer.failure.reason)
            return False
        self._failed_in_a_row = 0
        self._counters.commits += 1
        too_long = {
            tp: pending[tp] for tp, errno in answer.errors.items() if error_action(errno) is ErrorAction.TRIM_METADATA
        }
        if too_long and metadata:
            return self._send(too_long, self._shorter(metadata), me, access, deadline)
        for tp, errno in answer.errors.items():
            log.warning("group %s: %s is not committed: %s", self._group_id, tp, describe(errno))
        self._ledger.uncommittable(answer.errors)
        return True

    def _metadata(self, me: Membership, tag: str) -> str:
        if self._facts is None:
            return tag
        now = {"member": me.member_id, "generation": me.generation, "batches": self._counters.batches}
        return commit_metadata(self._facts | now, tag)

    def _shorter(self, metadata: str) -> str:
        if metadata in (COMMIT_TAG, RESET_TAG):
            return ""
        log.warning("group %s: commitMetadata is too long for the brokers and left out from now on", self._group_id)
        self._facts = None
        return RESET_TAG if metadata.startswith(RESET_TAG) else COMMIT_TAG

    def _failed(self, partitions: Iterable[TopicPartition], why: str) -> None:
        self._counters.failed_commits += 1
        self._retry.later()
        self._failed_in_a_row += 1
        if self._options.on_commit_failure != "fail" or self._failed_in_a_row <= self._options.commit_retries:
            log.warning("group %s: a commit failed and is tried again: %s", self._group_id, why)
            return
        raise CommitFailed(
            f"The offsets of {names(partitions)} could not be committed to group '{self._group_id}' in"
            f" {self._failed_in_a_row} tries: {why}.",
            "Look at the group's coordinator, raise groupCommit.numRetries, or set onCommitFailure to warn.",
        )
