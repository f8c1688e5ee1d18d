"""One query on Spark's driver: starts, plans batches, completes them and closes. The parts do the work.

No pyspark here: :mod:`spark_group_source.spark.stream` calls it for Spark, and tests call it directly. One thread at a
time calls a driver, except for :meth:`Driver.leave`. Elsewhere in this package that is "the query's thread".
"""

from __future__ import annotations

import importlib
import logging
from dataclasses import replace

from spark_group_source.clock import Clock, Deadline, monotonic
from spark_group_source.errors import GroupSourceError
from spark_group_source.group.manual_assignment import ManualAssignment
from spark_group_source.group.member import Member
from spark_group_source.group.settings import Timings
from spark_group_source.offsets import BatchOffset, Offsets
from spark_group_source.options.table import SourceOptions, stream_start
from spark_group_source.query.assigned_partitions import AssignedPartitions
from spark_group_source.query.commits.batch_commits import BatchCommits
from spark_group_source.query.group_settings import group_settings
from spark_group_source.query.kafka_clients import KafkaClients
from spark_group_source.query.planning.batch_planner import BatchLimits, BatchPlanner
from spark_group_source.query.query_log import QueryLog
from spark_group_source.query.shared_group import log_other_members
from spark_group_source.query.starting_offsets.resolution import check_names
from spark_group_source.query.starting_offsets.topic_validator import TopicValidator
from spark_group_source.wire.cluster import partitions_of
from spark_group_source.wire.settings import WireOptions

log = logging.getLogger(__name__)


class Driver:
    """One running query."""

    def __init__(
        self, options: SourceOptions, wire: WireOptions, clock: Clock = monotonic, application_id: str = ""
    ) -> None:
        self._options = options
        self._clock = clock
        self._client_id, self._application_id = wire.client_id, application_id
        self._settings = settings = group_settings(options)
        wire = replace(wire, consumer_protocol=options.consumer_protocol)
        timings = Timings()
        self._clients = KafkaClients.connect(wire, settings, timings)
        member_clients = KafkaClients.connect(wire, settings, timings)
        metadata_fields = {"application": application_id, "client": wire.client_id}
        self._assigned_partitions = AssignedPartitions(options, member_clients, metadata_fields, clock)
        kind = ManualAssignment if options.partitions else Member
        self._member: ManualAssignment | Member = kind(
            member_clients.cluster, settings, self._assigned_partitions, clock, timings
        )
        self._assigned_partitions.committer.member = self._member
        self._topics = TopicValidator(self._clients.cluster, settings.subscription, options.fail_on_data_loss, clock)
        self._commits = BatchCommits(options, self._assigned_partitions, self._member, self._clients, clock)
        self._planner = BatchPlanner(
            options, settings, self._clients, self._assigned_partitions, self._member, self._commits, clock
        )
        self.counters = self._assigned_partitions.counters
        self._query_log = QueryLog(settings, self.counters, timings, clock)

    def pin_starts(self) -> None:
        """Looks up what ``latest`` means for a query with a new checkpoint. Joins and commits nothing.

        Raises:
            BrokerUnavailable, TopicError: as :meth:`start`.
        """
        existing = partitions_of(self._topics.find(()).values())
        self._assigned_partitions.resolver.pin_latest(existing, self._clients)

    def start(self, logged: BatchOffset, *, replayed: bool = False) -> None:
        """Checks that the topics exist, then joins the group.

        Args:
            logged: where the checkpoint stands.
            replayed: Spark has replayed that batch, because an earlier process did not complete it.

        Raises:
            BrokerUnavailable: no broker answered in time.
            TopicError: a topic or an assigned partition does not exist, or may not be described.
            DataLoss: a topic or partition that the query has read was deleted.
            OptionError: the checkpoint is new, and an option names other partitions than those that exist.
            GroupError: partitions are assigned by ``assign``, and the group has members.
            GroupSourceError: the checkpoint belongs to another group.
        """
        logged.check_group(self._options.group_id)
        topics = self._topics.find(logged.ranges)
        self._planner.restore(logged, self._topics.deleted(topics, logged.ranges))
        existing = partitions_of(topics.values())
        if logged.is_empty:
            check_names(stream_start(self._options), existing)
        self._assigned_partitions.restore(logged, existing, self._clients, replayed=replayed)
        self._member.start(topics)
        self._commits.start()

    def await_assignment(self) -> None:
        """Waits for the first assignment, at most for the session of a dead member."""
        importlib.import_module("kafka.protocol.admin")  # takes 30 ms; needed below, and the member's thread joins now
        if not self._member.await_assignment(Deadline.after(self._settings.session_timeout, self._clock)):
            log.warning(
                "group %s: no assignment after %.0f s; the query waits for it and reads nothing until then",
                self._settings.group_id,
                self._settings.session_timeout,
            )
        log_other_members(
            self._clients.offsets, self._settings.group_id, self._client_id, self._application_id, self._clock
        )

    def prepare_for_available_now(self) -> None:
        """From here on the query reads up to the present end of every partition, and no further."""
        self._planner.prepare_for_available_now()

    def plan_batch(self, start: BatchOffset, max_offsets: int | None, max_bytes: int | None = None) -> BatchOffset:
        """The end of the next batch; ``start`` itself if the query has nothing to read.

        Args:
            start: the end of the last completed batch.
            max_offsets: maximum number of offsets in the batch, or ``None``.
            max_bytes: about the maximum number of bytes of records in the batch, or ``None``.
        """
        planned = self._planner.planned_from(start)
        if planned is not None:
            return planned
        self.complete(start)
        me = self._member.snapshot()
        self._query_log.membership(me, self._member.time_since_heartbeat, self._assigned_partitions.rebalanced_at)
        return self._planner.plan(start, BatchLimits(max_offsets, max_bytes))

    def end_offsets(self) -> Offsets:
        """The end offsets of the logs, as of the last lookup."""
        return self._planner.end_offsets.known

    @property
    def batch_in_flight(self) -> bool:
        """Whether the source does not know yet that the last planned batch is complete."""
        return self._planner.batch_in_flight

    def complete(self, end: BatchOffset) -> None:
        """Spark has completed the batch that ends at ``end``: commits it. Any other offset has no effect."""
        seconds = self._planner.batch_completed(end)
        if seconds is not None:
            self._query_log.warn_if_slow(seconds)
            self._commits.batch_completed(end)

    def leave(self) -> None:
        """Leaves the group and does nothing else. Caller: any thread."""
        self._member.close()

    def close(self) -> None:
        """Tries pending commits a last time, leaves the group and closes all connections."""
        try:
            self._commits.close()
        except GroupSourceError as error:
            log.debug("group %s: no last commit, because the query has failed: %s", self._settings.group_id, error)
        finally:
            self._member.close()
            self._clients.cluster.close()
            self._query_log.end()
