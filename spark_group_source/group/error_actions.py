"""What a query does about each error code of a heartbeat, join, sync or commit: :data:`ERROR_ACTIONS`.

What follows if the coordinator rejects the heartbeat of a member, as its state machine (``states.py``) decides:

==================  ========================================  ====================================
action              classic protocol                          KIP-848
==================  ========================================  ====================================
RETRY               a heartbeat after a backoff               as classic
REDISCOVER          as RETRY, at the coordinator found again  as classic
REJOIN              a join; an eager member revokes before    as RETRY
REJOIN, revoking    the revocation continues, then a join     as RETRY
MEMBER_ID_REQUIRED  a join with the id of the answer          as RETRY
RESET_GENERATION    all is lost, a join with the same id      all is lost, a join with the same id
RESET_MEMBER_ID     all is lost, a join as a new member       all is lost, a join with the same id
FATAL               the query fails                           the query fails
==================  ========================================  ====================================

The other actions are about commits. If a heartbeat gets one of them, the next one follows after a backoff. A heartbeat
without an answer counts as REDISCOVER. After any failure, the next heartbeat with KIP-848 reports everything.

What follows if the coordinator rejects a commit, as ``Committer`` decides in both protocols. Its offsets stay pending
until their partitions are lost, and the next commit includes them:

==================================  =================================================================================
action                              commit
==================================  =================================================================================
RETRY, REDISCOVER                   a failed commit, which counts for ``onCommitFailure``
REJOIN                              a failed commit, which does not count: the group is rebalancing
RESET_GENERATION, RESET_MEMBER_ID   as REJOIN; all is lost if the member still has the generation of the commit
STALE_EPOCH                         a commit at once when the member has a newer epoch; as REJOIN if none comes in time
SKIP                                the other partitions are committed, and this one is retried
TRIM_METADATA                       the other partitions are committed, and this one again at once with less metadata
FATAL                               as RETRY, because a rejected commit ends no query by itself
FATAL, access denied                the query fails, if :func:`is_denial` is true of the error
==================================  =================================================================================

With ``assign`` there is no rebalance, so each failed commit counts.

Some codes lead to another action in one situation. The code that knows the situation decides:

==========  =============================================  ===================  ======================================
error code  situation                                      action               decided in
==========  =============================================  ===================  ======================================
MAY_HEAL    the query was in the group before              REDISCOVER           ``Member._request_failed``
29          a heartbeat with KIP-848, if the query was in  RETRY, without the   ``ConsumerProtocol._leave_out_denied``
            the group or its topics match a pattern        denied topics
29          a commit                                       SKIP, and the topic  ``Committer._partitions_rejected``
                                                           is left out
30, 31      the query had the permission before            REDISCOVER, by the   ``CoordinatorClient._rejected``
                                                           rule of ``grace``
69          a join with KIP-848                            FATAL                ``ConsumerProtocol._failure``
82          a commit                                       RESET_GENERATION     ``GroupOffsets._commit_failure``
==========  =============================================  ===================  ======================================

A KIP-848 member whose join is rejected with RESET_GENERATION or 111 leaves before it joins again
(``ConsumerProtocol._heartbeat_failed``).
"""

from __future__ import annotations

from collections.abc import Collection
from enum import Enum, auto

from spark_group_source.errors import (
    CLUSTER_AUTHORIZATION_FAILED,
    GRANT_GROUP,
    GROUP_AUTHORIZATION_FAILED,
    TOPIC_AUTHORIZATION_FAILED,
    AuthenticationFailed,
    GroupError,
    GroupSourceError,
    describe_error_code,
)
from spark_group_source.text import names, printable


class ErrorAction(Enum):
    """What a query does about an error. The docstring of the module says what follows for a commit."""

    RETRY = auto()
    """Retry at the same coordinator after a backoff."""
    REDISCOVER = auto()
    """Find the coordinator and retry there; membership is kept."""
    REJOIN = auto()
    """The group is rebalancing: a classic member joins again with the owned partitions, a member with KIP-848 only
    backs off."""
    MEMBER_ID_REQUIRED = auto()
    """The coordinator returned this member's id: join again with it."""
    RESET_GENERATION = auto()
    """The generation is over: everything owned is lost and may not be committed; join with the same member id."""
    RESET_MEMBER_ID = auto()
    """As RESET_GENERATION, but the coordinator does not know the member id: a classic member joins as a new one."""
    STALE_EPOCH = auto()
    """The member has a newer epoch than the commit (KIP-848): commit again at once with the current epoch."""
    TRIM_METADATA = auto()
    """The commit's metadata is too long: commit again with short metadata."""
    SKIP = auto()
    """The coordinator does not know this partition yet, or no longer: commits of other partitions succeed, and this one
    is retried."""
    FATAL = auto()
    """A retry cannot help a heartbeat, join or sync: the query fails with an error that says what to change. A commit
    is retried, unless access is denied."""


ERROR_ACTIONS: dict[int, ErrorAction] = {
    -1: ErrorAction.REDISCOVER,  # UNKNOWN_SERVER_ERROR: a failure within the broker, with which Kafka's client fails
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
    28: ErrorAction.RETRY,  # INVALID_COMMIT_OFFSET_SIZE: the request is too large; without the tag it would be a rewind
    29: ErrorAction.FATAL,  # TOPIC_AUTHORIZATION_FAILED
    30: ErrorAction.FATAL,  # GROUP_AUTHORIZATION_FAILED
    31: ErrorAction.FATAL,  # CLUSTER_AUTHORIZATION_FAILED
    35: ErrorAction.FATAL,  # UNSUPPORTED_VERSION
    69: ErrorAction.RESET_GENERATION,  # GROUP_ID_NOT_FOUND: the group was deleted
    79: ErrorAction.MEMBER_ID_REQUIRED,  # MEMBER_ID_REQUIRED
    81: ErrorAction.FATAL,  # GROUP_MAX_SIZE_REACHED
    82: ErrorAction.FATAL,  # FENCED_INSTANCE_ID
    88: ErrorAction.RETRY,  # UNSTABLE_OFFSET_COMMIT
    100: ErrorAction.SKIP,  # UNKNOWN_TOPIC_ID
    110: ErrorAction.RESET_GENERATION,  # FENCED_MEMBER_EPOCH
    111: ErrorAction.RETRY,  # UNRELEASED_INSTANCE_ID: the former process was killed; its session ends by itself
    112: ErrorAction.FATAL,  # UNSUPPORTED_ASSIGNOR
    113: ErrorAction.STALE_EPOCH,  # STALE_MEMBER_EPOCH
    128: ErrorAction.FATAL,  # INVALID_REGULAR_EXPRESSION: this source evaluates its patterns itself, and sends none
}
"""Error code to action; any other code is :attr:`ErrorAction.FATAL`, so that no error is ignored. The docstring of the
module lists the exceptions."""


MAY_HEAL = {23, 26, 35, 81, 112}
"""Fatal for a query that has just started, because a setting is wrong. If the query was in the group before, a setting
of a broker or of another member has changed, and may change back: during an upgrade, brokers differ."""


_DENIED = {TOPIC_AUTHORIZATION_FAILED, GROUP_AUTHORIZATION_FAILED, CLUSTER_AUTHORIZATION_FAILED}


_ADVICE = {
    23: "Set 'kafka.partition.assignment.strategy' to an assignor that all members have (range for librdkafka, sarama,"
    " kafka-go and kafka-python, roundrobin for aiokafka) or, on Kafka 4.0 or later, 'kafka.group.protocol' to"
    " consumer, which can share a group of any assignor. If the members are no consumers, use another"
    " 'kafka.group.id'.",
    24: "Set 'kafka.group.id' to a group id that the brokers accept.",
    26: "Set 'kafka.session.timeout.ms' between the brokers' group.min.session.timeout.ms and"
    " group.max.session.timeout.ms.",
    29: "Grant the principal READ and DESCRIBE on the topic.",
    30: GRANT_GROUP,
    31: "Grant the principal the permission on the cluster that the brokers' authorizer log names.",
    35: "The brokers have this group protocol switched off (the feature group.version, or their setting"
    " group.coordinator.rebalance.protocols): switch it on, or set 'kafka.group.protocol' to classic.",
    69: "The group has members that are no consumers, or librdkafka leads it with cooperative-sticky, or the brokers"
    " do not convert its protocol (group.consumer.migration.policy): use another 'kafka.group.id', or set"
    " 'kafka.group.protocol' to classic.",
    81: "Raise the brokers' group.max.size, or stop a member of the group.",
    82: "Another member uses the same 'kafka.group.instance.id': give each query its own.",
    112: "Set 'kafka.group.remote.assignor' to an assignor of the brokers (group.consumer.assignors).",
}


def error_action(error_code: int) -> ErrorAction:
    """What to do about an error code other than 0."""
    return ERROR_ACTIONS.get(error_code, ErrorAction.FATAL)


def is_denial(error: GroupSourceError) -> bool:
    """Whether a permission is missing or the credentials are wrong, and that is final: a retry cannot help."""
    if isinstance(error, AuthenticationFailed):
        return True
    return getattr(error, "error_code", None) in _DENIED


def fatal(
    request: str, group: str, error_code: int, topics: Collection[str] = (), broker_message: str | None = None
) -> GroupError:
    """The error with which the query fails; it names the topics, if the error code is about topics.

    ``broker_message`` is the broker's explanation, if its response has one.
    """
    suffix = explanation = ""
    if topics:
        suffix = f" for {names(set(topics))}"
    if broker_message:
        explanation = f" The broker says: {printable(broker_message)}"
    return GroupError(
        f"{request} of group '{group}' failed with {describe_error_code(error_code)}{suffix}.{explanation}",
        _ADVICE.get(error_code, ""),
        error_code=error_code,
        topics=topics,
    )
