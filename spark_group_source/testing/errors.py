"""Errors of the testing kit. The source itself never raises them."""

from __future__ import annotations

from spark_group_source.errors import GroupSourceError


class EmbeddedKafkaError(GroupSourceError):
    """The embedded Kafka could not be downloaded or started, or did not respond."""

    code = "EMBEDDED_KAFKA"


class LocalSparkError(GroupSourceError):
    """Spark could not be started for the tests."""

    code = "LOCAL_SPARK"


class RowError(GroupSourceError):
    """A row cannot be written to Kafka."""

    code = "INVALID_ROW"


class StuckQuery(GroupSourceError):
    """A query that should end by itself did not end in time."""

    code = "STUCK_QUERY"
