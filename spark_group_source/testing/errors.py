"""What can go wrong in tests around the source; none of it concerns the source itself."""

from __future__ import annotations

from spark_group_source.errors import GroupSourceError


class EmbeddedKafkaError(GroupSourceError):
    """The embedded Kafka could not be fetched, started or asked."""

    code = "EMBEDDED_KAFKA"


class LocalSparkError(GroupSourceError):
    """Spark could not be started for the tests."""

    code = "LOCAL_SPARK"


class RowError(GroupSourceError):
    """A row cannot be written to Kafka as it was given."""

    code = "INVALID_ROW"


class StuckQuery(GroupSourceError):
    """A run that ends by itself did not end in time."""

    code = "STUCK_QUERY"
