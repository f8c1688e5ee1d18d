"""SASL without a broker: arguments of mechanisms, errors in responses, and the lifetime of sessions."""

from __future__ import annotations

import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

import pytest
from kafka.protocol.sasl import SaslAuthenticateResponse, SaslHandshakeResponse

from spark_group_source.auth.sasl import Sasl
from spark_group_source.auth.sasl_exchange import SESSION_PART, authenticate
from spark_group_source.auth.tokens import FunctionTokens
from spark_group_source.clock import Deadline
from spark_group_source.errors import AuthenticationFailed, BrokerUnavailable, DeadlineExceeded
from spark_group_source.text import Secret
from tests.unit.wire_options import LONG, after

PLAIN = Sasl("PLAIN", "alice", Secret("s3cret"))
NOT_UTF8 = Secret("s3cret\udc80")
BEARER = Sasl("OAUTHBEARER", token_provider=FunctionTokens(f"{__name__}:token_and_extensions"))


def token_and_extensions() -> tuple[str, dict[str, str]]:
    return "t0ken", {"logicalCluster": "lkc-1"}


class Broker:
    """Returns the given responses and keeps the messages that were sent. A function gets the nonce of the last one."""

    def __init__(self, *answers: Any) -> None:
        self._answers = iter(answers)
        self.sent: list[bytes] = []

    def __call__(self, request: Any) -> Any:
        if request.name == "SaslAuthenticateRequest":
            self.sent.append(request.auth_bytes)
        answer = next(self._answers)
        return answer(self.sent[-1].rpartition(b"r=")[2]) if callable(answer) else answer


def welcome(error: int = 0, mechanisms: tuple[str, ...] = ("PLAIN",)) -> Any:
    return SaslHandshakeResponse(version=1, error_code=error, mechanisms=list(mechanisms))


def answer(told: bytes = b"", lifetime: int = 0, error: int = 0, message: str | None = None) -> Any:
    return SaslAuthenticateResponse(
        version=2, error_code=error, error_message=message, auth_bytes=told, session_lifetime_ms=lifetime
    )


def challenge(iterations: str) -> Callable[[bytes], Any]:
    return lambda nonce: answer(b"r=" + nonce + f"x,s=AAAA,i={iterations}".encode())


def authenticated(settings: Sasl, *answers: Any) -> tuple[float | None, list[bytes]]:
    broker = Broker(*answers)
    return authenticate(settings, "host", "1 (host:9092)", broker, after()), broker.sent


def test_a_session_with_a_lifetime_is_replaced_before_its_end() -> None:
    assert authenticated(PLAIN, welcome(), answer()) == (None, [b"alice\0alice\0s3cret"])
    assert authenticated(PLAIN, welcome(), answer(lifetime=10_000))[0] == 10 * SESSION_PART
    sent = b"n,,\x01auth=Bearer t0ken\x01logicalCluster=lkc-1\x01\x01"
    assert authenticated(BEARER, welcome(), answer(lifetime=1000)) == (SESSION_PART, [sent])


def test_the_error_of_a_rejection_names_the_option_to_change() -> None:
    for answers, says in (
        ([welcome(33, ("GSSAPI", "SCRAM-SHA-512"))], "not enable 'PLAIN'.*GSSAPI, SCRAM-SHA-512.*kafka.sasl.mechanism"),
        ([welcome(34)], "does not use SASL.*kafka.security.protocol"),
        ([welcome(42)], "42 "),
        ([welcome(), answer(error=58, message="no such user")], "no such user.*kafka.sasl.password"),
        ([welcome(), answer(error=58)], "58 "),
    ):
        with pytest.raises(AuthenticationFailed, match=says) as refused:
            authenticated(PLAIN, *answers)
        assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize(
    ("settings", "received", "says"),
    [
        (Sasl("PLAIN", "alice", NOT_UTF8), b"", "the user name, the password or a message of the broker is not UTF-8"),
        (Sasl("SCRAM-SHA-256", "alice", NOT_UTF8), b"r=x,s=AAAA,i=4096", "is not UTF-8"),
        (BEARER, b"\xff\xfe", "by OAUTHBEARER failed: a message is not UTF-8 text"),
    ],
    ids=["PLAIN", "SCRAM", "OAUTHBEARER"],
)
def test_the_error_of_bytes_that_are_no_text_names_the_cause(settings: Sasl, received: bytes, says: str) -> None:
    with pytest.raises(AuthenticationFailed, match=says) as refused:
        authenticated(settings, welcome(), answer(received), answer(received))
    assert "s3cret" not in "".join(traceback.format_exception(refused.value))
    assert "password" not in str(refused.value) or settings is not BEARER


def test_a_broker_that_does_not_prove_that_it_knows_the_password_is_rejected() -> None:
    broker = Broker(welcome(), challenge("4096"), answer(b"v=AAAA"))
    with pytest.raises(AuthenticationFailed, match="wrong signature") as refused:
        authenticate(Sasl("SCRAM-SHA-256", "ali,ce=", Secret("s3cret")), "host", "1 (host:9092)", broker, after())
    assert broker.sent[0].startswith(b"n,,n=ali=2Cce=3D,r=")
    assert len(broker.sent) == 2
    assert "s3cret" not in str(refused.value)


@pytest.mark.parametrize("iterations", ["1", "4095", "+1", "\uff11", "4096,i=1"])
def test_a_scram_broker_may_not_ask_for_few_iterations(iterations: str) -> None:
    broker = Broker(welcome(), challenge(iterations))
    with pytest.raises(AuthenticationFailed, match=r"iterations of SCRAM-SHA-512; 4096 is the minimum\. "):
        authenticate(Sasl("SCRAM-SHA-512", "alice", Secret("s3cret")), "host", "1 (host:9092)", broker, after())
    assert len(broker.sent) == 1, "the proof must not leave"


class GSSError(Exception):
    """Like gssapi's error; for a real error see tests/integration/test_kerberos.py."""

    def __init__(self, minor: int) -> None:
        super().__init__("Unspecified GSS failure")
        self.min_code = minor % 2**32


def gssapi(monkeypatch: pytest.MonkeyPatch, begin: Callable[[object], bytes]) -> Sasl:
    """Returns settings of a mechanism whose library calls ``begin`` to request a ticket from a KDC."""
    library = Mock()
    library.SecurityContext.return_value = Mock(step=begin, complete=False)
    monkeypatch.setitem(sys.modules, "gssapi", library)
    return Sasl("GSSAPI", kerberos_service="kafka")


def test_errors_of_a_kdc_may_heal(monkeypatch: pytest.MonkeyPatch) -> None:
    for minor, kind in (
        (-1765328228, BrokerUnavailable),  # Cannot contact any KDC
        (-1765328164, BrokerUnavailable),  # Cannot resolve network address for KDC
        (-1765328355, BrokerUnavailable),  # A service is not available
        (-1765328352, BrokerUnavailable),  # Ticket expired
        (-1765328377, AuthenticationFailed),  # Server not found in Kerberos database
        (-1765328243, AuthenticationFailed),  # No Kerberos credentials available
    ):
        settings = gssapi(monkeypatch, Mock(side_effect=GSSError(minor)))
        with pytest.raises(kind, match="by GSSAPI failed: GSSError.*klist"):
            authenticated(settings, welcome())


def test_a_silent_kdc_times_out_at_the_deadline(monkeypatch: pytest.MonkeyPatch) -> None:
    answered = threading.Event()
    settings = gssapi(monkeypatch, lambda _: b"ticket" if answered.wait(LONG) else b"")
    with pytest.raises(DeadlineExceeded, match=r"no ticket for broker 1 \(host:9092\)"):
        authenticate(settings, "host", "1 (host:9092)", Broker(welcome()), Deadline.after(0.2))
    answered.set()
