"""A member of a group: the thread that performs the actions of the membership's state machine.

The thread named ``group-member`` owns the membership's connections. Other threads read snapshots and post events; each
public method says which thread may call it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection
from contextlib import closing

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.membership import Close, ErrorAction, Leave, Membership, RequestFailed
from spark_group_source.group.protocol import LEAVE_TIMEOUT, GroupProtocol, RebalanceListener
from spark_group_source.group.settings import GroupSettings, Timings
from spark_group_source.offsets import Partitions
from spark_group_source.wire.cluster import Cluster
from spark_group_source.wire.waiting import Interrupted, WakeupPipe

log = logging.getLogger(__name__)

BLOCKED_AFTER = 1.0
"""Seconds that :meth:`Member.close` waits for the thread to leave; then a user's own code blocks it, and the member
leaves without its thread."""


class Member:
    """Membership of one query. Created when the query starts, closed when it ends, never used again.

    ``_shared`` holds the state of both threads; ``_ending`` guards which thread frees the wakeup. Only the member's
    thread changes the other attributes.
    """

    def __init__(
        self,
        cluster: Cluster,
        settings: GroupSettings,
        listener: RebalanceListener,
        clock: Clock = monotonic,
        timings: Timings | None = None,
    ) -> None:
        self._cluster = cluster
        self._settings = settings
        self._closing = WakeupPipe()
        protocol = _protocol(settings)
        self._protocol: GroupProtocol = protocol(cluster, settings, listener, clock, self._closing, timings)
        self._shared = self._protocol.shared
        self._heartbeat_state = self._protocol.heartbeat_state
        self._closed = False
        self._leaving = threading.Event()
        self._ending = threading.Lock()
        self._ended = False
        self._left_behind = False
        # A daemon: a process that ends without close() must not wait for the group.
        self._thread = threading.Thread(target=self._run, name="group-member", daemon=True)

    def start(self, topics: Collection[str]) -> None:
        """Begins to join, subscribed to ``topics``. Caller: the query, once."""
        self._protocol.subscribe(topics)
        self._thread.start()

    def snapshot(self) -> Membership:
        """The membership as it is now. Caller: anybody.

        Raises:
            GroupSourceError: the membership failed.
        """
        me: Membership = self._shared.snapshot()
        return me

    @property
    def time_since_heartbeat(self) -> float:
        """Seconds since the last successful heartbeat or SyncGroup. Caller: anybody."""
        return self._heartbeat_state.time_since_heartbeat

    def await_assignment(self, deadline: Deadline) -> bool:
        """Waits for the first assignment, empty or not; whether it is known. Caller: the query.

        Raises:
            GroupSourceError: the membership failed.
        """
        return self._shared.await_assignment(deadline)

    def plan(self, partitions: Partitions, me: Membership) -> Partitions:
        """Registers a batch that will read ``partitions``; returns those that are still readable.

        Leaves out a partition that was lost and assigned again since the snapshot ``me``: its position may differ.
        Until :meth:`batch_completed` a revocation of the returned partitions waits for the batch. Caller: the query.
        """
        return self._shared.plan(partitions, me)

    def commit_rejected(self, me: Membership, failure: RequestFailed, deadline: Deadline) -> Membership | None:
        """The coordinator rejected a commit of ``me``: it is no member any more, or has another epoch by now.

        Returns the membership with which to commit again at once, ``None`` if there is none. The answer with the new
        epoch may be on its way: the query waits for it until the ``deadline``. Caller: both threads.
        """
        if failure.action is not ErrorAction.STALE_EPOCH:
            self._shared.commit_rejected(me, failure)
            return None
        # The member's thread itself receives that answer.
        waits = threading.current_thread() is not self._thread
        now: Membership | None = self._shared.await_other_generation(me, deadline if waits else deadline.at_most(0.0))
        return now

    def batch_completed(self) -> None:
        """The batch is completed. Caller: the query."""
        self._shared.batch_completed()

    def commits_changed(self) -> None:
        """Commits succeeded, or became due: a revocation may wait for them. Caller: both threads."""
        self._shared.commits_changed()

    def close(self) -> None:
        """Leaves the group and ends the thread, within :data:`LEAVE_TIMEOUT`. Caller: the query, at its end.

        If a user's own code blocks the thread, the thread ends when that code returns, and does nothing more. Further
        calls do nothing.
        """
        self._shared.post(Close())
        if self._closed:
            return
        self._closed = True
        self._closing.set()
        if self._thread.is_alive() and not self._leaving.wait(BLOCKED_AFTER):
            self._leave_without_thread()
        elif self._thread.is_alive():
            self._thread.join(LEAVE_TIMEOUT + 1.0)
        with self._ending:
            self._left_behind = self._thread.is_alive() and not self._ended
            if not self._left_behind:
                self._closing.close()

    def _leave_without_thread(self) -> None:
        log.warning("group %s: the member's thread is blocked; the member leaves without it", self._settings.group_id)
        with closing(Cluster(self._cluster.options)) as cluster:
            self._leave(cluster)

    def _run(self) -> None:
        try:
            while self._step():
                pass
        except Interrupted:
            self._leave()
        except BaseException as error:  # a user's function may call sys.exit()
            log.exception("group %s: the member's thread failed", self._settings.group_id)
            unexpected = GroupSourceError(f"The membership in group '{self._settings.group_id}' failed: {error!r}.")
            failure = error if isinstance(error, GroupSourceError) else unexpected
            self._shared.post(RequestFailed(ErrorAction.FATAL, repr(error), error=failure))
            self._leave()
        finally:
            self._cluster.close()
            with self._ending:
                self._ended = True
                if self._left_behind:
                    self._closing.close()

    def _step(self) -> bool:
        """Performs the next action, or sends a heartbeat or retries if due; whether the membership continues."""
        action, ended = self._shared.next_action(
            min(self._protocol.schedule.next_heartbeat, self._protocol.retry_due())
        )
        if isinstance(action, Leave):
            self._leave()
        elif action is not None:
            self._protocol.perform(action)
        elif not ended:
            self._protocol.keep_alive()
        return not ended

    def _leave(self, cluster: Cluster | None = None) -> None:
        if not self._leaving.is_set():
            self._leaving.set()
            self._protocol.leave(cluster)


def _protocol(settings: GroupSettings) -> Callable[..., GroupProtocol]:
    """Imports one protocol only, because every query waits for its imports."""
    if settings.consumer_protocol:
        from spark_group_source.group.consumer import ConsumerProtocol

        return ConsumerProtocol
    from spark_group_source.group.classic import ClassicProtocol

    return ClassicProtocol
