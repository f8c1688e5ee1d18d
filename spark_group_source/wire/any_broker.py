"""Requests that any broker can answer: which broker to ask, for how long, and which error to raise if none answers."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

from spark_group_source.clock import Backoff, Deadline
from spark_group_source.errors import (
    AuthenticationFailed,
    BrokerUnavailable,
    DeadlineExceeded,
    GroupSourceError,
    OtherCluster,
    ProtocolError,
)
from spark_group_source.wire import waiting
from spark_group_source.wire.connection import Connection
from spark_group_source.wire.reachability import SERVERS, Address
from spark_group_source.wire.waiting import Result
from spark_group_source.wire.wire_options import WireOptions

MIN_BROKER_TIMEOUT = 1.0
"""Minimum seconds for each broker to answer, as long as enough time is left for the others."""

_UNREACHABLE = "Check 'kafka.bootstrap.servers', and that this machine can reach the addresses that brokers advertise."


@dataclass(frozen=True, slots=True)
class Candidate:
    """A server for a request that any broker can answer."""

    address: Address
    connect: Callable[[Deadline], Connection]

    def failures(self) -> int:
        """Returns how often a connection to this server has failed since it last answered."""
        return SERVERS.failures(self.address)


class AnyBroker:
    """Sends a request to one server after the other until one answers.

    Args:
        candidates: returns the servers of the next pass, in the order of the tries.
    """

    def __init__(self, options: WireOptions, candidates: Callable[[], Sequence[Candidate]]) -> None:
        self._options = options
        self._candidates = candidates

    def call(self, name: str, ask: Callable[[Connection, Deadline], Result], deadline: Deadline) -> Result:
        """Returns the first result of any broker. Tries all candidates in turn, with backoff, until the deadline.

        Each broker gets an equal part of the time left, so that a silent broker leaves time for the others. A response
        that ``ask`` rejects counts as a failure. An error of the sign-in, of TLS or of the protocol may concern a
        single broker: it is final once all brokers return such an error, or if no other broker has answered by the
        deadline.

        Args:
            name: names the request in the error.

        Raises:
            BrokerUnavailable: no broker answered before the deadline.
            AuthenticationFailed: at least one broker rejected this client, and no other broker answered.
            ProtocolError: no candidate is a Kafka broker of a supported version.
        """
        backoff = Backoff(self._options.retry_backoff, self._options.retry_backoff_max)
        reported: list[GroupSourceError] = []
        rejection: AuthenticationFailed | None = None
        while True:
            errors: list[GroupSourceError] = []
            for candidate, turn in self._turns(deadline):
                try:
                    return ask(candidate.connect(turn), turn.at_most(self._options.request_timeout))
                except (BrokerUnavailable, DeadlineExceeded, ProtocolError, AuthenticationFailed) as error:
                    errors.append(error)
            if rejection is None:
                rejection = _first_rejection(errors)
            if not _may_heal(errors):
                raise errors[0] if rejection is None else rejection
            # A last pass that the deadline cuts short has fewer errors to report than the one before.
            reported = max(errors, reported, key=len)
            seconds = backoff.next()
            if deadline.remaining() <= seconds:
                if rejection is not None:
                    raise rejection
                raise _no_answer(name, reported) from reported[0]
            waiting.sleep(seconds, deadline)

    def _turns(self, deadline: Deadline) -> Iterator[tuple[Candidate, Deadline]]:
        """One pass over the candidates, each with the deadline of its turn. The pass ends at an expired turn, unless
        that is the first."""
        candidates = self._candidates()
        for tried, candidate in enumerate(candidates):
            turn = _turn(deadline, len(candidates) - tried, self._least(candidate))
            if tried and turn.expired():
                return
            yield candidate, turn

    def _least(self, candidate: Candidate) -> float:
        """The minimum seconds of a turn. A bootstrap server that needs more for TLS, the sign-in and its answer gets
        more in the next pass."""
        if candidate.address in self._options.bootstrap_servers:
            return SERVERS.patience(candidate.address)
        return MIN_BROKER_TIMEOUT


def _turn(deadline: Deadline, left: int, least: float) -> Deadline:
    """The deadline of the next of ``left`` candidates: an equal part of the time, or ``least`` seconds if that is more.
    While other candidates wait, it is at most half of the time."""
    if left == 1:
        return deadline
    remaining = deadline.remaining()
    return deadline.at_most(max(remaining / left, min(least, remaining / 2)))


def _first_rejection(errors: Iterable[GroupSourceError]) -> AuthenticationFailed | None:
    for error in errors:
        if isinstance(error, AuthenticationFailed):
            return error
    return None


def _may_heal(errors: Iterable[GroupSourceError]) -> bool:
    """Whether a later pass may succeed: at least one broker objects neither to this client nor to its protocol."""
    return not all(isinstance(error, (ProtocolError, AuthenticationFailed)) for error in errors)


def _no_answer(request: str, errors: Sequence[GroupSourceError]) -> BrokerUnavailable:
    """The error if no broker answered. If a broker of another cluster did, that is the more likely cause."""
    happened = f"No Kafka broker answered {request}: {' '.join(each.happened for each in errors)}"
    for error in errors:
        if isinstance(error, OtherCluster):
            return OtherCluster(happened, error.action)
    for error in errors:
        if error.action:
            return BrokerUnavailable(happened, error.action)
    return BrokerUnavailable(happened, _UNREACHABLE)
