"""What each error code of the group protocol means for a member: one table, one row a code.

The meanings are those of Kafka's own client (org.apache.kafka.clients.consumer.internals.AbstractCoordinator and
ConsumerCoordinator); the codes are listed in Kafka's protocol guide.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from spark_group_source.error_codes import GROUP_AUTHORIZATION_FAILED, TOPIC_AUTHORIZATION_FAILED, describe
from spark_group_source.errors import AuthenticationFailed, GroupError, GroupSourceError
from spark_group_source.listing import names


class ErrorAction(Enum):
    """What a member does about an error."""

    RETRY = auto()
    """Ask the same coordinator again after a pause."""
    REDISCOVER = auto()
    """Ask who the coordinator is, then ask it; membership is kept."""
    REJOIN = auto()
    """The group is rebalancing: join it again with what is owned."""
    MEMBER_ID_REQUIRED = auto()
    """The coordinator gave this member its id: join again with it."""
    RESET_GENERATION = auto()
    """The generation is over: what was owned is lost, nothing of it may be committed; join anew."""
    RESET_MEMBER_ID = auto()
    """As RESET_GENERATION, and the member id is unknown too: join as a new member."""
    TRIM_METADATA = auto()
    """The commit's metadata is too long: commit again with short metadata."""
    SKIP = auto()
    """This partition cannot be committed now; the others can."""
    FATAL = auto()
    """It cannot heal by itself: the query fails with an error that says what to change."""


ERROR_ACTIONS: dict[int, ErrorAction] = {
    -1: ErrorAction.REDISCOVER,  # UNKNOWN_SERVER_ERROR: a broker's own failure. Kafka's client gives up here
    3: ErrorAction.SKIP,  # UNKNOWN_TOPIC_OR_PARTITION
    7: ErrorAction.REDISCOVER,  # REQUEST_TIMED_OUT
    12: ErrorAction.TRIM_METADATA,  # OFFSET_METADATA_TOO_LARGE
    14: ErrorAction.RETRY,  # COORDINATOR_LOAD_IN_PROGRESS
    15: ErrorAction.REDISCOVER,  # COORDINATOR_NOT_AVAILABLE
    16: ErrorAction.REDISCOVER,  # NOT_COORDINATOR
    22: ErrorAction.RESET_GENERATION,  # ILLEGAL_GENERATION
    23: ErrorAction.FATAL,  # INCONSISTENT_GROUP_PROTOCOL
    24: ErrorAction.FATAL,  # INVALID_GROUP_ID
    25: ErrorAction.RESET_MEMBER_ID,  # UNKNOWN_MEMBER_ID
    26: ErrorAction.FATAL,  # INVALID_SESSION_TIMEOUT
    27: ErrorAction.REJOIN,  # REBALANCE_IN_PROGRESS
    28: ErrorAction.RETRY,  # INVALID_COMMIT_OFFSET_SIZE: of the whole request; without the mark it would be a rewind
    29: ErrorAction.FATAL,  # TOPIC_AUTHORIZATION_FAILED
    30: ErrorAction.FATAL,  # GROUP_AUTHORIZATION_FAILED
    35: ErrorAction.FATAL,  # UNSUPPORTED_VERSION
    79: ErrorAction.MEMBER_ID_REQUIRED,  # MEMBER_ID_REQUIRED
    81: ErrorAction.FATAL,  # GROUP_MAX_SIZE_REACHED
    82: ErrorAction.FATAL,  # FENCED_INSTANCE_ID
    88: ErrorAction.RETRY,  # UNSTABLE_OFFSET_COMMIT
    111: ErrorAction.RETRY,  # UNRELEASED_INSTANCE_ID
}
"""Error code to action; a code that is not here is :attr:`ErrorAction.FATAL`, so that nothing is passed over."""

_DENIED = {TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED}

_ACTIONS = {
    23: "Its members share no assignor with this query, or are no consumers: set"
    " 'kafka.partition.assignment.strategy' to one they have (range for librdkafka and most Java consumers),"
    " or use a group id of its own.",
    24: "Set 'kafka.group.id' to a group id the brokers accept.",
    26: "Set 'kafka.session.timeout.ms' between the brokers' group.min.session.timeout.ms and"
    " group.max.session.timeout.ms.",
    29: "Grant the principal READ and DESCRIBE on the topic.",
    30: "Grant the principal READ on the group.",
    81: "Raise the brokers' group.max.size, or stop a member of the group.",
    82: "Another member runs with the same 'kafka.group.instance.id': give each query one of its own.",
}


def error_action(errno: int) -> ErrorAction:
    """What to do about an error code other than 0."""
    return ERROR_ACTIONS.get(errno, ErrorAction.FATAL)


def denied(error: GroupSourceError) -> bool:
    """Whether a right is missing or the credentials are refused: asking again changes nothing."""
    return isinstance(error, AuthenticationFailed) or getattr(error, "errno", None) in _DENIED


def fatal(request: str, group: str, errno: int, topics: Collection[str] = ()) -> GroupError:
    """The error a query fails with when the group refuses it for good, where it does because of some topics."""
    about = f" for {names(set(topics))}" if topics else ""
    return GroupError(
        f"The group '{group}' answered {request} with {describe(errno)}{about}.", _ACTIONS.get(errno, ""), errno=errno
    )
