"""The common parts of all topic lookups: their time limit, and the errors of topics that are deleted or may not be
read."""

from __future__ import annotations

import logging
from collections.abc import Set

from spark_group_source.errors import TOPIC_AUTHORIZATION_FAILED, TopicError, describe_error_code, raise_or_warn
from spark_group_source.offsets import TopicPartition
from spark_group_source.text import names

log = logging.getLogger(__name__)

LOOKUP_TIMEOUT = 10.0
"""Maximum seconds for one lookup of topics, end offsets or the group's commits."""


def raise_or_skip_deleted(deleted: Set[TopicPartition] | Set[str], fail_on_data_loss: bool) -> None:
    """Warns that topics or partitions were deleted, if there are any and ``failOnDataLoss`` is false.

    Raises:
        DataLoss: ``failOnDataLoss`` is true.
    """
    if deleted:
        raise_or_warn(
            log,
            fail_on_data_loss,
            f"{names(deleted)} does not exist any more",
            "Remove the topic from the subscription, or set failOnDataLoss to false to continue with the others.",
            "The query continues with the others",
        )


def unreadable(topic: str, error_code: int, action: str, meant: str | None = None) -> TopicError:
    """The error of a topic with this error code. ``action`` is the advice for any error but a missing permission.
    ``meant`` is an existing topic of which ``topic`` may be a misspelling."""
    if error_code == TOPIC_AUTHORIZATION_FAILED:
        action = "Grant the principal DESCRIBE and READ on it."
    if meant is not None:
        action = f"Did you mean '{meant}'? {action}"
    happened = f"Topic '{topic}' cannot be read: the brokers answer {describe_error_code(error_code)}."
    return TopicError(happened, action, error_code=error_code, topics=[topic])
