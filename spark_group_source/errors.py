"""Every error this package raises, in one tree.

    GroupSourceError
    ├── OptionError            a source option is missing, unknown or has a bad value
    ├── BrokerUnavailable      no broker could be reached, or a connection broke (retriable)
    ├── DeadlineExceeded       a bounded wait ran out (retriable)
    ├── AuthenticationFailed   a broker rejected the client's credentials, or the client the broker's certificate
    ├── BrokerError            a broker answered with an error code
    │   ├── TopicError         the topic does not exist or may not be read
    │   └── GroupError         the group refuses this member for good
    ├── CommitFailed           offsets could not be committed, and ``onCommitFailure`` is ``fail``
    ├── ProtocolError          a broker's answer does not follow the protocol
    ├── DataLoss               offsets that should be there are gone from the log
    └── RecordsError           bytes of a record batch that cannot be decoded
        ├── CorruptRecords     they are damaged (CRC, lengths, counts)
        └── UnsupportedRecords they are in a format or codec that is not read

Each carries a stable ``code`` to search for, what happened with its numbers, what to do next, and where in the
project's documentation its code is explained.
"""

from __future__ import annotations

from typing import ClassVar

DOCS = "docs/errors.md"
"""Where every code has a section. A path in the project: its documentation has no public address yet."""


class GroupSourceError(Exception):
    """Base of all errors of this package.

    Args:
        happened: one sentence, with the values that explain it; never a secret.
        action: what the reader of the message should do; empty where nothing helps but a retry.
    """

    code: ClassVar[str] = "KAFKA_GROUP_SOURCE"
    retriable: ClassVar[bool] = False

    def __init__(self, happened: str, action: str = "") -> None:
        self.happened = happened
        self.action = action
        said = " ".join(filter(None, [happened, action]))
        super().__init__(f"[{self.code}] {said} See {DOCS}#{self.code.lower()}.")

    def __reduce__(self) -> tuple[object, ...]:
        # The default rebuilds from the joined message, and fails in Spark's workers for
        # subclasses with more arguments: errors cross process borders pickled.
        return _rebuild, (type(self), self.happened, self.action, self.__dict__)


def _rebuild(cls: type[GroupSourceError], happened: str, action: str, state: dict[str, object]) -> GroupSourceError:
    error = cls.__new__(cls)
    GroupSourceError.__init__(error, happened, action)
    error.__dict__.update(state)
    return error


class OptionError(GroupSourceError):
    """A source option is missing, unknown or has a bad value."""

    code = "INVALID_OPTION"


class BrokerUnavailable(GroupSourceError):
    """No broker could be reached, or a connection broke; another try may succeed."""

    code = "BROKER_UNAVAILABLE"
    retriable = True


class DeadlineExceeded(GroupSourceError):
    """A bounded wait ran out; another try may succeed."""

    code = "DEADLINE_EXCEEDED"
    retriable = True


class ProtocolError(GroupSourceError):
    """A broker's answer does not follow the Kafka protocol; the connection is not to be used again."""

    code = "PROTOCOL_ERROR"


class AuthenticationFailed(GroupSourceError):
    """A broker refused this client's credentials, or its own certificate was refused; the options must change."""

    code = "AUTHENTICATION_FAILED"


class BrokerError(GroupSourceError):
    """A broker answered with an error code.

    Args:
        errno: Kafka's numeric error code, for example 30 for GROUP_AUTHORIZATION_FAILED.
    """

    code = "BROKER_ERROR"

    def __init__(self, happened: str, action: str = "", *, errno: int) -> None:
        super().__init__(happened, action)
        self.errno = errno


class TopicError(BrokerError):
    """A topic does not exist or may not be read."""

    code = "TOPIC_UNAVAILABLE"


class GroupError(BrokerError):
    """The group refuses this member for good; trying again cannot help."""

    code = "GROUP_REFUSED"


class CommitFailed(GroupSourceError):
    """Offsets could not be committed in all tries, and ``onCommitFailure`` is ``fail``."""

    code = "COMMIT_FAILED"


class DataLoss(GroupSourceError):
    """Offsets that should be in the log are gone from it (retention, or a topic made anew)."""

    code = "DATA_LOSS"


class RecordsError(GroupSourceError):
    """A record batch cannot be decoded."""

    code = "RECORDS_ERROR"


class CorruptRecords(RecordsError):
    """A record batch is damaged: its CRC, a length or a count is wrong."""

    code = "CORRUPT_RECORDS"


class UnsupportedRecords(RecordsError):
    """A record batch is in a message format or codec that is not read here."""

    code = "UNSUPPORTED_RECORDS"
