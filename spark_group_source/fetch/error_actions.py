"""The action for each error code of Fetch and ListOffsets."""

from __future__ import annotations

from enum import Enum, auto

from spark_group_source.errors import UNKNOWN_TOPIC_OR_PARTITION

UNKNOWN_TOPIC_ID = 100


class FetchErrorAction(Enum):
    """The action after an error of one partition."""

    REFRESH_METADATA = auto()
    """Back off, ask for the leaders again, and retry."""
    CHECK_LOG_RANGE = auto()
    """The offset is not in the log: look up the earliest and latest offset."""
    CONFIRM_TOPIC_DELETED = auto()
    """The topic with this id was deleted, or this broker does not know it yet: retry, then data loss."""
    CONFIRM_CORRUPT = auto()
    """The broker cannot read its log: retry, then fail."""
    CONFIRM_TRUNCATED = auto()
    """No error code, but the log ends before the range: truncated, or the high watermark of a new leader lags."""
    FAIL = auto()
    """A retry cannot help."""


FETCH_ERROR_ACTIONS: dict[int, FetchErrorAction] = {
    -1: FetchErrorAction.REFRESH_METADATA,  # UNKNOWN_SERVER_ERROR
    1: FetchErrorAction.CHECK_LOG_RANGE,  # OFFSET_OUT_OF_RANGE
    2: FetchErrorAction.CONFIRM_CORRUPT,  # CORRUPT_MESSAGE
    UNKNOWN_TOPIC_OR_PARTITION: FetchErrorAction.REFRESH_METADATA,
    5: FetchErrorAction.REFRESH_METADATA,  # LEADER_NOT_AVAILABLE
    6: FetchErrorAction.REFRESH_METADATA,  # NOT_LEADER_OR_FOLLOWER
    7: FetchErrorAction.REFRESH_METADATA,  # REQUEST_TIMED_OUT
    9: FetchErrorAction.REFRESH_METADATA,  # REPLICA_NOT_AVAILABLE
    13: FetchErrorAction.REFRESH_METADATA,  # NETWORK_EXCEPTION
    56: FetchErrorAction.REFRESH_METADATA,  # KAFKA_STORAGE_ERROR
    74: FetchErrorAction.REFRESH_METADATA,  # FENCED_LEADER_EPOCH
    75: FetchErrorAction.REFRESH_METADATA,  # UNKNOWN_LEADER_EPOCH
    78: FetchErrorAction.REFRESH_METADATA,  # OFFSET_NOT_AVAILABLE
    UNKNOWN_TOPIC_ID: FetchErrorAction.CONFIRM_TOPIC_DELETED,
    103: FetchErrorAction.CONFIRM_TOPIC_DELETED,  # INCONSISTENT_TOPIC_ID
}
"""The action for an error code; every other code is :attr:`FetchErrorAction.FAIL`, so that none is ignored."""


def fetch_error_action(error_code: int) -> FetchErrorAction:
    """The action for an error code other than 0."""
    return FETCH_ERROR_ACTIONS.get(error_code, FetchErrorAction.FAIL)
