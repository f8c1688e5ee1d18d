"""Every error this package raises, in one tree.

    GroupSourceError
    ├── OptionError               a source option is missing, unknown or has a bad value
    ├── CheckpointError           the checkpoint is of another source, a later release or group, or behind its commits
    ├── CannotMigrate             the position of a query with ``format("kafka")`` cannot be taken from its checkpoint
    ├── RetriableError            a retry may succeed
    │   ├── BrokerUnavailable     no broker could be reached, or a connection broke
    │   │   └── OtherCluster      the server at a broker's address belongs to another cluster
    │   └── DeadlineExceeded      an operation took longer than its timeout
    ├── ProtocolError             a broker response violates the protocol
    │   └── UnsupportedRequest    the broker knows no version of a request that this source knows
    ├── AuthenticationFailed      a broker or an identity provider rejected the client, or the client its certificate
    ├── BrokerError               a broker responded with an error code
    │   ├── TopicError            a topic does not exist, or the client may not read it
    │   └── GroupError            the group coordinator rejects this member permanently
    ├── CommitFailed              all attempts to commit failed, and ``onCommitFailure`` is ``fail``
    ├── DataLoss                  Kafka no longer has records that the query needs
    ├── MissingRows               a table written exactly once lacks records before the batch
    └── RecordsError              a record batch cannot be decoded
        ├── CorruptRecords        it is damaged: its CRC, a length or a count is wrong
        └── UnsupportedRecords    its message format or codec is unsupported

Each error has a stable ``code``, the cause with its values, and the next action. Its text ends with the command that
prints the section of its code in ``docs/messages.md``.

The numbers at the end are error codes of Kafka's protocol that several packages use.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from logging import Logger
from typing import ClassVar

from spark_group_source.text import one_line

EXPLAIN = "python -m spark_group_source explain"
"""The command that explains an error code. The project has no public site that a message could link to."""

_CODE_AND_COMMAND = re.compile(rf"\[[A-Z]+(?:_[A-Z]+)+\] | For details run: {re.escape(EXPLAIN)} [A-Z_]+\.?")


class GroupSourceError(Exception):
    """Base of all errors of this package.

    Args:
        happened: one sentence with the cause and its values; never a secret.
        action: what the user should do; empty if only a retry helps.
    """

    code: ClassVar[str] = "KAFKA_GROUP_SOURCE"

    def __init__(self, happened: str, action: str = "") -> None:
        # Each may quote the text of another program, and an error is one line of a log.
        self.happened = one_line(_plain(happened))
        self.action = one_line(_plain(action))
        text = self.happened
        if self.action:
            text += f" {self.action}"
        # No period at the end: users copy the command.
        super().__init__(f"[{self.code}] {text} For details run: {EXPLAIN} {self.code}")

    def __reduce__(self) -> tuple[object, ...]:
        # Spark pickles errors between processes. The default would pass the whole message to the constructor, and
        # fails for subclasses with more arguments.
        return _rebuild, (type(self), self.happened, self.action, self.__dict__)


def _plain(text: str) -> str:
    """The text without the code and the command of an error of this package that it quotes."""
    return _CODE_AND_COMMAND.sub("", text)


def _rebuild(cls: type[GroupSourceError], happened: str, action: str, state: dict[str, object]) -> GroupSourceError:
    error = cls.__new__(cls)
    GroupSourceError.__init__(error, happened, action)
    error.__dict__.update(state)
    return error


class OptionError(GroupSourceError):
    """A source option is missing, unknown or has a bad value."""

    code = "INVALID_OPTION"


class CheckpointError(GroupSourceError):
    """The query's checkpoint is of another source, a later release or another group, or is older than its commits."""

    code = "CHECKPOINT_MISMATCH"


class CannotMigrate(GroupSourceError):
    """The position of a query with ``format("kafka")`` cannot be taken from its checkpoint."""

    code = "CANNOT_MIGRATE"


class RetriableError(GroupSourceError):
    """A retry may succeed."""


class BrokerUnavailable(RetriableError):
    """No broker could be reached, or a connection broke."""

    code = "BROKER_UNAVAILABLE"


class OtherCluster(BrokerUnavailable):
    """The server at a broker's address belongs to another cluster than the one that the query reads."""

    code = "OTHER_CLUSTER"


class DeadlineExceeded(RetriableError):
    """An operation took longer than its timeout."""

    code = "DEADLINE_EXCEEDED"


class ProtocolError(GroupSourceError):
    """A broker response violates the Kafka protocol; the connection must not be used again."""

    code = "PROTOCOL_ERROR"


class UnsupportedRequest(ProtocolError):
    """The broker knows no version of a request that this source knows; nothing was sent."""


class AuthenticationFailed(GroupSourceError):
    """A broker or an identity provider rejected the client, or the client its certificate; the options must change."""

    code = "AUTHENTICATION_FAILED"


class BrokerError(GroupSourceError):
    """A broker responded with an error code.

    Args:
        error_code: Kafka's numeric error code, for example 30 for GROUP_AUTHORIZATION_FAILED.
        topics: the topics that the error is about, if it is about topics.
    """

    code = "BROKER_ERROR"

    def __init__(self, happened: str, action: str = "", *, error_code: int, topics: Iterable[str] = ()) -> None:
        super().__init__(happened, action)
        self.error_code = error_code
        self.topics = frozenset(topics)

    @property
    def unauthorized_topics(self) -> frozenset[str]:
        """The topics on which a permission is missing; empty for any other error."""
        if self.error_code == TOPIC_AUTHORIZATION_FAILED:
            return self.topics
        return frozenset()


class TopicError(BrokerError):
    """A topic does not exist, or the client may not read it."""

    code = "TOPIC_UNAVAILABLE"


class GroupError(BrokerError):
    """The group coordinator rejects this member permanently; a retry cannot help."""

    code = "GROUP_REJECTED"


class CommitFailed(GroupSourceError):
    """All attempts to commit offsets failed, and ``onCommitFailure`` is ``fail``."""

    code = "COMMIT_FAILED"


class DataLoss(GroupSourceError):
    """Kafka no longer has records that the query needs (retention, truncation, a deleted or recreated topic)."""

    code = "DATA_LOSS"


class MissingRows(GroupSourceError):
    """A table that is written exactly once lacks records before the batch, although nobody has moved the group past
    them."""

    code = "MISSING_ROWS"


def raise_or_warn(log: Logger, fail_on_data_loss: bool, happened: str, action: str, otherwise: str) -> None:
    """Raises :class:`DataLoss` if failOnDataLoss is true. If not, logs a warning that ends with what the source does
    ``otherwise``."""
    if fail_on_data_loss:
        raise DataLoss(f"{happened}.", action)
    log.warning("%s. %s, because failOnDataLoss is false.", happened, otherwise)


class RecordsError(GroupSourceError):
    """A record batch cannot be decoded."""

    code = "RECORDS_ERROR"


class CorruptRecords(RecordsError):
    """A record batch is damaged: its CRC, a length or a count is wrong."""

    code = "CORRUPT_RECORDS"


class UnsupportedRecords(RecordsError):
    """A record batch has an unsupported message format or codec."""

    code = "UNSUPPORTED_RECORDS"


UNKNOWN_SERVER_ERROR = -1
UNKNOWN_TOPIC_OR_PARTITION = 3
LEADER_NOT_AVAILABLE = 5
COORDINATOR_LOAD_IN_PROGRESS = 14
COORDINATOR_NOT_AVAILABLE = 15
NOT_COORDINATOR = 16
INCONSISTENT_GROUP_PROTOCOL = 23
UNKNOWN_MEMBER_ID = 25
INVALID_SESSION_TIMEOUT = 26
REBALANCE_IN_PROGRESS = 27
TOPIC_AUTHORIZATION_FAILED = 29
GROUP_AUTHORIZATION_FAILED = 30
CLUSTER_AUTHORIZATION_FAILED = 31
UNSUPPORTED_VERSION = 35
GROUP_ID_NOT_FOUND = 69
GROUP_MAX_SIZE_REACHED = 81
FENCED_INSTANCE_ID = 82
UNSTABLE_OFFSET_COMMIT = 88
UNKNOWN_TOPIC_ID = 100
UNRELEASED_INSTANCE_ID = 111
INVALID_REGULAR_EXPRESSION = 128

GRANT_GROUP = "Grant the principal READ on the group; to look up its lag, DESCRIBE is enough."
"""What to do about GROUP_AUTHORIZATION_FAILED."""

_NAMES_KAFKA_PYTHON_LACKS = {
    UNKNOWN_SERVER_ERROR: "UNKNOWN_SERVER_ERROR",
    INVALID_REGULAR_EXPRESSION: "INVALID_REGULAR_EXPRESSION",
}


def describe_error_code(error_code: int) -> str:
    """The code with its Kafka name, for example ``25 (UNKNOWN_MEMBER_ID)``."""
    # Imported here, because the import takes time, and most processes of Spark do not need it.
    from kafka.errors import for_code

    if error_code in _NAMES_KAFKA_PYTHON_LACKS:
        return f"{error_code} ({_NAMES_KAFKA_PYTHON_LACKS[error_code]})"
    name = for_code(error_code).message
    if name == "UNKNOWN":  # kafka-python's name of every code that it does not know
        name = "unknown to this release"
    return f"{error_code} ({name})"
