"""What an error code of Fetch or ListOffsets means for a partition: one table, one row a code."""

from __future__ import annotations

from enum import Enum, auto

from spark_group_source.error_codes import UNKNOWN_TOPIC_OR_PARTITION

UNKNOWN_TOPIC_ID = 100


class Remedy(Enum):
    """What to do about an error of one partition."""

    NEW_LEADER = auto()
    """Ask for the leaders anew, pause, and ask again."""
    OUT_OF_RANGE = auto()
    """The offset is not in the log: see where the log begins and ends."""
    TOPIC_GONE = auto()
    """The topic with this id is not there any more, or not known yet to this broker."""
    CORRUPT = auto()
    """The broker could not read its log, or its records are damaged."""
    CUT = auto()
    """No error, but the log ends before the range: it was cut, or a leader just elected may not know yet how much of
    its log is replicated."""
    FATAL = auto()
    """Another try cannot help."""


REMEDIES: dict[int, Remedy] = {
    -1: Remedy.NEW_LEADER,  # UNKNOWN_SERVER_ERROR
    1: Remedy.OUT_OF_RANGE,  # OFFSET_OUT_OF_RANGE
    2: Remedy.CORRUPT,  # CORRUPT_MESSAGE
    UNKNOWN_TOPIC_OR_PARTITION: Remedy.NEW_LEADER,
    5: Remedy.NEW_LEADER,  # LEADER_NOT_AVAILABLE
    6: Remedy.NEW_LEADER,  # NOT_LEADER_OR_FOLLOWER
    7: Remedy.NEW_LEADER,  # REQUEST_TIMED_OUT
    9: Remedy.NEW_LEADER,  # REPLICA_NOT_AVAILABLE
    13: Remedy.NEW_LEADER,  # NETWORK_EXCEPTION
    56: Remedy.NEW_LEADER,  # KAFKA_STORAGE_ERROR
    74: Remedy.NEW_LEADER,  # FENCED_LEADER_EPOCH
    75: Remedy.NEW_LEADER,  # UNKNOWN_LEADER_EPOCH
    78: Remedy.NEW_LEADER,  # OFFSET_NOT_AVAILABLE
    UNKNOWN_TOPIC_ID: Remedy.TOPIC_GONE,
    103: Remedy.TOPIC_GONE,  # INCONSISTENT_TOPIC_ID
}
"""Error code to remedy; a code that is not here is :attr:`Remedy.FATAL`, so that nothing is passed over."""


def remedy(errno: int) -> Remedy:
    """What to do about an error code other than 0."""
    return REMEDIES.get(errno, Remedy.FATAL)
