"""What can go wrong around an embedded Kafka; none of it concerns the source itself."""

from __future__ import annotations

from spark_group_source.errors import GroupSourceError


class EmbeddedKafkaError(GroupSourceError):
    """The embedded Kafka could not be fetched, started or asked."""

    code = "EMBEDDED_KAFKA"
